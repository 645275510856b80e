//! The transactions of the etcd store, built and read: pure.
//!
//! Each is nested into the transaction of a batch, whose compares etcd evaluates all before any of
//! its operations (etcd `server/etcdserver/apply.go`, `compareToPath`). So no transaction here may
//! rely on what another one of the same batch writes.

use prost::bytes::Bytes;

use super::generation::Generations;
use super::layout::{Claim, KeyRange, Layout, attempt_text, parse_attempt};
use crate::etcd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::etcd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::etcd_proto::etcdserverpb::request_op::Request;
use crate::etcd_proto::etcdserverpb::response_op::Response;
use crate::etcd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest,
    TxnResponse,
};
use crate::etcd_proto::mvccpb::KeyValue;
use crate::lock_name::LockName;
use crate::store::{Enqueue, Entry, StoreError};

/// Keys that are read to find the first entry of a lock: more than one, since the oldest may be
/// foreign keys that are no entries.
const FIRST_KEYS: i64 = 4;

/// The version of the layout that [`Claim`] carries.
const CLAIM_VERSION: u8 = 1;

/// The oldest entry of a lock, if what was read tells it.
#[derive(Debug, PartialEq, Eq)]
pub enum First {
    Entry(Entry),
    /// Nothing below the lock is an entry.
    None,
    /// The oldest keys are no entries and there are more.
    Unknown,
}

/// What became of an enqueue.
#[derive(Debug, PartialEq, Eq)]
pub enum EnqueueStep {
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

/// Builds and reads the transactions of one store.
#[derive(Clone, Debug)]
pub struct Txns {
    pub layout: Layout,
}

impl Txns {
    /// Stands in the queue, behind whoever is there.
    pub fn enqueue(&self, enqueue: &Enqueue, lease: i64) -> TxnRequest {
        let mark = self.layout.attempt(&enqueue.lock, lease);
        let create = TxnRequest {
            compare: vec![value_above(&mark, attempt_text(enqueue.attempt - 1))],
            success: vec![get(mark.clone())],
            failure: self.write(enqueue, lease),
        };
        self.unless_stands(
            enqueue,
            lease,
            create,
            vec![txn(self.take_over(enqueue, lease, None))],
        )
    }

    /// Stands in the queue if no key below the lock was created or changed at or after
    /// `changed_below`, the revision after the one at which the caller saw no entry (1: there must
    /// be none at all). If the session stands already, only reads.
    pub fn enqueue_if_first(
        &self,
        enqueue: &Enqueue,
        lease: i64,
        changed_below: i64,
    ) -> TxnRequest {
        let mark = self.layout.attempt(&enqueue.lock, lease);
        let range = self.layout.lock_range(&enqueue.lock);
        let quiet = Compare {
            range_end: range.end,
            ..compare(
                &range.start,
                CompareResult::Less,
                TargetUnion::ModRevision(changed_below),
            )
        };
        let create = TxnRequest {
            compare: vec![quiet],
            success: self.write(enqueue, lease),
            failure: vec![self.get_first(enqueue)],
        };
        let create = TxnRequest {
            compare: vec![value_above(&mark, attempt_text(enqueue.attempt - 1))],
            success: vec![get(mark.clone())],
            failure: vec![txn(create)],
        };
        let key = self.layout.entry(&enqueue.lock, lease);
        let look = vec![get(key), get(mark), self.get_first(enqueue)];
        self.unless_stands(enqueue, lease, create, look)
    }

    /// Rewrites the session's entry, which was created at this revision and was the first one: it
    /// still is if it exists, since only younger ones can have come.
    pub fn rewrite_first(&self, enqueue: &Enqueue, lease: i64, create_revision: i64) -> TxnRequest {
        self.take_over(enqueue, lease, Some(create_revision))
    }

    fn unless_stands(
        &self,
        enqueue: &Enqueue,
        lease: i64,
        create: TxnRequest,
        stands: Vec<RequestOp>,
    ) -> TxnRequest {
        let key = self.layout.entry(&enqueue.lock, lease);
        TxnRequest {
            compare: vec![compare(
                &key,
                CompareResult::Equal,
                TargetUnion::CreateRevision(0),
            )],
            success: vec![txn(create)],
            failure: stands,
        }
    }

    fn take_over(&self, enqueue: &Enqueue, lease: i64, create: Option<i64>) -> TxnRequest {
        let key = self.layout.entry(&enqueue.lock, lease);
        let mark = self.layout.attempt(&enqueue.lock, lease);
        let rewrite = TxnRequest {
            compare: vec![value_above(&mark, attempt_text(enqueue.attempt))],
            success: vec![get(mark)],
            failure: self.write(enqueue, lease),
        };
        let mut compares = vec![compare(
            &key,
            CompareResult::Equal,
            TargetUnion::Lease(lease),
        )];
        let created = |revision| {
            compare(
                &key,
                CompareResult::Equal,
                TargetUnion::CreateRevision(revision),
            )
        };
        compares.extend(create.map(created));
        TxnRequest {
            compare: compares,
            success: vec![txn(rewrite)],
            failure: Vec::new(),
        }
    }

