//! Statements to try: by hand, and put together.

/// What the database has.
pub const SCHEMA: &[&str] = &[
    "CREATE TABLE t (a int PRIMARY KEY, b text)",
    "INSERT INTO t SELECT x, 'b' FROM generate_series(1, 9) x",
    "CREATE TABLE u (a int REFERENCES t ON DELETE CASCADE)",
    "CREATE TABLE p (a int) PARTITION BY LIST (a)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)",
    "CREATE SEQUENCE s",
    "CREATE VIEW v AS SELECT * FROM t",
    "CREATE FUNCTION evil() RETURNS int LANGUAGE sql VOLATILE \
     AS 'INSERT INTO t VALUES (100 + random() * 1000000) RETURNING a'",
    "CREATE FUNCTION evil(t) RETURNS int LANGUAGE sql VOLATILE \
     AS 'INSERT INTO t VALUES (200 + random() * 1000000) RETURNING a'",
    "CREATE FUNCTION evil_eq(int, int) RETURNS bool LANGUAGE sql VOLATILE \
     AS 'INSERT INTO t VALUES (300 + random() * 1000000) RETURNING true'",
    "CREATE OPERATOR === (LEFTARG = int, RIGHTARG = int, FUNCTION = evil_eq)",
    "CREATE TYPE evil_type AS (a int)",
    "CREATE FUNCTION evil_cast(int) RETURNS evil_type LANGUAGE sql VOLATILE \
     AS 'INSERT INTO t VALUES (400 + random() * 1000000) RETURNING ROW(a)::evil_type'",
    "CREATE CAST (int AS evil_type) WITH FUNCTION evil_cast(int)",
    "CREATE VIEW evil_view AS SELECT evil() AS a",
    "CREATE FUNCTION fine(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1'",
    "CREATE FUNCTION \"json_scalar\"(int) RETURNS int LANGUAGE sql VOLATILE AS 'SELECT evil()'",
    "CREATE PROCEDURE proc() LANGUAGE sql AS 'INSERT INTO t VALUES (1000)'",
    "CREATE MATERIALIZED VIEW m AS SELECT 1 AS a",
    "CREATE RULE r AS ON INSERT TO v DO INSTEAD INSERT INTO u VALUES (1)",
];

/// Must be called reads, and succeed.
pub const READS: &[&str] = &[
    "SELECT 1",
    "TABLE t",
    "VALUES (1), (2)",
    "SELECT * FROM t, p1 WHERE t.a = p1.a",
    "SELECT * FROM v",
    "SELECT count(*), max(a), string_agg(b, ',') FROM t GROUP BY b HAVING count(*) > 0",
    "SELECT now(), clock_timestamp(), random(), pg_backend_pid(), current_user",
    "SELECT fine(1), lower('A'), coalesce(NULL, 1), greatest(1, 2), nullif(1, 2)",
    "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x WHERE n < 5) TABLE x",
    "SELECT row_number() OVER (PARTITION BY b ORDER BY a) FROM t",
    "SELECT a::text, b || 'x', a BETWEEN 1 AND 2, b LIKE 'x%', a IN (1, 2) FROM t",
    "SELECT ARRAY[1, 2], ROW(1, 2), CASE WHEN true THEN 1 END, '{\"a\":1}'::jsonb -> 'a'",
    "SELECT * FROM generate_series(1, 3) x, LATERAL (SELECT x + 1) y",
    "SELECT * FROM t TABLESAMPLE BERNOULLI (50)",
    "SELECT relname FROM pg_class WHERE relkind = 'r'",
    "SELECT table_name FROM information_schema.tables",
    "SELECT pg_relation_size('t'), pg_size_pretty(pg_database_size(current_database()))",
    "SELECT pg_advisory_lock(1), pg_advisory_unlock(1), pg_try_advisory_xact_lock(2)",
    "SELECT set_config('application_name', 'x', true), current_setting('application_name')",
    "SELECT pg_notify('a', 'b'), pg_sleep(0)",
    "EXPLAIN SELECT * FROM t",
    "EXPLAIN ANALYZE SELECT * FROM t",
    "EXPLAIN UPDATE t SET a = 1",
    "EXPLAIN DELETE FROM t",
    "COPY t TO STDOUT",
    "COPY (SELECT * FROM t) TO STDOUT",
    "DECLARE c CURSOR FOR SELECT * FROM t",
    "LOCK TABLE t IN ACCESS SHARE MODE",
    "PREPARE x AS SELECT * FROM t",
    "PREPARE y AS INSERT INTO t VALUES (1)",
    "SHOW search_path",
    "SET LOCAL work_mem = '5MB'",
    "RESET work_mem",
    "SET CONSTRAINTS ALL DEFERRED",
    "SAVEPOINT a",
    "LISTEN x",
    "NOTIFY x",
    "DEALLOCATE ALL",
    "DISCARD PLANS",
    "SELECT 1; SELECT 2",
    "",
];

