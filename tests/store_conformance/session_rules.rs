//! Sessions, tokens, records, limits.

use std::time::{Duration, Instant};

use ringfence::store::{
    Enqueue, Enqueued, HOLDER_BYTES_MAX, RECORD_BYTES_MAX, RECORD_NAME_BYTES_MAX, SessionId,
    StoreError,
};
use ringfence::token::Token;

use crate::fixture::{
    Fixture, LONG, Mirror, attempt_first, queue, removal, remove, request, session, stand, standing,
};

const SHORT: Duration = Duration::from_secs(1);

pub async fn a_session_is_opened_renewed_and_closed(fixture: Fixture) {
    let store = fixture.store();
    let (session, ttl) = store.open_session(LONG).await.unwrap();
    assert_eq!(ttl, LONG);
    assert_eq!(store.keep_alive(session).await.unwrap(), Some(LONG));
    store.close_session(session).await.unwrap();
    assert_eq!(store.keep_alive(session).await.unwrap(), None);
    store.close_session(session).await.unwrap();
    // A store may give more than was asked for, never less.
    let (_, ttl) = store.open_session(Duration::from_millis(1)).await.unwrap();
    assert!(ttl >= SHORT, "{ttl:?}");
    for never in [SessionId(0), SessionId(0x1234), SessionId(u64::MAX)] {
        assert_eq!(store.keep_alive(never).await.unwrap(), None);
        store.close_session(never).await.unwrap();
    }
}

pub async fn a_session_that_is_not_renewed_ends_with_its_entries_and_a_renewed_one_stays(
    fixture: Fixture,
) {
    let store = fixture.store();
    let mut mirror = Mirror::start(&store).await;
    let (dying, ttl) = store.open_session(SHORT).await.unwrap();
    let (living, _) = store.open_session(SHORT).await.unwrap();
    let opened = Instant::now();
    stand(&store, "a", dying, 1).await;
    let (kept, holder) = stand(&store, "a", living, 1).await;
    assert_eq!(holder.session, dying);
    let renewals = {
        let store = fixture.store();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(SHORT / 5);
            loop {
                ticks.tick().await;
                assert!(
                    store.keep_alive(living).await.unwrap().is_some(),
                    "a renewed one ended"
                );
            }
        })
    };
    mirror
        .until(|mirror| mirror.of("a").first().is_some_and(|e| e.session == living))
        .await;
    assert!(
        opened.elapsed() >= ttl - Duration::from_millis(100),
        "ended early"
    );
    assert_eq!(store.keep_alive(dying).await.unwrap(), None);
    assert_eq!(queue(&store, "a").await, std::slice::from_ref(&kept));
    // Well past the time to live of the renewed one.
    let (witness, _) = store.open_session(SHORT * 2).await.unwrap();
    stand(&store, "b", witness, 1).await;
    mirror.until(|mirror| mirror.of("b").len() == 1).await;
    mirror.until(|mirror| mirror.of("b").is_empty()).await;
    assert_eq!(queue(&store, "a").await, [kept]);
    renewals.abort();
    assert!(renewals.await.unwrap_err().is_cancelled());
}

pub async fn a_session_that_is_gone_cannot_enqueue(fixture: Fixture) {
    let store = fixture.store();
    let closed = session(&store).await;
    stand(&store, "a", closed, 1).await;
    store.close_session(closed).await.unwrap();
    for gone in [closed, SessionId(0x1234), SessionId(0), SessionId(u64::MAX)] {
        assert_eq!(
            store.enqueue(request("a", gone, 2)).await.unwrap(),
            Enqueued::SessionGone
        );
        assert_eq!(
            attempt_first(&store, "a", gone, 2).await,
            Enqueued::SessionGone
        );
    }
    assert_eq!(queue(&store, "a").await, []);
}

pub async fn sessions_entries_and_attempts_survive_a_restart(mut fixture: Fixture) {
    let store = fixture.store();
    let (first, second) = (session(&store).await, session(&store).await);
    stand(&store, "a", first, 1).await;
    stand(&store, "a", second, 1).await;
    let (released, _) = stand(&store, "b", first, 5).await;
    remove(&store, &released).await;
    let before = store.queue(&"a".parse().unwrap()).await.unwrap();
    drop(store);
    fixture.restart().await;
    let store = fixture.store();
    let after = store.queue(&"a".parse().unwrap()).await.unwrap();
    assert_eq!(after.entries, before.entries);
    assert!(after.latest >= before.latest);
    assert_eq!(store.keep_alive(first).await.unwrap(), Some(LONG));
    let over = store.enqueue(request("b", first, 5)).await.unwrap();
    assert_eq!(over, Enqueued::AttemptOver { last: 5 });
    // A repeat of the call whose answer the restart has swallowed.
    let (again, holder) = stand(&store, "a", second, 1).await;
    assert_eq!(again.token, before.entries[1].token);
    assert_eq!(holder, before.entries[0]);
    store.close_session(first).await.unwrap();
    assert_eq!(queue(&store, "a").await, [again]);
}

