//! Connections to backends: a pool per listener and core.
//!
//! There is no hidden retry. Invariants:
//! - a connection carries one exchange at a time and comes back only after the whole response;
//!   after an abort, an error or an early response it is dropped;
//! - a kept connection is looked at right before its next use: one that the backend has closed, or
//!   has written to unasked, is dropped. For a write the kernel is asked; for a read, which may be
//!   sent again, what the runtime has heard of the socket will do.

mod connection;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::config::Upstream;

pub use connection::{Connection, WriteHalf};

/// Most connections that are kept per listener and core.
pub const IDLE_CONNECTIONS_MAX: usize = 256;
/// How long a connection is kept unused.
pub const IDLE_MAX: Duration = Duration::from_secs(55);

/// Connections of one core to one backend.
pub struct Pool {
    backend: Upstream,
    connect_max: Duration,
    /// The last used first.
    idle: Mutex<Vec<Connection>>,
}

/// Why there is no connection. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name does not resolve.
    #[error("the backend's address cannot be resolved: {0}")]
    Resolve(std::io::Error),
    /// No address takes the connection.
    #[error("the backend refuses connections: {0}")]
    Refused(std::io::Error),
    /// It took too long.
    #[error("the backend took longer than {} ms to take the connection", .0.as_millis())]
    TimedOut(Duration),
}

impl Pool {
    /// An empty pool.
    pub fn new(backend: Upstream, connect_max: Duration) -> Arc<Pool> {
        Arc::new(Pool {
            backend,
            connect_max,
            idle: Mutex::default(),
        })
    }

    /// A kept connection that is still open, or a new one.
    pub async fn get(&self) -> Result<Connection, ConnectError> {
        match self.kept(Connection::is_quiet) {
            Some(connection) => Ok(connection),
            None => self.connect().await,
        }
    }

    /// The same for a request that may be sent again: a kept connection that ends just now is found
    /// out by it.
    pub async fn get_for_read(&self) -> Result<Connection, ConnectError> {
        match self.kept(Connection::was_quiet) {
            Some(connection) => Ok(connection),
            None => self.connect().await,
        }
    }

    fn kept(&self, is_usable: impl Fn(&Connection) -> bool) -> Option<Connection> {
        let mut idle = self.lock();
        while let Some(connection) = idle.pop() {
            if connection.idle_since.elapsed() < IDLE_MAX && is_usable(&connection) {
                return Some(connection);
            }
        }
        None
    }

    /// A new connection.
    pub async fn connect(&self) -> Result<Connection, ConnectError> {
        let timed_out = |_| ConnectError::TimedOut(self.connect_max);
        tokio::time::timeout(self.connect_max, self.connect_unbounded())
            .await
            .map_err(timed_out)?
    }

    async fn connect_unbounded(&self) -> Result<Connection, ConnectError> {
        let backend = (self.backend.host.as_str(), self.backend.port);
        let addresses: Vec<SocketAddr> = tokio::net::lookup_host(backend)
            .await
            .map_err(ConnectError::Resolve)?
            .collect();
        let stream = TcpStream::connect(&addresses[..])
            .await
            .map_err(ConnectError::Refused)?;
        Connection::new(stream).map_err(ConnectError::Refused)
    }

    /// Takes back a connection after a whole response.
    pub fn put(&self, mut connection: Connection) {
        connection.idle_since = Instant::now();
        connection.is_kept = true;
        connection.reader.input.shrink();
        connection.writer.shrink();
        let mut idle = self.lock();
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(connection);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
