//! Accepting clients of Redis listeners: one thread per core, each with its own sockets and
//! connections, so that a command never crosses cores. The kernel spreads the clients
//! (SO_REUSEPORT, socket(7)).

use std::io;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use super::RedisListening;
use super::session;

/// How long accepting rests when the process is out of file descriptors.
const ACCEPT_RETRY_AFTER: Duration = Duration::from_millis(50);

/// One listener on one core.
pub struct RedisEntrance {
    /// Its socket.
    pub socket: StdListener,
    /// Its listener.
    pub listening: Arc<RedisListening>,
    /// Connections that it may still take, over all cores.
    pub room: Arc<Semaphore>,
}

/// Serves the entrances of one core until `shutdown`, then lets what is in flight end, for at most
/// `drain_max`. Returns whether all of it did.
pub fn run_core(
    entrances: Vec<RedisEntrance>,
    shutdown: watch::Receiver<bool>,
    drain_max: Duration,
) -> io::Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(async {
        let (alive, mut ended) = mpsc::channel::<()>(1);
        let mut accepting = JoinSet::new();
        for entrance in entrances {
            accepting.spawn(accept(entrance, shutdown.clone(), alive.clone()));
        }
        drop(alive);
        while let Some(accepted) = accepting.join_next().await {
            if let Ok(Err(error)) = accepted {
                tracing::error!(%error, "a listener has ended");
            }
        }
        // Nothing is ever sent: it ends when the last connection has.
        tokio::time::timeout(drain_max, ended.recv()).await.is_ok()
    }))
}

async fn accept(
    entrance: RedisEntrance,
    mut shutdown: watch::Receiver<bool>,
    alive: mpsc::Sender<()>,
) -> io::Result<()> {
    let RedisEntrance {
        socket,
        listening,
        room,
    } = entrance;
    let socket = TcpListener::from_std(socket)?;
    loop {
        let next = async {
            let place = Arc::clone(&room)
                .acquire_owned()
                .await
                .map_err(io::Error::other)?;
            socket.accept().await.map(|accepted| (place, accepted))
        };
        let accepted = tokio::select! {
            accepted = next => accepted,
            // An error means that the sender is gone: the end as well.
            _ = shutdown.wait_for(|down| *down) => return Ok(()),
        };
        match accepted {
            Ok((place, (stream, client))) => {
                let listening = Arc::clone(&listening);
                let serving = session::serve(listening, stream, client, shutdown.clone());
                tokio::spawn(alive_while(serving, place, alive.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_RETRY_AFTER).await;
            }
        }
    }
}

/// The connection's place, and the shutdown's patience, end with it.
async fn alive_while(
    serving: impl Future<Output = ()>,
    _place: OwnedSemaphorePermit,
    _alive: mpsc::Sender<()>,
) {
    serving.await;
}

/// Has small replies leave at once. Without it they are late, not wrong.
pub(super) fn prompt(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
}
