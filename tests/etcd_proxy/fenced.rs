//! Writes and reads under tickets: who passes, who is refused, and what etcd's floors become.

use ringfence::etcd_proto::etcdserverpb::{DeleteRangeRequest, RangeRequest};
use ringfence::proto::fence_service_server::FenceService;
use ringfence::proto::{CloseRequest, SealRequest};
use ringfence::ticket::Action;
use tonic::{Code, Request};

use crate::support::{JOBS, Version, World, etcdctl, get, put, refused, remove, with};

fn seal(authority: &str) -> Request<SealRequest> {
    Request::new(SealRequest {
        authority: authority.to_owned(),
        wait_ms: 5000,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_needs_the_current_ticket_of_its_lock() {
    let world = World::new(Version::V3_4);
    let proxy = world.proxy("a", JOBS);
    let mut client = proxy.client().await;
    let (one, two) = (world.ticket("job/7", 1), world.ticket("job/7", 2));
    let key = "job/7/state";
    let told = refused(
        client.put(put(key, "0")).await,
        Code::FailedPrecondition,
        "missing",
    );
    assert_eq!(told["lock"], "job/7");
    client.put(with(put(key, "1"), &[&one])).await.unwrap();
    client.put(with(put(key, "2"), &[&two])).await.unwrap();
    client.put(with(put(key, "3"), &[&two])).await.unwrap();
    let told = refused(
        client.put(with(put(key, "old"), &[&one])).await,
        Code::FailedPrecondition,
        "stale",
    );
    assert_eq!(
        (told["token"].as_str(), told["watermark"].as_str()),
        ("1", "2")
    );
    refused(
        client.range(with(get(key), &[&one])).await,
        Code::FailedPrecondition,
        "stale",
    );
    assert_eq!(world.value(key).await.as_deref(), Some("3"));
    assert_eq!(world.floor("job/7").await, Some(2));
    // Another lock's ticket, a forged one, two of one lock.
    let other = world.ticket("job/8", 5);
    refused(
        client.put(with(put(key, "x"), &[&other])).await,
        Code::FailedPrecondition,
        "missing",
    );
    refused(
        client.put(with(put(key, "x"), &["5"])).await,
        Code::InvalidArgument,
        "invalid",
    );
    let both = client.put(with(put(key, "x"), &[&one, &two])).await;
    refused(both, Code::InvalidArgument, "invalid");
    // What no rule covers, with and without.
    client.put(put("free", "1")).await.unwrap();
    client.put(with(put("free", "2"), &[&two])).await.unwrap();
    let line = proxy
        .audited("stale", &format!("etcdserverpb.KV/Put {key}"))
        .await;
    assert_eq!(
        (line["protocol"].as_str(), line["holder"].as_str()),
        (Some("etcd"), Some("holder-1"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_seals_before_it_is_answered() {
    let world = World::new(Version::V3_4);
    let (a, b) = (world.proxy("a", JOBS), world.proxy("b", JOBS));
    let (mut old, mut new) = (a.client().await, b.client().await);
    let (one, two) = (world.ticket("orders", 1), world.ticket("orders", 2));
    old.put(with(put("orders", "1"), &[&one])).await.unwrap();
    let serializable = RangeRequest {
        serializable: true,
        ..get("orders")
    };
    let read = new
        .range(with(serializable, &[&two]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(read.kvs[0].value, "1");
    assert_eq!(world.floor("orders").await, Some(2));
    // The other proxy has seen nothing of it, and etcd refuses for it.
    let told = refused(
        old.put(with(put("orders", "old"), &[&one])).await,
        Code::FailedPrecondition,
        "stale",
    );
    assert_eq!(told["watermark"], "2");
    refused(
        old.range(with(get("orders"), &[&one])).await,
        Code::FailedPrecondition,
        "stale",
    );
    assert_eq!(world.value("orders").await.as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seal_or_a_close_from_outside_reaches_etcd_before_it_returns() {
    let world = World::new(Version::V3_4);
    let (a, b) = (world.proxy("a", JOBS), world.proxy("b", JOBS));
    let mut client = b.client().await;
    let five = world.ticket("orders", 5);
    client
        .put(with(put("orders", "5"), &[&five]))
        .await
        .unwrap();
    let fence = a.proxy.fence();
    fence
        .seal(seal(&world.order(Action::Seal, "orders", 6)))
        .await
        .unwrap();
    assert_eq!(world.floor("orders").await, Some(6));
    refused(
        client.put(with(put("orders", "old"), &[&five])).await,
        Code::FailedPrecondition,
        "stale",
    );
    let older = fence.seal(seal(&five)).await;
    assert_eq!(older.unwrap_err().code(), Code::FailedPrecondition);
    let six = world.ticket("orders", 6);
    client.put(with(put("orders", "6"), &[&six])).await.unwrap();
    let close = CloseRequest {
        authority: world.order(Action::Close, "orders", 6),
        wait_ms: 5000,
    };
    let closed = fence.close(Request::new(close)).await.unwrap().into_inner();
    assert_eq!((closed.floor, world.floor("orders").await), (7, Some(7)));
    refused(
        client.put(with(put("orders", "old"), &[&six])).await,
        Code::FailedPrecondition,
        "stale",
    );
    client
        .put(with(put("orders", "7"), &[&world.ticket("orders", 7)]))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_needs_a_ticket_for_each_lock() {
    let world = World::new(Version::V3_5);
    let proxy = world.proxy("a", JOBS);
    let mut client = proxy.client().await;
    let (orders, job) = (world.ticket("orders", 3), world.ticket("job/7", 4));
    let everything_up_to_orders = || DeleteRangeRequest {
        key: "job/7/".into(),
        range_end: "job/70".into(),
        prev_kv: true,
    };
    client
        .put(with(put("job/7/a", "1"), &[&job]))
        .await
        .unwrap();
    let request = with(everything_up_to_orders(), &[&orders]);
    let told = refused(
        client.delete_range(request).await,
        Code::FailedPrecondition,
        "missing",
    );
    assert_eq!(told["lock"], "job/7");
    // Every ticket that is shown raises.
    let request = with(everything_up_to_orders(), &[&orders, &job]);
    let deleted = client.delete_range(request).await.unwrap().into_inner();
    assert_eq!((deleted.deleted, deleted.prev_kvs.len()), (1, 1));
    assert_eq!(world.floor("orders").await, Some(3));
    let lists = with(put("job/7/a", "1"), &[&format!("{orders}, {job}")]);
    client.put(lists).await.unwrap();
    let across = DeleteRangeRequest {
        key: "job/".into(),
        range_end: "job0".into(),
        prev_kv: false,
    };
    let request = with(across, &[&orders, &job]);
    refused(
        client.delete_range(request).await,
        Code::PermissionDenied,
        "unclassified",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_floor_that_is_missing_is_closed_and_never_zero() {
    let world = World::new(Version::V3_4);
    let proxy = world.proxy("a", JOBS);
    let mut client = proxy.client().await;
    let (five, six) = (world.ticket("orders", 5), world.ticket("orders", 6));
    client
        .put(with(put("orders", "5"), &[&five]))
        .await
        .unwrap();
    client.put(with(put("orders", "6"), &[&six])).await.unwrap();
    // One floor is lost: it comes back at what this proxy knows, and not lower.
    world.etcd.ctl(&["del", "_ringfence/floor/orders"]);
    refused(
        client.put(with(put("orders", "old"), &[&five])).await,
        Code::FailedPrecondition,
        "stale",
    );
    assert_eq!(world.floor("orders").await, None);
    client.put(with(put("orders", "6"), &[&six])).await.unwrap();
    assert_eq!(world.floor("orders").await, Some(6));
    // etcd was put back to an older state.
    world
        .etcd
        .ctl(&["put", "_ringfence/floor/orders", "0000000000000000005"]);
    client.put(with(put("orders", "6"), &[&six])).await.unwrap();
    assert_eq!(world.floor("orders").await, Some(6));
    // All of them are: nobody knows what other proxies had admitted.
    world.etcd.ctl(&["del", "_ringfence/", "--prefix"]);
    let told = refused(
        client.put(with(put("orders", "6"), &[&six])).await,
        Code::Unavailable,
        "busy",
    );
    assert_eq!(told["lock"], "orders");
    refused(
        client
            .range(with(get("orders"), &[&world.ticket("orders", 7)]))
            .await,
        Code::Unavailable,
        "busy",
    );
    assert_eq!(world.floor("orders").await, None);
    // Until an operator has looked.
    world.etcd.ctl(&["put", "_ringfence/ready", "1"]);
    refused(
        client.put(with(put("orders", "6"), &[&six])).await,
        Code::FailedPrecondition,
        "stale",
    );
    client
        .put(with(put("orders", "7"), &[&world.ticket("orders", 7)]))
        .await
        .unwrap();
    // What no proxy wrote.
    world.etcd.ctl(&["put", "_ringfence/floor/orders", "seven"]);
    let seven = with(put("orders", "7"), &[&world.ticket("orders", 7)]);
    refused(client.put(seven).await, Code::Unavailable, "busy");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_proxy_remembers_and_a_lost_store_asks_for_init() {
    let world = World::new(Version::V3_4);
    let config = world.config("a", &world.etcd_address(), JOBS);
    let proxy = world.start("a", &config, true);
    let (five, six) = (world.ticket("orders", 5), world.ticket("orders", 6));
    let mut client = proxy.client().await;
    client
        .put(with(put("orders", "5"), &[&five]))
        .await
        .unwrap();
    client.put(with(put("orders", "6"), &[&six])).await.unwrap();
    // As a crash leaves it: without the clean mark. Nothing is in doubt all the same.
    drop((client, proxy));
    let proxy = world.start("a", &config, false);
    let mut client = proxy.client().await;
    refused(
        client.put(with(put("orders", "old"), &[&five])).await,
        Code::FailedPrecondition,
        "stale",
    );
    client
        .put(with(put("orders", "7"), &[&world.ticket("orders", 7)]))
        .await
        .unwrap();
    drop((client, proxy));
    // Its memory is lost, etcd's is not.
    remove(&world.dir.path().join("a"));
    let proxy = world.start("a", &config, true);
    let mut client = proxy.client().await;
    refused(
        client.put(with(put("orders", "old"), &[&six])).await,
        Code::FailedPrecondition,
        "stale",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bare_tokens_are_those_of_the_one_lock() {
    let world = World::new(Version::V3_5);
    let listener = format!("trust = \"unsigned\"\n{JOBS}");
    let proxy = world.proxy("a", &listener);
    let mut client = proxy.client().await;
    client.put(with(put("orders", "5"), &["5"])).await.unwrap();
    let value = world.value("_ringfence/floor/orders").await;
    assert_eq!(value.as_deref(), Some("u0000000000000000005"));
    refused(
        client.put(with(put("orders", "4"), &["4"])).await,
        Code::FailedPrecondition,
        "stale",
    );
    refused(
        client.range(with(get("orders"), &["4"])).await,
        Code::FailedPrecondition,
        "stale",
    );
    refused(
        client.put(with(put("orders", "x"), &["x"])).await,
        Code::InvalidArgument,
        "invalid",
    );
    refused(
        client.put(with(put("orders", "0"), &["0"])).await,
        Code::InvalidArgument,
        "invalid",
    );
    // Signed tickets of the same lock, at another proxy.
    let signed = world.proxy("b", JOBS);
    let ticket = world.ticket("orders", 9);
    let mut client = signed.client().await;
    refused(
        client.put(with(put("orders", "9"), &[&ticket])).await,
        Code::InvalidArgument,
        "invalid",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn observing_forwards_all_and_audits_what_would_be_refused() {
    let world = World::new(Version::V3_4);
    let proxy = world.proxy("a", &format!("mode = \"observe\"\n{JOBS}"));
    let mut client = proxy.client().await;
    let (one, two) = (world.ticket("orders", 1), world.ticket("orders", 2));
    for tickets in [&[&*two][..], &[&*one], &[], &["forged"]] {
        client.put(with(put("orders", "x"), tickets)).await.unwrap();
    }
    for code in ["stale", "missing", "invalid"] {
        let line = proxy.audited(code, "etcdserverpb.KV/Put orders").await;
        assert_eq!(line["mode"], "observe");
    }
    assert_eq!(
        world.floor("orders").await,
        None,
        "observing leaves no trace"
    );
    assert!(
        etcdctl(&proxy.address.to_string(), &["compact", "2"])
            .status
            .success()
    );
    proxy
        .audited("unclassified", "etcdserverpb.KV/Compact")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unmatched_write_is_refused_where_it_is_asked_for() {
    let world = World::new(Version::V3_4);
    let proxy = world.proxy("a", &format!("unmatched = \"reject\"\n{JOBS}"));
    let mut client = proxy.client().await;
    refused(
        client.put(put("free", "1")).await,
        Code::PermissionDenied,
        "unclassified",
    );
    client.range(get("free")).await.unwrap();
    let ticket = world.ticket("orders", 1);
    client
        .put(with(put("orders", "1"), &[&ticket]))
        .await
        .unwrap();
}
