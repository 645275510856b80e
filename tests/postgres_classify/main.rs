//! The Postgres core against a real server. What it calls a read must succeed in a READ ONLY
//! transaction, where Postgres itself refuses what writes; a ticket must count for exactly as long
//! as the server keeps a parameter (`scope`); and what the server answers must be what the session
//! awaits, whatever is pipelined, refused and rolled back (`pipeline`).
//!
//! The catalog is loaded from the same server, so that names and functions resolve as they do
//! there.

mod catalog;
mod pipeline;
#[path = "../support/postgres/mod.rs"]
mod postgres;
#[path = "../support/random.rs"]
mod random;
mod scope;
mod server;
mod sqlsmith;
mod statements;

use ringfence::protocol::Unmatched;
use ringfence::protocol::postgres::classify::{Classifier, Lexing};
use ringfence::protocol::postgres::resolve::{
    Catalog, PostgresRule, PostgresRules, Required, View, resolve,
};
use ringfence::protocol::postgres::session::may_turn_read_write;

use server::{Answer, Server};

fn rules() -> PostgresRules {
    let rule = PostgresRule::new(Some("postgres"), None, None, "all").unwrap();
    PostgresRules::new(vec![rule], Unmatched::Reject)
}

/// What the statements of a fresh session are resolved against.
fn view<'v>(catalog: &'v Catalog, path: &'v [Box<str>]) -> View<'v> {
    View {
        catalog,
        database: "postgres",
        user: "postgres",
        search_path: Some(path),
        temporary: &[],
        shadowed: &[],
        definitions: &[],
        made: &[],
        redefined: false,
        sure: false,
    }
}

/// The class that the statements of a text have together.
fn is_read(classifier: &Classifier, view: &View<'_>, text: &str) -> bool {
    let classified = classifier.classify(text.as_bytes(), Lexing::CERTAIN);
    classified.statements.iter().all(|statement| {
        let required = resolve(statement, &[], view, &rules()).required;
        required == Required::Read && !may_turn_read_write(statement)
    })
}

#[test]
fn a_read_succeeds_where_postgres_refuses_what_writes() {
    let server = Server::start();
    let mut client = server.connect();
    for text in statements::SCHEMA {
        assert_eq!(client.query(text), Answer::Done, "{text}");
    }
    let loaded = catalog::load(&mut client);
    let path: [Box<str>; 2] = ["$user".into(), "public".into()];
    let view = view(&loaded, &path);
    let classifier = Classifier::new();
    let (mut reads, mut writes, mut refused) = (0, 0, 0);
    let mut wrong = vec![];
    for text in statements::all() {
        if !is_read(&classifier, &view, &text) {
            writes += 1;
            continue;
        }
        reads += 1;
        assert_eq!(client.query("BEGIN READ ONLY"), Answer::Done);
        if let Answer::Error(state) = client.query(&text)
            // read_only_sql_transaction
            && state == "25006"
        {
            refused += 1;
            wrong.push(text);
        }
        assert_eq!(client.query("ROLLBACK"), Answer::Done);
    }
    println!("{reads} reads, {writes} writes, {refused} reads that the server refused");
    assert!(wrong.is_empty(), "called reads, and write: {wrong:#?}");
    assert!(
        reads > 100 && writes > 100,
        "{reads} reads, {writes} writes"
    );
}

/// The other way round, so that the test above cannot pass by calling everything a write.
#[test]
fn plain_reads_are_called_reads_and_every_refused_statement_a_write() {
    let server = Server::start();
    let mut client = server.connect();
    for text in statements::SCHEMA {
        assert_eq!(client.query(text), Answer::Done, "{text}");
    }
    let loaded = catalog::load(&mut client);
    let path: [Box<str>; 2] = ["$user".into(), "public".into()];
    let view = view(&loaded, &path);
    let classifier = Classifier::new();
    for text in statements::READS {
        assert!(is_read(&classifier, &view, text), "{text}");
        assert_eq!(client.query("BEGIN READ ONLY"), Answer::Done);
        assert_eq!(client.query(text), Answer::Done, "{text}");
        client.query("ROLLBACK");
    }
    for text in statements::WRITES.iter().chain(statements::ESCAPES) {
        assert!(!is_read(&classifier, &view, text), "{text}");
    }
}
