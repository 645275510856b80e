//! Expressions that are stored in views, policies, defaults and keys, and that name what acts in a
//! way that no statement would: by a type, by a setting, by another relation.

use super::ahead::types_and;
use super::major;
use super::unasked::{LOOKS, refused_and_would_act, world};
use crate::client::Client;
use crate::world::World;

#[test]
fn what_is_stored_turns_something_into_a_type() {
    let world = world();
    let (mut makes, mut acts) = (
        types_and(&[
            "CREATE VIEW of_record AS SELECT a::text FROM json_to_record('{\"a\":\"x\"}') AS r(a dom)",
            "CREATE VIEW of_set AS \
             SELECT a::text FROM jsonb_to_recordset('[{\"a\":\"x\"}]') AS r(a dom)",
            "CREATE VIEW of_xml AS SELECT a::text FROM XMLTABLE('/r' PASSING \
             XMLPARSE(DOCUMENT '<r><a>x</a></r>') COLUMNS a dom PATH 'a') x",
            "CREATE FUNCTION by_default(t text DEFAULT ('x'::text)::dom::text) RETURNS int \
             LANGUAGE plpgsql STABLE AS 'BEGIN RETURN 1; END'",
            "CREATE VIEW acting AS SELECT sneak() AS id",
            "CREATE TABLE by_policy (a int)",
            "INSERT INTO by_policy VALUES (1)",
            "ALTER TABLE by_policy ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE by_policy FORCE ROW LEVEL SECURITY",
            "CREATE POLICY p ON by_policy USING (EXISTS (SELECT FROM acting WHERE id = 1))",
        ]),
        vec![
            "SELECT * FROM of_record",
            "SELECT * FROM of_set",
            "SELECT * FROM of_xml",
            "SELECT by_default()",
            "SELECT * FROM by_policy",
        ],
    );
    let version = major(&world);
    if version >= 14 {
        let last = makes.pop().unwrap();
        makes.extend([
            "CREATE TYPE part AS RANGE (subtype = dom, multirange_type_name = parts)",
            "CREATE VIEW of_parts AS SELECT ('{' || id || '}')::parts FROM \
             (VALUES ('[a,b]')) v(id)",
            last,
        ]);
        acts.extend([
            "SELECT * FROM of_parts",
            "WITH RECURSIVE t(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM t WHERE a < 3) \
             CYCLE a SET c TO dom 'x' DEFAULT dom 'y' USING path SELECT a, c::text FROM t",
        ]);
    }
    if version >= 17 {
        let last = makes.pop().unwrap();
        makes.extend([
            "CREATE VIEW of_value AS SELECT JSON_VALUE('{\"a\":\"x\"}', '$.a' RETURNING dom)::text",
            "CREATE VIEW of_table AS SELECT a::text FROM JSON_TABLE('[{\"a\":\"x\"}]', '$[*]' \
             COLUMNS (a dom PATH '$.a'))",
            last,
        ]);
        acts.extend(["SELECT * FROM of_value", "SELECT * FROM of_table"]);
    }
    refused_and_would_act(&world, &makes, &acts, LOOKS);
}

#[test]
fn the_default_of_a_domain_fills_a_new_column() {
    refused_and_would_act(
        &world(),
        &types_and(&[
            "CREATE DOMAIN filled AS int DEFAULT sneak()",
            "INSERT INTO plain VALUES (1)",
        ]),
        &["ALTER TABLE plain ADD COLUMN more filled"],
        LOOKS,
    );
}

#[test]
fn where_json_is_made_a_cast_to_it_acts() {
    let world = world();
    let mut acts = vec![
        "SELECT to_json(e) FROM of_kind",
        "SELECT row_to_json(k) FROM of_kind k",
        "SELECT json_agg(e) FROM of_kind",
        "SELECT jsonb_build_object('a', e) FROM of_kind",
        "SELECT (k).to_json FROM of_kind k",
        "SELECT * FROM shown",
    ];
    if major(&world) >= 16 {
        acts.extend([
            "SELECT JSON_ARRAY(e) FROM of_kind",
            "SELECT JSON_OBJECT('a': e) FROM of_kind",
        ]);
    }
    refused_and_would_act(
        &world,
        &[
            "CREATE TYPE kind AS ENUM ('a')",
            "CREATE TABLE of_kind (e kind)",
            "INSERT INTO of_kind VALUES ('a')",
            "CREATE FUNCTION told(kind) RETURNS json LANGUAGE plpgsql AS $$ BEGIN \
             UPDATE public.orders SET note = 'written'; RETURN '1'::json; END $$",
            "CREATE CAST (kind AS json) WITH FUNCTION told(kind)",
            "CREATE VIEW shown AS SELECT to_json(e) FROM of_kind",
            "UPDATE orders SET note = 'first'",
        ],
        &acts,
        LOOKS,
    );
}

#[test]
fn an_extension_takes_its_tables_with_it() {
    let world = world();
    let admin = [("user", "postgres"), ("database", "app")];
    let mut admin = Client::connect_with(world.server.address, &admin);
    for sql in [
        "CREATE EXTENSION citext",
        "ALTER EXTENSION citext ADD TABLE orders",
    ] {
        admin.query(sql).ok();
    }
    let admin = [("user", "postgres"), ("database", "app")];
    let mut client = Client::connect_with(world.proxy.address(), &admin);
    client.query("DROP EXTENSION citext").refused("RF002");
    assert_eq!(world.order(), "first");
}

