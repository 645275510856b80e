//! Starting and ending a proxy: its parts, in order.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::fence::Fence;
use super::gates::{Gates, Holds};
use super::left::Left;
use super::redis::accept::{RedisEntrance, run_core as run_redis_core};
use super::redis::control::ControlError;
use super::redis::start as redis;
use super::registry::{InvalidLockd, Registry, Ring, Standing};
use super::session::Listening;
use super::session::accept::{Entrance, bind, run_core};
use super::shadows::Shadows;
use super::tickets::Tickets;
use super::watermarks::{LoadError, OpenError, Opening, Start, Watermarks, WatermarksThread};
use crate::audit::AuditWriter;
use crate::config::{
    ConfigErrors, ListenerConfig, Mode, ProxyConfig, TicketSource, Trust, read_key_file,
};
use crate::lock_name::LockPattern;
use crate::proto::RegisterRequest;
use crate::ticket::KeyRing;

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
    fence: Fence,
    shutdown: watch::Sender<bool>,
    cores: Vec<JoinHandle<io::Result<bool>>>,
    watermarks: Option<WatermarksThread>,
    /// Doubts, eviction, registration. Ended when it is dropped.
    _tasks: JoinSet<()>,
}

/// Whether requests can be served.
#[derive(Clone)]
pub struct Health {
    gates: Gates,
    tickets: Arc<Tickets>,
}

/// Starts a proxy. Called within a tokio runtime, which carries its background tasks.
pub fn start(config: ProxyConfig, options: Options) -> Result<Proxy, StartError> {
    let threads = options
        .threads
        .or_else(|| std::thread::available_parallelism().ok().map(Into::into));
    // First: a port that is taken must not leave a store behind that `--init` then finds.
    let sockets = bind_all(&config, threads.unwrap_or(1))?;
    let prepared = prepare_redis(&config, threads.unwrap_or(1))?;
    let patterns = patterns(&config, |_| true);
    let opening = opening(&config, options.init, &patterns);
    let (watermarks, thread, start) = Watermarks::open(&config.data_dir, opening)?;
    let patterns = registered(&start, patterns);
    let spool_dir = config.data_dir.join("spool");
    std::fs::create_dir_all(&spool_dir).map_err(|source| StartError::Resource {
        what: spool_dir.clone(),
        source,
    })?;

    let (ring, registry) = keys(&config, &options, &start, &patterns)?;
    let holds = config
        .listeners
        .iter()
        .map(|it| (it.rules.lock_patterns(), it.in_doubt_hold));
    // Redis proves what is dead: its doubts wait for no time.
    let proven = config.redis.iter();
    let proven = proven.map(|it| (it.rules.lock_patterns(), Duration::ZERO));
    let holds = Holds::new(holds.chain(proven).collect());
    let sessions = watermarks.sessions()?;
    let left = Left::new(&sessions);
    let gates = Gates::new(
        watermarks.clone(),
        start.clone(),
        holds,
        left.clone(),
        registry.clone(),
    );
    let tickets = Tickets::new(ring, registry.clone(), config.instance.clone(), patterns);
    let tickets = Arc::new(tickets);

    let mut tasks = JoinSet::new();
    tasks.spawn(gates.doubts().clone().run());
    tasks.spawn(gates.clone().run_eviction(IDLE_GATE_MAX));
    let floors = registry.clone();
    if let Some(registry) = registry {
        tasks.spawn(follow_standing(
            registry.standing(),
            gates.clone(),
            start.unconfirmed,
        ));
        tasks.spawn(registry.run());
    }
    let evictors = redis::evict(&prepared, &watermarks, (left, sessions), &mut tasks);
    let observed = self::patterns(&config, |mode| mode == Mode::Observe);
    let fence = Fence::new(
        config.instance.clone(),
        gates.clone(),
        Arc::clone(&tickets),
        observed,
    );
    let shared = Shared {
        config,
        spool_dir,
        gates,
        tickets,
        audit: options.audit,
    };
    let shadows = Arc::new(Shadows::default());
    let (mut listeners, entrances) = open_listeners(&shared, &shadows, sockets);
    let shutdown = watch::Sender::new(false);
    let mut cores = vec![];
    for entrances in entrances {
        let shutdown = shutdown.subscribe();
        cores.push(spawn_core(move || {
            run_core(entrances, shutdown, DRAIN_MAX)
        })?);
    }
    let parts = redis::Parts {
        instance: shared.config.instance.clone(),
        gates: shared.gates.clone(),
        tickets: Arc::clone(&shared.tickets),
        watermarks,
        audit: shared.audit.clone(),
        shadows,
        registry: floors,
    };
    let mut redis_cores: Vec<Vec<RedisEntrance>> = vec![];
    for (prepared, evictor) in prepared.into_iter().zip(evictors) {
        let (name, address, entrances) = redis::open(prepared, evictor, parts.clone(), &mut tasks);
        listeners.push((name, address));
        redis_cores.resize_with(redis_cores.len().max(entrances.len()), Vec::new);
        for (core, entrance) in redis_cores.iter_mut().zip(entrances) {
            core.push(entrance);
        }
    }
    for entrances in redis_cores {
        let shutdown = shutdown.subscribe();
        cores.push(spawn_core(move || {
            run_redis_core(entrances, shutdown, DRAIN_MAX)
        })?);
    }
    Ok(Proxy {
        listeners,
        gates: shared.gates.clone(),
        tickets: Arc::clone(&shared.tickets),
        fence,
        cores,
        shutdown,
        watermarks: Some(thread),
        _tasks: tasks,
    })
}

