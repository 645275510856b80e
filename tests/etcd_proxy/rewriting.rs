//! What the proxy makes of requests and responses, held against the model: a request under current
//! tickets does and answers what it would alone; under others it does nothing.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use proptest::sample::select;
use prost::Message as _;
use ringfence::etcd_proto::etcdserverpb::compare::TargetUnion;
use ringfence::etcd_proto::etcdserverpb::request_op::Request as Op;
use ringfence::etcd_proto::etcdserverpb::response_op::Response as Answer;
use ringfence::etcd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest,
    RangeResponse, RequestOp, TxnRequest, TxnResponse,
};
use ringfence::lock_name::LockName;
use ringfence::protocol::etcd::answer::Unwrapped;
use ringfence::protocol::etcd::fence::{Fence, Seen, value};
use ringfence::protocol::etcd::method::find;
use ringfence::protocol::etcd::rewrite::Rewritten;
use ringfence::protocol::etcd::split::TxnOpsMax;
use ringfence::protocol::etcd::{EtcdRule, EtcdRules};
use ringfence::protocol::{Code, Unmatched};

use crate::model::{Etcd, Refused};

/// Small, so that transactions of a few operations come near it.
const OPS_MAX: usize = 6;
const PREFIX: &str = "_ringfence/";

/// `RINGFENCE_TEST_CASES`, or this.
fn cases(default: u32) -> ProptestConfig {
    let given = std::env::var("RINGFENCE_TEST_CASES").ok();
    let cases = given.map_or(default, |text| text.parse().expect("a number of cases"));
    ProptestConfig::with_cases(cases)
}

fn rules() -> EtcdRules {
    let mut rules = EtcdRules::default();
    rules.txn_ops_max = TxnOpsMax(OPS_MAX);
    rules
}

fn fence(lock: &str, floor: u64) -> Fence {
    Fence {
        lock: LockName::new(lock).unwrap(),
        floor,
        unsigned: false,
    }
}

/// Below, at and above the fence keys.
fn key() -> impl Strategy<Value = Bytes> {
    select(&["A", "_", "_q", "_s", "a", "b", "z"][..]).prop_map(Bytes::from)
}

fn end() -> impl Strategy<Value = Bytes> {
    let ends = [
        "",
        "",
        "\0",
        "_",
        "_ringfence/",
        "_ringfence/x",
        "_ringfence0",
        "b",
        "zz",
    ];
    select(ends.to_vec()).prop_map(Bytes::from)
}

fn put() -> impl Strategy<Value = PutRequest> {
    (key(), select(&["1", "2", "3"][..]), any::<bool>()).prop_map(|(key, value, prev_kv)| {
        PutRequest {
            key,
            value: value.into(),
            prev_kv,
            ..Default::default()
        }
    })
}

fn delete() -> impl Strategy<Value = DeleteRangeRequest> {
    (key(), end(), any::<bool>()).prop_map(|(key, range_end, prev_kv)| DeleteRangeRequest {
        key,
        range_end,
        prev_kv,
    })
}

fn range() -> impl Strategy<Value = RangeRequest> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (key(), end(), 0..4_i64, 0..3, 0..5, flags).prop_map(
        |(key, range_end, limit, sort_order, sort_target, flags)| RangeRequest {
            key,
            range_end,
            limit,
            sort_order,
            sort_target,
            serializable: flags.0,
            keys_only: flags.1,
            count_only: flags.2,
            ..Default::default()
        },
    )
}

fn compare() -> impl Strategy<Value = Compare> {
    let target = prop_oneof![
        (0..3_i64).prop_map(|it| (0, TargetUnion::Version(it))),
        (0..5_i64).prop_map(|it| (1, TargetUnion::CreateRevision(it))),
        (0..5_i64).prop_map(|it| (2, TargetUnion::ModRevision(it))),
        select(&["1", "2"][..]).prop_map(|it| (3, TargetUnion::Value(it.into()))),
    ];
    (key(), 0..4, target).prop_map(|(key, result, (target, union))| Compare {
        result,
        target,
        key,
        range_end: Bytes::new(),
        target_union: Some(union),
    })
}

