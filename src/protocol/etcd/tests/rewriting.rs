//! Rewriting a call under a fence, and unwrapping its answer.

use super::{op, put, range, rules, txn};
use crate::lock_name::LockName;
use crate::protocol::Unmatched;
use crate::protocol::etcd::answer::Unwrapped;
use crate::protocol::etcd::fence::{Fence, Seen, value};
use crate::protocol::etcd::key::prefix_end;
use crate::protocol::etcd::method::Method;
use crate::protocol::etcd::wire::{bytes_of, fields, number_of, put_bytes, put_number};
use crate::protocol::etcd::{EtcdRules, LeasedWrites};

fn fence(lock: &str, floor: u64) -> Fence {
    Fence {
        lock: LockName::new(lock).unwrap(),
        floor,
        unsigned: false,
    }
}

/// The messages under a number, in order.
fn all(message: &[u8], number: u32) -> Vec<Vec<u8>> {
    let fields = fields(message).map(Result::unwrap);
    fields
        .filter(|field| field.number == number)
        .map(|field| field.value.bytes().to_vec())
        .collect()
}

#[test]
fn a_guarded_key_is_put_with_a_lease_only_while_nobody_revokes_it() {
    let rules = EtcdRules {
        leased_writes: LeasedWrites::Pass,
        ..rules(Unmatched::Pass)
    };
    let leased = |key: &str, lease| {
        let mut message = put(key);
        put_number(&mut message, 3, lease);
        message
    };
    let compared = |ops: &[Vec<u8>]| {
        let message = txn(&[], ops, &[]);
        let call = rules.classify(Method::Txn, &message).unwrap();
        assert!(call.rewrite(&rules, &[]).unwrap().is_none());
        let sent = call.rewrite(&rules, &[fence("orders", 7)]);
        let compares = all(&sent.unwrap().unwrap().message, 1).split_off(1);
        let range = |compare: &Vec<u8>| {
            // EQUAL, CREATE, and no revision.
            assert_eq!(
                (number_of(compare, 1), number_of(compare, 2)),
                (Ok(0), Ok(1))
            );
            assert_eq!(number_of(compare, 5), Ok(0));
            let text = |number| String::from_utf8(bytes_of(compare, number).unwrap().to_vec());
            (text(3).unwrap(), text(64).unwrap())
        };
        compares.iter().map(range).collect::<Vec<_>>()
    };
    let of = |lease: &str| {
        let below = format!("_ringfence/lease/{lease}");
        (format!("{below}/"), format!("{below}0"))
    };
    assert_eq!(compared(&[op(2, &leased("free", 99))]), []);
    assert_eq!(compared(&[op(2, &put("orders"))]), []);
    let twice = [
        op(2, &leased("orders", 99)),
        op(4, &txn(&[], &[], &[op(2, &leased("orders", 1 << 63))])),
        op(2, &leased("orders", 99)),
    ];
    assert_eq!(
        compared(&twice),
        [of("0000000000000063"), of("8000000000000000")]
    );
}

#[test]
fn a_write_is_sent_whole_under_the_comparison_of_every_floor() {
    let rules = rules(Unmatched::Pass);
    let message = put("orders");
    let call = rules.classify(Method::Put, &message).unwrap();
    assert!(
        call.rewrite(&rules, &[]).unwrap().is_none(),
        "nothing is to be changed"
    );
    let fences = [fence("orders", 7), fence("other", 9)];
    let sent = call.rewrite(&rules, &fences).unwrap().unwrap();
    let compares = all(&sent.message, 1);
    assert_eq!(compares.len(), 2);
    for (compare, fence) in compares.iter().zip(&fences) {
        // EQUAL, VALUE.
        assert_eq!(
            (number_of(compare, 1), number_of(compare, 2)),
            (Ok(0), Ok(3))
        );
        assert_eq!(
            bytes_of(compare, 3).unwrap(),
            rules.keys.floor_key(&fence.lock)
        );
        assert_eq!(bytes_of(compare, 7).unwrap(), value(fence));
    }
    assert_eq!(all(&sent.message, 2), [op(2, &message)]);
    assert_eq!(all(&sent.message, 3).len(), 2);
}

