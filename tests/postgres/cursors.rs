//! Cursors: what they read was fixed when they were opened, whichever ticket is shown later.

use crate::client::Client;
use crate::client::send::{bind, close, execute, parse, query, sync};
use crate::stack::{ORDERS, sign};
use crate::world::World;

const READ: &str = "SELECT note FROM orders WHERE id = 1";
const LATE: &str = "RF003";

fn set(world: &World, client: &mut Client, token: u64) {
    let ticket = world.proxy.ticket(token);
    client
        .query(&format!("SET ringfence.token = '{ticket}'"))
        .ok();
}

#[test]
fn a_held_cursor_is_not_read_under_a_later_ticket() {
    let world = World::new();
    let declare = format!("DECLARE c CURSOR WITH HOLD FOR {READ}");
    for opens in [declare.clone(), format!("BEGIN; {declare}; COMMIT")] {
        let mut client = world.proxy.client();
        client.query(&opens).ok();
        assert_eq!(client.query("FETCH c").value(), "first");
        set(&world, &mut client, 1);
        client.query("FETCH BACKWARD 1 FROM c").refused(LATE);
        client.query("MOVE FIRST FROM c").refused(LATE);
        // As a portal of the protocol's.
        let told = client.ask(&[execute("c", 0), sync()].concat());
        told.refused(LATE);
        // What is left of an earlier transaction says nothing about other cursors.
        client
            .query("BEGIN; DECLARE d CURSOR FOR SELECT 1; FETCH d")
            .ok();
        client.query("COMMIT").ok();
        client.query("CLOSE c").ok();
        client.query(&declare).ok();
        client.query("FETCH c").ok();
        client.query("CLOSE ALL").ok();
        client.query(&declare).ok();
        client.query("FETCH c").ok();
    }
}

#[test]
fn a_held_cursor_that_was_rolled_back_or_closed_is_forgotten() {
    let world = World::new();
    let mut client = world.proxy.client();
    let declare = format!("DECLARE c CURSOR WITH HOLD FOR {READ}");
    client.query(&format!("BEGIN; {declare}")).ok();
    client.query("ROLLBACK").ok();
    client.query(&declare).ok();
    client.query("DISCARD ALL").ok();
    client.query(&declare).ok();
    client.ask(&[close(b'P', "c"), sync()].concat()).ok();
    set(&world, &mut client, 1);
    client.query(&declare).ok();
    client.query("FETCH c").ok();
    // A CLOSE that is not carried out closes nothing.
    set(&world, &mut client, 2);
    client.query("BEGIN").ok();
    client.query("SELECT 1/0").refused("22012");
    client.query("CLOSE c").refused("25P02");
    client.query("ROLLBACK").ok();
    client.query("FETCH c").refused(LATE);
}

#[test]
fn the_same_holds_for_portals_and_for_cursors_of_functions() {
    let world = World::new();
    world
        .direct()
        .query(
            "CREATE FUNCTION opens() RETURNS refcursor LANGUAGE plpgsql STABLE AS \
             $$ DECLARE c refcursor := 'opened'; BEGIN \
             OPEN c FOR SELECT note FROM orders; RETURN c; END $$",
        )
        .ok();
    let mut client = world.proxy.client();
    // What it reads by is not known.
    client.query("BEGIN; SELECT opens()").ok();
    client.query("FETCH opened").refused("RF002");
    client.query("ROLLBACK").ok();
    client.query("BEGIN; SELECT opens()").ok();
    set(&world, &mut client, 1);
    client.query("FETCH opened").refused(LATE);
    client.query("ROLLBACK").ok();
    client.query("BEGIN").ok();
    set(&world, &mut client, 1);
    client.query("SELECT opens()").ok();
    client.query("FETCH opened").ok();
    client.query("COMMIT").ok();

    // Each of a session that has shown none before.
    let opens = [parse("", READ), bind("p", "", &[]), sync()];
    let mut client = world.proxy.client();
    client.query("BEGIN").ok();
    client.ask(&opens.concat()).ok();
    set(&world, &mut client, 2);
    client.query("FETCH p").refused(LATE);
    client.query("ROLLBACK").ok();
    client.query("BEGIN").ok();
    set(&world, &mut client, 2);
    client.ask(&opens.concat()).ok();
    assert_eq!(client.query("FETCH p").value(), "first");
    client.query("COMMIT").ok();
    // A cursor of SQL's, as a portal.
    let mut client = world.proxy.client();
    client
        .query(&format!("BEGIN; DECLARE c CURSOR FOR {READ}"))
        .ok();
    set(&world, &mut client, 3);
    client
        .ask(&[execute("c", 0), sync()].concat())
        .refused(LATE);
}

