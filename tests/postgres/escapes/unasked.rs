//! Writes that no name in the statement tells: by what the server does with a text, with a type, or
//! along keys. Each with a table of the listener's rule, and without a ticket.

use super::is_refusal;
use crate::client::Client;
use crate::stack::ORDERS;
use crate::world::World;

const TYPED: &str = "[[listener.rule]]\nlock = \"typed\"\ntable = \"public.typed\"\n";

/// Each statement is refused to who has no ticket, and does what it is said to do past the proxy.
#[track_caller]
pub(super) fn refused_and_would_act(world: &World, makes: &[&str], acts: &[&str], looks: &str) {
    for sql in makes {
        world.direct().query(sql).ok();
    }
    for sql in acts {
        let before = world.direct().query(looks).value();
        let told = Client::connect(world.proxy.address()).query(sql);
        assert!(is_refusal(told.code()), "{sql}: {told:?}");
        assert_eq!(world.direct().query(looks).value(), before, "{sql}");
        let mut direct = world.direct();
        direct.query("BEGIN").ok();
        direct.query(sql).ok();
        let after = direct.query(looks).value();
        direct.query("ROLLBACK").ok();
        assert_ne!(after, before, "it does nothing: {sql}");
    }
}

pub(super) const LOOKS: &str = "SELECT string_agg(id || note, ',') FROM orders";

pub(super) fn world() -> World {
    World::with(|setup| setup.with_rules(ORDERS))
}

#[test]
fn functions_that_read_what_a_text_names_act_as_it_does() {
    let world = world();
    let mut admin = Client::connect_with(
        world.server.address,
        &[("user", "postgres"), ("database", "app")],
    );
    for sql in ["CREATE EXTENSION tablefunc", "CREATE EXTENSION xml2"] {
        admin.query(sql).ok();
    }
    refused_and_would_act(
        &world,
        &[
            "CREATE FUNCTION sneak() RETURNS text LANGUAGE sql AS \
             $$UPDATE public.orders SET note = 'written' RETURNING note$$",
            "CREATE SCHEMA apart",
            "CREATE VIEW apart.acting AS SELECT 'a'::text AS id, sneak() AS parent",
        ],
        &[
            "SELECT table_to_xml('apart.acting', true, false, '')",
            "SELECT pg_catalog.table_to_xml_and_xmlschema('apart.acting'::regclass, true, true, '')",
            "SELECT schema_to_xml('apart', true, false, '')",
            "SELECT schema_to_xml_and_xmlschema('apart', true, false, '')",
            "SELECT database_to_xml(true, false, '')",
            "SELECT database_to_xml_and_xmlschema(true, false, '')",
            "SELECT * FROM crosstab('SELECT ''a''::text, ''b''::text, sneak()') AS t(a text, b text)",
            "SELECT * FROM crosstab2('SELECT ''a''::text, ''b''::text, sneak()')",
            "SELECT * FROM crosstab('SELECT ''a''::text, ''b''::text, sneak()', 'SELECT ''b''::text') \
             AS t(a text, b text)",
            "SELECT * FROM connectby('apart.acting', 'id', 'parent', 'x', 0) \
             AS t(id text, parent text, level int)",
            "SELECT * FROM xpath_table('id', 'sneak()', 'orders', '/a', 'true') \
             AS t(id int, a text)",
        ],
        LOOKS,
    );
}

