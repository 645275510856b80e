//! The one atomic word of an epoch: a closed bit and three counts of permits, by stage.
//!
//! Every step of a permit and the closing of the epoch are read-modify-writes of this word, so they
//! have one total order: a step that comes after the closing fails, and the closing sees every
//! step that came before it. Whoever takes the last count out of a closed word is told so, exactly
//! once, by the value that its subtraction returned.
//!
//! Orderings: a step is `AcqRel`, so that what a permit's holder did (forwarding bytes, seeing the
//! reply) happens before the drain that its subtraction completes.

use std::sync::atomic::Ordering;

use super::sync::AtomicU64;

const CLOSED: u64 = 1 << 63;
const COUNT_BITS: u32 = 21;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const ADMITTED: u64 = 1;
const FORWARDED: u64 = 1 << COUNT_BITS;
const RELEASED: u64 = 1 << (2 * COUNT_BITS);

/// Where a permit stands (CONTRACT, "The gate").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Nothing has left the proxy.
    Admitted,
    /// A byte has left; what is held back still decides.
    Forwarded,
    /// The bytes that can make the write take effect may have left.
    Released,
}

impl Stage {
    fn unit(self) -> u64 {
        match self {
            Stage::Admitted => ADMITTED,
            Stage::Forwarded => FORWARDED,
            Stage::Released => RELEASED,
        }
    }
}

/// The epoch is closed (or, for entering, full): look again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Closed;

pub(super) struct Word(AtomicU64);

impl Word {
    pub(super) fn open() -> Word {
        Word(AtomicU64::new(0))
    }

    pub(super) fn closed() -> Word {
        Word(AtomicU64::new(CLOSED))
    }

    /// Counts a new permit in.
    pub(super) fn enter(&self) -> Result<(), Closed> {
        self.step(|word| {
            if in_flight(word) < COUNT_MAX {
                Some(word + ADMITTED)
            } else {
                None
            }
        })
    }

    /// Moves a permit from one stage to a later one.
    pub(super) fn advance(&self, from: Stage, to: Stage) -> Result<(), Closed> {
        self.step(|word| Some(word - from.unit() + to.unit()))
    }

    /// Counts a permit out. True: the word is closed and this was the last.
    pub(super) fn leave(&self, stage: Stage) -> bool {
        let before = self.0.fetch_sub(stage.unit(), Ordering::AcqRel);
        debug_assert!(
            count(before, stage) > 0,
            "a permit left that had not entered"
        );
        before & CLOSED != 0 && in_flight(before) == 1
    }

    /// Closes the word. Returns how many permits are in flight: with 0 it is drained already, and
    /// no [`leave`](Word::leave) will say so.
    pub(super) fn close(&self) -> u64 {
        in_flight(self.0.fetch_or(CLOSED, Ordering::AcqRel))
    }

    /// Closes the word only if no permit is in flight.
    pub(super) fn close_if_idle(&self) -> bool {
        let free = self
            .0
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire);
        free.is_ok() || free == Err(CLOSED)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSED != 0
    }

    pub(super) fn in_flight(&self) -> u64 {
        in_flight(self.0.load(Ordering::Acquire))
    }

    fn step(&self, next: impl Fn(u64) -> Option<u64>) -> Result<(), Closed> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if word & CLOSED != 0 {
                return Err(Closed);
            }
            let wanted = next(word).ok_or(Closed)?;
            let swap =
                self.0
                    .compare_exchange_weak(word, wanted, Ordering::AcqRel, Ordering::Relaxed);
            match swap {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
    }
}

fn count(word: u64, stage: Stage) -> u64 {
    (word / stage.unit()) & COUNT_MAX
}

fn in_flight(word: u64) -> u64 {
    count(word, Stage::Admitted) + count(word, Stage::Forwarded) + count(word, Stage::Released)
}
