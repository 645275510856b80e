//! The proxy starts again without what it had on disk: what that told of sessions nobody knows.

use crate::client::Client;
use crate::client::send::query;
use crate::registry::{Lockd, readiness, wait_until_ready};
use crate::stack::{Proxy, Setup, eventually};
use crate::world::{WRITE, World};

/// A proxy that asks a lock service.
fn world() -> (World, Lockd) {
    let mut lockd = None;
    let world = World::with(|setup| {
        let lockd = lockd.insert(Lockd::start(&setup.key));
        let tickets = Some(lockd.tickets());
        Setup { tickets, ..setup }
    });
    wait_until_ready(world.proxy.admin);
    (world, lockd.unwrap())
}

/// A session of token 1 has a statement at the server that does not end; its process.
fn write_for_long(world: &World) -> i32 {
    let mut old = world.proxy.holder(1);
    old.query(WRITE).ok();
    let pid = old.backend_pid();
    old.send(&query(
        "UPDATE orders SET note = 'late' RETURNING pg_sleep(60)",
    ));
    let mut admin = world.admin();
    let active = format!("{} AND state = 'active'", count(pid));
    eventually("the statement", || admin.query(&active).value() == "1");
    pid
}

/// kill -9, with what it had on disk or without; a newer token is known when it comes back.
fn end_and_start_again(proxy: &mut Proxy, lockd: &Lockd, is_lost: bool) {
    match is_lost {
        true => proxy.lose(),
        false => proxy.crash(),
    }
    lockd.set_floor(2);
    proxy.start_again();
    wait_until_ready(proxy.admin);
}

fn count(pid: i32) -> String {
    format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}")
}

#[test]
fn what_a_killed_proxy_left_is_gone_before_a_newer_token_reads_with_its_store_or_without() {
    for is_lost in [false, true] {
        let (mut world, lockd) = world();
        let pid = write_for_long(&world);
        let mut past = world.direct();
        let mut elsewhere = Client::connect_with(world.server.address, &[("database", "postgres")]);
        let mut admin = world.admin();
        end_and_start_again(&mut world.proxy, &lockd, is_lost);
        let mut new = world.proxy.holder(2);
        assert_eq!(new.query("SELECT note FROM orders").value(), "written");
        assert_eq!(admin.query(&count(pid)).value(), "0", "lost: {is_lost}");
        // Sessions of which nobody knows whose they are: in a database without rules, too, since a
        // statement there may be about the guarded one.
        assert_eq!(past.query("SELECT 1").status == 0, is_lost);
        assert_eq!(elsewhere.query("SELECT 1").status == 0, is_lost);
    }
}

/// A statement in another database that is about the guarded one is applied as late as any.
#[test]
fn what_waits_in_another_database_is_gone_before_a_newer_token_reads() {
    const LIMIT: &str = "SELECT datconnlimit FROM pg_database WHERE datname = 'app'";
    for is_lost in [false, true] {
        let (mut world, lockd) = world();
        let mut admin = world.admin();
        let mut blocker = world.admin();
        blocker
            .query("BEGIN; ALTER DATABASE app CONNECTION LIMIT 50")
            .ok();
        let ticket = world.proxy.ticket(1);
        let parameters = [("database", "postgres"), ("ringfence.token", &*ticket)];
        let mut old = Client::connect_with(world.proxy.address(), &parameters);
        let pid = old.backend_pid();
        old.send(&query("ALTER DATABASE app CONNECTION LIMIT 60"));
        let waits = format!("{} AND wait_event_type = 'Lock'", count(pid));
        eventually("the wait", || admin.query(&waits).value() == "1");
        end_and_start_again(&mut world.proxy, &lockd, is_lost);
        let mut new = world.proxy.holder(2);
        new.query("SELECT note FROM orders").ok();
        assert_eq!(admin.query(&count(pid)).value(), "0", "lost: {is_lost}");
        // It would have been applied now.
        blocker.query("COMMIT");
        assert_ne!(admin.query(LIMIT).value(), "60", "lost: {is_lost}");
    }
}

#[test]
fn sessions_that_cannot_be_ended_keep_the_locks_closed() {
    let (mut world, lockd) = world();
    let pid = write_for_long(&world);
    world.proxy.lose();
    lockd.set_floor(2);
    lockd.answer(false);
    world.proxy.start_again();
    // It has found its rights before it serves.
    drop(world.proxy.client());
    let mut admin = world.admin();
    admin
        .query("REVOKE pg_signal_backend FROM ringfence_control")
        .ok();
    lockd.answer(true);
    let admin_port = world.proxy.admin;
    // The server's own words, which differ by version: who may end it.
    eventually("the reason", || {
        let told = readiness(admin_port);
        let why = told.split("not proven gone: 1 of them: ").nth(1);
        why.is_some_and(|why| why.starts_with("must be") || why.starts_with("permission denied"))
    });
    assert!(readiness(admin_port).starts_with("HTTP/1.1 503"));
    let mut new = world.proxy.holder(2);
    let told = new.query("SELECT note FROM orders");
    let told = told.refused("RF004");
    assert!(told.message.contains("store was lost"), "{told:?}");
    assert_eq!(admin.query(&count(pid)).value(), "1");
    admin
        .query("GRANT pg_signal_backend TO ringfence_control")
        .ok();
    wait_until_ready(admin_port);
    assert_eq!(new.query("SELECT note FROM orders").value(), "written");
    assert_eq!(admin.query(&count(pid)).value(), "0");
}
