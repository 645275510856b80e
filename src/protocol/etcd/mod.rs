//! etcd as a protected store: which keys a request writes, which locks guard them, and how the
//! check of their tokens becomes part of etcd's own transaction.
//!
//! [`method`] says what each method can change; [`request`] reads the messages of the KV service;
//! [`key`] compares keys and ranges with the rules; [`rewrite`] puts the comparison of the floors
//! ([`fence`]) around a request, and [`answer`] takes it off the response again; [`watch`] hides
//! fence keys from watchers. [`wire`] finds fields without decoding what is around them.
//!
//! Decisions:
//! - all keys that a transaction writes count, in both branches and at any depth, whether they are
//!   reached or not; a range counts where it *may* hold a key that a rule covers;
//! - **leases.** A key that is attached to a lease is deleted when the lease ends, whoever holds
//!   the lock by then: attaching it is a deletion without a token at a time that nobody chooses.
//!   Under a rule a leased Put is therefore refused, unless `leased_writes = "pass"` says that such
//!   keys may vanish. `LeaseRevoke` needs the locks of the keys that hang on the lease; they are
//!   deleted under its tickets before the lease is, which takes no further ones by then;
//! - **etcd's own recipes** (the lock and election services) write keys that no fence can go with:
//!   refused where a rule may cover these keys, passed elsewhere;
//! - **keyless writes** (compaction, members, users, maintenance) have no lock and no transaction:
//!   refused beside rules, unless `keyless_writes = "pass"`;
//! - fence keys are not there: reads do not show them, deletions leave them, writes and comparisons
//!   that name them are refused, and so are snapshots, which hold them, unless
//!   `snapshots = "pass"`.

pub mod answer;
pub mod fence;
pub mod key;
pub mod method;
pub mod request;
pub mod rewrite;
pub mod split;
pub mod watch;
pub mod wire;

#[cfg(test)]
mod tests;

use self::fence::{Fence, FenceKeys};
use self::key::{Cover, KeyPattern, KeyRange, prefix_end};
use self::method::{Method, Recipe};
use self::request::{Op, Unreadable};
use self::rewrite::Rewritten;
use self::split::TxnOpsMax;
use super::pattern::{InvalidPattern, LockTemplate};
use super::{Kind, Refusal, Unmatched};
use crate::lock_name::{LockName, LockPattern};

/// What becomes of writes that have no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeylessWrites {
    /// Refused, where the listener guards anything.
    #[default]
    Refuse,
    /// Forwarded, unfenced.
    Pass,
}

/// What becomes of writes that attach a guarded key to a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LeasedWrites {
    /// Refused: the end of the lease would delete the key past every fence.
    #[default]
    Refuse,
    /// Fenced as other writes; the end of the lease is not.
    Pass,
}

/// What becomes of snapshots, which hold the fence keys, beside rules or without.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Snapshots {
    /// Refused: clients do not see fence keys.
    #[default]
    Refuse,
    /// Forwarded: who may take them may know the floors.
    Pass,
}

/// The rules of an etcd listener.
#[derive(Clone, Debug, Default)]
pub struct EtcdRules {
    rules: Vec<EtcdRule>,
    unmatched: Unmatched,
    /// Where the fence keys are.
    pub keys: FenceKeys,
    /// What becomes of writes without a key.
    pub keyless_writes: KeylessWrites,
    /// What becomes of writes with a lease.
    pub leased_writes: LeasedWrites,
    /// What becomes of snapshots.
    pub snapshots: Snapshots,
    /// Operations that etcd takes in a transaction.
    pub txn_ops_max: TxnOpsMax,
}

/// One rule: these keys are guarded by this lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdRule {
    key: KeyPattern,
    lock: LockTemplate,
}

impl EtcdRule {
    /// The keys and the lock that guards them.
    pub fn new(key: &str, lock: &str) -> Result<EtcdRule, InvalidPattern> {
        let key = KeyPattern::new(key)?;
        let lock = LockTemplate::new(lock, key.captures())?;
        Ok(EtcdRule { key, lock })
    }
}

/// What a request is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call<'m> {
    /// Read or write.
    pub kind: Kind,
    /// The locks that a write needs, or that a bare token on a read is for: sorted, each once.
    pub locks: Vec<LockName>,
    /// A request of the KV service, which can carry fences.
    op: Option<Op<'m>>,
    /// The leases that it attaches guarded keys to: each once.
    leases: Vec<u64>,
    /// The lease that is revoked.
    pub revokes: Option<u64>,
}

