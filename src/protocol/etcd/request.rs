//! The requests of etcd's KV service, as far as fencing asks: which keys they are about, in every
//! branch and at any depth of a transaction.
//!
//! Field numbers: etcd's `rpc.proto`, the same in 3.4 and 3.5. A field that is not known here stays
//! in the message; an operation that is not known is refused.

use super::key::KeyRange;
use super::wire::{self, Malformed, Shape};

/// Deepest nesting of transactions that is looked into. etcd's own limit on operations
/// (`--max-txn-ops`, 128) ends a deeper one too.
pub const TXN_DEPTH_MAX: usize = 128;

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op<'a> {
    /// Reads.
    Range(RangeOp<'a>),
    /// Sets a key.
    Put(PutOp<'a>),
    /// Deletes keys.
    Delete(DeleteOp<'a>),
    /// Compares, then one of two lists of operations.
    Txn(TxnOp<'a>),
    /// An empty operation: etcd refuses it.
    Nothing,
}

/// `RangeRequest`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeOp<'a> {
    /// What is read.
    pub range: KeyRange<'a>,
    /// At most so many; 0: all.
    pub limit: u64,
    /// In which order.
    pub sort: Sort,
    /// Without values.
    pub keys_only: bool,
    /// From any member's own state, which may be old.
    pub serializable: bool,
    /// The message.
    pub raw: &'a [u8],
}

/// `sort_order` and `sort_target`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sort {
    /// 0 none, 1 ascending, 2 descending.
    pub order: u64,
    /// 0 key, 1 version, 2 creation, 3 modification, 4 value.
    pub target: u64,
}

/// `PutRequest`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutOp<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The lease that it is attached to; 0: none.
    pub lease: u64,
    /// The message.
    pub raw: &'a [u8],
}

/// `DeleteRangeRequest`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeleteOp<'a> {
    /// What is deleted.
    pub range: KeyRange<'a>,
    /// The message.
    pub raw: &'a [u8],
}

/// `TxnRequest`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TxnOp<'a> {
    /// What is compared.
    pub compares: Vec<KeyRange<'a>>,
    /// If all comparisons hold.
    pub success: Vec<Op<'a>>,
    /// If one does not.
    pub failure: Vec<Op<'a>>,
    /// The message.
    pub raw: &'a [u8],
}

/// Why a request cannot be classified.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is no message.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A transaction holds an operation that this version does not know.
    #[error("a transaction holds an operation that is not known here")]
    UnknownOp,
    /// Transactions in transactions.
    #[error("transactions are nested deeper than {TXN_DEPTH_MAX} times")]
    TooDeep,
}

const RANGE: Shape = Shape {
    varints: &[3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
    bytes: &[1, 2],
    repeated: &[],
};
const PUT: Shape = Shape {
    varints: &[3, 4, 5, 6],
    bytes: &[1, 2],
    repeated: &[],
};
const DELETE: Shape = Shape {
    varints: &[3],
    bytes: &[1, 2],
    repeated: &[],
};
const TXN: Shape = Shape {
    varints: &[],
    bytes: &[],
    repeated: &[1, 2, 3],
};
const COMPARE: Shape = Shape {
    varints: &[1, 2, 4, 5, 6, 8],
    bytes: &[3, 7, 64],
    repeated: &[],
};

/// Reads a `RangeRequest`.
pub fn range(raw: &[u8]) -> Result<RangeOp<'_>, Malformed> {
    let (mut key, mut end): (&[u8], &[u8]) = (&[], &[]);
    let mut numbers = [0; 14];
    wire::scan(raw, RANGE, |number, value| match number {
        1 => key = value.bytes(),
        2 => end = value.bytes(),
        // The shape lets no other number through.
        number => numbers[number as usize % 14] = value.number(),
    })?;
    Ok(RangeOp {
        range: KeyRange::new(key, end),
        limit: numbers[3],
        sort: Sort {
            order: numbers[5],
            target: numbers[6],
        },
        keys_only: numbers[8] != 0,
        serializable: numbers[7] != 0,
        raw,
    })
}

