//! The client against a lock service that misbehaves on demand.

mod fake;

use std::time::Duration;

use crate::client::{Client, ClientError, Lost, Session, SessionOptions, SessionState, Wait};
use crate::clock::boottime;
use crate::lock_name::LockName;

use fake::{Endpoint, Fake};

const TTL: Duration = Duration::from_millis(1500);
/// Longer than anything takes here; a test that waits so long has failed.
const LONG: Duration = Duration::from_secs(20);

fn lock() -> LockName {
    LockName::new("orders").unwrap()
}

async fn session(endpoints: &[&Endpoint]) -> Session {
    let client = Client::new(endpoints.iter().map(|endpoint| endpoint.url())).unwrap();
    let options = SessionOptions {
        ttl: TTL,
        ..SessionOptions::default()
    };
    client.open_session(options).await.unwrap()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        tokio::time::timeout(LONG, waiting).await.is_ok(),
        "never: {what}"
    );
}

#[tokio::test]
async fn tokens_grow_and_a_release_names_its_grant() {
    let fake = Fake::default();
    let endpoint = fake.serve().await;
    let session = session(&[&endpoint]).await;
    let first = session.acquire(&lock(), Wait::Try).await.unwrap();
    let token = first.token();
    assert!(first.is_held() && first.release().await.unwrap());
    let second = session.acquire(&lock(), Wait::Try).await.unwrap();
    assert!(second.token() > token);
    fake.break_lock("orders");
    assert!(!second.release().await.unwrap(), "it was broken before");
}

#[tokio::test]
async fn a_lost_reply_gives_the_same_grant_through_another_endpoint() {
    let fake = Fake::default();
    let (one, two) = (fake.serve().await, fake.serve().await);
    let session = session(&[&one, &two]).await;
    fake.faults.lock().unwrap().lose_acquire_replies = 2;
    let guard = session.acquire(&lock(), Wait::AtMost(LONG)).await.unwrap();
    assert_eq!(guard.token().get(), 1, "a repeat was granted twice");
    assert_eq!(fake.queue("orders"), [1]);
}

#[tokio::test]
async fn a_grant_that_could_not_be_sealed_is_asked_for_anew() {
    let fake = Fake::default();
    let endpoint = fake.serve().await;
    let session = session(&[&endpoint]).await;
    fake.faults.lock().unwrap().fail_seals = 2;
    let guard = session.acquire(&lock(), Wait::AtMost(LONG)).await.unwrap();
    assert_eq!(guard.token().get(), 3);
}

