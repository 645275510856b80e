//! What statements do: reads, writes with their targets, definitions, maintenance.

use super::{Class, Lexing, Unreadable, check, classify, one, told};

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
        ("SELECT * FROM t, s.u FOR SHARE", "w s.u t"),
        ("SELECT * FROM t JOIN u ON a = b FOR UPDATE OF u", "w u"),
        (
            "SELECT * FROM t AS x CROSS JOIN x AS y FOR UPDATE OF y, x",
            "w x t",
        ),
        (
            "SELECT * FROM (SELECT * FROM t) x, u FOR UPDATE OF u",
            "w u",
        ),
        (
            "SELECT * FROM (SELECT * FROM t) x, u FOR UPDATE OF x",
            "w u t",
        ),
        ("SELECT * FROM (SELECT * FROM t) x, u FOR UPDATE", "w u t"),
        (
            "WITH x AS (SELECT * FROM t FOR UPDATE SKIP LOCKED) SELECT * FROM u, x",
            "w t",
        ),
        ("SELECT * FROM (SELECT * FROM t FOR UPDATE) x, u", "w t"),
        (
            "SELECT * FROM t TABLESAMPLE system (1), generate_series(1, 2) g FOR UPDATE",
            "w t",
        ),
        ("SELECT * FROM t FOR UPDATE OF nothing", "w t"),
        (
            "SELECT * FROM s.t, u WHERE a IN (SELECT 1 FROM v FOR KEY SHARE)",
            "w v",
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
        ("CREATE RULE r AS ON INSERT TO t DO ALSO NOTIFY c", "w t"),
        ("CREATE POLICY p ON t USING (f())", "w t"),
        (
            "ALTER TABLE p ATTACH PARTITION c FOR VALUES IN (1)",
            "w c p",
        ),
        ("ALTER TABLE c INHERIT p", "w p c"),
        ("ALTER TABLE t DROP COLUMN a CASCADE", "w t t"),
        ("ALTER TABLE scratch RENAME TO orders", "w scratch orders"),
        ("ALTER TABLE t RENAME COLUMN a TO b", "w t"),
        ("ALTER TABLE a.t SET SCHEMA b", "w a.t b.t"),
        (
            "ALTER TABLE t SET (fillfactor = 70), RESET (fillfactor)",
            "w t",
        ),
        ("ALTER TABLE t ALTER a SET (n_distinct = 5)", "w t"),
        ("ALTER TABLE t ALTER a SET STATISTICS 100", "w t"),
        ("ALTER TABLE t ALTER a SET STORAGE EXTERNAL", "w t"),
        (
            "ALTER TABLE t ALTER a SET GENERATED ALWAYS RESTART 7",
            "w t",
        ),
        (
            "ALTER TABLE t ALTER a ADD GENERATED ALWAYS AS IDENTITY (START 7)",
            "w t",
        ),
        ("ALTER TABLE t ALTER CONSTRAINT c DEFERRABLE", "w t"),
        ("ALTER TABLE t REPLICA IDENTITY USING INDEX i", "w t"),
        ("ALTER TABLE t OF s.row, OWNER TO r", "w t"),
        ("ALTER FOREIGN TABLE t OPTIONS (SET a '1')", "w t"),
        ("ALTER INDEX i ALTER 1 SET STATISTICS 9", "w i"),
        ("DROP TABLE a, s.b", "w a s.b"),
        ("DROP TABLE a CASCADE", "w a"),
        ("DROP TRIGGER x ON t CASCADE", "w *"),
        ("ALTER TYPE t DROP ATTRIBUTE a CASCADE", "w t *"),
        ("ALTER TYPE t ADD VALUE 'a' BEFORE 'b'", "w in:?"),
        ("ALTER TYPE t RENAME VALUE 'a' TO 'b'", "w *"),
        // What it names is of several kinds, which the library does not tell.
        ("CREATE STATISTICS s ON a, b FROM t", "w *"),
        ("CREATE STATISTICS s ON a FROM t JOIN u USING (a)", "w *"),
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
        ("CREATE DATABASE d", "w"),
        ("DROP DATABASE d", "w"),
        ("ALTER DATABASE d SET a = 1", "w"),
        ("CREATE ROLE r", "w"),
        ("ALTER ROLE r NOLOGIN", "w"),
        ("DROP ROLE r", "w"),
        ("GRANT r TO u", "w"),
        (
            "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO u",
            "w in:?",
        ),
        (
            "CREATE PUBLICATION p FOR TABLE t, s.u WHERE (a > 1)",
            "w t s.u",
        ),
        ("CREATE PUBLICATION p FOR TABLES IN SCHEMA s", "w *"),
        ("CREATE PUBLICATION p FOR ALL TABLES", "w *"),
        ("ALTER PUBLICATION p ADD TABLE t", "w *"),
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
        ascii_safe: false,
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
    let long = vec![b' '; super::super::TEXT_BYTES_MAX + 1];
    assert_eq!(why(&long, Lexing::CERTAIN), Some(Unreadable::TooLong));
    let many = ";SELECT 1".repeat(super::super::STATEMENTS_MAX + 1);
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
fn what_alter_table_computes_at_once_is_named() {
    for text in [
        "ALTER TABLE t ALTER COLUMN a TYPE int USING f(a)",
        "ALTER TABLE t ADD COLUMN b int DEFAULT f(1)",
        "ALTER TABLE t ADD CONSTRAINT c CHECK (f(a) > 0)",
    ] {
        let statement = one(text);
        let names = statement.uses.functions.iter();
        let mut names = names.map(|it| &*it.name);
        assert!(names.any(|name| name == "f"), "{text}");
    }
}
