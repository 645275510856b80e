//! The rules of a lock's queue over a mirrored view of the store: who holds, who waits, whom to
//! wake. Pure: an input goes in, what changed comes out.
//!
//! **Duty.** A [`Mirror`] is fed every change of the store, in the store's own order, and with what
//! single replies of the store tell earlier than the watch does. It says of each waiting call when
//! its entry has become the first of its lock, and when it is gone.
//!
//! **Left to others.** Reading the store, waking tasks, time, and everything about sessions: an
//! entry whose session ended is simply gone.
//!
//! **Invariants** ([`Mirror::check_invariants`]):
//! - The holder of a lock is its entry with the lowest token.
//! - The first token of a lock only grows (tokens never fall, entries are only appended), so
//!   whatever says "this token is first" may be merged by taking the highest.
//! - A lock that was handed over ([`Mirror::hand_over`]) has its next entry as the first while the
//!   one before still stands.
//! - A wait is opened *before* its entry is written. Its lock's record stays while the wait is
//!   open, so the mirror can always tell "not seen yet" from "seen, and gone since" by the highest
//!   token seen; after a restart of the watch, where it can't, it says so ([`Verdict::Unknown`]).
//! - A wait is reported once for each change of its verdict, and never goes back from first to
//!   waiting.

mod handover;
mod listing;
mod wait;

pub use listing::{Held, Page};
pub use wait::{Verdict, WaitId};

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::lock_name::LockName;
use crate::token::Token;
use wait::Wait;

/// What stands at one token of a lock's queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The session whose end removes the entry.
    pub session: u64,
    /// Free text for operators.
    pub holder: Arc<str>,
    /// Written by a client of the store that is not ringfence.
    pub foreign: bool,
    /// Its session, once it has asked for the release, is never told this token again.
    pub may_hand_over: bool,
}

/// A change in the store, in its own order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// What follows up to [`Event::Synced`] is everything that exists; what is not among it is
    /// gone.
    Reset,
    /// The whole state since [`Event::Reset`] has been sent.
    Synced,
    /// An entry was created or rewritten.
    Put {
        /// The lock.
        lock: LockName,
        /// The entry's token.
        token: Token,
        /// What stands there.
        place: Place,
    },
    /// An entry is gone.
    Gone {
        /// The lock.
        lock: LockName,
        /// The token that it had.
        token: Token,
    },
}

/// What an input changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Waits whose verdict changed, each once.
    pub woken: Vec<WaitId>,
    /// Locks whose holder is another one now, or nobody.
    pub holders: Vec<LockName>,
}

/// The queues of all locks as the watch told them, and the waits of this process.
#[derive(Default)]
pub struct Mirror {
    locks: BTreeMap<LockName, Lock>,
    waits: HashMap<WaitId, Wait>,
    waits_opened: u64,
    /// The state being received between [`Event::Reset`] and [`Event::Synced`].
    incoming: Option<BTreeMap<LockName, BTreeMap<Token, Place>>>,
    synced: bool,
}

/// The record of a lock: exists while it has entries or open waits.
#[derive(Default)]
struct Lock {
    entries: BTreeMap<Token, Place>,
    /// The highest token that the watch has put here while this record existed.
    highest: Option<Token>,
    /// The highest token known to have been the first, or that the lock was handed over to. What is
    /// below it is gone, or about to go.
    first: Option<Token>,
    /// Entries that were handed over and still stand.
    handed_over: BTreeSet<Token>,
    /// Waits whose entry is written, by its token.
    standing: BTreeMap<Token, Vec<WaitId>>,
    /// Waits that are open, standing or not.
    open: usize,
}

impl Mirror {
    /// An empty mirror, not yet synced.
    pub fn new() -> Mirror {
        Mirror::default()
    }