/// Must be called writes: most of them the server refuses, too.
pub const WRITES: &[&str] = &[
    "INSERT INTO t VALUES (1)",
    "UPDATE t SET b = 'x'",
    "DELETE FROM t",
    "MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN DELETE",
    "TRUNCATE t",
    "SELECT * INTO n FROM t",
    "SELECT * FROM t FOR UPDATE",
    "SELECT * FROM t FOR KEY SHARE",
    "SELECT nextval('s')",
    "SELECT setval('s', 5)",
    "SELECT evil()",
    "SELECT t.evil FROM t",
    "SELECT (t).evil FROM t",
    "SELECT 1 === 1",
    "SELECT 1::evil_type",
    "SELECT * FROM evil_view",
    "SELECT json_scalar(1)",
    "INSERT INTO v VALUES (1)",
    "WITH x AS (DELETE FROM t RETURNING *) TABLE x",
    "EXPLAIN ANALYZE DELETE FROM t",
    "COPY t FROM STDIN",
    "COPY (DELETE FROM t RETURNING *) TO STDOUT",
    "CREATE TABLE n (a int)",
    "CREATE INDEX ON t (b)",
    "ALTER TABLE t ADD c int",
    "DROP TABLE u",
    "COMMENT ON TABLE t IS 'x'",
    "GRANT SELECT ON t TO PUBLIC",
    "REFRESH MATERIALIZED VIEW m",
    "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "SELECT lo_create(0)",
    "SELECT lo_from_bytea(0, 'x')",
    "SELECT 1; DELETE FROM t",
    "DECLARE c CURSOR WITH HOLD FOR SELECT evil()",
    "PREPARE z AS SELECT 1; EXECUTE z",
];

/// Allowed in a READ ONLY transaction, or able to leave it: must be called writes, or be known to
/// turn a session read-write.
pub const ESCAPES: &[&str] = &[
    "VACUUM t",
    "ANALYZE t",
    "REINDEX TABLE t",
    "CLUSTER",
    "CHECKPOINT",
    "ALTER SYSTEM SET work_mem = '5MB'",
    "COPY t TO '/tmp/ringfence-never-written'",
    "COPY t TO PROGRAM 'cat'",
    "LOCK TABLE t IN EXCLUSIVE MODE",
    "SELECT pg_logical_emit_message(true, 'a', 'b')",
    "SELECT pg_create_physical_replication_slot('x')",
    "SELECT pg_replication_origin_create('x')",
    "SELECT pg_terminate_backend(0)",
    "SELECT query_to_xml('DELETE FROM t', true, true, '')",
    "PREPARE TRANSACTION 'g'",
    "COMMIT PREPARED 'g'",
    "BEGIN READ WRITE",
    "START TRANSACTION READ WRITE",
    "SET transaction_read_only = off",
    "SET LOCAL transaction_read_only = off",
    "SET TRANSACTION READ WRITE",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
    "SET default_transaction_read_only = off",
    "SELECT set_config('default_transaction_read_only', 'off', false)",
    "COMMIT AND CHAIN",
    "SET transaction_read_only = off; UPDATE t SET b = 'x'",
    "DO $$ BEGIN COMMIT; SET TRANSACTION READ WRITE; UPDATE t SET b = 'x'; END $$",
    "CALL proc()",
];

/// Statements put around a query.
const AROUND: &[&str] = &[
    "@",
    "EXPLAIN @",
    "EXPLAIN (ANALYZE, COSTS off) @",
    "EXPLAIN (ANALYZE false) @",
    "COPY (@) TO STDOUT",
    "DECLARE c NO SCROLL CURSOR FOR @",
    "CREATE TEMP TABLE n AS @",
    "PREPARE q AS @",
    "@ /* comment */",
    "SELECT 1; @",
];

/// Queries put within a query.
const WITHIN: &[&str] = &[
    "@",
    "WITH x AS (@) TABLE x",
    "WITH x AS NOT MATERIALIZED (@) SELECT * FROM x, t",
    "SELECT * FROM (@) x",
    "SELECT (@)",
    "SELECT EXISTS (@)",
    "SELECT ARRAY(@)",
    "SELECT 1 WHERE 1 IN (@)",
    "SELECT * FROM t, LATERAL (@) y",
    "(@) UNION ALL (SELECT 1)",
    "SELECT 1 LIMIT (@)",
];

const QUERIES: &[&str] = &[
    "SELECT 1",
    "SELECT a FROM t WHERE a = 1",
    "SELECT fine(a) FROM p WHERE a = 1",
    "SELECT a FROM v LIMIT 1",
    "SELECT evil()",
    "SELECT nextval('s')::int",
    "SELECT a FROM evil_view",
    "SELECT 1 WHERE 1 === 1",
    "SELECT a FROM t WHERE a = 1 FOR SHARE",
    "INSERT INTO p VALUES (1) RETURNING a",
    "UPDATE t SET b = 'y' WHERE a = 1 RETURNING a",
    "DELETE FROM u RETURNING a",
    "SELECT random()::int",
    "SELECT count(*)::int FROM pg_class, t",
];

/// All of them.
pub fn all() -> Vec<String> {
    let by_hand = READS.iter().chain(WRITES).map(|text| (*text).to_owned());
    let mut texts: Vec<String> = by_hand.collect();
    for query in QUERIES {
        for within in WITHIN {
            for around in AROUND {
                texts.push(around.replace('@', &within.replace('@', query)));
            }
        }
    }
    texts
}
