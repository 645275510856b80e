//! Transactions: when tickets are asked for, and how long permits last.

use super::{
    BackendMessage, ClosedKind, Considered, Driven, E, I, Lexing, Message, T, bind, classify, of,
};

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
    let commit = it.0.span();
    it.query("COMMIT");
    it.done("COMMIT");
    assert_eq!(it.ready(I), Some(commit));
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

fn shown(considered: &Considered) -> String {
    let presented = considered.presents.iter();
    let presented: Vec<&str> = presented
        .flat_map(|it| it.as_slice().iter().map(|text| &**text))
        .collect();
    presented.join(",")
}

fn parse(it: &mut Driven, text: &str) -> Considered {
    let classified = classify(text.as_bytes(), Lexing::CERTAIN);
    it.send(Message::Parse(b"", text.as_bytes(), &classified))
}

#[test]
fn what_takes_the_one_snapshot_early_presents_what_is_shown_then() {
    let read = "SELECT * FROM t /*fencing_token='b'*/";
    let mut it = Driven::new();
    it.did("SET ringfence.token = 'a'", "SET", I);
    // In READ COMMITTED each statement takes its own.
    assert_eq!(shown(&parse(&mut it, read)), "");
    // By which a SELECT reads is that of its Bind.
    assert_eq!(shown(&it.send(bind("", ""))), "a,b");
    assert_eq!(shown(&parse(&mut it, "DELETE FROM t")), "");
    assert_eq!(shown(&it.send(bind("", ""))), "");
    it.sync();
    for _ in 0..2 {
        it.reply(BackendMessage::ParseComplete);
        it.reply(BackendMessage::BindComplete);
    }
    it.ready(I);
    it.did(
        "SET default_transaction_isolation = 'serializable'",
        "SET",
        I,
    );
    // Parse analyses with a snapshot; a utility statement needs none.
    assert_eq!(shown(&parse(&mut it, "BEGIN")), "");
    assert_eq!(shown(&parse(&mut it, "SET work_mem = '1MB'")), "");
    assert_eq!(shown(&parse(&mut it, read)), "a,b");
    // It is taken once; the statement itself asks the gate.
    assert_eq!(shown(&parse(&mut it, read)), "");
    let bound = it.send(bind("", ""));
    assert_eq!(shown(&bound), "a,b");
    assert!(it.execute("").asks);
    it.sync();
    for _ in 0..4 {
        it.reply(BackendMessage::ParseComplete);
    }
    it.reply(BackendMessage::BindComplete);
    it.done("SELECT 1");
    it.ready(I);
    // A statement that was prepared before: Describe and Bind.
    assert_eq!(
        shown(&it.send(Message::Describe(ClosedKind::Statement, b""))),
        "a"
    );
    it.sync();
    assert_eq!(shown(&it.send(bind("", ""))), "a");
    // While something may fail, any transaction may be the one.
    let mut it = Driven::new();
    it.did("SET ringfence.token = 'a'", "SET", I);
    it.query("SELECT 1");
    assert_eq!(shown(&parse(&mut it, "SELECT 2")), "a");
}

#[test]
fn a_ticket_after_an_early_snapshot_is_late() {
    let ticket = "SET LOCAL ringfence.token = 'a'";
    let mut it = Driven::new();
    it.did("BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN", T);
    parse(&mut it, "SELECT 1");
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.ready(T);
    assert!(it.0.has_snapshot());
    assert!(it.consider_query(ticket).is_err());
    it.did("ROLLBACK", "ROLLBACK", I);
    assert!(!it.0.has_snapshot());
    it.did("BEGIN", "BEGIN", T);
    assert!(it.consider_query(ticket).is_ok());
    // A transaction that only a Parse has begun; BEGIN goes on in it.
    let mut it = Driven::new();
    it.did(
        "SET default_transaction_isolation = 'serializable'",
        "SET",
        I,
    );
    parse(&mut it, "SELECT 1");
    assert!(it.consider_query(ticket).is_err());
    assert!(it.consider_query("BEGIN /*fencing_token='a'*/").is_err());
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.ready(I);
    it.query("BEGIN");
    assert!(it.consider_query(ticket).is_ok());
}

