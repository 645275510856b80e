//! Idle gates leave memory.
//!
//! Invariant: a gate leaves the map only retired and under the map's own lock, so that no second
//! gate of its lock can be found, or loaded, while it may still admit.

use std::sync::Arc;
use std::time::Duration;

use dashmap::mapref::entry::Entry as MapEntry;
use tokio::sync::mpsc;

use super::entry::Entry;
use super::{Gates, Inner, Slot};
use crate::lock_name::LockName;
use crate::proxy::watermarks::{QUEUE_CHANGES_MAX, Watermarks, What};

/// Most marks of one eviction that wait for the disk: raises find room in the store's queue.
const MARKS_WAITING_MAX: usize = QUEUE_CHANGES_MAX / 16;

type Submit = fn(&Watermarks, What, Box<dyn FnOnce(bool) + Send>);

/// Held by every mark on its way to the disk: when all are dropped, all have been answered.
type OnItsWay = mpsc::Sender<()>;

impl Gates {
    /// Retires gates that were not used for `idle`, over and over. Runs until it is dropped.
    pub async fn run_eviction(self, idle: Duration) {
        loop {
            // Whichever comes first, idle gates are looked for.
            let _ = tokio::time::timeout(idle, self.inner.crowded.notified()).await;
            for names in self.resting(idle).chunks(MARKS_WAITING_MAX) {
                let (on_its_way, mut written) = mpsc::channel(1);
                self.evict(names, idle, Watermarks::submit, &on_its_way);
                drop(on_its_way);
                // Nothing is ever sent: it ends with the last mark.
                let _ = written.recv().await;
            }
        }
    }

    /// Retires all quiet gates, at the end of the run. Blocks for as long as the disk takes.
    pub fn evict_all(&self) {
        let (on_its_way, _written) = mpsc::channel(1);
        let names = self.resting(Duration::ZERO);
        self.evict(
            &names,
            Duration::ZERO,
            Watermarks::submit_waiting,
            &on_its_way,
        );
    }

    fn resting(&self, idle: Duration) -> Vec<LockName> {
        let slots = self.inner.slots.iter();
        slots
            .filter(|it| is_resting(it.value(), idle))
            .map(|it| it.key().clone())
            .collect()
    }

    fn evict(&self, names: &[LockName], idle: Duration, submit: Submit, on_its_way: &OnItsWay) {
        for name in names {
            let MapEntry::Occupied(occupied) = self.inner.slots.entry(name.clone()) else {
                continue;
            };
            // The map's lock is held: nobody finds the slot between the retirement and its removal.
            let rests = is_resting(occupied.get(), idle);
            match occupied.get().get().cloned() {
                Some(entry) if rests && self.inner.retire(&entry, submit, on_its_way) => {
                    occupied.remove();
                }
                // Nobody is loading it.
                None if Arc::strong_count(occupied.get()) == 1 => drop(occupied.remove()),
                _ => {}
            }
        }
    }
}

fn is_resting(slot: &Slot, idle: Duration) -> bool {
    slot.get().is_none_or(|entry| entry.idle() >= idle)
}

impl Inner {
    fn retire(&self, entry: &Arc<Entry>, submit: Submit, on_its_way: &OnItsWay) -> bool {
        entry.pump();
        if entry.gate.try_retire() {
            let lock = entry.gate.lock().clone();
            // A mark that stays only makes the next run wait.
            let on_its_way = on_its_way.clone();
            let done = Box::new(move |_| drop(on_its_way));
            submit(&self.watermarks, What::Clean { lock }, done);
            return true;
        }
        let status = entry.gate.status();
        if !status.settled && status.in_doubt == 0 && status.waiting == 0 {
            entry.nudge(status);
        }
        false
    }
}
