//! etcd's KV service as its API says it: an independent reading of the same messages, to hold the
//! proxy's rewriting against. Transactions count, refuse and apply as etcd 3.4 and 3.5 do.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use ringfence::etcd_proto::etcdserverpb::compare::TargetUnion;
use ringfence::etcd_proto::etcdserverpb::request_op::Request as Op;
use ringfence::etcd_proto::etcdserverpb::response_op::Response as Answer;
use ringfence::etcd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest,
    RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
};
use ringfence::etcd_proto::mvccpb::KeyValue;

/// What etcd refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    TooManyOps,
    DuplicateKey,
}

/// A store.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Etcd {
    pub kvs: BTreeMap<Bytes, KeyValue>,
    pub revision: i64,
}

impl Etcd {
    /// Without the keys that begin so.
    pub fn without(&self, prefix: &str) -> Etcd {
        let mut rest = self.clone();
        rest.kvs
            .retain(|key, _| !key.starts_with(prefix.as_bytes()));
        rest
    }

    /// A transaction, where at most so many operations are taken.
    pub fn txn(&mut self, txn: &TxnRequest, ops_max: usize) -> Result<TxnResponse, Refused> {
        count(txn, ops_max)?;
        written(&txn.success)?;
        written(&txn.failure)?;
        let taken = self.paths(txn);
        let before = self.revision;
        let mut changed = false;
        let response = self.apply_txn(txn, &mut taken.into_iter(), before + 1, &mut changed);
        if changed {
            self.revision = before + 1;
        }
        Ok(response)
    }

    /// One operation alone.
    pub fn alone(&mut self, op: Op) -> Answer {
        let mut changed = false;
        let next = self.revision + 1;
        let answer = self.apply(&op, &mut std::iter::empty(), next, &mut changed);
        if changed {
            self.revision = next;
        }
        answer
    }

    /// Which branches are taken, in the order in which they are met: all from the state before.
    fn paths(&self, txn: &TxnRequest) -> Vec<bool> {
        let taken = txn.compare.iter().all(|compare| self.holds(compare));
        let mut paths = vec![taken];
        for op in if taken { &txn.success } else { &txn.failure } {
            if let Some(Op::RequestTxn(txn)) = &op.request {
                paths.extend(self.paths(txn));
            }
        }
        paths
    }

    fn holds(&self, compare: &Compare) -> bool {
        let found = self.within(&compare.key, &compare.range_end);
        if found.is_empty() {
            // What a value that is not there is compared to has no answer.
            return compare.target != 3 && is(compare, &KeyValue::default());
        }
        found.iter().all(|kv| is(compare, kv))
    }

    fn within(&self, key: &Bytes, end: &Bytes) -> Vec<KeyValue> {
        let upper = match &end[..] {
            [] => Bound::Included(key),
            [0] => Bound::Unbounded,
            _ if end <= key => return vec![],
            _ => Bound::Excluded(end),
        };
        let found = self.kvs.range::<Bytes, _>((Bound::Included(key), upper));
        found.map(|(_, kv)| kv.clone()).collect()
    }

    fn apply_txn(
        &mut self,
        txn: &TxnRequest,
        taken: &mut dyn Iterator<Item = bool>,
        next: i64,
        changed: &mut bool,
    ) -> TxnResponse {
        let succeeded = taken.next().expect("a path for each transaction");
        let mut responses = vec![];
        for op in if succeeded {
            &txn.success
        } else {
            &txn.failure
        } {
            let op = op.request.as_ref().expect("an operation");
            let response = Some(self.apply(op, taken, next, changed));
            responses.push(ResponseOp { response });
        }
        TxnResponse {
            header: header(next, *changed),
            succeeded,
            responses,
        }
    }

    fn apply(
        &mut self,
        op: &Op,
        taken: &mut dyn Iterator<Item = bool>,
        next: i64,
        changed: &mut bool,
    ) -> Answer {
        match op {
            Op::RequestRange(op) => Answer::ResponseRange(RangeResponse {
                header: header(next, *changed),
                ..self.range(op)
            }),
            Op::RequestPut(op) => {
                *changed = true;
                Answer::ResponsePut(self.put(op, next))
            }
            Op::RequestDeleteRange(op) => {
                let gone = self.within(&op.key, &op.range_end);
                *changed |= !gone.is_empty();
                gone.iter().for_each(|kv| drop(self.kvs.remove(&kv.key)));
                Answer::ResponseDeleteRange(DeleteRangeResponse {
                    header: header(next, *changed),
                    deleted: gone.len() as i64,
                    prev_kvs: if op.prev_kv { gone } else { vec![] },
                })
            }
            Op::RequestTxn(op) => Answer::ResponseTxn(self.apply_txn(op, taken, next, changed)),
        }
    }