    /// Whether the whole state of the store has been received at least once.
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// Takes the next change of the watch.
    pub fn apply(&mut self, event: Event) -> Changes {
        let mut changes = Changes::default();
        match (event, self.incoming.is_some()) {
            (Event::Reset, _) => {
                self.incoming = Some(BTreeMap::new());
                self.doubt_calls_in_progress();
            }
            (Event::Synced, _) => self.resync(&mut changes),
            (Event::Put { lock, token, place }, false) => {
                self.put(lock, token, place, &mut changes);
            }
            (Event::Gone { lock, token }, false) => self.gone(lock, token, &mut changes),
            (Event::Put { lock, token, place }, true) => {
                let incoming = self.incoming.get_or_insert_default();
                incoming.entry(lock).or_default().insert(token, place);
            }
            (Event::Gone { lock, token }, true) => {
                let incoming = self.incoming.get_or_insert_default();
                if let Some(entries) = incoming.get_mut(&lock) {
                    entries.remove(&token);
                }
            }
        }
        changes
    }

    fn put(&mut self, name: LockName, token: Token, place: Place, changes: &mut Changes) {
        let lock = self.locks.entry(name.clone()).or_default();
        let holder_before = lock.holder();
        let highest_before = lock.highest;
        lock.entries.insert(token, place);
        lock.highest = lock.highest.max(Some(token));
        lock.first = lock.first.max(lock.holder());
        let holder_changed = lock.holder() != holder_before;
        // Entries come in the order of their tokens: whoever stands between the highest seen
        // before and this one was put and gone while the watch was away.
        if lock.highest != highest_before {
            let from = highest_before.unwrap_or(Token::MIN);
            judge_standing(lock, &mut self.waits, from..=token, changes);
        }
        if holder_changed {
            changes.holders.push(name);
        }
    }

    fn gone(&mut self, name: LockName, token: Token, changes: &mut Changes) {
        let Some(lock) = self.locks.get_mut(&name) else {
            return;
        };
        let holder_before = lock.holder();
        if lock.entries.remove(&token).is_none() {
            return;
        }
        lock.handed_over.remove(&token);
        judge_standing(lock, &mut self.waits, token..=token, changes);
        let (holder, head) = (lock.holder(), lock.head());
        if holder != holder_before {
            if let Some(next) = head {
                self.raise_first(&name, next, changes);
            }
            changes.holders.push(name.clone());
        }
        self.forget_if_unused(&name);
    }

    /// A reply of the store said that this token is the first of its lock (the `next` of a
    /// removal): its waiter is woken before the watch tells the same.
    pub fn first_is(&mut self, name: &LockName, token: Token) -> Changes {
        let mut changes = Changes::default();
        self.raise_first(name, token, &mut changes);
        changes
    }

    fn raise_first(&mut self, name: &LockName, token: Token, changes: &mut Changes) {
        // Without a record nobody waits here.
        let Some(lock) = self.locks.get_mut(name) else {
            return;
        };
        if lock.first.is_none_or(|first| first < token) {
            lock.first = Some(token);
        }
        judge_standing(lock, &mut self.waits, Token::MIN..=token, changes);
    }

    /// A wait that was open while the watch restarted may have missed its own entry come and go.
    fn doubt_calls_in_progress(&mut self) {
        for wait in self.waits.values_mut().filter(|wait| wait.token.is_none()) {
            wait.certain = false;
        }
    }

    fn resync(&mut self, changes: &mut Changes) {
        let Some(mut incoming) = self.incoming.take() else {
            return;
        };
        self.synced = true;
        for name in self.locks.keys() {
            incoming.entry(name.clone()).or_default();
        }
        for (name, entries) in incoming {
            let lock = self.locks.entry(name.clone()).or_default();
            let holder_before = lock.holder();
            let highest_before = lock.highest;
            lock.entries = entries;
            lock.handed_over
                .retain(|token| lock.entries.contains_key(token));
            // Both start again: a store restored from a backup would else be judged by tokens of
            // the time after the backup.
            lock.highest = lock.entries.last_key_value().map(|(token, _)| *token);
            lock.first = lock.head();
            let holder_changed = lock.holder() != holder_before;
            settle_after_resync(lock, &mut self.waits, highest_before, changes);
            if holder_changed {
                changes.holders.push(name.clone());
            }
            self.forget_if_unused(&name);
        }
    }

