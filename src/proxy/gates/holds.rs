//! How long a write that nobody answers for may still be applied.

use std::time::Duration;

use crate::lock_name::{LockName, LockPattern};

/// How long writes may stay at the backends, by the locks that listeners guard.
#[derive(Clone, Debug, Default)]
pub struct Holds(Vec<(Vec<LockPattern>, Duration)>);

impl Holds {
    /// The patterns and the `in_doubt_hold` of each listener.
    pub fn new(listeners: Vec<(Vec<LockPattern>, Duration)>) -> Holds {
        Holds(listeners)
    }

    pub(super) fn of(&self, lock: &LockName) -> Duration {
        let named = |patterns: &[LockPattern]| patterns.iter().any(|it| it.matches(lock));
        let holds = self
            .0
            .iter()
            .filter(|(patterns, _)| named(patterns))
            .map(|(_, hold)| *hold);
        // A lock that no rule names can still be carried through any listener.
        holds.max().unwrap_or_else(|| self.longest())
    }

    pub(super) fn longest(&self) -> Duration {
        let holds = self.0.iter().map(|(_, hold)| *hold);
        holds.max().unwrap_or_default()
    }
}
