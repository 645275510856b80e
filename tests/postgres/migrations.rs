//! Definitions on tables that no rule covers, as migrations make them: they need no ticket, however
//! much goes with what they drop, unless that reaches what is guarded.

use crate::stack::ORDERS;
use crate::world::World;

fn guarding_orders() -> World {
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
        "CREATE STATISTICS both_of ON id, more FROM plain",
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
        "ALTER TABLE plain SET (fillfactor = 70), ALTER id SET (n_distinct = 5)",
        "ALTER TABLE plain DISABLE TRIGGER USER, ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE plain SET UNLOGGED",
        "CREATE VIEW shown AS SELECT 1 AS one",
        "CREATE TYPE pair AS (a int, b int)",
    ] {
        client.query("BEGIN").ok();
        for sql in [sql, "INSERT INTO other VALUES (1)", "SELECT 1 FROM plain2"] {
            let told = client.query(sql);
            assert_eq!(told.code(), "", "{sql}: {told:?}");
        }
        client.query("ROLLBACK").ok();
    }
    // What is new has no catalog that tells of it.
    client
        .query("BEGIN; CREATE VIEW shown AS SELECT 1 AS one")
        .ok();
    client.query("SELECT * FROM shown").refused("RF002");
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
fn what_goes_with_cascade_is_looked_up() {
    let world = guarding_orders();
    for sql in [
        "CREATE TABLE parent (id int PRIMARY KEY, more int UNIQUE, note text)",
        "CREATE TABLE child (id int REFERENCES parent, own int GENERATED ALWAYS AS IDENTITY)",
        "CREATE VIEW shown AS SELECT note FROM parent",
        "CREATE MATERIALIZED VIEW kept AS SELECT * FROM shown",
        "CREATE TABLE split (id int PRIMARY KEY, s serial) PARTITION BY RANGE (id)",
        "CREATE TABLE split_1 PARTITION OF split FOR VALUES FROM (1) TO (9)",
        "CREATE TABLE more (id int DEFAULT nextval('split_s_seq'), o int REFERENCES orders)",
    ] {
        world.direct().query(sql).ok();
    }
    let mut client = world.proxy.client();
    for sql in [
        "ALTER TABLE parent DROP CONSTRAINT parent_more_key CASCADE",
        "ALTER TABLE parent DROP COLUMN note CASCADE",
        "DROP TABLE parent CASCADE",
        "BEGIN",
        "DROP TABLE split CASCADE",
        "ALTER TABLE more ADD COLUMN again int",
        "DROP TABLE IF EXISTS child, nowhere CASCADE",
        "COMMIT",
        "DROP TABLE more CASCADE",
    ] {
        let told = client.query(sql);
        assert_eq!(told.code(), "", "{sql}: {told:?}");
    }
}

/// How the guarded table comes to depend on something, and what drops that.
const REACHING: &[(&str, &str)] = &[
    (
        "ALTER TABLE orders ADD COLUMN p$ int REFERENCES x$",
        "DROP TABLE x$ CASCADE",
    ),
    (
        "ALTER TABLE orders ADD COLUMN p$ int REFERENCES x$",
        "ALTER TABLE x$ DROP CONSTRAINT x$_pkey CASCADE",
    ),
    (
        "ALTER TABLE orders ADD COLUMN p$ int REFERENCES x$",
        "ALTER TABLE ONLY x$ DROP COLUMN id CASCADE",
    ),
    (
        "ALTER TABLE orders ADD COLUMN p$ x$",
        "DROP TABLE x$ CASCADE",
    ),
    (
        "ALTER TABLE orders ADD COLUMN p$ x$[]",
        "DROP TABLE x$ CASCADE",
    ),
    (
        "CREATE DOMAIN of_x$ AS x$; ALTER TABLE orders ADD COLUMN p$ of_x$",
        "DROP TABLE x$ CASCADE",
    ),
    (
        "ALTER TABLE orders ADD COLUMN p$ int DEFAULT nextval('x$_s_seq')",
        "DROP TABLE x$ CASCADE",
    ),
    (
        "ALTER TABLE orders ADD COLUMN p$ int DEFAULT nextval('x$_s_seq')",
        "DROP SEQUENCE x$_s_seq CASCADE",
    ),
    (
        "CREATE POLICY p$ ON orders USING (id IN (SELECT id FROM x$))",
        "DROP TABLE x$ CASCADE",
    ),
    (
        "CREATE VIEW of_x$ AS SELECT id FROM x$; \
         CREATE POLICY p$ ON orders USING (id IN (SELECT id FROM of_x$))",
        "DROP TABLE x$ CASCADE",
    ),
    (
        "CREATE RULE r$ AS ON INSERT TO orders DO ALSO DELETE FROM x$",
        "DROP TABLE x$ CASCADE",
    ),
    (
        "CREATE FUNCTION f(x$) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1'; \
         ALTER TABLE orders ADD CHECK (f(NULL::x$) = 1)",
        "DROP TABLE x$ CASCADE",
    ),
    (
        "CREATE VIEW of_x$ AS SELECT id FROM x$; \
         CREATE FUNCTION f(of_x$) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1'; \
         ALTER TABLE orders ADD CHECK (f(NULL::of_x$) = 1)",
        "DROP TABLE x$ CASCADE",
    ),
    (
        "CREATE TABLE y$ () INHERITS (x$); ALTER TABLE y$ ADD PRIMARY KEY (id); \
         ALTER TABLE orders ADD COLUMN p$ int REFERENCES y$",
        "DROP TABLE x$ CASCADE",
    ),
];

