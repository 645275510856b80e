//! Faults that are publicly known of etcd's own gRPC proxy, which stands where this one does: each
//! has a test of its own kind here, or where this list says.
//!
//! - etcd-io/etcd 9988, 18231, 21813: a watch whose way to etcd was lost stays open and silent:
//!   `a_watch_ends_with_its_way_to_etcd`
//! - etcd-io/etcd 10650: after a compaction watches get no events any more:
//!   `a_watch_from_before_a_compaction_is_told_and_the_next_one_goes_on`
//! - etcd-io/etcd 6873, 12030: a watch that is cancelled holds up the others:
//!   `a_cancelled_watch_leaves_the_others`
//! - etcd-io/etcd 8188, 9294: many events at once do not fit into a message:
//!   `many_events_of_one_revision_come_in_fragments`
//! - etcd-io/etcd 9751: the end of a client's keep-alives is an error:
//!   `keep_alives_end_as_the_client_ends_them`
//! - etcd-io/etcd 10909, 22397: serializable reads are answered from an old cache:
//!   `no_read_is_answered_from_memory`
//! - etcd-io/etcd 22129: reads beside transactions crash it: `no_read_is_answered_from_memory`
//! - etcd-io/etcd 18011: requests of the JSON gateway: `mixed::nothing_but_grpc_gets_to_etcd`
//! - etcd-io/etcd 12897: users' tokens are lost with etcd's life:
//!   `mixed::an_etcd_with_users_knows_the_proxy_and_its_clients`

use ringfence::etcd_proto::etcdserverpb::lease_client::LeaseClient;
use ringfence::etcd_proto::etcdserverpb::watch_client::WatchClient;
use ringfence::etcd_proto::etcdserverpb::watch_request::RequestUnion;
use ringfence::etcd_proto::etcdserverpb::{
    DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, RangeRequest, WatchCancelRequest,
    WatchCreateRequest, WatchRequest, WatchResponse,
};
use tokio::sync::mpsc;
use tonic::{Code, Streaming};

use crate::support::{JOBS, Running, Version, World, get, put, soon, with};

/// A stream of watches that the test goes on asking on.
struct Watches {
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl Watches {
    /// A stream with its first watch: etcd answers nothing before it is asked.
    async fn open(proxy: &Running, create: WatchCreateRequest) -> (Watches, WatchResponse) {
        let (requests, asked) = mpsc::channel(8);
        let first = WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(create)),
        };
        requests.send(first).await.unwrap();
        let asked = tokio_stream(asked);
        let mut client = WatchClient::new(proxy.channel().await);
        let responses = soon("the stream", client.watch(asked)).await.unwrap();
        let mut watches = Watches {
            requests,
            responses: responses.into_inner(),
        };
        let told = watches.next().await;
        (watches, told)
    }

    async fn ask(&mut self, request: RequestUnion) -> WatchResponse {
        let request = WatchRequest {
            request_union: Some(request),
        };
        self.requests.send(request).await.unwrap();
        self.next().await
    }

    async fn create(&mut self, create: WatchCreateRequest) -> WatchResponse {
        self.ask(RequestUnion::CreateRequest(create)).await
    }

    async fn next(&mut self) -> WatchResponse {
        let response = soon("a response", self.responses.message()).await;
        response.unwrap().expect("a response")
    }
}

fn tokio_stream<T: Send + 'static>(
    receiver: mpsc::Receiver<T>,
) -> impl futures::Stream<Item = T> + Send + 'static {
    futures::stream::unfold(receiver, |mut receiver| async {
        let item = receiver.recv().await?;
        Some((item, receiver))
    })
}

