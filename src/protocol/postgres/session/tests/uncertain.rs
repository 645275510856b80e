//! What is on its way may fail or be skipped, or do what nobody sees.

use super::{BackendMessage, Considered, Driven, E, I, Message, T};

fn operations(considered: &Considered) -> Vec<&str> {
    let runs = considered.runs.iter();
    runs.map(|run| run.statement.operation).collect()
}

fn path(considered: &Considered) -> Option<Vec<String>> {
    let path = considered.runs.last().unwrap().search_path.as_ref()?;
    Some(path.iter().map(ToString::to_string).collect())
}

fn parsed(it: &mut Driven, name: &str, text: &str) {
    it.parse(name, text);
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.ready(I);
}

#[test]
fn an_unnamed_statement_whose_parse_may_be_skipped_leaves_the_older_one() {
    let mut it = Driven::new();
    parsed(&mut it, "", "DELETE FROM orders");
    it.parse("x", "SELECT 2");
    it.parse("", "SELECT 1");
    it.sync();
    it.bind("", "");
    assert_eq!(operations(&it.execute("")), ["SELECT", "DELETE"]);
    it.sync();
    it.error();
    it.ready(I);
    it.reply(BackendMessage::BindComplete);
    it.done("DELETE 1");
    it.ready(I);
    // Behind its own Parse in one span it is what that says, however many are on their way.
    for _ in 0..3 {
        assert_eq!(operations(&it.run("SELECT 1")), ["SELECT"]);
        it.sync();
    }
}

#[test]
fn what_sql_prepares_on_its_way_counts() {
    let mut it = Driven::new();
    it.did("PREPARE s AS SELECT 1", "PREPARE", I);
    it.query("DEALLOCATE s; PREPARE s AS DELETE FROM orders");
    let execute = it.query("EXECUTE s");
    let executed = execute.runs[0].executed.iter();
    let executed: Vec<&str> = executed.map(|it| it.operation).collect();
    assert_eq!(executed, ["DELETE", "SELECT"]);
    it.error();
    it.ready(I);
    it.done("SELECT 1");
    it.ready(I);
    assert_eq!(it.query("EXECUTE s").runs[0].executed.len(), 1);
}

#[test]
fn answers_behind_a_code_block_confirm_nothing_that_was_sent_before_it() {
    let mut it = Driven::new();
    it.query("PREPARE s AS SELECT 1; SET search_path = own; DO $$ $$");
    for tag in ["PREPARE", "SET", "DO"] {
        it.done(tag);
    }
    it.ready(I);
    let execute = it.did("EXECUTE s", "SELECT 1", I);
    assert!(execute.runs[0].executed.is_empty());
    assert_eq!(path(&execute), None);
    // What it prepared stays in the way of a name that is on its way.
    it.parse("z", "SELECT 1");
    it.sync();
    it.bind("", "z");
    assert!(it.execute("").runs[0].statement.uses.everything.is_some());
}

#[test]
fn a_path_that_a_code_block_committed_is_not_rolled_back() {
    let mut it = Driven::new();
    it.run("SELECT 1");
    it.send(Message::Flush);
    it.ran("SELECT 1");
    it.run("DO $$ BEGIN SET search_path = mine; COMMIT; END $$");
    it.run("SELECT 1/0");
    it.sync();
    it.ran("DO");
    it.reply(BackendMessage::ParseComplete);
    it.error();
    it.ready(I);
    assert_eq!(path(&it.query("DELETE FROM t")), None);
}

#[test]
fn a_path_is_not_known_while_it_may_be_taken_back() {
    let mut it = Driven::new();
    it.query("SET search_path = own; SELECT 1/0");
    assert_eq!(path(&it.query("DELETE FROM t")), None);
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    it.did("SET search_path = own", "SET", T);
    it.query("SELECT 1/0");
    it.query("COMMIT");
    assert_eq!(path(&it.query("DELETE FROM t")), None);
    // Where nothing changes it, it is known in a pipeline too.
    let mut it = Driven::new();
    it.query("SELECT 1");
    assert!(path(&it.query("DELETE FROM t")).is_some());
    it.done("SELECT 1");
    it.ready(I);
    it.done("DELETE 1");
    it.ready(I);
    it.did("SET search_path = own", "SET", I);
    assert!(path(&it.query("DELETE FROM t")).is_some());
}

