//! What etcd is sent in place of a request: the fence comparisons around it, and its ranges without
//! the fence keys.
//!
//! | the client's request | what etcd gets |
//! |---|---|
//! | Range, Put, DeleteRange under tickets | `Txn { If floors; Then it; Else read the floors }` |
//! | Txn under tickets | the same with the whole Txn as one nested operation |
//! | a Txn that leaves no room for that | the same with two parts of it ([`super::split`]) |
//! | a guarded key that is put with a lease | as under tickets, if nobody revokes the lease |
//! | a range across the fence keys | its two parts around them, in one transaction |
//! | a range of fence keys alone | a range in which no key can be |
//! | all else | what the client sent, byte for byte |
//!
//! A range read stays a transaction of reads, which etcd answers without its log. Everything that
//! the client's messages hold is copied as it came, fields that are not known here included; what
//! is left out of an edited range is named in `edit_range`. [`Answer`] turns
//! the response back.
//!
//! What is left: within a transaction, a deletion across the fence keys is a transaction of two,
//! and etcd (`checkIntervals`) compares these no more with the puts of transactions before them. So
//! it takes a few transactions that it would refuse alone for a key that is put and deleted, and
//! applies them in their order.

use std::borrow::Cow;

use super::answer::{Answer, Merge, Plan, Shape};
use super::fence::{Fence, FenceKeys};
use super::key::KeyRange;
use super::request::{DELETE_OP, Op, PUT_OP, RANGE_OP, RangeOp, Sort, TXN_OP, TxnOp};
use super::split::{self, Cut, Fit, NoRoom, TxnOpsMax};
use super::wire;

/// A request for etcd's `KV/Txn`, and how its response is read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rewritten {
    /// The `TxnRequest`.
    pub message: Vec<u8>,
    /// How the client's response is found in etcd's.
    pub answer: Answer,
}

/// The fences of a request. Reads under a ticket are linearizable: an old member's state could be
/// from before the seal.
struct Editor<'k> {
    keys: &'k FenceKeys,
    fenced: bool,
}

/// What stands in a request for `TxnRequest`.
const COMPARE: u32 = 1;
pub(super) const SUCCESS: u32 = 2;
/// See [`SUCCESS`].
pub(super) const FAILURE: u32 = 3;

/// What etcd is to get; `None`: what the client sent. `leases`: those that guarded keys are
/// attached to; there is a fence then.
pub fn rewrite(
    op: &Op<'_>,
    keys: &FenceKeys,
    fences: &[Fence],
    leases: &[u64],
    max: TxnOpsMax,
) -> Result<Option<Rewritten>, NoRoom> {
    let mut rewritten = match op {
        Op::Txn(txn) => match split::fit(txn, keys, fences.len() + leases.len(), max)? {
            Fit::InTwo(cut) => Some(Editor::new(keys, fences).in_two(txn, cut, fences)),
            Fit::Whole => whole(op, keys, fences),
        },
        _ => whole(op, keys, fences),
    };
    // Fields of other numbers may stand between those of one.
    if let Some(rewritten) = &mut rewritten {
        for lease in leases {
            wire::put_bytes(&mut rewritten.message, COMPARE, &keys.compare_lease(*lease));
        }
    }
    Ok(rewritten)
}

/// The same for what is no larger than any server takes it.
pub(super) fn whole(op: &Op<'_>, keys: &FenceKeys, fences: &[Fence]) -> Option<Rewritten> {
    Editor::new(keys, fences).whole(op, fences)
}

/// A transaction that only compares floors, and reads them if one differs.
pub fn check(keys: &FenceKeys, fences: &[Fence]) -> Vec<u8> {
    let mut message = vec![];
    for fence in fences {
        wire::put_bytes(&mut message, COMPARE, &keys.compare(fence));
        let read = request_op(RANGE_OP, &keys.read(&fence.lock));
        wire::put_bytes(&mut message, FAILURE, &read);
    }
    message
}

