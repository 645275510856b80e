//! Rules of the mirror that the conformance suite cannot see from outside.

use std::time::Duration;

use super::state::{RELEASED_PER_SESSION_MAX, State};
use crate::lock_name::LockName;
use crate::store::{Enqueue, Enqueued, Entry, Remove, SessionId, StoreError};
use crate::token::Token;

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn enqueue(state: &mut State, lock: &LockName, attempt: u64) -> Entry {
    let enqueued = state.enqueue(Enqueue {
        lock: lock.clone(),
        session: SessionId(1),
        attempt,
        holder: String::new(),
        only_if_first: false,
    });
    match enqueued {
        Ok(Enqueued::Standing { entry, .. }) => entry,
        other => panic!("not standing: {other:?}"),
    }
}

fn remove(state: &mut State, entry: &Entry) {
    let removed = state.remove(&Remove {
        lock: entry.lock.clone(),
        session: entry.session,
        token: entry.token,
        only_version: None,
    });
    assert!(removed.removed);
}

#[test]
fn an_entry_that_comes_and_goes_in_one_group_costs_one_change_of_each_key() {
    let mut state = State::default();
    state.open_session(1, Duration::from_secs(1)).unwrap();
    state.take_changes();
    let entry = enqueue(&mut state, &name("a"), 1);
    remove(&mut state, &entry);
    let changes = state.take_changes();
    assert_eq!(changes.entries.into_values().collect::<Vec<_>>(), [None]);
    assert_eq!(changes.released.len(), 1);
    assert_eq!(changes.sequence, Some(entry.token.get()));
    assert_eq!(state.event_count(), 2);
}

#[test]
fn the_longest_released_attempt_is_forgotten_past_the_limit_on_disk_too() {
    let mut state = State::default();
    state.open_session(1, Duration::from_secs(1)).unwrap();
    for number in 0..RELEASED_PER_SESSION_MAX {
        let entry = enqueue(&mut state, &name(&format!("job/{number}")), 1);
        remove(&mut state, &entry);
    }
    // Released again, it is the latest.
    let entry = enqueue(&mut state, &name("job/0"), 2);
    remove(&mut state, &entry);
    state.take_changes();
    let entry = enqueue(&mut state, &name("one-more"), 1);
    remove(&mut state, &entry);
    let changes = state.take_changes();
    assert_eq!(changes.released.get(&(1, name("job/1"))), Some(&None));
    assert_eq!(changes.released.len(), 2);
    // The session's end removes what is left.
    state.close_session(1);
    let changes = state.take_changes();
    assert_eq!(changes.released.len(), RELEASED_PER_SESSION_MAX);
    assert!(
        changes
            .released
            .into_values()
            .all(|released| released.is_none())
    );
}

#[test]
fn used_up_tokens_refuse_and_change_nothing() {
    let mut state = State::default();
    state.open_session(1, Duration::from_secs(1)).unwrap();
    assert!(matches!(
        state.raise_above(Token::MAX),
        Err(StoreError::Refused(_))
    ));
    state
        .raise_above(Token::new(Token::MAX.get() - 1).unwrap())
        .unwrap();
    let last = enqueue(&mut state, &name("a"), 1);
    assert_eq!(last.token, Token::MAX);
    state.take_changes();
    let refused = state.enqueue(Enqueue {
        lock: name("b"),
        session: SessionId(1),
        attempt: 1,
        holder: String::new(),
        only_if_first: false,
    });
    assert!(
        matches!(refused, Err(StoreError::Refused(_))),
        "{refused:?}"
    );
    assert!(state.take_changes().is_empty());
}