/// What rules say about the keys of a request, taken together.
#[derive(Default)]
struct Covering {
    locks: Vec<LockName>,
    /// Why the locks cannot be told.
    doubt: Option<&'static str>,
    /// A key may be there that no rule covers.
    uncovered: bool,
    /// Some rule may be about it.
    touched: bool,
    /// The leases of what some rule may be about.
    leases: Vec<u64>,
}

const NAME_DOUBT: &str = "the key gives no valid lock name";
const RANGE_DOUBT: &str = "it writes to a range of keys, where locks depend on the key";

impl EtcdRules {
    /// The same with these rules.
    pub fn with_rules(self, rules: Vec<EtcdRule>, unmatched: Unmatched) -> EtcdRules {
        EtcdRules {
            rules,
            unmatched,
            ..self
        }
    }

    /// Every lock that a rule can name.
    pub fn lock_patterns(&self) -> Vec<LockPattern> {
        let mut patterns: Vec<LockPattern> = vec![];
        for rule in &self.rules {
            if !patterns.contains(rule.lock.lock_pattern()) {
                patterns.push(rule.lock.lock_pattern().clone());
            }
        }
        patterns
    }

    /// Whether a rule can name this lock.
    pub fn guards_lock(&self, lock: &LockName) -> bool {
        let mut locks = self.rules.iter().map(|rule| rule.lock.lock_pattern());
        locks.any(|pattern| pattern.matches(lock))
    }

    /// Whether [`EtcdRules::classify`] needs the message of this method: it has exactly one.
    pub fn inspects(&self, method: Method) -> bool {
        match method {
            Method::Range | Method::Put | Method::DeleteRange | Method::Txn => true,
            Method::Recipe(_) => true,
            Method::LeaseRevoke | Method::Alarm => self.guards(),
            Method::Watch | Method::Read | Method::Snapshot | Method::Keyless | Method::Unknown => {
                false
            }
        }
    }

    /// Whether any key can be guarded.
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Whether anything can be refused.
    fn guards(&self) -> bool {
        self.has_rules() || self.unmatched == Unmatched::Reject
    }

