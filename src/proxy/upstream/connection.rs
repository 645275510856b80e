//! One HTTP/1.1 connection to a backend, read and written by the task that uses it.
//!
//! Invariant: it ends by being dropped or aborted, never by half: a FIN may be taken for the end of
//! a body.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::RecvFlags;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::Instant;

use crate::proxy::wire::{Buffer, Sink, Source};

/// A connection that carries one exchange at a time.
pub struct Connection {
    /// What the backend sends.
    pub reader: Source<OwnedReadHalf>,
    /// What the backend gets.
    pub writer: Sink<WriteHalf>,
    /// It has carried an exchange before.
    pub is_kept: bool,
    pub(super) idle_since: Instant,
}

/// A write half that does not shut the connection down when it is dropped.
pub struct WriteHalf(Option<OwnedWriteHalf>);

impl Connection {
    /// Takes over a connected stream.
    pub fn new(stream: TcpStream) -> io::Result<Connection> {
        stream.set_nodelay(true)?;
        let (read, write) = stream.into_split();
        Ok(Connection {
            reader: Source {
                half: read,
                input: Buffer::default(),
            },
            writer: Sink {
                half: WriteHalf(Some(write)),
                output: vec![],
            },
            is_kept: false,
            idle_since: Instant::now(),
        })
    }

    /// Whether an idle connection can carry a request: the backend has neither closed it nor sent
    /// anything that nobody asked for.
    pub fn is_quiet(&self) -> bool {
        let mut byte = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let stream: &TcpStream = self.reader.half.as_ref();
        let peeked = rustix::net::recv(stream, &mut byte[..], flags);
        self.reader.input.is_empty() && peeked == Err(rustix::io::Errno::AGAIN)
    }

    /// The same as of when the runtime last heard of its sockets, which costs no system call.
    pub fn was_quiet(&self) -> bool {
        let stream: &TcpStream = self.reader.half.as_ref();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        match stream.poll_read_ready(&mut cx) {
            Poll::Pending => self.reader.input.is_empty(),
            Poll::Ready(_) => self.is_quiet(),
        }
    }

    /// Ends it by RST, and nothing more is sent on it: what the backend has of a request is cut
    /// off.
    pub fn abort(self) {
        let stream: &TcpStream = self.reader.half.as_ref();
        // SO_LINGER with 0 (socket(7)). Without it the connection still ends, if less abruptly.
        let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
    }
}

impl WriteHalf {
    fn half(self: Pin<&mut Self>) -> io::Result<Pin<&mut OwnedWriteHalf>> {
        let half = self.get_mut().0.as_mut();
        // It is taken out only when it is dropped.
        half.map(Pin::new).ok_or(io::ErrorKind::NotConnected.into())
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.half()?.poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.half()?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is buffered here.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        if let Some(half) = self.0.take() {
            half.forget();
        }
    }
}
