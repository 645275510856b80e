//! A client whose transaction was rolled back under it.

use super::{
    BackendMessage, Classified, Deliver, Driven, E, I, Message, T, Unreadable, error_response,
};

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
    assert!(it.0.forward(&considered).before.ends_with(b"BEGIN\0"));
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

#[test]
fn the_error_of_a_pipeline_without_a_block_ends_its_transaction() {
    let ended = |it: &mut Driven| {
        let bytes = error_response(&[(b'C', "XX000")]);
        let error = BackendMessage::read(b'E', &bytes[5..]).unwrap();
        it.0.reply(&error).unwrap().ended
    };
    let mut it = Driven::new();
    let update = it.0.span();
    it.run("UPDATE t SET a = 1");
    it.ran("UPDATE 1");
    it.run("SELECT 1/0");
    it.reply(BackendMessage::ParseComplete);
    it.reply(BackendMessage::BindComplete);
    assert_eq!(ended(&mut it), Some(update));
    it.sync();
    assert_eq!(it.ready(I), Some(update));
    // A block may go on from a savepoint.
    it.did("BEGIN", "BEGIN", T);
    it.run("SELECT 1/0");
    assert_eq!(ended(&mut it), None);
    it.sync();
    it.ready(E);
    it.did("ROLLBACK", "ROLLBACK", I);
    // What was not read may have begun one.
    let unread = Classified::unseen(Unreadable::TooLong, 5);
    it.send(Message::Parse(b"", b"BEGIN", &unread));
    it.bind("", "");
    it.execute("");
    it.ran("BEGIN");
    it.run("SELECT 1/0");
    assert_eq!(ended(&mut it), None);
}

#[test]
fn a_failed_pipeline_of_a_block_is_ended_and_the_rest_of_it_skipped() {
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    it.run("SELECT 1/0");
    assert!(!it.0.awaits_sync_only() || it.0.is_quiet());
    assert_eq!(it.error(), Deliver::Pass);
    assert!(it.0.awaits_sync_only());
    assert_eq!(it.0.skip(Message::Sync), None);
    assert_eq!(it.0.end_pipeline()[0], b'S');
    assert_eq!(it.reply(BackendMessage::ReadyForQuery(E)), Deliver::Swallow);
    assert!(it.0.is_quiet() && it.0.in_block());
    it.0.roll_back(vec![]);
    assert_eq!(it.done("ROLLBACK"), Deliver::Swallow);
    assert_eq!(it.reply(BackendMessage::ReadyForQuery(I)), Deliver::Swallow);
    // The client has not got to its Sync yet, and believes in a failed block.
    assert_eq!(it.0.skip(Message::Execute(b"")), Some(vec![]));
    let sent = it.0.skip(Message::Sync).unwrap();
    assert_eq!((sent[0], sent[sent.len() - 5]), (b'Q', b'S'));
    assert_eq!(it.done("BEGIN"), Deliver::Swallow);
    assert_eq!(it.reply(BackendMessage::ReadyForQuery(T)), Deliver::Swallow);
    assert_eq!(it.error(), Deliver::Replace(vec![]));
    it.ready(E);
    assert_eq!(it.0.skip(Message::Sync), None);
    it.did("ROLLBACK", "ROLLBACK", I);
}

#[test]
fn a_sync_that_comes_before_the_roll_back_is_answered_by_the_server() {
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    it.run("SELECT 1/0");
    it.error();
    it.0.end_pipeline();
    assert_eq!(it.0.skip(Message::Sync).unwrap()[0], b'S');
    assert_eq!(it.reply(BackendMessage::ReadyForQuery(E)), Deliver::Swallow);
    it.ready(E);
    assert!(it.0.is_quiet() && it.0.in_block());
}
