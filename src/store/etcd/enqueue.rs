//! Standing in a queue: which transactions it takes, and what is decided between them.

use std::time::Duration;

use tonic::{Code, Status};

use super::EtcdStore;
use super::answer::{First, Reader, Step};
use super::batch::{Answer, Failure, Nested};
use super::endpoints::CALL_MAX;
use super::hints::{Belief, Candidate};
use super::layout::Layout;
use super::txn::Place;
use crate::etcd_proto::etcdserverpb::TxnRequest;
use crate::lock_name::LockName;
use crate::store::{Enqueue, Enqueued, Entry, Remove, Store as _, StoreError};

/// How often an enqueue is tried while the queue or the generation changes under it, or a member
/// does not answer, and how long after its start no further try begins. It may be repeated at will.
const ENQUEUE_TRIES_MAX: usize = 8;
const ENQUEUE_TRY_MAX: Duration = CALL_MAX.saturating_mul(3);

/// How long a call waits before it tries the next member.
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// What is asked for, and what is believed of the lock.
#[derive(Clone, Copy)]
struct Ask<'a> {
    enqueue: &'a Enqueue,
    lease: i64,
    belief: &'a Belief,
    /// Of these it is enough that one stands: the entry is not the first then.
    candidates: &'a [Candidate],
}

impl<'a> Ask<'a> {
    fn place(self, layout: &'a Layout) -> Place<'a> {
        Place {
            layout,
            lock: &self.enqueue.lock,
            lease: self.lease,
            candidates: self.candidates,
        }
    }

    fn reader(self, layout: &'a Layout, answer: &'a Answer) -> Reader<'a> {
        Reader {
            layout,
            lock: &self.enqueue.lock,
            belief: self.belief,
            candidates: self.candidates,
            generations: &answer.generations,
            at: answer.at,
        }
    }
}

/// The oldest entry, and the revision at which there was none.
pub struct Resolved {
    pub first: Option<Entry>,
    revision: i64,
}

impl EtcdStore {
    /// Tries until there is an answer, or no more time: every try is the same to etcd.
    pub async fn enqueue_with_lease(
        &self,
        enqueue: Enqueue,
        lease: i64,
    ) -> Result<Enqueued, StoreError> {
        let started = tokio::time::Instant::now();
        let mut changed_below = 1;
        let mut last = StoreError::Unavailable("the queue changes too fast".to_owned());
        for _ in 0..ENQUEUE_TRIES_MAX {
            match self.try_enqueue(&enqueue, lease, &mut changed_below).await {
                Ok(Some(enqueued)) => return Ok(enqueued),
                Ok(None) | Err(Failure::Repin) => {}
                Err(Failure::Status(status)) if lease_not_found(&status) => {
                    return Ok(Enqueued::SessionGone);
                }
                Err(failure) => {
                    last = failure.into();
                    let again = matches!(last, StoreError::Unavailable(_));
                    if !again || started.elapsed() > ENQUEUE_TRY_MAX {
                        return Err(last);
                    }
                    tokio::time::sleep(RETRY_EVERY).await;
                }
            }
        }
        Err(last)
    }

    /// One try to enqueue. `Ok(None)`: it has to be tried again.
    async fn try_enqueue(
        &self,
        enqueue: &Enqueue,
        lease: i64,
        changed_below: &mut i64,
    ) -> Result<Option<Enqueued>, Failure> {
        let belief = self.hints.first(&enqueue.lock, None);
        let mut ask = Ask {
            enqueue,
            lease,
            belief: &belief,
            candidates: &belief.oldest,
        };
        let before: Vec<Candidate>;
        if belief.is_empty() {
            if let Some(alone) = self.enqueue_alone(ask).await? {
                return Ok(Some(alone));
            }
        } else if !enqueue.only_if_first {
            before = belief
                .oldest
                .iter()
                .chain(&belief.youngest)
                .cloned()
                .collect();
            ask.candidates = &before;
            if belief.at.is_some()
                && let Some(behind) = self.enqueue_behind(ask).await?
            {
                return Ok(Some(behind));
            }
        }
        let place = ask.place(&self.layout);
        let step = if enqueue.only_if_first {
            let answer = self
                .ask(ask, false, place.enqueue_if_first(enqueue, *changed_below))
                .await?;
            ask.reader(&self.layout, &answer)
                .enqueue_if_first(&answer.response, enqueue)
        } else {
            let answer = self.ask(ask, false, place.enqueue(enqueue)).await?;
            let step = ask
                .reader(&self.layout, &answer)
                .enqueue(&answer.response, enqueue);
            if let Ok(Step::Standing { .. }) = &step {
                self.hints.note_mark(&enqueue.lock, lease);
            }
            step
        };
        match step.map_err(Failure::Store)? {
            Step::Standing { entry, first } => Ok(Some(
                self.standing(entry, first).await.map_err(Failure::Store)?,
            )),
            Step::Over { last } => Ok(Some(Enqueued::AttemptOver { last })),
            Step::ForeignLease => Err(Failure::Store(StoreError::Refused(format!(
                "lock {:?}: the key of session {} is attached to another lease",
                enqueue.lock.as_str(),
                enqueue.session
            )))),
            Step::Occupied { first } => {
                let first = self
                    .resolve(&enqueue.lock, first)
                    .await
                    .map_err(Failure::Store)?;
                if let Some(holder) = first.first {
                    return Ok(Some(Enqueued::Held { holder }));
                }
                // Nothing but keys that are no entries, at that revision: next time they count for
                // nothing.
                *changed_below = first.revision + 1;
                Ok(None)
            }
            Step::Stands { last, .. } if enqueue.attempt < last => {
                Ok(Some(Enqueued::AttemptOver { last }))
            }
            Step::Stands { own, first, .. } => self.go_on_from(ask, own, first).await,
        }
    }

