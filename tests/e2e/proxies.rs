//! Two proxies with a watermark store each: one unreachable, one new, one with its data deleted.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::backend::Origin;
use crate::clients::{Holder, get, put};
use crate::stack::{Lockd, Proxy, ProxySetup, eventually};

const RULE: &str = "[[listener.rule]]\nlock = \"orders\"\npath = \"/orders/**\"\n";
const OTHER_RULE: &str = "[[listener.rule]]\nlock = \"other\"\npath = \"/other/**\"\n";
pub const SEAL_TIMEOUT: &str = "seal_timeout = \"2s\"\n";

/// One that guards `orders`.
pub fn proxy(dir: &Path, name: &str, lockd: &Lockd, upstream: SocketAddr) -> Proxy {
    let setup = ProxySetup {
        name,
        protocol: "http",
        upstream,
        lockd,
        listener: "in_doubt_hold = \"2s\"",
        rules: RULE,
        data: None,
    };
    Proxy::start(dir, &setup)
}

/// Acquires until the seal covers both: registration goes on beside the start of a proxy.
async fn acquire_sealed_by(lockd: &Lockd, names: &[&str]) -> (Holder, u64, String) {
    for _ in 0..100 {
        let mut holder = Holder::open(lockd, 120_000).await;
        if let Ok(grant) = holder.acquire("orders", 0).await {
            let mut sealed = grant.sealed.clone();
            sealed.sort_unstable();
            if sealed == names {
                return (holder, grant.token, grant.ticket);
            }
        }
        holder.close().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never sealed by {names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_grant_is_sealed_at_both_and_the_older_is_stale_at_both() {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), SEAL_TIMEOUT);
    let origin = Origin::start();
    let one = proxy(dir.path(), "edge-1", &lockd, origin.address);
    let two = proxy(dir.path(), "edge-2", &lockd, origin.address);
    let (a, _, old) = acquire_sealed_by(&lockd, &["edge-1", "edge-2"]).await;
    assert_eq!(put(&one.url("/orders/1"), "A", Some(&old)).status, 200);
    assert_eq!(put(&two.url("/orders/1"), "A", Some(&old)).status, 200);
    a.close().await;

    let (_b, _, new) = acquire_sealed_by(&lockd, &["edge-1", "edge-2"]).await;
    // B has presented nothing yet: the seal alone refuses A, on both.
    for proxy in [&one, &two] {
        let refused = put(&proxy.url("/orders/1"), "late A", Some(&old));
        assert_eq!((refused.status, refused.code().as_str()), (412, "stale"));
    }
    assert_eq!(put(&two.url("/orders/1"), "B", Some(&new)).status, 200);
    assert_eq!(get(&one.url("/orders/1"), Some(&new)).body, "B");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_required_proxy_is_away_nobody_is_granted_and_waiters_keep_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), SEAL_TIMEOUT);
    let origin = Origin::start();
    let _one = proxy(dir.path(), "edge-1", &lockd, origin.address);
    let mut two = proxy(dir.path(), "edge-2", &lockd, origin.address);
    let (a, _, _) = acquire_sealed_by(&lockd, &["edge-1", "edge-2"]).await;
    a.close().await;

    two.process.kill();
    let mut b = Holder::open(&lockd, 120_000).await;
    let refused = b.acquire("orders", 0).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused:?}");
    let mut first = Holder::open(&lockd, 120_000).await;
    let waiting = tokio::spawn(async move {
        let grant = first.acquire("orders", 60_000).await;
        (first, grant)
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(
        !waiting.is_finished(),
        "a waiter was tried and dropped while a proxy was away"
    );

    two.start_again();
    let (_first, grant) = waiting.await.unwrap();
    let mut sealed = grant.unwrap().sealed;
    sealed.sort_unstable();
    assert_eq!(sealed, ["edge-1", "edge-2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_proxy_refuses_tickets_whose_seal_did_not_cover_it() {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), SEAL_TIMEOUT);
    let origin = Origin::start();
    let one = proxy(dir.path(), "edge-1", &lockd, origin.address);
    let (a, _, ticket) = acquire_sealed_by(&lockd, &["edge-1"]).await;

    let two = proxy(dir.path(), "edge-2", &lockd, origin.address);
    eventually("keys at the new proxy", || {
        put(&two.url("/orders/1"), "A", Some(&ticket)).status != 503
    });
    let refused = put(&two.url("/orders/1"), "A", Some(&ticket));
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (400, "invalid"),
        "{refused:?}"
    );
    assert_eq!(put(&one.url("/orders/1"), "A", Some(&ticket)).status, 200);
    a.close().await;
    let (_b, _, both) = acquire_sealed_by(&lockd, &["edge-1", "edge-2"]).await;
    assert_eq!(put(&two.url("/orders/1"), "B", Some(&both)).status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_lost_its_store_takes_its_floors_from_lockd() {
    let dir = tempfile::tempdir().unwrap();
    let mut lockd = Lockd::start(dir.path(), SEAL_TIMEOUT);
    let origin = Origin::start();
    let mut one = proxy(dir.path(), "edge-1", &lockd, origin.address);
    let (a, _, old) = acquire_sealed_by(&lockd, &["edge-1"]).await;
    assert_eq!(put(&one.url("/orders/1"), "A", Some(&old)).status, 200);
    a.close().await;
    let (_b, _, new) = acquire_sealed_by(&lockd, &["edge-1"]).await;
    assert_eq!(put(&one.url("/orders/1"), "B", Some(&new)).status, 200);

    one.process.kill();
    std::fs::remove_dir_all(&one.data).unwrap();
    one.start_again();
    eventually("floors again", || {
        put(&one.url("/orders/1"), "late", Some(&old)).status == 412
    });
    eventually("the holder again, once what was lost cannot land", || {
        put(&one.url("/orders/1"), "B again", Some(&new)).status == 200
    });
    let late = origin
        .applied()
        .iter()
        .any(|write| write.ends_with("=late"));
    assert!(!late, "a lost store let an older token in");

    // Without lockd there is nobody to ask: nothing is admitted.
    lockd.process.kill();
    one.process.kill();
    std::fs::remove_dir_all(&one.data).unwrap();
    one.start_again();
    for ticket in [&old, &new] {
        let refused = put(&one.url("/orders/1"), "blind", Some(ticket));
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (503, "busy"),
            "{refused:?}"
        );
    }
    lockd.restart();
    eventually("service with lockd again", || {
        put(&one.url("/orders/1"), "B at last", Some(&new)).status == 200
    });
}

/// A copy of a data folder.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

fn put_back(copied: &Path, data: &Path) {
    std::fs::remove_dir_all(data).unwrap();
    copy(copied, data);
}

/// A grant that was written under and is over.
async fn written(lockd: &Lockd, proxy: &Proxy, names: &[&str], body: &str) -> String {
    let (holder, _, ticket) = acquire_sealed_by(lockd, names).await;
    let url = proxy.url("/orders/1");
    eventually("a write of the holder", || {
        put(&url, body, Some(&ticket)).status == 200
    });
    holder.close().await;
    ticket
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_data_folder_admits_nobody_who_was_refused_before() {
    for is_hot in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut lockd = Lockd::start(dir.path(), SEAL_TIMEOUT);
        let origin = Origin::start();
        let mut one = proxy(dir.path(), "edge-1", &lockd, origin.address);
        let old = written(&lockd, &one, &["edge-1"], "A").await;
        let copied = dir.path().join("copy");
        if is_hot {
            copy(&one.data, &copied);
        } else {
            one.process.terminate();
            copy(&one.data, &copied);
            one.start_again();
            one.wait_until_ready();
        }
        let new = written(&lockd, &one, &["edge-1"], "B").await;
        one.process.kill();
        put_back(&copied, &one.data);
        // Started once more than the copy's past tells, while nobody hears of it.
        lockd.process.kill();
        one.start_again();
        one.process.kill();
        lockd.restart();
        one.start_again();
        one.wait_until_ready();
        let late = put(&one.url("/orders/1"), "late", Some(&old));
        assert_eq!(late.status, 412, "{is_hot}: {late:?}");
        // Its holder is over as well, and what nobody holds stays closed to it.
        let late = put(&one.url("/orders/1"), "late", Some(&new));
        assert_eq!(late.status, 412, "{is_hot}: {late:?}");
        written(&lockd, &one, &["edge-1"], "C").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_not_guarded_meanwhile_has_no_floor_of_the_time_before() {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), SEAL_TIMEOUT);
    let origin = Origin::start();
    let one = proxy(dir.path(), "edge-1", &lockd, origin.address);
    let mut two = proxy(dir.path(), "edge-2", &lockd, origin.address);
    let old = written(&lockd, &two, &["edge-1", "edge-2"], "A").await;
    two.process.terminate();
    two.kill_and_restart_with(RULE, OTHER_RULE);
    written(&lockd, &one, &["edge-1"], "B").await;
    two.process.terminate();
    two.kill_and_restart_with(OTHER_RULE, RULE);
    let late = put(&two.url("/orders/1"), "late", Some(&old));
    assert_eq!(late.status, 412, "{late:?}");
}