fn header(revision: u64) -> Vec<u8> {
    let mut header = vec![];
    put_number(&mut header, 3, revision);
    header
}

fn response(succeeded: bool, responses: &[Vec<u8>]) -> Vec<u8> {
    let mut message = vec![];
    put_bytes(&mut message, 1, &header(42));
    put_number(&mut message, 2, succeeded.into());
    responses
        .iter()
        .for_each(|it| put_bytes(&mut message, 3, it));
    message
}

fn kv(key: &str, version: u64) -> Vec<u8> {
    let mut kv = vec![];
    put_bytes(&mut kv, 1, key.as_bytes());
    put_number(&mut kv, 4, version);
    kv
}

#[test]
fn a_fence_that_failed_is_told_from_a_comparison_of_the_clients_own() {
    let rules = rules(Unmatched::Pass);
    let message = txn(&["a"], &[op(2, &put("orders"))], &[]);
    let call = rules.classify(Method::Txn, &message).unwrap();
    let sent = call
        .rewrite(&rules, &[fence("orders", 7)])
        .unwrap()
        .unwrap();
    assert_eq!(all(&sent.message, 2), [op(4, &message)]);
    // Its own comparison failed.
    let own = response(true, &[op(4, &op(1, &header(3)))]);
    let Unwrapped::Reply(reply) = sent.answer.unwrap(&own).unwrap() else {
        panic!("a fence")
    };
    assert_eq!(
        (bytes_of(&reply, 1), number_of(&reply, 2)),
        (Ok(&*header(42)), Ok(0))
    );
    // The fence's did.
    let mut found = vec![];
    put_bytes(&mut found, 5, &value(&fence("orders", 8)));
    let refused = response(false, &[op(1, &op(2, &found))]);
    let floor = Seen::Floor {
        floor: 8,
        unsigned: false,
    };
    assert_eq!(
        sent.answer.unwrap(&refused),
        Ok(Unwrapped::Fenced(vec![floor]))
    );
    let missing = response(false, &[op(1, b"")]);
    assert_eq!(
        sent.answer.unwrap(&missing),
        Ok(Unwrapped::Fenced(vec![Seen::Missing]))
    );
}

#[test]
fn a_range_over_fence_keys_is_read_around_them_and_put_together() {
    let rules = rules(Unmatched::Pass);
    let mut message = range("\0", "\0");
    put_number(&mut message, 3, 2);
    put_number(&mut message, 5, 1);
    put_number(&mut message, 6, 1);
    put_bytes(&mut message, 66, b"unknown");
    let call = rules.classify(Method::Range, &message).unwrap();
    let sent = call.rewrite(&rules, &[]).unwrap().unwrap();
    let parts: Vec<_> = all(&sent.message, 2)
        .iter()
        .map(|op| bytes_of(op, 1).unwrap().to_vec())
        .collect();
    let ends: Vec<_> = parts
        .iter()
        .map(|part| (bytes_of(part, 1).unwrap(), bytes_of(part, 2).unwrap()))
        .collect();
    let end = prefix_end(b"_ringfence/").unwrap();
    assert_eq!(
        ends,
        [(&b"\0"[..], &b"_ringfence/"[..]), (&end[..], &b"\0"[..])]
    );
    assert!(
        parts
            .iter()
            .all(|part| bytes_of(part, 66) == Ok(b"unknown"))
    );
    let part = |kvs: &[Vec<u8>], count| {
        let mut range = vec![];
        kvs.iter().for_each(|kv| put_bytes(&mut range, 2, kv));
        put_number(&mut range, 4, count);
        op(1, &range)
    };
    let first = part(&[kv("a", 2), kv("b", 5)], 2);
    let second = part(&[kv("x", 1), kv("y", 3)], 3);
    let Unwrapped::Reply(reply) = sent
        .answer
        .unwrap(&response(true, &[first, second]))
        .unwrap()
    else {
        panic!("a fence")
    };
    assert_eq!(
        all(&reply, 2),
        [kv("x", 1), kv("a", 2)],
        "in the order of versions"
    );
    assert_eq!((number_of(&reply, 3), number_of(&reply, 4)), (Ok(1), Ok(5)));
    assert_eq!(bytes_of(&reply, 1).unwrap(), header(42));
}