fn txn() -> impl Strategy<Value = TxnRequest> {
    let op = prop_oneof![
        put().prop_map(Op::RequestPut),
        put().prop_map(Op::RequestPut),
        range().prop_map(Op::RequestRange),
        delete().prop_map(Op::RequestDeleteRange),
    ];
    let ops = |op: proptest::strategy::BoxedStrategy<Op>| {
        vec(op.prop_map(|op| RequestOp { request: Some(op) }), 0..7)
    };
    let of = move |op: proptest::strategy::BoxedStrategy<Op>| {
        let branches = (ops(op.clone()), ops(op));
        (vec(compare(), 0..3), branches).prop_map(|(compare, (success, failure))| TxnRequest {
            compare,
            success,
            failure,
        })
    };
    let leaf = op.boxed();
    let nested = of(leaf.clone()).prop_map(Op::RequestTxn);
    of(prop_oneof![4 => leaf, 1 => nested].boxed())
}

fn request() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => txn().prop_map(Op::RequestTxn),
        1 => put().prop_map(Op::RequestPut),
        1 => delete().prop_map(Op::RequestDeleteRange),
        2 => range().prop_map(Op::RequestRange),
    ]
}

/// Some keys, and the floors of two locks.
fn store() -> impl Strategy<Value = Etcd> {
    vec(put(), 0..8).prop_map(|puts| {
        let mut etcd = Etcd::default();
        let rules = rules();
        for (lock, floor) in [("one", 7), ("two", 9)] {
            let fence = fence(lock, floor);
            etcd.alone(Op::RequestPut(PutRequest {
                key: rules.keys.floor_key(&fence.lock).into(),
                value: value(&fence).into(),
                ..Default::default()
            }));
        }
        for put in puts {
            etcd.alone(Op::RequestPut(put));
        }
        etcd
    })
}

fn encoded(op: &Op) -> (&'static str, Vec<u8>) {
    match op {
        Op::RequestRange(op) => ("/etcdserverpb.KV/Range", op.encode_to_vec()),
        Op::RequestPut(op) => ("/etcdserverpb.KV/Put", op.encode_to_vec()),
        Op::RequestDeleteRange(op) => ("/etcdserverpb.KV/DeleteRange", op.encode_to_vec()),
        Op::RequestTxn(op) => ("/etcdserverpb.KV/Txn", op.encode_to_vec()),
    }
}

fn decoded(op: &Op, message: &[u8]) -> Answer {
    match op {
        Op::RequestRange(_) => Answer::ResponseRange(RangeResponse::decode(message).unwrap()),
        Op::RequestPut(_) => Answer::ResponsePut(PutResponse::decode(message).unwrap()),
        Op::RequestDeleteRange(_) => {
            Answer::ResponseDeleteRange(DeleteRangeResponse::decode(message).unwrap())
        }
        Op::RequestTxn(_) => Answer::ResponseTxn(TxnResponse::decode(message).unwrap()),
    }
}

/// What etcd gets for a request under these fences. `None`: the request itself; an error is the
/// code of a refusal.
fn rewritten(op: &Op, fences: &[Fence]) -> Result<Option<Rewritten>, Code> {
    let (path, mut message) = encoded(op);
    // A field that nobody knows.
    message.extend([0xea, 0x04, 1, b'x']);
    let rules = rules();
    let call = rules.classify(find(path), &message);
    let call = call.map_err(|refusal| refusal.code)?;
    call.rewrite(&rules, fences).map_err(|refusal| refusal.code)
}

/// A request under current tickets is held against the same one alone in an etcd without fences.
fn current(etcd: &Etcd, op: &Op, fences: &[Fence]) -> Result<(), String> {
    let mut alone = etcd.without(PREFIX);
    let expected = match op {
        Op::RequestTxn(txn) => alone.txn(txn, OPS_MAX).map(Answer::ResponseTxn),
        op => Ok(alone.alone(op.clone())),
    };
    let mut fenced = etcd.clone();
    let sent = match rewritten(op, fences) {
        Ok(Some(sent)) => sent,
        Ok(None) if fences.is_empty() => return Ok(()),
        Ok(None) => return Err("it is sent without its fences".to_owned()),
        // No room for its fences, which may be only where it is as large as etcd takes it.
        Err(Code::Invalid) => return large(op, fences),
        Err(code) => return Err(format!("it is refused: {code:?}")),
    };
    let txn = TxnRequest::decode(&sent.message[..]).map_err(|error| error.to_string())?;
    let answer = match (fenced.txn(&txn, OPS_MAX), expected) {
        (Err(_), Err(_)) => return same(etcd, &fenced),
        (Err(refused), Ok(_)) => return Err(format!("etcd refuses it: {refused:?}")),
        // Told in the module `rewrite`.
        (Ok(_), Err(Refused::DuplicateKey)) if deletes_across(op) => return Ok(()),
        (Ok(_), Err(refused)) => return Err(format!("etcd takes it, but alone {refused:?}")),
        (Ok(answer), Ok(expected)) => (answer.encode_to_vec(), expected),
    };
    let (answer, expected) = answer;
    match sent.answer.unwrap(&answer).map_err(|it| it.to_string())? {
        Unwrapped::Fenced(seen) => return Err(format!("it is fenced: {seen:?}")),
        Unwrapped::Reply(reply) => {
            let reply = decoded(op, &reply);
            if reply != expected {
                return Err(format!("it is answered {reply:?}, alone {expected:?}"));
            }
        }
    }
    same(&alone, &fenced.without(PREFIX))?;
    let floors = |etcd: &Etcd| etcd.kvs.len() - etcd.without(PREFIX).kvs.len();
    match floors(&fenced) == floors(etcd) {
        true => Ok(()),
        false => Err("a fence key is gone".to_owned()),
    }
}

