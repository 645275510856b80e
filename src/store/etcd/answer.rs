//! What etcd answered to the transactions of `txn`, read: pure.

use super::generation::Generations;
use super::hints::Candidate;
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
    /// Only-if-first, and the session stands already: to be decided by who is first.
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
    pub candidate: Option<&'a Candidate>,
    pub generations: &'a Generations,
    /// The revision of etcd at that moment: after a write, the one that it made.
    pub revision: i64,
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
            let own = range(answer, 0)?.kvs.first();
            let own = own
                .map(|kv| entry(self.layout, kv, self.generations))
                .transpose()?;
            let Some(own) = own.flatten() else {
                return Ok(Step::ForeignLease);
            };
            let mark = range(answer, 1)?.kvs.first();
            let last = mark.and_then(|kv| parse_attempt(&kv.value)).unwrap_or(0);
            return Ok(Step::Stands {
                own,
                last,
                first: self.first(range(answer, 2)?)?,
            });
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
            first: self.first(range(create, 0)?)?,
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
        let own = range(inner, 3)?
            .kvs
            .first()
            .ok_or_else(|| odd("no key after its put"))?;
        let own = entry(self.layout, own, self.generations)?;
        let entry = own.ok_or_else(|| odd("own key is no entry"))?;
        Ok(Step::Standing {
            entry,
            first: self.first(range(inner, 2)?)?,
        })
    }

    /// Of `Place::remove`: whether it was removed, and who is first after it.
    pub fn remove(&self, answer: &TxnResponse) -> Result<(bool, First), StoreError> {
        let next = range(answer, usize::from(answer.succeeded))?;
        Ok((answer.succeeded, self.first(next)?))
    }

    fn standing(&self, answer: &TxnResponse, enqueue: &Enqueue) -> Result<Step, StoreError> {
        let first = self.first(range(answer, 2)?)?;
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
            token: self.generations.token(self.revision)?,
            version: self.revision.unsigned_abs(),
            attempt: enqueue.attempt,
            holder: enqueue.holder.clone(),
            foreign: false,
        })
    }

    /// The oldest entry of the lock in an answer to a read of its oldest keys, or of the candidate.
    fn first(&self, read: &RangeResponse) -> Result<First, StoreError> {
        for kv in &read.kvs {
            let trusted = self.candidate.is_none_or(|candidate| {
                candidate.create_revision == kv.create_revision
                    && candidate.seen_at <= self.revision
            });
            // Entries of nested locks lie in the same range.
            let entry = entry(self.layout, kv, self.generations)?;
            if let Some(entry) = entry.filter(|entry| trusted && entry.lock == *self.lock) {
                return Ok(First::Entry(entry));
            }
        }
        let is_all = self.candidate.is_none() && !read.more;
        Ok(if is_all { First::None } else { First::Unknown })
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
