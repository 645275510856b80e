//! What was shown when a snapshot was taken, in a cursor or for export: never more than the gate
//! was asked for, whatever fails on the way.

use super::{BackendMessage, Driven, I, Message, T};

const HOLD: &str = "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 1; COMMIT";

fn under(ticket: &str) -> Driven {
    let mut it = Driven::new();
    set(&mut it, ticket);
    it.done("SET");
    it.ready(I);
    it
}

fn set(it: &mut Driven, ticket: &str) {
    it.query(&format!("SET ringfence.token = '{ticket}'"));
}

#[test]
fn what_exports_a_snapshot_does_not_pass_for_what_its_name_meant_before() {
    let mut it = under("a");
    it.parse("s", "SELECT 'X'");
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.ready(I);
    // It fails: there is one of this name.
    it.parse("s", "SELECT pg_catalog.pg_export_snapshot()");
    it.sync();
    it.query("BEGIN");
    it.bind("", "s");
    it.0.consider(Message::Execute(b"")).unwrap_err();
}

#[test]
fn an_exported_snapshot_is_of_the_tickets_that_were_settled() {
    let mut it = under("b");
    it.query("SET ringfence.token = 'a'; SELECT 1 / 0");
    it.query("BEGIN ISOLATION LEVEL REPEATABLE READ");
    it.query("SELECT pg_catalog.pg_export_snapshot()");
    it.done("SET");
    it.error();
    it.ready(I);
    it.done("BEGIN");
    it.ready(T);
    let shown = it.0.exports().unwrap();
    assert_eq!(shown[0].as_slice().join(","), "a");
}

#[test]
fn a_portal_that_may_not_be_made_hides_no_cursor() {
    let mut it = under("a");
    it.query(HOLD);
    set(&mut it, "b");
    it.parse("", "SELECT 1");
    it.bind("c", "");
    it.sync();
    it.consider_query("FETCH c").unwrap_err();
}

#[test]
fn a_cursor_whose_end_may_fail_is_there() {
    let mut it = under("a");
    it.query(HOLD);
    it.query("BEGIN; SELECT 1 / 0");
    it.query("CLOSE c");
    it.query("ROLLBACK");
    set(&mut it, "b");
    it.consider_query("FETCH c").unwrap_err();
}

#[test]
fn a_name_in_another_encoding_may_be_any_cursor() {
    let mut it = under("a");
    it.query(HOLD);
    for tag in ["BEGIN", "DECLARE CURSOR", "COMMIT"] {
        it.done(tag);
    }
    it.ready(I);
    set(&mut it, "b");
    it.0.consider(Message::Execute(b"\xe9")).unwrap_err();
}

#[test]
fn a_portal_ends_with_its_transaction_whatever_follows() {
    let ways: [&[&str]; 4] = [
        &["COMMIT AND CHAIN"],
        &["ROLLBACK", "BEGIN"],
        &["SAVEPOINT s", "CLOSE ALL"],
        &["DISCARD ALL", "BEGIN"],
    ];
    for texts in ways {
        let mut it = under("a");
        it.did("BEGIN", "BEGIN", T);
        it.parse("", "SHOW search_path");
        it.bind("p", "");
        it.sync();
        it.reply(BackendMessage::ParseComplete);
        it.reply(BackendMessage::BindComplete);
        it.ready(T);
        assert_eq!(it.execute("p").runs[0].statement.operation, "SHOW");
        it.sync();
        it.done("SHOW");
        it.ready(T);
        it.query(&texts.join("; "));
        for text in texts {
            it.done(text);
        }
        it.ready(T);
        // What the server knows of it is not known here.
        assert_eq!(it.execute("p").runs[0].statement.operation, "unknown");
    }
}

#[test]
fn a_portal_that_may_have_ended_hides_no_cursor() {
    let mut it = under("a");
    it.parse("", "SHOW search_path");
    it.bind("p", "");
    it.sync();
    it.query("BEGIN; DECLARE p CURSOR FOR SELECT 1");
    set(&mut it, "b");
    // None of it is answered yet.
    it.0.consider(Message::Execute(b"p")).unwrap_err();
}

/// In a block, bound and not begun.
fn with_portal(text: &str) -> Driven {
    let mut it = under("a");
    it.did("BEGIN", "BEGIN", T);
    it.parse("", text);
    it.bind("p", "");
    it.sync();
    it
}

#[test]
fn a_portal_is_begun_by_whatever_reads_some_of_it() {
    let later = "SET LOCAL ringfence.token = 'b'";
    for text in [
        "EXECUTE s",
        "UPDATE t SET a = 1 RETURNING a",
        "EXPLAIN SELECT 1",
    ] {
        // All of it, and nothing is answered yet.
        let mut it = with_portal(text);
        it.send(Message::ExecuteSome(b"p"));
        it.query(later);
        it.0.consider(Message::Execute(b"p")).unwrap_err();
        it.0.consider(Message::ExecuteSome(b"p")).unwrap_err();
        it.consider_query("FETCH p").unwrap_err();
        // What is bound anew begins anew.
        it.parse("", text);
        it.bind("p", "");
        it.execute("p");
        let mut it = with_portal(text);
        it.query("FETCH p");
        it.query(later);
        it.0.consider(Message::Execute(b"p")).unwrap_err();
        // In one text.
        let it = with_portal(text);
        let both = format!("FETCH p; {later}; FETCH p");
        it.consider_query(&both).unwrap_err();
        it.consider_query(&format!("{later}; FETCH p; FETCH p"))
            .unwrap();
        // By way of another one.
        let mut it = with_portal(text);
        it.parse("", "FETCH p");
        it.bind("q", "");
        it.query("FETCH q");
        it.query(later);
        it.0.consider(Message::Execute(b"p")).unwrap_err();
        // Begun under the later one.
        let mut it = with_portal(text);
        it.query(later);
        it.send(Message::ExecuteSome(b"p"));
        it.execute("p");
    }
}

/// The same pointer must not stand for what was begun.
#[test]
fn a_portal_that_was_begun_is_not_recalled_as_one_that_was_not() {
    let update = "UPDATE t SET a = 1 RETURNING a";
    let mut it = under("a");
    it.parse("s", update);
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.ready(I);
    let bound = |it: &mut Driven| {
        it.bind("", "s");
        it.reply(BackendMessage::BindComplete);
    };
    for _ in 0..2 {
        // Not begun before the ticket: it is remembered that nothing is wrong with that.
        it.did("BEGIN", "BEGIN", T);
        bound(&mut it);
        it.parse("set", "SET LOCAL ringfence.token = 'b'");
        it.bind("set", "set");
        it.execute("set");
        it.execute("");
        it.send(Message::Close(super::ClosedKind::Statement, b"set"));
        it.sync();
        it.ran("SET");
        it.done("UPDATE 1");
        it.reply(BackendMessage::CloseComplete);
        it.ready(T);
        it.did("ROLLBACK", "ROLLBACK", I);
        // Begun before it.
        it.did("BEGIN", "BEGIN", T);
        bound(&mut it);
        it.send(Message::ExecuteSome(b""));
        it.parse("set", "SET LOCAL ringfence.token = 'b'");
        it.bind("set", "set");
        it.execute("set");
        super::consider(&mut it.0, Message::Execute(b"")).unwrap_err();
        it.send(Message::Close(super::ClosedKind::Statement, b"set"));
        it.sync();
        it.reply(BackendMessage::PortalSuspended);
        it.ran("SET");
        it.reply(BackendMessage::CloseComplete);
        it.ready(T);
        it.did("ROLLBACK", "ROLLBACK", I);
    }
}
