//! Definitions on tables that no rule covers, as migrations make them: they need no ticket, however
//! much goes with what they drop, unless that reaches what is guarded.

use crate::cascade::SHAPE;
use crate::stack::ORDERS;
use crate::world::World;

pub fn guarding_orders() -> World {
    World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS))
}

/// What frameworks do in one transaction, on a table that no rule covers.
#[test]
fn a_migration_of_other_tables_needs_no_ticket() {
    let world = guarding_orders();
    let mut client = world.proxy.client();
    for sql in [
        "DROP TABLE IF EXISTS items, nowhere.at_all",
        "DROP VIEW IF EXISTS shown",
        "DROP INDEX IF EXISTS by_note",
        "BEGIN",
        "DROP TABLE IF EXISTS items",
        "CREATE TYPE state AS ENUM ('new', 'old')",
        "CREATE TABLE items (id int PRIMARY KEY, s state DEFAULT 'new', note text DEFAULT 'x')",
        "CREATE INDEX ON items (note) WHERE note = 'x'",
        "ALTER TABLE plain ADD COLUMN more int",
        "CREATE INDEX ON plain (more)",
        "ALTER TABLE plain ALTER COLUMN more SET DEFAULT 7",
        "ALTER TABLE plain ALTER COLUMN more SET NOT NULL",
        "ALTER TABLE plain ADD CONSTRAINT positive CHECK (more > 0), ADD CONSTRAINT one UNIQUE (more)",
        "ALTER TABLE plain ADD CONSTRAINT of_item FOREIGN KEY (more) REFERENCES items (id) \
         DEFERRABLE INITIALLY DEFERRED NOT VALID",
        "ALTER TABLE plain ADD COLUMN parent int REFERENCES items (id) ON UPDATE CASCADE",
        "SET CONSTRAINTS of_item IMMEDIATE",
        "ALTER TABLE plain VALIDATE CONSTRAINT of_item",
        "CREATE INDEX ON plain (parent)",
        "INSERT INTO items (id) VALUES (1), (2)",
        "INSERT INTO plain VALUES (1, 'x', 1, 2)",
        "UPDATE plain SET more = 2 WHERE id = 1",
        "ALTER TYPE state ADD VALUE 'older'",
        "ALTER TABLE items DROP COLUMN note CASCADE",
        "DELETE FROM items WHERE id = 1",
        "COMMIT",
    ] {
        let told = client.query(sql);
        assert_eq!(told.code(), "", "{sql}: {told:?}");
    }
}

#[test]
fn what_leaves_other_names_as_they_are_needs_no_ticket_behind_it() {
    let world = guarding_orders();
    let mut direct = world.direct();
    for sql in [
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE SEQUENCE counter",
        "CREATE SCHEMA aside",
        "CREATE TABLE plain2 (a int)",
        "CREATE TABLE part_of (id int) PARTITION BY LIST (id)",
    ] {
        direct.query(sql).ok();
    }
    let mut client = world.proxy.client();
    for sql in [
        "ALTER TABLE plain RENAME COLUMN note TO noted",
        "ALTER TABLE plain RENAME TO renamed",
        "ALTER TABLE plain SET SCHEMA aside",
        "ALTER INDEX other_pkey RENAME TO by_id",
        "ALTER TABLE other RENAME CONSTRAINT other_pkey TO by_id",
        "ALTER SEQUENCE counter RESTART",
        "ALTER SEQUENCE counter OWNED BY plain.id",
        "ALTER TABLE plain ADD FOREIGN KEY (id) REFERENCES other",
        "ALTER TABLE plain SET (fillfactor = 70), ALTER id SET (n_distinct = 5)",
        "ALTER TABLE plain DISABLE TRIGGER USER, ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE plain SET UNLOGGED",
        "CREATE TYPE pair AS (a int, b int)",
    ] {
        client.query("BEGIN").ok();
        for sql in [sql, "INSERT INTO other VALUES (1)", "SELECT 1 FROM plain2"] {
            let told = client.query(sql);
            assert_eq!(told.code(), "", "{sql}: {told:?}");
        }
        client.query("ROLLBACK").ok();
    }
    // What a view is, no catalog tells before it is committed.
    client
        .query("BEGIN; CREATE VIEW shown AS SELECT 1 AS one")
        .ok();
    client
        .query("INSERT INTO other VALUES (1)")
        .refused("RF002");
    client.query("ROLLBACK").ok();
}

