//! The store on etcd (3.4, 3.5): leases as sessions, keys as entries, laid out as etcd's own
//! `client/v3/concurrency` mutex lays them out, so that `etcdctl lock` and Go programs contend for
//! the same locks. What counts as an entry: [`layout`].
//!
//! The token of an entry is its key's create revision, above it the generation of [`generation`].
//! Everything that changes a queue is one transaction of etcd; nothing is decided from what was
//! read before, except what can only become truer (an entry that was first stays first).
//!
//! An attempt is marked when it is written and not when it is released: the mark outlives the entry
//! and is over once the entry is gone, however it went. It ends with its lease. A session that
//! locks ever new names leaves one small key for each of them until it ends.
//!
//! Leaves to others: TLS and passwords towards etcd.

mod batch;
mod endpoints;
mod generation;
mod layout;
mod lease;
mod read;
mod txn;
mod watch;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use self::batch::{Answer, Batcher, Failure, Nested};
use self::endpoints::{CALL_MAX, Endpoints, request, store_error};
use self::generation::Generations;
use self::layout::{KeyRange, Layout, lease_of};
use self::lease::Renewals;
use self::txn::{EnqueueStep, First, Txns};
use crate::etcd_proto::etcdserverpb::compare::{CompareResult, TargetUnion};
use crate::etcd_proto::etcdserverpb::kv_client::KvClient;
use crate::etcd_proto::etcdserverpb::lease_client::LeaseClient;
use crate::etcd_proto::etcdserverpb::{
    DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, TxnRequest,
};
use crate::lock_name::LockName;
use crate::store::{
    Enqueue, Enqueued, Entry, Event, QueueView, Remove, Removed, SESSION_TTL_MAX, SESSION_TTL_MIN,
    SessionId, Store, StoreError, check_enqueue, check_record, random_session_id,
};
use crate::token::Token;

/// How often an enqueue is tried while the queue or the generation changes under it, or a member
/// does not answer, and how long after its start no further try begins. It may be repeated at will.
const ENQUEUE_TRIES_MAX: usize = 8;
const ENQUEUE_TRY_MAX: Duration = CALL_MAX.saturating_mul(3);

/// How often a removal, or a raise of the generation, is tried while the generation changes.
const GENERATION_TRIES_MAX: usize = 4;

/// How long a call waits before it tries the next member.
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// Events that wait for the reader of a watch.
const WATCH_EVENTS_MAX: usize = 4096;

/// Where the store is.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// Members of one cluster, `http://host:2379` each. The first is used until it fails.
    pub endpoints: Vec<String>,
    /// What every key begins with. With `""`, a lock `orders` is the one of `etcdctl lock orders`,
    /// and the watch reads every key of the cluster: where etcd has other users, take `locks/`.
    pub prefix: String,
}

/// The store. Its tasks end with it.
pub struct EtcdStore {
    endpoints: Arc<Endpoints>,
    txns: Txns,
    batcher: Batcher,
    renewals: Renewals,
    tasks: Mutex<JoinSet<()>>,
}

