//! The doors of a proxy: its ports, and the threads that serve them.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::{DRAIN_MAX, Shared, StartError};
use crate::config::{ListenerConfig, ProxyConfig};
use crate::protocol::Listener;
use crate::proxy::accept::{Entrance, Serve, bind, run_core};
use crate::proxy::parts::Parts;
#[cfg(feature = "postgres")]
use crate::proxy::postgres::start as postgres;
use crate::proxy::redis::evict::Evictor;
use crate::proxy::redis::start as redis;
use crate::proxy::session::Listening;
use crate::proxy::shadows::Shadows;
use crate::proxy::{etcd, session};

/// Bound, but not served yet.
pub(super) struct Doors {
    /// Of the listeners, in their order.
    pub(super) sockets: Vec<Sockets>,
    /// Of the Redis listeners.
    pub(super) redis: Vec<(redis::Prepared, Evictor)>,
    /// The Postgres listeners.
    #[cfg(feature = "postgres")]
    pub(super) postgres: Vec<postgres::Guarded>,
}

/// A thread that serves one core's part of some listeners. Its end says whether all was drained.
pub(super) type Core = JoinHandle<io::Result<bool>>;

/// The listeners' names and addresses, and what serves them.
pub(super) type Open = (Vec<(String, SocketAddr)>, Vec<Core>);

impl Doors {
    /// Serves them. Returns the listeners' names and addresses, and the threads.
    pub(super) fn open(
        self,
        shared: &Shared,
        shutdown: &watch::Sender<bool>,
        tasks: &mut JoinSet<()>,
    ) -> Result<Open, StartError> {
        let shadows = Arc::new(Shadows::default());
        let mut opened = open_listeners(shared, &shadows, self.sockets);
        let parts = Parts {
            instance: shared.config.instance.clone(),
            gates: shared.gates.clone(),
            tickets: Arc::clone(&shared.tickets),
            watermarks: shared.watermarks.clone(),
            audit: shared.audit.clone(),
            shadows,
        };
        #[cfg(feature = "postgres")]
        for guarded in self.postgres {
            let (name, address, entrances) = postgres::open(guarded, parts.clone(), tasks);
            opened.names.push((name, address));
            spread(&mut opened.tracked, entrances);
        }
        for (prepared, evictor) in self.redis {
            let (name, address, entrances) = redis::open(prepared, evictor, parts.clone(), tasks);
            opened.names.push((name, address));
            spread(&mut opened.tracked, entrances);
        }
        let mut cores = vec![];
        for it in opened.tracked {
            cores.push(spawn_core(shutdown, |end| run_core(it, end, DRAIN_MAX))?);
        }
        for it in opened.etcd {
            // Nothing is in doubt whatever is cut off: watches never end by themselves.
            let run = |end| run_core(it, end, DRAIN_MAX).map(|_| true);
            cores.push(spawn_core(shutdown, run)?);
        }
        Ok((opened.names, cores))
    }
}

/// A listener's address, and its sockets, one per core.
pub(super) type Sockets = (SocketAddr, Vec<TcpListener>);

pub(super) fn bind_all(config: &ProxyConfig, threads: usize) -> Result<Vec<Sockets>, StartError> {
    let bind = |listener: &ListenerConfig| bind_named(&listener.name, listener.listen, threads);
    config.listeners.iter().map(bind).collect()
}

fn bind_named(name: &str, address: SocketAddr, threads: usize) -> Result<Sockets, StartError> {
    bind(address, threads).map_err(|source| StartError::Listen {
        name: name.to_owned(),
        address,
        source,
    })
}

/// What is open.
#[derive(Default)]
struct Opened {
    /// The listeners' names and addresses.
    names: Vec<(String, SocketAddr)>,
    /// What each core serves, where it matters whether all of it has ended.
    tracked: Vec<Vec<Entrance>>,
    /// What each core serves of etcd.
    etcd: Vec<Vec<Entrance>>,
}

pub(super) fn prepare_redis(
    config: &ProxyConfig,
    threads: usize,
) -> Result<Vec<redis::Prepared>, StartError> {
    let mut prepared = vec![];
    for listener in &config.redis {
        let name = listener.name.clone();
        let sockets = bind_named(&name, listener.listen, threads)?;
        let checked = redis::prepare(listener, sockets);
        prepared.push(checked.map_err(|source| StartError::Redis { name, source })?);
    }
    Ok(prepared)
}

#[cfg(feature = "postgres")]
pub(super) fn prepare_postgres(
    config: &ProxyConfig,
    threads: usize,
) -> Result<Vec<postgres::Ready>, StartError> {
    let mut ready = vec![];
    for listener in &config.postgres {
        let name = listener.name.clone();
        let sockets = bind_named(&name, listener.listen, threads)?;
        let checked = postgres::prepare(listener, sockets);
        ready.push(checked.map_err(|source| StartError::Postgres { name, source })?);
    }
    Ok(ready)
}

fn open_listeners(shared: &Shared, shadows: &Arc<Shadows>, sockets: Vec<Sockets>) -> Opened {
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
            shadows: Arc::clone(shadows),
            spool_room: Arc::clone(&shared.spool_room),
        });
        let (cores, serving): (_, fn(Arc<Listening>) -> Serve) = match &listener.rules {
            Listener::Etcd(_) => (&mut opened.etcd, etcd::accept::serving),
            Listener::Http(_) | Listener::S3(_) => (&mut opened.tracked, session::accept::serving),
        };
        let entrance = |socket| Entrance {
            socket,
            room: Arc::clone(&room),
            serve: serving(Arc::clone(&listening)),
        };
        spread(cores, sockets.into_iter().map(entrance).collect());
    }
    opened
}

/// One for each core.
fn spread(cores: &mut Vec<Vec<Entrance>>, entrances: Vec<Entrance>) {
    cores.resize_with(cores.len().max(entrances.len()), Vec::new);
    for (core, entrance) in cores.iter_mut().zip(entrances) {
        core.push(entrance);
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
