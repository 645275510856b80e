//! What runs before its statement does, or though it never does: as a text is made a value, as a
//! plan is made, as a definition is looked at.

use super::unasked::{LOOKS, refused_and_would_act, world};
use super::{is_refusal, major, unharmed};
use crate::client::Client;
use crate::client::send::query;
use crate::stack::ORDERS;
use crate::world::World;

/// A type whose values are checked by a function that writes.
const TYPES: [&str; 6] = [
    "CREATE FUNCTION sneak() RETURNS int LANGUAGE sql AS \
     $$UPDATE public.orders SET note = 'written' RETURNING id$$",
    "CREATE FUNCTION checks(text) RETURNS boolean LANGUAGE plpgsql AS \
     $$ BEGIN UPDATE public.orders SET note = 'written'; RETURN true; END $$",
    "CREATE DOMAIN dom AS text CHECK (checks(VALUE))",
    "CREATE TABLE keeps (id int UNIQUE, a dom)",
    "INSERT INTO keeps VALUES (1, 'x')",
    "UPDATE orders SET note = 'first'",
];

pub(super) fn types_and(more: &[&'static str]) -> Vec<&'static str> {
    let (last, first) = TYPES.split_last().unwrap();
    first.iter().chain(more).chain([last]).copied().collect()
}

#[test]
fn to_explain_is_to_plan_and_may_act() {
    refused_and_would_act(
        &world(),
        &types_and(&[
            "CREATE FUNCTION compares(int, int) RETURNS boolean LANGUAGE plpgsql AS \
             $$ BEGIN UPDATE public.orders SET note = 'written'; RETURN true; END $$",
            "CREATE OPERATOR ### (FUNCTION = compares, LEFTARG = int, RIGHTARG = int, \
             RESTRICT = scalarltsel)",
            "CREATE TABLE many AS SELECT g % 5 AS id FROM generate_series(1, 1000) g",
            "ANALYZE many",
        ]),
        &[
            "PREPARE p(int) AS SELECT $1; EXPLAIN EXECUTE p(sneak())",
            "PREPARE p(int) AS SELECT $1; EXPLAIN CREATE TABLE x AS EXECUTE p(sneak())",
            "EXPLAIN SELECT '{x}'::dom[]",
            "EXPLAIN DECLARE c CURSOR FOR SELECT '{x}'::dom[]",
            "EXPLAIN SELECT * FROM many WHERE id ### 2",
            "EXPLAIN UPDATE plain SET note = ('{x}'::dom[])::text",
        ],
        LOOKS,
    );
}

#[test]
fn to_explain_a_change_is_none() {
    let world = world();
    let mut client = world.proxy.client();
    for sql in [
        "EXPLAIN UPDATE orders SET note = 'x'",
        "EXPLAIN DELETE FROM orders",
        "EXPLAIN INSERT INTO orders VALUES (2, 'x')",
        "EXPLAIN SELECT * FROM orders FOR UPDATE",
        "EXPLAIN CREATE TABLE copied AS SELECT * FROM orders",
    ] {
        client.query(sql).ok();
    }
}

/// Sent at once: the proxy has not heard of the setting when the second text comes.
#[test]
fn what_is_planned_may_set_how_the_next_text_is_read() {
    let world = World::with(|setup| setup.and("table", "unmatched = \"pass\"", ORDERS));
    let shown = "CREATE VIEW public.setting AS \
                 SELECT set_config('standard_conforming_strings', 'off', false)";
    world.direct().query(shown).ok();
    for at in 0..2 {
        for first in [
            "EXPLAIN EXECUTE p(set_config('standard_conforming_strings', 'off', false))",
            "SELECT * FROM setting",
            "CREATE TEMP TABLE one PARTITION OF parted FOR VALUES IN \
             (set_config('standard_conforming_strings', 'off', false))",
        ] {
            let mut client = Client::connect(world.proxy.addresses[at]);
            client.query("PREPARE p(text) AS SELECT $1");
            client.query("CREATE TEMP TABLE parted (a text) PARTITION BY LIST (a)");
            let both = [
                query("SELECT pg_sleep(0.1)"),
                query(first),
                query("SELECT 'a\\''; UPDATE public.orders SET note = $$written$$; --'"),
            ];
            client.send(&both.concat());
            while client.try_read().is_some_and(|reply| reply.tag != b'E') {}
            drop(client);
            unharmed(&world, first);
        }
    }
}

#[test]
fn a_definition_reads_the_values_in_it() {
    refused_and_would_act(
        &world(),
        &types_and(&[
            "CREATE TABLE parted (a int) PARTITION BY LIST (a)",
            "CREATE TABLE part (a int)",
            "CREATE POLICY own ON plain USING (true)",
            "CREATE FUNCTION adds(dom, text) RETURNS dom LANGUAGE plpgsql AS 'BEGIN RETURN $1; END'",
        ]),
        &[
            "CREATE TABLE one PARTITION OF parted FOR VALUES IN (sneak())",
            "ALTER TABLE parted ATTACH PARTITION part FOR VALUES IN (sneak())",
            "PREPARE p AS SELECT '{x}'::dom[]",
            "CREATE VIEW v AS SELECT '{x}'::dom[]",
            "CREATE TABLE t (a text DEFAULT ('{x}'::dom[])::text)",
            "CREATE TABLE t (a int CHECK ('{x}'::dom[] IS NOT NULL))",
            "CREATE TABLE t (a int, b text GENERATED ALWAYS AS (('{x}'::dom[])[a]) STORED)",
            "CREATE TABLE t (a int) PARTITION BY LIST ((('{x}'::dom[])[a]))",
            "CREATE INDEX ON plain ((('{x}'::dom[])[id]))",
            "CREATE INDEX ON plain (id) WHERE '{x}'::dom[] IS NOT NULL",
            "CREATE INDEX ON keeps ((ARRAY[a] = '{x}'))",
            "CREATE INDEX ON keeps (id) WHERE ARRAY[a] = '{x}'",
            "CREATE POLICY p ON keeps USING (ARRAY[a] = '{x}')",
            "CREATE POLICY p ON keeps USING (COALESCE(keeps, '(1,x)') IS NOT NULL)",
            "ALTER TABLE keeps ADD CHECK (ARRAY[a] <> '{y}')",
            "ALTER TABLE keeps ADD CHECK (COALESCE(keeps, '(1,x)') IS NOT NULL)",
            "CREATE TRIGGER t BEFORE UPDATE ON keeps FOR EACH ROW WHEN (ARRAY[new.a] = '{x}') \
             EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "CREATE POLICY p ON plain USING ('{x}'::dom[] IS NOT NULL)",
            "ALTER POLICY own ON plain USING ('{x}'::dom[] IS NOT NULL)",
            "CREATE DOMAIN d AS text CHECK (VALUE <> ('{x}'::dom[])::text)",
            "CREATE DOMAIN d AS text DEFAULT ('{x}'::dom[])::text",
            "CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$SELECT ('{x}'::dom[])::text$$",
            "CREATE FUNCTION f(a text DEFAULT ('{x}'::dom[])::text) RETURNS int \
             LANGUAGE plpgsql AS $$BEGIN RETURN 1; END$$",
            "CREATE AGGREGATE agg(text) (sfunc = adds, stype = dom, initcond = 'x')",
        ],
        LOOKS,
    );
}

#[test]
fn a_function_that_checks_a_function_reads_the_values_in_it() {
    refused_and_would_act(
        &world(),
        &types_and(&[
            "CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$SELECT ('{x}'::dom[])::text$$",
        ]),
        &["SELECT fmgr_sql_validator('f()'::regprocedure)"],
        LOOKS,
    );
}

#[test]
fn a_column_gives_its_type_to_what_is_put_beside_it() {
    let world = world();
    let mut acts = vec![
        "SELECT ARRAY[a] = '{x}' FROM keeps",
        "SELECT array_agg(a) || '{x}' FROM keeps",
        "SELECT array_append(ARRAY(SELECT a FROM keeps), 'x')",
        "SELECT lag(a, 1, 'x') OVER () FROM keeps",
        "SELECT ARRAY[a] FROM keeps UNION ALL SELECT '{x}'",
        "SELECT CASE WHEN false THEN ARRAY[a] ELSE '{x}' END FROM keeps",
        "SELECT COALESCE(k.*, '(1,x)') FROM keeps k",
        "SELECT ARRAY[k.*, '(1,x)'] FROM keeps k",
        "SELECT GREATEST(public.keeps.*, '(1,x)') FROM public.keeps",
        "SELECT COALESCE(r.*, '(1,x)') FROM rows r",
        "INSERT INTO keeps VALUES (1) ON CONFLICT (id) DO UPDATE SET id = \
             CASE WHEN (CASE WHEN false THEN excluded ELSE '(1,x)' END) IS NULL THEN 1 ELSE 1 END",
    ];
    if major(&world) >= 18 {
        acts.extend([
            "UPDATE keeps SET id = id RETURNING COALESCE(old, '(1,x)')",
            "INSERT INTO keeps VALUES (5) RETURNING CASE WHEN false THEN new ELSE '(1,x)' END",
            "DELETE FROM keeps RETURNING WITH (OLD AS o) COALESCE(o, '(1,x)')",
        ]);
    }
    let makes = types_and(&["CREATE VIEW rows AS SELECT * FROM keeps"]);
    refused_and_would_act(&world, &makes, &acts, LOOKS);
}

/// The same with what is given by Bind.
#[test]
fn a_column_gives_its_type_to_a_parameter() {
    let world = world();
    for sql in types_and(&[]) {
        world.direct().query(sql).ok();
    }
    for (sql, value) in [
        ("SELECT ARRAY[a] = $1 FROM keeps", "{x}"),
        ("SELECT lag(a, 1, $1) OVER () FROM keeps", "x"),
        ("SELECT COALESCE(k.*, $1) FROM keeps k", "(1,x)"),
    ] {
        let told = world.proxy.client().run(sql, &[value]);
        assert!(is_refusal(told.code()), "{sql}: {told:?}");
        unharmed(&world, sql);
        let told = world.direct().run(sql, &[value]);
        assert_eq!(told.code(), "", "{sql}: {told:?}");
        assert_eq!(world.order(), "written", "it does nothing: {sql}");
        world
            .direct()
            .query("UPDATE orders SET note = 'first'")
            .ok();
    }
}

/// A column of such a type alone is read by anybody.
#[test]
fn without_a_text_beside_it_a_column_is_only_read() {
    let world = world();
    for sql in types_and(&[]) {
        world.direct().query(sql).ok();
    }
    let mut client = world.proxy.client();
    for sql in [
        "SELECT a FROM keeps WHERE id = 1",
        "SELECT k.* FROM keeps k",
        "SELECT count(*) FROM keeps",
    ] {
        client.query(sql).ok();
    }
    unharmed(&world, "reading");
}

/// What measures ranges runs as a plan is made, and as statistics are gathered.
#[test]
fn what_measures_the_bounds_of_ranges_acts_unseen() {
    refused_and_would_act(
        &world(),
        &[
            "CREATE FUNCTION measures(int, int) RETURNS float8 LANGUAGE plpgsql IMMUTABLE AS \
             'BEGIN RETURN $1 - $2; END'",
            "CREATE TYPE measured AS RANGE (subtype = int4, subtype_diff = measures)",
            "CREATE TABLE ranges AS SELECT measured(g, g + 5) AS r FROM generate_series(1, 1000) g",
            "ANALYZE ranges",
            "CREATE OR REPLACE FUNCTION measures(int, int) RETURNS float8 LANGUAGE plpgsql \
             VOLATILE AS $$BEGIN UPDATE public.orders SET note = 'written'; \
             RETURN $1 - $2; END$$",
            "UPDATE orders SET note = 'first'",
        ],
        &[
            "SELECT count(*) FROM ranges WHERE r <@ measured(1, 100)",
            "EXPLAIN SELECT count(*) FROM ranges WHERE r <@ measured(1, 100)",
            "ANALYZE ranges",
            "CREATE TEMP TABLE own AS SELECT * FROM ranges; ANALYZE own",
        ],
        LOOKS,
    );
}

/// In one transaction with what uses it, no catalog tells of the type.
#[test]
fn nor_by_a_type_that_is_not_committed() {
    const MEASURES: &str = "CREATE OR REPLACE FUNCTION measures(int, int) RETURNS float8 \
         LANGUAGE plpgsql";
    let quiet = format!("{MEASURES} IMMUTABLE AS 'BEGIN RETURN $1 - $2; END'");
    let acting = format!(
        "{MEASURES} AS $$ BEGIN UPDATE public.orders SET note = 'written'; RETURN $1 - $2; END $$"
    );
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
    world.proxy.client().query(&quiet).ok();
    let run = |own: &mut Client, other: &mut Client| {
        for sql in [
            "BEGIN",
            "CREATE TYPE span AS RANGE (subtype = int, subtype_diff = measures)",
        ] {
            own.query(sql).ok();
        }
        let copies = "CREATE TEMP TABLE own AS SELECT ('[' || i || ',' || i + i % 17 + 1 || ')')\
             ::span AS s FROM generate_series(1, 2000) i";
        let made = own.query(copies).code().to_owned();
        other.query(&acting).ok();
        let measured = own.query("ANALYZE own").code().to_owned();
        own.query("COMMIT").ok();
        [made, measured]
    };
    let told = run(&mut world.proxy.client(), &mut world.proxy.client());
    assert!(told.iter().any(|it| is_refusal(it)), "{told:?}");
    unharmed(&world, "ANALYZE");
    world.direct().query(&quiet).ok();
    run(&mut world.direct(), &mut world.direct());
    assert_eq!(world.order(), "written");
}
