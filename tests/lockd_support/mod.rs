//! A lock service over an embedded store in its own folder, on a free port, and a client of it.

#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ringfence::lock_name::LockName;
use ringfence::lockd::{Lockd, Settings, SigningKeys};
use ringfence::proto::lock_service_client::LockServiceClient;
use ringfence::proto::registry_service_client::RegistryServiceClient;
use ringfence::proto::{
    AcquireRequest, AcquireResponse, GetLockRequest, GetLockResponse, KeepAliveRequest,
    OpenSessionRequest, ReleaseRequest,
};
use ringfence::store::embedded::EmbeddedStore;
use ringfence::store::{
    Enqueue, Enqueued, Event, QueueView, Remove, Removed, SessionId, Store, StoreError,
};
use ringfence::token::Token;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

pub mod fence;

/// Longer than any test takes.
pub const LONG: Duration = Duration::from_secs(60);

/// Waits until the condition holds; fails after a while.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    for _ in 0..1000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 10 s: {what}");
}

/// Fails where the future takes long: a lost wake-up must not look like a slow machine.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .unwrap_or_else(|_| panic!("not within 20 s: {what}"))
}

/// A store that others write to as well, as one on the network: nothing of it may be cached.
pub struct SharedStore {
    pub store: Arc<dyn Store>,
    /// How long after it the end of an entry is told.
    pub late: Duration,
}

#[async_trait]
impl Store for SharedStore {
    async fn open_session(&self, ttl: Duration) -> Result<(SessionId, Duration), StoreError> {
        self.store.open_session(ttl).await
    }

    async fn keep_alive(&self, session: SessionId) -> Result<Option<Duration>, StoreError> {
        self.store.keep_alive(session).await
    }

    async fn close_session(&self, session: SessionId) -> Result<(), StoreError> {
        self.store.close_session(session).await
    }

    async fn enqueue(&self, enqueue: Enqueue) -> Result<Enqueued, StoreError> {
        self.store.enqueue(enqueue).await
    }

    async fn remove(&self, remove: Remove) -> Result<Removed, StoreError> {
        self.store.remove(remove).await
    }

    async fn queue(&self, lock: &LockName) -> Result<QueueView, StoreError> {
        self.store.queue(lock).await
    }

    async fn watch(&self) -> Result<mpsc::Receiver<Event>, StoreError> {
        let mut events = self.store.watch().await?;
        let (late, (teller, told)) = (self.late, mpsc::channel(64));
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                if matches!(event, Event::Gone { .. }) {
                    tokio::time::sleep(late).await;
                }
                if teller.send(event).await.is_err() {
                    return;
                }
            }
        });
        Ok(told)
    }

    async fn raise_above(&self, token: Token) -> Result<(), StoreError> {
        self.store.raise_above(token).await
    }

    async fn put_record(&self, name: &str, value: Option<Vec<u8>>) -> Result<(), StoreError> {
        self.store.put_record(name, value).await
    }

    async fn replace_record(
        &self,
        name: &str,
        seen: Option<&[u8]>,
        value: Vec<u8>,
    ) -> Result<bool, StoreError> {
        self.store.replace_record(name, seen, value).await
    }

    async fn records(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.store.records(prefix).await
    }
}

/// A lock service with its client. The client keeps all of it running.
pub struct Service {
    pub lockd: Arc<Lockd>,
    pub client: Client,
}

/// A lock service with a store of its own.
pub async fn start() -> Service {
    start_with(Settings::default()).await
}

pub async fn start_with(mut settings: Settings) -> Service {
    let folder = tempfile::tempdir().unwrap();
    settings.audit_dir = folder.path().join("audit");
    let store = open_store(folder.path()).await;
    let lockd = Arc::new(serve(store, settings).await);
    let mut client = Client::connect(&lockd).await;
    client.service = Some(Arc::new((lockd.clone(), folder)));
    Service { lockd, client }
}

pub async fn open_store(folder: &Path) -> Arc<dyn Store> {
    Arc::new(
        EmbeddedStore::open(&folder.join("locks.redb"))
            .await
            .unwrap(),
    )
}

pub async fn serve(store: Arc<dyn Store>, settings: Settings) -> Lockd {
    serve_with_keys(store, settings, Arc::new(SigningKeys::in_memory())).await
}