/// Whether it deletes keys on both sides of the fence keys.
fn deletes_across(op: &Op) -> bool {
    match op {
        Op::RequestDeleteRange(op) => {
            let after = op.range_end == "\0" || op.range_end > "_ringfence0";
            op.key < PREFIX && after
        }
        Op::RequestTxn(txn) => {
            let mut ops = txn.success.iter().chain(&txn.failure);
            ops.any(|op| op.request.as_ref().is_some_and(deletes_across))
        }
        Op::RequestRange(_) | Op::RequestPut(_) => false,
    }
}

fn same(expected: &Etcd, found: &Etcd) -> Result<(), String> {
    match expected == found {
        true => Ok(()),
        false => Err(format!("etcd is left at {found:?}, alone at {expected:?}")),
    }
}

/// A transaction that is refused for its size must have no operation to spare.
fn large(op: &Op, fences: &[Fence]) -> Result<(), String> {
    let Op::RequestTxn(txn) = op else {
        return Err("one operation is refused for its size".to_owned());
    };
    let room = OPS_MAX - fences.len().max(1) - 2;
    match Etcd::default().txn(txn, room) {
        Ok(_) => Err("it is refused although it has room".to_owned()),
        Err(_) => Ok(()),
    }
}

/// A request under a ticket that is not current does nothing, and is told what the floors are.
fn superseded(etcd: &Etcd, message: &[u8], sent: &Rewritten) -> Result<(), String> {
    let txn = TxnRequest::decode(message).map_err(|error| error.to_string())?;
    let mut fenced = etcd.clone();
    let Ok(answer) = fenced.txn(&txn, OPS_MAX) else {
        return same(etcd, &fenced);
    };
    same(etcd, &fenced)?;
    let seen = [7, 9].map(|floor| Seen::Floor {
        floor,
        unsigned: false,
    });
    match sent.answer.unwrap(&answer.encode_to_vec()) {
        Ok(Unwrapped::Fenced(found)) if found == seen => Ok(()),
        other => Err(format!("it is told {other:?}")),
    }
}

/// One of the two floors is another.
fn stale() -> impl Strategy<Value = Vec<Fence>> {
    prop_oneof![
        Just((6, 9)),
        Just((8, 9)),
        Just((7, 8)),
        Just((7, 10)),
        Just((1, 1))
    ]
    .prop_map(|(one, two)| vec![fence("one", one), fence("two", two)])
}

