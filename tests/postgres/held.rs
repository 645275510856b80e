//! A listener that rejects what no rule covers: Postgres itself holds sessions read-only while no
//! ticket counts.

use crate::client::Client;
use crate::client::send::{bind, execute, parse, run, sync};
use crate::stack::{DATABASE, ORDERS, sign};
use crate::world::{WRITE, World};

const SHOWN: &str = "SHOW default_transaction_read_only";

fn world(rules: &str) -> World {
    World::with(|setup| setup.with("unmatched = \"reject\"").with_rules(rules))
}

fn held(client: &mut Client) -> bool {
    client.query(SHOWN).value() == "on"
}

/// Its unnamed statement stays, whatever the proxy sets in between.
#[test]
fn what_a_session_has_parsed_stays_while_it_is_held_or_let_go() {
    let world = world(DATABASE);
    let ticket = world.proxy.ticket(1);
    let runs = [bind("", "", &[]), execute("", 0), sync()].concat();
    let mut client = world.proxy.client();
    for token in [&*ticket, ""] {
        let set = run(&format!("SET ringfence.token = '{token}'"), &[]);
        let parsed = [set, parse("", "SHOW default_transaction_read_only"), sync()];
        client.ask(&parsed.concat()).ok();
        let shown = client.ask(&runs).value();
        assert_eq!(shown == "on", token.is_empty());
    }
    // For one transaction.
    client.query("BEGIN").ok();
    let set = run(&format!("SET LOCAL ringfence.token = '{ticket}'"), &[]);
    let parsed = [set, parse("", "SHOW transaction_read_only"), sync()];
    client.ask(&parsed.concat()).ok();
    assert_eq!(client.ask(&runs).value(), "off");
    client.query(WRITE).ok();
}

#[test]
fn a_session_is_held_while_no_ticket_counts() {
    let world = world(DATABASE);
    let mut client = world.proxy.client();
    assert!(held(&mut client));
    let set = format!("SET ringfence.token = '{}'", world.proxy.ticket(1));
    for reset in ["RESET ringfence.token", "RESET ALL", "DISCARD ALL"] {
        client.query(&set).ok();
        client.query(WRITE).ok();
        assert!(!held(&mut client));
        client.query(reset).ok();
        assert!(held(&mut client), "{reset}");
    }
    // The other way round.
    let mut holder = world.proxy.holder(1);
    assert!(!held(&mut holder));
    holder.query("SET ringfence.token = ''").ok();
    assert!(held(&mut holder));
    holder.query("RESET ringfence.token").ok();
    holder.query(WRITE).ok();
}

#[test]
fn a_ticket_of_one_transaction_or_statement_lets_it_write() {
    let world = world(DATABASE);
    let ticket = world.proxy.ticket(1);
    let mut client = world.proxy.client();
    client.query("BEGIN").ok();
    client
        .query(&format!("SET LOCAL ringfence.token = '{ticket}'"))
        .ok();
    client.query(WRITE).ok();
    client.query("COMMIT").ok();
    assert!(held(&mut client));
    let commented = format!("{WRITE} /*fencing_token='{ticket}'*/");
    client.query(&commented).ok();
    assert!(held(&mut client));
    let text = format!("SET ringfence.token = '{ticket}'; {WRITE}");
    client.query(&text).ok();
    let batch = [run(WRITE, &[]), run(WRITE, &[]), sync()];
    client.ask(&batch.concat()).ok();
    assert_eq!(world.order(), "written");
}

#[test]
fn a_read_before_the_ticket_costs_its_transaction_no_more_than_the_write() {
    let world = world(DATABASE);
    let ticket = world.proxy.ticket(1);
    let mut client = world.proxy.client();
    client.query("BEGIN").ok();
    client.query("SELECT * FROM orders").ok();
    client
        .query(&format!("SET LOCAL ringfence.token = '{ticket}'"))
        .ok();
    // The server does not let a transaction write that began read-only and has read.
    client.query("SELECT * FROM orders").ok();
    client.query(WRITE).refused("25006");
    client.query("ROLLBACK").ok();
    assert_eq!(world.order(), "first");
}

#[test]
fn what_would_let_the_session_go_is_for_holders() {
    let world = world(ORDERS);
    let mut client = world.proxy.client();
    for sql in [
        "SET default_transaction_read_only = off",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "BEGIN READ WRITE",
        "SELECT set_config('default_transaction_read_only', 'off', false)",
        "RESET default_transaction_read_only",
    ] {
        client.query(sql).refused("RF005");
        assert!(held(&mut client), "{sql}");
    }
    client.query("BEGIN READ ONLY; SELECT 1; COMMIT").ok();
    // In the start-up packet too.
    let asked = [
        ("default_transaction_read_only", "off"),
        ("options", "-c default_transaction_read_only=off"),
    ];
    assert!(held(&mut Client::connect_with(
        world.proxy.address(),
        &asked
    )));
    let ticket = sign(&world.proxy.key, "orders", 1);
    let mut holder = Client::connect_with(world.proxy.address(), &[("ringfence.token", &ticket)]);
    holder.query("BEGIN READ WRITE").ok();
    holder.query(WRITE).ok();
    holder.query("COMMIT").ok();
    assert_eq!(world.order(), "written");
}

/// A whole database under one rule: whoever holds its ticket may do anything there, whatever the
/// names mean, also where nobody tells. What may have acted is distrusted then.
#[test]
fn a_holder_of_everything_needs_no_catalog() {
    let world = world(DATABASE);
    let mut admin = world.admin();
    admin.query("BEGIN").ok();
    admin
        .query("LOCK TABLE pg_rewrite IN ACCESS EXCLUSIVE MODE")
        .ok();
    let mut holder = world.proxy.holder(1);
    holder.query(WRITE).ok();
    assert_eq!(world.order(), "written");
    let mut other = world.proxy.holder(1);
    other.query("PREPARE p AS SELECT 1").ok();
    other.query("SELECT 1 + 1").ok();
    // Behind definitions, and what may have made anything.
    holder.query("CREATE TABLE more (id int)").ok();
    holder.query("INSERT INTO more VALUES (1)").ok();
    holder.query("DO $$ BEGIN END $$").ok();
    holder.query("UPDATE more SET id = 2").ok();
    other.query("EXECUTE p").ok();
    admin.query("COMMIT").ok();
    other.query("SET ringfence.token = ''").ok();
    other.query("EXECUTE p").refused("RF002");
}

/// The server tells that it holds the session no more, whatever has brought that about.
#[test]
fn what_lets_the_session_go_unseen_is_taken_back() {
    let world = World::with(|setup| {
        let lines = "unmatched = \"reject\"\nreading_functions = [\"public.lets_go\"]";
        setup.with(lines).with_rules(ORDERS)
    });
    let number = world.direct().query("SHOW server_version_num").value();
    // Before PostgreSQL 14 it does not tell.
    if number.parse::<u32>().unwrap() < 140_000 {
        return;
    }
    let lets_go = "CREATE FUNCTION public.lets_go() RETURNS text LANGUAGE sql AS \
                   $$SELECT set_config('default_transaction_read_only', 'off', false)$$";
    world.direct().query(lets_go).ok();
    let mut client = world.proxy.client();
    client.query("SELECT public.lets_go()").ok();
    assert!(held(&mut client));
}
