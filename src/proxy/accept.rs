//! Accepting clients, whatever they speak: one thread per core, each with its own sockets and
//! connections, so that a request never crosses cores. The kernel spreads the clients
//! (SO_REUSEPORT, socket(7)).
//!
//! It leaves to others: what is done with a client ([`Serve`]), and how connections are taken
//! ([`Acceptor`]).

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::incoming::{Accepted, Acceptor};

/// Connections that the kernel keeps for a core that is slow to accept.
const BACKLOG: i32 = 1024;

/// The sockets of one listener, one per core, and its address.
pub fn bind(address: SocketAddr, cores: usize) -> io::Result<(SocketAddr, Vec<StdListener>)> {
    // SO_REUSEPORT would let us share a port with a stranger of the same user, silently. A socket
    // without it tells. It does not listen: a client that it took would be lost with it.
    drop(bound(address, Port::Alone)?);
    let first = bind_shared(address)?;
    let address = first.local_addr()?;
    let mut listeners = vec![first];
    for _ in 1..cores {
        listeners.push(bind_shared(address)?);
    }
    Ok((address, listeners))
}

fn bind_shared(address: SocketAddr) -> io::Result<StdListener> {
    let socket = bound(address, Port::Shared)?;
    socket.set_nonblocking(true)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Whether others of the same user may be bound to the port too.
#[derive(PartialEq, Eq)]
enum Port {
    Alone,
    Shared,
}

fn bound(address: SocketAddr, port: Port) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(port == Port::Shared)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}

/// A client that was let in.
pub struct Visit {
    /// Its connection. Small replies leave at once.
    pub stream: TcpStream,
    /// Its address.
    pub client: SocketAddr,
    /// True when the proxy goes down.
    pub shutdown: watch::Receiver<bool>,
    /// While a copy of it is there, the shutdown waits: for what outlives the connection.
    pub alive: Alive,
}

/// See [`Visit::alive`].
pub type Alive = mpsc::Sender<()>;

/// Serves one client to its end.
pub type Serve = Box<dyn Fn(Visit) -> BoxFuture<'static, ()> + Send>;

/// One listener on one core.
pub struct Entrance {
    /// Its socket.
    pub socket: StdListener,
    /// Connections that it may still take, over all cores.
    pub room: Arc<Semaphore>,
    /// What is done with its clients.
    pub serve: Serve,
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
    alive: Alive,
) -> io::Result<()> {
    let Entrance {
        socket,
        room,
        serve,
    } = entrance;
    let mut acceptor = Acceptor::new(TcpListener::from_std(socket)?, room);
    loop {
        let accepted = tokio::select! {
            accepted = acceptor.next() => accepted,
            () = ending(&mut shutdown) => return Ok(()),
        };
        let Accepted {
            stream,
            client,
            place,
        } = accepted;
        let visit = Visit {
            stream,
            client,
            shutdown: shutdown.clone(),
            alive: alive.clone(),
        };
        tokio::spawn(hold(place, serve(visit)));
    }
}

/// The connection's place ends with it.
async fn hold(_place: OwnedSemaphorePermit, served: BoxFuture<'static, ()>) {
    served.await;
}

/// Returns when the proxy goes down.
pub async fn ending(shutdown: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone: the end as well.
    let _ = shutdown.wait_for(|down| *down).await;
}

/// Polls what serves a client until it ends, which is true, or until the proxy goes down.
pub async fn ends_first(
    mut serve: impl FnMut(&mut Context<'_>) -> Poll<()>,
    shutdown: &mut watch::Receiver<bool>,
) -> bool {
    let told = shutdown.clone();
    let mut down = pin!(ending(shutdown));
    let mut waits = false;
    std::future::poll_fn(|cx| {
        if serve(cx).is_ready() {
            return Poll::Ready(true);
        }
        // Its waker stays set until it is told: seeing whether it was costs less than waiting anew.
        if waits && told.has_changed().is_ok_and(|changed| !changed) {
            return Poll::Pending;
        }
        waits = true;
        down.as_mut().poll(cx).map(|()| false)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    fn unused() -> SocketAddr {
        let any = StdListener::bind("127.0.0.1:0").unwrap();
        any.local_addr().unwrap()
    }

    #[test]
    fn a_port_that_is_looked_at_takes_no_client() {
        let address = unused();
        let looked = bound(address, Port::Alone).unwrap();
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        drop(looked);
        let (_, sockets) = bind(address, 2).unwrap();
        assert_eq!(sockets.len(), 2);
        assert!(TcpStream::connect(address).is_ok());
    }

    #[tokio::test]
    async fn a_client_that_keeps_its_server_busy_does_not_keep_the_proxy_up() {
        let (tell, mut shutdown) = watch::channel(false);
        let mut polls = 0;
        let serve = |cx: &mut Context<'_>| {
            polls += 1;
            if polls == 3 {
                // What wakes it is lost among its own.
                tell.send(true).unwrap();
            }
            if polls < 5 {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        };
        let ended = tokio::time::timeout(Duration::from_secs(10), ends_first(serve, &mut shutdown));
        assert!(!ended.await.unwrap());
        assert_eq!(polls, 3);
    }

    #[tokio::test]
    async fn an_idle_one_is_woken() {
        let (tell, mut shutdown) = watch::channel(false);
        let idle = tokio::spawn(async move { ends_first(|_| Poll::Pending, &mut shutdown).await });
        tokio::task::yield_now().await;
        tell.send(true).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(10), idle).await;
        assert!(!ended.unwrap().unwrap());
    }

    #[test]
    fn a_port_is_not_shared_with_a_stranger() {
        let address = unused();
        let ours = bind(address, 2).unwrap();
        let again = bind(address, 2).map(|_| ()).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
        drop(ours);
        assert!(bind(address, 2).is_ok());
    }
}
