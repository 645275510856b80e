//! The queue of a lock.

use std::collections::BTreeSet;

use futures::future::join_all;
use ringfence::store::{Enqueued, Remove, SessionId};
use ringfence::token::Token;

use crate::fixture::{
    Fixture, attempt_first, name, queue, removal, remove, request, session, stand, standing,
};

pub async fn the_queue_is_first_come_first_served(fixture: Fixture) {
    let store = fixture.store();
    let mut entries = Vec::new();
    for _ in 0..4 {
        let one = session(&store).await;
        let (entry, holder) = stand(&store, "a", one, 1).await;
        assert_eq!(entry.holder, format!("holder of {one}"));
        assert_eq!((entry.attempt, entry.foreign), (1, false));
        entries.push(entry);
        assert_eq!(holder, entries[0]);
    }
    assert_eq!(queue(&store, "a").await, entries);
    // One in the middle goes: the holder stays. The holder goes: the next one is told.
    let removed = remove(&store, &entries[2]).await;
    assert_eq!(
        (removed.removed, removed.next.as_ref()),
        (true, Some(&entries[0]))
    );
    let removed = remove(&store, &entries[0]).await;
    assert_eq!(
        (removed.removed, removed.next.as_ref()),
        (true, Some(&entries[1]))
    );
    assert_eq!(
        queue(&store, "a").await,
        [entries[1].clone(), entries[3].clone()]
    );
    remove(&store, &entries[1]).await;
    let removed = remove(&store, &entries[3]).await;
    assert_eq!((removed.removed, removed.next), (true, None));
    assert_eq!(queue(&store, "a").await, []);
}

pub async fn a_repeated_attempt_keeps_its_place_and_changes_its_version(fixture: Fixture) {
    let store = fixture.store();
    let (one, two) = (session(&store).await, session(&store).await);
    let (first, _) = stand(&store, "a", one, 1).await;
    let (second, _) = stand(&store, "a", two, 1).await;
    let (again, holder) = stand(&store, "a", two, 1).await;
    assert_eq!((again.token, again.attempt), (second.token, 1));
    assert!(again.version > second.version);
    assert_eq!(holder, first);
    let (again_first, holder) = stand(&store, "a", one, 1).await;
    assert_eq!((again_first.token, &holder), (first.token, &again_first));
    assert_eq!(queue(&store, "a").await, [again_first, again]);
}

pub async fn a_later_attempt_gets_a_new_entry_and_the_late_cancel_of_the_earlier_removes_nothing(
    fixture: Fixture,
) {
    let store = fixture.store();
    let one = session(&store).await;
    let (first, _) = stand(&store, "a", one, 1).await;
    let (second, holder) = stand(&store, "a", one, 3).await;
    assert!(
        second.token > first.token,
        "a token is told for one attempt"
    );
    assert_eq!((&holder, second.attempt), (&second, 3));
    assert!(!remove(&store, &first).await.removed);
    let cancel = Remove {
        only_version: Some(first.version),
        ..removal(&first)
    };
    let cancelled = store.remove(cancel).await.unwrap();
    assert_eq!(
        (cancelled.removed, cancelled.next),
        (false, Some(second.clone()))
    );
    let earlier = store.enqueue(request("a", one, 2)).await.unwrap();
    assert_eq!(earlier, Enqueued::AttemptOver { last: 3 });
    assert_eq!(
        attempt_first(&store, "a", one, 2).await,
        Enqueued::AttemptOver { last: 3 }
    );
    assert_eq!(queue(&store, "a").await, std::slice::from_ref(&second));
    let cancel = Remove {
        only_version: Some(second.version),
        ..removal(&second)
    };
    assert!(store.remove(cancel).await.unwrap().removed);
    let over = store.enqueue(request("a", one, 3)).await.unwrap();
    assert_eq!(over, Enqueued::AttemptOver { last: 3 });
}

