//! The gates of observe mode.

use dashmap::DashMap;

use crate::gate::ShadowGate;
use crate::lock_name::LockName;
use crate::token::Token;

/// Most locks that are observed; beyond it all are forgotten and observed anew.
pub const SHADOWS_MAX: usize = 100_000;

/// The highest token seen per lock, in memory only.
#[derive(Default)]
pub struct Shadows(DashMap<LockName, ShadowGate>);

impl Shadows {
    /// Notes the token. `Some(watermark)`: an enforcing gate would have refused it as stale.
    pub fn observe(&self, lock: &LockName, token: Token) -> Option<u64> {
        if let Some(shadow) = self.0.get(lock) {
            return shadow.observe(token);
        }
        if self.0.len() >= SHADOWS_MAX {
            self.0.clear();
        }
        self.0.entry(lock.clone()).or_default().observe(token)
    }
}
