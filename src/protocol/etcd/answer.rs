//! From etcd's response to a rewritten request back to the one that the client expects: header,
//! revision and fields as if nothing had been around it.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::fence::Seen;
use super::request::{DELETE_OP, RANGE_OP, Sort, TXN_OP};
use super::wire::{self, Malformed};

/// How the client's response is found in etcd's `TxnResponse`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// How many fences were compared.
    pub fences: usize,
    /// Which `RequestOp` the client's request is.
    pub operation: u32,
    /// Where the client's transaction is.
    pub shape: Shape,
    /// What is to be merged.
    pub plan: Plan,
}

/// Where the client's request is in etcd's transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// It is the client's own.
    Own,
    /// Within it.
    Within,
    /// Within it, in two parts.
    InTwo,
}

/// What becomes of one response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Plan {
    /// It stays.
    Same,
    /// Two parts of a range read become one.
    Ranges(Merge),
    /// Two parts of a deletion become one.
    Deletes,
    /// The responses of the branch that was taken, one by one.
    Txn {
        /// If the client's comparisons held.
        success: Vec<Plan>,
        /// If they did not.
        failure: Vec<Plan>,
    },
}

/// How two parts of a range read are put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Merge {
    /// At most so many; 0: all.
    pub limit: u64,
    /// The order that was asked for.
    pub sort: Sort,
    /// The client did not ask for values.
    pub drop_values: bool,
}

/// What etcd said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unwrapped {
    /// The client's response.
    Reply(Vec<u8>),
    /// A floor is not what it was compared to, and nothing was applied: what each of them is, in
    /// the order of the fences.
    Fenced(Vec<Seen>),
}

impl Sort {
    /// `SortTarget.VALUE`.
    pub const VALUE: u64 = 4;
}

const HEADER: u32 = 1;

/// `TxnResponse`.
struct Txn<'a> {
    header: &'a [u8],
    succeeded: bool,
    /// `ResponseOp`s.
    responses: Vec<&'a [u8]>,
}

fn txn(message: &[u8]) -> Result<Txn<'_>, Malformed> {
    let mut txn = Txn {
        header: &[],
        succeeded: false,
        responses: vec![],
    };
    for field in wire::fields(message) {
        let field = field?;
        match field.number {
            HEADER => txn.header = field.value.bytes(),
            2 => txn.succeeded = field.value.number() != 0,
            3 => txn.responses.push(field.value.bytes()),
            _ => {}
        }
    }
    Ok(txn)
}

impl Answer {
    /// Reads etcd's response.
    pub fn unwrap(&self, message: &[u8]) -> Result<Unwrapped, Malformed> {
        let outer = txn(message)?;
        if self.fences > 0 && !outer.succeeded {
            return Ok(Unwrapped::Fenced(floors(&outer)?));
        }
        if self.shape == Shape::Own {
            return Ok(Unwrapped::Reply(self.plan.apply_txn(message)?.into_owned()));
        }
        let parts: Vec<&[u8]> = outer
            .responses
            .iter()
            .map(|response| wire::bytes_of(response, self.operation))
            .collect::<Result<_, _>>()?;
        if self.shape == Shape::InTwo {
            let whole = join(&parts)?;
            let reply = self.plan.apply_txn(&whole)?;
            return Ok(Unwrapped::Reply(with_header(outer.header, &reply)));
        }
        let reply = match (&self.plan, parts.as_slice()) {
            (_, []) => return Err(Malformed("the transaction has no response")),
            (Plan::Txn { .. }, [part, ..]) => self.plan.apply_txn(part)?,
            (Plan::Ranges(merge), parts) => merge.ranges(parts)?.into(),
            (Plan::Deletes, parts) => deletes(parts)?.into(),
            (Plan::Same, [part, ..]) => Cow::Borrowed(*part),
        };
        Ok(Unwrapped::Reply(with_header(outer.header, &reply)))
    }
}

