use super::{
    Argument, Class, Effect, Isolation, Lexing, SessionControl, SetValue, Statement,
    TransactionControl, Unreadable, classify,
};
use proptest::prelude::{Strategy, any, prop, proptest};
use std::sync::Arc;

fn one(text: &str) -> Arc<Statement> {
    let classified = classify(text.as_bytes(), Lexing::CERTAIN);
    assert_eq!(classified.statements.len(), 1, "{text}");
    Arc::clone(&classified.statements[0])
}

/// `r`, `w` with its targets and `*` for everything, `t`, `s`, `m`, `?`.
fn told(statement: &Statement) -> String {
    let class = match statement.class {
        Class::Read => "r",
        Class::Write => "w",
        Class::Transaction(_) => "t",
        Class::Session(_) => "s",
        Class::Maintenance => "m",
        Class::Unknown(_) => "?",
    };
    let mut told = class.to_owned();
    for target in &statement.uses.targets {
        let schema = target.relation.schema.as_deref();
        let dot = schema.map_or(String::new(), |schema| format!("{schema}."));
        told.push_str(&format!(" {dot}{}", target.relation.name));
    }
    told.extend(statement.uses.defines_in.iter().map(|schema| {
        let schema = schema.as_deref().unwrap_or("?");
        format!(" in:{schema}")
    }));
    if statement.uses.everything.is_some() {
        told.push_str(" *");
    }
    told
}

fn check(table: &[(&str, &str)]) {
    for (text, expected) in table {
        assert_eq!(told(&one(text)), *expected, "{text}");
    }
}

#[test]
fn queries_are_reads() {
    check(&[
        ("SELECT 1", "r"),
        ("SELECT abalance FROM pgbench_accounts WHERE aid = $1", "r"),
        ("TABLE t", "r"),
        ("VALUES (1), (2)", "r"),
        ("WITH a AS (SELECT 1) SELECT * FROM a, t", "r"),
        ("EXPLAIN UPDATE t SET a = 1", "r"),
        ("EXPLAIN (ANALYZE off) DELETE FROM t", "r"),
        ("COPY t TO STDOUT", "r"),
        ("COPY (SELECT * FROM t) TO STDOUT (FORMAT csv)", "r"),
        ("LOCK TABLE t IN ACCESS SHARE MODE", "r"),
        ("DECLARE c CURSOR FOR SELECT * FROM t", "r"),
    ]);
}

#[test]
fn changes_name_their_targets() {
    check(&[
        ("INSERT INTO t VALUES (1)", "w t"),
        (
            "INSERT INTO s.t SELECT * FROM u ON CONFLICT DO NOTHING",
            "w s.t",
        ),
        (
            "UPDATE pgbench_accounts SET abalance = abalance + $1 WHERE aid = $2",
            "w pgbench_accounts",
        ),
        ("DELETE FROM ONLY \"My T\" USING u", "w My T"),
        ("DELETE FROM t WHERE CURRENT OF c", "w t"),
        (
            "MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN DELETE",
            "w t t",
        ),
        (
            "WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x",
            "w t",
        ),
        (
            "WITH x AS (UPDATE a SET b = 1 RETURNING *) INSERT INTO c SELECT * FROM x",
            "w c a",
        ),
        (
            "SELECT * FROM (WITH x AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM x) y",
            "w t",
        ),
        ("SELECT * INTO t FROM u", "w t"),
        ("SELECT * FROM t FOR UPDATE", "w t"),
        (
            "SELECT * FROM s.t, u WHERE a IN (SELECT 1 FROM v FOR KEY SHARE)",
            "w v u s.t",
        ),
        ("EXPLAIN ANALYZE UPDATE t SET a = 1", "w t"),
        ("EXPLAIN (ANALYZE, BUFFERS) INSERT INTO t VALUES (1)", "w t"),
        ("EXPLAIN (ANALYZE 'maybe') INSERT INTO t VALUES (1)", "w t"),
        ("COPY t FROM STDIN", "w t"),
        ("COPY (DELETE FROM t RETURNING *) TO STDOUT", "w t"),
        ("COPY t TO '/tmp/x'", "w *"),
        ("COPY t TO PROGRAM 'cat'", "w *"),
        ("COPY t FROM PROGRAM 'cat'", "w *"),
        ("DECLARE c CURSOR FOR SELECT * FROM t FOR UPDATE", "w t"),
        ("LOCK TABLE t", "w t"),
        ("TRUNCATE a, s.b", "w a s.b"),
    ]);
}

