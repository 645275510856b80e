//! COPY in both protocols.

use super::{BackendMessage, Deliver, Driven, E, I, Message, T};

/// pgbouncer PR 1025, pgdog PR 886: Sync right after the Execute of a COPY.
#[test]
fn a_copy_in_ignores_the_sync_before_the_end_of_its_data() {
    let mut it = Driven::new();
    it.run("COPY t FROM STDIN");
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.reply(BackendMessage::BindComplete);
    it.reply(BackendMessage::CopyIn);
    it.send(Message::CopyData);
    it.sync();
    it.send(Message::CopyEnd);
    it.sync();
    it.done("COPY 1");
    it.ready(I);
    assert!(it.0.is_quiet());
    // All of it before the server's first answer.
    it.run("COPY t FROM STDIN");
    it.sync();
    it.send(Message::CopyData);
    it.send(Message::CopyEnd);
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.reply(BackendMessage::BindComplete);
    it.reply(BackendMessage::CopyIn);
    it.done("COPY 1");
    it.ready(I);
    assert!(it.0.is_quiet());
}

/// What is sent behind the data joins the span of the Sync that counts.
#[test]
fn an_ignored_sync_leaves_its_span_to_the_next_one() {
    let mut it = Driven::new();
    it.run("COPY t FROM STDIN");
    it.sync();
    it.send(Message::CopyData);
    it.send(Message::CopyEnd);
    let span = it.0.span();
    it.run("UPDATE t SET a = 1");
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.reply(BackendMessage::BindComplete);
    it.reply(BackendMessage::CopyIn);
    it.done("COPY 1");
    it.ran("UPDATE 1");
    assert_eq!(it.ready(I), Some(span));
    assert!(it.0.is_quiet());
    // A COMMIT that is refused there is followed by a ROLLBACK all the same.
    it.did("BEGIN", "BEGIN", T);
    it.run("COPY t FROM STDIN");
    it.sync();
    it.send(Message::CopyEnd);
    it.parse("", "COMMIT");
    it.bind("", "");
    let considered = it.0.consider(Message::Execute(b"")).unwrap();
    it.0.refuse(&considered, b"RF001".to_vec());
    let sync = it.0.consider(Message::Sync).unwrap();
    it.0.forward(&sync);
    it.reply(BackendMessage::ParseComplete);
    it.reply(BackendMessage::BindComplete);
    it.reply(BackendMessage::CopyIn);
    it.done("COPY 0");
    it.reply(BackendMessage::ParseComplete);
    it.reply(BackendMessage::BindComplete);
    assert_eq!(it.error(), Deliver::Replace(b"RF001".to_vec()));
    assert_eq!(it.reply(BackendMessage::ReadyForQuery(E)), Deliver::Swallow);
    it.done("ROLLBACK");
    assert!(it.ready(I).is_some());
}

/// rust-postgres PR 1337: a COPY that fails before it takes data answers both Syncs; pgbouncer PR
/// 1471: the data and its end come after the error.
#[test]
fn a_copy_that_fails_at_once_answers_every_sync() {
    let mut it = Driven::new();
    it.run("COPY no_table FROM STDIN");
    it.sync();
    it.send(Message::CopyEnd);
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.error();
    it.ready(I);
    it.ready(I);
    assert!(it.0.is_quiet());
    it.query("COPY no_table FROM STDIN");
    it.error();
    it.ready(I);
    it.send(Message::CopyData);
    it.send(Message::CopyEnd);
    assert!(it.0.is_quiet());
    it.did("SELECT 1", "SELECT 1", I);
}

#[test]
fn a_refusal_behind_data_that_nobody_took_is_told() {
    let mut it = Driven::new();
    it.run("COPY no_table FROM STDIN");
    it.sync();
    it.send(Message::CopyEnd);
    let considered = it.consider_query("UPDATE t SET a = 1").unwrap();
    it.0.refuse(&considered, b"RF001".to_vec());
    it.reply(BackendMessage::ParseComplete);
    it.error();
    it.ready(I);
    assert_eq!(it.error(), Deliver::Replace(b"RF001".to_vec()));
    it.ready(I);
}

#[test]
fn a_simple_copy_fails_in_its_data() {
    let mut it = Driven::new();
    it.query("COPY t FROM STDIN");
    it.reply(BackendMessage::CopyIn);
    assert!(!it.0.is_quiet());
    assert!(it.consider_query("SELECT 1").is_err());
    it.send(Message::CopyData);
    it.error();
    it.ready(I);
    it.send(Message::CopyEnd);
    it.did("SELECT 1", "SELECT 1", I);
}

/// Whatever Sync is ignored: a Query has a ReadyForQuery of its own.
#[test]
fn a_simple_copy_ends_with_its_data() {
    let mut it = Driven::new();
    // All at once, with another query behind it.
    it.query("COPY t FROM STDIN");
    it.sync();
    it.send(Message::CopyData);
    it.sync();
    it.send(Message::CopyEnd);
    it.query("SELECT 1");
    it.reply(BackendMessage::CopyIn);
    it.done("COPY 1");
    it.ready(I);
    it.done("SELECT 1");
    it.ready(I);
    assert!(it.0.is_quiet() && !it.0.is_in_pipeline());
    // Two of them, with a Sync in the second.
    it.query("COPY t FROM STDIN; COPY t FROM STDIN");
    it.send(Message::CopyEnd);
    it.sync();
    it.send(Message::CopyEnd);
    for _ in 0..2 {
        it.reply(BackendMessage::CopyIn);
        assert!(!it.0.is_copying());
        it.done("COPY 0");
    }
    it.ready(I);
    it.query("COPY t FROM STDIN; COPY t FROM STDIN");
    for _ in 0..2 {
        it.reply(BackendMessage::CopyIn);
        assert!(it.0.is_copying());
        it.sync();
        it.send(Message::CopyEnd);
        it.done("COPY 0");
    }
    it.ready(I);
    assert!(it.0.is_quiet() && !it.0.is_in_pipeline());
    // With a Sync behind it, which counts.
    it.query("COPY t FROM STDIN");
    it.sync();
    it.send(Message::CopyEnd);
    it.sync();
    it.reply(BackendMessage::CopyIn);
    it.done("COPY 0");
    it.ready(I);
    it.ready(I);
    // Its end comes after the server has said that it copies.
    it.query("COPY t FROM STDIN");
    it.sync();
    it.reply(BackendMessage::CopyIn);
    it.send(Message::CopyEnd);
    it.done("COPY 0");
    it.ready(I);
    assert!(it.0.is_quiet() && !it.0.is_in_pipeline());
}