#[test]
fn a_commit_of_a_failed_block_takes_its_path_back() {
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    it.did("SET search_path = own", "SET", T);
    it.query("SELECT 1/0");
    it.error();
    it.ready(E);
    let considered = it.query("COMMIT; DELETE FROM t");
    assert_eq!(path(&considered), Some(vec!["public".to_owned()]));
}

#[test]
fn the_path_of_a_bind_counts() {
    let mut it = Driven::new();
    it.parse("w", "DELETE FROM t");
    it.parse("p", "SET search_path = own");
    it.bind("1", "w");
    it.bind("2", "p");
    it.execute("2");
    assert_eq!(path(&it.execute("1")), None);
}

#[test]
fn a_name_with_two_meanings_is_not_executed_where_they_change_the_session() {
    let mut it = Driven::new();
    parsed(&mut it, "s", "SET search_path = public");
    it.parse("s", "SELECT 1");
    it.sync();
    it.bind("", "s");
    assert!(it.0.consider(Message::Execute(b"")).is_err());
}

#[test]
fn a_refused_commit_in_a_skipped_pipeline_has_its_answer() {
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    it.parse("", "SELEC");
    let commit = it.consider_query("COMMIT").unwrap();
    it.0.refuse(&commit, b"RF001".to_vec());
    it.sync();
    it.error();
    it.ready(E);
    assert!(it.0.is_quiet());
}

#[test]
fn a_path_that_a_call_may_not_set_is_not_known() {
    for text in [
        "SELECT set_config('search_path', 'own', false) WHERE false",
        "SELECT set_config('search_path', 'own', false) LIMIT 0",
        "SELECT CASE WHEN x THEN set_config('search_path', 'own', false) END",
        "SELECT me.set_config('search_path', 'own', false)",
        "SELECT set_config('search_pathx'::varchar(11), 'own', false)",
        "SELECT set_config('search_path', 'own', 1 > 2)",
    ] {
        let mut it = Driven::new();
        it.did(text, "SELECT 1", I);
        assert_eq!(path(&it.query("DELETE FROM t")), None, "{text}");
    }
    let mut it = Driven::new();
    let plain = "SELECT pg_catalog.set_config('search_path', 'own', false)";
    it.did(plain, "SELECT 1", I);
    let considered = it.query("DELETE FROM t");
    assert_eq!(path(&considered), Some(vec!["own".to_owned()]));
}

#[test]
fn bytes_are_not_certain_while_an_error_may_take_back_what_was_set() {
    let told = |it: &mut Driven, value: &'static [u8]| {
        it.reply(BackendMessage::ParameterStatus {
            name: b"standard_conforming_strings",
            value,
        });
    };
    let mut it = Driven::new();
    it.query("SET standard_conforming_strings = off");
    it.done("SET");
    told(&mut it, b"off");
    it.ready(I);
    it.did("BEGIN", "BEGIN", T);
    it.query("SET LOCAL standard_conforming_strings = on");
    it.done("SET");
    told(&mut it, b"on");
    it.ready(T);
    assert!(!it.0.lexing().standard_strings);
    told(&mut it, b"off");
    it.did("ROLLBACK", "ROLLBACK", I);
    assert!(!it.0.lexing().standard_strings);
    // A savepoint that is left does not make it unsure where nothing was set.
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    it.did("SAVEPOINT a", "SAVEPOINT", T);
    it.did("ROLLBACK TO a", "ROLLBACK", T);
    assert!(it.0.lexing().standard_strings);
}

/// What a FETCH of a name runs beside itself.
fn fetched(it: &Driven, name: &str) -> Vec<&'static str> {
    let considered = it.consider_query(&format!("FETCH ALL FROM {name}"));
    let mut runs = considered.unwrap().runs;
    assert_eq!(runs.pop().unwrap().statement.operation, "FETCH");
    runs.iter().map(|run| run.statement.operation).collect()
}

