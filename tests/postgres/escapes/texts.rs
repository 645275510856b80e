//! The texts of the escapes, and what they need.

use crate::world::WRITE;

/// What the escapes need, made past the proxy.
pub const GADGETS: &[&str] = &[
    "CREATE FUNCTION public.sneak() RETURNS int LANGUAGE sql AS \
     $$UPDATE public.orders SET note = 'written' RETURNING id$$",
    "CREATE PROCEDURE public.commits_inside() LANGUAGE plpgsql AS $$BEGIN COMMIT; \
     SET TRANSACTION READ WRITE; UPDATE public.orders SET note = 'written'; END$$",
    "CREATE VIEW public.seen AS SELECT * FROM public.orders",
    "CREATE VIEW public.acting AS SELECT id, public.sneak() FROM public.orders",
    "CREATE TABLE public.parent (id int PRIMARY KEY)",
    "INSERT INTO public.parent VALUES (1)",
    "ALTER TABLE public.orders ADD FOREIGN KEY (id) REFERENCES public.parent ON DELETE CASCADE",
    "CREATE TABLE public.base (id int, note text)",
    "ALTER TABLE public.orders INHERIT public.base",
    "CREATE FUNCTION public.sneaky(int, int) RETURNS int LANGUAGE sql AS \
     $$UPDATE public.orders SET note = 'written' RETURNING id$$",
    "CREATE OPERATOR public.### (FUNCTION = public.sneaky, LEFTARG = int, RIGHTARG = int)",
];

/// The same, by a superuser.
pub const EXTENSION: &[&str] = &[
    "CREATE EXTENSION dblink",
    "GRANT EXECUTE ON FUNCTION dblink_connect_u(text, text) TO app",
];

/// Simple queries, one after the other.
pub const BY_QUERIES: &[&[&str]] = &[
    &[WRITE],
    &["BEGIN READ WRITE", WRITE, "COMMIT"],
    &["START TRANSACTION READ WRITE", WRITE, "COMMIT"],
    &["BEGIN", "SET transaction_read_only = off", WRITE, "COMMIT"],
    &[
        "BEGIN",
        "SET LOCAL transaction_read_only = off",
        WRITE,
        "COMMIT",
    ],
    &["BEGIN", "SET transaction_read_only = 0", WRITE, "COMMIT"],
    &["BEGIN", "SET TRANSACTION READ WRITE", WRITE, "COMMIT"],
    &[
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        WRITE,
    ],
    &["SET default_transaction_read_only = off", WRITE],
    &[
        "SELECT set_config('default_transaction_read_only', 'off', false)",
        WRITE,
    ],
    &[
        "SELECT set_config('default_' || 'transaction_read_only', 'off', false)",
        WRITE,
    ],
    &[
        "BEGIN",
        "SELECT set_config('transaction_read_only', 'off', true)",
        WRITE,
        "COMMIT",
    ],
    &["SET transaction_read_only = off; UPDATE orders SET note = 'written'"],
    &["BEGIN; SET TRANSACTION READ WRITE; UPDATE orders SET note = 'written'; COMMIT"],
    &["BEGIN READ WRITE", "COMMIT AND CHAIN", WRITE, "COMMIT"],
    &["BEGIN", "ROLLBACK AND CHAIN", WRITE, "COMMIT"],
    &["SELECT 1; UPDATE orders SET note = 'written'"],
    &["SELECT 1; COMMIT; UPDATE orders SET note = 'written'"],
    &["DO $$BEGIN COMMIT; SET TRANSACTION READ WRITE; \
       UPDATE orders SET note = 'written'; END$$"],
    &["DO $$BEGIN EXECUTE 'UPDATE ' || 'orders SET note = ''written'''; END$$"],
    &["CALL commits_inside()"],
    &["SELECT sneak()"],
    &["SELECT 1 WHERE sneak() = 1"],
    &["SELECT 1 ### 2"],
    &["SELECT * FROM acting"],
    &["SET search_path = pg_temp, public", "SELECT sneak()"],
    &["WITH w AS (UPDATE orders SET note = 'written' RETURNING 1) SELECT * FROM w"],
    &["EXPLAIN ANALYZE UPDATE orders SET note = 'written'"],
    NEEDS_15,
    &[
        "PREPARE p AS UPDATE orders SET note = 'written'",
        "EXECUTE p",
    ],
    &["PREPARE p AS UPDATE orders SET note = 'written'; EXECUTE p"],
    &["COPY (UPDATE orders SET note = 'written' RETURNING 1) TO STDOUT"],
    &["UPDATE seen SET note = 'written'"],
    &["UPDATE base SET note = 'written'"],
    &["DELETE FROM parent"],
    &["TRUNCATE parent CASCADE"],
    &["TRUNCATE base"],
    &["DROP TABLE base CASCADE"],
    &[
        "SET search_path = pg_catalog",
        "UPDATE public.orders SET note = 'written'",
    ],
    &["UPDATE \"orders\" SET note = 'written'"],
    &["UPDATE app.public.orders SET note = 'written'"],
    &["UPDATE ONLY (orders) SET note = 'written'"],
    &["UPDATE U&\"\\006frders\" SET note = 'written'"],
    &["/* SELECT 1; */ UPDATE orders SET note = 'written'"],
    &[
        "SET standard_conforming_strings = off",
        "SELECT 'a\\''; UPDATE orders SET note = $$written$$; --'",
    ],
    &[
        "ALTER TABLE orders RENAME TO renamed",
        "UPDATE renamed SET note = 'written'",
    ],
    &[
        "CREATE RULE r AS ON INSERT TO plain DO ALSO UPDATE orders SET note = 'written'",
        "INSERT INTO plain VALUES (1)",
    ],
    &[
        "SELECT dblink_connect_u('c', 'dbname=app user=app port=@ host=127.0.0.1')",
        "SELECT dblink_exec('c', 'UPDATE orders SET note = ''written''')",
    ],
    NEEDS_A_RIGHT,
];

