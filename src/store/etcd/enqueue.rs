//! Standing in a queue: which transactions it takes, and what is decided between them.

use std::time::Duration;

use tonic::{Code, Status};

use super::EtcdStore;
use super::batch::{Answer, Failure, Nested};
use super::endpoints::CALL_MAX;
use super::txn::{EnqueueStep, First};
use crate::etcd_proto::etcdserverpb::TxnRequest;
use crate::lock_name::LockName;
use crate::store::{Enqueue, Enqueued, Entry, StoreError};

/// How often an enqueue is tried while the queue or the generation changes under it, or a member
/// does not answer, and how long after its start no further try begins. It may be repeated at will.
const ENQUEUE_TRIES_MAX: usize = 8;
const ENQUEUE_TRY_MAX: Duration = CALL_MAX.saturating_mul(3);

/// How long a call waits before it tries the next member.
const RETRY_EVERY: Duration = Duration::from_millis(100);

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
        let txns = &self.txns;
        let step = if enqueue.only_if_first {
            let txn = txns.enqueue_if_first(enqueue, lease, *changed_below);
            let answer = self.send_enqueue(enqueue, lease, txn).await?;
            txns.read_enqueue_if_first(&enqueue.lock, &answer.response, &answer.generations)
        } else {
            let answer = self
                .send_enqueue(enqueue, lease, txns.enqueue(enqueue, lease))
                .await?;
            txns.read_enqueue(&enqueue.lock, &answer.response, &answer.generations)
        };
        match step.map_err(Failure::Store)? {
            EnqueueStep::Standing { entry, first } => Ok(Some(
                self.standing(entry, first).await.map_err(Failure::Store)?,
            )),
            EnqueueStep::Over { last } => Ok(Some(Enqueued::AttemptOver { last })),
            EnqueueStep::ForeignLease => Err(Failure::Store(StoreError::Refused(format!(
                "lock {:?}: the key of session {} is attached to another lease",
                enqueue.lock.as_str(),
                enqueue.session
            )))),
            EnqueueStep::Occupied { first } => {
                let first = self
                    .resolve(&enqueue.lock, first)
                    .await
                    .map_err(Failure::Store)?;
                if let Resolved {
                    first: Some(holder),
                    ..
                } = first
                {
                    return Ok(Some(Enqueued::Held { holder }));
                }
                // Nothing but keys that are no entries, at that revision: next time they count for
                // nothing.
                *changed_below = first.revision + 1;
                Ok(None)
            }
            EnqueueStep::Stands { last, .. } if enqueue.attempt < last => {
                Ok(Some(Enqueued::AttemptOver { last }))
            }
            EnqueueStep::Stands { own, first, .. } => {
                self.rewrite_if_first(enqueue, lease, &own, first).await
            }
        }
    }

    async fn send_enqueue(
        &self,
        enqueue: &Enqueue,
        lease: i64,
        txn: TxnRequest,
    ) -> Result<Answer, Failure> {
        let key = self.txns.layout.entry(&enqueue.lock, lease);
        let lock = enqueue.lock.clone();
        self.batcher
            .send(Nested {
                lock,
                key,
                creates: true,
                pinned: None,
                txn,
            })
            .await
    }

    /// Only-if-first of a session that stands already.
    async fn rewrite_if_first(
        &self,
        enqueue: &Enqueue,
        lease: i64,
        own: &Entry,
        first: First,
    ) -> Result<Option<Enqueued>, Failure> {
        let first = self
            .resolve(&enqueue.lock, first)
            .await
            .map_err(Failure::Store)?
            .first;
        match first {
            Some(first) if first.session == own.session => {
                let generations = self.batcher.generations();
                let Some(created) = generations.create_revision(first.token) else {
                    return Ok(None);
                };
                let txn = self.txns.rewrite_first(enqueue, lease, created);
                let answer = self.send_enqueue(enqueue, lease, txn).await?;
                let step =
                    self.txns
                        .read_rewrite(&enqueue.lock, &answer.response, &answer.generations);
                match step.map_err(Failure::Store)? {
                    EnqueueStep::Standing { entry, .. } => Ok(Some(Enqueued::Standing {
                        holder: entry.clone(),
                        entry,
                    })),
                    EnqueueStep::Over { last } => Ok(Some(Enqueued::AttemptOver { last })),
                    // The entry has gone in between.
                    _ => Ok(None),
                }
            }
            Some(holder) => Ok(Some(Enqueued::Held { holder })),
            None => Ok(None),
        }
    }

    async fn standing(&self, entry: Entry, first: First) -> Result<Enqueued, StoreError> {
        let first = self.resolve(&entry.lock, first).await?.first;
        // A read after the write may already miss the entry: its session has ended then, which the
        // caller learns from the watch.
        let holder = first
            .filter(|first| first.token < entry.token)
            .unwrap_or_else(|| entry.clone());
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
