//! What goes with a relation that is dropped with CASCADE, and rows within rows: what depends on
//! what is looked up.

use crate::migrations::guarding_orders;

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

/// What the guarded table is, and holds.
pub const SHAPE: &str = "SELECT (SELECT string_agg(a::text, ' ' ORDER BY attnum) \
     FROM pg_attribute a WHERE attrelid = 'orders'::regclass) \
     || (SELECT count(*) FROM pg_constraint WHERE conrelid = 'orders'::regclass) \
     || (SELECT count(*) FROM pg_policy WHERE polrelid = 'orders'::regclass) \
     || (SELECT count(*) FROM pg_rewrite WHERE ev_class = 'orders'::regclass) \
     || (SELECT count(*) FROM orders) || (SELECT coalesce(string_agg(o::text, ' '), '') FROM orders o)";

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