#[test]
fn what_sql_fetches_from_is_run() {
    let mut it = Driven::new();
    it.did("BEGIN", "BEGIN", T);
    assert_eq!(fetched(&it, "c"), ["unknown"]);
    it.did("DECLARE c CURSOR FOR SELECT 1", "DECLARE CURSOR", T);
    assert!(fetched(&it, "c").is_empty());
    for (portal, text) in [
        ("reads", "SELECT 1"),
        ("acts", "DELETE FROM orders RETURNING a"),
        ("other", "EXECUTE p"),
        ("shows", "SHOW search_path"),
        ("by_name", "FETCH ALL FROM acts"),
    ] {
        it.parse("", text);
        it.bind(portal, "");
        it.sync();
        it.reply(BackendMessage::ParseComplete);
        it.reply(BackendMessage::BindComplete);
        it.ready(T);
    }
    assert_eq!(fetched(&it, "reads"), ["SELECT"]);
    assert_eq!(fetched(&it, "acts"), ["DELETE"]);
    assert_eq!(fetched(&it, "other"), ["unknown"]);
    assert!(fetched(&it, "shows").is_empty());
    assert_eq!(fetched(&it, "by_name"), ["DELETE"]);
    // Its changes, and the path that it was bound in.
    it.did("SET search_path = other", "SET", T);
    let considered = it.consider_query("FETCH reads").unwrap();
    assert_eq!(considered.runs[0].search_path, None);
    // Not answered.
    it.query("ROLLBACK");
    it.query("BEGIN");
    assert_eq!(fetched(&it, "reads"), ["unknown", "SELECT"]);
    assert_eq!(fetched(&it, "c"), ["unknown"]);
}

#[test]
fn what_is_opened_within_a_savepoint_goes_with_it() {
    for (last, stays) in [
        ("ROLLBACK TO b", false),
        ("ROLLBACK TO a", false),
        ("RELEASE b", true),
        ("RELEASE a", true),
    ] {
        let mut it = Driven::new();
        it.did("BEGIN", "BEGIN", T);
        it.did("SAVEPOINT a", "SAVEPOINT", T);
        it.did("SAVEPOINT b", "SAVEPOINT", T);
        it.did("DECLARE c CURSOR FOR SELECT 1", "DECLARE CURSOR", T);
        it.parse("", "SELECT 1");
        it.bind("p", "");
        it.sync();
        it.reply(BackendMessage::ParseComplete);
        it.reply(BackendMessage::BindComplete);
        it.ready(T);
        it.did(last, last.split(' ').next().unwrap(), T);
        let unknown = ["unknown"];
        assert_eq!(fetched(&it, "c") != unknown, stays, "{last}");
        assert_eq!(fetched(&it, "p") != unknown, stays, "{last}");
        // What is released is its parent's.
        if last == "RELEASE b" {
            it.did("ROLLBACK TO a", "ROLLBACK", T);
            assert_eq!(fetched(&it, "c"), unknown);
            assert_eq!(fetched(&it, "p"), unknown);
        }
    }
}

#[test]
fn what_a_code_block_may_have_set_is_not_known_until_all_is_reset() {
    let ticket = "SET LOCAL ringfence.token = 'a'";
    let late = |it: &Driven| it.consider_query(ticket).is_err();
    let mut it = Driven::new();
    it.did("DO $$ $$", "DO", I);
    // The next transactions may have one snapshot each.
    it.did("BEGIN", "BEGIN", T);
    assert!(!late(&it));
    it.did("SELECT 1", "SELECT 1", T);
    assert!(late(&it));
    it.did("ROLLBACK", "ROLLBACK", I);
    it.did("BEGIN ISOLATION LEVEL READ COMMITTED", "BEGIN", T);
    it.did("SELECT 1", "SELECT 1", T);
    assert!(!late(&it));
    it.did("ROLLBACK", "ROLLBACK", I);
    assert_eq!(it.query("SELECT 1").runs[0].search_path, None);
    it.done("SELECT 1");
    it.ready(I);
    it.did("DISCARD ALL", "DISCARD ALL", I);
    it.did("BEGIN", "BEGIN", T);
    let read = it.did("SELECT 1", "SELECT 1", T);
    assert!(read.runs[0].search_path.is_some());
    assert!(!late(&it));
}
