//! A lock service whose store is gone, or is another one than before: it does not begin again below
//! the tokens that are out.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::clients::Holder;
use crate::lockds::{etcd, etcd_at, lockd};
use crate::stack::{Lockd, eventually};

/// What lockd says where its store may not know every proxy that runs.
const STOP_PROXIES: &str = "has to be stopped";

/// The token of a grant. Whoever has it keeps it: each is of another lock.
pub async fn token_of(lockd: &Lockd, lock: &str) -> u64 {
    let mut holder = Holder::open(lockd, 120_000).await;
    holder.acquire(lock, 20_000).await.unwrap().token
}

#[track_caller]
fn says_to_stop_proxies(lockd: &Lockd) {
    eventually("a word about proxies", || {
        lockd.process.log().contains(STOP_PROXIES)
    });
}

/// It ends by itself, and says why.
#[track_caller]
pub fn refuses_to_start(lockd: &mut Lockd, why: &str) {
    let (success, text) = lockd.start_to_end();
    assert!(!success, "{text}");
    assert!(text.contains(why) && text.contains("--init"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_embedded_store_is_not_begun_again_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let mut lockd = Lockd::start(dir.path(), "");
    let first = token_of(&lockd, "a").await;
    lockd.process.terminate();
    assert!(lockd.process.wait());
    std::fs::remove_file(dir.path().join("lockd/locks.redb")).unwrap();
    refuses_to_start(&mut lockd, "locks.redb");
    // Nothing is known of proxies either.
    std::fs::remove_file(dir.path().join("lockd/proxies.seen")).unwrap();

    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    assert!(!lockd.process.log().contains(STOP_PROXIES));
    lockd.start_again(&["--init"]);
    says_to_stop_proxies(&lockd);
    let second = token_of(&lockd, "b").await;
    assert!(u128::from(second) > now.as_millis(), "{second}");
    assert!(second > first);
    // It is there now: nothing more is to be said.
    lockd.restart();
    assert!(token_of(&lockd, "c").await > second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_file_in_the_place_of_the_store_is_a_lost_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lockd/locks.redb");
    let mut lockd = Lockd::start(dir.path(), "");
    let mut last = 0;
    for lock in ["a", "b", "c"] {
        last = token_of(&lockd, lock).await;
    }
    lockd.process.terminate();

    std::fs::write(&path, "").unwrap();
    refuses_to_start(&mut lockd, "locks.redb");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "left as it is");
    // The same of a database in which no store was ever made.
    std::fs::remove_file(&path).unwrap();
    drop(redb::Database::create(&path).unwrap());
    refuses_to_start(&mut lockd, "locks.redb");
    lockd.start_again(&["--init"]);
    assert!(token_of(&lockd, "d").await > last);
    lockd.restart();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_lost_its_data_while_no_lock_service_ran_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, url) = etcd(dir.path());
    let mut lockd = lockd(dir.path(), "one", &url);
    for lock in ["a", "b", "c"] {
        token_of(&lockd, lock).await;
    }
    lockd.process.terminate();
    assert!(lockd.process.wait());
    let seen = dir.path().join("one/lockd/etcd.seen");
    eventually("it was written down", || seen.exists());

    server.kill();
    std::fs::remove_dir_all(dir.path().join("etcd")).unwrap();
    let address = url.trim_start_matches("http://").parse().unwrap();
    let (_server, _) = etcd_at(dir.path(), address);
    refuses_to_start(&mut lockd, "etcd");
    lockd.start_again(&["--init"]);
    says_to_stop_proxies(&lockd);
    token_of(&lockd, "d").await;
}
