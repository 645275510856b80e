//! The store on etcd (3.4, 3.5): leases as sessions, keys as entries, laid out as etcd's own
//! `client/v3/concurrency` mutex lays them out, so that `etcdctl lock` and Go programs contend for
//! the same locks. What counts as an entry: `layout`.
//!
//! The token of an entry is its key's create revision, above it the generation of `generation`.
//! Everything that changes a queue is one transaction of etcd; nothing is decided from what was
//! read before, except what can only become truer (an entry that was first stays first).
//!
//! An attempt is marked when it is written and not when it is released: the mark outlives the entry
//! and is over once the entry is gone, however it went. It ends with its lease. A session that
//! locks ever new names leaves one small key for each of them until it ends.
//!
//! Leaves to others: TLS and passwords towards etcd.

mod answer;
mod batch;
mod endpoints;
mod enqueue;
mod generation;
mod hints;
mod history;
mod lanes;
mod layout;
mod lease;
mod mark;
mod message;
mod read;
mod records;
mod txn;
mod version;
mod watch;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use self::history::{NotSeen, Seen};

use async_trait::async_trait;
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Code;

use self::answer::{First, Reader};
use self::batch::{Batcher, Failure, Nested};
use self::endpoints::{Endpoints, request, store_error};
use self::generation::Generations;
use self::hints::{At, Hints};
use self::layout::{KeyRange, Layout, lease_of};
use self::lease::Renewals;
use self::records::Records;
use self::txn::Place;
use crate::etcd_proto::etcdserverpb::compare::{CompareResult, TargetUnion};
use crate::etcd_proto::etcdserverpb::lease_client::LeaseClient;
use crate::etcd_proto::etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest, TxnRequest};
use crate::lock_name::LockName;
use crate::store::{
    Enqueue, Enqueued, Entry, Event, QueueView, RecordList, Remove, Removed, SESSION_TTL_MAX,
    SESSION_TTL_MIN, SessionId, Store, StoreError, check_enqueue, check_record, random_session_id,
};
use crate::token::Token;

/// How often a removal, or a raise of the generation, is tried while the generation changes.
const GENERATION_TRIES_MAX: usize = 4;

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
    layout: Layout,
    hints: Arc<Hints>,
    records: Arc<Records>,
    batcher: Batcher,
    renewals: Renewals,
    /// The highest token that was told here, or by others and seen, or that later ones were lifted
    /// above.
    told: Arc<AtomicU64>,
    /// What that was when the mark was written.
    marked: AtomicU64,
    tasks: Mutex<JoinSet<()>>,
}

impl EtcdStore {
    /// Connects: reads the token generation once, so that a wrong address is told at once. Refuses
    /// a version of etcd that tokens cannot be built on. Must be called in a tokio runtime.
    pub async fn open(config: &EtcdConfig) -> Result<EtcdStore, StoreError> {
        EtcdStore::open_after(config, None).await
    }

