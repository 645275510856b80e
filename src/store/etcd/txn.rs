//! The transactions of the etcd store, built: pure. What etcd answers is read in `answer`.
//!
//! Each is nested into the transaction of a batch, whose compares etcd evaluates all before any of
//! its operations (etcd `server/etcdserver/apply.go`, `compareToPath`). So no transaction here may
//! rely on what another one of the same batch writes.

use prost::bytes::Bytes;

use super::hints::Candidate;
use super::layout::{Claim, KeyRange, Layout, attempt_text};
use super::message::{compare, delete, get, get_range, put, txn};
use crate::etcd_proto::etcdserverpb::compare::{CompareResult, TargetUnion};
use crate::etcd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::etcd_proto::etcdserverpb::{Compare, RangeRequest, RequestOp, TxnRequest};
use crate::lock_name::LockName;
use crate::store::Enqueue;

/// Keys that are read to find the first entry of a lock: more than one, since the oldest may be
/// foreign keys that are no entries.
const FIRST_KEYS: i64 = 4;

/// The version of the layout that [`Claim`] carries.
const CLAIM_VERSION: u8 = 1;

/// Builds the transactions around one entry. `candidates` are read instead of all keys of the lock
/// to learn who is first.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub layout: &'a Layout,
    pub lock: &'a LockName,
    pub lease: i64,
    pub candidates: &'a [Candidate],
}

