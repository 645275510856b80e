//! Another store than before, which does not know the proxies that run: none of them admits an
//! older holder beside one that is granted now.

use std::path::Path;

use crate::backend::Origin;
use crate::clients::{Holder, put};
use crate::etcd_server::{Etcd, Version};
use crate::lockds::lockd as lockd_on;
use crate::lost_locks::{refuses_to_start, token_of};
use crate::proxies::{SEAL_TIMEOUT, proxy};
use crate::stack::{Lockd, Proxy, eventually};
use crate::stores::remove;

/// The ticket of a holder that has written.
async fn written(lockd: &Lockd, proxy: &Proxy) -> String {
    let mut holder = Holder::open(lockd, 120_000).await;
    let grant = holder.acquire("orders", 20_000).await.unwrap();
    assert_eq!(grant.sealed, ["edge"]);
    let answer = put(&proxy.url("/orders/1"), "A", Some(&grant.ticket));
    assert_eq!(answer.status, 200, "{answer:?}");
    grant.ticket
}

/// Nobody is granted the lock as long as the proxy says nothing, and who was granted it before is
/// refused as soon as somebody is.
async fn is_sealed_by(lockd: &Lockd, proxy: &Proxy, old: &str) {
    let mut early = Holder::open(lockd, 120_000).await;
    let refused = early.acquire("orders", 0).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused:?}");
    early.close().await;

    proxy.process.signal("CONT");
    let mut holder = Holder::open(lockd, 120_000).await;
    let grant = holder.acquire("orders", 20_000).await.unwrap();
    assert_eq!(grant.sealed, ["edge"]);
    let url = proxy.url("/orders/1");
    let late = put(&url, "late A", Some(old));
    assert_eq!((late.status, late.code().as_str()), (412, "stale"));
    assert_eq!(put(&url, "B", Some(&grant.ticket)).status, 200);
    // It stays in the set, and nothing has to be started again.
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    assert_eq!(put(&url, "B", Some(&grant.ticket)).status, 200);
}

fn known_proxies(data: &Path) -> String {
    std::fs::read_to_string(data.join("lockd/proxies.seen")).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_embedded_store_seals_through_the_proxies_of_the_lost_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut lockd = Lockd::start(dir.path(), SEAL_TIMEOUT);
    let origin = Origin::start();
    let proxy = proxy(dir.path(), "edge", &lockd, origin.address);
    let old = written(&lockd, &proxy).await;

    lockd.process.kill();
    proxy.process.signal("STOP");
    std::fs::remove_file(dir.path().join("lockd/locks.redb")).unwrap();
    lockd.start_again(&["--init"]);
    is_sealed_by(&lockd, &proxy, &old).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_was_wiped_seals_through_what_other_lock_services_had_registered() {
    let dir = tempfile::tempdir().unwrap();
    let mut etcd = Etcd::start(Version::V3_4, 1);
    let mut one = lockd_on(dir.path(), "one", &etcd.endpoint(0));
    let mut two = lockd_on(dir.path(), "two", &etcd.endpoint(0));
    let origin = Origin::start();
    let proxy = proxy(dir.path(), "edge", &one, origin.address);
    let old = written(&one, &proxy).await;
    eventually("the other one has seen it", || {
        known_proxies(&dir.path().join("two")).contains("edge")
    });

    one.process.kill();
    two.process.kill();
    proxy.process.signal("STOP");
    tokio::task::block_in_place(|| etcd.wipe());
    refuses_to_start(&mut two, "etcd");
    two.start_again(&["--init"]);
    is_sealed_by(&two, &proxy, &old).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_took_out_is_not_put_back_and_what_is_unreadable_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut lockd = Lockd::start(dir.path(), SEAL_TIMEOUT);
    let origin = Origin::start();
    let mut proxy = proxy(dir.path(), "edge", &lockd, origin.address);
    assert!(known_proxies(dir.path()).contains("edge"));
    proxy.process.kill();
    remove(&lockd, "edge");
    assert!(!known_proxies(dir.path()).contains("edge"));
    lockd.process.terminate();
    let store = dir.path().join("lockd/locks.redb");
    std::fs::remove_file(&store).unwrap();
    lockd.start_again(&["--init"]);
    let mut holder = Holder::open(&lockd, 120_000).await;
    let grant = holder.acquire("orders", 0).await.unwrap();
    assert!(grant.sealed.is_empty());

    lockd.process.terminate();
    std::fs::remove_file(&store).unwrap();
    std::fs::write(dir.path().join("lockd/proxies.seen"), "{\"edge\": ").unwrap();
    lockd.start_again(&["--init"]);
    let told = || {
        let log = lockd.process.log();
        log.contains("proxies.seen") && log.contains("Every proxy has to be stopped")
    };
    eventually("a word about proxies", told);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_copy_of_the_embedded_store_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let mut lockd = Lockd::start(dir.path(), SEAL_TIMEOUT);
    let origin = Origin::start();
    let proxy = proxy(dir.path(), "edge", &lockd, origin.address);
    token_of(&lockd, "a").await;
    lockd.process.terminate();
    let store = dir.path().join("lockd/locks.redb");
    let copy = dir.path().join("copy.redb");
    std::fs::copy(&store, &copy).unwrap();
    lockd.restart();
    let old = written(&lockd, &proxy).await;
    let last = token_of(&lockd, "b").await;
    // What comes within seconds of a kill may be missed.
    lockd.process.terminate();

    proxy.process.signal("STOP");
    std::fs::copy(&copy, &store).unwrap();
    refuses_to_start(&mut lockd, "older copy");
    lockd.start_again(&["--init"]);
    let next = token_of(&lockd, "c").await;
    assert!(next > last, "{next} after {last}");
    is_sealed_by(&lockd, &proxy, &old).await;
    // It is the store now.
    lockd.restart();
    assert!(token_of(&lockd, "d").await > next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_begun_again_with_its_keys_is_no_older_copy() {
    let dir = tempfile::tempdir().unwrap();
    let mut lockd = Lockd::start(dir.path(), "");
    token_of(&lockd, "a").await;
    lockd.process.terminate();
    let data = dir.path().join("lockd");
    std::fs::remove_file(data.join("locks.redb")).unwrap();
    std::fs::remove_dir_all(data.join("keys")).unwrap();
    lockd.restart();
    token_of(&lockd, "a").await;
    lockd.restart();
}
