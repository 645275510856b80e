//! What a lock service does for a load, and lockd as one.

use std::future::Future;

use ringfence::proto::lock_service_client::LockServiceClient;
use ringfence::proto::{
    AcquireRequest, CloseSessionRequest, GetLockRequest, OpenSessionRequest, ReleaseRequest,
};
use tonic::transport::{Channel, Endpoint};

/// Connections that the clients of a load share.
const CONNECTIONS: usize = 8;

/// Time to live of sessions: longer than any load, so that none is renewed.
pub const TTL_S: i64 = 600;

/// A lock service. Every failure ends the bench.
pub trait Locks: Clone + Send + Sync + 'static {
    type Session: Send + Sync;
    type Held: Send;

    /// Opens the session of the client with this number.
    fn open(&self, client: usize) -> impl Future<Output = Self::Session> + Send;
    /// Waits until the session holds the lock.
    fn lock(
        &self,
        session: &mut Self::Session,
        name: &str,
    ) -> impl Future<Output = Self::Held> + Send;
    /// Releases it.
    fn unlock(&self, held: Self::Held) -> impl Future<Output = ()> + Send;
    /// How many hold or wait for the lock.
    fn queued(&self, name: &str) -> impl Future<Output = u64> + Send;
    /// Ends the session and all that it waits for.
    fn close(&self, session: Self::Session) -> impl Future<Output = ()> + Send;
}

/// The connections to one server.
pub async fn connect(url: &str) -> Vec<Channel> {
    let endpoint = Endpoint::from_shared(url.to_owned())
        .expect("a URL")
        .tcp_nodelay(true);
    let mut channels = Vec::new();
    for _ in 0..CONNECTIONS {
        channels.push(endpoint.connect().await.expect("a connection"));
    }
    channels
}

/// lockd over its gRPC service.
#[derive(Clone)]
pub struct Lockd(Vec<LockServiceClient<Channel>>);

pub struct Session {
    client: LockServiceClient<Channel>,
    id: String,
    attempt: u64,
}

pub struct Held {
    client: LockServiceClient<Channel>,
    release: ReleaseRequest,
}

impl Lockd {
    pub async fn connect(url: &str) -> Lockd {
        Lockd(
            connect(url)
                .await
                .into_iter()
                .map(LockServiceClient::new)
                .collect(),
        )
    }
}

impl Locks for Lockd {
    type Session = Session;
    type Held = Held;

    async fn open(&self, client: usize) -> Session {
        let mut client = self.0[client % self.0.len()].clone();
        let holder = "bench".to_owned();
        let request = OpenSessionRequest {
            ttl_ms: TTL_S as u64 * 1000,
            holder,
        };
        let id = client
            .open_session(request)
            .await
            .expect("a session")
            .into_inner()
            .session;
        Session {
            client,
            id,
            attempt: 0,
        }
    }

    async fn lock(&self, session: &mut Session, name: &str) -> Held {
        session.attempt += 1;
        let request = AcquireRequest {
            session: session.id.clone(),
            lock: name.to_owned(),
            wait_ms: TTL_S as u64 * 1000,
            attempt: session.attempt,
            holder: String::new(),
        };
        let token = session
            .client
            .acquire(request)
            .await
            .expect("a grant")
            .into_inner()
            .token;
        let release = ReleaseRequest {
            session: session.id.clone(),
            lock: name.to_owned(),
            token,
            close: false,
        };
        Held {
            client: session.client.clone(),
            release,
        }
    }

    async fn unlock(&self, mut held: Held) {
        let reply = held
            .client
            .release(held.release)
            .await
            .expect("a release")
            .into_inner();
        assert!(reply.released, "a grant was gone before its release");
    }

    async fn queued(&self, name: &str) -> u64 {
        let request = GetLockRequest {
            lock: name.to_owned(),
        };
        let reply = self.0[0]
            .clone()
            .get_lock(request)
            .await
            .expect("a lock")
            .into_inner();
        reply
            .holder
            .map_or(0, |holder| 1 + u64::from(holder.waiters))
    }

    async fn close(&self, mut session: Session) {
        let request = CloseSessionRequest {
            session: session.id,
        };
        session
            .client
            .close_session(request)
            .await
            .expect("a close");
    }
}