/// One `TxnResponse` from those of its two parts.
fn join(parts: &[&[u8]]) -> Result<Vec<u8>, Malformed> {
    let [first, second] = parts else {
        return Err(Malformed("the transaction has not two parts"));
    };
    let rest = txn(second)?;
    if txn(first)?.succeeded != rest.succeeded {
        return Err(Malformed("the parts of a transaction took two branches"));
    }
    let mut whole = first.to_vec();
    for response in rest.responses {
        wire::put_bytes(&mut whole, 3, response);
    }
    Ok(whole)
}

fn floors(outer: &Txn<'_>) -> Result<Vec<Seen>, Malformed> {
    let seen = |response: &&[u8]| Seen::of_range(wire::bytes_of(response, RANGE_OP)?);
    outer.responses.iter().map(seen).collect()
}

/// What etcd says to a transaction of comparisons alone ([`super::rewrite::check`]): what each
/// floor is if one is not what it was compared to.
pub fn checked(message: &[u8]) -> Result<Option<Vec<Seen>>, Malformed> {
    let outer = txn(message)?;
    match outer.succeeded {
        true => Ok(None),
        false => floors(&outer).map(Some),
    }
}

/// The response under the header of the transaction around it.
fn with_header(header: &[u8], response: &[u8]) -> Vec<u8> {
    let mut reply = Vec::with_capacity(header.len() + response.len() + 8);
    wire::put_bytes(&mut reply, HEADER, header);
    for field in wire::fields(response).flatten() {
        if field.number != HEADER {
            reply.extend_from_slice(field.raw);
        }
    }
    reply
}

impl Plan {
    /// The same for a whole `TxnResponse`.
    fn apply_txn<'a>(&self, message: &'a [u8]) -> Result<Cow<'a, [u8]>, Malformed> {
        let Plan::Txn { success, failure } = self else {
            return Ok(Cow::Borrowed(message));
        };
        let taken = if txn(message)?.succeeded {
            success
        } else {
            failure
        };
        let mut plans = taken.iter();
        let mut edited = Vec::with_capacity(message.len());
        for field in wire::fields(message) {
            let field = field?;
            match (field.number, plans_next(field.number, &mut plans)) {
                (3, Some(plan)) => {
                    let response = plan.apply(field.value.bytes())?;
                    wire::put_bytes(&mut edited, 3, &response);
                }
                _ => edited.extend_from_slice(field.raw),
            }
        }
        Ok(edited.into())
    }

    /// The same for a `ResponseOp` within a transaction.
    fn apply<'a>(&self, response: &'a [u8]) -> Result<Cow<'a, [u8]>, Malformed> {
        let parts = |operation| -> Result<Vec<&'a [u8]>, Malformed> {
            let nested = wire::bytes_of(response, TXN_OP)?;
            match nested.is_empty() {
                // It was not split.
                true => Ok(vec![wire::bytes_of(response, operation)?]),
                false => {
                    let responses = txn(nested)?.responses;
                    let part = |response| wire::bytes_of(response, operation);
                    responses.into_iter().map(part).collect()
                }
            }
        };
        let (operation, message) = match self {
            Plan::Same => return Ok(Cow::Borrowed(response)),
            Plan::Ranges(merge) => (RANGE_OP, merge.ranges(&parts(RANGE_OP)?)?),
            Plan::Deletes => (DELETE_OP, deletes(&parts(DELETE_OP)?)?),
            Plan::Txn { .. } => {
                let nested = wire::bytes_of(response, TXN_OP)?;
                (TXN_OP, self.apply_txn(nested)?.into_owned())
            }
        };
        let mut op = vec![];
        wire::put_bytes(&mut op, operation, &message);
        Ok(op.into())
    }
}

fn plans_next<'p>(number: u32, plans: &mut impl Iterator<Item = &'p Plan>) -> Option<&'p Plan> {
    match number {
        3 => plans.next(),
        _ => None,
    }
}

/// `RangeResponse`: `kvs`, `more`, `count`.
const KVS: u32 = 2;
const MORE: u32 = 3;
const COUNT: u32 = 4;

