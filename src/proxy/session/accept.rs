//! Stage 0, accept: one thread per core, each with its own sockets, connections and pools, so that
//! a request never crosses cores. The kernel spreads the clients (SO_REUSEPORT, socket(7)).

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::{Door, Listening, Session, client, http2};
use crate::proxy::upstream::Pool;

/// Connections that the kernel keeps for a core that is slow to accept.
const BACKLOG: i32 = 1024;
/// How long accepting rests when the process is out of file descriptors.
const ACCEPT_RETRY_AFTER: Duration = Duration::from_millis(50);

/// The sockets of one listener, one per core, and its address.
pub fn bind(address: SocketAddr, cores: usize) -> io::Result<(SocketAddr, Vec<StdListener>)> {
    // SO_REUSEPORT would let us share a port with a stranger of the same user, silently. A socket
    // without it tells.
    drop(StdListener::bind(address)?);
    let first = bind_shared(address)?;
    let address = first.local_addr()?;
    let mut listeners = vec![first];
    for _ in 1..cores {
        listeners.push(bind_shared(address)?);
    }
    Ok((address, listeners))
}

fn bind_shared(address: SocketAddr) -> io::Result<StdListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// One listener on one core.
pub struct Entrance {
    /// Its socket.
    pub socket: StdListener,
    /// Its listener.
    pub listening: Arc<Listening>,
    /// Connections that it may still take, over all cores.
    pub room: Arc<Semaphore>,
}

/// Serves the entrances of one core until `shutdown`, then lets what is in flight end, for at most
/// `drain_max`. Returns whether all of it did.
pub fn run_core(
    entrances: Vec<Entrance>,
    shutdown: watch::Receiver<bool>,
    drain_max: Duration,
) -> io::Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(async {
        let (alive, mut ended) = mpsc::channel::<()>(1);
        let mut accepting = tokio::task::JoinSet::new();
        for entrance in entrances {
            accepting.spawn(accept(entrance, shutdown.clone(), alive.clone()));
        }
        drop(alive);
        while let Some(accepted) = accepting.join_next().await {
            if let Ok(Err(error)) = accepted {
                tracing::error!(%error, "a listener has ended");
            }
        }
        // Nothing is ever sent: it ends when the last connection and the last write have.
        tokio::time::timeout(drain_max, ended.recv()).await.is_ok()
    }))
}

async fn accept(
    entrance: Entrance,
    mut shutdown: watch::Receiver<bool>,
    alive: mpsc::Sender<()>,
) -> io::Result<()> {
    let Entrance {
        socket,
        listening,
        room,
    } = entrance;
    let socket = TcpListener::from_std(socket)?;
    let limits = listening.config.limits;
    let pool = Pool::new(
        listening.config.upstream.clone(),
        limits.upstream_connect_timeout,
    );
    loop {
        let next = async {
            let place = Arc::clone(&room)
                .acquire_owned()
                .await
                .map_err(io::Error::other)?;
            socket
                .accept()
                .await
                .map(|(stream, client)| (place, stream, client))
        };
        let accepted = tokio::select! {
            accepted = next => accepted,
            () = ending(&mut shutdown) => return Ok(()),
        };
        match accepted {
            Ok((place, stream, client)) => {
                let door = Door {
                    listening: Arc::clone(&listening),
                    pool: Arc::clone(&pool),
                    client,
                    _alive: alive.clone(),
                    shutdown: shutdown.clone(),
                };
                tokio::spawn(serve(stream, door, place));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_RETRY_AFTER).await;
            }
        }
    }
}

pub(super) async fn ending(shutdown: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone: the end as well.
    let _ = shutdown.wait_for(|down| *down).await;
}

async fn serve(stream: TcpStream, door: Door, _place: OwnedSemaphorePermit) {
    // Without it replies are late, not wrong.
    let _ = stream.set_nodelay(true);
    let session = Session::new(client::of_socket(stream), door);
    if let Some(session) = session.run().await {
        http2::serve(session).await;
    }
}
