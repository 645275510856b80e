//! What etcd answered to the transactions of `txn`, read: pure.

use super::generation::Generations;
use super::hints::{At, Belief, Candidate};
use super::layout::{Claim, Layout, parse_attempt};
use super::message::{nested, odd, range};
use crate::etcd_proto::etcdserverpb::{RangeResponse, TxnResponse};
use crate::etcd_proto::mvccpb::KeyValue;
use crate::lock_name::LockName;
use crate::store::{Enqueue, Entry, StoreError};

/// The oldest entry of a lock, if what was read tells it.
#[derive(Debug, PartialEq, Eq)]
pub enum First {
    Entry(Entry),
    /// Nothing below the lock is an entry.
    None,
    /// What was read is no entry (any more), and there are more keys.
    Unknown,
}

/// What became of an enqueue.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Standing {
        entry: Entry,
        first: First,
    },
    /// Only-if-first, and there are keys below the lock.
    Occupied {
        first: First,
    },
    /// The session stands already, by another attempt, or it is to be decided by who is first.
    Stands {
        own: Entry,
        last: u64,
        first: First,
    },
    Over {
        last: u64,
    },
    /// The entry's key exists and is attached to another lease.
    ForeignLease,
}

/// What an answer has to be read with.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    pub layout: &'a Layout,
    pub lock: &'a LockName,
    /// What the transaction was built with.
    pub belief: &'a Belief,
    pub candidates: &'a [Candidate],
    pub generations: &'a Generations,
    /// The moment of the answer; its revision is, after a write, the one that it made.
    pub at: At,
}