    fn write(&self, enqueue: &Enqueue, lease: i64) -> Vec<RequestOp> {
        let key = self.layout.entry(&enqueue.lock, lease);
        let claim = serde_json::json!(Claim {
            ringfence: CLAIM_VERSION,
            attempt: enqueue.attempt,
            holder: enqueue.holder.clone(),
        });
        let mark = self.layout.attempt(&enqueue.lock, lease);
        vec![
            put(key.clone(), claim.to_string().into(), lease),
            put(mark, attempt_text(enqueue.attempt), lease),
            get(key),
            self.get_first(enqueue),
        ]
    }

    fn get_first(&self, enqueue: &Enqueue) -> RequestOp {
        get_range(oldest(self.layout.lock_range(&enqueue.lock)))
    }

    /// Removes the entry that was created at this revision and, if given, last written at that one.
    pub fn remove(
        &self,
        lock: &LockName,
        lease: i64,
        create_revision: i64,
        mod_revision: Option<i64>,
    ) -> TxnRequest {
        let key = self.layout.entry(lock, lease);
        let equal = |target| compare(&key, CompareResult::Equal, target);
        let mut compares = vec![
            equal(TargetUnion::CreateRevision(create_revision)),
            equal(TargetUnion::Lease(lease)),
        ];
        compares.extend(mod_revision.map(|revision| equal(TargetUnion::ModRevision(revision))));
        let next = get_range(oldest(self.layout.lock_range(lock)));
        let delete = DeleteRangeRequest {
            key: key.clone(),
            ..DeleteRangeRequest::default()
        };
        let delete = RequestOp {
            request: Some(Request::RequestDeleteRange(delete)),
        };
        TxnRequest {
            compare: compares,
            success: vec![delete, next.clone()],
            failure: vec![next],
        }
    }

    /// Reads the answer to [`Txns::enqueue`].
    pub fn read_enqueue(
        &self,
        lock: &LockName,
        answer: &TxnResponse,
        generations: &Generations,
    ) -> Result<EnqueueStep, StoreError> {
        let inner = nested(answer, 0)?;
        if !answer.succeeded {
            return self.read_rewrite(lock, inner, generations);
        }
        if inner.succeeded {
            over(inner, 0)
        } else {
            self.standing(lock, inner, generations)
        }
    }

    /// Reads the answer to [`Txns::enqueue_if_first`].
    pub fn read_enqueue_if_first(
        &self,
        lock: &LockName,
        answer: &TxnResponse,
        generations: &Generations,
    ) -> Result<EnqueueStep, StoreError> {
        if !answer.succeeded {
            let first = self.first(lock, range(answer, 2)?, generations)?;
            let own = range(answer, 0)?.kvs.first();
            let Some(own) = own
                .map(|kv| self.entry(kv, generations))
                .transpose()?
                .flatten()
            else {
                return Ok(EnqueueStep::ForeignLease);
            };
            let mark = range(answer, 1)?.kvs.first();
            let last = mark.and_then(|kv| parse_attempt(&kv.value)).unwrap_or(0);
            return Ok(EnqueueStep::Stands { own, last, first });
        }
        let inner = nested(answer, 0)?;
        if inner.succeeded {
            return over(inner, 0);
        }
        let create = nested(inner, 0)?;
        if create.succeeded {
            return self.standing(lock, create, generations);
        }
        Ok(EnqueueStep::Occupied {
            first: self.first(lock, range(create, 0)?, generations)?,
        })
    }

    /// Reads the answer to [`Txns::rewrite_first`]: [`EnqueueStep::ForeignLease`] if the entry has
    /// gone.
    pub fn read_rewrite(
        &self,
        lock: &LockName,
        answer: &TxnResponse,
        generations: &Generations,
    ) -> Result<EnqueueStep, StoreError> {
        if !answer.succeeded {
            return Ok(EnqueueStep::ForeignLease);
        }
        let inner = nested(answer, 0)?;
        if inner.succeeded {
            over(inner, 0)
        } else {
            self.standing(lock, inner, generations)
        }
    }

    /// Reads the answer to [`Txns::remove`].
    pub fn read_remove(
        &self,
        lock: &LockName,
        answer: &TxnResponse,
        generations: &Generations,
    ) -> Result<(bool, First), StoreError> {
        let next = range(answer, usize::from(answer.succeeded))?;
        Ok((answer.succeeded, self.first(lock, next, generations)?))
    }

    /// The answer to [`Txns::write`].
    fn standing(
        &self,
        lock: &LockName,
        answer: &TxnResponse,
        generations: &Generations,
    ) -> Result<EnqueueStep, StoreError> {
        let own = range(answer, 2)?
            .kvs
            .first()
            .ok_or_else(|| odd("no key after its put"))?;
        let entry = self
            .entry(own, generations)?
            .ok_or_else(|| odd("own key is no entry"))?;
        Ok(EnqueueStep::Standing {
            entry,
            first: self.first(lock, range(answer, 3)?, generations)?,
        })
    }