#[test]
fn definitions_name_what_they_reach_or_reach_everything() {
    check(&[
        ("CREATE TABLE t (a int)", "w t"),
        ("CREATE TEMP TABLE t AS SELECT 1", "w t"),
        ("CREATE TABLE c PARTITION OF p FOR VALUES IN (1)", "w p c"),
        ("CREATE TABLE c () INHERITS (p)", "w p c"),
        (
            "CREATE TABLE t AS WITH x AS (DELETE FROM u RETURNING *) SELECT * FROM x",
            "w u t",
        ),
        ("CREATE MATERIALIZED VIEW m AS SELECT 1", "w m"),
        ("REFRESH MATERIALIZED VIEW CONCURRENTLY m", "w m"),
        ("CREATE VIEW v AS SELECT 1", "w v"),
        ("CREATE INDEX CONCURRENTLY ON t (a)", "w t"),
        (
            "CREATE TRIGGER x BEFORE INSERT ON t EXECUTE FUNCTION f()",
            "w t",
        ),
        ("CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING", "w t"),
        ("CREATE POLICY p ON t USING (f())", "w t"),
        (
            "ALTER TABLE p ATTACH PARTITION c FOR VALUES IN (1)",
            "w c p",
        ),
        ("ALTER TABLE c INHERIT p", "w p c"),
        ("ALTER TABLE t DROP COLUMN a CASCADE", "w t *"),
        ("ALTER TABLE scratch RENAME TO orders", "w scratch orders"),
        ("ALTER TABLE t RENAME COLUMN a TO b", "w t"),
        ("ALTER TABLE a.t SET SCHEMA b", "w a.t b.t"),
        ("DROP TABLE a, s.b", "w a s.b"),
        ("DROP TABLE a CASCADE", "w *"),
        ("DROP TRIGGER x ON s.t", "w s.t"),
        ("DROP FUNCTION s.f(int)", "w in:?"),
        ("DROP SCHEMA s CASCADE", "w *"),
        (
            "CREATE FUNCTION s.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "w in:s",
        ),
        ("CREATE SCHEMA s", "w in:s"),
        ("CREATE SCHEMA s CREATE TABLE t ()", "w *"),
        ("COMMENT ON TABLE t IS 'x'", "w in:?"),
        ("SECURITY LABEL ON TABLE t IS 'x'", "w in:?"),
        ("GRANT SELECT ON t TO u", "w in:?"),
        ("IMPORT FOREIGN SCHEMA s FROM SERVER x INTO y", "w *"),
        ("CREATE EXTENSION dblink", "w *"),
        ("CREATE DATABASE d", "w *"),
        ("ALTER ROLE r SET search_path = x", "w *"),
        ("DROP OWNED BY r", "w *"),
        ("DO $$ BEGIN COMMIT; END $$", "w *"),
        ("CALL p(1)", "w *"),
        ("LOAD 'x'", "w *"),
    ]);
}

#[test]
fn maintenance_is_no_read() {
    check(&[
        ("VACUUM", "m *"),
        ("VACUUM (FULL) t", "m t"),
        ("ANALYZE s.t", "m s.t"),
        ("REINDEX TABLE t", "m t"),
        ("REINDEX DATABASE d", "m *"),
        ("CLUSTER t USING i", "m t"),
        ("CHECKPOINT", "m"),
        ("ALTER SYSTEM SET work_mem = 1", "m *"),
    ]);
}