/// MERGE is not known before Postgres 15.
pub const NEEDS_15: &[&str] = &["MERGE INTO orders USING (VALUES (1)) v(i) ON id = i \
       WHEN MATCHED THEN UPDATE SET note = 'written'"];

/// The role of the tests may not run programs on the server (pg_execute_server_program).
pub const NEEDS_A_RIGHT: &[&str] = &["COPY orders FROM PROGRAM 'echo 1'"];

/// What a read-only session lets through, each for itself.
pub const PASSES_READ_ONLY: &[&str] = &[
    "VACUUM",
    "VACUUM orders",
    "ANALYZE orders",
    "REINDEX TABLE orders",
    "CLUSTER orders",
    "CHECKPOINT",
    "ALTER SYSTEM SET work_mem = '5MB'",
    "COPY orders TO PROGRAM 'cat'",
    "COPY (SELECT 1) TO '/tmp/never'",
    "SELECT pg_logical_emit_message(false, 'a', 'b')",
    "SELECT pg_create_physical_replication_slot('never')",
    "SELECT lo_create(0)",
    "SELECT lo_from_bytea(0, 'x')",
    "SELECT nextval('s')",
    "SELECT setval('s', 9)",
    "SELECT pg_replication_origin_create('never')",
    "SELECT pg_terminate_backend(0)",
    "BEGIN; LOCK TABLE orders",
    "SELECT * FROM orders FOR UPDATE",
    "SELECT * FROM orders FOR SHARE",
    "SELECT * INTO never FROM orders",
    "BEGIN; PREPARE TRANSACTION 'never'",
    "COMMIT PREPARED 'never'",
    "ROLLBACK PREPARED 'never'",
    "LOAD 'dblink'",
    "CREATE DATABASE never",
    "CREATE TEMP TABLE t AS SELECT sneak()",
    "REFRESH MATERIALIZED VIEW m",
    "GRANT ALL ON orders TO other",
    "SECURITY LABEL ON TABLE orders IS 'x'",
    "COMMENT ON TABLE orders IS 'x'",
];