    /// The oldest entry of the lock in an answer to a read of its oldest keys.
    fn first(
        &self,
        lock: &LockName,
        read: &RangeResponse,
        generations: &Generations,
    ) -> Result<First, StoreError> {
        for kv in &read.kvs {
            // Entries of nested locks lie in the same range.
            if let Some(entry) = self
                .entry(kv, generations)?
                .filter(|entry| entry.lock == *lock)
            {
                return Ok(First::Entry(entry));
            }
        }
        Ok(if read.more {
            First::Unknown
        } else {
            First::None
        })
    }

    /// The entry that this key is, if it is one.
    pub fn entry(
        &self,
        kv: &KeyValue,
        generations: &Generations,
    ) -> Result<Option<Entry>, StoreError> {
        let Some((lock, session)) = self.layout.parse_entry(kv) else {
            return Ok(None);
        };
        let claim: Option<Claim> = serde_json::from_slice(&kv.value).ok();
        Ok(Some(Entry {
            lock,
            session,
            token: generations.token(kv.create_revision)?,
            version: kv.mod_revision.unsigned_abs(),
            attempt: claim.as_ref().map_or(0, |claim| claim.attempt),
            foreign: claim.is_none(),
            holder: claim.map_or_else(String::new, |claim| claim.holder),
        }))
    }
}

fn over(answer: &TxnResponse, index: usize) -> Result<EnqueueStep, StoreError> {
    let mark = range(answer, index)?.kvs.first();
    let last = mark.and_then(|kv| parse_attempt(&kv.value));
    Ok(EnqueueStep::Over {
        last: last.ok_or_else(|| odd("no attempt in its mark"))?,
    })
}

/// An answer that etcd's contract excludes.
fn odd(what: &str) -> StoreError {
    StoreError::Corrupt(format!("etcd answered against its contract: {what}"))
}

fn nested(answer: &TxnResponse, index: usize) -> Result<&TxnResponse, StoreError> {
    match answer
        .responses
        .get(index)
        .and_then(|op| op.response.as_ref())
    {
        Some(Response::ResponseTxn(inner)) => Ok(inner),
        _ => Err(odd("no transaction in its place")),
    }
}

fn range(answer: &TxnResponse, index: usize) -> Result<&RangeResponse, StoreError> {
    match answer
        .responses
        .get(index)
        .and_then(|op| op.response.as_ref())
    {
        Some(Response::ResponseRange(read)) => Ok(read),
        _ => Err(odd("no range in its place")),
    }
}

/// The transactions that a batch nests, read back.
pub fn take_nested(answer: TxnResponse) -> Vec<Option<TxnResponse>> {
    let inner = answer.responses.into_iter().map(|op| match op.response {
        Some(Response::ResponseTxn(inner)) => Some(inner),
        _ => None,
    });
    inner.collect()
}

/// One range in an answer, by its place.
pub fn take_range(answer: &mut TxnResponse, index: usize) -> Result<RangeResponse, StoreError> {
    match answer
        .responses
        .get_mut(index)
        .and_then(|op| op.response.take())
    {
        Some(Response::ResponseRange(read)) => Ok(read),
        _ => Err(odd("no range in its place")),
    }
}

pub fn txn(txn: TxnRequest) -> RequestOp {
    RequestOp {
        request: Some(Request::RequestTxn(txn)),
    }
}

pub fn get(key: Bytes) -> RequestOp {
    get_range(RangeRequest {
        key,
        ..RangeRequest::default()
    })
}

pub fn get_range(range: RangeRequest) -> RequestOp {
    RequestOp {
        request: Some(Request::RequestRange(range)),
    }
}

pub fn put(key: Bytes, value: Bytes, lease: i64) -> RequestOp {
    let put = PutRequest {
        key,
        value,
        lease,
        ..PutRequest::default()
    };
    RequestOp {
        request: Some(Request::RequestPut(put)),
    }
}

/// The keys of this range that were created first.
fn oldest(range: KeyRange) -> RangeRequest {
    RangeRequest {
        key: range.start,
        range_end: range.end,
        limit: FIRST_KEYS,
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}

/// True only for a key that exists: etcd never compares the value of a missing one as true
/// (`applyCompares`).
fn value_above(key: &Bytes, value: Bytes) -> Compare {
    compare(key, CompareResult::Greater, TargetUnion::Value(value))
}

pub fn compare(key: &Bytes, result: CompareResult, union: TargetUnion) -> Compare {
    let target = match &union {
        TargetUnion::Version(_) => CompareTarget::Version,
        TargetUnion::CreateRevision(_) => CompareTarget::Create,
        TargetUnion::ModRevision(_) => CompareTarget::Mod,
        TargetUnion::Value(_) => CompareTarget::Value,
        TargetUnion::Lease(_) => CompareTarget::Lease,
    };
    Compare {
        result: result.into(),
        target: target.into(),
        key: key.clone(),
        target_union: Some(union),
        range_end: Bytes::new(),
    }
}
