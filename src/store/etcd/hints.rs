//! What this store believes of etcd: the entries that its watch has shown, and the marks that it
//! wrote itself. It makes transactions smaller and never decides anything: each transaction
//! compares or reads the one thing that it relies on, and a wrong belief costs a second one.
//!
//! The first entry of a lock is found by reading one key instead of all: entries only come behind
//! the others, so that the oldest one that was ever seen to be first *is* first while it exists.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use prost::bytes::Bytes;

use crate::lock_name::LockName;

/// Marks that are remembered. Past it all are forgotten, which costs each a second transaction.
const MARKS_MAX: usize = 65_536;

/// Who is believed to be first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub key: Bytes,
    pub create_revision: i64,
    /// The revision of etcd at which it was believed. An etcd that is older was restored.
    pub seen_at: i64,
}

/// What is believed of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Belief {
    /// No watch has told anything.
    Nothing,
    /// Nobody stands there.
    Empty,
    First(Candidate),
}

impl Belief {
    pub fn candidate(&self) -> Option<&Candidate> {
        match self {
            Belief::First(candidate) => Some(candidate),
            _ => None,
        }
    }
}

/// The entries by create revision, lock by lock.
pub type Queues = HashMap<LockName, BTreeMap<i64, Bytes>>;

/// The beliefs of one store.
#[derive(Default, Debug)]
pub struct Hints {
    queues: Mutex<Option<Seen>>,
    marks: Mutex<HashMap<(LockName, i64), i64>>,
    fed: AtomicBool,
}

#[derive(Debug)]
struct Seen {
    queues: Queues,
    revision: i64,
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
    pub fn replace(&self, queues: Queues, revision: i64) {
        *self.seen() = Some(Seen { queues, revision });
    }

    /// The watch has lost its place.
    pub fn forget(&self) {
        *self.seen() = None;
    }

    pub fn put(&self, lock: &LockName, create_revision: i64, key: &Bytes, revision: i64) {
        if let Some(seen) = &mut *self.seen() {
            let queue = seen.queues.entry(lock.clone()).or_default();
            queue.insert(create_revision, key.clone());
            seen.revision = seen.revision.max(revision);
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
            return Belief::Nothing;
        };
        let mut queue = seen.queues.get(lock).into_iter().flatten();
        match queue.find(|(_, key)| except != Some(key)) {
            None => Belief::Empty,
            Some((create_revision, key)) => Belief::First(Candidate {
                key: key.clone(),
                create_revision: *create_revision,
                seen_at: seen.revision,
            }),
        }
    }

    /// The revision at which the mark of this session on this lock was written; 0 if it never was.
    pub fn mark(&self, lock: &LockName, lease: i64, attempt: u64) -> Option<i64> {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let known = marks.get(&(lock.clone(), lease)).copied();
        known.or_else(|| (attempt == 1).then_some(0))
    }

    pub fn note_mark(&self, lock: &LockName, lease: i64, revision: i64) {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        if marks.len() >= MARKS_MAX {
            marks.clear();
        }
        marks.insert((lock.clone(), lease), revision);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entry_is_first_until_it_is_gone() {
        let (hints, lock) = (Hints::default(), LockName::new("a").unwrap());
        let (old, young) = (Bytes::from("a/1"), Bytes::from("a/2"));
        hints.put(&lock, 5, &old, 5);
        assert_eq!(hints.first(&lock, None), Belief::Nothing);
        assert!(hints.begin_feeding() && !hints.begin_feeding());
        hints.replace(Queues::new(), 4);
        assert_eq!(hints.first(&lock, None), Belief::Empty);
        hints.put(&lock, 7, &young, 7);
        hints.put(&lock, 5, &old, 9);
        let first = |key: &Bytes, create_revision| {
            Belief::First(Candidate {
                key: key.clone(),
                create_revision,
                seen_at: 9,
            })
        };
        assert_eq!(hints.first(&lock, None), first(&old, 5));
        assert_eq!(hints.first(&lock, Some(&old)), first(&young, 7));
        hints.gone(&lock, 5);
        assert_eq!(hints.first(&lock, None), first(&young, 7));
        assert_eq!(hints.first(&lock, Some(&young)), Belief::Empty);
        hints.forget();
        assert_eq!(hints.first(&lock, None), Belief::Nothing);
    }

    #[test]
    fn a_first_attempt_has_no_mark_and_a_later_one_is_known_or_not() {
        let (hints, lock) = (Hints::default(), LockName::new("a").unwrap());
        assert_eq!(hints.mark(&lock, 1, 1), Some(0));
        assert_eq!(hints.mark(&lock, 1, 2), None);
        hints.note_mark(&lock, 1, 9);
        assert_eq!(hints.mark(&lock, 1, 2), Some(9));
        assert_eq!(hints.mark(&lock, 2, 2), None);
    }
}