    /// Classifies a request. `message`: empty where [`EtcdRules::inspects`] says no.
    pub fn classify<'m>(&self, method: Method, message: &'m [u8]) -> Result<Call<'m>, Refusal> {
        let malformed = |error: wire::Malformed| Refusal::invalid(error.to_string());
        let op = match method {
            Method::Range => Op::Range(request::range(message).map_err(malformed)?),
            Method::Put => Op::Put(request::put(message).map_err(malformed)?),
            Method::DeleteRange => Op::Delete(request::delete(message).map_err(malformed)?),
            Method::Txn => Op::Txn(request::txn(message).map_err(|error| match error {
                Unreadable::Malformed(error) => malformed(error),
                error => Refusal::unclassified(error.to_string()),
            })?),
            Method::Watch | Method::Read => return Ok(Call::unfenced(Kind::Read)),
            Method::Snapshot => return self.snapshot(),
            Method::LeaseRevoke if self.guards() => {
                let lease = wire::number_of(message, 1).map_err(malformed)?;
                let revokes = Some(lease);
                return Ok(Call {
                    revokes,
                    ..Call::unfenced(Kind::Write)
                });
            }
            // `AlarmAction.GET` is 0.
            Method::Alarm if wire::number_of(message, 1).map_err(malformed)? == 0 => {
                return Ok(Call::unfenced(Kind::Read));
            }
            Method::Recipe(recipe) => return self.classify_recipe(recipe, message),
            Method::LeaseRevoke | Method::Alarm | Method::Keyless => return self.keyless(),
            Method::Unknown if self.guards() => {
                return Err(Refusal::unclassified(
                    "this method of etcd is not known here",
                ));
            }
            Method::Unknown => return Ok(Call::unfenced(Kind::Write)),
        };
        self.classify_op(op)
    }

    fn keyless<'m>(&self) -> Result<Call<'m>, Refusal> {
        match self.keyless_writes {
            KeylessWrites::Refuse if self.guards() => Err(Refusal::unclassified(
                "this method changes what no lock guards: `keyless_writes` decides about it",
            )),
            KeylessWrites::Refuse | KeylessWrites::Pass => Ok(Call::unfenced(Kind::Write)),
        }
    }

    fn snapshot<'m>(&self) -> Result<Call<'m>, Refusal> {
        match self.snapshots {
            Snapshots::Refuse => Err(Refusal::unclassified(format!(
                "a snapshot holds the keys below `{}`, which belong to the fence: `snapshots` \
                 decides about it",
                self.keys.prefix()
            ))),
            Snapshots::Pass => Ok(Call::unfenced(Kind::Read)),
        }
    }

    fn classify_op<'m>(&self, op: Op<'m>) -> Result<Call<'m>, Refusal> {
        let writes = op.writes();
        let (mut covering, mut reads) = (Covering::default(), Covering::default());
        op.each(&mut |op| self.see(op, &mut covering, &mut reads))?;
        let mut leases = std::mem::take(&mut covering.leases);
        leases.sort_unstable();
        leases.dedup();
        let (kind, mut locks) = match writes {
            true => (Kind::Write, self.decide(covering)?),
            // A bare token is for the one lock of what it reads.
            false => (Kind::Read, reads.locks),
        };
        locks.sort_unstable();
        locks.dedup();
        let op = Some(op);
        Ok(Call {
            kind,
            locks,
            op,
            leases,
            revokes: None,
        })
    }

    fn see(&self, op: &Op<'_>, writes: &mut Covering, reads: &mut Covering) -> Result<(), Refusal> {
        match op {
            Op::Range(op) => self.cover(op.range, reads),
            Op::Delete(op) => self.cover(op.range, writes),
            Op::Put(op) => {
                let range = KeyRange::one(op.key);
                if self.keys.meets(range) {
                    return Err(self.ours());
                }
                let mut put = Covering::default();
                self.cover(range, &mut put);
                if op.lease != 0 && put.touched {
                    if self.leased_writes == LeasedWrites::Refuse {
                        return Err(Refusal::unclassified(
                            "the end of its lease would delete this key whoever holds the lock \
                             then: `leased_writes` decides about it",
                        ));
                    }
                    put.leases.push(op.lease);
                }
                writes.join(put);
            }
            Op::Txn(txn) => {
                if txn.compares.iter().any(|range| self.keys.meets(*range)) {
                    return Err(self.ours());
                }
            }
            Op::Nothing => {}
        }
        Ok(())
    }

    fn ours(&self) -> Refusal {
        Refusal::unclassified(format!(
            "the keys below `{}` belong to the fence",
            self.keys.prefix()
        ))
    }

    fn cover(&self, range: KeyRange<'_>, covering: &mut Covering) {
        let (mut touched, mut whole) = (false, range.is_empty());
        for rule in &self.rules {
            let (captures, known) = match rule.key.cover(range) {
                Cover::No => continue,
                Cover::Yes {
                    captures,
                    whole: all,
                } => {
                    whole |= all;
                    (captures, captures.as_slice().len())
                }
                Cover::Maybe(captures, known) => (captures, known),
            };
            touched = true;
            if rule.lock.captures_used() > known {
                covering.doubt = Some(RANGE_DOUBT);
                continue;
            }
            match rule.lock.build(&captures) {
                Ok(lock) => covering.locks.push(lock),
                Err(_) => covering.doubt = Some(NAME_DOUBT),
            }
        }
        covering.touched |= touched;
        covering.uncovered |= !whole;
    }

    fn decide(&self, covering: Covering) -> Result<Vec<LockName>, Refusal> {
        if let Some(doubt) = covering.doubt {
            return Err(Refusal::unclassified(doubt));
        }
        if covering.uncovered && self.unmatched == Unmatched::Reject {
            return Err(Refusal::unclassified("no rule covers this write"));
        }
        Ok(covering.locks)
    }

    fn classify_recipe<'m>(&self, recipe: Recipe, message: &'m [u8]) -> Result<Call<'m>, Refusal> {
        let malformed = |error: wire::Malformed| Refusal::invalid(error.to_string());
        let first = wire::bytes_of(message, 1).map_err(malformed)?;
        let below = [first, b"/"].concat();
        let end = prefix_end(&below).unwrap_or_default();
        let range = match recipe {
            Recipe::BelowName | Recipe::Reads => KeyRange::new(&below, &end),
            Recipe::Key => KeyRange::one(first),
            Recipe::LeaderKey => KeyRange::one(wire::bytes_of(first, 2).map_err(malformed)?),
        };
        if self.keys.meets(range) {
            return Err(self.ours());
        }
        if recipe == Recipe::Reads {
            return Ok(Call::unfenced(Kind::Read));
        }
        let mut covering = Covering::default();
        self.cover(range, &mut covering);
        if covering.touched {
            return Err(Refusal::unclassified(
                "etcd writes keys here that a rule covers, and no fence can go with them",
            ));
        }
        self.decide(covering)?;
        Ok(Call::unfenced(Kind::Write))
    }

    /// The locks of keys that the end of a lease deletes, and which of the keys they are.
    pub fn cover_leased<'k>(
        &self,
        keys: &'k [Vec<u8>],
    ) -> Result<(Vec<LockName>, Vec<&'k [u8]>), Refusal> {
        let (mut locks, mut covered) = (vec![], vec![]);
        for key in keys {
            let mut covering = Covering::default();
            self.cover(KeyRange::one(key), &mut covering);
            if covering.touched {
                covered.push(key.as_slice());
            }
            locks.extend(self.decide(covering)?);
        }
        locks.sort_unstable();
        locks.dedup();
        Ok((locks, covered))
    }
}

