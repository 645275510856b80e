//! The locks that one connection has presented tickets for, each with its gate at hand: what makes
//! the equal and settled token pass without a look-up.

use std::collections::HashSet;
use std::sync::Arc;

use crate::gate::{Entrance, NotNow, Permit};
use crate::lock_name::LockName;
use crate::proxy::gates::{Claim, Entry};

/// Most gates that a connection keeps at hand; beyond it they are found anew.
const SLOTS_MAX: usize = 64;

/// A settled claim.
pub struct Slot {
    claim: Claim,
    entrance: Entrance,
    entry: Arc<Entry>,
    /// The lock's row for this session is on disk.
    recorded: bool,
}

impl Slot {
    /// Whether a write under this claim may be forwarded as far as the disk is concerned.
    pub fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// Whether the token is the settled watermark at this instant.
    pub fn passes(&mut self) -> bool {
        self.entrance.passes(self.claim.token)
    }

    /// A permit, if it is.
    pub fn permit(&mut self) -> Result<Permit, NotNow> {
        self.entrance.permit(self.claim.token)
    }

    /// The gate with what is kept beside it.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }
}

/// The settled claims of one connection.
#[derive(Default)]
pub struct Slots {
    slots: Vec<Slot>,
    /// Locks whose row for this session is on disk.
    recorded: HashSet<LockName>,
    /// Every lock that was ever kept.
    held: HashSet<LockName>,
}

impl Slots {
    /// The slot of a claim.
    pub fn find(&mut self, claim: &Claim) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.claim == *claim)
    }

    /// Whether a write under this lock may be forwarded as far as the disk is concerned.
    pub fn is_recorded(&self, lock: &LockName) -> bool {
        self.recorded.contains(lock)
    }

    /// Every lock that was ever kept.
    pub fn take_held(&mut self) -> impl Iterator<Item = LockName> {
        std::mem::take(&mut self.held).into_iter()
    }

    /// Keeps a claim that was settled. `recorded`: its row is on disk.
    pub fn keep(&mut self, claim: Claim, entry: Arc<Entry>, recorded: bool) {
        if recorded {
            self.recorded.insert(claim.lock.clone());
        }
        self.held.insert(claim.lock.clone());
        if self.slots.len() >= SLOTS_MAX {
            self.slots.clear();
        }
        self.slots.retain(|slot| slot.claim.lock != claim.lock);
        let entrance = entry.gate().entrance();
        let recorded = self.is_recorded(&claim.lock);
        self.slots.push(Slot {
            claim,
            entrance,
            entry,
            recorded,
        });
    }
}
