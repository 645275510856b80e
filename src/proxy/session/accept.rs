//! Stage 0, accept: one thread per core, each with its own sockets, connections and pools, so that
//! a request never crosses cores. The kernel spreads the clients (SO_REUSEPORT, socket(7)).

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::{Door, Listening};
use crate::proxy::upstream::Pool;

/// Connections that the kernel keeps for a core that is slow to accept.
const BACKLOG: i32 = 1024;
/// How long a client may take to send the head of a request.
const HEAD_MAX: Duration = Duration::from_secs(30);
/// Requests at a time on one HTTP/2 connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 128;
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
    let server = Arc::new(server(limits.head_bytes_max));
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
                let door = Arc::new(Door {
                    listening: Arc::clone(&listening),
                    pool: Arc::clone(&pool),
                    client,
                    alive: alive.clone(),
                });
                tokio::spawn(serve(
                    stream,
                    Arc::clone(&server),
                    door,
                    shutdown.clone(),
                    place,
                ));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_RETRY_AFTER).await;
            }
        }
    }
}

async fn ending(shutdown: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone: the end as well.
    let _ = shutdown.wait_for(|down| *down).await;
}

fn server(head_bytes_max: usize) -> auto::Builder<TokioExecutor> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .preserve_header_case(true)
        // The backend's own date passes; a second one would be a lie about the first.
        .auto_date_header(false)
        .max_buf_size(head_bytes_max);
    server
        .http2()
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX);
    server
}

async fn serve(
    stream: TcpStream,
    server: Arc<auto::Builder<TokioExecutor>>,
    door: Arc<Door>,
    mut shutdown: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    // Without it replies are late, not wrong.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let door = Arc::clone(&door);
        async move { Ok::<_, Infallible>(door.serve(request).await) }
    });
    let connection = server.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = ending(&mut shutdown) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a client's connection ended with an error");
    }
}
