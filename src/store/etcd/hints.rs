//! What this store believes of etcd: the entries that its watch has shown, and the marks that it
//! wrote itself. It makes transactions smaller and never decides anything: each transaction
//! compares or reads the one thing that it relies on, and a wrong belief costs a second one.
//!
//! The first entry of a lock is found by reading one key instead of all: entries only come behind
//! the others, so that the oldest one that was ever seen to be first *is* first while it exists.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use prost::bytes::Bytes;

use crate::lock_name::LockName;

/// Marks that are remembered. Past it all are forgotten, which costs each a second transaction.
const MARKS_MAX: usize = 65_536;

/// Entries that are read to learn who is first.
const CANDIDATES_MAX: usize = 2;

/// An entry that is believed to stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub key: Bytes,
    pub create_revision: i64,
}

/// What is believed of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Belief {
    /// The oldest entries, in their order, none between them.
    pub oldest: Vec<Candidate>,
    /// The youngest, if it is not among them.
    pub youngest: Option<Candidate>,
    /// When this was believed; `None`: no watch has told anything.
    pub at: Option<At>,
}

/// A moment of etcd: the connection ([`super::endpoints::Endpoints::timeline`]) and the revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    pub timeline: u64,
    pub revision: i64,
}

impl At {
    /// Whether the other moment is later, or on another connection: then it is the newer one.
    pub fn precedes(self, other: At) -> bool {
        self.timeline < other.timeline
            || (self.timeline == other.timeline && self.revision <= other.revision)
    }
}

impl Belief {
    /// Nobody stands there.
    pub fn is_empty(&self) -> bool {
        self.at.is_some() && self.oldest.is_empty()
    }

    /// Whether an answer of this moment may be read with it: the same process of etcd gave it, and
    /// not earlier.
    pub fn holds(&self, answered: At) -> bool {
        self.at
            .is_some_and(|at| at.timeline == answered.timeline && at.revision <= answered.revision)
    }
}

/// The entries by create revision, lock by lock.
pub type Queues = HashMap<LockName, BTreeMap<i64, Bytes>>;

/// The beliefs of one store.
#[derive(Default, Debug)]
pub struct Hints {
    queues: Mutex<Option<Seen>>,
    marks: Mutex<HashSet<(LockName, i64)>>,
    fed: AtomicBool,
}

#[derive(Debug)]
struct Seen {
    queues: Queues,
    at: At,
}

impl Hints {
    fn seen(&self) -> MutexGuard<'_, Option<Seen>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first watch tells what it sees; others only read for their own readers.
    pub fn begin_feeding(&self) -> bool {
        !self.fed.swap(true, Ordering::AcqRel)
    }

    /// The watch that told has ended.
    pub fn end_feeding(&self) {
        *self.seen() = None;
        self.fed.store(false, Ordering::Release);
    }

    /// Everything that exists, at once: half of it would make a later entry look like the first.
    pub fn replace(&self, queues: Queues, at: At) {
        *self.seen() = Some(Seen { queues, at });
    }

    /// The watch has lost its place.
    pub fn forget(&self) {
        *self.seen() = None;
    }

    pub fn put(&self, lock: &LockName, create_revision: i64, key: &Bytes, revision: i64) {
        if let Some(seen) = &mut *self.seen() {
            let queue = seen.queues.entry(lock.clone()).or_default();
            queue.insert(create_revision, key.clone());
            seen.at.revision = seen.at.revision.max(revision);
        }
    }

    pub fn gone(&self, lock: &LockName, create_revision: i64) {
        if let Some(seen) = &mut *self.seen()
            && let Some(queue) = seen.queues.get_mut(lock)
        {
            queue.remove(&create_revision);
            if queue.is_empty() {
                seen.queues.remove(lock);
            }
        }
    }

    /// Who is first in the lock, not counting the entry with this key.
    pub fn first(&self, lock: &LockName, except: Option<&Bytes>) -> Belief {
        let seen = self.seen();
        let Some(seen) = &*seen else {
            return Belief::default();
        };
        let queue = seen.queues.get(lock).into_iter().flatten();
        let mut queue =
            queue
                .filter(|(_, key)| except != Some(*key))
                .map(|(create_revision, key)| Candidate {
                    key: key.clone(),
                    create_revision: *create_revision,
                });
        Belief {
            oldest: queue.by_ref().take(CANDIDATES_MAX).collect(),
            youngest: queue.next_back(),
            at: Some(seen.at),
        }
    }

    /// Whether this session has a mark on this lock.
    pub fn is_marked(&self, lock: &LockName, lease: i64) -> bool {
        self.marks().contains(&(lock.clone(), lease))
    }

    pub fn note_mark(&self, lock: &LockName, lease: i64) {
        let mut marks = self.marks();
        if marks.len() >= MARKS_MAX {
            marks.clear();
        }
        marks.insert((lock.clone(), lease));
    }

    fn marks(&self) -> MutexGuard<'_, HashSet<(LockName, i64)>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(revision: i64) -> At {
        At {
            timeline: 1,
            revision,
        }
    }

    #[test]
    fn the_oldest_entries_are_first_until_they_are_gone() {
        let (hints, lock) = (Hints::default(), LockName::new("a").unwrap());
        let key = |number: i64| Bytes::from(format!("a/{number}"));
        hints.put(&lock, 5, &key(5), 5);
        assert_eq!(hints.first(&lock, None), Belief::default());
        assert!(hints.begin_feeding() && !hints.begin_feeding());
        hints.replace(Queues::new(), at(4));
        assert!(hints.first(&lock, None).is_empty());
        for created in [7, 8, 9, 5] {
            hints.put(&lock, created, &key(created), created);
        }
        let told = |except: Option<i64>| {
            let belief = hints.first(&lock, except.map(key).as_ref());
            let oldest: Vec<i64> = belief
                .oldest
                .iter()
                .map(|one| one.create_revision)
                .collect();
            (oldest, belief.youngest.map(|one| one.create_revision))
        };
        assert_eq!(hints.first(&lock, None).at, Some(at(9)));
        assert_eq!(told(None), (vec![5, 7], Some(9)));
        assert_eq!(told(Some(5)), (vec![7, 8], Some(9)));
        hints.gone(&lock, 5);
        hints.gone(&lock, 8);
        assert_eq!(told(None), (vec![7, 9], None));
        assert_eq!(told(Some(7)), (vec![9], None));
        hints.forget();
        assert_eq!(hints.first(&lock, None), Belief::default());
    }

    #[test]
    fn a_belief_serves_no_answer_of_an_earlier_moment_or_another_connection() {
        let belief = Belief {
            at: Some(at(9)),
            ..Belief::default()
        };
        assert!(belief.holds(at(9)) && belief.holds(at(10)) && !belief.holds(at(8)));
        assert!(!belief.holds(At {
            timeline: 2,
            revision: 10
        }));
        assert!(!Belief::default().holds(at(9)));
    }
}
