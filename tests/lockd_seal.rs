//! Grants sealed through proxies, with proxies of the test's own.

mod lockd_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockd_support::fence::{FakeProxy, Mood, register};
use lockd_support::{
    Client, LONG, Service, SharedStore, eventually, open_store, reason, serve_with_keys, soon,
    start_with,
};
use ringfence::config::{SealConfig, SealMode};
use ringfence::lock_name::LockPattern;
use ringfence::lockd::{Settings, SigningKeys};
use ringfence::proto::{BreakLockRequest, UnregisterRequest};
use ringfence::ticket::{Action, KeyRing, SealScope};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

const TRY: Duration = Duration::ZERO;
/// Nothing listens there.
const NOWHERE: &str = "127.0.0.1:1";

fn settings() -> Settings {
    Settings {
        seal_timeout: Duration::from_millis(500),
        ..Settings::default()
    }
}

/// Seals that the test holds back must not time out meanwhile.
fn patient() -> Settings {
    Settings {
        seal_timeout: LONG,
        ..Settings::default()
    }
}

fn queue_up(client: &Client, session: &str, lock: &str) -> JoinHandle<Result<u64, Status>> {
    let (client, session, lock) = (client.clone(), session.to_owned(), lock.to_owned());
    tokio::spawn(async move {
        client
            .acquire(&session, &lock, LONG, 1)
            .await
            .map(|granted| granted.token)
    })
}

#[tokio::test]
async fn a_grant_is_sealed_at_every_proxy_of_its_lock_and_at_no_other() {
    let Service { lockd, client, .. } = start_with(settings()).await;
    let (one, two, other) = (
        FakeProxy::start("one", lockd.keys()).await,
        FakeProxy::start("two", lockd.keys()).await,
        FakeProxy::start("other", lockd.keys()).await,
    );
    one.register(&client, "a/*").await;
    two.register(&client, "**").await;
    other.register(&client, "b").await;
    let session = client.open().await;
    let granted = client.acquire(&session, "a/1", TRY, 1).await.unwrap();
    assert_eq!(granted.sealed, ["one", "two"]);
    assert_eq!(
        (one.watermark(), two.watermark()),
        (granted.token, granted.token)
    );
    assert_eq!(other.orders(), []);
    let ring = KeyRing::new(lockd.keys().current().verifying().cloned());
    let ticket = ring.verify_ticket(&granted.ticket).unwrap();
    assert_eq!(
        ticket.seal,
        SealScope::Required(vec!["one".to_owned(), "two".to_owned()])
    );
    // A repeated call seals again, which changes nothing.
    let again = client.acquire(&session, "a/1", TRY, 1).await.unwrap();
    assert_eq!((again.token, again.sealed), (granted.token, granted.sealed));
}

#[tokio::test]
async fn a_try_with_a_proxy_down_releases_the_grant_before_it_answers() {
    let Service { lockd, client, .. } = start_with(settings()).await;
    let one = FakeProxy::start("one", lockd.keys()).await;
    one.register(&client, "a").await;
    register(&client, "down", NOWHERE, "a").await;
    let session = client.open().await;
    let refused = client.acquire(&session, "a", TRY, 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(reason(&refused), "not-sealed");
    assert!(refused.message().contains("down"), "{}", refused.message());
    assert!(!refused.message().contains("one:"), "{}", refused.message());
    assert!(
        client.get("a").await.holder.is_none(),
        "the grant was released"
    );
}

#[tokio::test]
async fn a_try_right_behind_a_release_needs_no_watch_to_be_granted() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SharedStore {
        store: open_store(folder.path()).await,
        late: Duration::from_millis(300),
    });
    let keys = Arc::new(SigningKeys::in_memory());
    let lockd = serve_with_keys(store, settings(), keys).await;
    let client = Client::connect(&lockd).await;
    let one = FakeProxy::start("one", lockd.keys()).await;
    one.register(&client, "a").await;
    for attempt in 1..4 {
        for session in [client.open().await, client.open().await] {
            let granted = client.acquire(&session, "a", TRY, attempt).await;
            // So that the watch has told of the entry.
            tokio::time::sleep(Duration::from_millis(50)).await;
            client.release(&session, "a", granted.unwrap().token).await;
        }
    }
}