    /// The same behind what was seen of the cluster before: another one, or one that has gone back
    /// since, is refused as corrupt.
    pub async fn open_after(
        config: &EtcdConfig,
        seen: Option<Seen>,
    ) -> Result<EtcdStore, StoreError> {
        let endpoints = Arc::new(Endpoints::new(&config.endpoints, seen)?);
        let layout = Layout::new(&config.prefix);
        let records = Arc::default();
        let (batcher, batches) =
            Batcher::new(Arc::clone(&endpoints), layout.clone(), Arc::clone(&records));
        let (renewals, renewing) = Renewals::new(Arc::clone(&endpoints));
        let mut tasks = JoinSet::new();
        tasks.spawn(batches);
        tasks.spawn(renewing);
        let store = EtcdStore {
            endpoints,
            layout,
            hints: Arc::default(),
            records,
            batcher,
            renewals,
            told: Arc::default(),
            marked: AtomicU64::default(),
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
        opened?;
        if let Some(seen) = seen {
            store.check_seen(seen).await?;
        }
        version::check(&store.endpoints).await?;
        Ok(store)
    }

    /// The entries of a lock, the revision of the read, and the generations then.
    async fn read_queue(
        &self,
        lock: &LockName,
    ) -> Result<(Vec<Entry>, i64, Generations), StoreError> {
        let layout = &self.layout;
        // Entries of nested locks lie in the same range.
        let keep = |kv: &_| layout.parse_entry(kv).is_some_and(|(of, _)| of == *lock);
        let range = layout.lock_range(lock);
        let read = read::snapshot(&self.endpoints, &range, layout.generation(), keep).await?;
        let generations = read.generations;
        let mut entries = Vec::with_capacity(read.kvs.len());
        for kv in &read.kvs {
            entries.extend(answer::entry(layout, kv, &generations)?);
        }
        entries.sort_by_key(|entry| entry.token);
        Ok((entries, read.revision, generations))
    }

    /// All records. There are few: proxies and configuration.
    async fn read_records(&self) -> Result<RecordList, StoreError> {
        let layout = &self.layout;
        let range = layout.record_range("");
        let timeline = self.endpoints.timeline();
        let read = read::snapshot(&self.endpoints, &range, layout.generation(), |_| true).await?;
        let named = read.kvs.iter();
        let list: RecordList = Arc::new(
            named
                .filter_map(|kv| Some((layout.record_name(&kv.key)?, kv.value.to_vec())))
                .collect(),
        );
        if self.endpoints.timeline() == timeline {
            let revision = read.revision;
            self.records
                .learn(&read.kvs, Arc::clone(&list), At { timeline, revision });
        }
        Ok(list)
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
        let enqueued = self.enqueue_with_lease(enqueue, lease).await?;
        if let Enqueued::Standing { entry, .. } = &enqueued {
            self.tell(entry.token);
        }
        Ok(enqueued)
    }

    async fn remove(&self, remove: Remove) -> Result<Removed, StoreError> {
        let Remove {
            lock,
            session,
            token,
            only_version,
        } = remove;
        let version = only_version.map(i64::try_from).transpose();
        let mut believed = true;
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
            let key = self.layout.entry(&lock, lease);
            let belief = self.hints.first(&lock, Some(&key));
            let place = Place {
                layout: &self.layout,
                lock: &lock,
                lease,
                candidates: &belief.oldest,
            };
            let flat = belief.at.is_some() && believed;
            let txn = if flat {
                place.remove_standing(created, version)
            } else {
                place.remove(created, version)
            };
            let nested = Nested {
                lock: lock.clone(),
                key,
                creates: false,
                pinned: Some(pinned),
                flat,
                txn,
            };
            let answer = match self.batcher.send(nested).await {
                Ok(answer) => answer,
                Err(Failure::Repin) => continue,
                Err(failure) => return Err(failure.into()),
            };
            let reader = Reader {
                layout: &self.layout,
                lock: &lock,
                belief: &belief,
                candidates: &belief.oldest,
                generations: &answer.generations,
                at: answer.at,
            };
            if flat && !answer.response.succeeded {
                believed = false;
                continue;
            }
            if flat {
                self.hints.gone(&lock, created);
                let next = match reader.remove_standing(&answer.response)? {
                    First::Entry(entry) => Some(entry),
                    First::None => None,
                    // Those that were next have gone as well: the watch will tell who is.
                    First::Unknown if !belief.is_empty() && belief.holds(answer.at) => None,
                    First::Unknown => self.resolve(&lock, First::Unknown).await?.first,
                };
                return Ok(Removed {
                    removed: true,
                    next,
                });
            }
            let (removed, first) = reader.remove(&answer.response)?;
            if removed {
                // The watch will say so too, but the next acquire may come before it.
                self.hints.gone(&lock, created);
            }
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
        let hints = Arc::clone(&self.hints);
        let records = Arc::clone(&self.records);
        let told = Arc::clone(&self.told);
        let endpoints = Arc::clone(&self.endpoints);
        let layout = self.layout.clone();
        let feed = watch::feed(endpoints, layout, hints, records, told, sender);
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(feed);
        Ok(receiver)
    }

    async fn raise_above(&self, token: Token) -> Result<(), StoreError> {
        let key = self.layout.generation();
        for _ in 0..GENERATION_TRIES_MAX {
            // An empty end: this key alone.
            let only = KeyRange {
                start: key.clone(),
                end: Bytes::new(),
            };
            let read = read::snapshot(&self.endpoints, &only, key.clone(), |_| true).await?;
            let generations = read.generations;
            let Some(value) = generations.raised_above(token, read.revision)? else {
                self.tell(token);
                return Ok(());
            };
            let raise = TxnRequest {
                compare: generations.unchanged(&key),
                success: vec![message::put(key.clone(), value.into(), 0)],
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
        let key = self.layout.record(name);
        let change = match value {
            Some(value) => message::put(key, value.into(), 0),
            None => message::delete(key),
        };
        let change = TxnRequest {
            success: vec![change],
            ..TxnRequest::default()
        };
        let done = self.endpoints.txn(change).await;
        done.map(drop).map_err(|status| store_error(&status))
    }

    async fn replace_record(
        &self,
        name: &str,
        seen: Option<&[u8]>,
        value: Vec<u8>,
    ) -> Result<bool, StoreError> {
        check_record(name, Some(&value))?;
        let key = self.layout.record(name);
        // A key that is not there has no value to compare; its create revision is 0.
        let as_seen = match seen {
            Some(seen) => TargetUnion::Value(Bytes::copy_from_slice(seen)),
            None => TargetUnion::CreateRevision(0),
        };
        let replace = TxnRequest {
            compare: vec![message::compare(&key, CompareResult::Equal, as_seen)],
            success: vec![message::put(key.clone(), value.into(), 0)],
            failure: Vec::new(),
        };
        let answer = self.endpoints.txn(replace).await;
        answer
            .map(|answer| answer.succeeded)
            .map_err(|status| store_error(&status))
    }

    async fn records(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let list = self.read_records().await?;
        let records = list.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(records.cloned().collect())
    }

    fn records_since(&self, version: u64) -> Option<RecordList> {
        let revision = i64::try_from(version).ok()?;
        self.records.at(self.endpoints.timeline(), revision)
    }
}

fn lease_out_of_range() -> StoreError {
    StoreError::Corrupt("a session id above 2^63".to_owned())
}