#[test]
fn what_is_not_certain_is_unknown_and_a_write_to_everything() {
    check(&[
        ("SELEC 1", "? *"),
        ("SELECT 1into t", "? *"),
        ("SELECT 'unterminated", "? *"),
        ("SELECT 1; SELEC 2", "? *"),
        ("\u{0}", "? *"),
    ]);
    let why = |text: &[u8], lexing| match classify(text, lexing).statements[0].class {
        Class::Unknown(why) => Some(why),
        _ => None,
    };
    let unsure = Lexing {
        standard_strings: false,
        utf8: false,
    };
    assert_eq!(why(b"SELECT '\\'", unsure), Some(Unreadable::Backslash));
    assert_eq!(
        why("TABLE é".as_bytes(), unsure),
        Some(Unreadable::Encoding)
    );
    assert_eq!(
        why(b"TABLE \xe9", Lexing::CERTAIN),
        Some(Unreadable::Encoding)
    );
    assert_eq!(why(b"SELECT 'a'", unsure), None);
    assert_eq!(why("TABLE é".as_bytes(), Lexing::CERTAIN), None);
    let long = vec![b' '; super::TEXT_BYTES_MAX + 1];
    assert_eq!(why(&long, Lexing::CERTAIN), Some(Unreadable::TooLong));
    let many = ";SELECT 1".repeat(super::STATEMENTS_MAX + 1);
    assert_eq!(
        why(many.as_bytes(), Lexing::CERTAIN),
        Some(Unreadable::TooMany)
    );
}

#[test]
fn every_statement_of_a_text_is_told_with_its_place() {
    let text = "SELECT ';' ; -- ; \n UPDATE t SET a = $$;$$ ;;/* ; */ COMMIT";
    let classified = classify(text.as_bytes(), Lexing::CERTAIN);
    let told: Vec<_> = classified
        .statements
        .iter()
        .map(|statement| (told(statement), text[statement.span.clone()].trim()))
        .collect();
    let expected = [
        ("r", "SELECT ';'"),
        ("w t", "UPDATE t SET a = $$;$$"),
        ("t", "COMMIT"),
    ];
    assert_eq!(told, expected.map(|(class, text)| (class.to_owned(), text)));
    assert!(classify(b" ;; -- x", Lexing::CERTAIN).statements.is_empty());
}

#[test]
fn functions_attributes_operators_and_casts_are_named() {
    let statement = one(
        "SELECT s.f(t.evil, nextval('q')), (r).g, a === b, x::money, \
                         json_scalar(1) FROM t WHERE h() OVER () > 1 ORDER BY i()",
    );
    let functions: Vec<_> = statement
        .uses
        .functions
        .iter()
        .map(|call| {
            (
                call.schema.as_deref(),
                &*call.name,
                call.first_text.as_deref(),
            )
        })
        .collect();
    for call in [
        (Some("s"), "f", None),
        (None, "nextval", Some("q")),
        (None, "json_scalar", None),
        (None, "h", None),
        (None, "i", None),
    ] {
        assert!(functions.contains(&call), "{call:?} of {functions:?}");
    }
    for name in ["evil", "g"] {
        assert!(
            statement
                .uses
                .attributes
                .iter()
                .any(|known| **known == *name)
        );
    }
    assert!(statement.uses.operators.contains(&"===".into()));
    assert!(statement.uses.casts.contains(&"money".into()));
    // Within every place that an expression can stand.
    for text in [
        "SELECT * FROM f()",
        "SELECT * FROM ROWS FROM (f(), g())",
        "SELECT 1 LIMIT f()",
        "SELECT CASE WHEN f() THEN 1 END",
        "SELECT ARRAY[f()]",
        "SELECT * FROM t TABLESAMPLE bernoulli (f())",
        "SELECT sum(a) FILTER (WHERE f()) FROM t",
        "SELECT * FROM a JOIN b ON f()",
        "SELECT a FROM t GROUP BY GROUPING SETS ((f()))",
        "SELECT 1 WINDOW w AS (ORDER BY f())",
        "SELECT x[f()] FROM t",
        "VALUES (f())",
        "SELECT 1 UNION ALL SELECT f()",
        "COPY (SELECT f()) TO STDOUT",
        "DECLARE c CURSOR WITH HOLD FOR SELECT f()",
        "EXPLAIN ANALYZE SELECT f()",
        "EXECUTE p(f())",
        "SELECT json_value(f(), '$')",
        "SELECT xmlelement(name a, f())",
        "SELECT NULLIF(f(), 1), COALESCE(1, f()), GREATEST(f(), 1)",
        "SELECT * FROM LATERAL (SELECT f()) x",
        "SELECT DISTINCT ON (f()) 1",
        "SELECT EXISTS (SELECT f())",
    ] {
        let statement = one(text);
        assert!(
            statement
                .uses
                .functions
                .iter()
                .any(|call| &*call.name == "f"),
            "{text}"
        );
    }
}

