//! A lock service that is to go on with another store than before, or with an older state of the
//! same one: it does so only when it is told to, and then above the tokens that are out.

use std::path::Path;

use crate::clients::Holder;
use crate::etcd_server::{Etcd, Version};
use crate::lockds::lockd as lockd_on;
use crate::lost_locks::{refuses_to_start, token_of};
use crate::stack::{Lockd, eventually};

const EMBEDDED: &str = "store = \"embedded\"\n";

fn on(etcd: &Etcd) -> String {
    let url = etcd.endpoint(0);
    format!("store = \"etcd\"\n[etcd]\nendpoints = [\"{url}\"]\nprefix = \"locks/\"\n")
}

/// Other programs of this etcd write up to and past a revision.
fn others_write(etcd: &Etcd, revision: u64) {
    let value = |text: &str| text.split_once("\"revision\":").unwrap().1.to_owned();
    loop {
        etcd.ctl(&["put", "other", "x"]);
        let text = value(&etcd.ctl(&["get", "other", "-w", "json"]));
        let digits = text.split(|char: char| !char.is_ascii_digit()).next();
        if digits.unwrap().parse::<u64>().unwrap() > revision {
            return;
        }
    }
}

fn seen(dir: &Path, name: &str) -> String {
    let path = dir.join(name).join("lockd/etcd.seen");
    std::fs::read_to_string(path).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_store_is_made_only_when_told_and_no_token_falls() {
    let dir = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(Version::V3_4, 1);
    let mut lockd = Lockd::start(dir.path(), EMBEDDED);
    let mut last = 0;
    for lock in 0..30 {
        last = token_of(&lockd, &format!("a/{lock}")).await;
    }
    lockd.process.terminate();

    lockd.change(EMBEDDED, &on(&etcd));
    refuses_to_start(&mut lockd, "locks.redb");
    refuses_to_start(&mut lockd, "locks.redb");
    lockd.start_again(&["--init"]);
    let in_etcd = token_of(&lockd, "b").await;
    assert!(in_etcd > last, "{in_etcd} after {last}");
    // It is its store now: nothing more is to be said, and nothing is raised again.
    lockd.start_again(&["--init"]);
    let next = token_of(&lockd, "c").await;
    assert!(next > in_etcd && next >> 48 == in_etcd >> 48, "{next}");
    lockd.restart();
    let last = token_of(&lockd, "d").await;
    assert!(last > next);
    lockd.process.terminate();

    lockd.change(&on(&etcd), EMBEDDED);
    refuses_to_start(&mut lockd, "etcd.seen");
    lockd.start_again(&["--init"]);
    let back = token_of(&lockd, "e").await;
    assert!(back > last, "{back} after {last}");
    lockd.restart();
    let last = token_of(&lockd, "f").await;
    assert!(last > back);
    // It began far above the time: where it is lost, the next one does so again.
    lockd.process.terminate();
    std::fs::remove_file(dir.path().join("lockd/locks.redb")).unwrap();
    refuses_to_start(&mut lockd, "locks.redb");
    lockd.start_again(&["--init"]);
    let next = token_of(&lockd, "g").await;
    assert!(next > last, "{next} after {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_have_signed_are_not_used_over_an_etcd_that_no_lock_service_has_served() {
    let dir = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(Version::V3_4, 1);
    let keys = format!("keys_dir = \"{}\"\n", dir.path().join("keys").display());
    let mut before = Lockd::start(dir.path(), &keys);
    let first = token_of(&before, "a").await;
    before.process.terminate();

    // Its data_dir is not there, as on another machine.
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let mut lockd = Lockd::configure(&other, &format!("{keys}{}", on(&etcd)));
    refuses_to_start(&mut lockd, "keys");
    lockd.start_again(&["--init"]);
    assert!(token_of(&lockd, "b").await > first);
    // From now on that etcd is known to be one of a lock service: a second one just starts.
    let second = lockd_on(dir.path(), "second", &etcd.endpoint(0));
    assert!(token_of(&second, "c").await > first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_is_replaced_right_after_the_first_grant_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let mut etcd = Etcd::start(Version::V3_4, 1);
    let mut lockd = lockd_on(dir.path(), "one", &etcd.endpoint(0));
    let first = token_of(&lockd, "a").await;
    lockd.process.kill();
    assert_ne!(seen(dir.path(), "one"), "");
    tokio::task::block_in_place(|| etcd.wipe());
    // Also once its revisions are past the tokens that are out.
    others_write(&etcd, first + 20);
    refuses_to_start(&mut lockd, "etcd");
    lockd.start_again(&["--init"]);
    assert!(token_of(&lockd, "b").await > first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_was_restored_and_has_overtaken_what_was_seen_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let mut etcd = Etcd::start(Version::V3_4, 1);
    let mut lockd = lockd_on(dir.path(), "one", &etcd.endpoint(0));
    token_of(&lockd, "a").await;
    tokio::task::block_in_place(|| etcd.save());
    let last = token_of(&lockd, "b").await;
    // Until it is written down: what comes within seconds of a kill may be missed.
    lockd.process.terminate();

    tokio::task::block_in_place(|| etcd.restore());
    others_write(&etcd, last + 50);
    refuses_to_start(&mut lockd, "backup");
    lockd.start_again(&["--init"]);
    let next = token_of(&lockd, "c").await;
    assert!(next > last, "{next} after {last}");
    lockd.restart();
    assert!(token_of(&lockd, "d").await > next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_was_restored_while_its_lock_service_stood_still_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let mut etcd = Etcd::start(Version::V3_4, 1);
    let lockd = lockd_on(dir.path(), "one", &etcd.endpoint(0));
    tokio::task::block_in_place(|| etcd.save());
    let before = seen(dir.path(), "one");
    let last = token_of(&lockd, "a").await;
    eventually("it is written down", || seen(dir.path(), "one") != before);
    lockd.process.signal("STOP");
    tokio::task::block_in_place(|| etcd.restore());
    others_write(&etcd, last + 50);
    lockd.process.signal("CONT");

    eventually("it says so", || {
        lockd.process.log().contains("restored from a backup")
    });
    let mut holder = Holder::open(&lockd, 120_000).await;
    holder.acquire("b", 20_000).await.unwrap_err();
}