#[tokio::test]
async fn a_proxy_that_answers_nothing_fails_the_seal_in_time() {
    let Service { lockd, client, .. } = start_with(settings()).await;
    let slow = FakeProxy::start("slow", lockd.keys()).await;
    slow.register(&client, "a").await;
    slow.mood.send_replace(Mood::Holds);
    let session = client.open().await;
    let started = Instant::now();
    let refused = client.acquire(&session, "a", TRY, 1).await.unwrap_err();
    assert_eq!(reason(&refused), "not-sealed");
    assert!(started.elapsed() >= Duration::from_millis(500));
    assert!(client.get("a").await.holder.is_none());
    // A slow proxy that answers in the end is waited for.
    let waiting = queue_up(&client, &client.open().await, "a");
    client.wait_for_holder("a").await;
    slow.mood.send_replace(Mood::Works);
    soon("the slow seal", waiting).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_front_waiter_keeps_its_place_while_a_proxy_is_down() {
    let Service { lockd, client, .. } = start_with(settings()).await;
    let busy = FakeProxy::start("busy", lockd.keys()).await;
    busy.register(&client, "a").await;
    busy.mood.send_replace(Mood::Busy);
    let (a, b) = (client.open().await, client.open().await);
    let front = queue_up(&client, &a, "a");
    client.wait_for_holder("a").await;
    let behind = queue_up(&client, &b, "a");
    client.wait_for_waiters("a", 1).await;
    let place = client.get("a").await.holder.unwrap().token;
    eventually("several rounds", || async { busy.orders().len() >= 4 }).await;
    assert!(
        busy.orders().iter().all(|(_, token)| *token == place),
        "another one was tried"
    );
    busy.mood.send_replace(Mood::Works);
    assert_eq!(
        soon("the front waiter", front).await.unwrap().unwrap(),
        place
    );
    client.release(&a, "a", place).await;
    soon("the one behind", behind).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_dead_proxy_that_is_taken_out_no_longer_holds_up_the_front_waiter() {
    let Service { client, .. } = start_with(settings()).await;
    register(&client, "dead", NOWHERE, "a").await;
    let front = queue_up(&client, &client.open().await, "a");
    client.wait_for_holder("a").await;
    let request = UnregisterRequest {
        instance: "dead".to_owned(),
        reason: "its machine is scrapped".to_owned(),
        sessions_proven_dead: true,
    };
    client.registry.clone().unregister(request).await.unwrap();
    soon("the front waiter", front).await.unwrap().unwrap();
}

#[tokio::test]
async fn best_effort_grants_and_says_what_was_reached() {
    let pattern = LockPattern::new("a").unwrap();
    let seals = vec![SealConfig {
        pattern,
        mode: SealMode::BestEffort,
    }];
    let Service { lockd, client, .. } = start_with(Settings {
        seals,
        ..settings()
    })
    .await;
    let one = FakeProxy::start("one", lockd.keys()).await;
    one.register(&client, "*").await;
    register(&client, "down", NOWHERE, "*").await;
    let session = client.open().await;
    let granted = client.acquire(&session, "a", TRY, 1).await.unwrap();
    let ring = KeyRing::new(lockd.keys().current().verifying().cloned());
    let ticket = ring.verify_ticket(&granted.ticket).unwrap();
    assert_eq!(ticket.seal, SealScope::BestEffort(vec!["one".to_owned()]));
    // Another lock is not of that pattern.
    let refused = client.acquire(&session, "b", TRY, 1).await.unwrap_err();
    assert_eq!(reason(&refused), "not-sealed");
}

#[tokio::test]
async fn a_lockd_that_was_paused_between_grant_and_seal_gives_no_ticket() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_store(folder.path()).await;
    let keys = Arc::new(SigningKeys::in_memory());
    let paused = serve_with_keys(store.clone(), patient(), keys.clone()).await;
    let other = serve_with_keys(store, patient(), keys.clone()).await;
    let (via_paused, via_other) = (
        Client::connect(&paused).await,
        Client::connect(&other).await,
    );
    let proxy = FakeProxy::start("edge", &keys).await;
    proxy.register(&via_other, "a").await;
    proxy.mood.send_replace(Mood::Holds);

    let (a, b) = (via_other.open().await, via_other.open().await);
    let stale = queue_up(&via_paused, &a, "a");
    eventually("its order is on the way", || async {
        proxy.orders().len() == 1
    })
    .await;
    let old = via_other.get("a").await.holder.unwrap().token;
    // Its grant ends, and the next one is granted; the orders of both reach the proxy.
    assert!(via_other.release(&a, "a", old).await);
    let next = queue_up(&via_other, &b, "a");
    eventually("both orders", || async { proxy.orders().len() == 2 }).await;
    proxy.mood.send_replace(Mood::Works);
    let granted = soon("the living grant", next).await.unwrap().unwrap();
    let refused = soon("the dead grant", stale).await.unwrap().unwrap_err();
    assert!(granted > old);
    assert_eq!(reason(&refused), "place-gone");
    // Whether the old order came first or was stale: the watermark is the living grant's.
    assert_eq!(via_other.get("a").await.holder.unwrap().token, granted);
    assert!(proxy.watermark() >= old);
}

#[tokio::test]
async fn stale_with_a_dead_grant_is_refused_and_raises_nothing() {
    let Service { lockd, client, .. } = start_with(patient()).await;
    let proxy = FakeProxy::start("edge", lockd.keys()).await;
    proxy.register(&client, "a").await;
    proxy.mood.send_replace(Mood::Holds);
    let session = client.open().await;
    let call = queue_up(&client, &session, "a");
    eventually("its order is on the way", || async {
        proxy.orders().len() == 1
    })
    .await;
    let token = client.get("a").await.holder.unwrap().token;
    client.release(&session, "a", token).await;
    proxy.set_watermark(token + 1000);
    proxy.mood.send_replace(Mood::Works);
    let refused = soon("the answer", call).await.unwrap().unwrap_err();
    assert_eq!(reason(&refused), "place-gone");
    assert!(
        client.get("a").await.floor < token + 1000,
        "the store's counter was raised"
    );
}

#[tokio::test]
async fn stale_with_a_living_grant_lifts_the_counter_and_grants_above() {
    let Service { lockd, client, .. } = start_with(settings()).await;
    let proxy = FakeProxy::start("edge", lockd.keys()).await;
    proxy.register(&client, "a").await;
    // It has seen the tokens of a store that is lost.
    proxy.set_watermark(1_000_000);
    let session = client.open().await;
    let granted = client.acquire(&session, "a", TRY, 1).await.unwrap();
    assert!(granted.token > 1_000_000, "{}", granted.token);
    assert_eq!(proxy.watermark(), granted.token);
    // The same attempt finds its grant although it was written anew.
    let again = client.acquire(&session, "a", TRY, 1).await.unwrap();
    assert_eq!(again.token, granted.token);
    client.release(&session, "a", granted.token).await;
    let refused = client.acquire(&session, "a", TRY, 1).await.unwrap_err();
    assert_eq!(reason(&refused), "attempt-over");
    assert!(client.acquire(&session, "a", TRY, 2).await.unwrap().token > granted.token);
}

#[tokio::test]
async fn a_token_that_another_grant_had_is_given_up_for_a_new_one() {
    let Service { lockd, client, .. } = start_with(settings()).await;
    let (one, two) = (
        FakeProxy::start("one", lockd.keys()).await,
        FakeProxy::start("two", lockd.keys()).await,
    );
    one.register(&client, "a").await;
    two.register(&client, "a").await;
    let (a, b) = (client.open().await, client.open().await);
    let first = client.acquire(&a, "a", TRY, 1).await.unwrap().token;
    client.release(&a, "a", first).await;
    // The store was restored: the next tokens were granted before, and one proxy has seen one.
    let next = client.next_token().await;
    one.set_watermark(next);
    let granted = client.acquire(&b, "a", TRY, 1).await.unwrap();
    assert!(granted.token > next, "{} and {next}", granted.token);
    assert_eq!(granted.sealed, ["one", "two"]);
    assert!(one.orders().contains(&(Action::Seal, next)), "not reached");
    // Asked again, it is the same grant.
    let again = client.acquire(&b, "a", TRY, 1).await.unwrap();
    assert_eq!(again.token, granted.token);
}

#[tokio::test]
async fn a_seal_that_was_cut_off_is_not_taken_for_another_grants() {
    let Service { lockd, client, .. } = start_with(settings()).await;
    let proxy = FakeProxy::start("edge", lockd.keys()).await;
    proxy.register(&client, "a").await;
    proxy.mood.send_replace(Mood::Late);
    let waiting = queue_up(&client, &client.open().await, "a");
    eventually("a try that failed", || async { proxy.watermark() > 0 }).await;
    let token = client.get("a").await.holder.unwrap().token;
    proxy.mood.send_replace(Mood::Works);
    assert_eq!(soon("the seal", waiting).await.unwrap().unwrap(), token);
}

#[tokio::test]
async fn a_seal_that_raised_nothing_does_not_hide_that_another_grant_had_the_token() {
    let Service { lockd, client, .. } = start_with(settings()).await;
    let proxy = FakeProxy::start("edge", lockd.keys()).await;
    proxy.register(&client, "a").await;
    let next = client.next_token().await;
    proxy.set_watermark(next);
    proxy.mood.send_replace(Mood::Busy);
    let waiting = queue_up(&client, &client.open().await, "a");
    eventually("a try that failed", || async { !proxy.orders().is_empty() }).await;
    assert_eq!(client.get("a").await.holder.unwrap().token, next);
    proxy.mood.send_replace(Mood::Works);
    let token = soon("the seal", waiting).await.unwrap().unwrap();
    assert!(token > next, "{token} and {next}");
}

#[tokio::test]
async fn a_repeated_call_does_not_hide_that_another_grant_had_the_token() {
    let Service { lockd, client, .. } = start_with(patient()).await;
    let proxy = FakeProxy::start("edge", lockd.keys()).await;
    proxy.register(&client, "a").await;
    let next = client.next_token().await;
    proxy.set_watermark(next);
    proxy.mood.send_replace(Mood::Holds);
    let session = client.open().await;
    let first = queue_up(&client, &session, "a");
    eventually("the first order", || async { proxy.orders().len() == 1 }).await;
    let again = queue_up(&client, &session, "a");
    eventually("the second one", || async { proxy.orders().len() == 2 }).await;
    assert_eq!(client.get("a").await.holder.unwrap().token, next);
    first.abort();
    proxy.mood.send_replace(Mood::Works);
    match soon("the seal", again).await.unwrap() {
        Ok(token) => assert!(token > next, "{token} and {next}"),
        // The first one, not aborted yet, has begun again before it.
        Err(gone) => assert_eq!(reason(&gone), "place-gone"),
    }
}

#[tokio::test]
async fn a_poisoned_watermark_does_not_poison_the_store() {
    let Service { lockd, client, .. } = start_with(settings()).await;
    let proxy = FakeProxy::start("edge", lockd.keys()).await;
    proxy.register(&client, "a").await;
    proxy.set_watermark(i64::MAX as u64);
    let session = client.open().await;
    let refused = client.acquire(&session, "a", TRY, 1).await.unwrap_err();
    assert_eq!(reason(&refused), "not-sealed");
    assert!(
        refused.message().contains("poisoned"),
        "{}",
        refused.message()
    );
    assert!(client.acquire(&session, "b", TRY, 1).await.unwrap().token < 1 << 62);
}

#[tokio::test]
async fn another_proxy_at_the_registered_address_is_no_seal() {
    let Service { lockd, client, .. } = start_with(settings()).await;
    let impostor = FakeProxy::start("impostor", lockd.keys()).await;
    register(&client, "edge", &impostor.address.to_string(), "a").await;
    let session = client.open().await;
    let refused = client.acquire(&session, "a", TRY, 1).await.unwrap_err();
    assert_eq!(reason(&refused), "not-sealed");
    assert!(
        refused.message().contains("impostor"),
        "{}",
        refused.message()
    );
}

#[tokio::test]
async fn a_caller_that_goes_away_during_its_seal_releases_its_grant() {
    let Service { lockd, client, .. } = start_with(patient()).await;
    let proxy = FakeProxy::start("edge", lockd.keys()).await;
    proxy.register(&client, "a").await;
    proxy.mood.send_replace(Mood::Holds);
    let call = queue_up(&client, &client.open().await, "a");
    eventually("its order is on the way", || async {
        proxy.orders().len() == 1
    })
    .await;
    call.abort();
    eventually("the grant is released", || async {
        client.get("a").await.holder.is_none()
    })
    .await;
}

#[tokio::test]
async fn a_release_with_close_closes_the_fence_before_it_answers() {
    let Service { lockd, client, .. } = start_with(settings()).await;
    let proxy = FakeProxy::start("edge", lockd.keys()).await;
    proxy.register(&client, "a").await;
    let (a, b) = (client.open().await, client.open().await);
    let token = client.acquire(&a, "a", TRY, 1).await.unwrap().token;
    // Neither another session, nor a token that nobody holds, closes anything.
    assert!(!client.try_release(&b, "a", token, true).await.unwrap());
    assert!(!client.try_release(&a, "a", token + 5, true).await.unwrap());
    assert_eq!(proxy.seen.lock().unwrap().floor, token);
    proxy.mood.send_replace(Mood::Busy);
    let refused = client.try_release(&a, "a", token, true).await.unwrap_err();
    assert_eq!(reason(&refused), "not-closed");
    assert_eq!(
        client.get("a").await.holder.unwrap().token,
        token,
        "the grant stands"
    );
    proxy.mood.send_replace(Mood::Works);
    assert!(client.try_release(&a, "a", token, true).await.unwrap());
    assert_eq!(proxy.seen.lock().unwrap().floor, token + 1);
    assert!(client.get("a").await.holder.is_none());
}

#[tokio::test]
async fn breaking_a_lock_closes_its_fence_first() {
    let Service { lockd, client, .. } = start_with(settings()).await;
    let proxy = FakeProxy::start("edge", lockd.keys()).await;
    proxy.register(&client, "a").await;
    let (a, b) = (client.open().await, client.open().await);
    let token = client.acquire(&a, "a", TRY, 1).await.unwrap().token;
    let next = queue_up(&client, &b, "a");
    client.wait_for_waiters("a", 1).await;
    let request = BreakLockRequest {
        lock: "a".to_owned(),
        token,
        reason: "stuck".to_owned(),
    };
    client.locks.clone().break_lock(request).await.unwrap();
    let granted = soon("the next waiter", next).await.unwrap().unwrap();
    let expected = [
        (Action::Seal, token),
        (Action::Close, token),
        (Action::Seal, granted),
    ];
    assert_eq!(proxy.orders(), expected);
}

#[tokio::test]
async fn a_stranger_that_calls_a_close_stale_has_closed_nothing() {
    let Service { lockd, client, .. } = start_with(settings()).await;
    let session = client.open().await;
    let token = client.acquire(&session, "a", TRY, 1).await.unwrap().token;
    // The proxy that guards the lock is gone, and another one has got its address.
    let stranger = FakeProxy::start("stranger", lockd.keys()).await;
    stranger.set_watermark(token + 1000);
    register(&client, "edge", &stranger.address.to_string(), "a").await;
    let request = BreakLockRequest {
        lock: "a".to_owned(),
        token,
        reason: "stuck".to_owned(),
    };
    let refused = client.locks.clone().break_lock(request).await.unwrap_err();
    assert_eq!(reason(&refused), "not-closed");
    assert!(
        refused.message().contains("stranger"),
        "{}",
        refused.message()
    );
}

#[tokio::test]
async fn a_proxy_that_registers_through_one_lockd_is_sealed_by_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_store(folder.path()).await;
    let shared = Arc::new(SharedStore {
        store,
        late: Duration::ZERO,
    });
    let keys = Arc::new(SigningKeys::in_memory());
    let first = serve_with_keys(shared.clone(), settings(), keys.clone()).await;
    let second = serve_with_keys(shared, settings(), keys.clone()).await;
    let (one, two) = (
        Client::connect(&first).await,
        Client::connect(&second).await,
    );
    let session = two.open().await;
    assert!(
        two.acquire(&session, "a", TRY, 1)
            .await
            .unwrap()
            .sealed
            .is_empty()
    );
    let proxy = FakeProxy::start("edge", &keys).await;
    proxy.register(&one, "a").await;
    assert_eq!(
        two.acquire(&session, "a", TRY, 1).await.unwrap().sealed,
        ["edge"]
    );
}