/// By its new name, which means something else to the catalog, it does what it did.
#[test]
fn what_is_renamed_needs_all_that_it_can_do() {
    let world = guarding_orders();
    let mut direct = world.direct();
    for sql in [
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "INSERT INTO parent VALUES (1)",
        "ALTER TABLE orders ADD FOREIGN KEY (id) REFERENCES parent ON DELETE CASCADE",
        "CREATE VIEW seen AS SELECT * FROM orders",
        "CREATE FUNCTION sneak() RETURNS int LANGUAGE sql AS \
         $$DELETE FROM orders RETURNING id$$",
        "CREATE VIEW acting AS SELECT sneak() AS id",
        "CREATE SCHEMA aside",
        "CREATE TABLE aside.taken (id int)",
    ] {
        direct.query(sql).ok();
    }
    let mut client = world.proxy.client();
    client.query("SET search_path = public, aside").ok();
    for (moves, then) in [
        ("ALTER TABLE parent RENAME TO taken", "DELETE FROM taken"),
        ("ALTER TABLE seen RENAME TO taken", "DELETE FROM taken"),
        ("ALTER VIEW acting RENAME TO taken", "SELECT * FROM taken"),
        (
            "DROP TABLE aside.taken; ALTER TABLE parent SET SCHEMA aside",
            "DELETE FROM aside.parent",
        ),
    ] {
        client.query("BEGIN").ok();
        client.query(moves).refused("RF002");
        client.query("ROLLBACK").ok();
        // Past the proxy it does.
        direct.query("SET search_path = public, aside; BEGIN").ok();
        direct.query(moves).ok();
        direct.query(then).ok();
        assert_eq!(
            direct.query("SELECT count(*) FROM orders").value(),
            "0",
            "{moves}"
        );
        direct.query("ROLLBACK").ok();
    }
}

/// What is done in one transaction with what the guarded table depends on, by another's name or by
/// what it has become a part of.
#[test]
fn no_statement_of_a_transaction_reaches_further_than_what_came_before_it_needed() {
    let world = guarding_orders();
    let mut direct = world.direct();
    for sql in [
        "CREATE TABLE t1 (id int UNIQUE, note text)",
        "CREATE TABLE keyed (id int, note text)",
        "CREATE UNIQUE INDEX by_id ON keyed (id)",
        "CREATE TABLE base (id int, note text)",
        "CREATE TABLE middle (id int PRIMARY KEY, t int)",
        "CREATE TABLE lone (id int PRIMARY KEY)",
        "CREATE SEQUENCE used",
        "ALTER TABLE orders INHERIT base, ALTER note SET DEFAULT nextval('used')::text, \
         ADD COLUMN k int REFERENCES keyed (id), ADD COLUMN m int REFERENCES middle, ADD r t1",
        "UPDATE orders SET r = ROW(1, 'x')",
    ] {
        direct.query(sql).ok();
    }
    let mut client = world.proxy.client();
    for [first, then] in [
        [
            "ALTER TABLE t1 RENAME TO t2",
            "ALTER TABLE t2 DROP COLUMN note",
        ],
        ["ALTER TABLE keyed RENAME TO t2", "TRUNCATE t2 CASCADE"],
        ["ALTER INDEX by_id RENAME TO i2", "DROP INDEX i2 CASCADE"],
        [
            "ALTER SEQUENCE used RENAME TO s2",
            "DROP SEQUENCE s2 CASCADE",
        ],
        ["ALTER TABLE ONLY base RENAME TO t2", "DELETE FROM t2"],
        [
            "ALTER TABLE middle ADD FOREIGN KEY (t) REFERENCES lone",
            "TRUNCATE lone CASCADE",
        ],
        [
            "ALTER SEQUENCE used OWNED BY lone.id",
            "DROP TABLE lone CASCADE",
        ],
    ] {
        client.query("BEGIN").ok();
        let told = client.query(first);
        assert_eq!(told.code(), "RF002", "{first}: {told:?}");
        client.query("ROLLBACK").ok();
        // Past the proxy what comes behind it reaches the guarded table.
        direct.query("BEGIN").ok();
        let before = direct.query(SHAPE).value();
        direct.query(first).ok();
        direct.query(then).ok();
        assert_ne!(direct.query(SHAPE).value(), before, "{first}; {then}");
        direct.query("ROLLBACK").ok();
    }
}

