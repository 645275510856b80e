//! Idle gates leave memory.
//!
//! Invariant: a gate leaves the map only retired and under the map's own lock, so that no second
//! gate of its lock can be found, or loaded, while it may still admit.

use std::sync::Arc;
use std::time::Duration;

use dashmap::mapref::entry::Entry as MapEntry;

use super::entry::Entry;
use super::{Gates, Inner, Slot};
use crate::lock_name::LockName;
use crate::proxy::watermarks::{Watermarks, What};

type Submit = fn(&Watermarks, What, Box<dyn FnOnce(bool) + Send>);

impl Gates {
    /// Retires gates that were not used for `idle`, over and over. Runs until it is dropped.
    pub async fn run_eviction(self, idle: Duration) {
        loop {
            // Whichever comes first, idle gates are looked for.
            let _ = tokio::time::timeout(idle, self.inner.crowded.notified()).await;
            self.evict(idle, Watermarks::submit);
        }
    }

    /// Retires all quiet gates, at the end of the run. Blocks for as long as the disk takes.
    pub fn evict_all(&self) {
        self.evict(Duration::ZERO, Watermarks::submit_waiting);
    }

    fn evict(&self, idle: Duration, submit: Submit) {
        let resting = |slot: &Arc<Slot>| slot.get().is_none_or(|entry| entry.idle() >= idle);
        let slots = self.inner.slots.iter();
        let names: Vec<LockName> = slots
            .filter(|it| resting(it.value()))
            .map(|it| it.key().clone())
            .collect();
        for name in names {
            let MapEntry::Occupied(occupied) = self.inner.slots.entry(name) else {
                continue;
            };
            // The map's lock is held: nobody finds the slot between the retirement and its removal.
            match occupied.get().get().cloned() {
                Some(entry) if resting(occupied.get()) && self.inner.retire(&entry, submit) => {
                    occupied.remove();
                }
                // Nobody is loading it.
                None if Arc::strong_count(occupied.get()) == 1 => drop(occupied.remove()),
                _ => {}
            }
        }
    }
}

impl Inner {
    fn retire(&self, entry: &Arc<Entry>, submit: Submit) -> bool {
        entry.pump();
        if entry.gate.try_retire() {
            let lock = entry.gate.lock().clone();
            // A mark that stays only makes the next run wait.
            submit(&self.watermarks, What::Clean { lock }, Box::new(|_| {}));
            return true;
        }
        let status = entry.gate.status();
        if !status.settled && status.in_doubt == 0 && status.waiting == 0 {
            entry.nudge(status);
        }
        false
    }
}
