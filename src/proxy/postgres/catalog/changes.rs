//! What makes catalogs outdated: counted once for all listeners, since what a session defines
//! through one of them counts for the sessions of every other before the same server. Which server
//! an address is nobody knows: databases of one name count for the same, and where they are two, a
//! catalog is loaded that need not be.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

/// Most databases whose changes are kept though nobody has them at hand.
const DATABASES_MAX: usize = 1024;

/// The changes in the databases of all servers, by name. Cheap to clone.
#[derive(Clone, Default)]
pub struct Changes {
    databases: Arc<Mutex<HashMap<Box<str>, Arc<OfDatabase>>>>,
}

/// The changes in the databases of one name.
#[derive(Default)]
pub(super) struct OfDatabase {
    /// Counts what makes its catalogs outdated. SeqCst with the loads of it: a load that begins
    /// after a count sees the change that was counted, since the change was made before.
    pub(super) count: AtomicU64,
    /// Commits on their way that may change what names do: nobody knows when they are through.
    /// SeqCst, as `count`.
    pub(super) unsettled: AtomicUsize,
    /// When something was last known to have acted in it, by a catalog or its own text.
    pub(super) acted: Mutex<Option<Instant>>,
    /// Counts what may have made tables of other servers. SeqCst with the questions: one that
    /// begins after a count sees what was counted, since that was committed before.
    pub(super) foreign: AtomicU64,
}

impl Changes {
    /// Those in the database of this name.
    pub(super) fn of(&self, name: &str) -> Arc<OfDatabase> {
        let databases = self.databases.lock();
        let mut databases = databases.unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = databases.get(name) {
            return Arc::clone(known);
        }
        if databases.len() >= DATABASES_MAX {
            // Whoever has a catalog has these at hand.
            databases.retain(|_, changes| Arc::strong_count(changes) > 1);
        }
        Arc::clone(databases.entry(name.into()).or_default())
    }
}
