//! A lock service in memory, with faults on demand: what the client must cope with and no real
//! service does when asked to.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

use crate::proto::lock_service_server::{LockService, LockServiceServer};
use crate::proto::{
    AcquireRequest, AcquireResponse, BreakLockRequest, BreakLockResponse, CloseSessionRequest,
    CloseSessionResponse, GetLockRequest, GetLockResponse, Grant, KeepAliveRequest,
    KeepAliveResponse, ListLocksRequest, ListLocksResponse, OpenSessionRequest,
    OpenSessionResponse, ReleaseRequest, ReleaseResponse, Waiter, WatchLockRequest,
    WatchLockResponse,
};

/// What the fake does wrong next.
#[derive(Default)]
pub(super) struct Faults {
    /// So many acquires are granted and their replies then lost.
    pub(super) lose_acquire_replies: u32,
    /// So many acquires are answered UNAVAILABLE after their grant was taken back.
    pub(super) fail_seals: u32,
    /// Renewals get no answer.
    pub(super) mute_renewals: bool,
    /// Renewals are answered: gone.
    pub(super) sessions_gone: bool,
}

impl Faults {
    fn take_lost_reply(&mut self) -> bool {
        let lose = self.lose_acquire_replies > 0;
        self.lose_acquire_replies = self.lose_acquire_replies.saturating_sub(1);
        lose
    }

    fn take_failed_seal(&mut self) -> bool {
        let fail = self.fail_seals > 0;
        self.fail_seals = self.fail_seals.saturating_sub(1);
        fail
    }
}

struct Entry {
    session: String,
    attempt: u64,
    token: u64,
}

#[derive(Default)]
struct State {
    sessions: u64,
    tokens: u64,
    queues: BTreeMap<String, Vec<Entry>>,
    released: HashMap<(String, String), u64>,
    closed: Vec<String>,
    ttl_ms: u64,
}

/// The state that several endpoints share, as several lockd share a store.
#[derive(Clone, Default)]
pub(super) struct Fake {
    state: Arc<Mutex<State>>,
    pub(super) faults: Arc<Mutex<Faults>>,
    changed: Arc<Notify>,
    connections: Arc<Mutex<Vec<Connections>>>,
}

/// One endpoint of a fake. Ends when dropped, with its connections.
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    connections: Connections,
    server: AbortHandle,
}

impl Endpoint {
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.server.abort();
        self.connections.cut();
    }
}

/// Handles of accepted connections, to cut them in the middle of a call.
#[derive(Clone, Default)]
struct Connections(Arc<Mutex<Vec<std::net::TcpStream>>>);

impl Connections {
    fn keep(&self, stream: TcpStream) -> std::io::Result<TcpStream> {
        let stream = stream.into_std()?;
        self.0.lock().unwrap().push(stream.try_clone()?);
        TcpStream::from_std(stream)
    }

