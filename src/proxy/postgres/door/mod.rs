//! The door: TLS with clients, and connections to the backend.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::config::{PostgresListenerConfig, Upstream};

/// What a listener's connections are made with.
pub struct Door {
    upstream: Upstream,
    connect_max: Duration,
}

/// The door cannot be used as it is configured.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidDoor(pub String);

impl Door {
    /// Reads keys and certificates.
    pub fn new(config: &PostgresListenerConfig) -> Result<Door, InvalidDoor> {
        Ok(Door {
            upstream: config.upstream.clone(),
            connect_max: config.limits.upstream_connect_timeout,
        })
    }

    /// A connection to the backend, with TLS as it is configured, before its start-up packet.
    pub async fn connect(&self) -> io::Result<BackendStream> {
        let address = (self.upstream.host.as_str(), self.upstream.port);
        let connected = tokio::time::timeout(self.connect_max, TcpStream::connect(address)).await;
        let stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        stream.set_nodelay(true)?;
        Ok(BackendStream::Plain(stream))
    }
}

/// A connection to the backend.
pub enum BackendStream {
    /// Without TLS.
    Plain(TcpStream),
}

impl BackendStream {
    /// Its port on our side, as the server sees it where nothing is between.
    pub fn local_port(&self) -> io::Result<u16> {
        let BackendStream::Plain(stream) = self;
        Ok(stream.local_addr()?.port())
    }
}

impl AsyncRead for BackendStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let BackendStream::Plain(stream) = self.get_mut();
        Pin::new(stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for BackendStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let BackendStream::Plain(stream) = self.get_mut();
        Pin::new(stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let BackendStream::Plain(stream) = self.get_mut();
        Pin::new(stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let BackendStream::Plain(stream) = self.get_mut();
        Pin::new(stream).poll_shutdown(cx)
    }
}
