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
use crate::proxy::etcd;
use crate::proxy::redis::accept::{RedisEntrance, run_core as run_redis_core};
use crate::proxy::redis::evict::Evictor;
use crate::proxy::redis::start as redis;
use crate::proxy::session::Listening;
use crate::proxy::session::accept::{Entrance, bind, run_core};
use crate::proxy::shadows::Shadows;

/// Bound, but not served yet.
pub(super) struct Doors {
    /// Of the listeners, in their order.
    pub(super) sockets: Vec<Sockets>,
    /// Of the Redis listeners.
    pub(super) redis: Vec<(redis::Prepared, Evictor)>,
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
        let Opened {
            mut names,
            http,
            etcd,
        } = open_listeners(shared, &shadows, self.sockets);
        let parts = redis::Parts {
            instance: shared.config.instance.clone(),
            gates: shared.gates.clone(),
            tickets: Arc::clone(&shared.tickets),
            watermarks: shared.watermarks.clone(),
            audit: shared.audit.clone(),
            shadows,
            registry: shared.registry.clone(),
        };
        let mut redis: Vec<Vec<RedisEntrance>> = vec![];
        for (prepared, evictor) in self.redis {
            let (name, address, entrances) = redis::open(prepared, evictor, parts.clone(), tasks);
            names.push((name, address));
            spread(&mut redis, entrances.into_iter(), |entrance| entrance);
        }
        let mut cores = vec![];
        for it in http {
            cores.push(spawn_core(shutdown, |end| run_core(it, end, DRAIN_MAX))?);
        }
        for it in etcd {
            let run = |end| etcd::accept::run_core(it, end, DRAIN_MAX);
            cores.push(spawn_core(shutdown, run)?);
        }
        for it in redis {
            cores.push(spawn_core(shutdown, |end| {
                run_redis_core(it, end, DRAIN_MAX)
            })?);
        }
        Ok((names, cores))
    }
}

/// A listener's address, and its sockets, one per core.
pub(super) type Sockets = (SocketAddr, Vec<TcpListener>);

pub(super) fn bind_all(config: &ProxyConfig, threads: usize) -> Result<Vec<Sockets>, StartError> {
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

pub(super) fn prepare_redis(
    config: &ProxyConfig,
    threads: usize,
) -> Result<Vec<redis::Prepared>, StartError> {
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
