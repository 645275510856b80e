//! A client whose transaction was rolled back under it.

use super::{BackendMessage, Deliver, Driven, E, I, Message, T};

fn rolled_back() -> Driven {
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    it.did("SET LOCAL ringfence.token = 'a'", "SET", T);
    assert!(it.0.is_quiet());
    assert!(it.0.roll_back(vec![]).ends_with(b"ROLLBACK\0"));
    assert_eq!(it.done("ROLLBACK"), Deliver::Swallow);
    assert_eq!(it.reply(BackendMessage::ReadyForQuery(I)), Deliver::Swallow);
    it
}

#[test]
fn a_client_that_was_rolled_back_gets_the_state_that_it_expects() {
    // Its next statement fails in a transaction, which it ends itself.
    let mut it = rolled_back();
    let considered = it.consider_query("UPDATE t SET a = 1").unwrap();
    assert!(considered.rolled_back && !considered.only_rolls_back());
    let sent = it.0.refuse(&considered, b"RF001".to_vec());
    assert!(sent.windows(6).any(|window| window == b"BEGIN\0"));
    assert_eq!(it.done("BEGIN"), Deliver::Swallow);
    assert_eq!(it.reply(BackendMessage::ReadyForQuery(T)), Deliver::Swallow);
    assert_eq!(it.error(), Deliver::Replace(b"RF001".to_vec()));
    it.ready(E);
    let rollback = it.did("ROLLBACK", "ROLLBACK", I);
    assert!(!rollback.rolled_back);
    assert!(!it.did("SELECT 1", "SELECT 1", I).rolled_back);
    // A ROLLBACK has something to end.
    let mut it = rolled_back();
    let considered = it.consider_query("ROLLBACK").unwrap();
    assert!(considered.only_rolls_back());
    assert!(it.0.forward(considered).before.ends_with(b"BEGIN\0"));
    it.done("BEGIN");
    assert_eq!(it.reply(BackendMessage::ReadyForQuery(T)), Deliver::Swallow);
    assert_eq!(it.done("ROLLBACK"), Deliver::Pass);
    it.ready(I);
    assert_eq!(it.tickets(), "");
}

#[test]
fn a_pipeline_of_a_client_that_was_rolled_back_runs_nothing() {
    let mut it = rolled_back();
    it.parse("", "UPDATE t SET a = 1");
    it.bind("", "");
    let considered = it.0.consider(Message::Execute(b"")).unwrap();
    assert!(considered.rolled_back && !considered.only_rolls_back());
    it.0.refuse(&considered, b"RF001".to_vec());
    it.sync();
    it.done("BEGIN");
    assert_eq!(it.reply(BackendMessage::ReadyForQuery(T)), Deliver::Swallow);
    it.reply(BackendMessage::ParseComplete);
    it.reply(BackendMessage::BindComplete);
    assert_eq!(it.error(), Deliver::Replace(b"RF001".to_vec()));
    it.ready(E);
}

/// A ROLLBACK in the middle of a pipeline commits at servers before 17.
#[test]
fn a_pipeline_without_its_sync_is_failed_and_not_rolled_back() {
    let mut it = Driven::new();
    it.run("UPDATE t SET a = 1");
    assert!(!it.0.is_quiet());
    it.ran("UPDATE 1");
    assert!(it.0.is_quiet() && it.0.in_transaction());
    let sent = it.0.roll_back(b"RF001".to_vec());
    assert_eq!(sent[0], b'P');
    assert_eq!(it.error(), Deliver::Replace(b"RF001".to_vec()));
    assert!(!it.0.is_quiet());
    it.run("UPDATE t SET a = 2");
    it.sync();
    it.ready(I);
    assert!(it.0.is_quiet() && !it.0.in_transaction());
    // A block that the same pipeline began is rolled back.
    it.run("BEGIN");
    it.ran("BEGIN");
    assert!(it.0.roll_back(vec![]).ends_with(b"ROLLBACK\0"));
    assert_eq!(it.done("ROLLBACK"), Deliver::Swallow);
    assert_eq!(it.reply(BackendMessage::ReadyForQuery(I)), Deliver::Swallow);
    let considered = it.consider_query("UPDATE t SET a = 2").unwrap();
    assert!(considered.rolled_back);
}

#[test]
#[should_panic = "nothing runs"]
fn what_was_rolled_back_is_never_forwarded() {
    rolled_back().query("UPDATE t SET a = 1");
}
