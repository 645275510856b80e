//! What only a store on etcd can be asked: its layout, foreign keys, and `etcdctl lock` on both
//! sides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use futures::future::join_all;
use ringfence::store::etcd::{EtcdConfig, EtcdStore};
use ringfence::store::{Enqueue, Enqueued, SessionId, Store, StoreError};
use ringfence::token::Token;

use crate::fixture::{
    Fixture, Kind, Mirror, attempt_first, queue, remove, request, session, stand, standing,
};
use crate::support::etcd::{Etcd, Version};

macro_rules! on_both_versions {
    ($($rule:ident)+) => {
        mod v3_4 {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $rule() {
                    super::$rule(super::Version::V3_4).await;
                }
            )+
        }
        mod v3_5 {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $rule() {
                    super::$rule(super::Version::V3_5).await;
                }
            )+
        }
    };
}

on_both_versions! {
    the_key_is_that_of_the_concurrency_package
    etcdctl_that_holds_blocks_us_and_hands_over
    we_block_etcdctl_and_hand_over
    etcdctl_and_we_stand_in_one_queue
    keys_that_are_no_entries_confuse_nothing
    an_entry_is_what_its_lease_says
    a_prefix_keeps_apart
    a_dead_session_fails_alone_in_its_batch
    two_stores_are_one
    two_stores_that_believe_their_watches_never_tell_two_holders
    addresses_that_lead_nowhere_are_told
}

async fn start(version: Version) -> (Fixture, Arc<dyn Store>) {
    let fixture = Fixture::start(Kind::Etcd(version)).await;
    let store = fixture.store();
    (fixture, store)
}

fn hex(session: SessionId) -> String {
    session.to_string()
}

/// The create revision of a key, as etcdctl tells it.
fn create_revision(etcd: &Etcd, key: &str) -> u64 {
    let json: serde_json::Value =
        serde_json::from_str(&etcd.ctl(&["get", key, "-w", "json"])).unwrap();
    json["kvs"][0]["create_revision"].as_u64().expect("a key")
}

async fn the_key_is_that_of_the_concurrency_package(version: Version) {
    let (fixture, store) = start(version).await;
    let one = session(&store).await;
    let (entry, _) = stand(&store, "tenant/42", one, 1).await;
    let key = format!("tenant/42/{}", hex(one));
    assert_eq!(create_revision(fixture.etcd(), &key), entry.token.get());
    stand(&store, "tenant/42", one, 1).await;
    assert_eq!(create_revision(fixture.etcd(), &key), entry.token.get());
    let leases = fixture
        .etcd()
        .ctl(&["lease", "timetolive", &hex(one), "--keys"]);
    assert!(leases.contains(&key), "{leases}");
}

async fn etcdctl_that_holds_blocks_us_and_hands_over(version: Version) {
    let (fixture, store) = start(version).await;
    let mut mirror = Mirror::start(&store).await;
    let mut lock = fixture.etcd().lock("orders");
    let key = lock.wait_held();
    let one = session(&store).await;
    let Enqueued::Held { holder } = attempt_first(&store, "orders", one, 1).await else {
        panic!("two hold the lock");
    };
    assert!(holder.foreign);
    assert_eq!((holder.attempt, &*holder.holder), (0, ""));
    assert_eq!(key, format!("orders/{}", hex(holder.session)));
    assert_eq!(holder.token.get(), create_revision(fixture.etcd(), &key));
    let (own, first) = stand(&store, "orders", one, 1).await;
    assert_eq!(first, holder);
    assert_eq!(queue(&store, "orders").await, [holder, own.clone()]);
    lock.release();
    mirror
        .until(|mirror| mirror.of("orders") == [own.clone()])
        .await;
    assert!(own.token.get() > 0 && !own.foreign);
}