impl Covering {
    fn join(&mut self, other: Covering) {
        self.locks.extend(other.locks);
        self.leases.extend(other.leases);
        self.doubt = self.doubt.or(other.doubt);
        self.uncovered |= other.uncovered;
        self.touched |= other.touched;
    }
}

impl<'m> Call<'m> {
    fn unfenced(kind: Kind) -> Call<'m> {
        Call {
            kind,
            locks: vec![],
            op: None,
            leases: vec![],
            revokes: None,
        }
    }

    /// What etcd is to get under these fences; `None`: what the client sent.
    pub fn rewrite(
        &self,
        rules: &EtcdRules,
        fences: &[Fence],
    ) -> Result<Option<Rewritten>, Refusal> {
        let Some(op) = &self.op else {
            return Ok(None);
        };
        // Where nothing is fenced nothing is enforced.
        let leases = match fences {
            [] => &[],
            _ => self.leases.as_slice(),
        };
        rewrite::rewrite(op, &rules.keys, fences, leases, rules.txn_ops_max)
            .map_err(|no_room| Refusal::invalid(no_room.to_string()))
    }

    /// Whether it attaches guarded keys to leases, which may be about to be revoked.
    pub fn attaches(&self) -> bool {
        !self.leases.is_empty()
    }

    /// Whether the fences can be part of the request.
    pub fn carries_fences(&self) -> bool {
        self.op.is_some()
    }

    /// The first key that it is about, for the audit.
    pub fn subject(&self) -> Option<String> {
        let first = |op: &Op<'_>| match op {
            Op::Range(op) => Some(op.range.key().to_vec()),
            Op::Put(op) => Some(op.key.to_vec()),
            Op::Delete(op) => Some(op.range.key().to_vec()),
            Op::Txn(_) | Op::Nothing => None,
        };
        let mut found = None;
        // An error ends the search: it has been found.
        let _ = self.op.as_ref()?.each(&mut |op| {
            found = first(op);
            if found.is_some() { Err(()) } else { Ok(()) }
        });
        Some(String::from_utf8_lossy(&found?).into_owned())
    }
}

/// A transaction that deletes keys of a lease, each if it still hangs on it.
pub fn delete_leased(keys: &FenceKeys, fences: &[Fence], lease: u64, doomed: &[&[u8]]) -> Vec<u8> {
    let mut txn = vec![];
    for key in doomed {
        // `Compare { EQUAL, LEASE = 4, key, lease }`.
        let (mut compare, mut delete, mut op, mut inner) = (vec![], vec![], vec![], vec![]);
        wire::put_number(&mut compare, 2, 4);
        wire::put_bytes(&mut compare, 3, key);
        wire::put_number(&mut compare, 8, lease);
        wire::put_bytes(&mut delete, 1, key);
        wire::put_bytes(&mut op, request::DELETE_OP, &delete);
        wire::put_bytes(&mut inner, 1, &compare);
        wire::put_bytes(&mut inner, 2, &op);
        let mut outer = vec![];
        wire::put_bytes(&mut outer, request::TXN_OP, &inner);
        wire::put_bytes(&mut txn, 2, &outer);
    }
    let op = Op::Txn(request::TxnOp {
        compares: vec![],
        success: vec![],
        failure: vec![],
        raw: &txn,
    });
    match rewrite::whole(&op, keys, fences) {
        Some(rewritten) => rewritten.message,
        None => txn,
    }
}