/// A view over temporary tables, or made where they are, is one of the session's own: what it is
/// over is written by a name that the catalog has for something else.
#[test]
fn views_of_the_sessions_own_need_every_ticket() {
    let world = guarding_orders();
    let ticket = crate::stack::sign(&world.proxy.key, "orders", 1);
    let over = "SELECT * FROM orders WHERE id NOT IN (SELECT a FROM own)";
    let mut client = world.proxy.client();
    client.query("CREATE TEMP TABLE own (a int)").ok();
    client
        .query(&format!("CREATE VIEW plain AS {over}"))
        .refused("RF002");
    client
        .query(&format!("CREATE VIEW v AS {over}"))
        .refused("RF002");
    let mut client = world.proxy.client();
    client.query("SET search_path = pg_temp, public").ok();
    client
        .query("CREATE VIEW plain AS SELECT * FROM orders")
        .refused("RF002");
    let mut client = world.proxy.client();
    client
        .query("CREATE TEMP TABLE plain (id int, note text)")
        .ok();
    client.query("INSERT INTO plain VALUES (1, 'own')").ok();
    let rule = "CREATE RULE r AS ON INSERT TO plain DO INSTEAD \
         INSERT INTO orders VALUES (NEW.id + 1, NEW.note)";
    client
        .query(&format!("/*fencing_token='{ticket}'*/ {rule}"))
        .ok();
    client
        .query("INSERT INTO plain VALUES (1, 'late')")
        .refused("RF002");
    // Names that were taken for the session's own, or for tables of the transaction.
    let mut client = world.proxy.client();
    for makes in [
        "CREATE TEMP TABLE x (id int, note text); DROP TABLE x",
        "CREATE TABLE IF NOT EXISTS x AS SELECT 1",
        "CREATE SEQUENCE IF NOT EXISTS x",
        "SAVEPOINT s",
    ] {
        client
            .query("BEGIN; CREATE VIEW x AS SELECT * FROM orders")
            .ok();
        client.query(makes);
        client
            .query("INSERT INTO x VALUES (7, 'late')")
            .refused("RF002");
        client.query("ROLLBACK").ok();
    }
}

/// By it deletions in one more table would reach the guarded one, in its own transaction, too.
#[test]
fn a_key_needs_what_its_action_reaches() {
    let world = guarding_orders();
    for sql in [
        "CREATE TABLE top (id int PRIMARY KEY)",
        "CREATE TABLE middle (id int PRIMARY KEY)",
        "INSERT INTO top VALUES (1)",
        "INSERT INTO middle VALUES (1)",
        "ALTER TABLE orders ADD FOREIGN KEY (id) REFERENCES middle ON DELETE CASCADE",
    ] {
        world.direct().query(sql).ok();
    }
    let mut client = world.proxy.client();
    for adds in [
        "ALTER TABLE middle ADD COLUMN t int DEFAULT 1 REFERENCES top ON DELETE CASCADE",
        "ALTER TABLE middle ADD FOREIGN KEY (id) REFERENCES top ON DELETE CASCADE",
    ] {
        client.query(adds).refused("RF002");
        // What comes behind it in its transaction has the permit.
        let mut direct = world.direct();
        direct.query("BEGIN").ok();
        direct.query(adds).ok();
        direct.query("DELETE FROM top").ok();
        assert_eq!(direct.query("SELECT count(*) FROM orders").value(), "0");
        direct.query("ROLLBACK").ok();
    }
}

