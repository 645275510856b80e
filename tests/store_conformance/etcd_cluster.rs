//! Three members of etcd: one dies, one is silent, most are dead, history is compacted. And one
//! member whose data came from a backup.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence::store::etcd::{EtcdConfig, EtcdStore};
use ringfence::store::{Store, StoreError};
use ringfence::token::Token;

use crate::fixture::{LONG, Mirror, WAIT_MAX, queue, remove, request, session, stand};
use crate::support::etcd::{Etcd, Version};

async fn open(endpoints: Vec<String>) -> Arc<dyn Store> {
    let config = EtcdConfig {
        endpoints,
        prefix: String::new(),
    };
    Arc::new(EtcdStore::open(&config).await.unwrap())
}

/// Repeats what a caller may repeat until it succeeds.
async fn retried<T, F: Future<Output = Result<T, StoreError>>>(mut call: impl FnMut() -> F) -> T {
    let started = Instant::now();
    loop {
        match call().await {
            Ok(value) => return value,
            Err(StoreError::Unavailable(why)) => {
                assert!(started.elapsed() < WAIT_MAX, "never available again: {why}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_3_4_a_member_that_dies_is_left_and_the_watch_misses_nothing() {
    member_dies(Version::V3_4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_3_5_a_member_that_dies_is_left_and_the_watch_misses_nothing() {
    member_dies(Version::V3_5).await;
}

async fn member_dies(version: Version) {
    let mut etcd = Etcd::start(version, 3);
    let store = open(etcd.endpoints()).await;
    let mut mirror = Mirror::start(&store).await;
    let (one, two) = (session(&store).await, session(&store).await);
    let (first, _) = stand(&store, "a", one, 1).await;
    mirror
        .until(|mirror| mirror.of("a") == [first.clone()])
        .await;
    assert!(store.keep_alive(one).await.unwrap().is_some());
    etcd.kill(0);
    // An enqueue goes on by itself, at the next member.
    let (second, holder) = stand(&store, "a", two, 1).await;
    assert_eq!(holder, first);
    let kept = retried(|| store.keep_alive(one)).await;
    assert!(kept.is_some(), "the session died with the member");
    let removed = retried(|| store.remove(crate::fixture::removal(&first))).await;
    assert_eq!(removed.next, Some(second.clone()));
    mirror
        .until(|mirror| mirror.of("a") == [second.clone()])
        .await;
    // On another connection it starts again.
    assert_eq!(mirror.resets, 2);
    etcd.restart(0);
    assert_eq!(queue(&store, "a").await, [second]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_it_is_unavailable_and_comes_back() {
    let mut etcd = Etcd::start(Version::V3_4, 3);
    let store = open(etcd.endpoints()).await;
    let mut mirror = Mirror::start(&store).await;
    let one = session(&store).await;
    let (first, _) = stand(&store, "a", one, 1).await;
    etcd.kill(1);
    etcd.kill(2);
    let (refused, viewed) = futures::join!(
        store.remove(crate::fixture::removal(&first)),
        store.queue(&first.lock),
    );
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    assert!(
        matches!(viewed, Err(StoreError::Unavailable(_))),
        "{viewed:?}"
    );
    etcd.spawn(1);
    etcd.restart(2);
    let removed = retried(|| store.remove(crate::fixture::removal(&first))).await;
    assert_eq!(removed.next, None);
    mirror.until(|mirror| mirror.of("a").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_member_is_left_and_a_compacted_watch_starts_again() {
    let etcd = Etcd::start(Version::V3_5, 3);
    let store = open(etcd.endpoints()).await;
    let other = open(vec![etcd.endpoint(1)]).await;
    let mut mirror = Mirror::start(&store).await;
    let (one, two) = (session(&other).await, session(&other).await);
    let (first, _) = stand(&other, "a", one, 1).await;
    mirror
        .until(|mirror| mirror.of("a") == [first.clone()])
        .await;
    // Its connections stay open and say nothing.
    etcd.pause(0);
    let removed = retried(|| other.remove(crate::fixture::removal(&first))).await;
    assert!(removed.next.is_none());
    let (second, _) = stand(&other, "a", two, 1).await;
    let (last, _) = stand(&other, "b", two, 1).await;
    etcd.ctl_on(1, &["compaction", &last.version.to_string()]);
    mirror.until(|mirror| mirror.resets == 2).await;
    assert_eq!(mirror.of("a"), [second]);
    assert_eq!(mirror.of("b"), std::slice::from_ref(&last));
    // Calls leave it too.
    let (again, _) = stand(&store, "b", two, 1).await;
    assert_eq!(again.token, last.token);
    mirror
        .until(|mirror| mirror.of("b") == [again.clone()])
        .await;
    remove(&store, &again).await;
    mirror.until(|mirror| mirror.of("b").is_empty()).await;
    etcd.resume(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_3_4_restored_from_a_backup_shows_what_it_has_and_can_be_raised() {
    restored(Version::V3_4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_3_5_restored_from_a_backup_shows_what_it_has_and_can_be_raised() {
    restored(Version::V3_5).await;
}

async fn restored(version: Version) {
    let mut etcd = Etcd::start(version, 1);
    let store = open(etcd.endpoints()).await;
    let mut mirror = Mirror::start(&store).await;
    let (one, two) = (session(&store).await, session(&store).await);
    let (saved, _) = stand(&store, "a", one, 1).await;
    etcd.save();
    let (lost, _) = stand(&store, "a", two, 1).await;
    // The store knows a generation that the backup does not.
    store
        .raise_above(Token::new(lost.token.get() + 1_000_000).unwrap())
        .await
        .unwrap();
    let (lost, _) = stand(&store, "b", one, 1).await;
    mirror
        .until(|mirror| mirror.of("b") == [lost.clone()])
        .await;
    etcd.restore();
    // Who has seen the later tokens serves no more.
    let refused = loop {
        match store.queue(&saved.lock).await {
            Err(StoreError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
            other => break other,
        }
    };
    let Err(StoreError::Corrupt(why)) = refused else {
        panic!("{refused:?}")
    };
    assert!(why.contains("went back"), "{why}");
    drop(store);
    let store = open(etcd.endpoints()).await;
    let mut mirror = Mirror::start(&store).await;
    assert_eq!(mirror.of("a"), std::slice::from_ref(&saved));
    assert_eq!(mirror.entries.len(), 1);
    retried(|| store.raise_above(lost.token)).await;
    let (raised, holder) = stand(&store, "a", two, 2).await;
    assert!(raised.token > lost.token, "{raised:?} after {lost:?}");
    assert_eq!(holder, saved);
    assert_eq!(remove(&store, &saved).await.next, Some(raised.clone()));
    mirror
        .until(|mirror| mirror.of("a") == [raised.clone()])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_tells_a_restored_etcd_whose_revisions_are_past_what_was_seen() {
    let mut etcd = Etcd::start(Version::V3_4, 1);
    let config = EtcdConfig {
        endpoints: etcd.endpoints(),
        prefix: "locks/".to_owned(),
    };
    let marking = Arc::new(EtcdStore::open(&config).await.unwrap());
    let store: Arc<dyn Store> = marking.clone();
    assert!(!marking.is_marked().await.unwrap() && !marking.mark_is_due());
    let one = session(&store).await;
    stand(&store, "a", one, 1).await;
    assert!(marking.mark_is_due());
    let saved = marking.mark().await.unwrap();
    assert!(marking.is_marked().await.unwrap() && !marking.mark_is_due());
    etcd.save();
    let (lost, _) = stand(&store, "b", one, 1).await;
    let later = marking.mark().await.unwrap();
    etcd.restore();
    for _ in 0..lost.token.get() + 20 {
        etcd.ctl(&["put", "other", "x"]);
    }

    // No watch has looked, and the revision is past all that was seen.
    let refused = loop {
        match store.enqueue(request("b", one, 2)).await {
            Err(StoreError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
            other => break other,
        }
    };
    let corrupt = |refused: Option<StoreError>| {
        let Some(StoreError::Corrupt(why)) = &refused else {
            panic!("{refused:?}")
        };
        assert!(why.contains("backup"), "{why}");
    };
    corrupt(refused.err());
    corrupt(marking.mark().await.err());
    corrupt(EtcdStore::open_after(&config, Some(later)).await.err());
    assert!(EtcdStore::open_after(&config, Some(saved)).await.is_ok());
    // A generation that was raised after the backup was made is missed without a mark, too.
    let text = saved.to_string();
    let words: Vec<&str> = text.split(' ').collect();
    let raised = format!("{} {} {}", words[0], words[1], (1_u64 << 48) + 1);
    let raised = EtcdStore::open_after(&config, Some(raised.parse().unwrap())).await;
    corrupt(raised.err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_etcd_is_noticed_by_who_has_only_watched() {
    let mut etcd = Etcd::start(Version::V3_5, 1);
    let config = EtcdConfig {
        endpoints: etcd.endpoints(),
        prefix: "locks/".to_owned(),
    };
    let idle = Arc::new(EtcdStore::open(&config).await.unwrap());
    let store: Arc<dyn Store> = idle.clone();
    let mut mirror = Mirror::start(&store).await;
    idle.mark().await.unwrap();
    etcd.save();
    // What others are granted counts as told, so that a mark follows it.
    let other: Arc<dyn Store> = Arc::new(EtcdStore::open(&config).await.unwrap());
    let two = session(&other).await;
    assert!(!idle.mark_is_due());
    let (lost, _) = stand(&other, "a", two, 1).await;
    mirror
        .until(|mirror| mirror.of("a") == [lost.clone()])
        .await;
    assert!(idle.mark_is_due());
    // No mark is written this time, and only the generation tells.
    let above = Token::new(lost.token.get() + 1_000_000).unwrap();
    other.raise_above(above).await.unwrap();
    let (lost, _) = stand(&other, "b", two, 1).await;
    mirror
        .until(|mirror| mirror.of("b") == [lost.clone()])
        .await;
    // It does not look while others write past what was seen.
    drop(mirror);
    etcd.restore();
    for _ in 0..60 {
        etcd.ctl(&["put", "other", "x"]);
    }
    let one = retried(|| store.open_session(LONG)).await.0;
    let refused = store.enqueue(request("c", one, 1)).await;
    let Err(StoreError::Corrupt(why)) = refused else {
        panic!("{refused:?} after {lost:?}")
    };
    assert!(why.contains("generation"), "{why}");
}