/// Before version 15 that deletes it, for the keys on it.
#[test]
fn a_row_that_moves_to_another_partition_takes_what_refers_to_it_along() {
    let world = world();
    for sql in [
        "CREATE TABLE parent (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parent FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE high PARTITION OF parent FOR VALUES FROM (100) TO (200)",
        "INSERT INTO parent VALUES (1)",
        "ALTER TABLE orders ADD FOREIGN KEY (id) REFERENCES parent ON DELETE CASCADE",
    ] {
        world.direct().query(sql).ok();
    }
    let moves = "UPDATE parent SET id = 150 WHERE id = 1";
    let told = world.proxy.client().query(moves);
    match major(&world) {
        ..15 => told.refused("RF002"),
        // The server refuses it, since a row refers to what it changes.
        _ => told.refused("23503"),
    };
    assert_eq!(world.order(), "first");
}

/// What a statement sets by its own text is followed.
#[test]
fn what_is_stored_sets_parameters() {
    let rule = "[[listener.rule]]\nlock = \"far\"\ntable = \"apart.orders\"\n";
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(rule));
    let sets = "set_config('search_path', 'apart', false)";
    let looks = |world: &World| {
        let sql = "SELECT note FROM apart.orders";
        world.direct().query(sql).value()
    };
    for sql in [
        "CREATE SCHEMA apart",
        "CREATE TABLE apart.orders AS SELECT * FROM orders",
        &format!("CREATE VIEW shown AS SELECT {sets}"),
        "CREATE TABLE kept (a int)",
        "INSERT INTO kept VALUES (1)",
        "ALTER TABLE kept ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE kept FORCE ROW LEVEL SECURITY",
        &format!("CREATE POLICY p ON kept USING ({sets} IS NOT NULL)"),
        &format!(
            "CREATE FUNCTION given(a text DEFAULT {sets}) RETURNS int STABLE LANGUAGE plpgsql AS \
             'BEGIN RETURN 1; END'"
        ),
        "CREATE DOMAIN dom AS text CHECK (set_config('search_path', VALUE, false) IS NOT NULL)",
    ] {
        world.direct().query(sql).ok();
    }
    for sql in [
        "SELECT * FROM shown",
        "SELECT * FROM kept",
        "SELECT given()",
        "SELECT 'apart'::dom",
        "SELECT '{apart}'::dom[]",
    ] {
        let mut client = world.proxy.client();
        client.query(sql).refused("RF002");
        client.query("UPDATE orders SET note = 'near'").ok();
        assert_eq!(looks(&world), "first", "{sql}");
        let mut direct = world.direct();
        direct.query("BEGIN").ok();
        direct.query(sql).ok();
        assert_eq!(direct.query("SHOW search_path").value(), "apart", "{sql}");
    }
}

/// Servers before 16 take it for a name like any other.
#[test]
fn a_function_may_have_the_name_of_a_later_syntax() {
    let world = world();
    for sql in [
        "CREATE FUNCTION \"json_object\"(int, int) RETURNS int LANGUAGE plpgsql AS \
         $$ BEGIN UPDATE public.orders SET note = 'written'; RETURN 1; END $$",
        "CREATE TABLE two AS SELECT 1 AS a, 2 AS b",
    ] {
        world.direct().query(sql).ok();
    }
    let sql = "SELECT json_object(a, b) FROM two";
    world.proxy.client().query(sql).refused("RF002");
    assert_eq!(world.order(), "first");
}

#[test]
fn what_sorts_and_groups_is_not_written() {
    let world = world();
    let admin = [("user", "postgres"), ("database", "app")];
    let mut admin = Client::connect_with(world.server.address, &admin);
    for sql in [
        "CREATE TYPE own AS (a int)",
        "CREATE FUNCTION compares(own, own) RETURNS int LANGUAGE plpgsql AS $$ BEGIN \
         UPDATE public.orders SET note = 'written'; RETURN 0; END $$",
        "CREATE FUNCTION less(own, own) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false'",
        "CREATE OPERATOR <<< (FUNCTION = less, LEFTARG = own, RIGHTARG = own)",
        "CREATE OPERATOR >>> (FUNCTION = less, LEFTARG = own, RIGHTARG = own)",
        "CREATE OPERATOR === (FUNCTION = less, LEFTARG = own, RIGHTARG = own)",
        "CREATE OPERATOR CLASS owns DEFAULT FOR TYPE own USING btree AS OPERATOR 1 <<<, \
         OPERATOR 3 ===, OPERATOR 5 >>>, FUNCTION 1 compares(own, own)",
        "CREATE TABLE of_own (o own)",
        "INSERT INTO of_own VALUES (ROW(1)), (ROW(2))",
        "ALTER TABLE of_own OWNER TO app",
    ] {
        admin.query(sql).ok();
    }
    refused_and_would_act(
        &world,
        &[],
        &[
            "SELECT * FROM of_own ORDER BY o",
            "CREATE INDEX ON of_own (o)",
        ],
        LOOKS,
    );
}
