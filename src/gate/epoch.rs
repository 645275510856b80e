//! One settled watermark: the permits that were admitted under it.

use std::sync::Weak;
use std::task::Waker;

use super::handle::Gate;
use super::sync::Mutex;
use super::waiters::Waiters;
use super::word::Word;
use crate::token::Token;

/// An epoch is made open when the gate settles and is closed once, by a raise, a close or a
/// retirement. It never opens again: the next settling makes a new one.
pub(super) struct Epoch {
    pub(super) token: u64,
    pub(super) word: Word,
    /// Upgraded off the hot path only, by the last permit that leaves and by doubts.
    pub(super) gate: Weak<Gate>,
    /// Sessions that wait to be told that they are revoked.
    revocations: Mutex<Waiters>,
}

impl Epoch {
    pub(super) fn open(token: u64, gate: Weak<Gate>) -> Epoch {
        Epoch {
            token,
            word: Word::open(),
            gate,
            revocations: Mutex::new(Waiters::default()),
        }
    }

    /// Stands where no epoch has been opened yet.
    pub(super) fn none(gate: Weak<Gate>) -> Epoch {
        Epoch {
            token: 0,
            word: Word::closed(),
            gate,
            revocations: Mutex::new(Waiters::default()),
        }
    }

    /// Whether a permit for this token could be had now.
    pub(super) fn admits(&self, token: Token) -> bool {
        self.token == token.get() && !self.word.is_closed()
    }

    /// Closes the word and wakes the sessions to be revoked. Returns the permits in flight.
    pub(super) fn close(&self) -> u64 {
        let in_flight = self.word.close();
        // Woken after the mutex is free: a woken task may drop its permit at once.
        let wakers = self.revocations.lock().expect(POISONED).take();
        wakers.for_each(Waker::wake);
        in_flight
    }

    /// Whether the epoch is closed; if not, the waker is called when it is.
    pub(super) fn closed_or_wake(&self, number: &mut Option<u64>, waker: &Waker) -> bool {
        if self.word.is_closed() {
            return true;
        }
        self.revocations.lock().expect(POISONED).wait(number, waker);
        // The word may have closed, and the list been taken, before the waker was on it.
        self.word.is_closed()
    }

    /// Takes back what [`closed_or_wake`](Epoch::closed_or_wake) left.
    pub(super) fn forget(&self, number: u64) {
        self.revocations.lock().expect(POISONED).forget(number);
    }
}

pub(super) const POISONED: &str = "a thread panicked while it held a gate's mutex";