pub async fn a_released_attempt_is_over(fixture: Fixture) {
    let store = fixture.store();
    let (one, two) = (session(&store).await, session(&store).await);
    let (released, _) = stand(&store, "a", one, 4).await;
    remove(&store, &released).await;
    for attempt in [1, 4] {
        let over = store.enqueue(request("a", one, attempt)).await.unwrap();
        assert_eq!(over, Enqueued::AttemptOver { last: 4 });
        let over = attempt_first(&store, "a", one, attempt).await;
        assert_eq!(over, Enqueued::AttemptOver { last: 4 });
    }
    assert_eq!(queue(&store, "a").await, []);
    // Another lock and another session count for themselves.
    stand(&store, "b", one, 1).await;
    let (other, _) = stand(&store, "a", two, 1).await;
    remove(&store, &other).await;
    let (next, _) = stand(&store, "a", one, 5).await;
    assert!(next.token > other.token && other.token > released.token);
    // An atomic try that was refused was no attempt that is over.
    assert!(matches!(
        attempt_first(&store, "a", two, 2).await,
        Enqueued::Held { .. }
    ));
    remove(&store, &next).await;
    standing(attempt_first(&store, "a", two, 2).await);
}

pub async fn only_if_first_writes_nothing_behind_another(fixture: Fixture) {
    let store = fixture.store();
    let (one, two) = (session(&store).await, session(&store).await);
    let (first, holder) = standing(attempt_first(&store, "a", one, 1).await);
    assert_eq!(first, holder);
    assert_eq!(
        attempt_first(&store, "a", two, 1).await,
        Enqueued::Held { holder }
    );
    assert_eq!(queue(&store, "a").await, std::slice::from_ref(&first));
    let (again, holder) = standing(attempt_first(&store, "a", one, 2).await);
    assert_eq!(
        (again.token > first.token, again.attempt, &holder),
        (true, 2, &again)
    );
    let (same, _) = standing(attempt_first(&store, "a", one, 2).await);
    assert_eq!((same.token, same.attempt), (again.token, 2));
    assert!(same.version > again.version);
    let again = same;
    // Second in the queue, a try is refused and the place is kept as it was.
    let (waiting, _) = stand(&store, "a", two, 1).await;
    let refused = attempt_first(&store, "a", two, 2).await;
    assert_eq!(
        refused,
        Enqueued::Held {
            holder: again.clone()
        }
    );
    assert_eq!(queue(&store, "a").await, [again.clone(), waiting.clone()]);
    remove(&store, &again).await;
    let (granted, _) = standing(attempt_first(&store, "a", two, 2).await);
    assert!(granted.token > waiting.token, "{granted:?}");
    assert_eq!(granted.attempt, 2);
    // A holder that tries anew has given up what it held: who waits behind it comes first.
    let (behind, _) = stand(&store, "a", one, 3).await;
    let refused = attempt_first(&store, "a", two, 3).await;
    let holder = behind.clone();
    assert_eq!(refused, Enqueued::Held { holder });
    assert_eq!(queue(&store, "a").await, [behind]);
}