    fn cut(&self) {
        for stream in self.0.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Fake {
    pub(super) async fn serve(&self) -> Endpoint {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = LockServiceServer::new(self.clone());
        let connections = Connections::default();
        let accepted = connections.clone();
        let incoming = TcpListenerStream::new(listener).map(move |stream| accepted.keep(stream?));
        self.connections.lock().unwrap().push(connections.clone());
        let server = tokio::spawn(async move {
            let _ = tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming)
                .await;
        });
        Endpoint {
            address,
            connections,
            server: server.abort_handle(),
        }
    }

    /// The tokens in the lock's queue, the holder's first.
    pub(super) fn queue(&self, lock: &str) -> Vec<u64> {
        let state = self.state.lock().unwrap();
        state
            .queues
            .get(lock)
            .map_or(vec![], |queue| queue.iter().map(|e| e.token).collect())
    }

    /// The sessions that were closed by their clients.
    pub(super) fn closed(&self) -> Vec<String> {
        self.state.lock().unwrap().closed.clone()
    }

    /// Takes the grant away, as an operator does who breaks the lock.
    pub(super) fn break_lock(&self, lock: &str) {
        self.state
            .lock()
            .unwrap()
            .queues
            .get_mut(lock)
            .unwrap()
            .remove(0);
        self.changed.notify_waiters();
    }

    /// Stands the session in the queue; its token, and whether it is first.
    fn enqueue(&self, request: &AcquireRequest) -> Result<(u64, bool), Status> {
        let mut state = self.state.lock().unwrap();
        let key = (request.session.clone(), request.lock.clone());
        if state
            .released
            .get(&key)
            .is_some_and(|last| request.attempt <= *last)
        {
            let mut over = Status::failed_precondition("attempt is over");
            over.metadata_mut()
                .insert("ringfence-reason", "attempt-over".parse().unwrap());
            return Err(over);
        }
        let token = state.tokens + 1;
        let queue = state.queues.entry(request.lock.clone()).or_default();
        if let Some(at) = queue
            .iter()
            .position(|entry| entry.session == request.session)
        {
            if queue[at].attempt == request.attempt {
                return Ok((queue[at].token, at == 0));
            }
            // A later attempt gives up what the earlier one left.
            queue.remove(at);
        }
        let (session, attempt) = (request.session.clone(), request.attempt);
        queue.push(Entry {
            session,
            attempt,
            token,
        });
        let first = queue.len() == 1;
        state.tokens = token;
        Ok((token, first))
    }

    fn remove(&self, session: &str, lock: &str, token: u64) -> bool {
        let mut state = self.state.lock().unwrap();
        let Some(queue) = state.queues.get_mut(lock) else {
            return false;
        };
        let Some(at) = queue
            .iter()
            .position(|e| e.session == session && e.token == token)
        else {
            return false;
        };
        let attempt = queue.remove(at).attempt;
        state
            .released
            .insert((session.to_owned(), lock.to_owned()), attempt);
        drop(state);
        self.changed.notify_waiters();
        true
    }

    fn holder(&self, lock: &str) -> Option<Grant> {
        let state = self.state.lock().unwrap();
        let first = state.queues.get(lock)?.first()?;
        let (token, session) = (first.token, first.session.clone());
        Some(Grant {
            lock: lock.to_owned(),
            token,
            session,
            ..Grant::default()
        })
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl LockService for Fake {
    type KeepAliveStream = Answers<KeepAliveResponse>;
    type WatchLockStream = Answers<WatchLockResponse>;

    async fn open_session(
        &self,
        request: Request<OpenSessionRequest>,
    ) -> Result<Response<OpenSessionResponse>, Status> {
        let mut state = self.state.lock().unwrap();
        state.sessions += 1;
        state.ttl_ms = request.get_ref().ttl_ms;
        let session = format!("{:x}", state.sessions);
        Ok(Response::new(OpenSessionResponse {
            session,
            ttl_ms: state.ttl_ms,
        }))
    }

    async fn keep_alive(
        &self,
        request: Request<Streaming<KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        let fake = self.clone();
        let answers = request.into_inner().then(move |request| {
            let fake = fake.clone();
            async move {
                let session = request?.session;
                let (mute, gone) = {
                    let faults = fake.faults.lock().unwrap();
                    (faults.mute_renewals, faults.sessions_gone)
                };
                if mute {
                    std::future::pending::<()>().await;
                }
                let ttl_ms = if gone {
                    0
                } else {
                    fake.state.lock().unwrap().ttl_ms
                };
                Ok(KeepAliveResponse { session, ttl_ms })
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn close_session(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        let session = request.into_inner().session;
        let mut state = self.state.lock().unwrap();
        for queue in state.queues.values_mut() {
            queue.retain(|entry| entry.session != session);
        }
        state.closed.push(session);
        drop(state);
        self.changed.notify_waiters();
        Ok(Response::new(CloseSessionResponse {}))
    }

    async fn acquire(
        &self,
        request: Request<AcquireRequest>,
    ) -> Result<Response<AcquireResponse>, Status> {
        let request = request.into_inner();
        let until = tokio::time::Instant::now() + Duration::from_millis(request.wait_ms);
        loop {
            let changed = self.changed.notified();
            let (token, first) = self.enqueue(&request)?;
            if first {
                if self.faults.lock().unwrap().take_failed_seal() {
                    self.remove(&request.session, &request.lock, token);
                    let mut unsealed = Status::unavailable("not sealed");
                    let reason = "not-sealed".parse().unwrap();
                    unsealed.metadata_mut().insert("ringfence-reason", reason);
                    return Err(unsealed);
                }
                if self.faults.lock().unwrap().take_lost_reply() {
                    self.connections
                        .lock()
                        .unwrap()
                        .iter()
                        .for_each(Connections::cut);
                    std::future::pending::<()>().await;
                }
                let ticket = format!("ticket {token}");
                return Ok(Response::new(AcquireResponse {
                    token,
                    ticket,
                    sealed: vec![],
                }));
            }
            if tokio::time::timeout_at(until, changed).await.is_err() {
                self.remove(&request.session, &request.lock, token);
                return Err(Status::deadline_exceeded("not granted"));
            }
        }
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseResponse>, Status> {
        let request = request.into_inner();
        let released = self.remove(&request.session, &request.lock, request.token);
        Ok(Response::new(ReleaseResponse { released }))
    }

    async fn get_lock(
        &self,
        request: Request<GetLockRequest>,
    ) -> Result<Response<GetLockResponse>, Status> {
        let lock = request.into_inner().lock;
        let holder = self.holder(&lock);
        let state = self.state.lock().unwrap();
        let queue = state
            .queues
            .get(&lock)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let waiters = queue.iter().skip(1).map(|entry| Waiter {
            session: entry.session.clone(),
            holder: String::new(),
            token: entry.token,
        });
        let (waiters, floor) = (waiters.collect(), state.tokens);
        Ok(Response::new(GetLockResponse {
            holder,
            waiters,
            floor,
        }))
    }

    async fn list_locks(
        &self,
        _: Request<ListLocksRequest>,
    ) -> Result<Response<ListLocksResponse>, Status> {
        Err(Status::unimplemented("not needed here"))
    }

    async fn watch_lock(
        &self,
        request: Request<WatchLockRequest>,
    ) -> Result<Response<Self::WatchLockStream>, Status> {
        let lock = request.into_inner().lock;
        let (answers, stream) = mpsc::channel(4);
        let fake = self.clone();
        tokio::spawn(async move {
            loop {
                let changed = fake.changed.notified();
                let holder = fake.holder(&lock);
                if answers
                    .send(Ok(WatchLockResponse { holder }))
                    .await
                    .is_err()
                {
                    return;
                }
                tokio::select! {
                    () = changed => {}
                    () = answers.closed() => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn break_lock(
        &self,
        _: Request<BreakLockRequest>,
    ) -> Result<Response<BreakLockResponse>, Status> {
        Err(Status::unimplemented("not needed here"))
    }
}