pub async fn tokens_grow_across_release_expiry_close_and_restart(mut fixture: Fixture) {
    let store = fixture.store();
    let one = session(&store).await;
    let mut tokens = Vec::new();
    for attempt in 1..=3 {
        let (entry, _) = stand(&store, "a", one, attempt).await;
        tokens.push(entry.token);
        remove(&store, &entry).await;
    }
    tokens.push(stand(&store, "a", one, 4).await.0.token);
    store.close_session(one).await.unwrap();
    let mut mirror = Mirror::start(&store).await;
    let (dying, _) = store.open_session(SHORT).await.unwrap();
    tokens.push(stand(&store, "a", dying, 1).await.0.token);
    mirror.until(|mirror| !mirror.of("a").is_empty()).await;
    mirror.until(|mirror| mirror.of("a").is_empty()).await;
    let two = session(&store).await;
    let (last, _) = stand(&store, "a", two, 1).await;
    tokens.push(last.token);
    remove(&store, &last).await;
    drop((store, mirror));
    // Nothing of the lock is left in the store now but what it never forgets.
    fixture.restart().await;
    let store = fixture.store();
    tokens.push(stand(&store, "a", two, 2).await.0.token);
    assert!(
        tokens.windows(2).all(|pair| pair[0] < pair[1]),
        "{tokens:?}"
    );
}

pub async fn raised_tokens_stay_raised_and_standing_entries_keep_theirs(mut fixture: Fixture) {
    let store = fixture.store();
    let mut mirror = Mirror::start(&store).await;
    let (first, second) = (session(&store).await, session(&store).await);
    let (old, _) = stand(&store, "a", first, 1).await;
    let far = Token::new(old.token.get() + (7 << 48)).unwrap();
    store.raise_above(far).await.unwrap();
    store.raise_above(far).await.unwrap();
    store.raise_above(Token::MIN).await.unwrap();
    assert!(store.queue(&"a".parse().unwrap()).await.unwrap().latest >= far);
    let (new, holder) = stand(&store, "a", second, 1).await;
    assert!(new.token > far, "{new:?}");
    assert_eq!(holder, old);
    assert_eq!(queue(&store, "a").await, [old.clone(), new.clone()]);
    mirror
        .until(|mirror| mirror.of("a") == [old.clone(), new.clone()])
        .await;
    // A token that no entry has: the old one's place in the order, the new generation.
    let mut forged = removal(&old);
    forged.token = Token::new(old.token.get() + 1).unwrap();
    assert!(!store.remove(forged).await.unwrap().removed);
    let removed = remove(&store, &old).await;
    assert_eq!((removed.removed, removed.next), (true, Some(new.clone())));
    assert!(matches!(
        store.raise_above(Token::MAX).await,
        Err(StoreError::Refused(_))
    ));
    drop((store, mirror));
    fixture.restart().await;
    let store = fixture.store();
    assert_eq!(queue(&store, "a").await, std::slice::from_ref(&new));
    let (later, _) = stand(&store, "b", first, 1).await;
    assert!(later.token > new.token);
}

pub async fn records_are_kept_listed_and_removed(mut fixture: Fixture) {
    let store = fixture.store();
    let mut mirror = Mirror::start(&store).await;
    let records = [
        ("proxy/a", "1"),
        ("proxy/b", "2"),
        ("proxy0", "3"),
        ("pr", ""),
        ("ü/\0", "4"),
    ];
    for (name, value) in records {
        store.put_record(name, Some(b"old".to_vec())).await.unwrap();
        store.put_record(name, Some(value.into())).await.unwrap();
    }
    store.put_record("gone", Some(b"x".to_vec())).await.unwrap();
    store.put_record("gone", None).await.unwrap();
    store.put_record("never", None).await.unwrap();
    let found = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
    let proxies = [found("proxy/a", "1"), found("proxy/b", "2")];
    assert_eq!(store.records("proxy/").await.unwrap(), proxies);
    drop(store);
    fixture.restart().await;
    let store = fixture.store();
    let mut all: Vec<_> = records
        .iter()
        .map(|(name, value)| found(name, value))
        .collect();
    all.sort();
    assert_eq!(store.records("").await.unwrap(), all);
    assert_eq!(store.records("none").await.unwrap(), []);
    // Records are no locks.
    let one = session(&store).await;
    let (entry, _) = stand(&store, "proxy/a", one, 1).await;
    assert_eq!(queue(&store, "proxy/a").await, [entry]);
    assert_eq!(queue(&store, "proxy").await, []);
    mirror.entries.clear();
}

