//! Jittered exponential back-off between tries.

use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

/// First pause, before jitter.
const PAUSE_MIN: Duration = Duration::from_millis(25);
/// Longest pause, before jitter.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The pauses of one series of tries. Each is drawn from the upper half of a range that doubles, so
/// that clients that lost the same server do not come back in step.
#[derive(Debug)]
pub(super) struct Backoff {
    ceiling: Duration,
}

impl Backoff {
    pub(super) fn new() -> Backoff {
        Backoff { ceiling: PAUSE_MIN }
    }

    /// The next pause.
    pub(super) fn pause(&mut self) -> Duration {
        let ceiling = self.ceiling;
        self.ceiling = (ceiling * 2).min(PAUSE_MAX);
        let half = ceiling / 2;
        half + half.mul_f64(random_fraction())
    }
}

/// A number in 0..1. The standard library seeds each hasher's keys from the system: good enough for
/// jitter, and no generator needs to be carried along.
fn random_fraction() -> f64 {
    let bits = std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish();
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_differ() {
        let mut backoff = Backoff::new();
        let pauses: Vec<_> = (0..20).map(|_| backoff.pause()).collect();
        assert!(pauses[0] >= PAUSE_MIN / 2 && pauses[0] <= PAUSE_MIN);
        assert!(pauses.iter().all(|pause| *pause <= PAUSE_MAX));
        assert!(pauses[19] >= PAUSE_MAX / 2);
        assert!(pauses[10..].windows(2).any(|two| two[0] != two[1]));
    }
}
