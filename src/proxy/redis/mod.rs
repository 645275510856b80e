//! Redis listeners: a proxy in RESP before one Redis server.
//!
//! In the order of a command: `session` takes the client and opens a backend connection of its own
//! for it ([`backend`], `link`), decodes, decides and forwards command by command, and counts the
//! replies. Short writes of clients that hold the same tickets share a connection (`lane`). What a
//! command is, and which reply is whose, is told by the pure part (`protocol::redis`). What is in
//! flight is kept in [`flights`]; sessions of older tokens are ended, and proven gone, by [`evict`]
//! over the [`control`] connection. Where several proxies share the server, [`fence_keys`] keeps
//! their order. What a lost store had recorded of sessions is ended by `sweep`.
//!
//! Invariants:
//! - what depends on its connection is on one that nobody else's bytes are on;
//! - the last byte of a fenced command leaves only after its permits are released, and they are
//!   finished only when its reply was seen whole or its session is proven gone;
//! - before the first fenced write under a lock, the session's id is on disk for that lock.

pub mod backend;
pub mod control;
pub mod evict;
pub mod fence_keys;
pub mod flights;
mod lane;
mod link;
mod session;
mod settle;
pub mod start;
mod sweep;

use std::sync::Arc;

use super::gates::Gates;
use super::shadows::Shadows;
use super::tickets::Tickets;
use super::watermarks::Watermarks;
use crate::audit::AuditWriter;
use crate::config::RedisListenerConfig;

/// One listener with what it shares with the others.
pub struct RedisListening {
    /// Its configuration.
    pub config: RedisListenerConfig,
    /// The proxy's name.
    pub instance: String,
    /// The gates of all listeners.
    pub gates: Gates,
    /// What verifies tickets.
    pub tickets: Arc<Tickets>,
    /// Where sessions are recorded.
    pub watermarks: Watermarks,
    /// Where refusals are recorded.
    pub audit: AuditWriter,
    /// The gates of observe mode.
    pub shadows: Arc<Shadows>,
    /// The backend's address, as its sessions are recorded under it.
    pub backend: String,
    /// Asks the server what the proxy itself must know.
    pub control: control::Control,
    /// Opens backend connections.
    pub connector: backend::Connector,
    /// Ends them.
    pub evictor: evict::Evictor,
    /// The watermarks in the server itself, where several proxies share it.
    pub fence_keys: Option<fence_keys::FenceKeys>,
}

impl RedisListening {
    /// A backend connection, to the server that the control connection leads to: a session that it
    /// cannot see could not be proven gone.
    async fn open(&self) -> Result<backend::Opened, backend::OpenError> {
        let opened = self.connector.open().await?;
        let run_id = &opened.session.run_id;
        match self.control.leads_to(run_id).await {
            Ok(true) => Ok(opened),
            Ok(false) => Err(backend::OpenError::Refused(
                "the control connection leads to another server".to_owned(),
            )),
            Err(error) => Err(backend::OpenError::Refused(error.to_string())),
        }
    }
}