fn raw<'a>(op: &Op<'a>) -> &'a [u8] {
    match op {
        Op::Range(range) => range.raw,
        Op::Put(put) => put.raw,
        Op::Delete(delete) => delete.raw,
        Op::Txn(txn) => txn.raw,
        Op::Nothing => &[],
    }
}

fn request_op(operation: u32, message: &[u8]) -> Vec<u8> {
    let mut op = Vec::with_capacity(message.len() + 8);
    wire::put_bytes(&mut op, operation, message);
    op
}

/// The messages that stand for one; `None`: it stays as it is.
type Messages<'a> = Option<Vec<Cow<'a, [u8]>>>;

impl<'k> Editor<'k> {
    fn new(keys: &'k FenceKeys, fences: &[Fence]) -> Editor<'k> {
        Editor {
            keys,
            fenced: !fences.is_empty(),
        }
    }

    fn whole(&self, op: &Op<'_>, fences: &[Fence]) -> Option<Rewritten> {
        if let (Op::Txn(txn), []) = (op, fences) {
            let (message, plan) = self.edit_txn(txn)?;
            let answer = Answer {
                fences: 0,
                operation: TXN_OP,
                shape: Shape::Own,
                plan,
            };
            return Some(Rewritten { message, answer });
        }
        let (operation, messages, plan) = self.edit(op)?;
        let messages = match (messages, fences) {
            (None, []) => return None,
            (None, _) => vec![Cow::Borrowed(raw(op))],
            (Some(messages), _) => messages,
        };
        let mut message = check(self.keys, fences);
        message.reserve(messages.iter().map(|it| it.len()).sum::<usize>() + 64);
        for operand in &messages {
            wire::put_bytes(&mut message, SUCCESS, &request_op(operation, operand));
        }
        let answer = Answer {
            fences: fences.len(),
            operation,
            shape: Shape::Within,
            plan,
        };
        Some(Rewritten { message, answer })
    }

    fn in_two(&self, txn: &TxnOp<'_>, cut: Cut, fences: &[Fence]) -> Rewritten {
        let (inner, plan) = match self.edit_txn(txn) {
            Some(edited) => edited,
            None => (txn.raw.to_vec(), Plan::Same),
        };
        let mut message = check(self.keys, fences);
        message.reserve(inner.len() + 64);
        for part in split::parts(&inner, cut) {
            wire::put_bytes(&mut message, SUCCESS, &request_op(TXN_OP, &part));
        }
        let answer = Answer {
            fences: fences.len(),
            operation: TXN_OP,
            shape: Shape::InTwo,
            plan,
        };
        Rewritten { message, answer }
    }

    /// `None`: there is nothing to send but what came.
    fn edit<'a>(&self, op: &Op<'a>) -> Option<(u32, Messages<'a>, Plan)> {
        Some(match op {
            Op::Range(range) => {
                let (messages, plan) = self.edit_range(range);
                (RANGE_OP, messages, plan)
            }
            Op::Put(_) => (PUT_OP, None, Plan::Same),
            Op::Delete(delete) => {
                let messages = self.pieces(delete.range, delete.raw, &[]);
                let plan = match &messages {
                    Some(messages) if messages.len() == 2 => Plan::Deletes,
                    _ => Plan::Same,
                };
                (DELETE_OP, messages, plan)
            }
            Op::Txn(txn) => match self.edit_txn(txn) {
                None => (TXN_OP, None, Plan::Same),
                Some((message, plan)) => (TXN_OP, Some(vec![message.into()]), plan),
            },
            Op::Nothing => return None,
        })
    }

