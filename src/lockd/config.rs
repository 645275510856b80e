//! What an operator may set of a lock service.

use std::time::Duration;

use crate::lock_name::{LockName, LockPattern};

/// Settings of a lockd.
#[derive(Clone, Debug)]
pub struct LockdConfig {
    /// Locks whose grants are told even if a registered proxy could not be sealed. This gives up
    /// promises 1 to 3 of the contract across proxies; tickets say which were reached.
    pub best_effort: Vec<LockPattern>,
    /// How long one order to a proxy may take.
    pub seal_timeout: Duration,
    /// Bounds.
    pub limits: Limits,
    /// How long a shutdown waits for calls and abandoned entries.
    pub shutdown_grace: Duration,
}

impl Default for LockdConfig {
    fn default() -> LockdConfig {
        LockdConfig {
            best_effort: Vec::new(),
            seal_timeout: Duration::from_secs(5),
            limits: Limits::default(),
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

impl LockdConfig {
    pub(super) fn is_best_effort(&self, lock: &LockName) -> bool {
        self.best_effort.iter().any(|pattern| pattern.matches(lock))
    }
}

/// Bounds of a lockd. What is beyond them is refused with RESOURCE_EXHAUSTED.
#[derive(Clone, Debug)]
pub struct Limits {
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
        Limits {
            waits_max: 200_000,
            waiters_per_lock_max: 50_000,
            watches_max: 20_000,
            streams_per_connection_max: 50_000,
            message_bytes_max: 256 * 1024,
        }
    }
}