async fn we_block_etcdctl_and_hand_over(version: Version) {
    let (fixture, store) = start(version).await;
    let mut mirror = Mirror::start(&store).await;
    let one = session(&store).await;
    let (own, _) = stand(&store, "orders", one, 1).await;
    let mut lock = fixture.etcd().lock("orders");
    mirror.until(|mirror| mirror.of("orders").len() == 2).await;
    let entries = queue(&store, "orders").await;
    assert_eq!(entries[0], own);
    assert!(entries[1].foreign && entries[1].token > own.token);
    let removed = remove(&store, &own).await;
    assert_eq!(removed.next.as_ref(), Some(&entries[1]));
    assert_eq!(
        lock.wait_held(),
        format!("orders/{}", hex(entries[1].session))
    );
    lock.release();
    mirror.until(|mirror| mirror.of("orders").is_empty()).await;
}

async fn etcdctl_and_we_stand_in_one_queue(version: Version) {
    let (fixture, store) = start(version).await;
    let mut mirror = Mirror::start(&store).await;
    let (one, two) = (session(&store).await, session(&store).await);
    let (first, _) = stand(&store, "orders", one, 1).await;
    let mut lock = fixture.etcd().lock("orders");
    mirror.until(|mirror| mirror.of("orders").len() == 2).await;
    let (third, _) = stand(&store, "orders", two, 1).await;
    let next = remove(&store, &first).await.next.expect("etcdctl is next");
    assert!(next.foreign);
    lock.wait_held();
    assert_eq!(queue(&store, "orders").await, [next, third.clone()]);
    lock.release();
    mirror
        .until(|mirror| mirror.of("orders") == [third.clone()])
        .await;
}

async fn keys_that_are_no_entries_confuse_nothing(version: Version) {
    let (fixture, store) = start(version).await;
    let etcd = fixture.etcd();
    let other = etcd.grant(600);
    let (one, two) = (session(&store).await, session(&store).await);
    // All older than any entry, and more than a page of the oldest.
    for key in [
        "orders",
        "orders/",
        "orders/zz",
        "orders/1f",
        "orders/1/zz",
        "orders/0",
    ] {
        etcd.ctl(&["put", key, "foreign"]);
    }
    for key in ["orders/1e", "orders/x y", "orders/1/1e"] {
        etcd.ctl(&["put", key, "foreign", "--lease", &other]);
    }
    let nested = format!("orders/1/{other}");
    etcd.ctl(&["put", &nested, "foreign", "--lease", &other]);
    let mut mirror = Mirror::start(&store).await;
    assert_eq!(mirror.of("orders"), []);
    assert_eq!(mirror.of("orders/1").len(), 1);
    assert_eq!(mirror.entries.len(), 1);
    let (first, holder) = standing(attempt_first(&store, "orders", one, 1).await);
    assert_eq!(first, holder);
    let held = attempt_first(&store, "orders", two, 1).await;
    assert_eq!(
        held,
        Enqueued::Held {
            holder: first.clone()
        }
    );
    let (again, holder) = standing(attempt_first(&store, "orders", one, 1).await);
    assert_eq!((again.token, &holder), (first.token, &again));
    let (second, holder) = stand(&store, "orders", two, 1).await;
    assert_eq!(holder, again);
    etcd.ctl(&["put", "orders/later", "foreign"]);
    etcd.ctl(&["del", "orders/zz"]);
    assert_eq!(
        queue(&store, "orders").await,
        [again.clone(), second.clone()]
    );
    assert_eq!(remove(&store, &again).await.next, Some(second.clone()));
    mirror
        .until(|mirror| mirror.of("orders") == [second.clone()])
        .await;
    assert_eq!(remove(&store, &second).await.next, None);
    assert_eq!(queue(&store, "orders").await, []);
    // A key of a session's own name that is attached to nothing: neither taken over nor removed.
    etcd.ctl(&["put", &format!("taken/{}", hex(one)), "foreign"]);
    for only_if_first in [false, true] {
        let request = Enqueue {
            only_if_first,
            ..request("taken", one, 1)
        };
        let refused = store.enqueue(request).await;
        assert!(
            matches!(refused, Err(StoreError::Refused(_))),
            "{refused:?}"
        );
    }
    assert_eq!(queue(&store, "taken").await, []);
}