proptest! {
    #![proptest_config(cases(4_000))]

    #[test]
    fn a_request_under_current_tickets_is_what_it_is_alone(
        etcd in store(),
        op in request(),
        count in 0..3_usize,
    ) {
        let fences = [fence("one", 7), fence("two", 9)];
        if let Err(wrong) = current(&etcd, &op, &fences[..count]) {
            panic!("{wrong}");
        }
    }

    #[test]
    fn a_request_under_another_ticket_does_nothing(
        etcd in store(),
        op in request(),
        fences in stale(),
    ) {
        if let Ok(Some(sent)) = rewritten(&op, &fences)
            && let Err(wrong) = superseded(&etcd, &sent.message, &sent)
        {
            panic!("{wrong}");
        }
    }

    #[test]
    fn no_write_hides_from_its_rule_whatever_the_bytes_are(
        op in request(),
        changes in vec((any::<u16>(), any::<u8>()), 0..4),
    ) {
        let (path, mut message) = encoded(&op);
        for (at, byte) in changes {
            let len = message.len().max(1);
            if let Some(place) = message.get_mut(usize::from(at) % len) {
                *place = byte;
            }
        }
        let rule = EtcdRule::new("a", "guard").unwrap();
        let rules = EtcdRules::default().with_rules(vec![rule], Unmatched::Pass);
        if let Ok(call) = rules.classify(find(path), &message)
            && writes_a(path, &message)
        {
            let guard = LockName::new("guard").unwrap();
            assert!(call.locks.contains(&guard), "{message:?}");
        }
    }

    #[test]
    fn no_response_makes_it_panic(
        op in request(),
        response in vec(any::<u8>(), 0..64),
        count in 1..3_usize,
    ) {
        let fences = [fence("one", 7), fence("two", 9)];
        if let Ok(Some(sent)) = rewritten(&op, &fences[..count]) {
            // Whatever it says.
            let _ = sent.answer.unwrap(&response);
        }
    }
}

/// Whether the key `a` may be written, as the generated decoder reads it.
fn writes_a(path: &str, message: &[u8]) -> bool {
    let op = match path {
        "/etcdserverpb.KV/Put" => PutRequest::decode(message).ok().map(Op::RequestPut),
        "/etcdserverpb.KV/DeleteRange" => {
            let op = DeleteRangeRequest::decode(message).ok();
            op.map(Op::RequestDeleteRange)
        }
        "/etcdserverpb.KV/Txn" => TxnRequest::decode(message).ok().map(Op::RequestTxn),
        _ => None,
    };
    op.is_some_and(|op| touches_a(&op))
}

fn touches_a(op: &Op) -> bool {
    let a = Bytes::from_static(b"a");
    match op {
        Op::RequestRange(_) => false,
        Op::RequestPut(op) => op.key == a,
        Op::RequestDeleteRange(op) => match &op.range_end[..] {
            [] => op.key == a,
            [0] => op.key <= a,
            _ => op.key <= a && a < op.range_end,
        },
        Op::RequestTxn(txn) => {
            let mut ops = txn.success.iter().chain(&txn.failure);
            ops.any(|op| op.request.as_ref().is_some_and(touches_a))
        }
    }
}

/// Faults that are put in on purpose are found: the checks above can fail.
#[test]
fn seeded_faults_are_found() {
    let mut etcd = Etcd::default();
    for (lock, floor) in [("one", 7), ("two", 9)] {
        let fence = fence(lock, floor);
        etcd.alone(Op::RequestPut(PutRequest {
            key: rules().keys.floor_key(&fence.lock).into(),
            value: value(&fence).into(),
            ..Default::default()
        }));
    }
    let put = |key: &str| RequestOp {
        request: Some(Op::RequestPut(PutRequest {
            key: key.to_owned().into(),
            value: "x".into(),
            ..Default::default()
        })),
    };
    let txn = TxnRequest {
        compare: vec![],
        success: ["a", "b", "c", "d", "e", "z"].map(put).to_vec(),
        failure: vec![],
    };
    let op = Op::RequestTxn(txn);
    // Sound: it is fenced, in two parts, and passes under the current tickets.
    let stale = [fence("one", 6), fence("two", 9)];
    let sent = rewritten(&op, &stale).unwrap().unwrap();
    assert_eq!(superseded(&etcd, &sent.message, &sent), Ok(()));
    let floors = [fence("one", 7), fence("two", 9)];
    assert_eq!(current(&etcd, &op, &floors), Ok(()));
    let decoded = TxnRequest::decode(&sent.message[..]).unwrap();
    assert_eq!((decoded.compare.len(), decoded.success.len()), (2, 2));
    // A comparison is forgotten.
    let mut faulty = decoded.clone();
    faulty.compare.remove(0);
    assert!(superseded(&etcd, &faulty.encode_to_vec(), &sent).is_err());
    // A part is sent beside the comparison.
    let mut faulty = decoded.clone();
    let part = faulty.success.pop().unwrap();
    faulty.failure.push(part);
    assert!(superseded(&etcd, &faulty.encode_to_vec(), &sent).is_err());
    // A floor is not told.
    let mut faulty = decoded;
    faulty.failure.pop();
    assert!(superseded(&etcd, &faulty.encode_to_vec(), &sent).is_err());
}