#[test]
fn functions_that_read_values_of_a_type_act_as_its_checks_do() {
    refused_and_would_act(
        &world(),
        &[
            "CREATE FUNCTION checks(int) RETURNS boolean LANGUAGE plpgsql AS \
             $$ BEGIN UPDATE public.orders SET note = 'written'; RETURN true; END $$",
            "CREATE DOMAIN dom AS int CHECK (checks(VALUE))",
            "CREATE TABLE of_dom (a dom)",
            "INSERT INTO of_dom VALUES (NULL)",
            "CREATE TABLE of_array (a dom[])",
            "INSERT INTO of_array VALUES (NULL)",
            "UPDATE orders SET note = 'first'",
        ],
        &[
            "SELECT 1 WHERE domain_in('5', 'dom'::regtype, -1) IS NULL",
            "SELECT 1 WHERE array_in('{5}', 'dom'::regtype, -1) IS NULL",
            "SELECT 1 WHERE record_in('(5)', (SELECT reltype FROM pg_class WHERE relname = \
             'of_dom'), -1) IS NULL",
            "SELECT COALESCE(t, '(5)') FROM of_dom t",
            "SELECT of_dom FROM of_dom UNION ALL SELECT '(5)'",
            "SELECT CASE WHEN false THEN of_dom ELSE '(5)' END FROM of_dom",
            "SELECT ARRAY[x, '(5)'] FROM (SELECT t AS x FROM of_dom t) y",
            "SELECT 1 FROM of_array WHERE a = '{5}'",
            "SELECT json_populate_record(t, '{\"a\": 5}') FROM of_dom t",
            "SELECT jsonb_populate_record(t, '{\"a\": 5}') FROM of_dom t",
            "SELECT json_populate_recordset(t, '[{\"a\": 5}]') FROM of_dom t",
            "SELECT jsonb_populate_recordset(t, '[{\"a\": 5}]') FROM of_dom t",
        ],
        LOOKS,
    );
}

#[test]
fn what_one_key_sets_another_one_may_hand_on() {
    refused_and_would_act(
        &world(),
        &[
            "CREATE TABLE top (id int PRIMARY KEY)",
            "INSERT INTO top VALUES (1), (2)",
            "CREATE TABLE middle (id int UNIQUE DEFAULT 2 REFERENCES top ON DELETE SET DEFAULT)",
            "INSERT INTO middle VALUES (1)",
            "ALTER TABLE orders ADD FOREIGN KEY (id) REFERENCES middle (id) ON UPDATE CASCADE",
        ],
        &["DELETE FROM top WHERE id = 1"],
        LOOKS,
    );
}

#[test]
fn a_type_is_changed_with_the_tables_that_are_of_it() {
    refused_and_would_act(
        &World::with(|setup| setup.with_rules(TYPED)),
        &[
            "CREATE TYPE kind AS (id int, note text)",
            "CREATE TABLE typed OF kind",
        ],
        &[
            "ALTER TYPE kind RENAME ATTRIBUTE note TO renamed CASCADE",
            "ALTER TYPE kind ADD ATTRIBUTE more int CASCADE",
            "ALTER TYPE kind DROP ATTRIBUTE note CASCADE",
            "ALTER TYPE kind ALTER ATTRIBUTE id TYPE bigint CASCADE",
        ],
        "SELECT string_agg(attname || atttypid || attisdropped, ',') FROM pg_attribute \
         WHERE attrelid = 'typed'::regclass AND attnum > 0",
    );
}

#[test]
fn the_servers_own_tables_are_everybodys() {
    let world = world();
    let mut client = Client::connect_with(world.proxy.address(), &[("user", "postgres")]);
    for sql in [
        "UPDATE pg_class SET relname = 'taken' WHERE relname = 'orders'",
        "DELETE FROM pg_catalog.pg_attribute WHERE attrelid = 'orders'::regclass",
        "WITH x AS (UPDATE pg_class SET relname = 'taken' WHERE relname = 'orders' RETURNING 1) \
         SELECT * FROM x",
    ] {
        let told = client.query(sql);
        assert!(is_refusal(told.code()), "{sql}: {told:?}");
    }
    assert_eq!(world.order(), "first");
}

#[test]
fn a_name_of_a_common_table_expression_hides_no_table_elsewhere() {
    let world = world();
    let mut client = world.proxy.client();
    let sql = "SELECT * FROM orders, (WITH orders AS (SELECT 1) SELECT * FROM orders) x FOR UPDATE";
    let told = client.query(sql);
    assert!(is_refusal(told.code()), "{told:?}");
    client
        .query("WITH own AS (SELECT 1) SELECT * FROM own, plain FOR UPDATE OF plain")
        .ok();
}
