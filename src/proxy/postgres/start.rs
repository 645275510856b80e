//! Starting the Postgres listeners of a proxy: ports, keys and control roles are checked before a
//! store is made; sessions that an earlier run has left are ended from the first moment on.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::catalog::{Catalogs, Changes};
use super::control::{Control, ControlError};
use super::door::{Door, InvalidDoor};
use super::evict::Evictor;
use super::fence_store::FenceStore;
use super::prepared::Prepared;
use super::sessions::Sessions;
use super::snapshots::Snapshots;
use super::sweep::Sweep;
use super::{Listener, session};
use crate::config::{Mode, PostgresListenerConfig, WatermarkStore};
use crate::protocol::postgres::classify::Classifier;
use crate::proxy::accept::Entrance;
use crate::proxy::left::Left;
use crate::proxy::lost::Lost;
use crate::proxy::parts::Parts;
use crate::proxy::registry::Registry;
use crate::proxy::watermarks::{LeftSession, PreparedRow, Watermarks};

/// Why a listener cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// Its TLS.
    #[error(transparent)]
    Door(#[from] InvalidDoor),
    /// Its server, or the control role there.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// A listener whose port is ours and whose backend can be guarded.
pub struct Ready {
    config: PostgresListenerConfig,
    address: SocketAddr,
    sockets: Vec<TcpListener>,
    door: Arc<Door>,
    control: Control,
    fence_store: Option<FenceStore>,
}

/// A listener with what ends sessions for it.
pub struct Guarded {
    ready: Ready,
    sessions: Sessions,
    evictor: Evictor,
    prepared: Prepared,
    changes: Changes,
}

/// Checks a listener's backend. Blocks, for at most a few seconds. Called within a tokio runtime,
/// which then carries the control connection.
pub fn prepare(
    config: &PostgresListenerConfig,
    (address, sockets): (SocketAddr, Vec<TcpListener>),
) -> Result<Ready, PrepareError> {
    let door = Arc::new(Door::new(config)?);
    let control = Control::new(config, Arc::clone(&door), Handle::current());
    control.check()?;
    Ok(Ready {
        config: config.clone(),
        address,
        sockets,
        door,
        control,
        fence_store: None,
    })
}

/// The watermarks that are in the servers themselves, of the listeners that enforce. `run`: what no
/// other run of any proxy is called.
pub fn fence_stores(
    ready: &mut [Ready],
    registry: Option<&Registry>,
    run: &str,
) -> Vec<FenceStore> {
    let mut stores = vec![];
    for listener in ready {
        let config = &listener.config;
        let keeps = config.store == WatermarkStore::Backend && listener.control.has_role();
        if keeps && config.mode == Mode::Enforce {
            let store = FenceStore::new(
                listener.control.clone(),
                config.rules.lock_patterns(),
                registry.cloned(),
                // One for all listeners: they have the same gates.
                run.to_owned(),
                config.terminate_after,
            );
            listener.fence_store = Some(store.clone());
            stores.push(store);
        }
    }
    stores
}

/// Has the servers swept of listeners whose sessions a lost store had recorded.
pub fn sweep(ready: &[Ready], lost: &Lost, tasks: &mut JoinSet<()>) {
    for Ready {
        config, control, ..
    } in ready
    {
        // Watermarks in the server come with the sessions that they let in.
        let keeps = config.store == WatermarkStore::Backend;
        if config.mode == Mode::Enforce && control.has_role() && !keeps {
            let sweep = Sweep::new(control.clone(), &config.rules);
            lost.sweep(&config.name, config.rules.lock_patterns(), sweep, tasks);
        }
    }
}

/// The evictors of the listeners, at work: each first ends what an earlier run has left. Returns
/// also the left sessions that are at none of these backends.
pub fn guard(
    ready: Vec<Ready>,
    watermarks: &Watermarks,
    (left, mut sessions): (Left, Vec<LeftSession>),
    mut rows: Vec<PreparedRow>,
    tasks: &mut JoinSet<()>,
) -> (Vec<Guarded>, Vec<LeftSession>) {
    let mut guarded: Vec<Guarded> = vec![];
    let changes = Changes::default();
    let stores: Vec<(String, FenceStore)> = ready
        .iter()
        .filter_map(|it| Some((it.config.upstream.address(), it.fence_store.clone()?)))
        .collect();
    for ready in ready {
        let backend = ready.config.upstream.address();
        // Whoever has no role ends none.
        let has_role = ready.control.has_role();
        let (earlier, others): (Vec<_>, Vec<_>) = sessions
            .into_iter()
            .partition(|it| it.session.backend == backend && has_role);
        sessions = others;
        let (its, others) = rows.into_iter().partition(|it| it.backend == backend);
        rows = others;
        let sibling = guarded.iter().find(|it| it.sessions.backend() == backend);
        // What is prepared through one listener may be committed through another.
        let prepared = match sibling {
            Some(sibling) => sibling.prepared.clone(),
            None => {
                let store = stores.iter().find(|it| it.0 == backend);
                let store = store.map(|it| it.1.clone());
                let prepared = Prepared::kept_by(store, backend.clone(), watermarks.clone(), its);
                let control = ready.control.clone();
                if has_role {
                    tasks.spawn(prepared.clone().reconcile(control, left.clone()));
                }
                prepared
            }
        };
        let of_backend = Sessions::new(backend, watermarks.clone());
        let evictor = Evictor::new(of_backend.clone(), left.clone(), earlier);
        tasks.spawn(evictor.clone().run(ready.control.clone()));
        guarded.push(Guarded {
            ready,
            sessions: of_backend,
            evictor,
            prepared,
            changes: changes.clone(),
        });
    }
    (guarded, sessions)
}

/// A listener with what each core serves of it.
pub fn open(
    guarded: Guarded,
    parts: Parts,
    tasks: &mut JoinSet<()>,
) -> (String, SocketAddr, Vec<Entrance>) {
    let Guarded {
        ready,
        sessions,
        evictor,
        prepared,
        changes,
    } = guarded;
    let Ready {
        config,
        address,
        sockets,
        door,
        control,
        fence_store,
    } = ready;
    if let Some(store) = &fence_store {
        tasks.spawn(store.clone().run(parts.gates.clone()));
    }
    let room = Arc::new(Semaphore::new(config.limits.connections_max));
    let name = config.name.clone();
    let listener = Arc::new(Listener {
        snapshots: Snapshots::default(),
        catalogs: Catalogs::new(
            control.clone(),
            config.rules.reading_functions(),
            config.catalog_age_max,
            changes,
        ),
        classifier: Classifier::new(),
        config,
        door,
        control,
        sessions,
        evictor,
        prepared,
        fence_store,
        instance: parts.instance,
        gates: parts.gates,
        tickets: parts.tickets,
        watermarks: parts.watermarks,
        audit: parts.audit,
        shadows: parts.shadows,
    });
    let entrance = |socket| {
        let listener = Arc::clone(&listener);
        Entrance {
            socket,
            room: Arc::clone(&room),
            serve: Box::new(move |visit| Box::pin(session::serve(Arc::clone(&listener), visit))),
        }
    };
    (name, address, sockets.into_iter().map(entrance).collect())
}