    /// What nearly every acquire is: the lock is free, and the session's last word on it was ours.
    async fn enqueue_alone(&self, ask: Ask<'_>) -> Result<Option<Enqueued>, Failure> {
        let enqueue = ask.enqueue;
        let is_marked = self.hints.is_marked(&enqueue.lock, ask.lease);
        let txn = ask.place(&self.layout).enqueue_alone(enqueue, is_marked);
        let answer = self.ask(ask, true, txn).await?;
        let reader = ask.reader(&self.layout, &answer);
        let entry = reader
            .enqueue_alone(&answer.response, enqueue)
            .map_err(Failure::Store)?;
        Ok(entry.map(|entry| {
            self.hints.note_mark(&enqueue.lock, ask.lease);
            Enqueued::Standing {
                holder: entry.clone(),
                entry,
            }
        }))
    }

    /// The others: somebody is there, and the session does not stand yet.
    async fn enqueue_behind(&self, ask: Ask<'_>) -> Result<Option<Enqueued>, Failure> {
        let enqueue = ask.enqueue;
        let is_marked = self.hints.is_marked(&enqueue.lock, ask.lease);
        let txn = ask.place(&self.layout).enqueue_behind(enqueue, is_marked);
        let answer = self.ask(ask, true, txn).await?;
        let reader = ask.reader(&self.layout, &answer);
        let step = reader
            .enqueue_behind(&answer.response, enqueue)
            .map_err(Failure::Store)?;
        let Some(Step::Standing { entry, first }) = step else {
            return Ok(None);
        };
        self.hints.note_mark(&enqueue.lock, ask.lease);
        let standing = self.standing(entry, first).await;
        standing.map(Some).map_err(Failure::Store)
    }

    async fn ask(&self, ask: Ask<'_>, flat: bool, txn: TxnRequest) -> Result<Answer, Failure> {
        let key = ask.place(&self.layout).key();
        let lock = ask.enqueue.lock.clone();
        self.batcher
            .send(Nested {
                lock,
                key,
                creates: true,
                pinned: None,
                flat,
                txn,
            })
            .await
    }

    /// The session stands already, by an earlier attempt, or this one is only to be the first.
    async fn go_on_from(
        &self,
        ask: Ask<'_>,
        own: Entry,
        first: First,
    ) -> Result<Option<Enqueued>, Failure> {
        let enqueue = ask.enqueue;
        if enqueue.only_if_first {
            let first = self.resolve(&enqueue.lock, first).await;
            match first.map_err(Failure::Store)?.first {
                None => return Ok(None),
                Some(first) if first.session != own.session => {
                    return Ok(Some(Enqueued::Held { holder: first }));
                }
                Some(first) if first.attempt == enqueue.attempt => {
                    return self.rewrite_first(ask, &first).await;
                }
                Some(_) => {}
            }
        }
        // The earlier attempt is given up with its token. Its entry goes before the new one comes.
        let remove = Remove {
            lock: enqueue.lock.clone(),
            session: own.session,
            token: own.token,
            only_version: Some(own.version),
        };
        self.remove(remove).await.map_err(Failure::Store)?;
        Ok(None)
    }

    /// Writes the session's entry again, which is the first.
    async fn rewrite_first(
        &self,
        ask: Ask<'_>,
        first: &Entry,
    ) -> Result<Option<Enqueued>, Failure> {
        let Some(created) = self.batcher.generations().create_revision(first.token) else {
            return Ok(None);
        };
        let txn = ask.place(&self.layout).rewrite_first(ask.enqueue, created);
        let answer = self.ask(ask, false, txn).await?;
        let step = ask.reader(&self.layout, &answer).rewrite(&answer.response);
        match step.map_err(Failure::Store)? {
            Step::Standing { entry, .. } => Ok(Some(Enqueued::Standing {
                holder: entry.clone(),
                entry,
            })),
            Step::Over { last } => Ok(Some(Enqueued::AttemptOver { last })),
            // The entry has gone in between.
            _ => Ok(None),
        }
    }

    async fn standing(&self, entry: Entry, first: First) -> Result<Enqueued, StoreError> {
        let is_told = matches!(first, First::Entry(_));
        let first = self.resolve(&entry.lock, first).await?.first;
        // A read after the write may already miss the entry: its session has ended then, which the
        // caller learns from the watch.
        let holder = first
            .filter(|first| first.token < entry.token)
            .unwrap_or_else(|| entry.clone());
        if !is_told && holder == entry {
            // It may have become the first after it was written: what the batch read of the records
            // is too old for the grant.
            self.read_records().await?;
        }
        Ok(Enqueued::Standing { entry, holder })
    }

    /// The oldest entry, by a read of the whole queue where the first keys did not tell.
    pub async fn resolve(&self, lock: &LockName, first: First) -> Result<Resolved, StoreError> {
        match first {
            First::Entry(entry) => Ok(Resolved {
                first: Some(entry),
                revision: 0,
            }),
            First::None | First::Unknown => {
                let (mut entries, revision, _) = self.read_queue(lock).await?;
                let first = (!entries.is_empty()).then(|| entries.swap_remove(0));
                Ok(Resolved { first, revision })
            }
        }
    }
}

/// etcd `rpctypes.ErrGRPCLeaseNotFound`.
fn lease_not_found(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().contains("lease not found")
}
