//! Acquire and Release over gRPC: order, tries, cancels, repeats, ends of sessions.

mod lockd_support;

use std::sync::Arc;
use std::time::Duration;

use lockd_support::{
    Client, LONG, Service, eventually, open_store, reason, serve, soon, start, start_with,
};
use ringfence::lockd::{Limits, Settings};
use ringfence::proto::{BreakLockRequest, CloseSessionRequest, WatchLockRequest};
use ringfence::ticket::{KeyRing, SealScope};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

const TRY: Duration = Duration::ZERO;

/// A call that waits in its own task.
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
async fn a_ticket_says_what_was_granted() {
    let Service { lockd, client, .. } = start().await;
    let session = client.open().await;
    let granted = client.acquire(&session, "tenant/42", TRY, 1).await.unwrap();
    let ring = KeyRing::new(lockd.keys().current().verifying().cloned());
    let ticket = ring.verify_ticket(&granted.ticket).unwrap();
    assert_eq!(ticket.lock.as_str(), "tenant/42");
    assert_eq!(ticket.token.get(), granted.token);
    assert_eq!(ticket.session, session);
    assert_eq!(ticket.holder, "holder of tenant/42");
    assert_eq!(ticket.seal, SealScope::Required(vec![]));
}

#[tokio::test]
async fn waiters_are_granted_in_the_order_of_their_calls() {
    let Service { client, lockd, .. } = start().await;
    let mut holder = client.open().await;
    let mut token = client.acquire(&holder, "a", TRY, 1).await.unwrap().token;
    let mut waiters = Vec::new();
    for place in 1..=5 {
        let session = client.open().await;
        waiters.push((session.clone(), queue_up(&client, &session, "a")));
        client.wait_for_waiters("a", place).await;
    }
    for (session, call) in waiters {
        assert!(!call.is_finished(), "granted before the release");
        assert!(client.release(&holder, "a", token).await);
        let next = soon("the next grant", call).await.unwrap().unwrap();
        assert!(next > token, "tokens grow: {token}, then {next}");
        assert_eq!(client.get("a").await.holder.unwrap().token, next);
        (holder, token) = (session, next);
    }
    eventually("no wait is left open", || async { lockd.counts().1 == 0 }).await;
}

#[tokio::test]
async fn a_try_takes_a_free_lock_and_leaves_nothing_at_a_held_one() {
    let Service { client, .. } = start().await;
    let (a, b) = (client.open().await, client.open().await);
    let token = client.acquire(&a, "a", TRY, 1).await.unwrap().token;
    let refused = client.acquire(&b, "a", TRY, 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::DeadlineExceeded);
    assert_eq!(reason(&refused), "not-granted");
    assert_eq!(client.waiters("a").await, 0);
    assert!(client.release(&a, "a", token).await);
    assert!(client.acquire(&b, "a", TRY, 2).await.unwrap().token > token);
}

#[tokio::test]
async fn a_wait_that_ends_without_a_grant_leaves_the_queue() {
    let Service { client, .. } = start().await;
    let (a, b) = (client.open().await, client.open().await);
    client.acquire(&a, "a", TRY, 1).await.unwrap();
    let refused = client
        .acquire(&b, "a", Duration::from_millis(100), 1)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::DeadlineExceeded);
    assert_eq!(client.waiters("a").await, 0);
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_the_queue_and_the_next_is_granted() {
    let Service { client, .. } = start().await;
    let (a, b, c) = (
        client.open().await,
        client.open().await,
        client.open().await,
    );
    let token = client.acquire(&a, "a", TRY, 1).await.unwrap().token;
    let leaving = queue_up(&client, &b, "a");
    client.wait_for_waiters("a", 1).await;
    let staying = queue_up(&client, &c, "a");
    client.wait_for_waiters("a", 2).await;
    leaving.abort();
    client.wait_for_waiters("a", 1).await;
    client.release(&a, "a", token).await;
    let granted = soon("the waiter that stayed", staying)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(client.get("a").await.holder.unwrap().session, c);
    assert!(granted > token);
}

#[tokio::test]
async fn callers_that_go_away_at_any_moment_leave_nothing_behind() {
    let Service { client, .. } = start().await;
    let holder = client.open().await;
    let token = client.acquire(&holder, "a", TRY, 1).await.unwrap().token;
    let session = client.open().await;
    // Dropped before, while and after the entry is written.
    for attempt in 1..=60 {
        let call = client.acquire(&session, "a", LONG, attempt);
        let _ = tokio::time::timeout(Duration::from_micros(attempt * 150), call).await;
    }
    client.wait_for_waiters("a", 0).await;
    client.release(&holder, "a", token).await;
    assert!(client.get("a").await.holder.is_none());
}