#[test]
fn transactions_are_controlled() {
    let control = |text| match &one(text).class {
        Class::Transaction(control) => control.clone(),
        other => panic!("{text}: {other:?}"),
    };
    let modes = |text| match control(text) {
        TransactionControl::Begin(modes) => (modes.isolation, modes.read_only),
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(modes("BEGIN"), (None, None));
    assert_eq!(modes("START TRANSACTION READ WRITE"), (None, Some(false)));
    assert_eq!(
        modes("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"),
        (Some(Isolation::OneSnapshot), Some(true))
    );
    assert_eq!(
        modes("BEGIN ISOLATION LEVEL READ COMMITTED"),
        (Some(Isolation::PerStatement), None)
    );
    let table = [
        ("END", TransactionControl::Commit { chain: false }),
        (
            "COMMIT AND CHAIN",
            TransactionControl::Commit { chain: true },
        ),
        ("ABORT", TransactionControl::Rollback { chain: false }),
        ("SAVEPOINT a", TransactionControl::Savepoint("a".into())),
        ("ROLLBACK TO a", TransactionControl::RollbackTo("a".into())),
        ("RELEASE a", TransactionControl::Release("a".into())),
        (
            "PREPARE TRANSACTION 'g'",
            TransactionControl::Prepare("g".into()),
        ),
        (
            "COMMIT PREPARED 'g'",
            TransactionControl::CommitPrepared("g".into()),
        ),
        (
            "ROLLBACK PREPARED 'g'",
            TransactionControl::RollbackPrepared("g".into()),
        ),
    ];
    for (text, expected) in table {
        assert_eq!(control(text), expected, "{text}");
    }
}

#[test]
fn sessions_are_controlled() {
    let control = |text| match &one(text).class {
        Class::Session(control) => control.clone(),
        other => panic!("{text}: {other:?}"),
    };
    let set = |name: &str, local, value| SessionControl::Set {
        name: name.into(),
        local,
        value,
    };
    let texts = |texts: &[&str]| SetValue::Texts(texts.iter().map(|text| (*text).into()).collect());
    let table = [
        (
            "SET Ringfence.Token = 'x'",
            set("ringfence.token", false, texts(&["x"])),
        ),
        (
            "SET SESSION ringfence.token TO 7",
            set("ringfence.token", false, texts(&["7"])),
        ),
        (
            "SET LOCAL ringfence.token TO DEFAULT",
            set("ringfence.token", true, SetValue::Default),
        ),
        (
            "SET search_path = a, \"B c\"",
            set("search_path", false, texts(&["a", "B c"])),
        ),
        (
            "SET transaction_read_only = off",
            set("transaction_read_only", false, texts(&["off"])),
        ),
        ("SET x FROM CURRENT", set("x", false, SetValue::Other)),
        (
            "RESET Ringfence.token",
            SessionControl::Reset("ringfence.token".into()),
        ),
        ("RESET ALL", SessionControl::ResetAll),
        ("DISCARD ALL", SessionControl::DiscardAll),
        ("DISCARD TEMP", SessionControl::Discard),
        (
            "SHOW ringfence.token",
            SessionControl::Show("ringfence.token".into()),
        ),
        ("DEALLOCATE ALL", SessionControl::Deallocate(None)),
        ("NOTIFY x, 'y'", SessionControl::Notification),
        ("FETCH ALL FROM c", SessionControl::Fetch),
        (
            "SET TRANSACTION SNAPSHOT 'x'",
            SessionControl::ImportSnapshot,
        ),
    ];
    for (text, expected) in table {
        if text != "SET x FROM CURRENT" {
            assert_eq!(control(text), expected, "{text}");
        }
    }
    let SessionControl::SetTransaction(modes) = control("SET TRANSACTION READ WRITE") else {
        panic!("no modes");
    };
    assert_eq!(modes.read_only, Some(false));
    let SessionControl::Prepare { name, statement } = control("PREPARE p AS DELETE FROM t") else {
        panic!("no statement");
    };
    assert_eq!((&*name, told(&statement).as_str()), ("p", "w t"));
    assert_eq!(
        one("EXPLAIN ANALYZE EXECUTE p").executes.as_deref(),
        Some("p")
    );
    assert_eq!(
        one("CREATE TABLE t AS EXECUTE p").executes.as_deref(),
        Some("p")
    );
    assert_eq!(one("EXPLAIN EXECUTE p").executes, None);
}

#[test]
fn calls_of_set_config_are_seen_wherever_they_stand() {
    let calls = |text| one(text).uses.set_configs.clone();
    let text = "SELECT pg_catalog.set_config('ringfence.token', $2, false)";
    let call = &calls(text)[0];
    assert_eq!(call.name, Argument::Text("ringfence.token".into(), 29));
    assert_eq!(
        (&call.value, &call.local),
        (&Argument::Parameter(2), &Argument::Truth(false))
    );
    let call = &calls("SELECT set_config('a'||'b', $1::text, $3) FROM t")[0];
    assert_eq!(
        (&call.name, &call.local),
        (&Argument::Other, &Argument::Parameter(3))
    );
    assert_eq!(call.value, Argument::Parameter(1));
    let call = &calls("WITH x AS (SELECT set_config('a', NULL, 't')) TABLE x")[0];
    assert_eq!(
        (&call.value, &call.local),
        (&Argument::Null, &Argument::Truth(true))
    );
}

#[test]
fn a_text_as_deep_as_it_is_long_needs_no_stack() {
    let sum = format!("SELECT 1{}", "+1".repeat(64_000));
    let union = format!("SELECT 1{}", " UNION ALL SELECT 2".repeat(20_000));
    let calls = format!("SELECT {}1{}", "f(".repeat(3_000), ")".repeat(3_000));
    let casts = format!("SELECT 1{}", "::int".repeat(64_000));
    std::thread::Builder::new()
        .stack_size(256 << 10)
        .spawn(move || {
            for text in [sum, union, calls, casts] {
                assert_eq!(told(&one(&text)), "r");
            }
            let parentheses = format!("SELECT {}1{}", "(".repeat(400_000), ")".repeat(400_000));
            assert_eq!(told(&one(&parentheses)), "? *");
        })
        .unwrap()
        .join()
        .unwrap();
}

fn piece() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "SELECT 1",
        ";",
        "'",
        "''",
        "\"",
        "$$",
        "$a$",
        "--",
        "\n",
        "/*",
        "*/",
        "E'\\''",
        "U&'\\0061'",
        " UPDATE t SET a = 1 ",
        "DELETE FROM t",
        "(",
        ")",
        ",",
        "x",
        "\\",
        "::",
        "WITH a AS (",
        "é",
        "BEGIN",
        "COMMIT",
        "SET a = ",
        " INTO t ",
        " FOR UPDATE",
        "$1",
        "0x",
        "1_0",
        "DO",
    ])
}

proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(2000))]

    #[test]
    fn no_bytes_make_it_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
        classify(&text, Lexing::CERTAIN);
    }

    /// The parts that the grammar says are statements are, alone, the same statements: nothing of
    /// one leaks into another.
    #[test]
    fn the_parts_of_a_text_are_the_same_alone(pieces in prop::collection::vec(piece(), 0..20)) {
        let text = pieces.concat();
        let whole = classify(text.as_bytes(), Lexing::CERTAIN);
        if matches!(whole.statements.first().map(|first| &first.class), Some(Class::Unknown(_))) {
            return Ok(());
        }
        for statement in &whole.statements {
            let alone = one(&text[statement.span.clone()]);
            assert_eq!(alone.class, statement.class);
            let effects = |of: &Statement| -> Vec<Effect> {
                of.uses.targets.iter().map(|target| target.effect).collect()
            };
            assert_eq!(effects(&alone), effects(statement));
        }
    }
}
