//! Transactions: when tickets are asked for, and how long permits last.

use super::{Considered, Driven, E, I, T, of};

#[test]
fn a_transaction_asks_once_and_its_permits_last_to_its_end() {
    let mut it = Driven::new();
    let begin = it.query("BEGIN");
    assert!(begin.asks);
    it.done("BEGIN");
    assert_eq!(it.ready(T), None);
    let update = it.query("UPDATE t SET a = 1");
    assert!(!update.asks);
    it.done("UPDATE 1");
    assert_eq!(it.ready(T), None);
    let commit = it.query("COMMIT");
    it.done("COMMIT");
    assert_eq!(it.ready(I), Some(commit.span));
    assert!(it.query("UPDATE t SET a = 2").asks);
}

#[test]
fn a_commit_in_the_middle_asks_again_for_what_follows_in_a_pipeline() {
    let mut it = Driven::new();
    assert!(it.run("UPDATE t SET a = 1").asks);
    assert!(!it.run("UPDATE t SET a = 2").asks);
    it.run("COMMIT");
    assert!(it.run("UPDATE t SET a = 3").asks);
    assert!(!it.run("UPDATE t SET a = 4").asks);
    it.sync();
    // The next span may begin a transaction, whatever came of this one.
    assert!(it.run("UPDATE t SET a = 5").asks);
    it.sync();
    for tag in ["UPDATE 1", "UPDATE 1", "COMMIT", "UPDATE 1", "UPDATE 1"] {
        it.ran(tag);
    }
    assert_eq!(it.ready(I), Some(1));
    it.ran("UPDATE 1");
    assert_eq!(it.ready(I), Some(2));
    assert!(it.0.is_quiet());
}

#[test]
fn a_query_behind_an_unanswered_begin_asks_for_itself() {
    let mut it = Driven::new();
    it.query("BEGIN");
    assert!(it.query("UPDATE t SET a = 1").asks);
    it.error();
    assert_eq!(it.ready(I), Some(1));
}

#[test]
fn a_ticket_set_in_a_transaction_is_asked_for() {
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    let set = it.did("SET LOCAL ringfence.token = 'a'", "SET", T);
    assert!(set.asks);
    assert!(!it.did("UPDATE t SET a = 1", "UPDATE 1", T).asks);
    assert!(it.did("SET ringfence.token = 'b'", "SET", T).asks);
    it.did("COMMIT", "COMMIT", I);
    assert_eq!(it.tickets(), "b");
}

#[test]
fn each_statement_of_a_query_has_the_tickets_of_its_place() {
    let mut it = Driven::new();
    let query = it.query("SELECT 1; SET ringfence.token = 'a'; UPDATE t SET a = 1; RESET ALL");
    assert_eq!(of(&query), ["", "a", "a", ""]);
    for tag in ["SELECT 1", "SET", "UPDATE 1", "RESET"] {
        it.done(tag);
    }
    it.ready(I);
    assert_eq!(it.tickets(), "");
}

#[test]
fn a_set_of_a_failed_transaction_is_taken_back() {
    // The implicit transaction of a query.
    let mut it = Driven::new();
    it.query("SET ringfence.token = 'a'; SELECT 1/0");
    assert_eq!(it.tickets(), "a");
    it.done("SET");
    it.error();
    assert_eq!(it.tickets(), "");
    it.ready(I);
    assert_eq!(it.tickets(), "");
    // What a COMMIT in the middle kept stays.
    it.query("SET ringfence.token = 'a'; COMMIT; SET ringfence.token = 'b'; SELECT 1/0");
    it.done("SET");
    it.done("COMMIT");
    it.done("SET");
    it.error();
    it.ready(I);
    assert_eq!(it.tickets(), "a");
    // An explicit one, and a COMMIT that the server turns into a ROLLBACK.
    it.did("BEGIN", "BEGIN", T);
    it.did("SET ringfence.token = 'c'", "SET", T);
    it.query("SELECT 1/0");
    it.error();
    it.ready(E);
    it.did("COMMIT", "ROLLBACK", I);
    assert_eq!(it.tickets(), "a");
    // A savepoint.
    it.did("BEGIN", "BEGIN", T);
    it.did("SAVEPOINT s", "SAVEPOINT", T);
    it.did("SET ringfence.token = 'd'", "SET", T);
    it.query("SELECT 1/0");
    it.error();
    it.ready(E);
    it.did("ROLLBACK TO s", "ROLLBACK", T);
    assert_eq!(it.tickets(), "a");
    it.did("COMMIT", "COMMIT", I);
    // A pipeline up to its Sync.
    it.run("SET ringfence.token = 'e'");
    it.run("SELECT 1/0");
    it.sync();
    assert_eq!(it.tickets(), "e");
    it.ran("SET");
    it.error();
    it.ready(I);
    assert_eq!(it.tickets(), "a");
}

#[test]
fn a_ticket_after_the_snapshot_is_refused() {
    let ticket = "SET LOCAL ringfence.token = 'a'";
    for begin in [
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "BEGIN; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "BEGIN; SET transaction_isolation = 'repeatable read'",
        "BEGIN; SET LOCAL transaction_isolation TO serializable",
    ] {
        let mut it = Driven::new();
        it.query(begin);
        // Before the first query it is taken, also by set_config, which is one.
        assert!(it.consider_query(ticket).is_ok());
        assert!(
            it.consider_query("SELECT set_config('ringfence.token', 'a', true)")
                .is_ok()
        );
        it.query("SELECT 1");
        assert!(it.consider_query(ticket).is_err());
        assert!(it.consider_query("SELECT 1 /*fencing_token='a'*/").is_err());
        assert!(
            it.consider_query("SELECT 1; COMMIT; SET ringfence.token = 'a'")
                .is_ok()
        );
        it.query("COMMIT AND CHAIN");
        assert!(it.consider_query(ticket).is_ok());
        it.query("SELECT 1");
        assert!(it.consider_query(ticket).is_err());
    }
    let mut it = Driven::new();
    it.query("BEGIN");
    it.query("SELECT 1");
    assert!(it.consider_query(ticket).is_ok());
    let mut it = Driven::new();
    it.query("SET default_transaction_isolation = 'serializable'");
    it.query("BEGIN");
    it.query("SELECT 1");
    assert!(it.consider_query(ticket).is_err());
}

#[test]
fn a_comment_counts_once() {
    let comment = |considered: &Considered| considered.runs[0].comment.as_slice().join(",");
    let mut it = Driven::new();
    let text = "UPDATE t SET a = 1 /*fencing_token='a'*/";
    let query = it.query(text);
    assert_eq!(
        (comment(&query), it.tickets()),
        ("a".to_owned(), String::new())
    );
    assert!(query.asks);
    // Of the unnamed statement it counts for one portal, of a named one for none.
    assert_eq!(comment(&it.run(text)), "a");
    it.bind("", "");
    assert_eq!(comment(&it.execute("")), "");
    it.parse("s", text);
    it.bind("", "s");
    assert_eq!(comment(&it.execute("")), "");
    let mut it = Driven::new();
    it.did("BEGIN /*fencing_token='a'*/", "BEGIN", T);
    assert_eq!(of(&it.query("UPDATE t SET a = 1")), ["a"]);
    it.done("UPDATE 1");
    it.ready(T);
    it.did("COMMIT", "COMMIT", I);
    assert_eq!(it.tickets(), "");
}
