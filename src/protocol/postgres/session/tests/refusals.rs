//! What is refused fails at the server, and is told in its own words.

use super::{BackendMessage, Deliver, Driven, E, FrontendMessage, I, Message, T};

#[test]
fn a_refused_query_fails_at_the_server_and_is_told_in_its_own_words() {
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    let considered = it.consider_query("UPDATE t SET a = 1").unwrap();
    let sent = it.0.refuse(&considered, b"RF001".to_vec());
    assert_eq!((sent[0], &sent[5..]), (b'Q', &b"ringfence: refused\0"[..]));
    assert_eq!(it.error(), Deliver::Replace(b"RF001".to_vec()));
    assert_eq!(it.ready(E), None);
    it.did("ROLLBACK", "ROLLBACK", I);
}

#[test]
fn a_refused_execute_leaves_the_unnamed_statement_and_skips_to_the_sync() {
    let mut it = Driven::new();
    it.parse("", "UPDATE t SET a = 1");
    it.bind("", "");
    let considered = it.0.consider(Message::Execute(b"")).unwrap();
    let sent = it.0.refuse(&considered, b"RF001".to_vec());
    let Ok(FrontendMessage::Parse(parse)) = FrontendMessage::read(sent[0], &sent[5..]) else {
        panic!("no Parse");
    };
    assert!(!parse.statement.is_empty());
    it.run("SELECT 1");
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.reply(BackendMessage::BindComplete);
    assert_eq!(it.error(), Deliver::Replace(b"RF001".to_vec()));
    it.ready(I);
    // The statement of the skipped Parse was never made.
    it.bind("", "");
    assert_eq!(it.execute("").runs[0].statement.operation, "UPDATE");
}

#[test]
fn a_refused_commit_ends_its_transaction() {
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    let considered = it.consider_query("COMMIT").unwrap();
    let sent = it.0.refuse(&considered, b"RF001".to_vec());
    assert!(sent.ends_with(b"ROLLBACK\0"));
    assert_eq!(it.error(), Deliver::Replace(b"RF001".to_vec()));
    assert_eq!(it.reply(BackendMessage::ReadyForQuery(E)), Deliver::Swallow);
    assert_eq!(it.done("ROLLBACK"), Deliver::Swallow);
    assert_eq!(it.ready(I), Some(3));
    // The same in a pipeline: after its Sync.
    it.did("BEGIN", "BEGIN", T);
    it.parse("", "COMMIT");
    it.bind("", "");
    let considered = it.0.consider(Message::Execute(b"")).unwrap();
    let sent = it.0.refuse(&considered, b"RF001".to_vec());
    assert_eq!(sent[0], b'P');
    let considered = it.0.consider(Message::Sync).unwrap();
    let forward = it.0.forward(&considered);
    assert!(forward.after.ends_with(b"ROLLBACK\0"));
    it.reply(BackendMessage::ParseComplete);
    it.reply(BackendMessage::BindComplete);
    assert_eq!(it.error(), Deliver::Replace(b"RF001".to_vec()));
    assert_eq!(it.reply(BackendMessage::ReadyForQuery(E)), Deliver::Swallow);
    it.done("ROLLBACK");
    assert!(it.ready(I).is_some());
}

#[test]
fn what_comes_behind_a_refusal_is_dropped_up_to_the_sync() {
    let mut it = Driven::new();
    let text = "DELETE FROM t";
    it.parse("", text);
    it.bind("", "");
    let considered = it.0.consider(Message::Execute(b"")).unwrap();
    assert_eq!(it.0.skip(Message::Execute(b"")), None);
    it.0.refuse(&considered, vec![7]);
    // It needs no gate, and the server does not get it.
    assert_eq!(it.0.skip(Message::Execute(b"")), Some(vec![]));
    assert_eq!(it.0.skip(Message::Flush), Some(vec![]));
    assert_eq!(it.0.skip(Message::Sync), None);
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.reply(BackendMessage::BindComplete);
    assert_eq!(it.error(), Deliver::Replace(vec![7]));
    it.ready(I);
    assert_eq!(it.0.skip(Message::Execute(b"")), None);
}

#[test]
fn what_is_refused_in_a_failed_pipeline_is_skipped() {
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    it.run("SELECT 1 / 0");
    it.reply(BackendMessage::ParseComplete);
    it.error();
    let considered = it.consider_query("UPDATE t SET a = 1").unwrap();
    assert_eq!(it.0.refuse(&considered, b"RF001".to_vec()), b"");
    let considered = it.0.consider(Message::FunctionCall).unwrap();
    assert_eq!(it.0.refuse(&considered, b"RF001".to_vec()), b"");
    // Nor does a COMMIT of it end anything.
    let considered = it.consider_query("COMMIT").unwrap();
    assert_eq!(it.0.refuse(&considered, b"RF001".to_vec()), b"");
    it.sync();
    it.ready(E);
    assert!(it.0.is_quiet() && it.0.in_block());
    it.did("ROLLBACK", "ROLLBACK", I);
}