struct Shared {
    config: ProxyConfig,
    spool_dir: PathBuf,
    gates: Gates,
    tickets: Arc<Tickets>,
    audit: AuditWriter,
}

fn patterns(config: &ProxyConfig, wanted: impl Fn(Mode) -> bool) -> Vec<LockPattern> {
    let mut patterns: Vec<LockPattern> = vec![];
    let listeners = config.listeners.iter();
    let named = listeners.map(|it| (it.mode, it.rules.lock_patterns()));
    let redis = config.redis.iter();
    let named = named.chain(redis.map(|it| (it.mode, it.rules.lock_patterns())));
    for (_, of_listener) in named.filter(|(mode, _)| wanted(*mode)) {
        for pattern in of_listener {
            if !patterns.contains(&pattern) {
                patterns.push(pattern);
            }
        }
    }
    patterns
}

fn opening(config: &ProxyConfig, init: bool, patterns: &[LockPattern]) -> Opening {
    let registered = matches!(config.tickets, TicketSource::Lockd(_));
    let trusts = config.listeners.iter().map(|it| it.trust);
    let mut trusts = trusts.chain(config.redis.iter().map(|it| it.trust));
    let unsigned = trusts.any(|trust| trust == Trust::Unsigned);
    Opening {
        init,
        alone: !registered || unsigned,
        registered,
        fingerprint: fingerprint(config),
        patterns: patterns.iter().map(|it| it.as_str().to_owned()).collect(),
    }
}

/// Those of the rules, and what the store carries over from a run that ended unclean.
fn registered(start: &Start, mut patterns: Vec<LockPattern>) -> Vec<LockPattern> {
    for text in &start.patterns {
        match LockPattern::new(text) {
            Ok(pattern) if patterns.contains(&pattern) => {}
            Ok(pattern) => {
                tracing::warn!(text, "still guarded: the run before ended unclean under it");
                patterns.push(pattern);
            }
            Err(error) => tracing::warn!(%error, text, "a carried lock pattern is torn"),
        }
    }
    patterns
}

/// Changes with what decides which writes were tracked: rules, modes, backends. A newer version of
/// this program may compute another one; that only makes the next start wait after a crash.
fn fingerprint(config: &ProxyConfig) -> u64 {
    let mut hasher = DefaultHasher::new();
    for it in &config.listeners {
        format!(
            "{:?}",
            (&it.name, &it.rules, &it.upstream, it.trust, it.mode)
        )
        .hash(&mut hasher);
    }
    // What Redis listeners carry is tracked by its session, whatever the rules were.
    hasher.finish()
}

fn keys(
    config: &ProxyConfig,
    options: &Options,
    start: &Start,
    patterns: &[LockPattern],
) -> Result<(watch::Receiver<Ring>, Option<Registry>), StartError> {
    match &config.tickets {
        TicketSource::Unsigned => Ok((Ring::fixed(KeyRing::default()), None)),
        TicketSource::Keys(file) => Ok((Ring::fixed(read_key_file(file)?), None)),
        TicketSource::Lockd(lockd) => {
            let registration = RegisterRequest {
                instance: config.instance.clone(),
                store_id: start.store_id.clone(),
                admin: format!("http://{}", advertised(options.admin, lockd)),
                patterns: patterns.iter().map(|it| it.as_str().to_owned()).collect(),
            };
            let registry = Registry::new(lockd, registration)?;
            Ok((registry.ring(), Some(registry)))
        }
    }
}