    fn put(&mut self, op: &PutRequest, next: i64) -> PutResponse {
        let before = self.kvs.get(&op.key).cloned();
        let kv = KeyValue {
            key: op.key.clone(),
            create_revision: before.as_ref().map_or(next, |kv| kv.create_revision),
            mod_revision: next,
            version: before.as_ref().map_or(0, |kv| kv.version) + 1,
            value: op.value.clone(),
            lease: op.lease,
        };
        self.kvs.insert(op.key.clone(), kv);
        PutResponse {
            header: header(next, true),
            prev_kv: before.filter(|_| op.prev_kv),
        }
    }

    fn range(&self, op: &RangeRequest) -> RangeResponse {
        let mut kvs = self.within(&op.key, &op.range_end);
        let count = kvs.len() as i64;
        // `SortOrder`: NONE, ASCEND, DESCEND; `SortTarget`: KEY, VERSION, CREATE, MOD, VALUE.
        kvs.sort_by(|a, b| {
            let order = match op.sort_target {
                1 => a.version.cmp(&b.version),
                2 => a.create_revision.cmp(&b.create_revision),
                3 => a.mod_revision.cmp(&b.mod_revision),
                4 => a.value.cmp(&b.value),
                _ => a.key.cmp(&b.key),
            };
            if op.sort_order == 2 {
                order.reverse()
            } else {
                order
            }
        });
        let more = op.limit > 0 && count > op.limit;
        if more {
            kvs.truncate(op.limit as usize);
        }
        if op.keys_only {
            kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
        }
        RangeResponse {
            header: None,
            more: more && !op.count_only,
            kvs: if op.count_only { vec![] } else { kvs },
            count,
        }
    }
}

fn header(next: i64, changed: bool) -> Option<ResponseHeader> {
    Some(ResponseHeader {
        revision: if changed { next } else { next - 1 },
        ..Default::default()
    })
}

fn is(compare: &Compare, kv: &KeyValue) -> bool {
    let order = match compare.target_union.as_ref() {
        Some(TargetUnion::Version(wanted)) => kv.version.cmp(wanted),
        Some(TargetUnion::CreateRevision(wanted)) => kv.create_revision.cmp(wanted),
        Some(TargetUnion::ModRevision(wanted)) => kv.mod_revision.cmp(wanted),
        Some(TargetUnion::Value(wanted)) => kv.value.cmp(wanted),
        Some(TargetUnion::Lease(wanted)) => kv.lease.cmp(wanted),
        None => kv.version.cmp(&0),
    };
    match compare.result {
        0 => order.is_eq(),
        1 => order.is_gt(),
        2 => order.is_lt(),
        _ => order.is_ne(),
    }
}

/// `checkTxnRequest`.
fn count(txn: &TxnRequest, max: usize) -> Result<(), Refused> {
    let level = txn
        .compare
        .len()
        .max(txn.success.len())
        .max(txn.failure.len());
    let left = max.checked_sub(level).ok_or(Refused::TooManyOps)?;
    txn.success
        .iter()
        .chain(&txn.failure)
        .try_for_each(|op| match &op.request {
            Some(Op::RequestTxn(txn)) => count(txn, left),
            _ => Ok(()),
        })
}

type Written = (BTreeSet<Bytes>, Vec<DeleteRangeRequest>);

fn deletes(dels: &[DeleteRangeRequest], key: &Bytes) -> bool {
    dels.iter().any(|op| match &op.range_end[..] {
        [] => op.key == *key,
        [0] => op.key <= *key,
        _ => op.key <= *key && *key < op.range_end,
    })
}

/// `checkIntervals`: no key may be put twice, or deleted and put, on one way through.
fn written(ops: &[RequestOp]) -> Result<Written, Refused> {
    let (mut puts, mut dels) = (BTreeSet::new(), vec![]);
    let of = |op: &RequestOp| op.request.clone();
    for op in ops.iter().filter_map(of) {
        if let Op::RequestDeleteRange(op) = op {
            dels.push(op);
        }
    }
    for op in ops.iter().filter_map(of) {
        let Op::RequestTxn(txn) = op else { continue };
        let (then_puts, then_dels) = written(&txn.success)?;
        let (else_puts, else_dels) = written(&txn.failure)?;
        let clashes = |key: &&Bytes| puts.contains(*key) || deletes(&dels, key);
        if then_puts.iter().chain(&else_puts).any(|key| clashes(&key)) {
            return Err(Refused::DuplicateKey);
        }
        puts.extend(then_puts.into_iter().chain(else_puts));
        dels.extend(then_dels.into_iter().chain(else_dels));
    }
    for op in ops.iter().filter_map(of) {
        if let Op::RequestPut(op) = op
            && (deletes(&dels, &op.key) || !puts.insert(op.key))
        {
            return Err(Refused::DuplicateKey);
        }
    }
    Ok((puts, dels))
}
