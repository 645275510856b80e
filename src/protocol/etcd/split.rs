//! Transactions of as many operations as etcd takes: comparing the floors costs one more.
//!
//! etcd counts level by level (`checkTxnRequest` in its `v3rpc/key.go`, the same in 3.4 and 3.5): a
//! level costs the longest of its three lists, and what is nested may cost what that leaves. A
//! client's transaction, nested under the comparison of the floors, so has one operation less than
//! alone. Cut into two parts of half its operations each, side by side, it has room, and is one
//! transaction all the same: etcd evaluates the comparisons of every level before it applies
//! anything (`compareToPath`), so both parts take the same branch, and their operations are applied
//! in order within one revision.
//!
//! etcd refuses a transaction that may put a key twice, or put and delete it (`checkIntervals`). It
//! knows that the two branches of one transaction exclude each other, but not those of two parts,
//! and of two parts it does not compare all. So the parts are cut where they write no key in
//! common; where no such cut is found the client is told.

use std::collections::HashSet;

use super::fence::FenceKeys;
use super::key::KeyRange;
use super::request::{Op, TxnOp};
use super::rewrite::{FAILURE, SUCCESS};
use super::wire;

/// How many operations etcd takes in a transaction: its `--max-txn-ops`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxnOpsMax(pub usize);

impl Default for TxnOpsMax {
    fn default() -> TxnOpsMax {
        TxnOpsMax(128)
    }
}

/// A transaction that etcd would take alone, but not with its fences.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "etcd takes {max} operations in a transaction: this one leaves none for the {fences} \
     comparisons that its tickets and leases need, and its branches cannot be sent in two parts"
)]
pub struct NoRoom {
    /// The server's limit.
    pub max: usize,
    /// Floors and leases that are to be compared.
    pub fences: usize,
}

/// How many operations of each branch are in the first part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    success: usize,
    failure: usize,
}

/// How a transaction is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    Whole,
    InTwo(Cut),
}

/// How a transaction is to be sent under so many comparisons of floors.
pub(super) fn fit(
    txn: &TxnOp<'_>,
    keys: &FenceKeys,
    fences: usize,
    TxnOpsMax(max): TxnOpsMax,
) -> Result<Fit, NoRoom> {
    let asked = cost(txn, &|_| 0);
    let sent = cost(txn, &|range| pieces(keys, range));
    // Of what is too much as it came, etcd says so itself.
    if sent + fences <= max || asked > max {
        return Ok(Fit::Whole);
    }
    let within = sent - level(txn);
    let room = max.saturating_sub(fences.max(2) + within);
    cut(txn, room).map(Fit::InTwo).ok_or(NoRoom { max, fences })
}

/// What etcd counts. `split`: operations that take the place of one on this range, if more do.
fn cost(txn: &TxnOp<'_>, split: &impl Fn(KeyRange<'_>) -> usize) -> usize {
    let within = |op: &Op<'_>| match op {
        Op::Txn(txn) => cost(txn, split),
        Op::Range(op) => split(op.range),
        Op::Delete(op) => split(op.range),
        Op::Put(_) | Op::Nothing => 0,
    };
    let nested = txn.success.iter().chain(&txn.failure).map(within).max();
    level(txn) + nested.unwrap_or_default()
}

fn level(txn: &TxnOp<'_>) -> usize {
    let branches = txn.success.len().max(txn.failure.len());
    branches.max(txn.compares.len())
}

/// A range across the fence keys becomes a transaction of its two parts.
fn pieces(keys: &FenceKeys, range: KeyRange<'_>) -> usize {
    match keys.meets(range) && matches!(keys.around(range), (Some(_), Some(_))) {
        true => 2,
        false => 0,
    }
}

fn cut(txn: &TxnOp<'_>, room: usize) -> Option<Cut> {
    if txn.compares.len() > room {
        return None;
    }
    // In halves, as much as goes into the first part, as much as goes into the second.
    let places = |count: usize| {
        let most = count.min(room);
        let fits = move |first: &usize| *first <= room && count - first <= room;
        [count.div_ceil(2), most, count - most]
            .into_iter()
            .filter(fits)
    };
    places(txn.success.len())
        .flat_map(|success| places(txn.failure.len()).map(move |failure| (success, failure)))
        .map(|(success, failure)| Cut { success, failure })
        .find(|cut| !collides(txn, *cut))
}

/// Whether the two parts write the same keys.
fn collides(txn: &TxnOp<'_>, cut: Cut) -> bool {
    let (then_first, then_second) = txn.success.split_at(cut.success);
    let (else_first, else_second) = txn.failure.split_at(cut.failure);
    let first = Writes::of(then_first.iter().chain(else_first));
    first.meet(&Writes::of(then_second.iter().chain(else_second)))
}

/// What operations write, at any depth.
#[derive(Default)]
struct Writes<'a> {
    puts: HashSet<&'a [u8]>,
    deletes: Vec<KeyRange<'a>>,
}

impl<'a> Writes<'a> {
    fn of<'o>(ops: impl Iterator<Item = &'o Op<'a>>) -> Writes<'a>
    where
        'a: 'o,
    {
        let mut writes = Writes::default();
        for op in ops {
            // It has no error to end with.
            let _ = op.each(&mut |op| {
                match op {
                    Op::Put(op) => drop(writes.puts.insert(op.key)),
                    Op::Delete(op) => writes.deletes.push(op.range),
                    Op::Range(_) | Op::Txn(_) | Op::Nothing => {}
                }
                Ok::<(), ()>(())
            });
        }
        writes
    }

    fn meet(&self, other: &Writes<'_>) -> bool {
        let deleted = |puts: &HashSet<&[u8]>, deletes: &[KeyRange<'_>]| {
            let mut puts = puts.iter();
            puts.any(|key| deletes.iter().any(|range| range.holds(key)))
        };
        self.puts.iter().any(|key| other.puts.contains(key))
            || deleted(&self.puts, &other.deletes)
            || deleted(&other.puts, &self.deletes)
    }
}

/// The two parts of a `TxnRequest`: each with all comparisons, and what is not known here.
pub(super) fn parts(message: &[u8], cut: Cut) -> [Vec<u8>; 2] {
    let mut parts = [vec![], vec![]];
    let (mut successes, mut failures) = (0, 0);
    for field in wire::fields(message).flatten() {
        let part = match field.number {
            SUCCESS => {
                successes += 1;
                usize::from(successes > cut.success)
            }
            FAILURE => {
                failures += 1;
                usize::from(failures > cut.failure)
            }
            _ => {
                parts
                    .iter_mut()
                    .for_each(|it| it.extend_from_slice(field.raw));
                continue;
            }
        };
        parts[part].extend_from_slice(field.raw);
    }
    parts
}
