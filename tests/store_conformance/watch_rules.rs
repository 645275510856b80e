//! The watch.

use futures::future::join_all;
use ringfence::store::Event;

use crate::fixture::{Fixture, Mirror, queue, remove, session, stand};

pub async fn a_watch_tells_what_exists_and_then_every_change_in_order(fixture: Fixture) {
    let store = fixture.store();
    let (one, two) = (session(&store).await, session(&store).await);
    let (first, _) = stand(&store, "a", one, 1).await;
    let (other, _) = stand(&store, "b/c", one, 1).await;
    let mut mirror = Mirror::start(&store).await;
    assert_eq!(mirror.of("a"), std::slice::from_ref(&first));
    assert_eq!(mirror.of("b/c"), [other]);
    assert_eq!(mirror.entries.len(), 2);
    let (second, _) = stand(&store, "a", two, 1).await;
    let (rewritten, _) = stand(&store, "a", one, 1).await;
    remove(&store, &rewritten).await;
    remove(&store, &rewritten).await;
    let (third, _) = stand(&store, "a", one, 3).await;
    let gone = Event::Gone {
        lock: first.lock,
        session: one,
        token: first.token,
    };
    let expected = [
        Event::Put(second),
        Event::Put(rewritten),
        gone,
        Event::Put(third),
    ];
    for event in expected {
        assert_eq!(mirror.next().await, event);
    }
    assert_eq!(mirror.of("a"), queue(&store, "a").await);
    assert_eq!(mirror.resets, 1);
}

pub async fn a_watch_tells_the_end_of_a_session_for_every_lock(fixture: Fixture) {
    let store = fixture.store();
    let (one, two) = (session(&store).await, session(&store).await);
    let mut mirror = Mirror::start(&store).await;
    for lock in ["a", "b", "c"] {
        stand(&store, lock, one, 1).await;
        stand(&store, lock, two, 1).await;
    }
    mirror.until(|mirror| mirror.entries.len() == 6).await;
    store.close_session(one).await.unwrap();
    mirror.until(|mirror| mirror.entries.len() == 3).await;
    assert!(mirror.entries.values().all(|entry| entry.session == two));
}

pub async fn two_watches_see_the_same(fixture: Fixture) {
    let store = fixture.store();
    let one = session(&store).await;
    let (mut left, mut right) = (Mirror::start(&store).await, Mirror::start(&store).await);
    let (entry, _) = stand(&store, "a", one, 1).await;
    assert_eq!(left.next().await, Event::Put(entry.clone()));
    // The end of one reader is nothing to the other.
    drop(left);
    remove(&store, &entry).await;
    assert_eq!(right.next().await, Event::Put(entry));
    right.until(|mirror| mirror.entries.is_empty()).await;
}

pub async fn a_watch_that_is_read_late_ends_up_right(fixture: Fixture) {
    const SESSIONS: usize = 16;
    const ROUNDS: u64 = 40;
    let store = fixture.store();
    let mut mirror = Mirror::start(&store).await;
    let sessions = join_all((0..SESSIONS).map(|_| session(&store))).await;
    let rounds = sessions.iter().enumerate().map(|(index, one)| {
        let store = &store;
        async move {
            for round in 1..=ROUNDS {
                let lock = format!("lock/{}", (index as u64 + round) % 5);
                let (entry, _) = stand(store, &lock, *one, round).await;
                remove(store, &entry).await;
            }
            stand(store, &format!("kept/{}", index % 3), *one, 1).await;
        }
    });
    join_all(rounds).await;
    let kept = |mirror: &Mirror| {
        (0..3)
            .map(|lock| mirror.of(&format!("kept/{lock}")).len())
            .sum::<usize>()
    };
    mirror.until(|mirror| kept(mirror) == SESSIONS).await;
    for lock in ["kept/0", "kept/1", "kept/2"] {
        assert_eq!(mirror.of(lock), queue(&store, lock).await);
    }
}