pub async fn serve_with_keys(
    store: Arc<dyn Store>,
    settings: Settings,
    keys: Arc<SigningKeys>,
) -> Lockd {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Lockd::start(settings, store, keys, listener).unwrap()
}

/// The generated client, and the calls that most tests make.
#[derive(Clone)]
pub struct Client {
    pub locks: LockServiceClient<Channel>,
    pub registry: RegistryServiceClient<Channel>,
    pub channel: Channel,
    service: Option<Arc<(Arc<Lockd>, TempDir)>>,
}

impl Client {
    pub async fn connect(lockd: &Lockd) -> Client {
        Client::to(&lockd.address().to_string()).await
    }

    pub async fn to(address: &str) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let channel = endpoint.tcp_nodelay(true).connect().await.unwrap();
        Client {
            locks: LockServiceClient::new(channel.clone()),
            registry: RegistryServiceClient::new(channel.clone()),
            channel,
            service: None,
        }
    }

    /// What gRPC health says of the lock service.
    pub async fn serves(&self) -> bool {
        let request = HealthCheckRequest {
            service: "ringfence.v1.LockService".to_owned(),
        };
        let answer = HealthClient::new(self.channel.clone()).check(request).await;
        answer.unwrap().into_inner().status == ServingStatus::Serving as i32
    }

    pub async fn open(&self) -> String {
        self.open_for(LONG).await
    }

    pub async fn open_for(&self, ttl: Duration) -> String {
        let ttl_ms = ttl.as_millis() as u64;
        let request = OpenSessionRequest {
            ttl_ms,
            holder: "test".to_owned(),
        };
        self.locks
            .clone()
            .open_session(request)
            .await
            .unwrap()
            .into_inner()
            .session
    }

    pub async fn acquire(
        &self,
        session: &str,
        lock: &str,
        wait: Duration,
        attempt: u64,
    ) -> Result<AcquireResponse, Status> {
        let request = AcquireRequest {
            session: session.to_owned(),
            lock: lock.to_owned(),
            wait_ms: wait.as_millis() as u64,
            attempt,
            holder: format!("holder of {lock}"),
        };
        self.locks
            .clone()
            .acquire(request)
            .await
            .map(tonic::Response::into_inner)
    }

    pub async fn release(&self, session: &str, lock: &str, token: u64) -> bool {
        self.try_release(session, lock, token, false).await.unwrap()
    }

    pub async fn try_release(
        &self,
        session: &str,
        lock: &str,
        token: u64,
        close: bool,
    ) -> Result<bool, Status> {
        let (session, lock) = (session.to_owned(), lock.to_owned());
        let request = ReleaseRequest {
            session,
            lock,
            token,
            close,
        };
        self.locks
            .clone()
            .release(request)
            .await
            .map(|reply| reply.into_inner().released)
    }

    pub async fn get(&self, lock: &str) -> GetLockResponse {
        let request = GetLockRequest {
            lock: lock.to_owned(),
        };
        self.locks
            .clone()
            .get_lock(request)
            .await
            .unwrap()
            .into_inner()
    }

    /// How many stand behind the holder.
    pub async fn waiters(&self, lock: &str) -> usize {
        self.get(lock).await.waiters.len()
    }

    /// The token that the store gives next.
    pub async fn next_token(&self) -> u64 {
        let session = self.open().await;
        let granted = self.acquire(&session, "elsewhere", Duration::ZERO, 1).await;
        granted.unwrap().token + 1
    }

    pub async fn wait_for_holder(&self, lock: &str) {
        eventually(&format!("a holder of {lock}"), || async {
            self.get(lock).await.holder.is_some()
        })
        .await;
    }

    pub async fn wait_for_waiters(&self, lock: &str, count: usize) {
        eventually(&format!("{count} waiters on {lock}"), || async {
            self.waiters(lock).await == count
        })
        .await;
    }

    /// Renews once; the time to live in milliseconds.
    pub async fn renew(&self, session: &str) -> u64 {
        let request = KeepAliveRequest {
            session: session.to_owned(),
        };
        let requests = tokio_stream::once(request);
        let mut answers = self
            .locks
            .clone()
            .keep_alive(requests)
            .await
            .unwrap()
            .into_inner();
        answers.message().await.unwrap().unwrap().ttl_ms
    }
}

/// The stable word of a refusal.
pub fn reason(status: &Status) -> String {
    status
        .metadata()
        .get("ringfence-reason")
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned()
}