impl Merge {
    /// One `RangeResponse` from its parts, which are in the order of their keys.
    fn ranges(&self, parts: &[&[u8]]) -> Result<Vec<u8>, Malformed> {
        let (mut lists, mut more, mut count) = (vec![], false, 0_u64);
        let mut merged = vec![];
        for (at, part) in parts.iter().enumerate() {
            let mut kvs = vec![];
            for field in wire::fields(part) {
                let field = field?;
                match field.number {
                    KVS => kvs.push(field.value.bytes()),
                    MORE => more |= field.value.number() != 0,
                    COUNT => count = count.saturating_add(field.value.number()),
                    _ if at == 0 => merged.extend_from_slice(field.raw),
                    _ => {}
                }
            }
            lists.push(kvs);
        }
        let mut kvs = self.in_order(lists)?;
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        if self.limit > 0 && kvs.len() > limit {
            kvs.truncate(limit);
            more = true;
        }
        for kv in kvs {
            match self.drop_values {
                true => wire::put_bytes(&mut merged, KVS, &without_value(kv)),
                false => wire::put_bytes(&mut merged, KVS, kv),
            }
        }
        wire::put_number(&mut merged, MORE, more.into());
        wire::put_number(&mut merged, COUNT, count);
        Ok(merged)
    }

    /// Each list is in the order that was asked for; so is what comes of them.
    fn in_order<'a>(&self, mut lists: Vec<Vec<&'a [u8]>>) -> Result<Vec<&'a [u8]>, Malformed> {
        const DESCEND: u64 = 2;
        let descending = self.sort.order == DESCEND;
        if !(1..=4).contains(&self.sort.target) {
            if descending {
                lists.reverse();
            }
            return Ok(lists.concat());
        }
        let mut keyed = vec![];
        for kv in lists.into_iter().flatten() {
            keyed.push((SortKey::of(kv, self.sort.target)?, kv));
        }
        // Stable: equal ones stay in the order of their keys.
        keyed.sort_by(|(a, _), (b, _)| match descending {
            false => a.cmp(b),
            true => b.cmp(a),
        });
        Ok(keyed.into_iter().map(|(_, kv)| kv).collect())
    }
}

#[derive(PartialEq, Eq)]
enum SortKey<'a> {
    Number(u64),
    Value(&'a [u8]),
}

impl<'a> SortKey<'a> {
    fn of(kv: &'a [u8], target: u64) -> Result<SortKey<'a>, Malformed> {
        // `KeyValue`: version 4, create_revision 2, mod_revision 3, value 5.
        Ok(match target {
            1 => SortKey::Number(wire::number_of(kv, 4)?),
            2 => SortKey::Number(wire::number_of(kv, 2)?),
            3 => SortKey::Number(wire::number_of(kv, 3)?),
            _ => SortKey::Value(wire::bytes_of(kv, 5)?),
        })
    }

    fn cmp(&self, other: &SortKey<'_>) -> Ordering {
        match (self, other) {
            (SortKey::Number(a), SortKey::Number(b)) => a.cmp(b),
            (SortKey::Value(a), SortKey::Value(b)) => (*a).cmp(b),
            // One list has one kind.
            _ => Ordering::Equal,
        }
    }
}

fn without_value(kv: &[u8]) -> Vec<u8> {
    let fields = wire::fields(kv).flatten();
    fields
        .filter(|field| field.number != 5)
        .flat_map(|field| field.raw.iter().copied())
        .collect()
}

/// One `DeleteRangeResponse` from its parts. Its header is the last one's: a part that deleted
/// nothing before any other did tells the revision before.
fn deletes(parts: &[&[u8]]) -> Result<Vec<u8>, Malformed> {
    let (mut merged, mut deleted) = (vec![], 0_u64);
    for (at, part) in parts.iter().enumerate() {
        for field in wire::fields(part) {
            let field = field?;
            match field.number {
                2 => deleted = deleted.saturating_add(field.value.number()),
                // prev_kvs
                3 => merged.extend_from_slice(field.raw),
                _ if at + 1 == parts.len() => merged.extend_from_slice(field.raw),
                _ => {}
            }
        }
    }
    wire::put_number(&mut merged, 2, deleted);
    Ok(merged)
}
