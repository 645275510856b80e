//! The gate of observe mode: it says what an enforcing gate would refuse, and never delays,
//! aborts or refuses anything.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::token::Token;

/// The highest token seen on a lock in observe mode.
///
/// Orderings are relaxed: nothing is guarded by it.
#[derive(Default)]
pub struct ShadowGate(AtomicU64);

impl ShadowGate {
    /// Notes the token. `Some(watermark)`: an enforcing gate would have refused it as stale.
    pub fn observe(&self, token: Token) -> Option<u64> {
        let before = self.0.fetch_max(token.get(), Ordering::Relaxed);
        (before > token.get()).then_some(before)
    }
}
