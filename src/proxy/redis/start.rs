//! Starting the Redis listeners of a proxy: ports and control users are checked before a store is
//! made; sessions that an earlier run has left are ended from the first moment on.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::RedisListening;
use super::backend::Connector;
use super::control::{Control, ControlError};
use super::evict::Evictor;
use super::fence_keys::{FenceKeys, KEY, RESERVED_PREFIX};
use super::lane::Lanes;
use super::session;
use super::sweep::Sweep;
use crate::config::{FenceKeysConfig, Mode, RedisListenerConfig};
use crate::protocol::redis::ReservedKeys;
use crate::proxy::accept::Entrance;
use crate::proxy::left::Left;
use crate::proxy::lost::Lost;
use crate::proxy::parts::Parts;
use crate::proxy::registry::Registry;
use crate::proxy::watermarks::{LeftSession, Watermarks};

/// A listener whose port is ours and whose backend can be guarded.
pub struct Prepared {
    config: RedisListenerConfig,
    address: SocketAddr,
    sockets: Vec<TcpListener>,
    control: Control,
    /// To the database of the fence keys, where they are in the backend.
    keys: Option<Control>,
    fence_keys: Option<FenceKeys>,
}

/// Checks a listener's backend. Blocks, for at most a few seconds. Called within a tokio runtime,
/// which then carries the control connection.
pub fn prepare(
    config: &RedisListenerConfig,
    (address, sockets): (SocketAddr, Vec<TcpListener>),
) -> Result<Prepared, ControlError> {
    let connect_max = config.limits.upstream_connect_timeout;
    let (upstream, user) = (&config.upstream, &config.control);
    let control = Control::new(upstream, user, 0, connect_max, Handle::current())?;
    control.check()?;
    let mut config = config.clone();
    // Where nothing is enforced, the server is left as it is.
    let fence_keys = config.fence_keys.filter(|_| config.mode == Mode::Enforce);
    let keys = match fence_keys {
        None => None,
        Some(FenceKeysConfig { database, scripts }) => {
            let keys = Control::new(upstream, user, database, connect_max, Handle::current())?;
            keys.check_keys(KEY)?;
            config.rules = config.rules.with_reserved(ReservedKeys {
                prefix: RESERVED_PREFIX.as_bytes().into(),
                database,
                scripts,
            });
            Some(keys)
        }
    };
    Ok(Prepared {
        config,
        address,
        sockets,
        control,
        keys,
        fence_keys: None,
    })
}

/// The fence keys of the listeners that keep them in their backends. `registry`: who knows what was
/// granted.
pub fn fence_keys(prepared: &mut [Prepared], registry: Option<&Registry>) -> Vec<FenceKeys> {
    let mut all = vec![];
    for listener in prepared {
        let patterns = listener.config.rules.lock_patterns();
        let control = listener.keys.take();
        let keys = control.map(|control| FenceKeys::new(control, patterns, registry.cloned()));
        all.extend(keys.clone());
        listener.fence_keys = keys;
    }
    all
}

/// Has the servers swept of listeners whose sessions a lost store had recorded.
pub fn sweep(prepared: &[Prepared], lost: &Lost, tasks: &mut JoinSet<()>) {
    for Prepared {
        config, control, ..
    } in prepared
    {
        // Fence keys tell which sessions there are.
        if config.mode == Mode::Enforce && config.fence_keys.is_none() {
            let sweep = Sweep::new(control.clone());
            lost.sweep(&config.name, config.rules.lock_patterns(), sweep, tasks);
        }
    }
}

/// The evictors of the listeners, at work: each first ends what an earlier run has left.
pub fn evict(
    prepared: &[Prepared],
    watermarks: &Watermarks,
    (left, mut sessions): (Left, Vec<LeftSession>),
    tasks: &mut JoinSet<()>,
) -> Vec<Evictor> {
    let mut evictors = vec![];
    for listener in prepared {
        let backend = listener.config.upstream.address();
        let (its, others): (Vec<_>, Vec<_>) = sessions
            .into_iter()
            .partition(|it| it.session.backend == backend);
        sessions = others;
        let evictor = Evictor::new(backend, watermarks.clone(), left.clone(), its);
        tasks.spawn(evictor.clone().run(listener.control.clone()));
        evictors.push(evictor);
    }
    for LeftSession { session, locks } in sessions {
        let backend = session.backend;
        let locks: Vec<_> = locks.iter().map(|lock| lock.as_str()).collect();
        tracing::error!(
            backend,
            ?locks,
            "an earlier run has left writes at a backend that no listener has: these locks stay \
             closed to newer tokens until one has it again"
        );
    }
    evictors
}

/// A listener with what each core serves of it.
pub fn open(
    prepared: Prepared,
    evictor: Evictor,
    parts: Parts,
    tasks: &mut JoinSet<()>,
) -> (String, SocketAddr, Vec<Entrance>) {
    let Prepared {
        config,
        address,
        sockets,
        control,
        keys: _,
        fence_keys,
    } = prepared;
    if let Some(keys) = &fence_keys {
        tasks.spawn(keys.clone().run());
    }
    let room = Arc::new(Semaphore::new(config.limits.connections_max));
    let name = config.name.clone();
    let listening = Arc::new(RedisListening {
        control,
        connector: Connector::new(&config),
        backend: config.upstream.address(),
        config,
        evictor,
        fence_keys,
        instance: parts.instance,
        gates: parts.gates,
        tickets: parts.tickets,
        watermarks: parts.watermarks,
        audit: parts.audit,
        shadows: parts.shadows,
    });
    let entrance = |socket| {
        let listening = Arc::clone(&listening);
        // Of this core.
        let lanes = Arc::new(Lanes::new());
        let serve = move |visit| session::serve(Arc::clone(&listening), Arc::clone(&lanes), visit);
        Entrance {
            socket,
            room: Arc::clone(&room),
            serve: Box::new(move |visit| Box::pin(serve(visit))),
        }
    };
    (name, address, sockets.into_iter().map(entrance).collect())
}
