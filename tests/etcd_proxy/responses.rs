//! Responses of fenced calls beside those of a client that talks to etcd itself: field by field.

use ringfence::etcd_proto::etcdserverpb::compare::TargetUnion;
use ringfence::etcd_proto::etcdserverpb::kv_client::KvClient;
use ringfence::etcd_proto::etcdserverpb::request_op::Request as Op;
use ringfence::etcd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::support::{JOBS, Version, World, get, put, refused, with};

/// What is asked of both.
#[derive(Clone)]
enum Ask {
    Put(PutRequest),
    Range(RangeRequest),
    Delete(DeleteRangeRequest),
    Txn(TxnRequest),
}

fn op(request: Op) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

fn value_is(key: &str, value: &str) -> Compare {
    Compare {
        result: 0,
        target: 3,
        key: key.to_owned().into(),
        target_union: Some(TargetUnion::Value(value.to_owned().into())),
        range_end: "".into(),
    }
}

fn delete(key: &str, end: &str) -> DeleteRangeRequest {
    DeleteRangeRequest {
        key: key.to_owned().into(),
        range_end: end.to_owned().into(),
        prev_kv: true,
    }
}

fn questions() -> Vec<Ask> {
    let prev = |key: &str, value: &str| PutRequest {
        prev_kv: true,
        ..put(key, value)
    };
    let inner = TxnRequest {
        compare: vec![value_is("job/7/a", "nothing")],
        success: vec![op(Op::RequestPut(put("job/7/x", "no")))],
        failure: vec![
            op(Op::RequestPut(prev("job/7/y", "yes"))),
            op(Op::RequestRange(get("job/7/a"))),
        ],
    };
    let branches = |value: &str| TxnRequest {
        compare: vec![value_is("job/7/a", value)],
        success: vec![
            op(Op::RequestPut(prev("job/7/b", "success"))),
            op(Op::RequestDeleteRange(delete("job/7/c", ""))),
            op(Op::RequestTxn(inner.clone())),
        ],
        failure: vec![op(Op::RequestRange(RangeRequest {
            key: "job/7/".into(),
            range_end: "job/70".into(),
            ..Default::default()
        }))],
    };
    let range = |limit, sort_order, sort_target| {
        Ask::Range(RangeRequest {
            key: "job/7/".into(),
            range_end: "job/70".into(),
            limit,
            sort_order,
            sort_target,
            ..Default::default()
        })
    };
    vec![
        Ask::Put(put("job/7/a", "1")),
        Ask::Put(prev("job/7/a", "2")),
        Ask::Put(prev("job/7/c", "3")),
        Ask::Range(get("job/7/a")),
        Ask::Range(get("job/7/none")),
        range(0, 0, 0),
        range(1, 2, 3),
        Ask::Txn(branches("2")),
        Ask::Txn(branches("other")),
        Ask::Txn(TxnRequest {
            compare: vec![value_is("job/7/a", "other")],
            success: vec![op(Op::RequestPut(put("job/7/a", "never")))],
            failure: vec![],
        }),
        range(0, 1, 4),
        Ask::Delete(delete("job/7/none", "")),
        Ask::Delete(delete("job/7/", "job/70")),
        Ask::Txn(TxnRequest::default()),
        // Errors in etcd's own words.
        Ask::Put(PutRequest {
            ignore_value: true,
            value: "".into(),
            ..put("job/7/none", "")
        }),
        Ask::Put(PutRequest {
            ignore_value: true,
            ..put("job/7/none", "x")
        }),
        Ask::Put(put("", "x")),
        Ask::Range(RangeRequest {
            revision: 1 << 40,
            ..get("job/7/a")
        }),
        Ask::Txn(TxnRequest {
            success: vec![
                op(Op::RequestPut(put("job/7/a", "1"))),
                op(Op::RequestPut(put("job/7/a", "2"))),
            ],
            ..Default::default()
        }),
        Ask::Txn(TxnRequest {
            success: (0..129)
                .map(|_| op(Op::RequestRange(get("job/7/a"))))
                .collect(),
            ..Default::default()
        }),
    ]
}