#[tokio::test]
async fn waiting_ends_on_time_and_leaves_nothing_in_the_queue() {
    let fake = Fake::default();
    let endpoint = fake.serve().await;
    let (holder, waiter) = (session(&[&endpoint]).await, session(&[&endpoint]).await);
    let guard = holder.acquire(&lock(), Wait::Try).await.unwrap();
    for wait in [Wait::Try, Wait::AtMost(Duration::from_millis(100))] {
        let refused = waiter.acquire(&lock(), wait).await;
        assert!(
            matches!(refused, Err(ClientError::NotAcquired { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(fake.queue("orders"), [guard.token().get()]);
}

#[tokio::test]
async fn dropping_an_acquire_takes_back_what_was_granted_and_not_told() {
    let fake = Fake::default();
    let endpoint = fake.serve().await;
    let session = session(&[&endpoint]).await;
    fake.faults.lock().unwrap().lose_acquire_replies = u32::MAX;
    let name = lock();
    let asking = tokio::time::timeout(
        Duration::from_millis(300),
        session.acquire(&name, Wait::Forever),
    );
    assert!(asking.await.is_err());
    until("the entry is taken back", || {
        fake.queue("orders").is_empty()
    })
    .await;
    fake.faults.lock().unwrap().lose_acquire_replies = 0;
    let guard = session.acquire(&name, Wait::AtMost(LONG)).await.unwrap();
    assert_eq!(fake.queue("orders"), [guard.token().get()]);
}

#[tokio::test]
async fn users_of_one_session_exclude_each_other_and_a_dropped_guard_releases() {
    let fake = Fake::default();
    let endpoint = fake.serve().await;
    let session = session(&[&endpoint]).await;
    let first = session.acquire(&lock(), Wait::Try).await.unwrap();
    let name = lock();
    let second = session.acquire(&name, Wait::AtMost(LONG));
    tokio::pin!(second);
    let early = tokio::time::timeout(Duration::from_millis(100), &mut second).await;
    assert!(early.is_err(), "two guards of one session at once");
    let token = first.token();
    drop(first);
    assert!(second.await.unwrap().token() > token);
}

#[tokio::test]
async fn renewals_carry_a_session_past_its_time_to_live() {
    let fake = Fake::default();
    let (one, two) = (fake.serve().await, fake.serve().await);
    let session = session(&[&one, &two]).await;
    let first = session.deadline();
    until("the first lease is over", || boottime() >= first).await;
    assert_eq!(session.state(), SessionState::Held);
    // The endpoint that renews goes away; the other one takes over.
    drop(one);
    let then = session.deadline();
    until("the lease from before is over", || boottime() >= then).await;
    assert_ne!(session.state(), SessionState::Lost);
    drop(two);
    until("it is in doubt", || {
        session.state() == SessionState::Uncertain
    })
    .await;
    assert!(boottime() < session.deadline());
}

#[tokio::test]
async fn a_mute_service_is_reported_before_the_deadline() {
    let fake = Fake::default();
    let endpoint = fake.serve().await;
    let session = session(&[&endpoint]).await;
    let guard = session.acquire(&lock(), Wait::Try).await.unwrap();
    fake.faults.lock().unwrap().mute_renewals = true;
    let margin = Duration::from_millis(300);
    assert_eq!(guard.lost(margin).await, Lost::Expiring);
    assert!(boottime() < guard.deadline(), "told too late");
    assert!(guard.is_held());
    assert_eq!(guard.lost(Duration::ZERO).await, Lost::Expired);
    assert!(boottime() >= guard.deadline());
    let refused = guard
        .session()
        .acquire(&LockName::new("b").unwrap(), Wait::Try)
        .await;
    assert!(
        matches!(refused, Err(ClientError::SessionLost { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_session_that_is_gone_is_lost_for_good() {
    let fake = Fake::default();
    let endpoint = fake.serve().await;
    let session = session(&[&endpoint]).await;
    fake.faults.lock().unwrap().sessions_gone = true;
    assert_eq!(session.lost(Duration::ZERO).await, Lost::Ended);
    assert_eq!(session.state(), SessionState::Lost);
}

#[tokio::test]
async fn a_broken_lock_is_lost_while_its_session_lives() {
    let fake = Fake::default();
    let endpoint = fake.serve().await;
    let session = session(&[&endpoint]).await;
    let guard = session.acquire(&lock(), Wait::Try).await.unwrap();
    let lost = guard.lost(Duration::ZERO);
    tokio::pin!(lost);
    assert!(
        tokio::time::timeout(Duration::from_millis(300), &mut lost)
            .await
            .is_err()
    );
    fake.break_lock("orders");
    assert_eq!(
        tokio::time::timeout(LONG, lost).await.unwrap(),
        Lost::Broken
    );
    assert_eq!(session.state(), SessionState::Held);
}

#[tokio::test]
async fn the_last_handle_closes_the_session() {
    let fake = Fake::default();
    let endpoint = fake.serve().await;
    let session = session(&[&endpoint]).await;
    let id = session.id().to_owned();
    let guard = session.acquire(&lock(), Wait::Try).await.unwrap();
    drop(session);
    assert!(fake.closed().is_empty() && guard.is_held());
    drop(guard);
    until("it is closed", || fake.closed() == [id.clone()]).await;
    assert!(fake.queue("orders").is_empty());
}

#[tokio::test]
async fn a_grant_that_is_never_sealed_is_not_acquired_and_the_service_was_there() {
    let fake = Fake::default();
    let endpoint = fake.serve().await;
    let client = Client::new([endpoint.url()]).unwrap();
    let session = client
        .open_session(SessionOptions::default())
        .await
        .unwrap();
    fake.faults.lock().unwrap().fail_seals = u32::MAX;
    let lock = "orders".parse().unwrap();
    let refused = session.acquire(&lock, Wait::Try).await;
    let Err(ClientError::NotSealed { reason, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!(reason.contains("not sealed"), "{reason}");
    let left = fake.faults.lock().unwrap().fail_seals;
    assert_eq!(u32::MAX - left, 1, "one try is one grant");
}

#[tokio::test]
async fn nobody_there_is_said_within_the_patience() {
    let fake = Fake::default();
    let endpoint = fake.serve().await;
    let url = endpoint.url();
    drop(endpoint);
    let client = Client::new([url]).unwrap();
    let patience = Duration::from_millis(200);
    let options = SessionOptions {
        patience,
        ..SessionOptions::default()
    };
    let refused = tokio::time::timeout(LONG, client.open_session(options))
        .await
        .unwrap();
    assert!(
        matches!(refused, Err(ClientError::Unavailable { .. })),
        "{refused:?}"
    );
}