#[test]
fn temporary_tables_are_the_sessions_own_at_once_and_stay_so() {
    let world = guarding_orders();
    let mut client = world.proxy.client();
    for sql in [
        "CREATE TEMP TABLE one (a int); INSERT INTO one VALUES (1)",
        "BEGIN; SELECT 1 AS a INTO TEMP two; UPDATE two SET a = 2; COMMIT",
        "CREATE VIEW unrelated AS SELECT 1 AS a",
        "ALTER TABLE plain RENAME COLUMN note TO noted",
        "INSERT INTO one VALUES (2)",
        "CREATE TEMP TABLE three (a int); INSERT INTO three SELECT a FROM two",
        "DROP TABLE one, two, three",
    ] {
        let told = client.query(sql);
        assert_eq!(told.code(), "", "{sql}: {told:?}");
    }
    // What has its name, or takes it, may be anything.
    client
        .query("CREATE TEMP TABLE four (a int, note text)")
        .ok();
    client.query("ALTER TABLE four RENAME TO five").ok();
    client.query("INSERT INTO four VALUES (1)").refused("RF002");
}

/// Past the proxy by a superuser, as extensions are.
#[test]
fn extensions_that_are_there_and_read_need_no_ticket() {
    let world = guarding_orders();
    let mut admin = world.admin();
    for name in ["pgcrypto", "\"uuid-ossp\"", "pg_stat_statements"] {
        admin.query(&format!("CREATE EXTENSION {name}")).ok();
    }
    let mut client = world.proxy.client();
    for sql in [
        "CREATE EXTENSION IF NOT EXISTS pgcrypto",
        "CREATE EXTENSION IF NOT EXISTS \"uuid-ossp\" WITH SCHEMA public",
        "BEGIN",
        "CREATE EXTENSION IF NOT EXISTS pgcrypto",
        "INSERT INTO plain VALUES (1, 'x')",
        "COMMIT",
        "SELECT gen_random_uuid(), uuid_generate_v4(), gen_salt('bf')",
        "SELECT note FROM plain WHERE note = encode(gen_random_bytes(8), 'hex')",
    ] {
        let told = client.query(sql);
        assert_eq!(told.code(), "", "{sql}: {told:?}");
    }
    client
        .query("CREATE EXTENSION IF NOT EXISTS hstore")
        .refused("RF002");
    client.query("CREATE EXTENSION pgcrypto").refused("RF002");
    // An SQL function of an extension's name is anybody's.
    let mut direct = world.direct();
    direct.query("CREATE SCHEMA mine").ok();
    let sneak = "CREATE FUNCTION mine.gen_random_uuid() RETURNS SETOF int LANGUAGE sql AS \
         $$UPDATE orders SET note = 'written' RETURNING id$$";
    direct.query(sneak).ok();
    let mut client = world.proxy.client();
    client.query("SET search_path = mine, pg_catalog").ok();
    client
        .query("SELECT mine.gen_random_uuid()")
        .refused("RF002");
}

