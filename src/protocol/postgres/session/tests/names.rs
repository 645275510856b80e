//! Names of statements and portals, and what they mean.

use super::{
    BackendMessage, Bind, ClosedKind, Considered, Driven, FrontendMessage, I, Message, of,
};

/// pgcat PR 953: postgres.js asks to describe first, with Flush.
#[test]
fn a_statement_is_described_before_it_is_bound() {
    let mut it = Driven::new();
    it.parse("s", "SELECT $1");
    it.send(Message::Describe(ClosedKind::Portal, b""));
    it.send(Message::Flush);
    it.reply(BackendMessage::ParseComplete);
    it.reply(BackendMessage::ParameterDescription);
    it.reply(BackendMessage::RowDescription);
    assert!(it.0.is_quiet());
    it.bind("", "s");
    it.execute("");
    it.sync();
    it.reply(BackendMessage::BindComplete);
    it.reply(BackendMessage::DataRow);
    it.done("SELECT 1");
    it.ready(I);
}

#[test]
fn a_name_that_may_mean_two_statements_runs_both() {
    let mut it = Driven::new();
    it.parse("s", "DELETE FROM t");
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.ready(I);
    // It exists: this Parse will fail, and what it says is not what will run.
    it.parse("s", "SELECT 1");
    it.sync();
    it.bind("", "s");
    let operations = |it: &Considered| -> Vec<&str> {
        it.runs.iter().map(|run| run.statement.operation).collect()
    };
    assert_eq!(operations(&it.execute("")), ["SELECT", "DELETE"]);
    it.sync();
    it.error();
    it.ready(I);
    it.reply(BackendMessage::BindComplete);
    it.done("DELETE 1");
    it.ready(I);
    it.bind("", "s");
    assert_eq!(operations(&it.execute("")), ["DELETE"]);
}

/// pgbouncer issue 1535: DEALLOCATE ALL, then Parse, in one pipeline.
#[test]
fn statements_are_forgotten_when_the_server_forgets_them() {
    let mut it = Driven::new();
    it.parse("s", "DELETE FROM t");
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.ready(I);
    it.run("DEALLOCATE ALL");
    it.parse("s", "SELECT 1");
    it.sync();
    it.ran("DEALLOCATE ALL");
    it.reply(BackendMessage::ParseComplete);
    it.ready(I);
    it.bind("", "s");
    assert_eq!(it.execute("").runs.len(), 1);
    let mut it = Driven::new();
    it.did("PREPARE p AS DELETE FROM t", "PREPARE", I);
    let execute = it.did("EXECUTE p", "DELETE 1", I);
    assert_eq!(execute.runs[0].executed[0].operation, "DELETE");
    it.query("PREPARE q AS DELETE FROM t; EXECUTE q");
    it.done("PREPARE");
    it.done("DELETE 1");
    it.ready(I);
    // What a code block did to the names is not seen.
    it.did("DO $$ $$", "DO", I);
    assert!(it.query("EXECUTE p").runs[0].executed.is_empty());
}

#[test]
fn a_portal_of_an_unknown_statement_is_unknown() {
    let mut it = Driven::new();
    it.run("SELECT 1");
    it.bind("", "made by a function");
    assert!(it.execute("").runs[0].statement.uses.everything.is_some());
    let unknown = it.0.consider(Message::Execute(b"cursor")).unwrap();
    assert!(unknown.runs[0].statement.uses.everything.is_some());
    assert!(
        it.0.consider(Message::FunctionCall).unwrap().runs[0]
            .statement
            .uses
            .everything
            .is_some()
    );
}

#[test]
fn the_values_of_a_bind_set_a_ticket() {
    let mut it = Driven::new();
    it.parse("", "SELECT set_config('ringfence.token', $1, false)");
    let payload = b"\0\0\0\0\0\x01\0\0\0\x01a\0\0";
    let Ok(FrontendMessage::Bind(bind)) = FrontendMessage::read(b'B', payload) else {
        panic!("no Bind");
    };
    let _: &Bind<'_> = &bind;
    it.send(Message::Bind(&bind));
    assert_eq!(of(&it.execute("")), ["a"]);
    it.sync();
    it.ran("SELECT 1");
    it.ready(I);
    assert_eq!(it.tickets(), "a");
}

#[test]
fn names_are_those_that_the_server_keeps() {
    let operation = |considered: &Considered| considered.runs[0].statement.operation;
    let long = "a".repeat(63);
    let mut it = Driven::new();
    it.parse(&format!("{long}1"), "SELECT 1");
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.ready(I);
    // Another name of the same beginning, once SQL has forgotten the first.
    it.did(&format!("DEALLOCATE {long}"), "DEALLOCATE", I);
    it.parse(&format!("{long}2"), "DELETE FROM t");
    it.bind(&format!("{long}p"), &format!("{long}1"));
    assert_eq!(operation(&it.execute(&format!("{long}q"))), "DELETE");
}
