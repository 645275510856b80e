//! Connections of clients, as every port takes them: not more than a limit, with a rest where the
//! system gives none, and with what finds a machine that has vanished.
//!
//! [`Acceptor`] is for a port that serves its connections itself. [`stream`] feeds a gRPC server,
//! and gives each connection the limits on time that such a server does not have: [`Connection`].
//!
//! Left to others: what is said over a connection.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::Stream;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// How long a client may take to begin: to send the head of its first request, or HTTP/2's preface.
pub const BEGIN_MAX: Duration = Duration::from_secs(30);
/// How long a client of [`stream`] may take no byte of what it is sent. One that reads nothing
/// answers no ping either, after which its connection ends, if only what is sent before it could
/// leave.
const STALL_MAX: Duration = Duration::from_secs(60);

/// How long accepting rests when the process is out of file descriptors.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// What goes on and on is logged once in this time.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// How long a connection is silent before the kernel asks for a sign of life, how often it asks
/// then, and how often in vain (tcp(7)): a client that is cut off is gone after two minutes. An
/// answer of the other kernel is enough: whoever is only slow, or waits, is not cut.
const ASKED_AFTER: Duration = Duration::from_secs(60);
const ASKED_EVERY: Duration = Duration::from_secs(15);
const ASKED_MAX: u32 = 4;

/// How an HTTP/2 connection begins (RFC 9113 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client that was let in.
pub struct Accepted {
    /// Its connection. Small replies leave at once.
    pub stream: TcpStream,
    /// Its address.
    pub client: SocketAddr,
    /// To be dropped with the connection.
    pub place: OwnedSemaphorePermit,
}

/// Accepts the clients of one socket.
pub struct Acceptor {
    socket: TcpListener,
    room: Arc<Semaphore>,
    refused: Told,
    full: Told,
}

/// When something was logged last.
#[derive(Default)]
struct Told(Option<Instant>);

impl Told {
    /// Whether it is to be logged now.
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.0.is_none_or(|last| now >= last + TELL_EVERY);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}

impl Acceptor {
    /// Of a socket that listens. `room`: the connections that may still be taken.
    pub fn new(socket: TcpListener, room: Arc<Semaphore>) -> Acceptor {
        Acceptor {
            socket,
            room,
            refused: Told::default(),
            full: Told::default(),
        }
    }

    /// The next client, once there is a place for it. Dropped half way it may have cost one client
    /// its connection.
    pub async fn next(&mut self) -> Accepted {
        let (stream, client) = self.connection().await;
        // Without these replies are late, and who has vanished is found late: not wrong.
        let _ = stream.set_nodelay(true);
        let asked = TcpKeepalive::new()
            .with_time(ASKED_AFTER)
            .with_interval(ASKED_EVERY)
            .with_retries(ASKED_MAX);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&asked);
        let place = self.place().await;
        Accepted {
            stream,
            client,
            place,
        }
    }

    async fn connection(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.socket.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    if self.refused.is_due() {
                        let at = self.address();
                        tracing::warn!(%error, at, "a connection was not accepted");
                    }
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    async fn place(&mut self) -> OwnedSemaphorePermit {
        if let Ok(place) = Arc::clone(&self.room).try_acquire_owned() {
            return place;
        }
        if self.full.is_due() {
            let at = self.address();
            tracing::warn!(
                at,
                "connections_max are open: another one waits for a place"
            );
        }
        match Arc::clone(&self.room).acquire_owned().await {
            Ok(place) => place,
            // It is never closed.
            Err(_) => std::future::pending().await,
        }
    }

    fn address(&self) -> String {
        let address = self.socket.local_addr();
        address.map_or_else(|error| error.to_string(), |address| address.to_string())
    }
}

/// The limits of a port.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most connections.
    pub connections_max: usize,
    /// How long one may take to begin.
    pub begin_max: Duration,
}

/// The clients of a socket, for a gRPC server. It never ends, and has no errors.
pub fn stream(
    socket: TcpListener,
    bounds: Bounds,
) -> impl Stream<Item = io::Result<Connection>> + Send {
    let room = Arc::new(Semaphore::new(bounds.connections_max));
    let acceptor = Acceptor::new(socket, room);
    futures::stream::unfold(acceptor, move |mut acceptor| async move {
        let Accepted { stream, place, .. } = acceptor.next().await;
        let mut connection = Connection::new(stream, bounds.begin_max);
        connection.place = Some(place);
        Some((Ok(connection), acceptor))
    })
}