impl EtcdStore {
    /// Connects: reads the token generation once, so that a wrong address is told at once. Must be
    /// called in a tokio runtime.
    pub async fn open(config: &EtcdConfig) -> Result<EtcdStore, StoreError> {
        let endpoints = Arc::new(Endpoints::new(&config.endpoints)?);
        let layout = Layout::new(&config.prefix);
        let (batcher, batches) = Batcher::new(Arc::clone(&endpoints), layout.clone());
        let (renewals, renewing) = Renewals::new(Arc::clone(&endpoints));
        let mut tasks = JoinSet::new();
        tasks.spawn(batches);
        tasks.spawn(renewing);
        let txns = Txns { layout };
        let store = EtcdStore {
            endpoints,
            txns,
            batcher,
            renewals,
            tasks: Mutex::new(tasks),
        };
        let mut opened = store.batcher.refresh().await;
        for _ in 1..config.endpoints.len() {
            // A call that failed has moved on to the next member.
            if !matches!(opened, Err(StoreError::Unavailable(_))) {
                break;
            }
            opened = store.batcher.refresh().await;
        }
        opened.map(|_| store)
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
    async fn resolve(&self, lock: &LockName, first: First) -> Result<Resolved, StoreError> {
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

    /// The entries of a lock, the revision of the read, and the generations then.
    async fn read_queue(
        &self,
        lock: &LockName,
    ) -> Result<(Vec<Entry>, i64, Generations), StoreError> {
        let layout = &self.txns.layout;
        // Entries of nested locks lie in the same range.
        let keep = |kv: &_| layout.parse_entry(kv).is_some_and(|(of, _)| of == *lock);
        let range = layout.lock_range(lock);
        let read = read::snapshot(&self.endpoints, &range, layout.generation(), keep).await?;
        let generations = Generations::read(read.beside.as_ref())?;
        let mut entries = Vec::with_capacity(read.kvs.len());
        for kv in &read.kvs {
            entries.extend(self.txns.entry(kv, &generations)?);
        }
        entries.sort_by_key(|entry| entry.token);
        Ok((entries, read.revision, generations))
    }

    /// The create revision that has this token, and the revision of the generation record that this
    /// was derived from. `None`: no entry can have it.
    async fn create_revision(&self, token: Token) -> Result<Option<(i64, i64)>, StoreError> {
        let known = self.batcher.generations();
        if let Some(created) = known.create_revision(token) {
            return Ok(Some((created, known.revision())));
        }
        let fresh = self.batcher.refresh().await?;
        Ok(fresh
            .create_revision(token)
            .map(|created| (created, fresh.revision())))
    }
}

/// The oldest entry, and the revision at which there was none.
struct Resolved {
    first: Option<Entry>,
    revision: i64,
}

#[async_trait]
impl Store for EtcdStore {
    async fn open_session(&self, ttl: Duration) -> Result<(SessionId, Duration), StoreError> {
        let ttl = ttl.clamp(SESSION_TTL_MIN, SESSION_TTL_MAX);
        // Ours, since etcd's own ids can be guessed from one another. If the answer is lost, the
        // lease ends by itself.
        let id = random_session_id()?;
        let lease = lease_of(SessionId(id)).ok_or_else(lease_out_of_range)?;
        // etcd counts whole seconds.
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let grant = LeaseGrantRequest {
            ttl: seconds as i64,
            id: lease,
        };
        let granted = self
            .endpoints
            .call(async |channel| LeaseClient::new(channel).lease_grant(request(grant)).await)
            .await
            .map_err(|status| store_error(&status))?;
        if !granted.error.is_empty() {
            return Err(StoreError::Refused(format!("etcd: {}", granted.error)));
        }
        Ok((
            SessionId(id),
            Duration::from_secs(granted.ttl.max(0).unsigned_abs()),
        ))
    }

    async fn keep_alive(&self, session: SessionId) -> Result<Option<Duration>, StoreError> {
        match lease_of(session) {
            Some(lease) => self.renewals.renew(lease).await,
            None => Ok(None),
        }
    }

    async fn close_session(&self, session: SessionId) -> Result<(), StoreError> {
        let Some(id) = lease_of(session) else {
            return Ok(());
        };
        let revoke = LeaseRevokeRequest { id };
        let revoked = self
            .endpoints
            .call(async |channel| {
                LeaseClient::new(channel)
                    .lease_revoke(request(revoke))
                    .await
            })
            .await;
        match revoked {
            Err(status) if status.code() != Code::NotFound => Err(store_error(&status)),
            _ => Ok(()),
        }
    }

    async fn enqueue(&self, enqueue: Enqueue) -> Result<Enqueued, StoreError> {
        check_enqueue(&enqueue)?;
        let Some(lease) = lease_of(enqueue.session) else {
            return Ok(Enqueued::SessionGone);
        };
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

    async fn remove(&self, remove: Remove) -> Result<Removed, StoreError> {
        let Remove {
            lock,
            session,
            token,
            only_version,
        } = remove;
        let version = only_version.map(i64::try_from).transpose();
        for _ in 0..GENERATION_TRIES_MAX {
            let created = self.create_revision(token).await?;
            let (Some(lease), Some((created, pinned)), Ok(version)) =
                (lease_of(session), created, version)
            else {
                let next = self.resolve(&lock, First::Unknown).await?.first;
                return Ok(Removed {
                    removed: false,
                    next,
                });
            };
            let nested = Nested {
                lock: lock.clone(),
                key: self.txns.layout.entry(&lock, lease),
                creates: false,
                pinned: Some(pinned),
                txn: self.txns.remove(&lock, lease, created, version),
            };
            let answer = match self.batcher.send(nested).await {
                Ok(answer) => answer,
                Err(Failure::Repin) => continue,
                Err(failure) => return Err(failure.into()),
            };
            let read = self
                .txns
                .read_remove(&lock, &answer.response, &answer.generations)?;
            let (removed, first) = read;
            let next = match first {
                First::Entry(entry) => Some(entry),
                First::None => None,
                First::Unknown => self.resolve(&lock, First::Unknown).await?.first,
            };
            return Ok(Removed { removed, next });
        }
        Err(Failure::Repin.into())
    }

    async fn queue(&self, lock: &LockName) -> Result<QueueView, StoreError> {
        let (entries, revision, generations) = self.read_queue(lock).await?;
        Ok(QueueView {
            entries,
            latest: generations.latest(revision)?,
        })
    }

    async fn watch(&self) -> Result<mpsc::Receiver<Event>, StoreError> {
        let (sender, receiver) = mpsc::channel(WATCH_EVENTS_MAX);
        let feed = watch::feed(Arc::clone(&self.endpoints), self.txns.clone(), sender);
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(feed);
        Ok(receiver)
    }

    async fn raise_above(&self, token: Token) -> Result<(), StoreError> {
        let key = self.txns.layout.generation();
        for _ in 0..GENERATION_TRIES_MAX {
            // An empty end: this key alone.
            let only = KeyRange {
                start: key.clone(),
                end: Bytes::new(),
            };
            let read = read::snapshot(&self.endpoints, &only, key.clone(), |_| true).await?;
            let generations = Generations::read(read.beside.as_ref())?;
            let Some(value) = generations.raised_above(token, read.revision)? else {
                return Ok(());
            };
            let unchanged = TargetUnion::ModRevision(generations.revision());
            let raise = TxnRequest {
                compare: vec![txn::compare(&key, CompareResult::Equal, unchanged)],
                success: vec![txn::put(key.clone(), value.into(), 0)],
                failure: Vec::new(),
            };
            // Whether it was this raise or another one: the next read tells whether it is enough.
            self.endpoints
                .txn(raise)
                .await
                .map_err(|status| store_error(&status))?;
        }
        Err(StoreError::Unavailable(
            "the token generation changes too fast".to_owned(),
        ))
    }

    async fn put_record(&self, name: &str, value: Option<Vec<u8>>) -> Result<(), StoreError> {
        check_record(name, value.as_deref())?;
        let key = self.txns.layout.record(name);
        let done = match value {
            Some(value) => {
                let put = PutRequest {
                    key,
                    value: value.into(),
                    ..PutRequest::default()
                };
                let call = async |channel| KvClient::new(channel).put(request(put)).await;
                self.endpoints.call(call).await.map(drop)
            }
            None => {
                let delete = DeleteRangeRequest {
                    key,
                    ..DeleteRangeRequest::default()
                };
                let call =
                    async |channel| KvClient::new(channel).delete_range(request(delete)).await;
                self.endpoints.call(call).await.map(drop)
            }
        };
        done.map_err(|status| store_error(&status))
    }

    async fn records(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let layout = &self.txns.layout;
        let range = layout.record_range(prefix);
        let read = read::snapshot(&self.endpoints, &range, layout.generation(), |_| true).await?;
        let records = read.kvs.into_iter();
        Ok(records
            .filter_map(|kv| Some((layout.record_name(&kv.key)?, kv.value.into())))
            .collect())
    }
}

/// etcd `rpctypes.ErrGRPCLeaseNotFound`.
fn lease_not_found(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().contains("lease not found")
}

fn lease_out_of_range() -> StoreError {
    StoreError::Corrupt("a session id above 2^63".to_owned())
}
