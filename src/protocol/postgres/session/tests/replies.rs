//! Whose reply is whose.

use super::{BackendMessage, ClosedKind, Deliver, Driven, I, Message, T, error_response};
use crate::protocol::postgres::session::STEPS_MAX;

/// pgbouncer issue 223: a ReadyForQuery that nothing asked for; pgcat PR 137.
#[test]
fn replies_that_nothing_asked_for_end_the_session() {
    let ready = || BackendMessage::ReadyForQuery(I);
    assert!(Driven::new().try_reply(ready()).is_err());
    let mut it = Driven::new();
    it.run("SELECT 1");
    assert!(it.try_reply(ready()).is_err());
    let mut it = Driven::new();
    it.query("SELECT 1; SELECT 2");
    it.done("SELECT 1");
    assert!(it.try_reply(ready()).is_err());
    let mut it = Driven::new();
    it.query("SELECT 1");
    it.done("SELECT 1");
    assert!(
        it.try_reply(BackendMessage::CommandComplete { tag: b"X" })
            .is_err()
    );
    assert!(
        Driven::new()
            .try_reply(BackendMessage::ParseComplete)
            .is_err()
    );
    let bytes = error_response(&[(b'V', "FATAL"), (b'C', "57P01")]);
    let fatal = BackendMessage::read(b'E', &bytes[5..]).unwrap();
    assert_eq!(Driven::new().try_reply(fatal), Ok(Deliver::Pass));
    // These come at any time.
    assert_eq!(
        Driven::new().try_reply(BackendMessage::Notification),
        Ok(Deliver::Pass)
    );
}

/// odyssey 1361: Close after a Parse that failed.
#[test]
fn messages_after_an_error_are_skipped_to_the_sync() {
    let mut it = Driven::new();
    it.parse("s", "SELEC");
    it.error();
    it.send(Message::Close(ClosedKind::Statement, b"s"));
    it.run("SET ringfence.token = 'a'");
    it.sync();
    it.ready(I);
    assert_eq!(it.tickets(), "");
    assert!(it.0.is_quiet());
}

/// odyssey 514: one error, then the Sync; another error, at the commit, belongs to the same span.
#[test]
fn a_deferred_error_comes_at_the_sync() {
    let mut it = Driven::new();
    it.run("SET ringfence.token = 'a'");
    it.sync();
    it.ran("SET");
    assert_eq!(it.error(), Deliver::Pass);
    it.ready(I);
    assert_eq!(it.tickets(), "");
    assert!(it.0.is_quiet());
}

/// pgdog issue 999: Parse and Bind within a BEGIN of the simple protocol.
#[test]
fn both_protocols_share_a_transaction() {
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    assert!(!it.run("UPDATE t SET a = 1").asks);
    it.sync();
    it.ran("UPDATE 1");
    assert_eq!(it.ready(T), None);
    it.did("COMMIT", "COMMIT", I);
}

/// A simple query within a failed pipeline is skipped as well.
#[test]
fn a_query_in_a_failed_pipeline_has_no_answer() {
    let mut it = Driven::new();
    it.run("SELECT 1/0");
    it.query("SELECT 1");
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.error();
    it.ready(I);
    assert!(it.0.is_quiet());
    it.run("SELECT 1");
    it.query("SELECT 1");
    it.sync();
    it.ran("SELECT 1");
    it.done("SELECT 1");
    it.ready(I);
    it.ready(I);
    assert!(it.0.is_quiet());
}

/// An error of the query itself skips nothing.
#[test]
fn a_query_that_fails_behind_a_pipeline_is_answered() {
    let mut it = Driven::new();
    it.run("SELECT 1");
    it.query("SELECT 1/0");
    it.run("SELECT 2");
    it.sync();
    it.ran("SELECT 1");
    it.error();
    it.ready(I);
    it.ran("SELECT 1");
    it.ready(I);
    assert!(it.0.is_quiet());
}

/// A span of so many answers, of which the first is an error.
fn failing(it: &mut Driven, answers: usize) {
    it.send(Message::Describe(ClosedKind::Statement, b"nope"));
    for _ in 1..answers {
        it.send(Message::Close(ClosedKind::Portal, b""));
    }
    it.sync();
}

#[test]
fn failures_that_are_told_together_are_looked_ahead_from_once() {
    let mut it = Driven::new();
    for _ in 0..300 {
        failing(&mut it, 40);
    }
    let error = error_response(&[(b'C', "26000")]);
    for _ in 0..200 {
        let error = BackendMessage::read(b'E', &error[5..]).unwrap();
        it.0.reply(&error).unwrap();
        it.0.reply(&BackendMessage::ReadyForQuery(I)).unwrap();
    }
    assert_eq!(it.0.catch_up(), 100 * 40);
    assert_eq!(it.0.catch_up(), 0);
}

#[test]
fn so_many_answers_are_awaited_and_no_more() {
    let mut it = Driven::new();
    let mut spans = 0;
    while it.0.has_room() {
        failing(&mut it, 1000);
        spans += 1;
    }
    assert_eq!(spans, STEPS_MAX.div_ceil(1000));
    it.error();
    it.ready(I);
    assert!(it.0.has_room());
}
