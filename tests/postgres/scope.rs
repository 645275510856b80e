//! For how long a ticket counts: as long as Postgres keeps any parameter; and what SHOW tells.

use crate::client::Client;
use crate::client::send::{run, sync};
use crate::world::{WRITE, World};

/// Whether the session's ticket counts now: a write passes, or none is there.
#[track_caller]
fn counts(client: &mut Client, expected: bool) {
    let told = client.query(WRITE);
    let code = if expected { "" } else { "RF002" };
    assert_eq!(told.code(), code, "{told:?}");
}

fn set(world: &World, token: u64) -> String {
    format!("SET ringfence.token = '{}'", world.proxy.ticket(token))
}

#[test]
fn a_ticket_set_in_a_session_lasts_until_it_is_reset() {
    let world = World::new();
    for reset in [
        "RESET ringfence.token",
        "RESET ALL",
        "DISCARD ALL",
        "SET ringfence.token = ''",
        "SET ringfence.token TO DEFAULT",
        "SELECT set_config('ringfence.token', '', false)",
        "SET SESSION ringfence.token = ''",
    ] {
        let mut client = world.proxy.client();
        counts(&mut client, false);
        client.query(&set(&world, 1)).ok();
        counts(&mut client, true);
        counts(&mut client, true);
        client.query(reset).ok();
        counts(&mut client, false);
    }
}

#[test]
fn a_reset_returns_to_the_ticket_of_the_start() {
    let world = World::new();
    let mut client = world.proxy.holder(1);
    client.query("SET ringfence.token = ''").ok();
    counts(&mut client, false);
    for reset in ["RESET ringfence.token", "RESET ALL", "DISCARD ALL"] {
        client.query("SET ringfence.token = ''").ok();
        client.query(reset).ok();
        counts(&mut client, true);
        assert_eq!(client.query("SHOW ringfence.token").value(), "app=1");
    }
}

#[test]
fn what_a_pool_runs_between_two_users_leaves_the_start_only() {
    let world = World::new();
    let mut client = world.proxy.client();
    for reset in [
        "SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL",
        "DISCARD ALL",
        "ABORT; RESET ALL",
    ] {
        client.query(&set(&world, 1)).ok();
        counts(&mut client, true);
        let told = client.query(reset);
        assert_eq!(told.code(), "", "{reset}: {told:?}");
        counts(&mut client, false);
    }
}

#[test]
fn a_rolled_back_set_never_was() {
    let world = World::new();
    let mut client = world.proxy.client();
    client.query("BEGIN").ok();
    client.query(&set(&world, 1)).ok();
    counts(&mut client, true);
    client.query("ROLLBACK").ok();
    counts(&mut client, false);
    // Back to a savepoint.
    client.query("BEGIN; SAVEPOINT a").ok();
    client.query(&set(&world, 1)).ok();
    counts(&mut client, true);
    client.query("ROLLBACK TO a").ok();
    counts(&mut client, false);
    client.query("ROLLBACK").ok();
    // By an error.
    client.query("BEGIN").ok();
    client.query(&set(&world, 1)).ok();
    client.query("SELECT 1/0");
    client.query("COMMIT").ok();
    counts(&mut client, false);
    // In one text and in one pipeline.
    let text = format!("BEGIN; {}; ROLLBACK", set(&world, 1));
    client.query(&text).ok();
    counts(&mut client, false);
    let failing = [run(&set(&world, 1), &[]), run("SELECT 1/0", &[]), sync()];
    client.ask(&failing.concat()).refused("22012");
    counts(&mut client, false);
    let passing = [run(&set(&world, 1), &[]), run(WRITE, &[]), sync()];
    client.ask(&passing.concat()).ok();
    counts(&mut client, true);
}

#[test]
fn a_local_ticket_ends_with_its_transaction() {
    let world = World::new();
    let mut client = world.proxy.client();
    let local = set(&world, 1).replacen("SET", "SET LOCAL", 1);
    for end in ["COMMIT", "ROLLBACK"] {
        client.query("BEGIN").ok();
        client.query(&local).ok();
        counts(&mut client, true);
        client.query(end).ok();
        counts(&mut client, false);
    }
    let ticket = world.proxy.ticket(1);
    client.query("BEGIN").ok();
    client
        .run("SELECT set_config('ringfence.token', $1, true)", &[&ticket])
        .ok();
    counts(&mut client, true);
    client.query("COMMIT").ok();
    counts(&mut client, false);
    // Over that of the session.
    let mut client = world.proxy.holder(1);
    client.query("BEGIN; SET LOCAL ringfence.token = ''").ok();
    counts(&mut client, false);
    client.query("ROLLBACK").ok();
    counts(&mut client, true);
}

#[test]
fn a_comment_says_nothing_about_the_next_statement() {
    let world = World::new();
    let mut client = world.proxy.client();
    let ticket = world.proxy.ticket(1);
    let commented = format!("{WRITE} /*fencing_token='{ticket}'*/");
    client.query(&commented).ok();
    counts(&mut client, false);
    client.run(&commented, &[]).ok();
    counts(&mut client, false);
    // In a named statement it would be older at every execution.
    use crate::client::send::{bind, execute, parse};
    client
        .ask(&[parse("named", &commented), sync()].concat())
        .ok();
    let told = client.ask(&[bind("", "named", &[]), execute("", 0), sync()].concat());
    assert_eq!(told.code(), "RF002", "{told:?}");
}

#[test]
fn show_tells_lock_and_token() {
    let world = World::new();
    let mut client = world.proxy.client();
    client.query(&set(&world, 41)).ok();
    assert_eq!(client.query("SHOW ringfence.token").value(), "app=41");
    let current = "SELECT current_setting('ringfence.token')";
    assert_eq!(client.query(current).value(), "app=41");
    client.query("BEGIN; SET LOCAL ringfence.token = ''").ok();
    assert_eq!(client.query(current).value(), "");
    client.query("ROLLBACK").ok();
    assert_eq!(client.query(current).value(), "app=41");
    assert_eq!(world.proxy.holder(43).query(current).value(), "app=43");
    let ticket = world.proxy.ticket(44);
    let set = "SELECT set_config('ringfence.token', $1, false)";
    assert_eq!(client.run(set, &[&ticket]).value(), "app=44");
}

#[test]
fn a_ticket_after_a_snapshot_is_refused_where_reads_stay_as_they_were() {
    let world = World::new();
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let mut client = world.proxy.client();
        client.query(&format!("BEGIN ISOLATION LEVEL {level}")).ok();
        client.query("SELECT * FROM orders").ok();
        let told = client.query(&set(&world, 1));
        let told = if told.code().is_empty() {
            client.query(WRITE)
        } else {
            told
        };
        assert!(told.code().starts_with("RF"), "{level}: {told:?}");
        client.query("ROLLBACK").ok();
        // Before it, it counts.
        client.query(&format!("BEGIN ISOLATION LEVEL {level}")).ok();
        client.query(&set(&world, 1)).ok();
        counts(&mut client, true);
        client.query("COMMIT").ok();
    }
    // Each statement has a snapshot of its own here.
    let mut client = world.proxy.client();
    client.query("BEGIN; SELECT * FROM orders").ok();
    client.query(&set(&world, 1)).ok();
    counts(&mut client, true);
    client.query("COMMIT").ok();
}
