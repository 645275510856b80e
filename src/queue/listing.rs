//! What the mirror tells operators: holders, lengths of queues, pages of locks. As fresh as the
//! watch, not linearizable.

use std::ops::Bound;

use super::{Lock, Mirror, Place};
use crate::lock_name::LockName;
use crate::token::Token;

/// A lock's holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// The lock.
    pub lock: LockName,
    /// The lowest token of its queue.
    pub token: Token,
    /// What stands there.
    pub place: Place,
    /// How many stand behind it.
    pub waiters: usize,
}

/// A page of held locks, by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The locks.
    pub locks: Vec<Held>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

impl Mirror {
    /// The holder of a lock.
    pub fn holder(&self, lock: &LockName) -> Option<Held> {
        self.locks
            .get_key_value(lock)
            .and_then(|(name, record)| held(name, record))
    }

    /// How many entries the queue of a lock has.
    pub fn queue_length(&self, lock: &LockName) -> usize {
        self.locks
            .get(lock)
            .map_or(0, |record| record.entries.len())
    }

    /// How many locks have a record: held, or waited for.
    pub fn locks_known(&self) -> usize {
        self.locks.len()
    }

    /// The held locks whose names begin with `prefix`, behind the name `after`.
    pub fn list(&self, prefix: &str, after: &str, limit: usize) -> Page {
        let from = if after >= prefix && !after.is_empty() {
            Bound::Excluded(after)
        } else {
            Bound::Included(prefix)
        };
        let mut page = Page {
            locks: Vec::new(),
            more: false,
        };
        for (name, record) in self.locks.range::<str, _>((from, Bound::Unbounded)) {
            if !name.as_str().starts_with(prefix) {
                break;
            }
            let Some(held) = held(name, record) else {
                continue;
            };
            if page.locks.len() == limit {
                page.more = true;
                break;
            }
            page.locks.push(held);
        }
        page
    }
}

fn held(name: &LockName, record: &Lock) -> Option<Held> {
    let (token, place) = record.entries.first_key_value()?;
    let waiters = record.entries.len() - 1;
    Some(Held {
        lock: name.clone(),
        token: *token,
        place: place.clone(),
        waiters,
    })
}
