//! The gate that a connection used last: most requests of a connection are about one lock, and find
//! its gate here without the map.
//!
//! Invariant: it admits nobody that the gate would not. A gate that was retired since has its epoch
//! closed, and the map is asked again.

use std::sync::Arc;
use std::time::Duration;

use super::{Claim, Entry};
use crate::gate::{Entrance, Permit};

/// What is remembered.
#[derive(Default)]
pub struct LastGate(Option<(Arc<Entry>, Entrance)>);

impl LastGate {
    pub(super) fn remember(&mut self, entry: &Arc<Entry>) {
        self.0 = Some((Arc::clone(entry), entry.gate.entrance()));
    }

    /// A permit, if the claim is for this gate and settled there, and its lock is marked for the
    /// hold.
    pub(super) fn permit(&mut self, claim: &Claim, hold: Duration) -> Option<(Permit, Arc<Entry>)> {
        let (entry, entrance) = self.of(claim)?;
        if !entry.has_hold(hold) {
            return None;
        }
        Some((entrance.permit(claim.token).ok()?, Arc::clone(entry)))
    }

    /// Whether the claim is for this gate and settled there.
    pub(super) fn is_settled(&mut self, claim: &Claim) -> bool {
        let Some((entry, entrance)) = self.of(claim) else {
            return false;
        };
        let settled = entrance.permit(claim.token).is_ok();
        if settled {
            entry.touch();
        }
        settled
    }

    fn of(&mut self, claim: &Claim) -> Option<&mut (Arc<Entry>, Entrance)> {
        self.0.as_mut().filter(|(entry, _)| {
            entry.unsigned == claim.unsigned && *entry.gate.lock() == claim.lock
        })
    }
}