async fn an_entry_is_what_its_lease_says(version: Version) {
    let (fixture, store) = start(version).await;
    let etcd = fixture.etcd();
    let mut mirror = Mirror::start(&store).await;
    let lease = etcd.grant(600);
    let (one, two) = (session(&store).await, session(&store).await);
    // The lock `a/<lease>` beside an entry of `a` whose key has the same text.
    let inner = format!("a/{lease}");
    let (nested, _) = standing(attempt_first(&store, &inner, one, 1).await);
    etcd.ctl(&["put", &inner, "", "--lease", &lease]);
    let holder = queue(&store, "a")
        .await
        .pop()
        .expect("the foreign entry of a");
    assert!(holder.foreign && hex(holder.session) == lease);
    let (waiting, first) = stand(&store, "a", two, 1).await;
    assert_eq!(first, holder);
    assert_eq!(queue(&store, &inner).await, [nested]);
    // Rewritten without its lease it is no entry any more.
    etcd.ctl(&["put", &inner, ""]);
    assert_eq!(queue(&store, "a").await, std::slice::from_ref(&waiting));
    mirror
        .until(|mirror| mirror.of("a") == [waiting.clone()])
        .await;
    // Deleted from outside, an entry is gone, and its attempt with it.
    etcd.ctl(&["del", &format!("a/{}", hex(two))]);
    mirror.until(|mirror| mirror.of("a").is_empty()).await;
    let over = store.enqueue(request("a", two, 1)).await.unwrap();
    assert_eq!(over, Enqueued::AttemptOver { last: 1 });
    assert!(!remove(&store, &waiting).await.removed);
}

async fn a_prefix_keeps_apart(version: Version) {
    let (fixture, outside) = start(version).await;
    let endpoints = fixture.etcd().endpoints();
    let config = EtcdConfig {
        endpoints,
        prefix: "locks/".to_owned(),
    };
    let inside: Arc<dyn Store> = Arc::new(EtcdStore::open(&config).await.unwrap());
    let mut mirror = Mirror::start(&inside).await;
    let (one, two) = (session(&outside).await, session(&inside).await);
    let (outer, _) = standing(attempt_first(&outside, "a", one, 1).await);
    let (inner, _) = standing(attempt_first(&inside, "a", two, 1).await);
    assert_eq!(
        create_revision(fixture.etcd(), &format!("locks/a/{}", hex(two))),
        inner.token.get()
    );
    assert_eq!(queue(&inside, "a").await, std::slice::from_ref(&inner));
    assert_eq!(queue(&outside, "a").await, [outer]);
    mirror
        .until(|mirror| mirror.of("a") == [inner.clone()])
        .await;
    assert_eq!(mirror.entries.len(), 1);
    inside.put_record("r", Some(b"in".to_vec())).await.unwrap();
    assert_eq!(outside.records("").await.unwrap(), []);
    assert_eq!(
        inside.records("").await.unwrap(),
        [("r".to_owned(), b"in".to_vec())]
    );
}

async fn a_dead_session_fails_alone_in_its_batch(version: Version) {
    const PAIRS: usize = 40;
    let (_fixture, store) = start(version).await;
    let sessions = join_all((0..PAIRS * 2).map(|_| session(&store))).await;
    join_all(
        sessions
            .iter()
            .step_by(2)
            .map(|one| store.close_session(*one)),
    )
    .await;
    let requests = sessions.iter().enumerate();
    let requests =
        requests.map(|(index, one)| store.enqueue(request(&format!("lock/{index}"), *one, 1)));
    for (index, enqueued) in join_all(requests).await.into_iter().enumerate() {
        match (index % 2, enqueued.unwrap()) {
            (0, Enqueued::SessionGone) => {}
            (1, Enqueued::Standing { entry, holder }) => assert_eq!(entry, holder),
            (_, other) => panic!("{index}: {other:?}"),
        }
    }
}

