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

use super::etcd::{self, Floors};
use super::fence::Fence;
use super::gates::{Gates, Holds};
use super::registry::{InvalidLockd, Registry, Ring, Standing};
use super::session::Listening;
use super::session::accept::{Entrance, bind, run_core};
use super::shadows::Shadows;
use super::tickets::Tickets;
use super::watermarks::{OpenError, Opening, Start, Watermarks, WatermarksThread};
use crate::audit::AuditWriter;
use crate::config::{
    ConfigErrors, ListenerConfig, Mode, ProxyConfig, TicketSource, Trust, read_key_file,
};
use crate::lock_name::LockPattern;
use crate::proto::RegisterRequest;
use crate::protocol::Listener;
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
    /// The file of public keys.
    #[error(transparent)]
    Keys(#[from] ConfigErrors),
    /// The address of lockd.
    #[error(transparent)]
    Lockd(#[from] InvalidLockd),
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
    let holds = Holds::new(holds.collect());
    let floors: Vec<Arc<Floors>> = config
        .listeners
        .iter()
        .filter_map(|listener| Floors::of(listener, registry.clone()))
        .collect();
    let gates = Gates::new(
        watermarks,
        start.clone(),
        holds,
        registry.clone(),
        floors.clone(),
    );
    let tickets = Tickets::new(ring, registry.clone(), config.instance.clone(), patterns);
    let tickets = Arc::new(tickets);

    let mut tasks = spawn_tasks(&gates, registry, start.unconfirmed);
    if options.init {
        for floors in floors {
            tasks.spawn(floors.make_ready());
        }
    }
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
    let Opened {
        names: listeners,
        http,
        etcd,
    } = open_listeners(&shared, sockets);
    let shutdown = watch::Sender::new(false);
    let http = http
        .into_iter()
        .map(|it| spawn_core(&shutdown, move |shutdown| run_core(it, shutdown, DRAIN_MAX)));
    let etcd = etcd.into_iter().map(|it| {
        spawn_core(&shutdown, move |shutdown| {
            etcd::accept::run_core(it, shutdown, DRAIN_MAX)
        })
    });
    let cores = http.chain(etcd);
    Ok(Proxy {
        listeners,
        gates: shared.gates.clone(),
        tickets: Arc::clone(&shared.tickets),
        fence,
        cores: cores.collect::<Result<_, _>>()?,
        shutdown,
        watermarks: Some(thread),
        _tasks: tasks,
    })
}

/// Doubts, eviction, registration.
fn spawn_tasks(gates: &Gates, registry: Option<Registry>, is_new: bool) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(gates.doubts().clone().run());
    tasks.spawn(gates.clone().run_eviction(IDLE_GATE_MAX));
    if let Some(registry) = registry {
        tasks.spawn(follow_standing(registry.standing(), gates.clone(), is_new));
        tasks.spawn(registry.run());
    }
    tasks
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
    for listener in config
        .listeners
        .iter()
        .filter(|listener| wanted(listener.mode))
    {
        for pattern in listener.rules.lock_patterns() {
            if !patterns.contains(&pattern) {
                patterns.push(pattern);
            }
        }
    }
    patterns
}

fn opening(config: &ProxyConfig, init: bool, patterns: &[LockPattern]) -> Opening {
    let registered = matches!(config.tickets, TicketSource::Lockd(_));
    let unsigned = config
        .listeners
        .iter()
        .any(|listener| listener.trust == Trust::Unsigned);
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

/// What is open.
#[derive(Default)]
struct Opened {
    /// The listeners' names and addresses.
    names: Vec<(String, SocketAddr)>,
    /// What each core serves of HTTP and S3, and of etcd.
    http: Vec<Vec<Entrance>>,
    etcd: Vec<Vec<etcd::accept::Entrance>>,
}

fn open_listeners(shared: &Shared, sockets: Vec<Sockets>) -> Opened {
    let shadows = Arc::new(Shadows::default());
    let mut opened = Opened::default();
    for (listener, (address, sockets)) in shared.config.listeners.iter().zip(sockets) {
        opened.names.push((listener.name.clone(), address));
        let room = Arc::new(Semaphore::new(listener.limits.connections_max));
        let listening = Arc::new(Listening {
            config: listener.clone(),
            instance: shared.config.instance.clone(),
            gates: shared.gates.clone(),
            tickets: Arc::clone(&shared.tickets),
            audit: shared.audit.clone(),
            shadows: Arc::clone(&shadows),
            spool_dir: shared.spool_dir.clone(),
        });
        let parts = |socket| (socket, Arc::clone(&listening), Arc::clone(&room));
        let parts = sockets.into_iter().map(parts);
        match &listener.rules {
            Listener::Etcd(_) => spread(&mut opened.etcd, parts, |(socket, listening, room)| {
                etcd::accept::Entrance {
                    socket,
                    listening,
                    room,
                }
            }),
            Listener::Http(_) | Listener::S3(_) => {
                spread(&mut opened.http, parts, |(socket, listening, room)| {
                    Entrance {
                        socket,
                        listening,
                        room,
                    }
                });
            }
        }
    }
    opened
}

/// One for each core.
fn spread<P, E>(
    cores: &mut Vec<Vec<E>>,
    parts: impl ExactSizeIterator<Item = P>,
    entrance: impl Fn(P) -> E,
) {
    cores.resize_with(cores.len().max(parts.len()), Vec::new);
    for (core, part) in cores.iter_mut().zip(parts) {
        core.push(entrance(part));
    }
}

fn spawn_core(
    shutdown: &watch::Sender<bool>,
    run: impl FnOnce(watch::Receiver<bool>) -> io::Result<bool> + Send + 'static,
) -> Result<JoinHandle<io::Result<bool>>, StartError> {
    let shutdown = shutdown.subscribe();
    std::thread::Builder::new()
        .name("proxy".into())
        .spawn(move || run(shutdown))
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
