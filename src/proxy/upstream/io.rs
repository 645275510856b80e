//! The socket of a connection to a backend: shared, so that it can be looked at and aborted while
//! hyper drives it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A backend's socket. Cheap to clone.
#[derive(Clone)]
pub struct Socket {
    shared: Arc<Shared>,
}

struct Shared {
    stream: TcpStream,
    aborted: AtomicBool,
}

impl Socket {
    /// Takes over a connected stream.
    pub fn new(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        Ok(Socket {
            shared: Arc::new(Shared {
                stream,
                aborted: AtomicBool::new(false),
            }),
        })
    }

    /// Whether an idle connection can carry a request: the backend has neither closed it nor sent
    /// anything that nobody asked for.
    pub fn is_quiet(&self) -> bool {
        let mut byte = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = rustix::net::recv(&self.shared.stream, &mut byte[..], flags);
        peeked == Err(rustix::io::Errno::AGAIN)
    }

    /// Has the connection end by RST once it is dropped, and nothing more be sent on it. hyper
    /// would end it by FIN, which some backends take for the end of a body.
    pub fn abort(&self) {
        self.shared.aborted.store(true, Ordering::Relaxed);
        // SO_LINGER with 0 (socket(7)). Without it the connection still ends, if less abruptly.
        let _ = socket2::SockRef::from(&self.shared.stream).set_linger(Some(Duration::ZERO));
    }

    fn check_aborted(&self) -> io::Result<()> {
        if self.shared.aborted.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    fn poll_write_with(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.check_aborted()?;
        loop {
            ready!(self.shared.stream.poll_write_ready(cx))?;
            match write(&self.shared.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.shared.stream.poll_read_ready(cx))?;
            match self.shared.stream.try_read_buf(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(|_| ())),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |stream| stream.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |stream| stream.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is buffered here.
        Poll::Ready(self.check_aborted())
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Connections to backends are dropped, never half closed: a FIN may be taken for the end of
        // a body.
        Poll::Ready(Ok(()))
    }
}