    fn edit_range<'a>(&self, range: &RangeOp<'a>) -> (Messages<'a>, Plan) {
        let mut left_out = vec![];
        if self.fenced && range.serializable {
            left_out.push(7);
        }
        let by_value = range.sort.target == Sort::VALUE;
        let split = self.keys.meets(range.range);
        if split && range.keys_only && by_value {
            // The two parts are merged by their values, which are taken out afterwards.
            left_out.push(8);
        }
        if !split && left_out.is_empty() {
            return (None, Plan::Same);
        }
        let messages = match self.pieces(range.range, range.raw, &left_out) {
            Some(messages) => messages,
            None => vec![
                edited(
                    range.range.key(),
                    range.range.range_end(),
                    range.raw,
                    &left_out,
                )
                .into(),
            ],
        };
        let plan = match messages.len() {
            2 => Plan::Ranges(Merge {
                limit: range.limit,
                sort: range.sort,
                drop_values: range.keys_only && by_value,
            }),
            _ if left_out.contains(&8) => Plan::Ranges(Merge {
                limit: range.limit,
                sort: range.sort,
                drop_values: true,
            }),
            _ => Plan::Same,
        };
        (Some(messages), plan)
    }

    /// The message once for each part of its range that holds no fence key; `None`: none is in it.
    fn pieces<'a>(&self, range: KeyRange<'_>, raw: &[u8], left_out: &[u32]) -> Messages<'a> {
        if !self.keys.meets(range) {
            return None;
        }
        let (below, above) = self.keys.around(range);
        let mut pieces: Vec<Cow<'a, [u8]>> = below
            .into_iter()
            .chain(above)
            .map(|part| edited(part.key(), part.range_end(), raw, left_out).into())
            .collect();
        if pieces.is_empty() {
            let (key, end) = self.keys.nowhere();
            pieces.push(edited(key, end, raw, left_out).into());
        }
        Some(pieces)
    }

    /// `None`: nothing in it is to be edited.
    fn edit_txn(&self, txn: &TxnOp<'_>) -> Option<(Vec<u8>, Plan)> {
        let edit_all = |ops: &[Op<'_>]| -> Vec<(Option<Vec<u8>>, Plan)> {
            ops.iter().map(|op| self.edit_within(op)).collect()
        };
        let (success, failure) = (edit_all(&txn.success), edit_all(&txn.failure));
        if success
            .iter()
            .chain(&failure)
            .all(|(edited, _)| edited.is_none())
        {
            return None;
        }
        let mut message = Vec::with_capacity(txn.raw.len() + 256);
        let (mut successes, mut failures) = (success.iter(), failure.iter());
        for field in wire::fields(txn.raw).flatten() {
            let edit = match field.number {
                SUCCESS => successes.next(),
                FAILURE => failures.next(),
                _ => None,
            };
            match edit {
                Some((Some(op), _)) => wire::put_bytes(&mut message, field.number, op),
                _ => message.extend_from_slice(field.raw),
            }
        }
        let plans = |edits: Vec<(_, Plan)>| edits.into_iter().map(|(_, plan)| plan).collect();
        let plan = Plan::Txn {
            success: plans(success),
            failure: plans(failure),
        };
        Some((message, plan))
    }

    /// The `RequestOp` that stands for one in a transaction: one for one, so that the responses do.
    fn edit_within(&self, op: &Op<'_>) -> (Option<Vec<u8>>, Plan) {
        let Some((operation, Some(messages), plan)) = self.edit(op) else {
            return (None, Plan::Same);
        };
        let op = match messages.as_slice() {
            [message] => request_op(operation, message),
            messages => {
                let mut txn = vec![];
                for message in messages {
                    wire::put_bytes(&mut txn, SUCCESS, &request_op(operation, message));
                }
                request_op(TXN_OP, &txn)
            }
        };
        (Some(op), plan)
    }
}

/// The message with another range, and without some of its fields.
fn edited(key: &[u8], range_end: &[u8], raw: &[u8], left_out: &[u32]) -> Vec<u8> {
    let mut message = Vec::with_capacity(raw.len() + 64);
    wire::put_bytes(&mut message, 1, key);
    if !range_end.is_empty() {
        wire::put_bytes(&mut message, 2, range_end);
    }
    for field in wire::fields(raw).flatten() {
        if field.number > 2 && !left_out.contains(&field.number) {
            message.extend_from_slice(field.raw);
        }
    }
    message
}