pub async fn a_record_is_replaced_only_as_it_was_seen(mut fixture: Fixture) {
    let store = fixture.store();
    let replace = async |seen: Option<&str>, value: &str| {
        let seen = seen.map(str::as_bytes);
        let replaced = store.replace_record("r", seen, value.into()).await;
        replaced.unwrap()
    };
    assert!(!replace(Some("1"), "2").await, "it was never there");
    assert!(!replace(Some(""), "2").await, "nor empty");
    assert!(replace(None, "1").await);
    assert!(!replace(None, "2").await);
    assert!(!replace(Some("2"), "3").await);
    store.put_record("rr", Some(b"2".to_vec())).await.unwrap();
    assert!(!replace(Some("2"), "3").await, "another one is");
    assert!(replace(Some("1"), "").await);
    assert!(replace(Some(""), "4").await);
    store.put_record("r", None).await.unwrap();
    assert!(!replace(Some("4"), "5").await);
    assert!(replace(None, "6").await);
    // Of those that saw the same, one writes.
    let both = futures::join!(replace(Some("6"), "7"), replace(Some("6"), "8"));
    assert!(both.0 != both.1, "{both:?}");
    let large = store.replace_record("r", None, vec![0; RECORD_BYTES_MAX + 1]);
    assert!(matches!(large.await, Err(StoreError::Refused(_))));
    drop(store);
    fixture.restart().await;
    let kept = fixture.store().records("r").await.unwrap();
    let value = if both.0 { "7" } else { "8" };
    assert_eq!(kept[0], ("r".to_owned(), value.into()));
}

pub async fn what_exceeds_a_limit_is_refused(fixture: Fixture) {
    let store = fixture.store();
    let one = session(&store).await;
    let zero = store.enqueue(request("a", one, 0)).await;
    assert!(matches!(zero, Err(StoreError::Refused(_))), "{zero:?}");
    let holder = |bytes: usize| Enqueue {
        holder: "x".repeat(bytes),
        ..request("a", one, 1)
    };
    let long = store.enqueue(holder(HOLDER_BYTES_MAX + 1)).await;
    assert!(matches!(long, Err(StoreError::Refused(_))), "{long:?}");
    assert_eq!(queue(&store, "a").await, []);
    let (entry, _) = standing(store.enqueue(holder(HOLDER_BYTES_MAX)).await.unwrap());
    assert_eq!(entry.holder.len(), HOLDER_BYTES_MAX);
    let long = "n".repeat(RECORD_NAME_BYTES_MAX + 1);
    let large = vec![0; RECORD_BYTES_MAX + 1];
    for (name, value) in [("", vec![1]), (&long, vec![1]), ("n", large)] {
        let put = store.put_record(name, Some(value)).await;
        assert!(matches!(put, Err(StoreError::Refused(_))), "{put:?}");
    }
    assert_eq!(store.records("").await.unwrap(), []);
    let largest = vec![0xff; RECORD_BYTES_MAX];
    store
        .put_record(&long[1..], Some(largest.clone()))
        .await
        .unwrap();
    assert_eq!(
        store.records("n").await.unwrap(),
        [(long[1..].to_owned(), largest)]
    );
}

pub async fn session_ids_do_not_follow_each_other(fixture: Fixture) {
    let store = fixture.store();
    let mut ids = Vec::new();
    for _ in 0..8 {
        ids.push(session(&store).await.0);
    }
    assert!(
        ids.iter().all(|id| *id > 0 && *id <= i64::MAX as u64),
        "{ids:?}"
    );
    let near = |pair: &[u64]| pair[0].abs_diff(pair[1]) < 1 << 32;
    assert!(!ids.windows(2).any(near), "{ids:?}");
}
