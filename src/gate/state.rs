//! The part of the gate that changes rarely: raises, seals, closes, doubts. Plain data and pure
//! functions; [`super::handle`] puts it under a mutex.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use super::epoch::Epoch;
use super::waiters::Waiters;
use crate::token::Token;

/// What a store kept about a lock, and what a crashed run may have left at the backend.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    /// The lowest admissible token; 0 for a lock that never had one.
    pub floor: u64,
    /// The highest token that was ever being raised to; 0 for none.
    pub watermark: u64,
    /// Tokens at which writes may still be applied. Each entry needs one
    /// [`Gate::resolve_doubt`](super::Gate::resolve_doubt).
    pub in_doubt: Vec<u64>,
}

/// What must be on disk. Written in the order in which it was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// The lowest admissible token.
    pub floor: u64,
    /// The highest token that has been raised to.
    pub watermark: u64,
    /// Nothing below the floor was in flight or in doubt any more when the record was taken. If
    /// it was not drained, a crashed run may have left writes below the floor at the backend.
    pub drained: bool,
}

/// How a presentation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presented {
    /// The watermark is the token, durable, and nothing older can be applied any more. For a
    /// close: the floor is above the token and nothing below it can be applied any more.
    Settled,
    /// The token is below the floor. It raised nothing.
    Stale {
        /// The watermark of the lock.
        watermark: u64,
        /// The floor of the lock.
        floor: u64,
    },
    /// The record could not be made durable. Nothing was admitted; the raise stays.
    NotDurable,
    /// The gate has left memory: look the lock up again.
    Retired,
    /// The gate admits nobody any more.
    Ended,
}

#[derive(Debug, Default)]
struct Persist {
    /// The last record that is known to be durable.
    durable: Option<Record>,
    running: Option<Record>,
    /// A record should be taken.
    wanted: bool,
    failures: u64,
}

pub(super) struct State {
    floor: u64,
    watermark: u64,
    settled: bool,
    retired: bool,
    ended: bool,
    persist: Persist,
    /// Closed epochs that had permits in flight when they were closed.
    draining: Vec<Arc<Epoch>>,
    /// Writes in doubt, by token.
    doubts: BTreeMap<u64, u32>,
    waiters: Waiters,
}

/// What the handle must do after a change, outside of the state.
pub(super) enum Effect {
    None,
    /// The current epoch is to be replaced by an open one for the watermark.
    Open(u64),
}

impl State {
    pub(super) fn new(recovered: &Recovered) -> State {
        let mut doubts = BTreeMap::new();
        for token in &recovered.in_doubt {
            *doubts.entry(*token).or_insert(0) += 1;
        }
        State {
            floor: recovered.floor,
            watermark: recovered.watermark,
            settled: false,
            retired: false,
            ended: false,
            persist: Persist::default(),
            draining: Vec::new(),
            doubts,
            waiters: Waiters::default(),
        }
    }

    pub(super) fn failures(&self) -> u64 {
        self.persist.failures
    }

    pub(super) fn numbers(&self) -> (u64, u64, bool) {
        (self.floor, self.watermark, self.settled)
    }

    pub(super) fn in_doubt(&self) -> u64 {
        self.doubts.values().map(|count| u64::from(*count)).sum()
    }

    pub(super) fn draining(&self) -> u64 {
        self.draining
            .iter()
            .map(|epoch| epoch.word.in_flight())
            .sum()
    }

    pub(super) fn waiting(&self) -> u64 {
        self.waiters.len() as u64
    }

    /// The first look of a presentation. `fresh`: its own first, so that a failed persist is tried
    /// again for it.
    pub(super) fn look(
        &mut self,
        token: Token,
        current: &Arc<Epoch>,
        fresh: bool,
    ) -> Option<Presented> {
        let token = token.get();
        if self.retired {
            return Some(Presented::Retired);
        }
        if self.ended {
            return Some(Presented::Ended);
        }
        if token < self.floor {
            return Some(Presented::Stale {
                watermark: self.watermark,
                floor: self.floor,
            });
        }
        if token > self.watermark {
            self.raise(token, token, current);
        } else if self.settled {
            return Some(Presented::Settled);
        }
        self.want_durable(fresh);
        None
    }

    /// The same for a close.
    pub(super) fn look_close(
        &mut self,
        token: Token,
        current: &Arc<Epoch>,
        fresh: bool,
    ) -> Option<Presented> {
        if self.retired {
            return Some(Presented::Retired);
        }
        if self.ended {
            return Some(Presented::Ended);
        }
        let floor = token.get() + 1;
        if floor > self.floor {
            self.raise(floor, self.watermark.max(token.get()), current);
        } else if self.settled {
            return Some(Presented::Settled);
        }
        self.want_durable(fresh);
        None
    }