impl Reader<'_> {
    /// Of `Place::enqueue_alone`; `None`: nothing was written.
    pub fn enqueue_alone(
        &self,
        answer: &TxnResponse,
        enqueue: &Enqueue,
    ) -> Result<Option<Entry>, StoreError> {
        answer.succeeded.then(|| self.created(enqueue)).transpose()
    }

    /// Of `Place::enqueue_behind`; `None`: nothing was written.
    pub fn enqueue_behind(
        &self,
        answer: &TxnResponse,
        enqueue: &Enqueue,
    ) -> Result<Option<Step>, StoreError> {
        let standing = || self.standing(answer, enqueue);
        answer.succeeded.then(standing).transpose()
    }

    /// Of `Place::remove_standing`, done: who is first after it.
    pub fn remove_standing(&self, answer: &TxnResponse) -> Result<First, StoreError> {
        if self.candidates.is_empty() {
            let others = range(answer, 1)?.count;
            return Ok(if others == 0 {
                First::None
            } else {
                First::Unknown
            });
        }
        self.first(answer, 1)
    }

    /// Of `Place::enqueue`.
    pub fn enqueue(&self, answer: &TxnResponse, enqueue: &Enqueue) -> Result<Step, StoreError> {
        let inner = nested(answer, 0)?;
        if !answer.succeeded {
            return self.rewrite(inner);
        }
        if inner.succeeded {
            over(inner)
        } else {
            self.standing(inner, enqueue)
        }
    }

    /// Of `Place::enqueue_if_first`.
    pub fn enqueue_if_first(
        &self,
        answer: &TxnResponse,
        enqueue: &Enqueue,
    ) -> Result<Step, StoreError> {
        if !answer.succeeded {
            return self.stands(answer);
        }
        let inner = nested(answer, 0)?;
        if inner.succeeded {
            return over(inner);
        }
        let create = nested(inner, 0)?;
        if create.succeeded {
            return self.standing(create, enqueue);
        }
        Ok(Step::Occupied {
            first: self.first(create, 0)?,
        })
    }

    /// Of `Place::rewrite_first`; [`Step::ForeignLease`] if the entry has gone.
    pub fn rewrite(&self, answer: &TxnResponse) -> Result<Step, StoreError> {
        if !answer.succeeded {
            return Ok(Step::ForeignLease);
        }
        let inner = nested(answer, 0)?;
        if inner.succeeded {
            return over(inner);
        }
        let rewrite = nested(inner, 0)?;
        if !rewrite.succeeded {
            return self.stands(rewrite);
        }
        let own = range(rewrite, 2)?
            .kvs
            .first()
            .ok_or_else(|| odd("no key after its put"))?;
        let own = entry(self.layout, own, self.generations)?;
        let entry = own.ok_or_else(|| odd("own key is no entry"))?;
        Ok(Step::Standing {
            entry,
            first: self.first(rewrite, 3)?,
        })
    }

    /// Of `Place::look`.
    fn stands(&self, answer: &TxnResponse) -> Result<Step, StoreError> {
        let own = range(answer, 0)?.kvs.first();
        let own = own.map(|kv| entry(self.layout, kv, self.generations));
        let Some(own) = own.transpose()?.flatten() else {
            return Ok(Step::ForeignLease);
        };
        let mark = range(answer, 1)?.kvs.first();
        Ok(Step::Stands {
            last: mark.and_then(|kv| parse_attempt(&kv.value)).unwrap_or(0),
            own,
            first: self.first(answer, 2)?,
        })
    }

    /// Of `Place::remove`: whether it was removed, and who is first after it.
    pub fn remove(&self, answer: &TxnResponse) -> Result<(bool, First), StoreError> {
        let next = self.first(answer, usize::from(answer.succeeded))?;
        Ok((answer.succeeded, next))
    }

    fn standing(&self, answer: &TxnResponse, enqueue: &Enqueue) -> Result<Step, StoreError> {
        let first = self.first(answer, 2)?;
        Ok(Step::Standing {
            entry: self.created(enqueue)?,
            first,
        })
    }

    /// The entry that this transaction created.
    fn created(&self, enqueue: &Enqueue) -> Result<Entry, StoreError> {
        Ok(Entry {
            lock: self.lock.clone(),
            session: enqueue.session,
            token: self.generations.token(self.at.revision)?,
            version: self.at.revision.unsigned_abs(),
            attempt: enqueue.attempt,
            holder: enqueue.holder.clone(),
            foreign: false,
        })
    }

    /// The oldest entry of the lock in an answer that has the reads of its oldest keys, or of the
    /// candidates, from this place on.
    fn first(&self, answer: &TxnResponse, place: usize) -> Result<First, StoreError> {
        if self.candidates.is_empty() {
            let read = range(answer, place)?;
            let first = self.oldest_entry(read)?;
            let none = if read.more {
                First::Unknown
            } else {
                First::None
            };
            return Ok(first.map_or(none, First::Entry));
        }
        if !self.belief.holds(self.at) {
            return Ok(First::Unknown);
        }
        for (index, candidate) in self.candidates.iter().enumerate() {
            let read = range(answer, place + index)?;
            let same = |kv: &KeyValue| kv.create_revision == candidate.create_revision;
            if read.kvs.first().is_some_and(same)
                && let Some(entry) = self.oldest_entry(read)?
            {
                return Ok(First::Entry(entry));
            }
        }
        Ok(First::Unknown)
    }

    fn oldest_entry(&self, read: &RangeResponse) -> Result<Option<Entry>, StoreError> {
        for kv in &read.kvs {
            // Entries of nested locks lie in the same range.
            let entry = entry(self.layout, kv, self.generations)?;
            if let Some(entry) = entry.filter(|entry| entry.lock == *self.lock) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}

/// The entry that this key is, if it is one.
pub fn entry(
    layout: &Layout,
    kv: &KeyValue,
    generations: &Generations,
) -> Result<Option<Entry>, StoreError> {
    let Some((lock, session)) = layout.parse_entry(kv) else {
        return Ok(None);
    };
    let claim: Option<Claim> = serde_json::from_slice(&kv.value).ok();
    let (attempt, foreign) = (
        claim.as_ref().map_or(0, |claim| claim.attempt),
        claim.is_none(),
    );
    let holder = claim.map_or_else(String::new, |claim| claim.holder);
    let token = generations.token(kv.create_revision)?;
    let version = kv.mod_revision.unsigned_abs();
    Ok(Some(Entry {
        lock,
        session,
        token,
        version,
        attempt,
        holder,
        foreign,
    }))
}

fn over(answer: &TxnResponse) -> Result<Step, StoreError> {
    let mark = range(answer, 0)?.kvs.first();
    let last = mark.and_then(|kv| parse_attempt(&kv.value));
    Ok(Step::Over {
        last: last.ok_or_else(|| odd("no attempt in its mark"))?,
    })
}