/// The answer as text, without what two servers never have in common.
async fn ask(client: &mut KvClient<Channel>, question: Ask, tickets: &[&str], base: i64) -> String {
    fn told<T: std::fmt::Debug>(
        answer: Result<tonic::Response<T>, Status>,
    ) -> Result<String, Status> {
        answer.map(|answer| format!("{:?}", answer.into_inner()))
    }
    let answer = match question {
        Ask::Put(request) => told(client.put(with(request, tickets)).await),
        Ask::Range(request) => told(client.range(with(request, tickets)).await),
        Ask::Delete(request) => told(client.delete_range(with(request, tickets)).await),
        Ask::Txn(request) => told(client.txn(with(request, tickets)).await),
    };
    match answer {
        Ok(text) => relative(&text, base),
        Err(status) => format!("{:?} {}", status.code(), status.message()),
    }
}

/// Revisions counted from where the story begins, the servers' ids left out.
fn relative(text: &str, base: i64) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(": ") {
        let (name, after) = rest.split_at(at + 2);
        let digits = after
            .find(|it: char| !it.is_ascii_digit())
            .unwrap_or(after.len());
        let (number, after) = after.split_at(digits);
        shown += name;
        let field = name[..at].rsplit([' ', '{']).next().unwrap_or_default();
        match (field, number.parse::<i128>()) {
            ("cluster_id" | "member_id" | "raft_term", Ok(_)) => shown += "*",
            ("revision" | "mod_revision" | "create_revision", Ok(number)) if number > 0 => {
                shown += &(number - i128::from(base)).to_string();
            }
            _ => shown += number,
        }
        rest = after;
    }
    shown + rest
}

async fn revision(client: &mut KvClient<Channel>) -> i64 {
    let found = client.range(get("x")).await.unwrap().into_inner();
    found.header.unwrap().revision
}