    /// Older tokens are stale from here on; their permits are revoked and awaited.
    fn raise(&mut self, floor: u64, watermark: u64, current: &Arc<Epoch>) {
        self.floor = floor;
        self.watermark = watermark;
        self.settled = false;
        self.persist.wanted = true;
        if current.close() > 0 && !self.draining.iter().any(|old| Arc::ptr_eq(old, current)) {
            self.draining.push(Arc::clone(current));
        }
        // The superseded learn that they are stale, whether they waited or not.
        self.wake_waiters();
    }

    /// Revokes what is not released, and admits nobody any more. The floor and the watermark stay.
    pub(super) fn end(&mut self, current: &Arc<Epoch>) {
        self.ended = true;
        self.settled = false;
        if current.close() > 0 && !self.draining.iter().any(|old| Arc::ptr_eq(old, current)) {
            self.draining.push(Arc::clone(current));
        }
        self.wake_waiters();
    }

    fn want_durable(&mut self, fresh: bool) {
        if fresh && !self.is_durable() && self.persist.running.is_none() {
            self.persist.wanted = true;
        }
    }

    fn is_durable(&self) -> bool {
        let durable = self.persist.durable.as_ref();
        durable.is_some_and(|it| it.floor == self.floor && it.watermark == self.watermark)
    }

    fn is_drained(&mut self) -> bool {
        self.draining.retain(|epoch| epoch.word.in_flight() > 0);
        self.draining.is_empty() && self.doubts.range(..self.floor).next().is_none()
    }

    pub(super) fn take_persist(&mut self) -> Option<Record> {
        if !self.persist.wanted || self.persist.running.is_some() || self.retired {
            return None;
        }
        let drained = self.is_drained();
        let record = Record {
            floor: self.floor,
            watermark: self.watermark,
            drained,
        };
        self.persist.wanted = false;
        self.persist.running = Some(record);
        Some(record)
    }

    pub(super) fn persisted(&mut self, record: Record, durable: bool) -> Effect {
        assert_eq!(
            self.persist.running,
            Some(record),
            "a record was answered that was not taken"
        );
        self.persist.running = None;
        if durable {
            self.persist.durable = Some(record);
        } else if !self.settled {
            self.persist.failures += 1;
            self.wake_waiters();
        }
        if durable && !self.is_durable() {
            // A raise came while an older record was being written.
            self.persist.wanted = true;
        }
        self.try_settle()
    }

    /// Settles if it can be. Called after everything that may have been the last obstacle.
    pub(super) fn try_settle(&mut self) -> Effect {
        if self.settled || self.retired || self.ended || !self.is_durable() || !self.is_drained() {
            return Effect::None;
        }
        self.settled = true;
        if self.persist.durable.is_some_and(|record| !record.drained) {
            // Lazily: without it, a crash would only make the next run wait.
            self.persist.wanted = true;
        }
        self.wake_waiters();
        match self.watermark >= self.floor && self.watermark > 0 {
            true => Effect::Open(self.watermark),
            false => Effect::None,
        }
    }

    pub(super) fn add_doubt(&mut self, token: u64) {
        *self.doubts.entry(token).or_insert(0) += 1;
    }

    pub(super) fn resolve_doubt(&mut self, token: u64) {
        let count = self
            .doubts
            .get_mut(&token)
            .expect("a doubt was resolved that was not there");
        *count -= 1;
        if *count == 0 {
            self.doubts.remove(&token);
        }
    }

    pub(super) fn wait(&mut self, number: &mut Option<u64>, waker: &Waker) {
        self.waiters.wait(number, waker);
    }

    pub(super) fn forget(&mut self, number: u64) {
        self.waiters.forget(number);
    }

    fn wake_waiters(&mut self) {
        self.waiters.take().for_each(Waker::wake);
    }

    /// Whether the gate was idle and is retired now.
    pub(super) fn try_retire(&mut self, current: &Arc<Epoch>) -> bool {
        let quiet = self.settled
            && self.persist.running.is_none()
            && !self.persist.wanted
            && self.is_durable()
            && self.draining.is_empty()
            && self.doubts.is_empty()
            && self.waiters.is_empty();
        if !quiet || !current.word.close_if_idle() {
            return false;
        }
        self.retired = true;
        self.settled = false;
        true
    }

    /// Panics when an invariant of the module is broken: that guards fencing.
    pub(super) fn check_invariants(&self, current: &Epoch) {
        assert!(
            self.watermark <= self.floor,
            "the floor is below the watermark"
        );
        let open = !current.word.is_closed();
        assert!(
            !open || self.settled,
            "an epoch is open while the gate is not settled"
        );
        assert!(
            !open || current.token == self.watermark,
            "an old epoch is open"
        );
        assert!(
            !open || current.token >= self.floor,
            "an epoch below the floor is open"
        );
        if self.settled {
            assert!(self.is_durable(), "settled without a durable record");
            assert!(
                self.doubts.range(..self.floor).next().is_none(),
                "settled over a doubt"
            );
        }
    }
}