#[test]
fn a_call_that_sets_a_ticket_is_late_only_for_what_follows() {
    let mut it = Driven::new();
    it.did("BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN", T);
    it.run("SELECT set_config('ringfence.token', 'a', false)");
    assert!(it.consider_query("SELECT 1").is_err());
    it.sync();
    it.ran("SELECT 1");
    it.ready(T);
    assert!(it.consider_query("SELECT 1").is_err());
    it.did("COMMIT", "COMMIT", I);
    assert_eq!(it.tickets(), "a");
    it.did("BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN", T);
    assert!(it.consider_query("SELECT 1").is_ok());
}

#[test]
fn a_snapshot_from_elsewhere_is_older_than_any_ticket() {
    let import = "SET TRANSACTION SNAPSHOT '00000003-00000002-1'";
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ";
    let mut it = Driven::new();
    it.did(begin, "BEGIN", T);
    it.did(import, "SET", T);
    assert!(it.consider_query("SELECT 1").is_ok());
    assert!(it.consider_query("SELECT 1 /*fencing_token='a'*/").is_err());
    it.did("ROLLBACK", "ROLLBACK", I);
    it.did("SET ringfence.token = 'a'", "SET", I);
    it.did(begin, "BEGIN", T);
    assert!(it.consider_query(import).is_err());
}

#[test]
fn a_ticket_is_late_for_what_was_opened_before_it() {
    let ticket = "SET LOCAL ringfence.token = 'a'";
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    it.parse("", "SELECT * FROM t");
    it.bind("p", "");
    it.execute("p");
    it.sync();
    it.ran("SELECT 1");
    it.ready(T);
    it.did(ticket, "SET", T);
    assert!(it.0.consider(Message::Execute(b"p")).is_err());
    it.bind("p", "");
    assert!(it.0.consider(Message::Execute(b"p")).is_ok());
    // A write reads as it is executed.
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    it.parse("", "DELETE FROM t");
    it.bind("p", "");
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.reply(BackendMessage::BindComplete);
    it.ready(T);
    it.did(ticket, "SET", T);
    assert!(it.0.consider(Message::Execute(b"p")).is_ok());
    // A cursor of SQL.
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    it.did("DECLARE c CURSOR FOR SELECT * FROM t", "DECLARE CURSOR", T);
    assert!(it.consider_query("FETCH c").is_ok());
    it.did(ticket, "SET", T);
    assert!(it.consider_query("FETCH c").is_err());
    it.did("COMMIT", "COMMIT", I);
    it.did("BEGIN", "BEGIN", T);
    it.did(ticket, "SET", T);
    it.did("DECLARE c CURSOR FOR SELECT * FROM t", "DECLARE CURSOR", T);
    assert!(it.consider_query("FETCH c").is_ok());
}

#[test]
fn a_commit_is_told_when_it_is_confirmed() {
    let mut it = Driven::new();
    let confirmed = |it: &mut Driven, tag: &[u8]| {
        let reply = it.0.reply(&BackendMessage::CommandComplete { tag });
        reply.unwrap().committed
    };
    it.query("CREATE VIEW v AS SELECT 1; COMMIT AND CHAIN; COMMIT; DO ''; ROLLBACK");
    let tags: [(&[u8], bool); 5] = [
        (b"CREATE VIEW", false),
        (b"COMMIT", true),
        (b"ROLLBACK", false),
        (b"DO", true),
        (b"ROLLBACK", false),
    ];
    for (tag, commits) in tags {
        assert_eq!(confirmed(&mut it, tag), commits);
    }
    assert_eq!(it.ready(I), Some(1));
    it.query("SELEC");
    assert!(confirmed(&mut it, b"COMMIT"));
}