/// A client's connection in HTTP that ends by itself where its client does not begin, leaves a
/// request in HTTP/1.1 unfinished, or takes nothing.
///
/// How long a connection in HTTP/2 lasts that has begun is for its server to say, which asks by
/// pings whether the client is there.
pub struct Connection {
    stream: TcpStream,
    begin_max: Duration,
    reading: Reading,
    stall_max: Duration,
    /// Runs while nothing can be written.
    stall: Option<Pin<Box<Sleep>>>,
    place: Option<OwnedSemaphorePermit>,
}

/// What is awaited of a client.
enum Reading {
    /// The preface, of which so many bytes are here; or a request in HTTP/1.1.
    Begin(usize, Pin<Box<Sleep>>),
    /// A request in HTTP/1.1. What is served is served at once: whoever sends nothing has not asked
    /// to the end.
    Http1(Pin<Box<Sleep>>),
    /// HTTP/2, whose server has limits of its own.
    Http2,
}

impl Connection {
    /// Over a connection of which nothing was read.
    pub fn new(stream: TcpStream, begin_max: Duration) -> Connection {
        Connection {
            stream,
            begin_max,
            reading: Reading::Begin(0, Box::pin(tokio::time::sleep(begin_max))),
            stall_max: STALL_MAX,
            stall: None,
            place: None,
        }
    }

    fn note(&mut self, read: &[u8]) {
        match &mut self.reading {
            Reading::Begin(here, _) => {
                let awaited = &HTTP2_PREFACE[*here..];
                let compared = awaited.len().min(read.len());
                *here += compared;
                if awaited[..compared] != read[..compared] {
                    let sleep = tokio::time::sleep(self.begin_max);
                    self.reading = Reading::Http1(Box::pin(sleep));
                } else if *here == HTTP2_PREFACE.len() {
                    self.reading = Reading::Http2;
                }
            }
            Reading::Http1(sleep) => sleep.as_mut().reset(Instant::now() + self.begin_max),
            Reading::Http2 => {}
        }
    }

    /// Ready when it lasts too long that nothing comes.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.reading {
            Reading::Begin(_, sleep) | Reading::Http1(sleep) => sleep.as_mut().poll(cx),
            Reading::Http2 => Poll::Pending,
        }
    }

    /// An error where it lasts too long that nothing can be written.
    fn timed<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        let stall_max = self.stall_max;
        let new = || Box::pin(tokio::time::sleep(stall_max));
        let stall = self.stall.get_or_insert_with(new);
        ready!(stall.as_mut().poll(cx));
        self.stall = None;
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if Pin::new(&mut self.stream).poll_read(cx, buf)?.is_ready() {
            self.note(&buf.filled()[before..]);
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_late(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.timed(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.timed(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::{Connection, Duration, TcpListener, TcpStream, io};

    /// A connection with limits that a test can wait for, and its client.
    async fn connection() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = Connection::new(stream, Duration::from_millis(200));
        // A reader that gets its turn late on a busy machine has not stalled.
        connection.stall_max = Duration::from_secs(3);
        (connection, client.unwrap())
    }

    async fn soon<T>(future: impl Future<Output = T>) -> T {
        let waited = tokio::time::timeout(Duration::from_secs(20), future).await;
        waited.expect("it goes on for ever")
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_given_up_and_one_that_is_slow_is_not() {
        let (mut connection, mut client) = connection().await;
        let bytes = vec![0; 64 << 20];
        let ended = soon(connection.write_all(&bytes)).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let reading = tokio::spawn(async move {
            let (mut taken, mut piece) = (0, vec![0; 4 << 20]);
            while let Ok(1..) = client.read(&mut piece).await.inspect(|read| taken += read) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            taken
        });
        soon(connection.write_all(&bytes)).await.unwrap();
        drop(connection);
        assert!(soon(reading).await.unwrap() >= bytes.len());
    }

    #[tokio::test]
    async fn what_comes_late_is_late_only_before_http_2_has_begun() {
        let (mut connection, mut client) = connection().await;
        let (begin, rest) = super::HTTP2_PREFACE.split_at(9);
        client.write_all(begin).await.unwrap();
        let mut read = [0; 64];
        assert_eq!(soon(connection.read(&mut read)).await.unwrap(), 9);
        client.write_all(rest).await.unwrap();
        assert_eq!(soon(connection.read(&mut read)).await.unwrap(), rest.len());
        let late = tokio::time::timeout(Duration::from_millis(500), connection.read(&mut read));
        assert!(late.await.is_err(), "it has begun");

        for begin in [&b"PRI * HTTP/2"[..], b"PUT / HTTP/1.1\r\n"] {
            let (mut connection, mut client) = self::connection().await;
            client.write_all(begin).await.unwrap();
            assert_eq!(soon(connection.read(&mut read)).await.unwrap(), begin.len());
            let late = soon(connection.read(&mut read)).await;
            assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
    }
}