fn prefix(key: &str, start_revision: i64) -> WatchCreateRequest {
    let mut end = key.as_bytes().to_vec();
    *end.last_mut().unwrap() += 1;
    WatchCreateRequest {
        key: key.to_owned().into(),
        range_end: end.into(),
        start_revision,
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_with_its_way_to_etcd() {
    let mut world = World::new(Version::V3_5);
    let proxy = world.proxy("a", JOBS);
    let ticket = world.ticket("orders", 1);
    let (mut watches, told) = Watches::open(&proxy, prefix("w/", 0)).await;
    assert!(told.created);
    let mut client = proxy.client().await;
    client.put(put("w/1", "before")).await.unwrap();
    let seen = watches.next().await;
    let revision = seen.header.unwrap().revision;
    world.etcd.kill(0);
    let ended = soon("the end", watches.responses.message()).await;
    assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
    world.etcd.restart(0);
    client.put(put("w/2", "between")).await.unwrap();
    // What was missed is there for the next one, on the same connections, with a ticket or not.
    let (mut watches, _) = Watches::open(&proxy, prefix("w/", revision + 1)).await;
    let missed = watches.next().await;
    assert_eq!(missed.events[0].kv.as_ref().unwrap().value, "between");
    client
        .put(with(put("orders", "1"), &[&ticket]))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_from_before_a_compaction_is_told_and_the_next_one_goes_on() {
    let world = World::new(Version::V3_5);
    let proxy = world.proxy("a", JOBS);
    let mut client = proxy.client().await;
    for value in ["1", "2", "3"] {
        client.put(put("w/1", value)).await.unwrap();
    }
    let header = client.range(get("w/1")).await.unwrap().into_inner().header;
    let revision = header.unwrap().revision;
    world.etcd.ctl(&["compact", &revision.to_string()]);
    let (mut watches, mut told) = Watches::open(&proxy, prefix("w/", 1)).await;
    if told.created && !told.canceled {
        told = watches.next().await;
    }
    assert!(
        told.canceled && told.compact_revision == revision,
        "{told:?}"
    );
    assert!(watches.create(prefix("w/", revision + 1)).await.created);
    client.put(put("w/1", "after")).await.unwrap();
    let seen = watches.next().await;
    assert_eq!(seen.events[0].kv.as_ref().unwrap().value, "after");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_watch_leaves_the_others() {
    let world = World::new(Version::V3_4);
    let proxy = world.proxy("a", JOBS);
    let mut client = proxy.client().await;
    let (mut watches, told) = Watches::open(&proxy, prefix("w/", 0)).await;
    let stays = told.watch_id;
    for round in 0..20 {
        let goes = watches.create(prefix("w/", 0)).await.watch_id;
        assert_ne!(goes, stays);
        let cancel = WatchCancelRequest { watch_id: goes };
        let told = watches.ask(RequestUnion::CancelRequest(cancel)).await;
        assert!(told.canceled && told.watch_id == goes, "{told:?}");
        let value = round.to_string();
        client.put(put("w/1", &value)).await.unwrap();
        let seen = watches.next().await;
        assert_eq!(seen.watch_id, stays);
        assert_eq!(seen.events[0].kv.as_ref().unwrap().value, value);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_events_of_one_revision_come_in_fragments() {
    let world = World::new(Version::V3_5);
    let proxy = world.proxy("a", JOBS);
    let mut client = proxy.client().await;
    let value = "x".repeat(100_000);
    for key in 0..60 {
        client.put(put(&format!("w/{key}"), &value)).await.unwrap();
    }
    let create = WatchCreateRequest {
        prev_kv: true,
        fragment: true,
        ..prefix("w/", 0)
    };
    let (mut watches, _) = Watches::open(&proxy, create).await;
    let all = DeleteRangeRequest {
        key: "w/".into(),
        range_end: "w0".into(),
        prev_kv: false,
    };
    client.delete_range(all).await.unwrap();
    // Six megabytes, of which etcd puts one and a half into a message.
    let (mut events, mut pieces) = (0, 0);
    while events < 60 {
        let piece = watches.next().await;
        events += piece.events.len();
        pieces += 1;
        assert_eq!(piece.fragment, events < 60);
    }
    assert!(pieces > 2, "{pieces}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_alives_end_as_the_client_ends_them() {
    let world = World::new(Version::V3_4);
    let proxy = world.proxy("a", JOBS);
    let mut leases = LeaseClient::new(proxy.channel().await);
    let grant = LeaseGrantRequest { ttl: 600, id: 77 };
    leases.lease_grant(grant).await.unwrap();
    for _ in 0..5 {
        let once = futures::stream::iter([LeaseKeepAliveRequest { id: 77 }]);
        let mut kept = leases.lease_keep_alive(once).await.unwrap().into_inner();
        let answer = soon("an answer", kept.message()).await.unwrap().unwrap();
        assert_eq!((answer.id, answer.ttl), (77, 600));
        let end = soon("the end", kept.message()).await;
        assert!(end.expect("the end is no error").is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_read_is_answered_from_memory() {
    let world = World::new(Version::V3_5);
    let proxy = world.proxy("a", JOBS);
    let mut client = proxy.client().await;
    let from_key = RangeRequest {
        key: "w/".into(),
        range_end: "\0".into(),
        serializable: true,
        ..Default::default()
    };
    let mut direct = world.direct().await;
    let mut writers = tokio::task::JoinSet::new();
    for at in 0..4 {
        let mut client = client.clone();
        writers.spawn(async move {
            for value in 0..50 {
                let key = format!("w/x{at}");
                client.put(put(&key, &value.to_string())).await.unwrap();
            }
        });
    }
    for value in 0..50 {
        let value = value.to_string();
        direct.put(put("w/1", &value)).await.unwrap();
        let read = client.range(from_key.clone()).await.unwrap().into_inner();
        assert_eq!(read.kvs[0].value, value);
    }
    while let Some(ended) = writers.join_next().await {
        ended.unwrap();
    }
    let gone = DeleteRangeRequest {
        key: "w/".into(),
        range_end: "\0".into(),
        prev_kv: false,
    };
    assert_eq!(
        client
            .delete_range(gone)
            .await
            .unwrap()
            .into_inner()
            .deleted,
        5
    );
    let read = client.range(from_key).await.unwrap().into_inner();
    assert!(read.kvs.is_empty());
}
