//! Runs a lock service on a listener: its tasks, its gRPC server, its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::server::NamedService;
use tonic::transport::Server;

use crate::incoming::{self, Bounds};
use crate::lockd::dispatch::Dispatch;
use crate::lockd::fence::Fences;
use crate::lockd::health::{self, Health};
use crate::lockd::keys::SigningKeys;
use crate::lockd::lock_service::Locks;
use crate::lockd::proxies::Proxies;
use crate::lockd::registry_service::Registry;
use crate::lockd::seen_proxies::{SeenError, SeenProxies};
use crate::lockd::sessions::Sessions;
use crate::lockd::{Core, Settings};
use crate::proto::lock_service_server::LockServiceServer;
use crate::proto::registry_service_server::RegistryServiceServer;
use crate::store::Store;

/// HTTP/2 flow control windows, in bytes: many small calls share one connection.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
/// Cancelled calls of one connection that may wait to be noticed. hyper's default of 20 is meant
/// against floods of resets; a client that gives up thousands of waiters at once is none.
const PENDING_RESETS_MAX: usize = 20_000;
/// A peer that is gone without a word is noticed after these two.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a lock service could not start or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener.
    #[error("lock service listener: {0}")]
    Listener(#[from] std::io::Error),
    /// The gRPC server.
    #[error("lock service server: {0}")]
    Server(#[from] tonic::transport::Error),
    /// What was seen of proxies.
    #[error(transparent)]
    Seen(#[from] SeenError),
    /// A task of ours panicked.
    #[error("lock service task: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// A lock service that runs in this process.
pub struct Lockd {
    address: SocketAddr,
    core: Arc<Core>,
    /// Ends the watch and the keys' reload, after the server.
    finished: CancellationToken,
    followers: Vec<JoinHandle<()>>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Lockd {
    /// Starts to serve on the listener. Must be called within a tokio runtime. Over a store that
    /// is exclusive to its process ([`Store::is_exclusive`]) it is the only lockd.
    pub fn start(
        settings: Settings,
        store: Arc<dyn Store>,
        keys: Arc<SigningKeys>,
        listener: TcpListener,
    ) -> Result<Lockd, ServeError> {
        let address = listener.local_addr()?;
        let seen = match &settings.proxies_seen {
            Some(path) => SeenProxies::open(path)?.unwrap_or_else(|| SeenProxies::new(path)),
            None => SeenProxies::default(),
        };
        let core = Arc::new(Core {
            dispatch: Arc::new(Dispatch::new(settings.limits.clone())),
            proxies: Arc::new(Proxies::new(store.clone(), seen)),
            fences: Fences::default(),
            keys: keys.clone(),
            health: Health::default(),
            sessions: Sessions::new(settings.limits.sessions_max),
            settings,
            store,
            tasks: TaskTracker::new(),
            runtime: tokio::runtime::Handle::current(),
            stopping: CancellationToken::new(),
        });
        let finished = CancellationToken::new();
        let server = tokio::spawn(run_server(core.clone(), listener));
        let followers = vec![
            tokio::spawn({
                let (core, finished) = (core.clone(), finished.clone());
                async move { core.dispatch.follow(&*core.store, &finished).await }
            }),
            tokio::spawn(keys.follow(finished.clone())),
            tokio::spawn(core.proxies.clone().follow(finished.clone())),
            tokio::spawn(health::ask(core.clone(), finished.clone())),
            tokio::spawn({
                let (core, finished) = (core.clone(), finished.clone());
                async move { core.sessions.tell(finished).await }
            }),
        ];
        tracing::info!(%address, "lock service listens");
        Ok(Lockd {
            address,
            core,
            finished,
            followers,
            server,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The keys that it signs with.
    pub fn keys(&self) -> &Arc<SigningKeys> {
        &self.core.keys
    }

    /// Locks that are held or waited for, and calls that wait.
    pub fn counts(&self) -> (usize, usize) {
        self.core.dispatch.counts()
    }

    /// Waits until the whole state of the store was read.
    pub async fn synced(&self) {
        // The sender lives in the core.
        let _ = self.core.dispatch.synced().wait_for(|synced| *synced).await;
    }

    /// Whether it can serve.
    pub fn health(&self) -> Health {
        self.core.health.clone()
    }

    /// Stops: no new connections; waiting calls are told UNAVAILABLE and keep their places, since
    /// their sessions live on; other calls end; abandoned entries are removed.
    pub async fn shutdown(mut self) -> Result<(), ServeError> {
        self.core.stopping.cancel();
        let grace = self.core.settings.shutdown_grace;
        let served = match tokio::time::timeout(grace, &mut self.server).await {
            Ok(ended) => ended?.map_err(ServeError::Server),
            Err(_) => {
                tracing::warn!("calls were still in progress at the end of the grace period");
                self.server.abort();
                Ok(())
            }
        };
        self.core.tasks.close();
        if tokio::time::timeout(grace, self.core.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("abandoned entries stay until their sessions end");
        }
        self.finished.cancel();
        for follower in std::mem::take(&mut self.followers) {
            follower.await?;
        }
        served
    }

    /// Waits until the server ends by itself: only by a failure.
    pub async fn failed(&mut self) -> Result<(), ServeError> {
        (&mut self.server).await??;
        Ok(())
    }
}

/// Dropped without [`Lockd::shutdown`]: everything stops at once.
impl Drop for Lockd {
    fn drop(&mut self) {
        self.core.stopping.cancel();
        self.server.abort();
        self.finished.cancel();
    }
}

async fn run_server(core: Arc<Core>, listener: TcpListener) -> Result<(), tonic::transport::Error> {
    let limits = &core.settings.limits;
    let locks = LockServiceServer::new(Locks(core.clone()))
        .max_decoding_message_size(limits.message_bytes_max);
    let registry = RegistryServiceServer::new(Registry::new(core.clone()))
        .max_decoding_message_size(limits.message_bytes_max);
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(crate::proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name(<LockServiceServer<Locks> as NamedService>::NAME)
        .with_service_name(<RegistryServiceServer<Registry> as NamedService>::NAME)
        .with_service_name("grpc.health.v1.Health")
        .build_v1()
        .expect("the descriptors were compiled with this binary");
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter
        .set_serving::<RegistryServiceServer<Registry>>()
        .await;

    let bounds = Bounds {
        connections_max: limits.connections_max,
        begin_max: limits.begin_max,
    };
    let stopping = core.stopping.clone();
    let mut server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(limits.streams_per_connection_max)
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS_MAX))
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT));
    let serving = server
        .add_service(health)
        .add_service(reflection)
        .add_service(locks)
        .add_service(registry)
        .serve_with_incoming_shutdown(
            incoming::stream(listener, bounds),
            stopping.cancelled_owned(),
        );
    let health_follows = async {
        let mut verdicts = core.health.follow();
        let report = async {
            loop {
                let serves = verdicts.borrow_and_update().is_ok();
                match serves {
                    true => reporter.set_serving::<LockServiceServer<Locks>>().await,
                    false => reporter.set_not_serving::<LockServiceServer<Locks>>().await,
                }
                // The sender lives in the core.
                let _ = verdicts.changed().await;
            }
        };
        core.stopping.run_until_cancelled(report).await;
        reporter.set_not_serving::<LockServiceServer<Locks>>().await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        served = serving => served,
        () = health_follows => Ok(()),
    }
}
