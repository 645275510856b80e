//! One side of a session: a connection in the clear or in TLS, with what was received and what
//! waits to be sent.
//!
//! Invariant: an idle side keeps little memory; a full one is not filled further by its users, who
//! look at [`Side::is_full`].

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use crate::proxy::polled::{poll_receive, shrink};

pub use crate::proxy::polled::Received;

/// Bytes that wait to be sent on one side before the other side is not read any more.
pub const WAITING_BYTES_MAX: usize = 256 << 10;

/// A connection.
pub enum Wire {
    /// In the clear.
    Plain(TcpStream),
    /// Within TLS, as its server or as its client.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Wire {
    /// Whether it is encrypted.
    pub fn is_tls(&self) -> bool {
        matches!(self, Wire::Tls(_))
    }

    /// Its port on our side, as the server sees it where nothing is between.
    pub fn local_port(&self) -> io::Result<u16> {
        let stream = match self {
            Wire::Plain(stream) => stream,
            Wire::Tls(stream) => stream.get_ref().0,
        };
        Ok(stream.local_addr()?.port())
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Wire::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Wire::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    /// TLS may keep what was written to it until it is flushed.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Wire::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Wire::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// What came of a try to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// Nothing could be sent now, or nothing waits.
    Nothing,
    /// Something was.
    Some,
    /// The other end is gone.
    Failed,
}

/// A connection with its buffers.
pub struct Side {
    wire: Wire,
    /// What was received and not dealt with.
    pub received: BytesMut,
    /// What waits to be sent.
    pub waiting: BytesMut,
    /// TLS holds something that was not flushed.
    unflushed: bool,
}

impl Side {
    /// A connection that nothing is known of yet.
    pub fn new(wire: Wire) -> Side {
        Side {
            wire,
            received: BytesMut::new(),
            waiting: BytesMut::new(),
            unflushed: false,
        }
    }

    /// Whether it is encrypted.
    pub fn is_tls(&self) -> bool {
        self.wire.is_tls()
    }

    /// Whether so much waits to be sent that no more should.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_BYTES_MAX
    }

    /// Whether all was sent.
    pub fn is_sent(&self) -> bool {
        self.waiting.is_empty() && !self.unflushed
    }

    /// Queues bytes to be sent.
    pub fn send(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
    }

    /// Sends what can be sent now.
    pub fn poll_send(&mut self, cx: &mut Context<'_>) -> Sent {
        let mut sent = Sent::Nothing;
        while !self.waiting.is_empty() {
            match Pin::new(&mut self.wire).poll_write(cx, &self.waiting) {
                Poll::Pending => break,
                Poll::Ready(Ok(0) | Err(_)) => return Sent::Failed,
                Poll::Ready(Ok(bytes)) => {
                    self.waiting.advance(bytes);
                    self.unflushed = self.wire.is_tls();
                    sent = Sent::Some;
                }
            }
        }
        if self.waiting.is_empty() {
            shrink(&mut self.waiting);
        }
        if self.unflushed {
            match Pin::new(&mut self.wire).poll_flush(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(_)) => return Sent::Failed,
            }
        }
        sent
    }

    /// Receives what is there, at most one read.
    pub fn poll_receive(&mut self, cx: &mut Context<'_>) -> Received {
        let Side { wire, received, .. } = self;
        poll_receive(wire, received, cx)
    }

    /// Has what comes from this side wait to be sent on another, unseen.
    pub fn poll_pass(&mut self, to: &mut Side, cx: &mut Context<'_>) -> Received {
        poll_receive(&mut self.wire, &mut to.waiting, cx)
    }

    /// Drops what was dealt with.
    pub fn consume(&mut self, bytes: usize) {
        self.received.advance(bytes);
        if self.received.is_empty() {
            shrink(&mut self.received);
        }
    }

    /// Says that nothing more is sent, once all was. Ready when that has left.
    pub fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // The other end may be gone, which is no error.
        Pin::new(&mut self.wire).poll_shutdown(cx).map(|_| ())
    }

    /// Waits until more is there. `false`: nothing more comes.
    pub async fn receive(&mut self) -> io::Result<bool> {
        Ok(self.wire.read_buf(&mut self.received).await? > 0)
    }

    /// Sends all that waits.
    pub async fn send_all(&mut self) -> io::Result<()> {
        self.wire.write_all_buf(&mut self.waiting).await?;
        self.wire.flush().await?;
        self.unflushed = false;
        Ok(())
    }

    /// Says that nothing more is sent. The other end may be gone, which is no error.
    pub async fn close(&mut self) {
        // TLS says goodbye (close_notify), so that the end cannot be taken for an attack.
        let _ = self.wire.shutdown().await;
    }

    /// The connection, of which nothing is buffered.
    pub fn into_wire(self) -> Wire {
        debug_assert!(self.received.is_empty() && self.is_sent());
        self.wire
    }

    /// Its port on our side.
    pub fn local_port(&self) -> io::Result<u16> {
        self.wire.local_port()
    }
}
