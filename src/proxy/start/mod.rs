//! Starting and ending a proxy: its parts, in order.

mod cores;
mod identity;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

#[cfg(feature = "postgres")]
use self::cores::prepare_postgres;
use self::cores::{Core, Doors, bind_all, prepare_redis};
use self::identity::{fixed_keys, keys, opening, registered};
use super::etcd::Floors;
use super::fence::Fence;
use super::floors::BackendFloors;
use super::gates::{Gates, Holds};
use super::left::Left;
use super::lost::Lost;
#[cfg(feature = "postgres")]
use super::postgres::start as postgres;
use super::redis::control::ControlError;
use super::redis::start as redis;
use super::registry::{InvalidLockd, Registry, Standing};
use super::spool::SpoolRoom;
use super::tickets::Tickets;
use super::watermarks::{LoadError, OpenError, Watermarks, WatermarksThread};
use crate::audit::AuditWriter;
use crate::config::{ConfigErrors, Mode, ProxyConfig};

/// How long a gate stays in memory unused.
const IDLE_GATE_MAX: Duration = Duration::from_secs(10);
/// How long a shutdown waits for what is in flight.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// What a proxy is given beside its configuration.
pub struct Options {
    /// Make a watermark store although nobody can be asked for floors.
    pub init: bool,
    /// Where the admin port listens, which serves [`Proxy::fence`].
    pub admin: SocketAddr,
    /// Where refusals are recorded.
    pub audit: AuditWriter,
    /// Threads that serve clients; `None`: one per core.
    pub threads: Option<usize>,
}

