//! Classification, rewriting and unwrapping, without etcd: what etcd itself makes of it is in
//! `tests/etcd_proxy`.

mod rewriting;

use super::method::{Method, Recipe};
use super::wire::{put_bytes, put_number};
use super::{Call, EtcdRule, EtcdRules, KeylessWrites, LeasedWrites, Snapshots};
use crate::protocol::{Code, Kind, Unmatched};

fn rules(unmatched: Unmatched) -> EtcdRules {
    let rules = [("job/{id}/**", "job/{id}"), ("orders", "orders")];
    let rules = rules.map(|(key, lock)| EtcdRule::new(key, lock).unwrap());
    EtcdRules::default().with_rules(rules.to_vec(), unmatched)
}

fn range(key: &str, end: &str) -> Vec<u8> {
    let mut message = vec![];
    put_bytes(&mut message, 1, key.as_bytes());
    if !end.is_empty() {
        put_bytes(&mut message, 2, end.as_bytes());
    }
    message
}

fn put(key: &str) -> Vec<u8> {
    let mut message = range(key, "");
    put_bytes(&mut message, 2, b"value");
    // What no version has yet.
    put_bytes(&mut message, 77, b"unknown");
    message
}

fn op(number: u32, message: &[u8]) -> Vec<u8> {
    let mut op = vec![];
    put_bytes(&mut op, number, message);
    op
}

fn txn(compares: &[&str], success: &[Vec<u8>], failure: &[Vec<u8>]) -> Vec<u8> {
    let mut message = vec![];
    for key in compares {
        let mut compare = vec![];
        put_bytes(&mut compare, 3, key.as_bytes());
        put_bytes(&mut message, 1, &compare);
    }
    success.iter().for_each(|op| put_bytes(&mut message, 2, op));
    failure.iter().for_each(|op| put_bytes(&mut message, 3, op));
    put_bytes(&mut message, 55, b"unknown");
    message
}

fn classify(
    rules: &EtcdRules,
    method: Method,
    message: &[u8],
) -> Result<(Kind, Vec<String>), Code> {
    match rules.classify(method, message) {
        Ok(Call { kind, locks, .. }) => Ok((kind, locks.iter().map(ToString::to_string).collect())),
        Err(refusal) => Err(refusal.code),
    }
}

fn write(locks: &[&str]) -> Result<(Kind, Vec<String>), Code> {
    Ok((
        Kind::Write,
        locks.iter().map(|lock| (*lock).to_owned()).collect(),
    ))
}

#[test]
fn writes_need_the_locks_of_their_keys() {
    let rules = rules(Unmatched::Pass);
    let classify = |method, message: &[u8]| classify(&rules, method, message);
    assert_eq!(
        classify(Method::Put, &put("job/7/state")),
        write(&["job/7"])
    );
    assert_eq!(classify(Method::Put, &put("free")), write(&[]));
    assert_eq!(
        classify(Method::DeleteRange, &range("job/7/", "job/70")),
        write(&["job/7"])
    );
    assert_eq!(
        classify(Method::DeleteRange, &range("orders", "")),
        write(&["orders"])
    );
    assert_eq!(
        classify(Method::DeleteRange, &range("k", "oz")),
        write(&["orders"])
    );
    // Which jobs it deletes is not known.
    assert_eq!(
        classify(Method::DeleteRange, &range("\0", "\0")),
        Err(Code::Unclassified)
    );
    assert_eq!(classify(Method::DeleteRange, &range("z", "\0")), write(&[]));
    let reads = Ok((Kind::Read, vec!["job/7".to_owned()]));
    assert_eq!(classify(Method::Range, &range("job/7/x", "")), reads);
    assert_eq!(
        classify(Method::Range, &range("\0", "\0")),
        Ok((Kind::Read, vec!["orders".to_owned()]))
    );
}

#[test]
fn a_transaction_needs_the_locks_of_every_branch_at_any_depth() {
    let rules = rules(Unmatched::Pass);
    let classify = |message: &[u8]| classify(&rules, Method::Txn, message);
    let inner = txn(&["a"], &[], &[op(2, &put("job/2/x"))]);
    let outer = txn(
        &["job/9/x"],
        &[op(1, &range("job/8/x", "")), op(2, &put("job/1/x"))],
        &[op(4, &inner)],
    );
    assert_eq!(classify(&outer), write(&["job/1", "job/2"]));
    let deep = (0..100).fold(op(3, &range("orders", "")), |inner, _| {
        op(4, &txn(&[], &[], &[inner]))
    });
    assert_eq!(classify(&txn(&[], &[deep], &[])), write(&["orders"]));
    let deeper = (0..200).fold(op(2, &put("x")), |inner, _| op(4, &txn(&[], &[inner], &[])));
    assert_eq!(classify(&txn(&[], &[deeper], &[])), Err(Code::Unclassified));
    assert_eq!(
        classify(&txn(&["orders"], &[op(1, &range("orders", ""))], &[]))
            .unwrap()
            .0,
        Kind::Read
    );
    // An operation of a later version may be anything.
    assert_eq!(
        classify(&txn(&[], &[op(5, b"")], &[])),
        Err(Code::Unclassified)
    );
    let twice = [op(1, &range("a", "")), op(2, &put("orders"))].concat();
    assert_eq!(classify(&txn(&[], &[twice], &[])), Err(Code::Invalid));
}

