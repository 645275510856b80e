//! Fence keys: clients neither see nor erase them.

use futures::StreamExt as _;
use ringfence::etcd_proto::etcdserverpb::lease_client::LeaseClient;
use ringfence::etcd_proto::etcdserverpb::request_op::Request as Op;
use ringfence::etcd_proto::etcdserverpb::watch_client::WatchClient;
use ringfence::etcd_proto::etcdserverpb::watch_request::RequestUnion;
use ringfence::etcd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest, WatchCreateRequest, WatchRequest,
};
use tonic::{Code, Request};

use crate::support::{JOBS, Version, Wire, World, etcdctl, get, put, refused, soon, with};

fn everything() -> RangeRequest {
    RangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_everything_do_not_show_them() {
    for version in [Version::V3_4, Version::V3_5] {
        let world = World::new(version);
        let proxy = world.proxy("a", JOBS);
        let mut client = proxy.client().await;
        let ticket = world.ticket("orders", 3);
        // Keys on both sides of `_ringfence/`.
        for key in ["A", "B", "_", "z"] {
            client.put(put(key, key)).await.unwrap();
        }
        client
            .put(with(put("orders", "1"), &[&ticket]))
            .await
            .unwrap();
        assert_eq!(world.floor("orders").await, Some(3));
        let keys = |found: &ringfence::etcd_proto::etcdserverpb::RangeResponse| {
            let keys = found
                .kvs
                .iter()
                .map(|kv| String::from_utf8_lossy(&kv.key).into_owned());
            keys.collect::<Vec<_>>()
        };
        let all = ["A", "B", "_", "orders", "z"];
        let mut read = async |request: RangeRequest| {
            let found = client
                .range(with(request.clone(), &[]))
                .await
                .unwrap()
                .into_inner();
            let fenced = client
                .range(with(request, &[&ticket]))
                .await
                .unwrap()
                .into_inner();
            assert_eq!(found, fenced);
            found
        };
        let found = read(everything()).await;
        assert_eq!(
            (keys(&found), found.count, found.more),
            (all.map(String::from).to_vec(), 5, false)
        );
        for (limit, more) in [(1, true), (3, true), (4, true), (5, false), (6, false)] {
            let found = read(RangeRequest {
                limit,
                ..everything()
            })
            .await;
            let few = all.iter().take(limit as usize);
            assert_eq!(
                keys(&found),
                few.map(|key| (*key).to_owned()).collect::<Vec<_>>()
            );
            assert_eq!((found.count, found.more), (5, more), "limit {limit}");
        }
        let counted = read(RangeRequest {
            count_only: true,
            ..everything()
        })
        .await;
        assert_eq!((counted.count, counted.kvs.len()), (5, 0));
        let descending = read(RangeRequest {
            sort_order: 2,
            limit: 3,
            ..everything()
        })
        .await;
        assert_eq!(keys(&descending), ["z", "orders", "_"]);
        let newest = read(RangeRequest {
            sort_order: 2,
            sort_target: 3,
            limit: 2,
            ..everything()
        })
        .await;
        assert_eq!(keys(&newest), ["orders", "z"]);
        let by_value = RangeRequest {
            sort_order: 1,
            sort_target: 4,
            keys_only: true,
            ..everything()
        };
        let by_value = read(by_value).await;
        assert_eq!(keys(&by_value), ["orders", "A", "B", "_", "z"]);
        assert!(by_value.kvs.iter().all(|kv| kv.value.is_empty()));
        for (key, end) in [
            ("_ringfence/floor/orders", ""),
            ("_ringfence/", "_ringfence0"),
            ("_ringfence/a", "_ringfence/z"),
        ] {
            let within = RangeRequest {
                key: key.into(),
                range_end: end.into(),
                ..Default::default()
            };
            let found = read(within).await;
            assert_eq!((keys(&found).len(), found.count), (0, 0), "{key} {end}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_of_everything_leave_them() {
    for version in [Version::V3_4, Version::V3_5] {
        let world = World::new(version);
        let proxy = world.proxy("a", JOBS);
        let mut client = proxy.client().await;
        let ticket = world.ticket("orders", 3);
        client.range(with(get("orders"), &[&ticket])).await.unwrap();
        let free = world.proxy("b", "");
        let mut free = free.client().await;
        for key in ["A", "B", "y", "z"] {
            free.put(put(key, "1")).await.unwrap();
        }
        let delete = |prev_kv| DeleteRangeRequest {
            key: "\0".into(),
            range_end: "\0".into(),
            prev_kv,
        };
        let gone = free.delete_range(delete(true)).await.unwrap().into_inner();
        let keys: Vec<_> = gone.prev_kvs.iter().map(|kv| kv.key.clone()).collect();
        assert_eq!(
            (gone.deleted, keys),
            (4, ["A", "B", "y", "z"].map(Into::into).to_vec())
        );
        let header = gone.header.unwrap();
        let last = free
            .range(get("A"))
            .await
            .unwrap()
            .into_inner()
            .header
            .unwrap();
        assert_eq!(header, last, "the header is that of the deletion");
        let exact = DeleteRangeRequest {
            key: "_ringfence/floor/orders".into(),
            ..Default::default()
        };
        assert_eq!(
            free.delete_range(exact).await.unwrap().into_inner().deleted,
            0
        );
        // Within a transaction, at depth.
        free.put(put("z", "1")).await.unwrap();
        let op = |request| RequestOp {
            request: Some(request),
        };
        let inner = TxnRequest {
            success: vec![
                op(Op::RequestDeleteRange(delete(false))),
                op(Op::RequestRange(get("z"))),
            ],
            ..Default::default()
        };
        let outer = TxnRequest {
            success: vec![op(Op::RequestTxn(inner))],
            ..Default::default()
        };
        let done = free.txn(outer).await.unwrap().into_inner();
        assert!(format!("{done:?}").contains("deleted: 1"), "{done:?}");
        assert_eq!(world.floor("orders").await, Some(3));
        let stale = with(put("orders", "x"), &[&world.ticket("orders", 2)]);
        refused(client.put(stale).await, Code::FailedPrecondition, "stale");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_and_comparisons_of_them_are_refused() {
    let world = World::new(Version::V3_5);
    let proxy = world.proxy("a", JOBS);
    let mut client = proxy.client().await;
    let key = "_ringfence/floor/orders";
    refused(
        client.put(put(key, "0")).await,
        Code::PermissionDenied,
        "unclassified",
    );
    let op = RequestOp {
        request: Some(Op::RequestPut(put(key, "0"))),
    };
    let put_within = TxnRequest {
        failure: vec![op],
        ..Default::default()
    };
    refused(
        client.txn(put_within).await,
        Code::PermissionDenied,
        "unclassified",
    );
    let compare = TxnRequest {
        compare: vec![Compare {
            key: "\0".into(),
            range_end: "\0".into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    refused(
        client.txn(compare).await,
        Code::PermissionDenied,
        "unclassified",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_do_not_see_them() {
    for version in [Version::V3_4, Version::V3_5] {
        let world = World::new(version);
        let proxy = world.proxy("a", JOBS);
        let mut watch = WatchClient::new(proxy.channel().await);
        let create = WatchCreateRequest {
            key: "\0".into(),
            range_end: "\0".into(),
            start_revision: 1,
            ..Default::default()
        };
        let create = WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(create)),
        };
        let requests = futures::stream::iter([create]).chain(futures::stream::pending());
        let mut events = watch.watch(requests).await.unwrap().into_inner();
        let created = soon("the watch", events.message()).await.unwrap().unwrap();
        assert!(created.created);
        let mut client = proxy.client().await;
        let (three, four) = (world.ticket("orders", 3), world.ticket("orders", 4));
        client
            .put(with(put("orders", "3"), &[&three]))
            .await
            .unwrap();
        client.range(with(get("orders"), &[&four])).await.unwrap();
        client
            .put(with(put("orders", "4"), &[&four]))
            .await
            .unwrap();
        let mut seen = vec![];
        while seen.len() < 2 {
            let response = soon("an event", events.message()).await.unwrap().unwrap();
            assert!(
                !response.events.is_empty(),
                "an empty response: {response:?}"
            );
            seen.extend(response.events.into_iter().map(|event| event.kv.unwrap()));
        }
        let keys: Vec<_> = seen.iter().map(|kv| kv.key.clone()).collect();
        assert_eq!(keys, ["orders", "orders"]);
        assert_eq!(seen[1].value, "4");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_deletes_guarded_keys_only_under_their_tickets() {
    for version in [Version::V3_4, Version::V3_5] {
        let world = World::new(version);
        let strict = world.proxy("a", JOBS);
        let lax = world.proxy("b", &format!("leased_writes = \"pass\"\n{JOBS}"));
        let mut leases = LeaseClient::new(strict.channel().await);
        let grant = LeaseGrantRequest { ttl: 600, id: 77 };
        leases.lease_grant(grant).await.unwrap();
        let leased = |key: &str| PutRequest {
            lease: 77,
            ..put(key, "leased")
        };
        let (one, two) = (world.ticket("orders", 1), world.ticket("orders", 2));
        let mut client = strict.client().await;
        client.put(leased("free")).await.unwrap();
        let put_leased = client.put(with(leased("orders"), &[&one])).await;
        refused(put_leased, Code::PermissionDenied, "unclassified");
        lax.client()
            .await
            .put(with(leased("orders"), &[&one]))
            .await
            .unwrap();
        let revoke = || LeaseRevokeRequest { id: 77 };
        let told = refused(
            leases.lease_revoke(revoke()).await,
            Code::FailedPrecondition,
            "missing",
        );
        assert_eq!(told["lock"], "orders");
        client.range(with(get("orders"), &[&two])).await.unwrap();
        let stale = leases.lease_revoke(with(revoke(), &[&one])).await;
        refused(stale, Code::FailedPrecondition, "stale");
        assert_eq!(world.value("orders").await.as_deref(), Some("leased"));
        leases.lease_revoke(with(revoke(), &[&two])).await.unwrap();
        assert_eq!(
            (world.value("orders").await, world.value("free").await),
            (None, None)
        );
        let again = leases
            .lease_revoke(Request::new(revoke()))
            .await
            .unwrap_err();
        assert_eq!(again.code(), Code::NotFound, "etcd's own words: {again:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_refused_because_it_holds_them() {
    let world = World::new(Version::V3_5);
    let file = world.dir.path().join("snapshot");
    let file = file.to_str().unwrap();
    // Without rules too: they may be another listener's.
    for (name, listener) in [("a", JOBS), ("b", "")] {
        let proxy = world.proxy(name, listener);
        let saved = etcdctl(&proxy.address.to_string(), &["snapshot", "save", file]);
        let said = String::from_utf8_lossy(&saved.stderr);
        assert!(!saved.status.success(), "{listener}: {said}");
        assert!(said.contains("`snapshots` decides"), "{said}");
        proxy
            .audited("unclassified", "etcdserverpb.Maintenance/Snapshot")
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_key_that_is_attached_during_a_revocation_needs_its_ticket_too() {
    let world = World::new(Version::V3_5);
    let mut wire = Wire::new(world.etcd_address()).await;
    let listener = format!("leased_writes = \"pass\"\n{JOBS}");
    let proxy = world.proxy_over("a", &wire.address.to_string(), &listener);
    let mut leases = LeaseClient::new(proxy.channel().await);
    let grant = LeaseGrantRequest { ttl: 600, id: 77 };
    leases.lease_grant(grant).await.unwrap();
    let leased = |key: &str| PutRequest {
        lease: 77,
        ..put(key, "leased")
    };
    let ticket = world.ticket("orders", 1);
    let mut client = proxy.client().await;
    client
        .put(with(leased("orders"), &[&ticket]))
        .await
        .unwrap();
    // The lease's keys, the floors, the deletion of the key: the fourth call waits.
    wire.hold_before_call(4);
    let revoke = with(LeaseRevokeRequest { id: 77 }, &[&ticket]);
    let revoking = tokio::spawn(async move { leases.lease_revoke(revoke).await });
    wire.wait_until_held().await;
    assert_eq!(world.value("orders").await, None);
    let mut direct = world.direct().await;
    direct.put(leased("job/7/state")).await.unwrap();
    wire.let_go();
    let told = refused(revoking.await.unwrap(), Code::FailedPrecondition, "missing");
    assert_eq!(told["lock"], "job/7");
    let kept = world.value("job/7/state").await;
    assert_eq!(kept.as_deref(), Some("leased"));
}
