//! Values that run a function as they are read: by Bind, or by Parse within a literal. No statement
//! need follow.

use crate::client::Client;
use crate::client::send::{bind, message, parse, sync};
use crate::stack::ORDERS;
use crate::world::World;

/// A type whose check writes.
const TYPES: &[&str] = &[
    "CREATE FUNCTION sneak(text) RETURNS bool LANGUAGE plpgsql AS \
     $$BEGIN UPDATE public.orders SET note = 'written'; RETURN true; END$$",
    "CREATE DOMAIN acting AS text CHECK (sneak(VALUE))",
    "CREATE TYPE pair AS (a acting, b int)",
    "CREATE TABLE keeps (a acting)",
];

fn parse_typed(text: &str, oid: u32) -> Vec<u8> {
    let mut payload = vec![0];
    payload.extend(text.as_bytes());
    payload.extend([0, 0, 1]);
    payload.extend(oid.to_be_bytes());
    message(b'P', &payload)
}

const COLUMN: &str = "a column";

/// Pipelines that execute nothing.
fn escapes(oid: u32) -> Vec<(&'static str, Vec<u8>)> {
    let bound = |text: &str, value: &str| [parse("", text), bind("", "", &[value])].concat();
    vec![
        ("a cast of a parameter", bound("SELECT $1::acting", "x")),
        ("an array of them", bound("SELECT $1::acting[]", "{x}")),
        ("a row with one", bound("SELECT $1::pair", "(x,1)")),
        (COLUMN, bound("INSERT INTO keeps VALUES ($1)", "x")),
        (
            "a type by its oid",
            [parse_typed("SELECT $1", oid), bind("", "", &["x"])].concat(),
        ),
        ("a literal of Parse", parse("", "SELECT '{x}'::acting[]")),
    ]
}

fn world(rules: Option<&str>) -> (World, u32) {
    let world = World::with(|setup| match rules {
        Some(rules) => setup.with_rules(rules),
        None => setup,
    });
    let mut direct = world.direct();
    for sql in TYPES {
        direct.query(sql).ok();
    }
    let oid = direct.query("SELECT 'acting'::regtype::oid").value();
    (world, oid.parse().unwrap())
}

#[test]
fn without_a_ticket_nothing_is_read_that_acts() {
    let (world, oid) = world(Some(ORDERS));
    // What a table's own columns check is not covered: neither is it where the INSERT runs.
    let escapes = escapes(oid).into_iter().filter(|it| it.0 != COLUMN);
    for (what, pipeline) in escapes {
        let mut client = world.proxy.client();
        let told = client.ask(&[pipeline, sync()].concat());
        assert_eq!(told.code(), "RF002", "{what}: {told:?}");
        assert_eq!(world.order(), "first", "{what}");
    }
    // Others go on.
    let mut client = world.proxy.client();
    client
        .run("SELECT note FROM orders WHERE id = $1", &["1"])
        .ok();
    client
        .run("INSERT INTO plain VALUES ($1, 'x')", &["1"])
        .ok();
}

#[test]
fn a_stale_holder_reads_nothing_that_acts() {
    let (world, oid) = world(None);
    let escapes = escapes(oid);
    let mut old: Vec<Client> = escapes.iter().map(|_| world.proxy.holder(1)).collect();
    for client in &mut old {
        client.query("SELECT 1").ok();
    }
    world.proxy.holder(2).query("SELECT 1").ok();
    for (client, (what, pipeline)) in old.iter_mut().zip(escapes) {
        let told = client.ask(&[pipeline, sync()].concat());
        assert_eq!(told.code(), "RF001", "{what}: {told:?}");
        assert_eq!(world.order(), "first", "{what}");
    }
}

/// Of every version, though some are declared volatile, and some have other names.
#[test]
fn what_applications_always_read_needs_no_ticket() {
    let world = World::with(|setup| setup.with_rules(ORDERS));
    let mut client = world.proxy.client();
    for sql in [
        "SELECT now() AT TIME ZONE 'UTC', timezone('UTC', now())",
        "SELECT extract(year FROM now()), date_part('day', now()), date_trunc('day', now())",
        "SELECT overlay('abc' PLACING 'x' FROM 1), substring('abc' FROM 2), trim('a '), \
         position('a' IN 'ba')",
        "SELECT current_user, session_user, current_timestamp, localtime, current_schema",
        "SELECT json_build_object('a', 1), jsonb '{\"a\": 1}' -> 'a', to_jsonb(1), \
         json_object('{a, b}')",
        "SELECT count(*), max(note), array_agg(note), string_agg(note, ',') FROM plain",
    ] {
        client.query(sql).ok();
    }
}
