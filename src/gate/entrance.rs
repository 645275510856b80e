//! A gate found once and used for many writes: what a connection, or a core's cache, keeps.

use std::sync::Arc;

use super::epoch::Epoch;
use super::handle::{Gate, NotNow};
use super::permit::Permit;
use crate::token::Token;

/// A gate together with the epoch that was current when it was last used. An epoch never opens
/// again once it is closed, so a remembered one can admit nobody that the gate would not.
pub struct Entrance {
    gate: Arc<Gate>,
    epoch: Arc<Epoch>,
}

impl Entrance {
    pub(super) fn new(gate: Arc<Gate>, epoch: Arc<Epoch>) -> Entrance {
        Entrance { gate, epoch }
    }

    /// As [`Gate::permit`], without reading the shared pointer while the epoch is the same.
    pub fn permit(&mut self, token: Token) -> Result<Permit, NotNow> {
        if let Some(permit) = Permit::enter(&self.epoch, token) {
            return Ok(permit);
        }
        self.epoch = self.gate.current_epoch();
        Permit::enter(&self.epoch, token).ok_or(NotNow)
    }

    /// Whether the token equals the settled watermark at this instant: what a read needs.
    pub fn passes(&mut self, token: Token) -> bool {
        if self.epoch.admits(token) {
            return true;
        }
        self.epoch = self.gate.current_epoch();
        self.epoch.admits(token)
    }

    /// The gate behind it.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }
}