impl Place<'_> {
    pub fn key(&self) -> Bytes {
        self.layout.entry(self.lock, self.lease)
    }

    fn mark(&self) -> Bytes {
        self.layout.attempt(self.lock, self.lease)
    }

    /// Flat: stands in the queue if there is no key at all below the lock, and a mark exactly if
    /// one is believed in, below the attempt: what nearly every acquire of a free lock is, in as
    /// few words as etcd can be told it.
    pub fn enqueue_alone(&self, enqueue: &Enqueue, is_marked: bool) -> TxnRequest {
        TxnRequest {
            compare: vec![
                self.unchanged_below(1),
                self.mark_is_below(enqueue.attempt, is_marked),
            ],
            success: self.puts(enqueue),
            failure: Vec::new(),
        }
    }

    /// Flat: stands behind others, as a session that does not stand there yet.
    pub fn enqueue_behind(&self, enqueue: &Enqueue, is_marked: bool) -> TxnRequest {
        TxnRequest {
            compare: vec![
                self.is_missing(),
                self.mark_is_below(enqueue.attempt, is_marked),
            ],
            success: self.create(enqueue),
            failure: Vec::new(),
        }
    }

    /// Flat: removes the entry, which is believed to stand, and reads the candidates; without any,
    /// only counts the keys that are left.
    pub fn remove_standing(&self, create_revision: i64, mod_revision: Option<i64>) -> TxnRequest {
        let candidates = self.candidates.iter();
        let mut success = vec![delete(self.key())];
        success.extend(candidates.map(|candidate| get(candidate.key.clone())));
        if self.candidates.is_empty() {
            let KeyRange { start, end } = self.layout.lock_range(self.lock);
            success.push(get_range(RangeRequest {
                key: start,
                range_end: end,
                count_only: true,
                ..RangeRequest::default()
            }));
        }
        TxnRequest {
            success,
            failure: Vec::new(),
            ..self.remove(create_revision, mod_revision)
        }
    }

    fn is_missing(&self) -> Compare {
        let missing = TargetUnion::CreateRevision(0);
        compare(&self.key(), CompareResult::Equal, missing)
    }

    /// etcd compares no value of a missing key as true (`applyCompares`).
    fn mark_is_below(&self, attempt: u64, is_marked: bool) -> Compare {
        let mark = self.mark();
        if is_marked {
            let attempt = TargetUnion::Value(attempt_text(attempt));
            compare(&mark, CompareResult::Less, attempt)
        } else {
            compare(&mark, CompareResult::Equal, TargetUnion::CreateRevision(0))
        }
    }

    /// Stands in the queue, behind whoever is there.
    pub fn enqueue(&self, enqueue: &Enqueue) -> TxnRequest {
        let create = self.unless_over(enqueue.attempt - 1, self.create(enqueue));
        self.unless_stands(create, vec![txn(self.take_over(enqueue, None))])
    }

    /// Stands in the queue if no key below the lock was created or changed at or after
    /// `changed_below`, the revision after the one at which the caller saw no entry (1: there must
    /// be none at all). If the session stands already, only reads.
    pub fn enqueue_if_first(&self, enqueue: &Enqueue, changed_below: i64) -> TxnRequest {
        let create = TxnRequest {
            compare: vec![self.unchanged_below(changed_below)],
            success: self.create(enqueue),
            failure: self.get_first(),
        };
        let create = self.unless_over(enqueue.attempt - 1, vec![txn(create)]);
        self.unless_stands(create, self.look())
    }

    /// The session's own entry and mark, and who is first.
    fn look(&self) -> Vec<RequestOp> {
        let mut operations = vec![get(self.key()), get(self.mark())];
        operations.extend(self.get_first());
        operations
    }

    /// Rewrites the session's entry, which was created at this revision and was the first one: it
    /// still is if it exists, since only younger ones can have come.
    pub fn rewrite_first(&self, enqueue: &Enqueue, create_revision: i64) -> TxnRequest {
        self.take_over(enqueue, Some(create_revision))
    }

    /// Removes the entry that was created at this revision and, if given, last written at that one.
    pub fn remove(&self, create_revision: i64, mod_revision: Option<i64>) -> TxnRequest {
        let key = self.key();
        let equal = |target| compare(&key, CompareResult::Equal, target);
        let mut compares = vec![equal(TargetUnion::CreateRevision(create_revision))];
        compares.extend(mod_revision.map(|revision| equal(TargetUnion::ModRevision(revision))));
        let mut success = vec![delete(key.clone())];
        success.extend(self.get_first());
        TxnRequest {
            compare: compares,
            success,
            failure: self.get_first(),
        }
    }

    fn unless_stands(&self, create: TxnRequest, stands: Vec<RequestOp>) -> TxnRequest {
        TxnRequest {
            compare: vec![self.is_missing()],
            success: vec![txn(create)],
            failure: stands,
        }
    }

    /// Reads the mark if it is above `attempt`. A missing mark is not: etcd compares no value of a
    /// missing key as true (`applyCompares`).
    fn unless_over(&self, attempt: u64, otherwise: Vec<RequestOp>) -> TxnRequest {
        let above = TargetUnion::Value(attempt_text(attempt));
        TxnRequest {
            compare: vec![compare(&self.mark(), CompareResult::Greater, above)],
            success: vec![get(self.mark())],
            failure: otherwise,
        }
    }

    /// Rewrites the session's entry if this very attempt wrote it; otherwise looks.
    fn take_over(&self, enqueue: &Enqueue, create: Option<i64>) -> TxnRequest {
        let key = self.key();
        let equal = |target| compare(&key, CompareResult::Equal, target);
        let mut compares = vec![equal(TargetUnion::Lease(self.lease))];
        compares.extend(create.map(|revision| equal(TargetUnion::CreateRevision(revision))));
        let mut rewrite = self.puts(enqueue);
        rewrite.push(get(self.key()));
        rewrite.extend(self.get_first());
        let same = TargetUnion::Value(attempt_text(enqueue.attempt));
        let rewrite = TxnRequest {
            compare: vec![compare(&self.mark(), CompareResult::Equal, same)],
            success: rewrite,
            failure: self.look(),
        };
        TxnRequest {
            compare: compares,
            success: vec![txn(self.unless_over(enqueue.attempt, vec![txn(rewrite)]))],
            failure: Vec::new(),
        }
    }

    fn create(&self, enqueue: &Enqueue) -> Vec<RequestOp> {
        let mut operations = self.puts(enqueue);
        operations.extend(self.get_first());
        operations
    }

    fn puts(&self, enqueue: &Enqueue) -> Vec<RequestOp> {
        let claim = serde_json::json!(Claim {
            ringfence: CLAIM_VERSION,
            attempt: enqueue.attempt,
            holder: enqueue.holder.clone(),
        });
        vec![
            put(self.key(), claim.to_string().into(), self.lease),
            put(self.mark(), attempt_text(enqueue.attempt), self.lease),
        ]
    }

    fn get_first(&self) -> Vec<RequestOp> {
        if self.candidates.is_empty() {
            return vec![get_range(oldest(self.layout.lock_range(self.lock)))];
        }
        let candidates = self.candidates.iter();
        candidates
            .map(|candidate| get(candidate.key.clone()))
            .collect()
    }

    /// True if each key below the lock was last written before this revision.
    fn unchanged_below(&self, revision: i64) -> Compare {
        let KeyRange { start, end } = self.layout.lock_range(self.lock);
        let before = TargetUnion::ModRevision(revision);
        Compare {
            range_end: end,
            ..compare(&start, CompareResult::Less, before)
        }
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
