use super::{Considered, Deliver, Message, Session, Unexpected, may_turn_read_write};
use crate::protocol::postgres::classify::{Isolation, Lexing, classify};
use crate::protocol::postgres::frame::{
    BackendMessage, Bind, ClosedKind, FrontendMessage, TransactionStatus, error_response,
};
use crate::protocol::postgres::ticket::Tickets;
use crate::protocol::postgres::ticket::scope::Settings;
use crate::protocol::refusal::Refusal;
use proptest::prelude::{Strategy, prop, prop_oneof, proptest};

const I: TransactionStatus = TransactionStatus::Idle;
const T: TransactionStatus = TransactionStatus::InTransaction;
const E: TransactionStatus = TransactionStatus::Failed;

/// A session whose server's answers are given by the tests.
struct Driven(Session);

impl Driven {
    fn new() -> Driven {
        let mut session = Session::new(Settings::new(
            Tickets::default(),
            Some(["public".into()].into()),
            Isolation::PerStatement,
        ));
        session.parameter(b"standard_conforming_strings", b"on");
        session.parameter(b"client_encoding", b"UTF8");
        session.parameter(b"server_encoding", b"UTF8");
        Driven(session)
    }

    fn consider_query(&self, text: &str) -> Result<Considered, Refusal> {
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        self.0
            .consider(Message::Query(text.as_bytes(), &classified))
    }

    fn query(&mut self, text: &str) -> Considered {
        let considered = self.consider_query(text).unwrap();
        self.0.forward(considered.clone());
        considered
    }

    fn send(&mut self, message: Message<'_>) -> Considered {
        let considered = self.0.consider(message).unwrap();
        self.0.forward(considered.clone());
        considered
    }

    fn parse(&mut self, name: &str, text: &str) {
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        self.send(Message::Parse(
            name.as_bytes(),
            text.as_bytes(),
            &classified,
        ));
    }

    fn bind(&mut self, portal: &str, statement: &str) {
        self.send(Message::BindHead(portal.as_bytes(), statement.as_bytes()));
    }

    fn execute(&mut self, portal: &str) -> Considered {
        self.send(Message::Execute(portal.as_bytes()))
    }

    /// Parse, Bind and Execute of the unnamed statement.
    fn run(&mut self, text: &str) -> Considered {
        self.parse("", text);
        self.bind("", "");
        self.execute("")
    }

    fn sync(&mut self) {
        self.send(Message::Sync);
    }

    fn try_reply(&mut self, message: BackendMessage<'_>) -> Result<Deliver, Unexpected> {
        self.0.reply(&message).map(|reply| reply.deliver)
    }

    fn reply(&mut self, message: BackendMessage<'_>) -> Deliver {
        self.try_reply(message).unwrap()
    }

    fn done(&mut self, tag: &str) -> Deliver {
        self.reply(BackendMessage::CommandComplete {
            tag: tag.as_bytes(),
        })
    }

    /// ParseComplete, BindComplete, CommandComplete.
    fn ran(&mut self, tag: &str) {
        self.reply(BackendMessage::ParseComplete);
        self.reply(BackendMessage::BindComplete);
        self.done(tag);
    }

    fn error(&mut self) -> Deliver {
        let bytes = error_response(&[(b'C', "XX000")]);
        self.reply(BackendMessage::read(b'E', &bytes[5..]).unwrap())
    }

    /// The span up to which permits end.
    fn ready(&mut self, status: TransactionStatus) -> Option<u64> {
        let reply = self
            .0
            .reply(&BackendMessage::ReadyForQuery(status))
            .unwrap();
        assert_eq!(reply.deliver, Deliver::Pass);
        reply.ended
    }

    fn did(&mut self, text: &str, tag: &str, status: TransactionStatus) -> Considered {
        let considered = self.query(text);
        self.done(tag);
        self.ready(status);
        considered
    }

    fn tickets(&self) -> String {
        self.0.settings().tickets.as_slice().join(",")
    }
}

fn of(considered: &Considered) -> Vec<String> {
    let runs = considered.runs.iter();
    runs.map(|run| run.tickets.as_slice().join(",")).collect()
}

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
    let forward = it.0.forward(considered);
    assert!(forward.after.ends_with(b"ROLLBACK\0"));
    it.reply(BackendMessage::ParseComplete);
    it.reply(BackendMessage::BindComplete);
    assert_eq!(it.error(), Deliver::Replace(b"RF001".to_vec()));
    assert_eq!(it.reply(BackendMessage::ReadyForQuery(E)), Deliver::Swallow);
    it.done("ROLLBACK");
    assert!(it.ready(I).is_some());
}

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