pub async fn one_of_many_atomic_tries_wins(fixture: Fixture) {
    const TRIES: usize = 24;
    let store = fixture.store();
    let sessions = join_all((0..TRIES).map(|_| session(&store))).await;
    for round in 1..=5 {
        let tries = sessions
            .iter()
            .map(|one| attempt_first(&store, "a", *one, round));
        let tried = join_all(tries).await;
        let entries = queue(&store, "a").await;
        assert_eq!(entries.len(), 1, "{entries:?}");
        let mut won = 0;
        for enqueued in tried {
            match enqueued {
                Enqueued::Standing { entry, holder } => {
                    assert_eq!((&entry, &holder), (&entries[0], &entries[0]));
                    won += 1;
                }
                Enqueued::Held { holder } => assert_eq!(holder, entries[0]),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(won, 1);
        assert!(remove(&store, &entries[0]).await.removed);
    }
}

pub async fn a_removal_names_token_session_and_version(fixture: Fixture) {
    let store = fixture.store();
    let (one, two) = (session(&store).await, session(&store).await);
    let (first, _) = stand(&store, "a", one, 1).await;
    let (second, _) = stand(&store, "a", two, 1).await;
    let right = removal(&first);
    let wrong = [
        Remove {
            token: second.token,
            ..right.clone()
        },
        Remove {
            token: Token::MAX,
            ..right.clone()
        },
        Remove {
            token: Token::MIN,
            ..right.clone()
        },
        Remove {
            session: two,
            ..right.clone()
        },
        Remove {
            session: SessionId(u64::MAX),
            ..right.clone()
        },
        Remove {
            lock: name("b"),
            ..right.clone()
        },
        Remove {
            only_version: Some(first.version + 1),
            ..right.clone()
        },
        Remove {
            only_version: Some(u64::MAX),
            ..right.clone()
        },
    ];
    for remove in wrong {
        let next = (remove.lock == name("a")).then(|| first.clone());
        let removed = store.remove(remove.clone()).await.unwrap();
        assert_eq!((removed.removed, removed.next), (false, next), "{remove:?}");
    }
    assert_eq!(queue(&store, "a").await, [first.clone(), second.clone()]);
    // Nothing was released by them.
    let (first, _) = stand(&store, "a", one, 1).await;
    assert!(remove(&store, &first).await.removed);
    let repeated = remove(&store, &first).await;
    assert_eq!((repeated.removed, repeated.next), (false, Some(second)));
}

pub async fn many_callers_of_one_lock_get_distinct_ordered_tokens(fixture: Fixture) {
    const CALLERS: usize = 48;
    let store = fixture.store();
    let sessions = join_all((0..CALLERS).map(|_| session(&store))).await;
    let stood = join_all(sessions.iter().map(|one| stand(&store, "hot", *one, 1))).await;
    let entries = queue(&store, "hot").await;
    let mut own: Vec<_> = stood.iter().map(|(entry, _)| entry.clone()).collect();
    own.sort_by_key(|entry| entry.token);
    assert_eq!(own, entries);
    let tokens: BTreeSet<_> = entries.iter().map(|entry| entry.token).collect();
    assert_eq!(tokens.len(), CALLERS);
    let holders: Vec<_> = stood
        .iter()
        .filter(|(entry, holder)| entry == holder)
        .collect();
    assert_eq!(holders.len(), 1, "two were told that they hold it");
    // Each release hands to exactly the next, while other locks are busy.
    let busy = async {
        for attempt in 1..=20 {
            let (entry, _) = stand(&store, "other", sessions[0], attempt).await;
            remove(&store, &entry).await;
        }
    };
    let hand_over = async {
        for (index, entry) in entries.iter().enumerate() {
            let removed = remove(&store, entry).await;
            assert_eq!(
                (removed.removed, removed.next.as_ref()),
                (true, entries.get(index + 1))
            );
        }
    };
    futures::join!(busy, hand_over);
}

pub async fn nested_names_are_different_locks(fixture: Fixture) {
    let store = fixture.store();
    let (one, two) = (session(&store).await, session(&store).await);
    // A name that looks like an entry of `a` in etcd's layout.
    let inner = format!("a/{two}");
    let (nested, _) = standing(attempt_first(&store, "a/1", one, 1).await);
    let (lookalike, _) = standing(attempt_first(&store, &inner, one, 1).await);
    let (outer, holder) = standing(attempt_first(&store, "a", two, 1).await);
    assert_eq!(outer, holder);
    let (deeper, _) = standing(attempt_first(&store, "a/1/2", two, 1).await);
    assert_eq!(queue(&store, "a").await, std::slice::from_ref(&outer));
    assert_eq!(queue(&store, "a/1").await, std::slice::from_ref(&nested));
    assert_eq!(queue(&store, &inner).await, [lookalike]);
    assert_eq!(queue(&store, "a/1/2").await, [deeper]);
    let removed = remove(&store, &outer).await;
    assert_eq!((removed.removed, removed.next), (true, None));
    assert_eq!(queue(&store, "a/1").await, [nested]);
}

pub async fn a_view_bounds_the_tokens_before_and_after_it(fixture: Fixture) {
    let store = fixture.store();
    let one = session(&store).await;
    let lock = name("a");
    assert!(store.queue(&lock).await.unwrap().entries.is_empty());
    for attempt in 1..=3 {
        let before = store.queue(&lock).await.unwrap().latest;
        let (entry, _) = stand(&store, "a", one, attempt).await;
        assert!(before < entry.token, "{before} {entry:?}");
        assert!(store.queue(&lock).await.unwrap().latest >= entry.token);
        remove(&store, &entry).await;
        assert!(store.queue(&lock).await.unwrap().latest >= entry.token);
    }
}