async fn same_answers(version: Version) {
    let (world, direct) = (World::new(version), World::new(version));
    let proxy = world.proxy("a", JOBS);
    let mut fenced = proxy.client().await;
    let tickets = [world.ticket("job/7", 3), world.ticket("orders", 8)];
    let tickets: Vec<&str> = tickets.iter().map(String::as_str).collect();
    // The floors are raised before the story begins.
    fenced.range(with(get("x"), &tickets)).await.unwrap();
    let mut plain = direct.direct().await;
    let bases = (revision(&mut plain).await, revision(&mut fenced).await);
    for (at, question) in questions().into_iter().enumerate() {
        let expected = ask(&mut plain, question.clone(), &[], bases.0).await;
        let answer = ask(&mut fenced, question, &tickets, bases.1).await;
        assert_eq!(answer, expected, "question {at} on {version:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fenced_calls_are_answered_as_direct_ones_on_3_4() {
    same_answers(Version::V3_4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fenced_calls_are_answered_as_direct_ones_on_3_5() {
    same_answers(Version::V3_5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_is_not_taken_needs_its_ticket_too() {
    let world = World::new(Version::V3_4);
    let proxy = world.proxy("a", JOBS);
    let mut client = proxy.client().await;
    let request = TxnRequest {
        compare: vec![value_is("free", "never")],
        success: vec![op(Op::RequestTxn(TxnRequest {
            failure: vec![op(Op::RequestPut(put("orders", "x")))],
            ..Default::default()
        }))],
        failure: vec![op(Op::RequestPut(put("free", "1")))],
    };
    let told = refused(
        client.txn(request.clone()).await,
        Code::FailedPrecondition,
        "missing",
    );
    assert_eq!(told["lock"], "orders");
    assert_eq!(world.value("free").await, None);
    let ticket = world.ticket("orders", 1);
    let done = client
        .txn(with(request, &[&ticket]))
        .await
        .unwrap()
        .into_inner();
    assert!(!done.succeeded);
    assert_eq!(world.value("free").await.as_deref(), Some("1"));
}

/// Transactions of about as many operations as etcd takes, in all shapes.
fn large(count: usize) -> Vec<TxnRequest> {
    let puts = |value: &str, keys: std::ops::Range<usize>| -> Vec<RequestOp> {
        let prev = |at| PutRequest {
            prev_kv: true,
            ..put(&format!("job/7/{at:03}"), value)
        };
        keys.map(|at| op(Op::RequestPut(prev(at)))).collect()
    };
    let holds = || vec![value_is("job/7/a", "1")];
    let fails = || vec![value_is("job/7/a", "2")];
    let nested = |count| TxnRequest {
        compare: fails(),
        success: vec![],
        failure: puts("nested", 500..500 + count),
    };
    let txn = |compare, success, failure| TxnRequest {
        compare,
        success,
        failure,
    };
    vec![
        txn(vec![], puts("all", 0..count), vec![]),
        txn(holds(), puts("then", 0..count), puts("else", 0..count)),
        txn(fails(), puts("then", 0..count), puts("else", 0..count)),
        txn(fails(), puts("then", 0..3), puts("else", 0..count)),
        txn(holds(), puts("then", 0..count), puts("else", 100..103)),
        txn(
            holds(),
            [
                puts("then", 0..50),
                vec![op(Op::RequestTxn(nested(count - 51)))],
            ]
            .concat(),
            vec![op(Op::RequestDeleteRange(delete("job/7/000", "job/7/049")))],
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_operations_pass_as_etcd_takes() {
    for version in [Version::V3_4, Version::V3_5] {
        let (world, direct) = (World::new(version), World::new(version));
        let proxy = world.proxy("a", JOBS);
        let mut fenced = proxy.client().await;
        let tickets = [world.ticket("job/7", 3), world.ticket("orders", 8)];
        let tickets: Vec<&str> = tickets.iter().map(String::as_str).collect();
        fenced.range(with(get("x"), &tickets)).await.unwrap();
        let mut plain = direct.direct().await;
        let bases = (revision(&mut plain).await, revision(&mut fenced).await);
        let first = Ask::Put(put("job/7/a", "1"));
        ask(&mut plain, first.clone(), &[], bases.0).await;
        ask(&mut fenced, first, &tickets, bases.1).await;
        for count in [125, 126, 127, 128, 129] {
            for (shape, txn) in large(count).into_iter().enumerate() {
                let expected = ask(&mut plain, Ask::Txn(txn.clone()), &[], bases.0).await;
                let answer = ask(&mut fenced, Ask::Txn(txn), &tickets, bases.1).await;
                assert!(
                    answer == expected,
                    "{count} operations, shape {shape} on {version:?}:\n{answer}\n{expected}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_cannot_be_parted_is_told_the_limit() {
    let world = World::new(Version::V3_5);
    let proxy = world.proxy("a", JOBS);
    let mut client = proxy.client().await;
    let ticket = world.ticket("job/7", 3);
    let mut txn = large(128).swap_remove(0);
    txn.compare = vec![value_is("job/7/a", "1")];
    // Whatever part it is in, it deletes what the other one puts.
    txn.failure = vec![op(Op::RequestDeleteRange(delete("job/7/", "job/70")))];
    world.direct().await.txn(txn.clone()).await.unwrap();
    let status = client.txn(with(txn, &[&ticket])).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        status.message().contains("takes 128 operations"),
        "{status:?}"
    );
    // A server with another limit: nothing is taken for its own.
    let smaller = world.proxy("b", &format!("max_txn_ops = 64\n{JOBS}"));
    let mut client = smaller.client().await;
    for count in [64, 100] {
        let txn = large(count).swap_remove(0);
        let done = client.txn(with(txn, &[&ticket])).await.unwrap();
        assert_eq!(done.into_inner().responses.len(), count);
    }
}
