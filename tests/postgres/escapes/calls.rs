//! Calls that are not written as such, and types that no name tells.

use super::ahead::types_and;
use super::is_refusal;
use super::unasked::{LOOKS, refused_and_would_act, world};
use crate::client::send::{parse, sync};

#[test]
fn a_functions_name_behind_a_dot_calls_it() {
    refused_and_would_act(
        &world(),
        &types_and(&[
            "CREATE FUNCTION words() RETURNS tsvector LANGUAGE plpgsql AS $$ BEGIN \
             UPDATE public.orders SET note = 'written'; RETURN to_tsvector('simple', 'a'); END $$",
        ]),
        &["SELECT ('SELECT words()').ts_stat"],
        LOOKS,
    );
    refused_and_would_act(
        &world(),
        &["CREATE SEQUENCE numbers"],
        &["SELECT ('numbers'::regclass).nextval"],
        "SELECT last_value::text || is_called FROM numbers",
    );
}

#[test]
fn what_the_same_transaction_made_is_called_behind_a_dot() {
    let world = world();
    let makes = "CREATE FUNCTION made(int) RETURNS text LANGUAGE plpgsql AS $$ BEGIN \
                 UPDATE public.orders SET note = 'written'; RETURN 'x'; END $$";
    let mut client = world.proxy.client();
    let told = client.query(&format!("{makes}; SELECT (1).made"));
    assert!(is_refusal(told.code()), "{told:?}");
    client.query("BEGIN").ok();
    client.query(makes).ok();
    let told = client.query("SELECT (1).made");
    assert!(is_refusal(told.code()), "{told:?}");
    client.query("ROLLBACK").ok();
    assert_eq!(world.order(), "first");
}

#[test]
fn a_types_name_may_be_called() {
    refused_and_would_act(
        &world(),
        &types_and(&[
            "CREATE FUNCTION dom(text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1'",
        ]),
        &[
            "SELECT dom('x')",
            "SELECT public.dom('x')",
            "SELECT dom(NULL)",
            "SELECT * FROM dom('x')",
        ],
        LOOKS,
    );
}

#[test]
fn columns_of_functions_and_states_of_aggregates_have_types() {
    refused_and_would_act(
        &world(),
        &types_and(&[
            "CREATE FUNCTION tells() RETURNS TABLE (a dom, b int) LANGUAGE sql STABLE AS \
             $$SELECT 'x', 1$$",
            "CREATE FUNCTION gives(OUT a dom, OUT b int) LANGUAGE plpgsql IMMUTABLE AS \
             $$ BEGIN a := 'x'; b := 1; END $$",
            "CREATE FUNCTION keeps_any(anyelement, int) RETURNS anyelement IMMUTABLE LANGUAGE \
             plpgsql AS 'BEGIN RETURN $1; END'",
            "CREATE AGGREGATE counts(int) (sfunc = keeps_any, stype = dom, initcond = 'x')",
        ]),
        &[
            "SELECT * FROM tells()",
            "SELECT gives()",
            "SELECT counts(1)",
            "SELECT lag(a, 1, NULL) OVER () FROM keeps",
            "SELECT array_append(array_agg(a), NULL) FROM keeps",
        ],
        LOOKS,
    );
}

/// A statement that is never executed.
#[test]
fn a_type_of_the_same_transaction_is_checked_as_a_text_is_read() {
    let world = world();
    world
        .direct()
        .query(
            "CREATE FUNCTION checks() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN \
             UPDATE public.orders SET note = 'written'; RETURN true; END $$",
        )
        .ok();
    let mut client = world.proxy.client();
    client.query("BEGIN").ok();
    client
        .query("CREATE DOMAIN d AS text CHECK (checks())")
        .ok();
    let told = client.ask(&[parse("", "SELECT '{x}'::d[]"), sync()].concat());
    assert!(is_refusal(told.code()), "{told:?}");
    client.query("COMMIT").ok();
    assert_eq!(world.order(), "first");
}