/// Why a proxy did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The watermark store.
    #[error(transparent)]
    Watermarks(#[from] OpenError),
    /// The backend sessions that an earlier run has left.
    #[error(transparent)]
    Sessions(#[from] LoadError),
    /// The file of public keys.
    #[error(transparent)]
    Keys(#[from] ConfigErrors),
    /// The address of lockd.
    #[error(transparent)]
    Lockd(#[from] InvalidLockd),
    /// A Redis server that cannot be guarded, or a control user without the rights for it.
    #[error("listener {name:?}: {source}")]
    Redis {
        /// The listener.
        name: String,
        /// Why.
        source: ControlError,
    },
    /// A Postgres server that cannot be guarded, a control role without the rights for it, or keys
    /// that cannot be read.
    #[cfg(feature = "postgres")]
    #[error("listener {name:?}: {source}")]
    Postgres {
        /// The listener.
        name: String,
        /// Why.
        source: postgres::PrepareError,
    },
    /// A listener's port.
    #[error("listener {name:?} cannot listen on {address}: {source}")]
    Listen {
        /// The listener.
        name: String,
        /// Its address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The spool's folder, or a thread.
    #[error("cannot use {what}: {source}", what = what.display())]
    Resource {
        /// What.
        what: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A proxy that runs. Dropped without [`Proxy::shutdown`] it stops without a clean mark.
pub struct Proxy {
    listeners: Vec<(String, SocketAddr)>,
    gates: Gates,
    tickets: Arc<Tickets>,
    lost: Lost,
    fence: Fence,
    shutdown: watch::Sender<bool>,
    cores: Vec<Core>,
    watermarks: Option<WatermarksThread>,
    /// Doubts, eviction, registration. Ended when it is dropped.
    _tasks: JoinSet<()>,
}

/// Whether requests can be served.
#[derive(Clone)]
pub struct Health {
    gates: Gates,
    tickets: Arc<Tickets>,
    lost: Lost,
}

/// Starts a proxy. Called within a tokio runtime, which carries its background tasks.
pub fn start(config: ProxyConfig, options: Options) -> Result<Proxy, StartError> {
    let threads = options
        .threads
        .or_else(|| std::thread::available_parallelism().ok().map(Into::into));
    // First: a port that is taken must not leave a store behind that `--init` then finds.
    let sockets = bind_all(&config, threads.unwrap_or(1))?;
    let mut prepared = prepare_redis(&config, threads.unwrap_or(1))?;
    #[cfg(feature = "postgres")]
    let mut ready = prepare_postgres(&config, threads.unwrap_or(1))?;
    let patterns = config.lock_patterns(|_| true);
    let fixed = fixed_keys(&config)?;
    let opening = opening(&config, options.init, &patterns);
    let (watermarks, thread, start) = Watermarks::open(&config.data_dir, opening)?;
    let patterns = registered(&start, patterns);
    let spool_dir = config.data_dir.join("spool");
    std::fs::create_dir_all(&spool_dir).map_err(|source| StartError::Resource {
        what: spool_dir.clone(),
        source,
    })?;

    let (ring, registry) = keys(&config, &options, (&start, &watermarks), &patterns, fixed)?;
    let holds = config
        .listeners
        .iter()
        .map(|it| (it.rules.lock_patterns(), it.in_doubt_hold));
    // Redis and Postgres prove what is dead: their doubts wait for no time (see `left`, `lost`).
    let proven = config.redis.iter().map(|it| it.rules.lock_patterns());
    #[cfg(feature = "postgres")]
    let proven = proven.chain(config.postgres.iter().map(|it| it.rules.lock_patterns()));
    let proven = proven.map(|patterns| (patterns, Duration::ZERO));
    let holds = Holds::new(holds.chain(proven).collect());
    let etcd: Vec<Arc<Floors>> = config
        .listeners
        .iter()
        .filter_map(|listener| Floors::of(listener, registry.clone()))
        .collect();
    let fence_keys = redis::fence_keys(&mut prepared, registry.as_ref());
    let floors = etcd.iter().cloned().map(BackendFloors::Etcd);
    let floors = floors.chain(fence_keys.into_iter().map(BackendFloors::Redis));
    #[cfg(feature = "postgres")]
    let floors = {
        let run = format!("{}/{}", start.store_id, start.run);
        let stores = postgres::fence_stores(&mut ready, registry.as_ref(), &run);
        floors.chain(stores.into_iter().map(BackendFloors::Postgres))
    };
    let sessions = watermarks.sessions()?;
    let mut tasks = JoinSet::new();
    let lost = match &registry {
        Some(registry) => {
            let named = config.lock_patterns(|_| true);
            Lost::new(registry.standing(), start.unconfirmed, named)
        }
        None => Lost::default(),
    };
    redis::sweep(&prepared, &lost, &mut tasks);
    #[cfg(feature = "postgres")]
    postgres::sweep(&ready, &lost, &mut tasks);
    let left = Left::new(&sessions).with_lost(lost.clone());
    let gates = Gates::new(
        watermarks.clone(),
        start.clone(),
        holds,
        left.clone(),
        registry.clone(),
        floors.collect(),
    );
    let tickets = Tickets::new(ring, registry.clone(), config.instance.clone(), patterns);
    let tickets = Arc::new(tickets);

    let is_new = start.unconfirmed;
    spawn_tasks(&gates, registry.clone(), (lost.clone(), is_new), &mut tasks);
    if options.init {
        for floors in etcd {
            tasks.spawn(floors.make_ready());
        }
    }
    #[cfg(feature = "postgres")]
    let (guarded, sessions) = {
        let rows = watermarks.prepared()?;
        postgres::guard(
            ready,
            &watermarks,
            (left.clone(), sessions),
            rows,
            &mut tasks,
        )
    };
    let evictors = redis::evict(&prepared, &watermarks, (left, sessions), &mut tasks);
    let observed = config.lock_patterns(|mode| mode == Mode::Observe);
    let fence = Fence::new(
        (config.instance.clone(), start.process.clone()),
        gates.clone(),
        Arc::clone(&tickets),
        observed,
    );
    let shared = Shared {
        config,
        spool_room: Arc::new(SpoolRoom::new(spool_dir)),
        gates,
        tickets,
        audit: options.audit,
        watermarks,
    };
    let shutdown = watch::Sender::new(false);
    let doors = Doors {
        sockets,
        redis: prepared.into_iter().zip(evictors).collect(),
        #[cfg(feature = "postgres")]
        postgres: guarded,
    };
    let (listeners, cores) = doors.open(&shared, &shutdown, &mut tasks)?;
    Ok(Proxy {
        listeners,
        gates: shared.gates.clone(),
        tickets: Arc::clone(&shared.tickets),
        lost,
        fence,
        cores,
        shutdown,
        watermarks: Some(thread),
        _tasks: tasks,
    })
}

/// Doubts, eviction, registration.
fn spawn_tasks(
    gates: &Gates,
    registry: Option<Registry>,
    (lost, is_new): (Lost, bool),
    tasks: &mut JoinSet<()>,
) {
    tasks.spawn(gates.doubts().clone().run());
    tasks.spawn(gates.clone().run_eviction(IDLE_GATE_MAX));
    if let Some(registry) = registry {
        tasks.spawn(follow_standing(
            registry.standing(),
            gates.clone(),
            lost,
            is_new,
        ));
        let (ending, ended) = (registry.clone(), gates.clone());
        tasks.spawn(async move {
            ending.ended().await;
            ended.end();
        });
        tasks.spawn(registry.run());
    }
}

/// What the listeners share.
struct Shared {
    config: ProxyConfig,
    spool_room: Arc<SpoolRoom>,
    gates: Gates,
    tickets: Arc<Tickets>,
    audit: AuditWriter,
    watermarks: Watermarks,
}

/// Carries out what lockd says about the store. `is_new`: it was not known before whether an older
/// one was lost, or what that left had not ended.
async fn follow_standing(
    mut standing: watch::Receiver<Standing>,
    gates: Gates,
    lost: Lost,
    is_new: bool,
) {
    loop {
        let now = *standing.borrow_and_update();
        match now {
            Standing::Pending => {}
            Standing::New => return gates.set_confirmed(),
            Standing::Same | Standing::SealsMissed if !is_new => return,
            Standing::Same | Standing::SealsMissed | Standing::StoreLost => {
                tracing::warn!(
                    "watermarks were lost: floors come from the lock service, and locks may start \
                     in doubt"
                );
                tokio::time::sleep_until(gates.holds_end()).await;
                lost.ended().await;
                return gates.set_confirmed();
            }
        }
        if standing.changed().await.is_err() {
            return;
        }
    }
}

impl Proxy {
    /// The listeners' names and the addresses that they have.
    pub fn listeners(&self) -> &[(String, SocketAddr)] {
        &self.listeners
    }

    /// The fence service, for the admin port.
    pub fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// Whether requests can be served, now and later.
    pub fn health(&self) -> Health {
        Health {
            gates: self.gates.clone(),
            tickets: Arc::clone(&self.tickets),
            lost: self.lost.clone(),
        }
    }

    /// Stops accepting, lets what is in flight end (for at most 10 s), and marks what has ended
    /// clean.
    pub async fn shutdown(mut self) {
        self.shutdown.send_replace(true);
        let cores = std::mem::take(&mut self.cores);
        let thread = self.watermarks.take();
        let gates = self.gates.clone();
        let end = move || {
            let ends: Vec<_> = cores.into_iter().map(JoinHandle::join).collect();
            let ended = ends.iter().all(|end| matches!(end, Ok(Ok(true))));
            gates.evict_all();
            if let Some(thread) = thread {
                let clean = gates.doubts().count() == 0 && !gates.is_in_holds();
                thread.close(ended && clean);
            }
        };
        if tokio::task::spawn_blocking(end).await.is_err() {
            tracing::error!("the proxy did not end in order");
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shutdown.send_replace(true);
    }
}

impl Health {
    /// The error says what is missing.
    pub fn check(&self) -> Result<(), String> {
        if !self.gates.is_available() {
            return Err("the watermark store is not available".to_owned());
        }
        self.gates.check_ended()?;
        self.tickets.check()?;
        self.lost.check()
    }
}