#[test]
fn sequences_are_those_of_their_tables() {
    let world = guarding_orders();
    let mut direct = world.direct();
    direct
        .query("CREATE TABLE counted (id serial, \"Odd\" bigserial)")
        .ok();
    direct.query("ALTER TABLE orders ADD COLUMN n serial").ok();
    let mut client = world.proxy.client();
    for sql in [
        "SELECT setval(pg_get_serial_sequence('counted', 'id'), 5)",
        "SELECT setval(pg_get_serial_sequence('\"counted\"', 'Odd'), 5, false) FROM plain",
        "BEGIN",
        "CREATE SEQUENCE own",
        "SELECT nextval('own'), setval('own', 7)",
        "CREATE TABLE fresh (id serial)",
        "SELECT setval(pg_get_serial_sequence('fresh', 'id'), 5)",
        "COMMIT",
    ] {
        let told = client.query(sql);
        assert_eq!(told.code(), "", "{sql}: {told:?}");
    }
    let named = "CREATE FUNCTION pg_get_serial_sequence(text, int) RETURNS text \
         LANGUAGE sql STABLE AS $$SELECT 'orders_n_seq'$$";
    for sql in [
        "SELECT setval(pg_get_serial_sequence('orders', 'n'), 5)",
        "SELECT setval(pg_get_serial_sequence('public.orders', 'n'), 5)",
        "SELECT nextval(pg_get_serial_sequence($$orders$$, 'n'))",
        "SELECT setval(pg_get_serial_sequence('or' || 'ders', 'n'), 5)",
    ] {
        client.query(sql).refused("RF002");
    }
    direct.query(named).ok();
    let mut client = world.proxy.client();
    client.query("CREATE TABLE newer ()").ok();
    let any = "SELECT setval(pg_get_serial_sequence('counted', 'id'), 5)";
    client.query(any).refused("RF002");
}

/// Maintenance and definitions reach everything, and set nothing in the session.
#[test]
fn a_pooled_session_knows_its_names_behind_what_runs_no_code() {
    let world = guarding_orders();
    let ticket = crate::stack::sign(&world.proxy.key, "orders", 1);
    let mut client = world.proxy.client();
    for sql in [
        "VACUUM",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC",
        "DROP SCHEMA IF EXISTS nowhere CASCADE",
    ] {
        let under = format!("/*fencing_token='{ticket}'*/ {sql}");
        let told = client.query(&under);
        assert_eq!(told.code(), "", "{sql}: {told:?}");
        client.query("INSERT INTO plain VALUES (1, 'x')").ok();
    }
}

/// Which schema of its path a session makes a table in is the server's to know, and one that is
/// renamed stays where it is.
#[test]
fn what_comes_to_be_guarded_needs_a_ticket_wherever_its_path_leads() {
    let world = guarding_orders();
    let mut direct = world.direct();
    direct.query("CREATE SCHEMA aside").ok();
    direct.query("CREATE SCHEMA closed").ok();
    for sql in ["DROP TABLE orders", "REVOKE ALL ON SCHEMA closed FROM app"] {
        direct.query(sql).ok();
    }
    let mut client = world.proxy.client();
    for (path, sql) in [
        ("nope, public", "CREATE TABLE orders (id int)"),
        ("'', public", "CREATE TABLE orders (id int)"),
        ("\"$user\", nope, public", "CREATE TABLE orders (id int)"),
        ("nope, public", "CREATE TABLE orders AS SELECT 1 AS id"),
        ("nope, public", "SELECT 1 AS id INTO orders"),
        ("nope, public", "CREATE VIEW orders AS SELECT 1 AS id"),
        ("nope, public", "CREATE SEQUENCE orders"),
        ("aside, public", "ALTER TABLE plain RENAME TO orders"),
    ] {
        client.query(&format!("SET search_path = {path}")).ok();
        client.query(sql).refused("RF002");
        let mut past = world.direct();
        past.query(&format!("BEGIN; SET search_path = {path}")).ok();
        past.query(sql).ok();
        let there = past.query("SELECT to_regclass('public.orders') IS NOT NULL");
        assert_eq!(there.value(), "t", "{path}: {sql}");
    }
}
