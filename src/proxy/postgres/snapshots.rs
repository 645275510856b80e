//! Snapshots that sessions of a listener export (`pg_export_snapshot`), and under which tickets
//! they were taken: another session may read by one under the same tickets (`pg_dump -j`). What it
//! reads is then as of after their seal.
//!
//! Invariant: a name is here only while the transaction that exports it is open, as far as the
//! server has told: only so long does the server know it, and by no other snapshot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::protocol::postgres::session::Shown;

/// Most exported snapshots that are known at a time.
const SNAPSHOTS_MAX: usize = 10_000;

/// The exported snapshots of one listener. Cheap to clone.
#[derive(Clone, Default)]
pub struct Snapshots(Arc<Mutex<HashMap<Box<str>, Shown>>>);

/// One that is exported, until it is dropped.
pub struct Exported {
    all: Snapshots,
    name: Box<str>,
}

impl Snapshots {
    /// A snapshot was exported that was taken while these were shown, and settled.
    pub fn export(&self, name: &str, shown: Shown) -> Option<Exported> {
        let mut known = self.lock();
        if known.len() >= SNAPSHOTS_MAX {
            return None;
        }
        known.insert(name.into(), shown);
        Some(Exported {
            all: self.clone(),
            name: name.into(),
        })
    }

    /// What was shown when it was taken.
    pub fn find(&self, name: &str) -> Option<Shown> {
        self.lock().get(name).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Shown>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        self.all.lock().remove(&self.name);
    }
}
