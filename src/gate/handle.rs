//! The gate as the shell sees it: a mutex around the state, and the current epoch beside it.

use std::sync::{Arc, Weak};
use std::task::Waker;

use super::entrance::Entrance;
use super::epoch::{Epoch, POISONED};
use super::permit::Permit;
use super::present::{Closing, Presentation};
use super::state::{Effect, Presented, Record, Recovered, State};
use super::sync::{Mutex, Swap};
use crate::lock_name::LockName;
use crate::token::Token;

/// The gate of one lock.
pub struct Gate {
    lock: LockName,
    me: Weak<Gate>,
    /// Replaced only with the mutex held; read without it.
    current: Swap<Epoch>,
    state: Mutex<State>,
}

/// The token does not equal a settled watermark at this instant: present it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotNow;

/// A look at a gate, for operators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// The lowest admissible token.
    pub floor: u64,
    /// The highest token that has been raised to; 0 for none.
    pub watermark: u64,
    /// Whether the watermark's holder is admitted at once.
    pub settled: bool,
    /// Permits in flight, of every token.
    pub in_flight: u64,
    /// Writes in doubt, of every token.
    pub in_doubt: u64,
    /// Presentations that wait.
    pub waiting: u64,
}

impl Gate {
    /// A gate as its store and the last run left it. It starts unsettled: the first presentation
    /// makes a record durable before it is admitted.
    pub fn new(lock: LockName, recovered: &Recovered) -> Arc<Gate> {
        Arc::new_cyclic(|me| Gate {
            lock,
            me: Weak::clone(me),
            current: Swap::new(Arc::new(Epoch::none(Weak::clone(me)))),
            state: Mutex::new(State::new(recovered)),
        })
    }

    /// The lock that it guards.
    pub fn lock(&self) -> &LockName {
        &self.lock
    }

    /// A permit, if the token equals the settled watermark. Takes no lock, allocates nothing,
    /// awaits nothing.
    pub fn permit(&self, token: Token) -> Result<Permit, NotNow> {
        Permit::enter(&self.current.load(), token).ok_or(NotNow)
    }

    /// The gate for one who will use it often.
    pub fn entrance(self: &Arc<Gate>) -> Entrance {
        Entrance::new(Arc::clone(self), self.current_epoch())
    }

    pub(super) fn current_epoch(&self) -> Arc<Epoch> {
        self.current.load()
    }

    /// Presents a token: resolves when it is settled or refused. The raise happens at the first
    /// poll and stays when the future is dropped.
    pub fn present(self: &Arc<Gate>, token: Token) -> Presentation {
        Presentation::new(Arc::clone(self), token)
    }

    /// Closes the lock to this token and everything below: resolves when that is durable and
    /// nothing of it can be applied any more.
    pub fn close(self: &Arc<Gate>, token: Token) -> Closing {
        Closing::new(Arc::clone(self), token)
    }

    /// The record to be made durable now, if any. Whoever takes it answers with
    /// [`Gate::persisted`], whatever happens.
    pub fn take_persist(&self) -> Option<Record> {
        self.change(|state, _| state.take_persist())
    }

    /// The record is on disk (`durable`), or could not be put there.
    ///
    /// # Panics
    /// If the record is not the one that was taken.
    pub fn persisted(&self, record: Record, durable: bool) {
        self.settle_after(|state| state.persisted(record, durable));
    }

    /// One write that was in doubt at this token is proven dead or finished.
    ///
    /// # Panics
    /// If nothing was in doubt at the token.
    pub fn resolve_doubt(&self, token: u64) {
        self.settle_after(|state| {
            state.resolve_doubt(token);
            state.try_settle()
        });
    }

    /// Retires the gate if it is settled and has nothing in flight, in doubt, being written or
    /// waiting. Then the caller has the lock marked clean in the store and forgets the gate.
    pub fn try_retire(&self) -> bool {
        self.change(|state, current| state.try_retire(current))
    }

    /// Revokes every permit that is not released, and admits nobody any more.
    pub fn end(&self) {
        self.change(|state, current| state.end(current));
    }

    /// A look at the gate, for operators.
    pub fn status(&self) -> Status {
        self.change(|state, current| {
            let (floor, watermark, settled) = state.numbers();
            let open = if current.word.is_closed() {
                0
            } else {
                current.word.in_flight()
            };
            Status {
                floor,
                watermark,
                settled,
                in_flight: open + state.draining(),
                in_doubt: state.in_doubt(),
                waiting: state.waiting(),
            }
        })
    }

    pub(super) fn add_doubt(&self, token: u64) {
        self.change(|state, _| state.add_doubt(token));
    }

    /// The last permit of a closed epoch has left.
    pub(super) fn drained(&self) {
        self.settle_after(|state| state.try_settle());
    }

    /// One look of a presentation or closing; `None`: the waker is called when to look again.
    pub(super) fn look(&self, look: &mut Look, waker: &Waker) -> Option<Presented> {
        let mut outcome = None;
        self.settle_after(|state| {
            outcome = look_at(state, &self.current.load(), look);
            let effect = match outcome {
                None => state.try_settle(),
                Some(_) => Effect::None,
            };
            if outcome.is_none() {
                outcome = look_at(state, &self.current.load(), look);
            }
            if outcome.is_none() {
                state.wait(&mut look.waiter, waker);
            }
            effect
        });
        outcome
    }

    pub(super) fn forget(&self, waiter: u64) {
        self.change(|state, _| state.forget(waiter));
    }

    fn settle_after(&self, change: impl FnOnce(&mut State) -> Effect) {
        self.change(|state, _| match change(state) {
            Effect::None => {}
            Effect::Open(token) => {
                self.current
                    .store(Arc::new(Epoch::open(token, Weak::clone(&self.me))));
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut State, &Arc<Epoch>) -> T) -> T {
        let mut state = self.state.lock().expect(POISONED);
        let result = change(&mut state, &self.current.load());
        if cfg!(debug_assertions) {
            state.check_invariants(&self.current.load());
        }
        result
    }
}

/// What a presentation or a closing remembers between two looks.
pub(super) struct Look {
    pub(super) token: Token,
    pub(super) close: bool,
    /// The count of failed persists at the first look: a later one concerns this presentation.
    pub(super) failures: Option<u64>,
    /// Its number among the gate's waiters.
    pub(super) waiter: Option<u64>,
    /// It was this one that raised the watermark to its token.
    pub(super) has_raised: bool,
}

fn look_at(state: &mut State, current: &Arc<Epoch>, look: &mut Look) -> Option<Presented> {
    let fresh = look.failures.is_none();
    let failures = *look.failures.get_or_insert(state.failures());
    let outcome = match look.close {
        false => {
            let (_, before, _) = state.numbers();
            let outcome = state.look(look.token, current, fresh);
            look.has_raised |= state.numbers().1 > before;
            outcome
        }
        true => state.look_close(look.token, current, fresh),
    };
    match outcome {
        None if state.failures() > failures => Some(Presented::NotDurable),
        outcome => outcome,
    }
}