#[tokio::test]
async fn the_same_attempt_again_returns_the_same_grant() {
    let Service { client, .. } = start().await;
    let session = client.open().await;
    let first = client.acquire(&session, "a", TRY, 1).await.unwrap();
    // Its reply was lost, say: repeated as a try, and as a wait.
    assert_eq!(
        client.acquire(&session, "a", TRY, 1).await.unwrap().token,
        first.token
    );
    assert_eq!(
        client.acquire(&session, "a", LONG, 1).await.unwrap().token,
        first.token
    );
    // A later attempt gives up the earlier one and its token.
    let second = client.acquire(&session, "a", TRY, 2).await.unwrap();
    assert!(second.token > first.token);
    assert!(!client.release(&session, "a", first.token).await);
    let other = client.open().await;
    let refused = client.acquire(&other, "a", TRY, 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn an_attempt_that_was_released_is_over() {
    let Service { client, .. } = start().await;
    let session = client.open().await;
    let granted = client.acquire(&session, "a", TRY, 3).await.unwrap();
    assert!(client.release(&session, "a", granted.token).await);
    for attempt in [3, 2] {
        let refused = client
            .acquire(&session, "a", TRY, attempt)
            .await
            .unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert_eq!(reason(&refused), "attempt-over");
        assert_eq!(
            refused.metadata().get("ringfence-last-attempt").unwrap(),
            "3"
        );
    }
    assert!(client.acquire(&session, "a", TRY, 4).await.unwrap().token > granted.token);
}

#[tokio::test]
async fn attempt_zero_leaves_the_choice_to_the_service() {
    let Service { client, .. } = start().await;
    let session = client.open().await;
    let mut last = 0;
    for _ in 0..4 {
        let token = client.acquire(&session, "a", TRY, 0).await.unwrap().token;
        assert!(token > last);
        assert_eq!(
            client.acquire(&session, "a", TRY, 0).await.unwrap().token,
            token
        );
        assert!(client.release(&session, "a", token).await);
        last = token;
    }
}

#[tokio::test]
async fn a_late_cancel_removes_nothing_that_a_repeated_call_was_told() {
    let Service { client, .. } = start().await;
    let (a, b) = (client.open().await, client.open().await);
    let token = client.acquire(&a, "a", TRY, 1).await.unwrap().token;
    let earlier = queue_up(&client, &b, "a");
    client.wait_for_waiters("a", 1).await;
    let place = client.get("a").await.waiters[0].token;
    let repeated = queue_up(&client, &b, "a");
    // The repeated call has written the entry anew once a third write comes after it.
    let c = client.open().await;
    let behind = queue_up(&client, &c, "a");
    client.wait_for_waiters("a", 2).await;
    earlier.abort();
    assert!(client.release(&a, "a", token).await);
    let granted = soon("the repeated call", repeated).await.unwrap().unwrap();
    assert_eq!(granted, place, "the place of the first call was kept");
    assert_eq!(client.get("a").await.holder.unwrap().token, granted);
    behind.abort();
    client.wait_for_waiters("a", 0).await;
    assert_eq!(client.get("a").await.holder.unwrap().token, granted);
}

#[tokio::test]
async fn a_release_acts_on_the_token_and_the_session() {
    let Service { client, .. } = start().await;
    let (a, b) = (client.open().await, client.open().await);
    let token = client.acquire(&a, "a", TRY, 1).await.unwrap().token;
    assert!(!client.release(&a, "a", token + 1).await, "another token");
    assert!(!client.release(&b, "a", token).await, "another session");
    assert!(!client.release(&a, "b", token).await, "another lock");
    assert_eq!(client.get("a").await.holder.unwrap().token, token);
    assert!(client.release(&a, "a", token).await);
    assert!(!client.release(&a, "a", token).await, "twice");
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_grants_and_its_waits() {
    let Service { client, .. } = start().await;
    let (a, b) = (client.open().await, client.open().await);
    client.acquire(&a, "a", TRY, 1).await.unwrap();
    client.acquire(&b, "b", TRY, 1).await.unwrap();
    let waits_at_b = queue_up(&client, &a, "b");
    let waits_at_a = queue_up(&client, &b, "a");
    client.wait_for_waiters("b", 1).await;
    client.wait_for_waiters("a", 1).await;
    let close = CloseSessionRequest { session: a.clone() };
    client.locks.clone().close_session(close).await.unwrap();
    let refused = soon("the ended wait", waits_at_b)
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(reason(&refused), "place-gone");
    soon("the next holder", waits_at_a).await.unwrap().unwrap();
    let refused = client.acquire(&a, "c", TRY, 1).await.unwrap_err();
    assert_eq!(reason(&refused), "session-gone");
    assert_eq!(client.renew(&a).await, 0);
}

#[tokio::test]
async fn a_session_that_is_not_renewed_expires_and_frees_its_lock() {
    let Service { client, .. } = start().await;
    let brief = client.open_for(Duration::from_millis(1)).await;
    client.acquire(&brief, "a", TRY, 1).await.unwrap();
    assert!(
        client.renew(&brief).await >= 1000,
        "the store's shortest time to live"
    );
    let other = client.open().await;
    let granted = soon(
        "the lock of an expired session",
        queue_up(&client, &other, "a"),
    )
    .await;
    granted.unwrap().unwrap();
    assert_eq!(client.renew(&brief).await, 0);
}

#[tokio::test]
async fn limits_refuse_and_name_themselves() {
    let limits = Limits {
        waiters_per_lock_max: 2,
        waits_max: 3,
        ..Limits::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let store = open_store(folder.path()).await;
    let lockd = serve(
        store,
        Settings {
            limits,
            ..Settings::default()
        },
    )
    .await;
    let client = Client::connect(&lockd).await;
    let sessions = [
        client.open().await,
        client.open().await,
        client.open().await,
    ];
    client.acquire(&sessions[0], "a", TRY, 1).await.unwrap();
    let _waits = queue_up(&client, &sessions[1], "a");
    client.wait_for_waiters("a", 1).await;
    eventually("the watch has told of both", || async {
        let refused = client.acquire(&sessions[2], "a", TRY, 1).await.unwrap_err();
        refused.code() == Code::ResourceExhausted && refused.message().contains("2")
    })
    .await;
    client.acquire(&sessions[2], "b", TRY, 1).await.unwrap();
}

#[tokio::test]
async fn waiting_calls_and_watches_are_bounded() {
    let limits = Limits {
        waits_max: 1,
        watches_max: 1,
        ..Limits::default()
    };
    let Service { client, .. } = start_with(Settings {
        limits,
        ..Settings::default()
    })
    .await;
    let (a, b) = (client.open().await, client.open().await);
    client.acquire(&a, "a", TRY, 1).await.unwrap();
    let waits = queue_up(&client, &b, "a");
    client.wait_for_waiters("a", 1).await;
    let refused = client.acquire(&a, "b", TRY, 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(
        refused.message().contains("waiting calls"),
        "{}",
        refused.message()
    );
    waits.abort();
    client.wait_for_waiters("a", 0).await;
    eventually("the wait is closed", || async {
        client.acquire(&a, "b", TRY, 1).await.is_ok()
    })
    .await;

    let watch = || {
        let request = WatchLockRequest {
            lock: "a".to_owned(),
        };
        let mut locks = client.locks.clone();
        async move { locks.watch_lock(request).await }
    };
    let first = watch().await.unwrap();
    assert_eq!(watch().await.unwrap_err().code(), Code::ResourceExhausted);
    drop(first);
    eventually("the first watch is over", || async {
        watch().await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_are_woken_one_by_one() {
    let Service { client, lockd, .. } = start().await;
    let holder = client.open().await;
    let token = client.acquire(&holder, "hot", TRY, 1).await.unwrap().token;
    let sessions: Vec<String> = futures::future::join_all((0..1000).map(|_| client.open())).await;
    let client = Arc::new(client);
    let calls: Vec<_> = sessions
        .iter()
        .map(|session| {
            let (client, session) = (client.clone(), session.clone());
            tokio::spawn(async move {
                let granted = client.acquire(&session, "hot", LONG, 1).await.unwrap();
                // Held by nobody else.
                assert_eq!(client.get("hot").await.holder.unwrap().token, granted.token);
                assert!(client.release(&session, "hot", granted.token).await);
                granted.token
            })
        })
        .collect();
    client.wait_for_waiters("hot", 1000).await;
    client.release(&holder, "hot", token).await;
    let tokens = soon("a thousand grants", futures::future::join_all(calls)).await;
    let mut tokens: Vec<u64> = tokens.into_iter().map(Result::unwrap).collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 1000, "two grants shared a token");
    eventually("nothing is left", || async { lockd.counts() == (0, 0) }).await;
}

#[tokio::test]
async fn breaking_a_lock_names_the_token_that_was_seen() {
    let Service { client, .. } = start().await;
    let session = client.open().await;
    let token = client.acquire(&session, "a", TRY, 1).await.unwrap().token;
    let break_lock = |token, reason: &str| {
        let request = BreakLockRequest {
            lock: "a".to_owned(),
            token,
            reason: reason.to_owned(),
        };
        let mut locks = client.locks.clone();
        async move { locks.break_lock(request).await }
    };
    let refused = break_lock(token + 1, "stuck").await.unwrap_err();
    assert_eq!(reason(&refused), "not-holder");
    assert!(
        refused.message().contains(&token.to_string()),
        "{}",
        refused.message()
    );
    assert_eq!(
        break_lock(token, "").await.unwrap_err().code(),
        Code::InvalidArgument
    );
    break_lock(token, "stuck").await.unwrap();
    assert!(client.get("a").await.holder.is_none());
    assert_eq!(
        reason(&break_lock(token, "stuck").await.unwrap_err()),
        "not-holder"
    );
}