#[test]
fn what_no_rule_covers_is_refused_where_it_is_asked_for() {
    let rules = rules(Unmatched::Reject);
    let classify = |method, message: &[u8]| classify(&rules, method, message);
    assert_eq!(classify(Method::Put, &put("orders")), write(&["orders"]));
    assert_eq!(classify(Method::Put, &put("free")), Err(Code::Unclassified));
    // More than `orders` may be in it.
    assert_eq!(
        classify(Method::DeleteRange, &range("orders", "orders0")),
        Err(Code::Unclassified)
    );
    assert_eq!(classify(Method::DeleteRange, &range("z", "a")), write(&[]));
    assert_eq!(classify(Method::Unknown, b""), Err(Code::Unclassified));
}

#[test]
fn leases_recipes_and_keyless_writes_are_decided_by_options() {
    let strict = rules(Unmatched::Pass);
    let lax = EtcdRules {
        keyless_writes: KeylessWrites::Pass,
        leased_writes: LeasedWrites::Pass,
        ..rules(Unmatched::Pass)
    };
    let leased = |key| {
        let mut message = put(key);
        put_number(&mut message, 3, 99);
        message
    };
    assert_eq!(
        classify(&strict, Method::Put, &leased("orders")),
        Err(Code::Unclassified)
    );
    assert_eq!(classify(&strict, Method::Put, &leased("free")), write(&[]));
    assert_eq!(
        classify(&lax, Method::Put, &leased("orders")),
        write(&["orders"])
    );
    assert_eq!(
        classify(&strict, Method::Keyless, b""),
        Err(Code::Unclassified)
    );
    assert_eq!(classify(&lax, Method::Keyless, b""), write(&[]));
    assert_eq!(
        classify(&EtcdRules::default(), Method::Keyless, b""),
        write(&[])
    );
    // With rules or without: the fence keys may be another listener's.
    for rules in [&strict, &lax, &EtcdRules::default()] {
        let refused = classify(rules, Method::Snapshot, b"");
        assert_eq!(refused, Err(Code::Unclassified));
        let open = EtcdRules {
            snapshots: Snapshots::Pass,
            ..rules.clone()
        };
        let passed = classify(&open, Method::Snapshot, b"");
        assert_eq!(passed, Ok((Kind::Read, vec![])));
    }
    let alarm = |action| {
        let mut message = vec![];
        put_number(&mut message, 1, action);
        message
    };
    assert_eq!(
        classify(&strict, Method::Alarm, &alarm(0)),
        Ok((Kind::Read, vec![]))
    );
    assert_eq!(
        classify(&strict, Method::Alarm, &alarm(2)),
        Err(Code::Unclassified)
    );
    let name = |text: &str| op(1, text.as_bytes());
    let below = Method::Recipe(Recipe::BelowName);
    assert_eq!(
        classify(&strict, below, &name("job/7")),
        Err(Code::Unclassified)
    );
    assert_eq!(classify(&strict, below, &name("elsewhere")), write(&[]));
    assert_eq!(
        classify(&strict, below, &name("_ringfence")),
        Err(Code::Unclassified)
    );
    let leader = op(1, &op(2, b"orders"));
    assert_eq!(
        classify(&strict, Method::Recipe(Recipe::LeaderKey), &leader),
        Err(Code::Unclassified)
    );
}

#[test]
fn fence_keys_can_be_neither_written_nor_compared() {
    let rules = EtcdRules::default();
    let fence = "_ringfence/floor/orders";
    assert_eq!(
        classify(&rules, Method::Put, &put(fence)),
        Err(Code::Unclassified)
    );
    let compares = txn(&[fence], &[], &[]);
    assert_eq!(
        classify(&rules, Method::Txn, &compares),
        Err(Code::Unclassified)
    );
    let nested = txn(&[], &[op(4, &txn(&[], &[], &[op(2, &put(fence))]))], &[]);
    assert_eq!(
        classify(&rules, Method::Txn, &nested),
        Err(Code::Unclassified)
    );
    assert!(
        rules
            .classify(Method::DeleteRange, &range(fence, ""))
            .is_ok()
    );
}