/// A portal's name that has ended with its transaction is a cursor's now.
#[test]
fn a_portal_that_has_ended_hides_no_cursor() {
    let world = World::new();
    let portal = [parse("", "SHOW search_path"), bind("p", "", &[]), sync()].concat();
    for (token, ways) in [
        (1, [portal.clone(), query("BEGIN")].to_vec()),
        (
            2,
            [query("BEGIN"), portal.clone(), query("COMMIT AND CHAIN")].to_vec(),
        ),
        (
            3,
            [query("BEGIN; SAVEPOINT s"), portal, query("ROLLBACK TO s")].to_vec(),
        ),
    ] {
        let mut client = world.proxy.client();
        client.send(&ways.concat());
        for _ in &ways {
            client.answer().ok();
        }
        client.query(&format!("DECLARE p CURSOR FOR {READ}")).ok();
        set(&world, &mut client, token);
        let told = client.ask(&[execute("p", 0), sync()].concat());
        told.refused(LATE);
    }
}

/// Where a statement is run by the first Execute and its rows are kept, with what it read then.
const KEPT: [&str; 4] = [
    "EXECUTE s",
    "UPDATE plain SET note = (SELECT note FROM orders) RETURNING note",
    "WITH w AS (INSERT INTO plain SELECT 3 RETURNING id) SELECT o.note FROM orders o, w, plain",
    "EXPLAIN ANALYZE SELECT note FROM orders",
];

/// A session without a ticket, in a block in which this was bound.
fn bound(world: &World, text: &str) -> Client {
    let mut client = world.proxy.client();
    client
        .query("PREPARE s AS SELECT o.note FROM orders o, plain")
        .ok();
    client.query("BEGIN").ok();
    let bytes = [parse("", text), bind("p", "", &[]), sync()].concat();
    client.ask(&bytes).ok();
    client
}

fn set_orders(world: &World, client: &mut Client, token: u64) {
    let ticket = sign(&world.proxy.key, "orders", token);
    client
        .query(&format!("SET LOCAL ringfence.token = '{ticket}'"))
        .ok();
}

#[test]
fn rows_that_a_portal_has_kept_are_not_read_under_a_later_ticket() {
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
    world
        .direct()
        .query("INSERT INTO plain VALUES (1, 'a'), (2, 'b')")
        .ok();
    let some = [execute("p", 1), sync()].concat();
    let rest = [execute("p", 0), sync()].concat();
    for (token, text) in (1..).zip(KEPT) {
        let mut client = bound(&world, text);
        let told = client.ask(&some).ok();
        assert!(told.tags.contains('s'), "{text}: {told:?}");
        set_orders(&world, &mut client, token);
        client.ask(&rest).refused(LATE);
        // Nor as a cursor.
        let mut client = bound(&world, text);
        client.ask(&some).ok();
        set_orders(&world, &mut client, token);
        client.query("FETCH ALL FROM p").refused(LATE);
        // Under the ticket that it was bound and begun under.
        let mut client = bound(&world, text);
        set_orders(&world, &mut client, token);
        let anew = [close(b'P', "p"), parse("", text), bind("p", "", &[])];
        client.ask(&[anew.concat(), sync()].concat()).ok();
        client.ask(&some).ok();
        assert!(!client.ask(&rest).ok().rows.is_empty());
    }
}

#[test]
fn a_fetch_that_is_bound_reads_no_cursor_of_before() {
    let world = World::new();
    let mut client = world.proxy.client();
    client
        .query(&format!("BEGIN; DECLARE c CURSOR FOR {READ}"))
        .ok();
    let bytes = [parse("f", "FETCH 1 FROM c"), bind("p", "f", &[]), sync()].concat();
    client.ask(&bytes).ok();
    set(&world, &mut client, 1);
    client.query("FETCH p").refused(LATE);
}

/// What a session without a ticket bound by name does not act as it is fetched.
#[test]
fn a_portal_that_shows_or_fetches_needs_no_ticket() {
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
    let mut client = world.proxy.client();
    client
        .query(&format!("BEGIN; DECLARE c SCROLL CURSOR FOR {READ}"))
        .ok();
    for text in ["FETCH FIRST FROM c", "SHOW search_path"] {
        let bytes = [parse("", text), bind("p", "", &[])].concat();
        client.ask(&[bytes, execute("p", 0), sync()].concat()).ok();
        assert_eq!(client.query("FETCH FIRST FROM c").value(), "first");
        client.ask(&[close(b'P', "p"), sync()].concat()).ok();
    }
    // What acts counts, and nothing that is not fetched from.
    let bytes = [parse("", "EXECUTE nothing"), bind("p", "", &[]), sync()].concat();
    client.ask(&bytes).ok();
    client.query("FETCH FIRST FROM c").ok();
    client.query("FETCH FIRST FROM p").refused("RF002");
}
