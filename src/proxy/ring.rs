//! What verifies tickets now: the keys that lockd tells, or those of a file.
//!
//! Whoever keeps what a ring has verified looks at its number before each use, on the hot path of
//! every listener: one atomic load, with no lock. Invariant: whoever sees a number sees its ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::ticket::KeyRing;

/// What verifies tickets now.
#[derive(Clone, Default)]
pub struct Ring {
    /// Grows with each change: what was verified under another one is verified again.
    pub generation: u64,
    /// `None`: not known yet, or none any more.
    pub keys: Option<Arc<KeyRing>>,
}

/// Where rings come from; by default no keys are known yet.
#[derive(Default)]
pub struct RingSource {
    ring: watch::Sender<Ring>,
    generation: Arc<AtomicU64>,
}

/// The ring, now and later.
#[derive(Clone)]
pub struct RingView {
    ring: watch::Receiver<Ring>,
    generation: Arc<AtomicU64>,
}

impl RingSource {
    /// What it tells.
    pub fn view(&self) -> RingView {
        RingView {
            ring: self.ring.subscribe(),
            generation: Arc::clone(&self.generation),
        }
    }

    /// These verify from now on; `None`: nothing does. The same keys again change nothing.
    pub fn set(&self, keys: Option<KeyRing>) {
        self.ring.send_if_modified(|now| {
            let ids = |ring: &KeyRing| -> Vec<String> {
                ring.keys().map(|key| key.id().to_owned()).collect()
            };
            if now.keys.as_deref().map(ids) == keys.as_ref().map(ids) {
                return false;
            }
            *now = Ring {
                generation: now.generation + 1,
                keys: keys.map(Arc::new),
            };
            // While the ring is locked: whoever sees the number waits for the ring.
            self.generation.store(now.generation, Ordering::Release);
            true
        });
    }
}

impl RingView {
    /// A ring that never changes.
    pub fn fixed(keys: KeyRing) -> RingView {
        let source = RingSource::default();
        source.set(Some(keys));
        source.view()
    }

    /// The ring.
    pub fn now(&self) -> Ring {
        self.ring.borrow().clone()
    }

    /// Its number.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}
