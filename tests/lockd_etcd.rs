//! Lock services over one real etcd: one is killed and another goes on, proxies registered through
//! one are sealed by the other, and `etcdctl lock` contends for the same locks.

mod lockd_support;
mod support;

use std::sync::Arc;
use std::time::Duration;

use lockd_support::fence::FakeProxy;
use lockd_support::{Client, LONG, eventually, reason, serve_with_keys, soon};
use ringfence::lockd::{Settings, SigningKeys};
use ringfence::proto::{ListLocksRequest, OpenSessionRequest};
use ringfence::store::Store;
use ringfence::store::etcd::{EtcdConfig, EtcdStore};
use support::etcd::{Etcd, Version};
use tokio::runtime::Runtime;

const TRY: Duration = Duration::ZERO;

async fn open(etcd: &Etcd) -> Arc<dyn Store> {
    let config = EtcdConfig {
        endpoints: etcd.endpoints(),
        prefix: String::new(),
    };
    Arc::new(EtcdStore::open(&config).await.unwrap())
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn a_killed_lockd_is_replaced_with_session_place_and_token_kept() {
    let etcd = Etcd::start(Version::V3_4, 1);
    let (main, doomed) = (runtime(), runtime());
    main.block_on(async {
        let keys = Arc::new(SigningKeys::in_memory());
        let second = serve_with_keys(open(&etcd).await, Settings::default(), keys.clone()).await;
        let first = doomed.block_on_from(async {
            serve_with_keys(open(&etcd).await, Settings::default(), keys).await
        });
        let (one, two) = (
            Client::connect(&first).await,
            Client::connect(&second).await,
        );

        let (a, b) = (one.open().await, one.open().await);
        let held = one.acquire(&a, "orders", TRY, 1).await.unwrap().token;
        let waiting = tokio::spawn({
            let (one, b) = (one.clone(), b.clone());
            async move { one.acquire(&b, "orders", LONG, 1).await }
        });
        two.wait_for_waiters("orders", 1).await;
        let place = two.get("orders").await.waiters[0].token;

        std::mem::forget(first);
        doomed.shutdown_background();
        soon("the lost call", waiting).await.unwrap().unwrap_err();
        assert_eq!(two.acquire(&a, "orders", TRY, 1).await.unwrap().token, held);
        assert!(two.renew(&b).await > 0, "the session is kept");
        let again = tokio::spawn({
            let (two, b) = (two.clone(), b.clone());
            async move { two.acquire(&b, "orders", LONG, 1).await.unwrap().token }
        });
        assert!(two.release(&a, "orders", held).await);
        assert_eq!(soon("the kept place", again).await.unwrap(), place);
        soon("the shutdown", second.shutdown()).await.unwrap();
    });
}

/// Runs a future on another runtime from within this one.
trait BlockOnFrom {
    fn block_on_from<T: Send>(&self, future: impl Future<Output = T> + Send) -> T;
}

impl BlockOnFrom for Runtime {
    fn block_on_from<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        std::thread::scope(|scope| scope.spawn(|| self.block_on(future)).join().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_through_one_lockd_wakes_a_waiter_of_another() {
    let etcd = Etcd::start(Version::V3_4, 1);
    let keys = Arc::new(SigningKeys::in_memory());
    let first = serve_with_keys(open(&etcd).await, Settings::default(), keys.clone()).await;
    let second = serve_with_keys(open(&etcd).await, Settings::default(), keys).await;
    let (one, two) = (
        Client::connect(&first).await,
        Client::connect(&second).await,
    );
    let (a, b) = (one.open().await, two.open().await);
    let mut last = 0;
    for attempt in 1..=20 {
        let held = one
            .acquire(&a, "orders", LONG, attempt)
            .await
            .unwrap()
            .token;
        let waiting = tokio::spawn({
            let (two, b) = (two.clone(), b.clone());
            async move {
                two.acquire(&b, "orders", LONG, attempt)
                    .await
                    .unwrap()
                    .token
            }
        });
        one.wait_for_waiters("orders", 1).await;
        assert!(one.release(&a, "orders", held).await);
        let next = soon("a grant across lockds", waiting).await.unwrap();
        assert!(last < held && held < next, "{last}, {held}, {next}");
        assert!(two.release(&b, "orders", next).await);
        last = next;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_etcd_loses_its_data_under_a_lockd_no_token_falls() {
    let mut etcd = Etcd::start(Version::V3_4, 1);
    let keys = Arc::new(SigningKeys::in_memory());
    let lockd = serve_with_keys(open(&etcd).await, Settings::default(), keys).await;
    let client = Client::connect(&lockd).await;
    let session = client.open().await;
    let mut last = 0;
    for attempt in 1..=3 {
        last = client
            .acquire(&session, "orders", TRY, attempt)
            .await
            .unwrap()
            .token;
        assert!(client.release(&session, "orders", last).await);
    }
    tokio::task::block_in_place(|| etcd.wipe());
    let lost = loop {
        let request = OpenSessionRequest {
            ttl_ms: 30_000,
            holder: "test".to_owned(),
        };
        let Ok(opened) = client.locks.clone().open_session(request).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let session = opened.into_inner().session;
        match client.acquire(&session, "orders", TRY, 1).await {
            Ok(granted) => panic!("{} after {last}", granted.token),
            Err(status) if status.code() == tonic::Code::Unavailable => {}
            Err(status) => break status,
        }
    };
    assert_eq!(reason(&lost), "store-corrupt");
    // Also once its revisions have passed those that were given out.
    for _ in 0..2 * last {
        etcd.ctl(&["put", "filler", "x"]);
    }
    let again = client.acquire(&session, "orders", TRY, 4).await;
    assert_eq!(reason(&again.unwrap_err()), "store-corrupt");
    eventually("it says that it does not serve", || async {
        lockd.health().check().is_err() && !client.serves().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lockd_without_its_store_says_that_it_does_not_serve() {
    let mut etcd = Etcd::start(Version::V3_5, 1);
    let keys = Arc::new(SigningKeys::in_memory());
    let lockd = serve_with_keys(open(&etcd).await, Settings::default(), keys).await;
    let client = Client::connect(&lockd).await;
    let session = client.open().await;
    client.acquire(&session, "orders", TRY, 1).await.unwrap();
    let list = || {
        let mut locks = client.locks.clone();
        async move { locks.list_locks(ListLocksRequest::default()).await }
    };
    eventually("it serves", || async { client.serves().await }).await;
    eventually("it lists the lock", || async {
        list().await.unwrap().into_inner().locks.len() == 1
    })
    .await;

    tokio::task::block_in_place(|| etcd.kill(0));
    eventually("it does not", || async { !client.serves().await }).await;
    assert!(lockd.health().check().is_err());
    assert_eq!(reason(&list().await.unwrap_err()), "store-unavailable");

    tokio::task::block_in_place(|| etcd.restart(0));
    eventually("it serves again", || async { client.serves().await }).await;
    assert_eq!(list().await.unwrap().into_inner().locks.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_lock_and_lockd_contend_for_the_same_lock() {
    let etcd = Etcd::start(Version::V3_4, 1);
    let keys = Arc::new(SigningKeys::in_memory());
    let lockd = serve_with_keys(open(&etcd).await, Settings::default(), keys).await;
    let client = Client::connect(&lockd).await;
    let session = client.open().await;

    let mut ctl = etcd.lock("orders");
    tokio::task::block_in_place(|| ctl.wait_held());
    let foreign = client.get("orders").await.holder.unwrap();
    assert!(foreign.foreign);
    let refused = client
        .acquire(&session, "orders", TRY, 1)
        .await
        .unwrap_err();
    assert_eq!(reason(&refused), "not-granted");
    let waiting = tokio::spawn({
        let (client, session) = (client.clone(), session.clone());
        async move {
            client
                .acquire(&session, "orders", LONG, 2)
                .await
                .unwrap()
                .token
        }
    });
    client.wait_for_waiters("orders", 1).await;
    tokio::task::block_in_place(|| ctl.release());
    let token = soon("lockd's grant after etcdctl's", waiting)
        .await
        .unwrap();
    assert!(token > foreign.token);

    let mut ctl = etcd.lock("orders");
    client.wait_for_waiters("orders", 1).await;
    assert!(client.release(&session, "orders", token).await);
    tokio::task::block_in_place(|| ctl.wait_held());
    assert!(client.get("orders").await.holder.unwrap().token > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_is_sealed_by_every_lockd_and_its_watermark_lifts_the_counter() {
    let etcd = Etcd::start(Version::V3_4, 1);
    let keys = Arc::new(SigningKeys::in_memory());
    let first = serve_with_keys(open(&etcd).await, Settings::default(), keys.clone()).await;
    let second = serve_with_keys(open(&etcd).await, Settings::default(), keys.clone()).await;
    let (one, two) = (
        Client::connect(&first).await,
        Client::connect(&second).await,
    );
    let session = two.open().await;
    assert!(
        two.acquire(&session, "orders", TRY, 1)
            .await
            .unwrap()
            .sealed
            .is_empty()
    );
    let proxy = FakeProxy::start("edge", &keys).await;
    proxy.register(&one, "orders").await;
    let granted = two.acquire(&session, "orders", TRY, 1).await.unwrap();
    assert_eq!(granted.sealed, ["edge"]);
    assert_eq!(proxy.watermark(), granted.token);
    assert!(two.release(&session, "orders", granted.token).await);

    // The proxy remembers the tokens of an etcd that is lost.
    proxy.set_watermark(1 << 50);
    let raised = two.acquire(&session, "orders", TRY, 2).await.unwrap().token;
    assert!(raised > 1 << 50);
    assert_eq!(
        two.acquire(&session, "orders", TRY, 2).await.unwrap().token,
        raised
    );
    assert!(two.release(&session, "orders", raised).await);
    let other = one.open().await;
    assert!(one.acquire(&other, "orders", TRY, 1).await.unwrap().token > raised);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_is_away_for_a_while_loses_no_waiter() {
    let mut etcd = Etcd::start(Version::V3_4, 1);
    let keys = Arc::new(SigningKeys::in_memory());
    let lockd = serve_with_keys(open(&etcd).await, Settings::default(), keys).await;
    let client = Client::connect(&lockd).await;
    let (a, b) = (client.open().await, client.open().await);
    let held = client.acquire(&a, "orders", TRY, 1).await.unwrap().token;
    let waiting = tokio::spawn({
        let (client, b) = (client.clone(), b.clone());
        async move { client.acquire(&b, "orders", LONG, 1).await.unwrap().token }
    });
    client.wait_for_waiters("orders", 1).await;
    let place = client.get("orders").await.waiters[0].token;
    tokio::task::block_in_place(|| {
        etcd.kill(0);
        etcd.restart(0);
    });
    eventually("the release goes through", || async {
        client.try_release(&a, "orders", held, false).await.is_ok()
    })
    .await;
    assert_eq!(soon("the waiter", waiting).await.unwrap(), place);
}
