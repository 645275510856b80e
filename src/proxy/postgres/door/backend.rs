//! A connection to the server, before its start-up packet.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::Door;
use crate::config::UpstreamTlsMode;
use crate::protocol::postgres::frame::ssl_request;
use crate::proxy::postgres::wire::Wire;

/// Why there is no connection. Nothing of the client's was sent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The network.
    #[error("the backend cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
    /// The handshake of TLS: it is not the server that it should be.
    #[error("the backend's TLS is not taken: {0}")]
    Tls(io::Error),
    /// It took too long.
    #[error("the backend took longer than {0} ms")]
    TimedOut(u128),
    /// TLS is required, and the server has none.
    #[error("the backend has no TLS, which upstream_tls.mode asks for")]
    NoTls,
    /// The server answered the request for TLS with something else.
    #[error("the backend answered the request for TLS with {0:#04x}")]
    NoAnswer(u8),
    /// The name of the upstream is none that a certificate can bear.
    #[error("{0:?} is no name that a certificate can bear")]
    Name(String),
}

impl ConnectError {
    /// Whether it stays so until an operator changes something.
    pub fn is_final(&self) -> bool {
        match self {
            ConnectError::Unreachable(_) | ConnectError::TimedOut(_) => false,
            ConnectError::Tls(_)
            | ConnectError::NoTls
            | ConnectError::NoAnswer(_)
            | ConnectError::Name(_) => true,
        }
    }
}

/// What TLS itself finds wrong is invalid data; the rest is the network's.
fn tls_or_network(error: io::Error) -> ConnectError {
    match error.kind() {
        io::ErrorKind::InvalidData => ConnectError::Tls(error),
        _ => ConnectError::Unreachable(error),
    }
}

impl Door {
    /// A connection to the server, with TLS as it is configured.
    pub async fn connect(&self) -> Result<Wire, ConnectError> {
        match tokio::time::timeout(self.connect_max, self.connect_unbounded()).await {
            Ok(connected) => connected,
            Err(_) => Err(ConnectError::TimedOut(self.connect_max.as_millis())),
        }
    }

    async fn connect_unbounded(&self) -> Result<Wire, ConnectError> {
        let address = (self.upstream.host.as_str(), self.upstream.port);
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        if self.mode == UpstreamTlsMode::Disable {
            return Ok(Wire::Plain(stream));
        }
        stream.write_all(&ssl_request()).await?;
        // One byte and no more: what follows it in the clear must not be taken for TLS.
        match (stream.read_u8().await?, self.mode) {
            (b'S', _) => {
                let host = self.upstream.host.clone();
                let name = ServerName::try_from(host.clone());
                let name = name.map_err(|_| ConnectError::Name(host))?;
                let stream = self.connector.connect(name, stream).await;
                let stream = stream.map_err(tls_or_network)?;
                Ok(Wire::Tls(Box::new(TlsStream::Client(stream))))
            }
            (b'N', UpstreamTlsMode::Prefer) => Ok(Wire::Plain(stream)),
            (b'N', _) => Err(ConnectError::NoTls),
            // An error told here comes from nobody that was checked: its text is not passed on.
            (other, _) => Err(ConnectError::NoAnswer(other)),
        }
    }
}