#[test]
fn what_would_take_something_of_a_guarded_table_needs_its_ticket() {
    const SHAPE: &str = "SELECT (SELECT string_agg(a::text, ' ' ORDER BY attnum) \
         FROM pg_attribute a WHERE attrelid = 'orders'::regclass) \
         || (SELECT count(*) FROM pg_constraint WHERE conrelid = 'orders'::regclass) \
         || (SELECT count(*) FROM pg_policy WHERE polrelid = 'orders'::regclass) \
         || (SELECT count(*) FROM pg_rewrite WHERE ev_class = 'orders'::regclass)";
    let world = guarding_orders();
    let mut direct = world.direct();
    let numbered = |text: &str, n: usize| text.replace('$', &n.to_string());
    for (n, (makes, _)) in REACHING.iter().enumerate() {
        let x = "CREATE TABLE x$ (id int PRIMARY KEY, s serial)";
        let told = direct.query(&numbered(&format!("{x}; {makes}"), n));
        assert_eq!(told.code(), "", "{makes}: {told:?}");
    }
    for (n, (makes, drops)) in REACHING.iter().enumerate() {
        let before = direct.query(SHAPE).value();
        let told = world.proxy.client().query(&numbered(drops, n));
        assert_eq!(told.code(), "RF002", "{makes}: {drops}: {told:?}");
        // It does, past the proxy.
        direct.query(&numbered(drops, n)).ok();
        assert_ne!(direct.query(SHAPE).value(), before, "{makes}: {drops}");
    }
}

/// Rows within rows: whoever changes what they are made of changes them.
#[test]
fn what_a_guarded_table_has_rows_of_is_changed_by_its_holder() {
    let world = guarding_orders();
    let mut direct = world.direct();
    for sql in [
        "CREATE TYPE pair AS (a int, b int)",
        "CREATE TABLE of_rows (a int, b int)",
        "CREATE TYPE nested AS (inner_row of_rows, list pair[])",
        "CREATE TABLE other_rows (a int, b int)",
        "CREATE DOMAIN checked AS other_rows",
        "CREATE TABLE own (a int, b int)",
        "CREATE FUNCTION computed(own) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1'",
        "ALTER TABLE orders ADD COLUMN n nested, ADD COLUMN c checked",
        "UPDATE orders SET n = ROW(ROW(1, 2), ARRAY[ROW(3, 4)::pair]), c = ROW(5, 6)",
    ] {
        direct.query(sql).ok();
    }
    let rows = "SELECT orders::text FROM orders";
    let mut client = world.proxy.client();
    for changes in [
        "ALTER TYPE pair DROP ATTRIBUTE b",
        "ALTER TABLE of_rows DROP COLUMN b",
        "ALTER TYPE nested DROP ATTRIBUTE list",
        "ALTER TABLE other_rows DROP COLUMN b",
    ] {
        let before = direct.query(rows).value();
        client.query(changes).refused("RF002");
        // It does, past the proxy; what a domain is over stays as it is.
        if !changes.contains("other_rows") {
            direct.query(changes).ok();
            assert_ne!(direct.query(rows).value(), before, "{changes}");
        }
    }
    client.query("ALTER TABLE own ADD COLUMN c int").ok();
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
    for sql in [
        "SELECT setval(pg_get_serial_sequence('orders', 'n'), 5)",
        "SELECT setval(pg_get_serial_sequence('public.orders', 'n'), 5)",
        "SELECT nextval(pg_get_serial_sequence($$orders$$, 'n'))",
        "SELECT setval(pg_get_serial_sequence('or' || 'ders', 'n'), 5)",
    ] {
        client.query(sql).refused("RF002");
    }
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
