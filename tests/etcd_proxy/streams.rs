//! Streams that were opened under tickets: a holder that was superseded does not read on as one.

use std::time::Duration;

use futures::StreamExt as _;
use ringfence::etcd_proto::etcdserverpb::watch_client::WatchClient;
use ringfence::etcd_proto::etcdserverpb::watch_request::RequestUnion;
use ringfence::etcd_proto::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use ringfence::proto::CloseRequest;
use ringfence::proto::fence_service_server::FenceService;
use ringfence::ticket::Action;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tonic::{Code, Request, Status, Streaming};

use crate::support::{JOBS, Running, Version, World, get, put, refused, soon, with};

/// Watches `orders` under these tickets.
async fn watch(proxy: &Running, tickets: &[&str]) -> Result<Streaming<WatchResponse>, Status> {
    let create = WatchCreateRequest {
        key: "orders".into(),
        ..Default::default()
    };
    let create = WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(create)),
    };
    let requests = futures::stream::iter([create]).chain(futures::stream::pending());
    let mut client = WatchClient::new(proxy.channel().await);
    let mut events = client.watch(with(requests, tickets)).await?.into_inner();
    let created = soon("the watch", events.message()).await?.unwrap();
    assert!(created.created);
    Ok(events)
}

/// The next value that a watcher sees.
async fn seen(events: &mut Streaming<WatchResponse>) -> Result<String, Status> {
    let response = soon("an event", events.message())
        .await?
        .expect("a response");
    let kv = response.events[0].kv.clone().unwrap();
    Ok(String::from_utf8(kv.value.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_its_ticket_is_superseded_at_any_proxy() {
    for version in [Version::V3_4, Version::V3_5] {
        let world = World::new(version);
        let (a, b) = (world.proxy("a", JOBS), world.proxy("b", JOBS));
        let (one, two) = (world.ticket("orders", 1), world.ticket("orders", 2));
        let other = world.ticket("job/7", 9);
        let mut client = b.client().await;
        let mut held = watch(&a, &[&one, &other]).await.unwrap();
        let mut elsewhere = watch(&a, &[&other]).await.unwrap();
        let mut free = watch(&a, &[]).await.unwrap();
        // Equal passes, as often as it likes, at both.
        for value in ["x", "y"] {
            client
                .put(with(put("orders", value), &[&one]))
                .await
                .unwrap();
            assert_eq!(seen(&mut held).await.unwrap(), value);
        }
        client.range(with(get("orders"), &[&two])).await.unwrap();
        let ended = soon("the end", held.message()).await;
        let told = refused(ended, Code::FailedPrecondition, "stale");
        assert_eq!(
            (&*told["lock"], &*told["token"], &*told["watermark"]),
            ("orders", "1", "2")
        );
        let line = a.audited("stale", "etcdserverpb.Watch/Watch").await;
        assert_eq!(line["holder"], "holder-1");
        let again = watch(&a, &[&one]).await;
        refused(again, Code::FailedPrecondition, "stale");
        // Those under another lock, under none and under the newer ticket go on.
        let mut newer = watch(&a, &[&two]).await.unwrap();
        client.put(with(put("orders", "z"), &[&two])).await.unwrap();
        for (events, before) in [(&mut elsewhere, 2), (&mut free, 2), (&mut newer, 0)] {
            for _ in 0..before {
                seen(events).await.unwrap();
            }
            assert_eq!(seen(events).await.unwrap(), "z");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_its_lock_is_closed() {
    let world = World::new(Version::V3_5);
    let proxy = world.proxy("a", JOBS);
    let mut held = watch(&proxy, &[&world.ticket("orders", 5)]).await.unwrap();
    let close = CloseRequest {
        authority: world.order(Action::Close, "orders", 5),
        wait_ms: 5000,
    };
    let fence = proxy.proxy.fence();
    fence.close(Request::new(close)).await.unwrap();
    let ended = soon("the end", held.message()).await;
    let told = refused(ended, Code::FailedPrecondition, "stale");
    assert_eq!(told["token"], "5");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_whose_floor_is_lost_ends_too() {
    let world = World::new(Version::V3_4);
    let proxy = world.proxy("a", JOBS);
    let mut held = watch(&proxy, &[&world.ticket("orders", 5)]).await.unwrap();
    world.etcd.ctl(&["del", "_ringfence/floor/orders"]);
    let ended = soon("the end", held.message()).await;
    refused(ended, Code::Unavailable, "busy");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_begin_does_not_keep_its_place() {
    let world = World::new(Version::V3_4);
    let proxy = world.proxy("a", JOBS);
    let mut silent = TcpStream::connect(proxy.address).await.unwrap();
    let mut told = vec![];
    let end = silent.read_to_end(&mut told);
    // Half a minute, and what a loaded machine may take longer.
    let ended = tokio::time::timeout(Duration::from_secs(50), end).await;
    ended.expect("the connection is still open").unwrap();
}