    fn forget_if_unused(&mut self, name: &LockName) {
        if self.locks.get(name).is_some_and(Lock::is_unused) {
            self.locks.remove(name);
        }
    }

    /// Panics where an invariant of this module is broken. For simulations and debug builds.
    pub fn check_invariants(&self) {
        let mut open = 0;
        for (name, lock) in &self.locks {
            assert!(!lock.is_unused(), "{name}: an unused record was kept");
            let last = lock.entries.last_key_value().map(|(token, _)| *token);
            assert!(
                last <= lock.highest,
                "{name}: an entry above the highest token seen"
            );
            assert!(
                lock.holder() <= lock.first,
                "{name}: the holder is above the first token"
            );
            for token in &lock.handed_over {
                assert!(
                    lock.entries.contains_key(token) && Some(*token) < lock.first,
                    "{name}: {token} was handed over"
                );
            }
            for (token, ids) in &lock.standing {
                assert!(!ids.is_empty(), "{name}: an empty list of waits at {token}");
                for id in ids {
                    let wait = &self.waits[id];
                    assert_eq!(wait.token, Some(*token), "{name}: {id:?} stands elsewhere");
                    assert_eq!(wait.lock, *name, "{name}: {id:?} is of another lock");
                    if wait.verdict == Verdict::Waiting {
                        assert_eq!(lock.judge(*token), None, "{name}: {id:?} was not woken");
                    }
                }
            }
            open += lock.open;
        }
        assert_eq!(open, self.waits.len(), "open waits are miscounted");
    }
}

impl Lock {
    fn holder(&self) -> Option<Token> {
        self.entries.first_key_value().map(|(token, _)| *token)
    }

    fn is_unused(&self) -> bool {
        self.entries.is_empty() && self.open == 0
    }

    /// What is known of the entry with this token: `None` while it waits or was not seen yet.
    fn judge(&self, token: Token) -> Option<Verdict> {
        let stands = self.entries.contains_key(&token);
        let was_seen = self.highest.is_some_and(|highest| token <= highest);
        if self.first.is_some_and(|first| token < first) || (was_seen && !stands) {
            return Some(Verdict::Gone);
        }
        (self.first == Some(token)).then_some(Verdict::First)
    }
}

/// Looks again at the waits that stand at these tokens and reports those whose verdict changed.
fn judge_standing(
    lock: &Lock,
    waits: &mut HashMap<WaitId, Wait>,
    tokens: std::ops::RangeInclusive<Token>,
    changes: &mut Changes,
) {
    for (token, ids) in lock.standing.range(tokens) {
        let Some(verdict) = lock.judge(*token) else {
            continue;
        };
        for id in ids {
            if waits.get_mut(id).is_some_and(|wait| wait.become_(verdict)) {
                changes.woken.push(*id);
            }
        }
    }
}

/// After the whole state was received: who stands in it is judged as ever; who does not and had
/// been seen before is gone; of the others the mirror cannot know whether the state was read
/// before their entry was written or after it had gone.
fn settle_after_resync(
    lock: &Lock,
    waits: &mut HashMap<WaitId, Wait>,
    highest_before: Option<Token>,
    changes: &mut Changes,
) {
    for (token, ids) in &lock.standing {
        let verdict = match lock.judge(*token) {
            Some(verdict) => verdict,
            None if lock.entries.contains_key(token) => Verdict::Waiting,
            None if highest_before.is_some_and(|highest| *token <= highest) => Verdict::Gone,
            None => Verdict::Unknown,
        };
        for id in ids {
            let Some(wait) = waits.get_mut(id) else {
                continue;
            };
            wait.certain &= verdict != Verdict::Unknown;
            if wait.become_(verdict) {
                changes.woken.push(*id);
            }
        }
    }
}
