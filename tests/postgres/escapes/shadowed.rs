//! Names of the server's own that stand for something of the database's: a function that is called
//! like `set_config`, types that are called like those to which texts are cast.

use super::is_refusal;
use crate::stack::{ORDERS, sign};
use crate::world::World;

const MAKES: [&str; 5] = [
    "CREATE SCHEMA p2",
    "CREATE SCHEMA s2",
    "CREATE SCHEMA evil",
    "CREATE TABLE p2.vv (id int)",
    "CREATE VIEW s2.vv AS SELECT id FROM public.orders",
];

fn world(makes: &[&str]) -> World {
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
    for sql in MAKES.iter().chain(makes) {
        world.direct().query(sql).ok();
    }
    world
}

/// The last of these is refused to who has no ticket, and acts past the proxy.
#[track_caller]
fn is_refused_and_would_act(world: &World, looks: &str, texts: &[&str]) {
    let before = world.direct().query(looks).value();
    let mut client = world.proxy.client();
    let told: Vec<_> = texts.iter().map(|sql| client.query(sql)).collect();
    let refused = told.iter().any(|it| is_refusal(it.code()));
    assert!(refused, "{texts:?}: {told:?}");
    assert_eq!(world.direct().query(looks).value(), before, "{texts:?}");
    let mut direct = world.direct();
    direct.query("BEGIN").ok();
    for sql in texts {
        direct.query(sql).ok();
    }
    let after = direct.query(looks).value();
    assert_ne!(after, before, "it does nothing: {texts:?}");
    direct.query("ROLLBACK").ok();
}

const COUNT: &str = "SELECT count(*) FROM public.orders";

/// Changes nothing.
const FAKES: [&str; 2] = [
    "CREATE FUNCTION public.set_config(varchar, varchar, bool) RETURNS text IMMUTABLE \
     LANGUAGE sql AS 'SELECT $2::text'",
    "CREATE FUNCTION evil.set_config(text, text, bool) RETURNS text IMMUTABLE \
     LANGUAGE sql AS 'SELECT $2'",
];

#[test]
fn a_function_that_is_called_like_set_config_is_not_believed() {
    let world = world(&FAKES);
    for (path, call) in [
        (
            "s2, public",
            "set_config('search_path'::varchar, 'p2'::varchar, false)",
        ),
        (
            "evil, pg_catalog, s2",
            "set_config('search_path', 'p2', false)",
        ),
        (
            "evil, pg_catalog, s2",
            "evil.set_config('search_path', 'p2', false)",
        ),
    ] {
        let path = format!("SET search_path = {path}");
        let deletes = "DELETE FROM vv";
        let select = format!("SELECT {call}");
        let prepare = format!("PREPARE p AS {select}");
        is_refused_and_would_act(&world, COUNT, &[&path, &select, deletes]);
        let prepared = [&*path, &prepare, "EXECUTE p", deletes];
        is_refused_and_would_act(&world, COUNT, &prepared);
    }
}

#[test]
fn nor_is_it_for_the_isolation() {
    let world = world(&FAKES);
    let mut client = world.proxy.client();
    let fakes = "SELECT set_config('default_transaction_isolation'::varchar, \
                 'read committed'::varchar, false)";
    for sql in [
        "SET default_transaction_isolation = 'repeatable read'",
        fakes,
        "BEGIN",
        "SELECT note FROM orders",
    ] {
        client.query(sql).ok();
    }
    let ticket = sign(&world.proxy.key, "orders", 1);
    let late = client.query(&format!("SET ringfence.token = '{ticket}'"));
    late.refused("RF003");
}

/// Turned into another text, and another sequence, than is written.
#[test]
fn a_type_that_is_called_like_one_of_the_servers_is_not_believed() {
    let world = world(&[
        "CREATE SEQUENCE orders_seq OWNED BY orders.id",
        "CREATE SEQUENCE free_seq",
        "CREATE TYPE evil.text AS ENUM ('p2', 'other')",
        "CREATE FUNCTION evil.turns(evil.text) RETURNS pg_catalog.text IMMUTABLE LANGUAGE sql \
         AS $$SELECT CASE WHEN enum_eq($1, 'p2') THEN 's2'::pg_catalog.text \
         ELSE 'search_path'::pg_catalog.text END$$",
        "CREATE CAST (evil.text AS pg_catalog.text) WITH FUNCTION evil.turns(evil.text) \
         AS IMPLICIT",
        "CREATE TYPE evil.regclass AS ENUM ('free_seq')",
        "CREATE FUNCTION evil.turns(evil.regclass) RETURNS pg_catalog.regclass IMMUTABLE \
         LANGUAGE sql AS $$SELECT 'public.orders_seq'::pg_catalog.regclass$$",
        "CREATE CAST (evil.regclass AS pg_catalog.regclass) \
         WITH FUNCTION evil.turns(evil.regclass) AS IMPLICIT",
    ]);
    for sets in [
        "SELECT pg_catalog.set_config('search_path', 'p2'::text, false)",
        "SELECT pg_catalog.set_config('other'::text, 's2', false)",
    ] {
        let path = "SET search_path = evil, pg_catalog, p2";
        is_refused_and_would_act(&world, COUNT, &[path, sets, "DELETE FROM vv"]);
    }
    let path = "SET search_path = evil, pg_catalog, public";
    let called = "SELECT is_called FROM public.orders_seq";
    world.direct().query("SELECT nextval('free_seq')").ok();
    let texts = [path, "SELECT nextval('free_seq'::regclass)"];
    // A sequence keeps what a transaction that is rolled back has taken.
    is_refused_and_would_act(&world, called, &texts);
}

/// Where nothing else has its name it is what it looks like, as drivers write it.
#[test]
fn where_nothing_else_has_its_name_it_is_believed() {
    let world = world(&[
        "CREATE FUNCTION evil.set_config(text, text) RETURNS text IMMUTABLE \
         LANGUAGE sql AS 'SELECT $2'",
    ]);
    let mut client = world.proxy.client();
    for sql in [
        "SET search_path = s2",
        "SELECT set_config('search_path', 'p2', false)",
        "DELETE FROM vv",
        "SELECT set_config('app.tenant'::text, '5'::text, false)",
        "DELETE FROM vv",
        "CREATE TABLE more (id int)",
        "DROP TABLE more",
    ] {
        client.query(sql).ok();
    }
    // Bound while no catalog is at hand: the one of before is outdated.
    let tenant = "SELECT set_config('app.tenant', $1::text, false)";
    client.run(tenant, &["5"]).ok();
    client.query("DELETE FROM vv").ok();
    let ticket = sign(&world.proxy.key, "orders", 1);
    let set = "SELECT set_config('ringfence.token', $1, false)";
    client.run(set, &[&ticket]).ok();
    client.query("DELETE FROM public.orders").ok();
}
