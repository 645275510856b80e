//! A client's connection: a socket, or a pipe to the HTTP/2 door.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::proxy::wire::{Buffer, Sink, Source};

/// What a client sends.
pub enum ReadSide {
    /// Over a socket.
    Socket(OwnedReadHalf),
    /// Through the HTTP/2 door.
    Pipe(tokio::io::ReadHalf<DuplexStream>),
}

/// What a client gets.
pub enum WriteSide {
    /// Over a socket.
    Socket(OwnedWriteHalf),
    /// Through the HTTP/2 door.
    Pipe(tokio::io::WriteHalf<DuplexStream>),
}

/// Both sides of a socket.
pub fn of_socket(stream: TcpStream) -> (Source<ReadSide>, Sink<WriteSide>) {
    let (reading, writing) = stream.into_split();
    sides(ReadSide::Socket(reading), WriteSide::Socket(writing))
}

/// Both sides of a pipe.
pub fn of_pipe(pipe: DuplexStream) -> (Source<ReadSide>, Sink<WriteSide>) {
    let (reading, writing) = tokio::io::split(pipe);
    sides(ReadSide::Pipe(reading), WriteSide::Pipe(writing))
}

fn sides(read: ReadSide, write: WriteSide) -> (Source<ReadSide>, Sink<WriteSide>) {
    let reader = Source {
        half: read,
        input: Buffer::default(),
    };
    let writer = Sink {
        half: write,
        output: vec![],
    };
    (reader, writer)
}

impl WriteSide {
    /// Has the connection end by RST: the client must not take what it has for a whole reply.
    pub fn reset(self) {
        if let WriteSide::Socket(half) = self {
            let stream: &TcpStream = half.as_ref();
            // SO_LINGER with 0 (socket(7)). Without it the connection still ends, if less abruptly.
            let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
            half.forget();
        }
    }
}

impl AsyncRead for ReadSide {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ReadSide::Socket(half) => Pin::new(half).poll_read(cx, buf),
            ReadSide::Pipe(half) => Pin::new(half).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for WriteSide {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            WriteSide::Socket(half) => Pin::new(half).poll_write(cx, buf),
            WriteSide::Pipe(half) => Pin::new(half).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            WriteSide::Socket(half) => Pin::new(half).poll_write_vectored(cx, bufs),
            WriteSide::Pipe(half) => Pin::new(half).poll_write_vectored(cx, bufs),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            WriteSide::Socket(half) => Pin::new(half).poll_flush(cx),
            WriteSide::Pipe(half) => Pin::new(half).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            WriteSide::Socket(half) => Pin::new(half).poll_shutdown(cx),
            WriteSide::Pipe(half) => Pin::new(half).poll_shutdown(cx),
        }
    }
}