async fn two_stores_are_one(version: Version) {
    let (fixture, left) = start(version).await;
    let right = fixture.open().await;
    let mut mirror = Mirror::start(&right).await;
    let (one, two) = (session(&left).await, session(&right).await);
    let (first, _) = stand(&left, "a", one, 1).await;
    let (second, holder) = stand(&right, "a", two, 1).await;
    assert_eq!(holder, first);
    mirror
        .until(|mirror| mirror.of("a") == [first.clone(), second.clone()])
        .await;
    // One raises the generation; the other has never heard of it and must not miss it.
    let far = Token::new(second.token.get() + 1_000_000).unwrap();
    left.raise_above(far).await.unwrap();
    let (third, _) = stand(&right, "b", two, 1).await;
    assert_eq!(third.token.get() >> 48, 1);
    assert!(remove(&right, &third).await.removed);
    // The first store goes; its session, place and token go on through the second.
    drop(left);
    let (again, _) = stand(&right, "a", one, 1).await;
    assert_eq!(again.token, first.token);
    assert!(right.keep_alive(one).await.unwrap().is_some());
    assert_eq!(remove(&right, &again).await.next, Some(second));
}

/// Each store believes what its own watch has shown of a lock that both change all the time.
async fn two_stores_that_believe_their_watches_never_tell_two_holders(version: Version) {
    const SESSIONS: usize = 5;
    const ROUNDS: u64 = 12;
    let (fixture, left) = start(version).await;
    let right = fixture.open().await;
    let mut mirrors = [Mirror::start(&left).await, Mirror::start(&right).await];
    let holders = AtomicUsize::new(0);
    let highest = AtomicU64::new(0);
    let callers = (0..SESSIONS * 2).map(|index| {
        let (store, holders, highest) = ([&left, &right][index % 2], &holders, &highest);
        async move {
            let one = session(store).await;
            for round in 1..=ROUNDS {
                let (entry, holder) = match attempt_first(store, "a", one, round).await {
                    Enqueued::Standing { entry, holder } => (entry, holder),
                    _ => stand(store, "a", one, round).await,
                };
                if holder != entry {
                    while queue(store, "a").await[0].session != one {}
                }
                assert_eq!(
                    holders.fetch_add(1, Ordering::SeqCst),
                    0,
                    "two hold the lock"
                );
                let before = highest.swap(entry.token.get(), Ordering::SeqCst);
                assert!(before < entry.token.get());
                holders.fetch_sub(1, Ordering::SeqCst);
                assert!(remove(store, &entry).await.removed);
            }
        }
    });
    join_all(callers).await;
    for mirror in &mut mirrors {
        mirror.until(|mirror| mirror.entries.is_empty()).await;
    }
}

async fn addresses_that_lead_nowhere_are_told(version: Version) {
    let (fixture, _store) = start(version).await;
    let open = async |endpoints: &[&str]| {
        let endpoints = endpoints.iter().map(|one| (*one).to_owned()).collect();
        EtcdStore::open(&EtcdConfig {
            endpoints,
            prefix: String::new(),
        })
        .await
        .map(drop)
    };
    for bad in [
        &[][..],
        &["127.0.0.1:2379"],
        &["https://127.0.0.1:2379"],
        &["http://"],
    ] {
        let opened = open(bad).await;
        assert!(
            matches!(opened, Err(StoreError::Refused(_))),
            "{bad:?}: {opened:?}"
        );
    }
    // Port 1 refuses connections.
    let opened = open(&["http://127.0.0.1:1"]).await;
    assert!(
        matches!(opened, Err(StoreError::Unavailable(_))),
        "{opened:?}"
    );
    // The next one is taken.
    open(&["http://127.0.0.1:1", &fixture.etcd().endpoint(0)])
        .await
        .unwrap();
}
