//! Which store stands behind a name: two proxies of one name, a store that is restored from a copy,
//! one that was lost, and one that was out of the set for a time.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::backend::Origin;
use crate::clients::{Holder, put};
use crate::stack::{Lockd, Proxy, ProxySetup, eventually};

const RULE: &str = "[[listener.rule]]\nlock = \"orders/{id}\"\npath = \"/orders/{id}\"\n";
/// As `setup` says.
const HOLD: Duration = Duration::from_secs(2);
const SEAL_TIMEOUT: &str = "seal_timeout = \"2s\"\n";

fn setup<'a>(name: &'a str, lockd: &'a Lockd, origin: &Origin) -> ProxySetup<'a> {
    ProxySetup {
        name,
        protocol: "http",
        upstream: origin.address,
        lockd,
        listener: "in_doubt_hold = \"2s\"",
        rules: RULE,
        data: None,
    }
}

async fn acquire(lockd: &Lockd, lock: &str) -> (Holder, String) {
    let mut holder = Holder::open(lockd, 120_000).await;
    let grant = holder.acquire(lock, 20_000).await.unwrap();
    (holder, grant.ticket)
}

pub fn remove(lockd: &Lockd, instance: &str) {
    let removed = Command::new(env!("CARGO_BIN_EXE_ringfence"))
        .args(["proxies", "remove", instance, "--reason", "a test"])
        .args(["--sessions-proven-dead", "--lockd", &lockd.url()])
        .output()
        .unwrap();
    assert!(removed.status.success(), "{removed:?}");
}

fn copy_folder(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let mut command = Command::new("cp");
    let copied = command.arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_proxies_with_one_name_only_the_first_admits() {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), SEAL_TIMEOUT);
    let origin = Origin::start();
    let mut one = Proxy::start(dir.path(), &setup("edge", &lockd, &origin));
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let two = Proxy::start_unready(&other, &setup("edge", &lockd, &origin));
    eventually("the second one's refusal", || {
        two.process
            .log()
            .contains("another proxy runs as \\\"edge\\\"")
            || two.process.log().contains("another proxy runs as \"edge\"")
    });

    let (a, old) = acquire(&lockd, "orders/1").await;
    assert_eq!(put(&one.url("/orders/1"), "A", Some(&old)).status, 200);
    a.close().await;
    let (_b, new) = acquire(&lockd, "orders/1").await;
    let refused = put(&two.url("/orders/1"), "B at the second", Some(&new));
    assert_eq!((refused.status, refused.code().as_str()), (503, "busy"));
    let refused = put(&one.url("/orders/1"), "late A", Some(&old));
    assert_eq!((refused.status, refused.code().as_str()), (412, "stale"));
    assert!(!two.is_ready());

    // Stopped, it may go on: silence is no proof.
    one.process.signal("STOP");
    eventually("that nothing is proven", || {
        two.process.log().contains("is not proven gone")
    });
    assert!(!two.is_ready());
    one.process.signal("CONT");

    let before_the_end = Instant::now();
    one.process.kill();
    two.wait_until_ready();
    let refused = put(&two.url("/orders/1"), "late A", Some(&old));
    assert_eq!((refused.status, refused.code().as_str()), (412, "stale"));
    eventually("the holder at the second one", || {
        put(&two.url("/orders/1"), "B", Some(&new)).status == 200
    });
    // What the first one left may take as long as it may, from its end on.
    assert!(before_the_end.elapsed() >= HOLD);
    one.start_again();
    eventually("the first one's refusal", || {
        one.process.log().contains("another proxy runs as")
    });
    let refused = put(&one.url("/orders/1"), "B at the first", Some(&new));
    assert_eq!((refused.status, refused.code().as_str()), (503, "busy"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_restored_from_a_copy_takes_its_floors_from_lockd() {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), SEAL_TIMEOUT);
    let origin = Origin::start();
    let mut one = Proxy::start(dir.path(), &setup("edge", &lockd, &origin));
    let (a, old) = acquire(&lockd, "orders/1").await;
    assert_eq!(put(&one.url("/orders/1"), "A", Some(&old)).status, 200);
    a.close().await;
    one.process.terminate();
    let copy = dir.path().join("copy");
    copy_folder(&one.data, &copy);
    one.start_again();
    one.wait_until_ready();
    let (_b, new) = acquire(&lockd, "orders/1").await;
    assert_eq!(put(&one.url("/orders/1"), "B", Some(&new)).status, 200);

    one.process.terminate();
    copy_folder(&copy, &one.data);
    one.start_again();
    one.wait_until_ready();
    let refused = put(&one.url("/orders/1"), "late A", Some(&old));
    assert_eq!((refused.status, refused.code().as_str()), (412, "stale"));
    // Its floor is not on disk before it is used: it is asked for again.
    one.process.terminate();
    one.start_again();
    one.wait_until_ready();
    let refused = put(&one.url("/orders/1"), "late A", Some(&old));
    assert_eq!((refused.status, refused.code().as_str()), (412, "stale"));
    eventually("the holder again, once what was lost cannot land", || {
        put(&one.url("/orders/1"), "B again", Some(&new)).status == 200
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn once_a_lost_store_is_rebuilt_a_start_waits_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), SEAL_TIMEOUT);
    let origin = Origin::start();
    let mut one = Proxy::start(dir.path(), &setup("edge", &lockd, &origin));
    one.process.kill();
    std::fs::remove_dir_all(&one.data).unwrap();
    one.start_again();
    one.wait_until_ready();
    let (_a, ticket) = acquire(&lockd, "orders/1").await;
    eventually("the end of the hold", || {
        put(&one.url("/orders/1"), "A", Some(&ticket)).status == 200
    });
    for lock in ["2", "3"] {
        one.process.terminate();
        one.start_again();
        one.wait_until_ready();
        let (_b, ticket) = acquire(&lockd, &format!("orders/{lock}")).await;
        let url = one.url(&format!("/orders/{lock}"));
        assert_eq!(put(&url, "B", Some(&ticket)).status, 200);
    }
    let log = one.process.log();
    assert_eq!(log.matches("watermarks were lost").count(), 1, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_was_out_of_the_set_asks_for_its_floors() {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), SEAL_TIMEOUT);
    let origin = Origin::start();
    let mut one = Proxy::start(dir.path(), &setup("edge-1", &lockd, &origin));
    let two = Proxy::start(dir.path(), &setup("edge-2", &lockd, &origin));
    let (a, old) = acquire(&lockd, "orders/1").await;
    assert_eq!(put(&one.url("/orders/1"), "A", Some(&old)).status, 200);
    a.close().await;
    one.process.terminate();
    remove(&lockd, "edge-1");
    let (_b, new) = acquire(&lockd, "orders/1").await;
    assert_eq!(put(&two.url("/orders/1"), "B", Some(&new)).status, 200);
    one.start_again();
    one.wait_until_ready();
    let refused = put(&one.url("/orders/1"), "late A", Some(&old));
    assert_eq!((refused.status, refused.code().as_str()), (412, "stale"));

    // While it runs it misses seals: it admits nothing until it is started again.
    remove(&lockd, "edge-2");
    eventually("that the other one sees that it was taken out", || {
        !two.is_ready()
    });
    let refused = put(&two.url("/orders/1"), "B", Some(&new));
    assert_eq!((refused.status, refused.code().as_str()), (503, "busy"));
}
