//! A read under a ticket is never older than its seal, also where the server takes the one snapshot
//! of a transaction before the statement comes.

use std::time::Duration;

use rustix::process::Signal;

use crate::client::Client;
use crate::client::send::{bind, describe, execute, flush, parse, query, run, sync};
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
fn a_bind_seals_first_however_many_snapshots_there_are() {
    let world = World::new();
    let mut old = world.proxy.holder(1);
    old.query("SELECT 1").ok();
    // READ COMMITTED: a SELECT reads by the snapshot of its Bind.
    let mut new = world.proxy.holder(2);
    new.send(&[parse("", READ), bind("", "", &[]), flush()].concat());
    new.read_until(b'2');
    old.query(WRITE).refused("RF001");
    new.send(&[execute("", 0), sync()].concat());
    assert_eq!(new.answer().value(), "first");
    assert_eq!(world.order(), "first");
}

#[test]
fn what_was_being_committed_is_read_by_who_comes_next() {
    let world = World::new();
    let mut old = world.proxy.holder(1);
    old.query(&format!("BEGIN; {WRITE}")).ok();
    let pid = old.backend_pid();
    world.server.signal(pid, Signal::STOP);
    old.send(&query("COMMIT"));
    let mut new = world.proxy.holder(2);
    new.query("SET ringfence.token = ''").ok();
    let ticket = world.proxy.ticket(2);
    let text = format!("{READ} /*fencing_token='{ticket}'*/");
    // All at once, as drivers do: Bind must not be ahead of the seal.
    new.send(&[run(&text, &[]), sync()].concat());
    std::thread::sleep(Duration::from_millis(200));
    world.server.signal(pid, Signal::CONT);
    let committed = old.answer();
    let read = new.answer().value();
    if committed.code().is_empty() {
        assert_eq!(read, "written");
    }
    assert_eq!(read, world.order());
}

#[test]
fn a_cursor_of_before_the_ticket_is_not_read_under_it() {
    let world = World::new();
    let mut client = world.proxy.client();
    client
        .query(&format!("BEGIN; DECLARE c CURSOR FOR {READ}"))
        .ok();
    let set = format!("SET LOCAL ringfence.token = '{}'", world.proxy.ticket(1));
    client.query(&set).ok();
    client.query("FETCH ALL FROM c").refused("RF003");
    client.query("ROLLBACK").ok();
    client.query(&format!("BEGIN; {set}")).ok();
    client
        .query(&format!("DECLARE c CURSOR FOR {READ}; FETCH ALL FROM c"))
        .ok();
    client.query("COMMIT").ok();
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

/// One pipeline, where the first query of a transaction sets a parameter for the rest of it.
#[test]
fn a_snapshot_that_is_taken_to_set_something_else_seals_first() {
    let world = World::new();
    let mut old = world.proxy.holder(1);
    old.query("SELECT 1").ok();
    let mut new = repeatable(&world, 2);
    let set = run("SELECT set_config('app.tenant', $1, true)", &["5"]);
    new.send(&[set, flush()].concat());
    new.read_until(b'C');
    old.query(WRITE).refused("RF001");
    let rest = [bind("", "", &["6"]), execute("", 0), run(READ, &[]), sync()];
    let told = new.ask(&rest.concat()).ok();
    assert_eq!(told.rows, [["6"], ["first"]]);
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

/// `pg_dump -j`: one session exports, the others read by its snapshot.
#[test]
fn a_snapshot_that_was_taken_under_the_same_ticket_is_imported() {
    const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ";
    const EXPORT: &str = "SELECT pg_catalog.pg_export_snapshot()";
    let world = World::new();
    let mut exports = world.proxy.holder(1);
    let mut imports = world.proxy.holder(1);
    exports.query(BEGIN).ok();
    let name = exports.query(EXPORT).value();
    let import = format!("SET TRANSACTION SNAPSHOT '{name}'");
    world.direct().query(WRITE).ok();
    for _ in 0..2 {
        imports.query(BEGIN).ok();
        imports.query(&import).ok();
        assert_eq!(imports.query(READ).value(), "first");
        imports.query("COMMIT").ok();
    }
    imports.query(BEGIN).ok();
    imports.run(&import, &[]).ok();
    imports.query("COMMIT").ok();
    // It may be older than the seal of a newer one.
    let mut newer = world.proxy.holder(2);
    newer.query(BEGIN).ok();
    newer.query(&import).refused("RF003");
    newer.query("ROLLBACK").ok();
    // The exporter's has ended by that.
    let mut again = world.proxy.holder(2);
    again.query(BEGIN).ok();
    again.query(&import).refused("RF003");
}

#[test]
fn a_snapshot_of_elsewhere_is_not_imported_whatever_a_row_says() {
    let world = World::new();
    let mut past = world.direct();
    past.query("BEGIN ISOLATION LEVEL REPEATABLE READ").ok();
    let name = past.query("SELECT pg_export_snapshot()").value();
    world
        .direct()
        .query(&format!(
            "CREATE FUNCTION pg_export_snapshot() RETURNS text IMMUTABLE LANGUAGE sql AS \
             $$ SELECT '{name}' $$"
        ))
        .ok();
    let mut client = world.proxy.holder(1);
    for sql in [
        "SELECT public.pg_export_snapshot()".to_owned(),
        format!("SELECT '{name}', pg_catalog.pg_export_snapshot()"),
        format!("SELECT '{name}' UNION ALL SELECT pg_catalog.pg_export_snapshot()"),
        format!("SELECT '{name}' || left(pg_catalog.pg_export_snapshot(), 0)"),
    ] {
        client.query("BEGIN ISOLATION LEVEL REPEATABLE READ").ok();
        assert_eq!(client.query(&sql).rows[0][0], name);
        let mut other = world.proxy.holder(1);
        other.query("BEGIN ISOLATION LEVEL REPEATABLE READ").ok();
        let import = format!("SET TRANSACTION SNAPSHOT '{name}'");
        other.query(&import).refused("RF003");
        client.query("ROLLBACK").ok();
    }
}
