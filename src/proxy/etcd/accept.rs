//! Accepts clients of etcd: HTTP/2 with prior knowledge, as gRPC over plain TCP speaks it. What
//! speaks HTTP/1 (etcd's JSON gateway, its health page) is not served here.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::door::Door;
use super::upstream::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES};
use crate::proxy::session::Listening;

/// Calls at a time on one connection, watches included: etcd's own servers set no limit, and one
/// client carries all of its watches and keep-alives over one connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 1024;
/// How often a ping looks for a dead client, and how long an answer may take.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_ANSWER_MAX: Duration = Duration::from_secs(20);
/// How long accepting rests when the process is out of file descriptors.
const ACCEPT_RETRY_AFTER: Duration = Duration::from_millis(50);

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
/// `drain_max`. Nothing is in doubt whatever is cut off: the answer is always that all has ended.
pub fn run_core(
    entrances: Vec<Entrance>,
    shutdown: watch::Receiver<bool>,
    drain_max: Duration,
) -> io::Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
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
        // Nothing is ever sent: it ends when the last connection has, or with the patience for
        // watches, which never end by themselves.
        let _ = tokio::time::timeout(drain_max, ended.recv()).await;
    });
    Ok(true)
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
    let server = Arc::new(server(listening.config.limits.head_bytes_max));
    loop {
        let next = async {
            let place = Arc::clone(&room).acquire_owned().await;
            let place = place.map_err(io::Error::other)?;
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
                let door = Arc::new(Door::new(Arc::clone(&listening), client));
                let served = serve(stream, Arc::clone(&server), door, shutdown.clone(), place);
                let alive = alive.clone();
                tokio::spawn(async move {
                    served.await;
                    drop(alive);
                });
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

fn server(head_bytes_max: usize) -> Builder<TokioExecutor> {
    let mut server = Builder::new(TokioExecutor::new());
    server
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWER_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX);
    server
}

async fn serve(
    stream: TcpStream,
    server: Arc<Builder<TokioExecutor>>,
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