/// pgcat PR 953: postgres.js asks to describe first, with Flush.
#[test]
fn a_statement_is_described_before_it_is_bound() {
    let mut it = Driven::new();
    it.parse("s", "SELECT $1");
    it.send(Message::Describe);
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
fn another_role_hides_what_the_path_means() {
    let path = |considered: &Considered| considered.runs[0].search_path.clone();
    let mut it = Driven::new();
    it.did("SET search_path = '$user', public", "SET", I);
    assert!(path(&it.did("SELECT 1", "SELECT 1", I)).is_some());
    it.did("BEGIN", "BEGIN", T);
    it.did("SET LOCAL ROLE bob", "SET", T);
    assert_eq!(path(&it.did("SELECT 1", "SELECT 1", T)), None);
    it.did("ROLLBACK", "ROLLBACK", I);
    assert!(path(&it.did("SELECT 1", "SELECT 1", I)).is_some());
    it.did("SET SESSION AUTHORIZATION bob", "SET", I);
    assert_eq!(path(&it.did("SELECT 1", "SELECT 1", I)), None);
    it.did("SET search_path = public", "SET", I);
    assert!(path(&it.did("SELECT 1", "SELECT 1", I)).is_some());
    it.did("DO $$ $$", "DO", I);
    assert_eq!(path(&it.did("SELECT 1", "SELECT 1", I)), None);
}

#[test]
fn the_meaning_of_bytes_is_not_certain_while_it_may_change() {
    let mut it = Driven::new();
    assert_eq!(it.0.lexing(), Lexing::CERTAIN);
    it.query("SET standard_conforming_strings = off");
    assert!(!it.0.lexing().standard_strings);
    it.done("SET");
    it.reply(BackendMessage::ParameterStatus {
        name: b"standard_conforming_strings",
        value: b"off",
    });
    it.ready(I);
    assert!(!it.0.lexing().standard_strings && it.0.lexing().utf8);
    it.query("SET client_encoding = 'LATIN1'");
    assert!(!it.0.lexing().utf8);
    it.error();
    it.ready(I);
    assert!(it.0.lexing().utf8);
}

#[test]
fn what_can_turn_a_session_read_write_is_known() {
    let turns = |text: &str| {
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        classified
            .statements
            .iter()
            .any(|statement| may_turn_read_write(statement))
    };
    for text in [
        "BEGIN READ WRITE",
        "START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ WRITE",
        "SET TRANSACTION READ WRITE",
        "SET LOCAL transaction_read_only = off",
        "SET Transaction_Read_Only TO false",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "SET default_transaction_read_only = off",
        "RESET default_transaction_read_only",
        "COMMIT AND CHAIN",
        "ROLLBACK AND CHAIN",
        "COMMIT PREPARED 'g'",
        "SELECT set_config('transaction_read_only', 'off', true)",
        "SELECT set_config('default_' || 'transaction_read_only', 'off', true)",
        "SELECT set_config($1, $2, $3)",
        "SET transaction_read_only = off; UPDATE t SET a = 1",
        "DO $$ BEGIN COMMIT; SET TRANSACTION READ WRITE; UPDATE t SET a = 1; END $$",
        "CALL p()",
        "PREPARE p AS SELECT set_config('transaction_read_only', 'off', true)",
        "EXPLAIN ANALYZE SELECT set_config('transaction_read_only', 'off', true)",
        "SELEC 1",
    ] {
        assert!(turns(text), "{text}");
    }
    for text in [
        "BEGIN",
        "BEGIN READ ONLY",
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "COMMIT",
        "SELECT set_config('search_path', '', false)",
        "RESET ALL",
        "SELECT 1",
    ] {
        assert!(!turns(text), "{text}");
    }
}

fn step() -> impl Strategy<Value = u8> {
    prop_oneof![0_u8..24]
}

proptest! {
    /// Whatever client and server send: no panic, and a session that was given up stays refused.
    #[test]
    fn no_order_of_messages_makes_it_panic(steps in prop::collection::vec(step(), 0..60)) {
        let mut it = Driven::new();
        for step in steps {
            let texts = ["BEGIN", "COMMIT", "SET ringfence.token = 'a'", "COPY t FROM STDIN"];
            let message = match step {
                0..4 => {
                    let text = texts[usize::from(step)];
                    let classified = classify(text.as_bytes(), Lexing::CERTAIN);
                    let message = Message::Parse(b"", text.as_bytes(), &classified);
                    forward_or_refuse(&mut it.0, message);
                    continue;
                }
                4 => Message::BindHead(b"", b""),
                5 => Message::Execute(b""),
                6 => Message::Sync,
                7 => Message::CopyEnd,
                8 => Message::Close(ClosedKind::Statement, b""),
                9 => {
                    let classified = classify(b"ROLLBACK", Lexing::CERTAIN);
                    forward_or_refuse(&mut it.0, Message::Query(b"ROLLBACK", &classified));
                    continue;
                }
                10 => {
                    if it.0.is_quiet() && it.0.in_transaction() {
                        it.0.roll_back(vec![]);
                    }
                    continue;
                }
                _ => {
                    let reply = match step {
                        11 => BackendMessage::ParseComplete,
                        12 => BackendMessage::BindComplete,
                        13 => BackendMessage::CommandComplete { tag: b"ROLLBACK" },
                        14 => BackendMessage::CommandComplete { tag: b"COMMIT" },
                        15 => BackendMessage::CopyIn,
                        16 => BackendMessage::ReadyForQuery(T),
                        17 => BackendMessage::ReadyForQuery(E),
                        18 => BackendMessage::read(b'E', b"\0").unwrap(),
                        19 => BackendMessage::CloseComplete,
                        _ => BackendMessage::ReadyForQuery(I),
                    };
                    if it.0.reply(&reply).is_err() {
                        return Ok(());
                    }
                    continue;
                }
            };
            forward_or_refuse(&mut it.0, message);
        }
    }
}

fn forward_or_refuse(session: &mut Session, message: Message<'_>) {
    match session.consider(message) {
        Ok(considered) if considered.rolled_back && !considered.only_rolls_back() => {
            session.refuse(&considered, vec![]);
        }
        Ok(considered) => {
            session.forward(considered);
        }
        Err(_) => {
            let unread = session.unread(message);
            session.refuse(&unread, vec![]);
        }
    }
}