/// Reads a `PutRequest`.
pub fn put(raw: &[u8]) -> Result<PutOp<'_>, Malformed> {
    let (mut key, mut lease): (&[u8], u64) = (&[], 0);
    wire::scan(raw, PUT, |number, value| match number {
        1 => key = value.bytes(),
        3 => lease = value.number(),
        _ => {}
    })?;
    Ok(PutOp { key, lease, raw })
}

/// Reads a `DeleteRangeRequest`.
pub fn delete(raw: &[u8]) -> Result<DeleteOp<'_>, Malformed> {
    let (mut key, mut end): (&[u8], &[u8]) = (&[], &[]);
    wire::scan(raw, DELETE, |number, value| match number {
        1 => key = value.bytes(),
        2 => end = value.bytes(),
        _ => {}
    })?;
    Ok(DeleteOp {
        range: KeyRange::new(key, end),
        raw,
    })
}

/// Reads a `TxnRequest`.
pub fn txn(raw: &[u8]) -> Result<TxnOp<'_>, Unreadable> {
    txn_within(raw, TXN_DEPTH_MAX)
}

fn txn_within(raw: &[u8], depth: usize) -> Result<TxnOp<'_>, Unreadable> {
    let depth = depth.checked_sub(1).ok_or(Unreadable::TooDeep)?;
    let (mut compares, mut success, mut failure) = (vec![], vec![], vec![]);
    wire::scan(raw, TXN, |number, value| {
        let list = match number {
            1 => &mut compares,
            2 => &mut success,
            _ => &mut failure,
        };
        list.push(value.bytes());
    })?;
    Ok(TxnOp {
        compares: compares
            .into_iter()
            .map(compare)
            .collect::<Result<_, _>>()?,
        success: ops(success, depth)?,
        failure: ops(failure, depth)?,
        raw,
    })
}

fn ops(raw: Vec<&[u8]>, depth: usize) -> Result<Vec<Op<'_>>, Unreadable> {
    raw.into_iter().map(|raw| op(raw, depth)).collect()
}

fn compare(raw: &[u8]) -> Result<KeyRange<'_>, Malformed> {
    let (mut key, mut end): (&[u8], &[u8]) = (&[], &[]);
    wire::scan(raw, COMPARE, |number, value| match number {
        3 => key = value.bytes(),
        64 => end = value.bytes(),
        _ => {}
    })?;
    Ok(KeyRange::new(key, end))
}

/// Reads a `RequestOp`.
fn op(raw: &[u8], depth: usize) -> Result<Op<'_>, Unreadable> {
    let mut fields = wire::fields(raw);
    let Some(field) = fields.next().transpose()? else {
        return Ok(Op::Nothing);
    };
    if fields.next().is_some() {
        // One of several: which of them counts depends on the decoder.
        return Err(Malformed("an operation is given twice").into());
    }
    let wire::Value::Bytes(message) = field.value else {
        return Err(Unreadable::UnknownOp);
    };
    Ok(match field.number {
        RANGE_OP => Op::Range(range(message)?),
        PUT_OP => Op::Put(put(message)?),
        DELETE_OP => Op::Delete(delete(message)?),
        TXN_OP => Op::Txn(txn_within(message, depth)?),
        _ => return Err(Unreadable::UnknownOp),
    })
}

/// The numbers of `RequestOp`'s members, and of `ResponseOp`'s.
pub const RANGE_OP: u32 = 1;
/// See [`RANGE_OP`].
pub const PUT_OP: u32 = 2;
/// See [`RANGE_OP`].
pub const DELETE_OP: u32 = 3;
/// See [`RANGE_OP`].
pub const TXN_OP: u32 = 4;

impl<'a> Op<'a> {
    /// Calls `see` with the operation, and with every one within it, whichever branch it is in.
    /// Ends at the first error.
    pub fn each<E>(&self, see: &mut impl FnMut(&Op<'a>) -> Result<(), E>) -> Result<(), E> {
        see(self)?;
        if let Op::Txn(txn) = self {
            for op in txn.success.iter().chain(&txn.failure) {
                op.each(see)?;
            }
        }
        Ok(())
    }

    /// Whether it can change keys.
    pub fn writes(&self) -> bool {
        let found = self.each(&mut |op| match op {
            Op::Put(_) | Op::Delete(_) => Err(()),
            Op::Range(_) | Op::Txn(_) | Op::Nothing => Ok(()),
        });
        found.is_err()
    }
}