#[test]
fn deletions_within_transactions_go_around_fence_keys_in_their_place() {
    let rules = rules(Unmatched::Pass);
    let keep = op(2, &put("free"));
    let message = txn(
        &["a"],
        &[keep.clone(), op(3, &range("_", "a"))],
        &[op(3, &range("_ringfence/", ""))],
    );
    let call = rules.classify(Method::Txn, &message).unwrap();
    let sent = call.rewrite(&rules, &[]).unwrap().unwrap();
    assert_eq!(bytes_of(&sent.message, 55).unwrap(), b"unknown");
    let success = all(&sent.message, 2);
    assert_eq!(success[0], keep);
    assert_eq!(all(bytes_of(&success[1], 4).unwrap(), 2).len(), 2);
    let failure = bytes_of(&all(&sent.message, 3)[0], 3).unwrap().to_vec();
    assert_eq!(
        bytes_of(&failure, 1),
        bytes_of(&failure, 2),
        "a range without a key"
    );
    let deleted = |count, kvs: &[&str]| {
        let mut delete = op(1, &header(9));
        put_number(&mut delete, 2, count);
        kvs.iter()
            .for_each(|key| put_bytes(&mut delete, 3, &kv(key, 1)));
        op(3, &delete)
    };
    let mut parts = vec![];
    put_bytes(&mut parts, 3, &deleted(1, &["_a"]));
    put_bytes(&mut parts, 3, &deleted(2, &["_y", "_z"]));
    let answered = response(true, &[op(2, &op(1, &header(9))), op(4, &parts)]);
    let Unwrapped::Reply(reply) = sent.answer.unwrap(&answered).unwrap() else {
        panic!("a fence")
    };
    let responses = all(&reply, 3);
    assert_eq!(responses[0], op(2, &op(1, &header(9))));
    let delete = bytes_of(&responses[1], 3).unwrap();
    assert_eq!(number_of(delete, 2), Ok(3));
    assert_eq!(all(delete, 3), [kv("_a", 1), kv("_y", 1), kv("_z", 1)]);
    assert_eq!(bytes_of(delete, 1).unwrap(), header(9));
}

#[test]
fn reads_under_a_ticket_are_linearizable() {
    let rules = rules(Unmatched::Pass);
    let mut message = range("orders", "");
    put_number(&mut message, 7, 1);
    let call = rules.classify(Method::Range, &message).unwrap();
    assert!(call.rewrite(&rules, &[]).unwrap().is_none());
    let sent = call
        .rewrite(&rules, &[fence("orders", 7)])
        .unwrap()
        .unwrap();
    let read = bytes_of(&all(&sent.message, 2)[0], 1).unwrap().to_vec();
    assert_eq!(
        (bytes_of(&read, 1), number_of(&read, 7)),
        (Ok(&b"orders"[..]), Ok(0))
    );
    let within = txn(&[], &[op(1, &message)], &[]);
    let call = rules.classify(Method::Txn, &within).unwrap();
    let sent = call
        .rewrite(&rules, &[fence("orders", 7)])
        .unwrap()
        .unwrap();
    let inner = bytes_of(&all(&sent.message, 2)[0], 4).unwrap().to_vec();
    let read = bytes_of(&all(&inner, 2)[0], 1).unwrap().to_vec();
    assert_eq!(number_of(&read, 7), Ok(0));
}
