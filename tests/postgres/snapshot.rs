//! A read under a ticket is never older than its seal, also where the server takes the one snapshot
//! of a transaction before the statement comes.

use crate::client::Client;
use crate::client::send::{bind, describe, execute, flush, parse, run, sync};
use crate::world::{WRITE, World};

const READ: &str = "SELECT note FROM orders WHERE id = 1";

/// A session under this token whose transactions are REPEATABLE READ as they come.
fn repeatable(world: &World, token: u64) -> Client {
    let ticket = world.proxy.ticket(token);
    let parameters = [
        ("ringfence.token", &*ticket),
        ("default_transaction_isolation", "repeatable read"),
    ];
    Client::connect_with(world.proxy.address(), &parameters)
}

#[test]
fn a_parse_that_takes_the_snapshot_seals_first() {
    let world = World::new();
    let mut old = world.proxy.holder(1);
    old.query("SELECT 1").ok();
    let mut new = repeatable(&world, 2);
    new.send(&[parse("", READ), flush()].concat());
    new.read_until(b'1');
    // The snapshot is there: what it does not hold must not come any more.
    old.query(WRITE).refused("RF001");
    new.send(&[bind("", "", &[]), execute("", 0), sync()].concat());
    assert_eq!(new.answer().value(), "first");
    assert_eq!(world.order(), "first");
}

#[test]
fn a_bind_and_a_describe_of_what_was_prepared_seal_first() {
    let world = World::new();
    for (token, early, answer) in [
        (1, bind("", "s", &[]), b'2'),
        (11, describe(b'S', "s"), b'T'),
    ] {
        let mut old = world.proxy.holder(token);
        let mut new = repeatable(&world, token + 1);
        // Prepared while no ticket counted.
        let held = world.proxy.ticket(token + 1);
        new.query("SET ringfence.token = ''").ok();
        new.ask(&[parse("s", READ), sync()].concat()).ok();
        new.query(&format!("SET ringfence.token = '{held}'")).ok();
        // The SET itself has presented it; a newer one is only in a comment.
        let newer = world.proxy.ticket(token + 2);
        old.query("SELECT 1").refused("RF001");
        new.send(&[early, flush()].concat());
        new.read_until(answer);
        new.send(&[bind("", "s", &[]), execute("", 0), sync()].concat());
        new.answer().ok();
        let comment = format!("{READ} /*fencing_token='{newer}'*/");
        new.send(&[parse("", &comment), flush()].concat());
        new.read_until(b'1');
        let mut same = world.proxy.holder(token + 1);
        same.query(WRITE).refused("RF001");
        new.send(&[bind("", "", &[]), execute("", 0), sync()].concat());
        assert_eq!(new.answer().value(), "first");
    }
}

#[test]
fn a_ticket_that_comes_behind_the_snapshot_is_refused_to_what_reads() {
    let world = World::new();
    let mut new = world.proxy.client();
    new.query("SET default_transaction_isolation = 'serializable'")
        .ok();
    let set = "SELECT set_config('ringfence.token', $1, false)";
    // By itself it is taken, for what comes after its transaction.
    new.run(set, &[&world.proxy.ticket(2)]).ok();
    new.query(WRITE).ok();
    // With a read behind it, that would be of before the seal.
    let ticket = world.proxy.ticket(3);
    let told = new.ask(&[run(set, &[&ticket]), run(READ, &[]), sync()].concat());
    told.refused("RF003");
    new.query("SET ringfence.token = ''").ok();
    new.query("BEGIN").ok();
    new.run(set, &[&ticket]).ok();
    new.query(READ).refused("RF003");
    new.query("ROLLBACK").ok();
    new.query("SELECT 1").ok();
}

#[test]
fn a_session_that_is_held_read_only_is_let_go_before_an_early_snapshot_only() {
    let world = World::with(|setup| setup.with("unmatched = \"reject\""));
    let ticket = world.proxy.ticket(1);
    let mut client = world.proxy.client();
    client.query("BEGIN").ok();
    client.ask(&[parse("s", READ), sync()].concat()).ok();
    client
        .query(&format!("SET LOCAL ringfence.token = '{ticket}'"))
        .ok();
    // The proxy must not fail the transaction by what comes too late.
    client.query(READ).ok();
    client.query("ROLLBACK").ok();
}