/// Where lockd reaches an admin port that listens everywhere: at the address from which we reach
/// lockd.
fn advertised(admin: SocketAddr, lockd: &str) -> SocketAddr {
    if !admin.ip().is_unspecified() {
        return admin;
    }
    let authority = lockd.trim_start_matches("http://");
    let local = || -> io::Result<SocketAddr> {
        let everywhere = match admin {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let socket = UdpSocket::bind(everywhere)?;
        // Connecting a datagram socket sends nothing; it chooses the local address.
        socket.connect(authority)?;
        socket.local_addr()
    };
    match local() {
        Ok(local) => SocketAddr::new(local.ip(), admin.port()),
        Err(error) => {
            tracing::warn!(%error, %admin, "no address to tell lockd for the admin port");
            admin
        }
    }
}

/// Carries out what lockd says about the store. `is_new`: the file was made without knowing whether
/// an older one was lost.
async fn follow_standing(mut standing: watch::Receiver<Standing>, gates: Gates, is_new: bool) {
    loop {
        let now = *standing.borrow_and_update();
        match now {
            Standing::Pending => {}
            Standing::New => return gates.set_unconfirmed(false),
            Standing::Same if !is_new => return,
            Standing::Same | Standing::StoreLost => {
                tracing::warn!("watermarks were lost: locks without a record start in doubt");
                gates.set_unconfirmed(true);
                tokio::time::sleep_until(gates.started() + gates.hold_max()).await;
                if is_new {
                    gates.set_unconfirmed(false);
                }
                return;
            }
        }
        if standing.changed().await.is_err() {
            return;
        }
    }
}

/// A listener's address, and its sockets, one per core.
type Sockets = (SocketAddr, Vec<TcpListener>);

fn bind_all(config: &ProxyConfig, threads: usize) -> Result<Vec<Sockets>, StartError> {
    let bind = |listener: &ListenerConfig| {
        bind(listener.listen, threads).map_err(|source| StartError::Listen {
            name: listener.name.clone(),
            address: listener.listen,
            source,
        })
    };
    config.listeners.iter().map(bind).collect()
}

fn prepare_redis(config: &ProxyConfig, threads: usize) -> Result<Vec<redis::Prepared>, StartError> {
    let mut prepared = vec![];
    for listener in &config.redis {
        let name = listener.name.clone();
        let sockets = bind(listener.listen, threads).map_err(|source| StartError::Listen {
            name: name.clone(),
            address: listener.listen,
            source,
        })?;
        let checked = redis::prepare(listener, sockets);
        prepared.push(checked.map_err(|source| StartError::Redis { name, source })?);
    }
    Ok(prepared)
}

/// The listeners' names and addresses, and what each core serves.
fn open_listeners(
    shared: &Shared,
    shadows: &Arc<Shadows>,
    sockets: Vec<Sockets>,
) -> (Vec<(String, SocketAddr)>, Vec<Vec<Entrance>>) {
    let mut names = vec![];
    let mut cores: Vec<Vec<Entrance>> = vec![];
    for (listener, (address, sockets)) in shared.config.listeners.iter().zip(sockets) {
        names.push((listener.name.clone(), address));
        let room = Arc::new(Semaphore::new(listener.limits.connections_max));
        let listening = Arc::new(Listening {
            config: listener.clone(),
            instance: shared.config.instance.clone(),
            gates: shared.gates.clone(),
            tickets: Arc::clone(&shared.tickets),
            audit: shared.audit.clone(),
            shadows: Arc::clone(shadows),
            spool_dir: shared.spool_dir.clone(),
        });
        cores.resize_with(cores.len().max(sockets.len()), Vec::new);
        for (core, socket) in cores.iter_mut().zip(sockets) {
            let (listening, room) = (Arc::clone(&listening), Arc::clone(&room));
            core.push(Entrance {
                socket,
                listening,
                room,
            });
        }
    }
    (names, cores)
}

fn spawn_core(
    serve: impl FnOnce() -> io::Result<bool> + Send + 'static,
) -> Result<JoinHandle<io::Result<bool>>, StartError> {
    std::thread::Builder::new()
        .name("proxy".into())
        .spawn(serve)
        .map_err(|source| StartError::Resource {
            what: "a thread".into(),
            source,
        })
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
                thread.close(ended && gates.doubts().count() == 0);
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
        if !self.tickets.are_keys_known() {
            return Err("the lock service has not told its keys yet".to_owned());
        }
        Ok(())
    }
}
