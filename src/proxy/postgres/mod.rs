//! Postgres listeners: a proxy in the frontend/backend protocol before one Postgres server.
//!
//! In the order of a connection: [`door`] takes the client to its first ReadyForQuery (upgrades,
//! TLS, start-up, authentication relayed) over a backend connection of its own; `session` then
//! carries messages both ways, resolves, presents and forwards, statement by statement; a listener
//! without rules passes bytes unread (`relay`). What a statement is, and which reply is whose, is
//! told by the pure part (`protocol::postgres`), against what [`catalog`] knows of each database.
//! Permits are kept in `flights`. Backend sessions are vouched for over the [`control`] connection,
//! recorded on disk by [`sessions`] before they carry a write, and ended and proven gone by
//! [`evict`]. What PREPARE TRANSACTION leaves is remembered by [`prepared`]. Where several proxies
//! share the server, [`fence_store`] keeps their order. What a lost store had recorded of sessions
//! is ended by `sweep`.
//!
//! Invariants:
//! - one client connection has one backend connection, and nobody else's bytes are on it;
//! - the bytes that can make a transaction take effect leave only after its permits are released,
//!   and those are finished only at the answer that ends it (ReadyForQuery; the error of a pipeline
//!   without a block), or when its session is proven gone;
//! - before the first fenced write under a lock, the session is vouched for, and is on disk for
//!   that lock: a session that could not be ended carries none.

pub mod catalog;
pub mod control;
pub mod door;
pub mod evict;
pub mod fence_store;
mod flights;
pub mod prepared;
mod relay;
mod report;
mod session;
pub mod sessions;
pub mod snapshots;
pub mod start;
mod sweep;
pub mod wire;

use std::sync::Arc;

use super::gates::Gates;
use super::shadows::Shadows;
use super::tickets::Tickets;
use super::watermarks::Watermarks;
use crate::audit::AuditWriter;
use crate::config::PostgresListenerConfig;
use crate::protocol::postgres::classify::Classifier;

/// One listener with what it shares with the others.
pub struct Listener {
    /// Its configuration.
    pub config: PostgresListenerConfig,
    /// The proxy's name.
    pub instance: String,
    /// The gates of all listeners.
    pub gates: Gates,
    /// What verifies tickets.
    pub tickets: Arc<Tickets>,
    /// The store of the watermarks: whether it is there.
    pub watermarks: Watermarks,
    /// Where refusals are recorded.
    pub audit: AuditWriter,
    /// The gates of observe mode.
    pub shadows: Arc<Shadows>,
    /// Reads statements, and remembers them.
    pub classifier: Classifier,
    /// TLS with clients, and connections to the backend.
    pub door: Arc<door::Door>,
    /// Asks the server what the proxy itself must know.
    pub control: control::Control,
    /// What names mean, database by database.
    pub catalogs: catalog::Catalogs,
    /// Puts sessions on disk.
    pub sessions: sessions::Sessions,
    /// Ends them.
    pub evictor: evict::Evictor,
    /// The snapshots that sessions export.
    pub snapshots: snapshots::Snapshots,
    /// The prepared transactions.
    pub prepared: prepared::Prepared,
    /// The watermarks in the server itself, where several proxies share it.
    pub fence_store: Option<fence_store::FenceStore>,
}

impl Listener {
    /// Whether nothing is guarded: no statement is looked at.
    fn is_relay(&self) -> bool {
        !self.config.rules.guards()
    }
}
