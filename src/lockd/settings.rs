//! What an operator may set of a lock service.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::{self, SealConfig, SealMode};
use crate::incoming::BEGIN_MAX;
use crate::lock_name::LockName;

/// Settings of a lockd, apart from its store, keys and listener.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folder of the file of what operators did.
    pub audit_dir: PathBuf,
    /// File of the proxies that were seen registered; without one nothing is kept of them beside
    /// the store.
    pub proxies_seen: Option<PathBuf>,
    /// How grants are sealed; the first pattern that matches a lock decides. Without one the seal
    /// is required wherever a registered proxy guards the lock. `best-effort` gives up promises 1
    /// to 3 of the contract across proxies; tickets say which were reached.
    pub seals: Vec<SealConfig>,
    /// Sessions that ask for less get this.
    pub session_ttl_min: Duration,
    /// Sessions that ask for more are refused.
    pub session_ttl_max: Duration,
    /// How long one order to a proxy may take.
    pub seal_timeout: Duration,
    /// Bounds.
    pub limits: Limits,
    /// How long a shutdown waits for calls and abandoned entries.
    pub shutdown_grace: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        let mut settings = Settings::from(&config::LockdConfig::default());
        // Whoever has no file of settings has said no folder either.
        settings.proxies_seen = None;
        settings
    }
}

impl From<&config::LockdConfig> for Settings {
    fn from(file: &config::LockdConfig) -> Settings {
        Settings {
            audit_dir: file.data_dir.join("audit"),
            proxies_seen: Some(file.proxies_seen()),
            seals: file.seals.clone(),
            session_ttl_min: file.session_ttl_min,
            session_ttl_max: file.session_ttl_max,
            seal_timeout: file.seal_timeout,
            limits: Limits {
                connections_max: file.connections_max,
                sessions_max: file.sessions_max,
                ..Limits::default()
            },
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

impl Settings {
    pub(super) fn is_best_effort(&self, lock: &LockName) -> bool {
        let seal = self.seals.iter().find(|seal| seal.pattern.matches(lock));
        seal.is_some_and(|seal| seal.mode == SealMode::BestEffort)
    }
}

/// Bounds of a lockd. A call beyond them is refused with RESOURCE_EXHAUSTED; a connection waits.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections of clients and proxies.
    pub connections_max: usize,
    /// How long a connection may take to begin.
    pub begin_max: Duration,
    /// Sessions that were opened or renewed here and live.
    pub sessions_max: usize,
    /// Acquire calls in progress.
    pub waits_max: usize,
    /// Entries in the queue of one lock.
    pub waiters_per_lock_max: usize,
    /// WatchLock streams.
    pub watches_max: usize,
    /// Calls and streams of one connection.
    pub streams_per_connection_max: u32,
    /// Longest request, in bytes.
    pub message_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        let file = config::LockdConfig::default();
        Limits {
            connections_max: file.connections_max,
            begin_max: BEGIN_MAX,
            sessions_max: file.sessions_max,
            waits_max: 200_000,
            waiters_per_lock_max: 50_000,
            watches_max: 20_000,
            streams_per_connection_max: 50_000,
            message_bytes_max: 256 * 1024,
        }
    }
}
