//! The proxy or the server starts again: nothing is forgotten, nothing old comes back.

use rustix::process::Signal;

use crate::client::send::query;
use crate::relay::Relay;
use crate::revoked::seal;
use crate::stack::{Proxy, RELAYED, Setup, eventually};
use crate::world::{WRITE, World};

const LATE: &str = "UPDATE orders SET note = 'late' WHERE id = 1";

#[test]
fn the_watermark_survives_kill_9_of_the_proxy() {
    let mut world = World::new();
    world.proxy.holder(8).query(WRITE).ok();
    // Sealed by a read alone.
    let mut reader = seal(&world, 9);
    world.proxy.crash();
    assert!(reader.has_ended());
    world.proxy.start_again();
    world.proxy.holder(8).query(LATE).refused("RF001");
    assert_eq!(world.order(), "written");
    world.proxy.holder(9).query(LATE).ok();
}

#[test]
fn what_a_killed_proxy_left_open_is_gone_before_a_newer_token_reads() {
    let mut world = World::new();
    let mut old = world.proxy.holder(1);
    old.query(&format!("BEGIN; {WRITE}")).ok();
    let pid = old.backend_pid();
    old.send(&query("UPDATE plain SET note = 'x' RETURNING pg_sleep(60)"));
    world.proxy.crash();
    world.proxy.start_again();
    let mut new = seal(&world, 2);
    let left = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
    assert_eq!(world.admin().query(&left).value(), "0");
    // Its row locks went with it.
    new.query(LATE).ok();
    assert_eq!(world.order(), "late");
}

#[test]
fn a_backend_that_is_stopped_when_its_proxy_dies_keeps_the_lock_closed() {
    let mut world = World::with(|setup| setup.with("admit_deadline = \"500ms\""));
    let mut old = world.proxy.holder(1);
    old.query(&format!("BEGIN; {WRITE}")).ok();
    let pid = old.backend_pid();
    world.server.signal(pid, Signal::STOP);
    old.send(&query("COMMIT"));
    std::thread::sleep(std::time::Duration::from_millis(50));
    world.proxy.crash();
    world.proxy.start_again();
    let mut new = world.proxy.holder(2);
    new.query("SELECT note FROM orders").refused("RF004");
    world.server.signal(pid, Signal::CONT);
    let mut read = String::new();
    eventually("the newer holder", || {
        let answer = new.query("SELECT note FROM orders");
        let admitted = answer.code().is_empty();
        if admitted {
            read = answer.value();
        }
        admitted
    });
    // Either, but for ever.
    assert_eq!(read, world.order());
    assert!(["first", "written"].contains(&&*read), "{read}");
}

#[test]
fn what_a_killed_proxy_left_on_the_network_arrives_at_a_dead_session() {
    let world = World::new();
    let between = Relay::start(world.server.address);
    let setup = Setup {
        name: "edge-2",
        ..Setup::new(between.address).with(RELAYED)
    };
    let mut proxy = Proxy::start(world.path(), &setup);
    let mut old = proxy.holder(1);
    old.query("SELECT 1").ok();
    between.hold();
    old.send(&query(WRITE));
    between.wait_until_held();
    proxy.crash();
    proxy.start_again();
    let mut new = proxy.holder(2);
    let read = new.query("SELECT note FROM orders").value();
    between.release();
    // Long enough for it to arrive; that nothing happens has no end to wait for.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(world.order(), read);
    assert_eq!(read, "first");
}

#[test]
fn a_restarted_server_has_no_old_sessions() {
    let mut world = World::new();
    let mut old = world.proxy.holder(1);
    old.query(&format!("BEGIN; {WRITE}")).ok();
    world.server.crash();
    let told = old.answer();
    assert_eq!(told.status, 0, "{told:?}");
    world.server.start_again();
    eventually("the newer holder", || {
        let ticket = world.proxy.ticket(2);
        let parameters = [("ringfence.token", &*ticket)];
        crate::client::Client::try_connect(world.proxy.address(), &parameters)
            .is_ok_and(|mut new| new.query("SELECT note FROM orders").code().is_empty())
    });
    assert_eq!(world.order(), "first");
    // And with both gone at once.
    let mut newer = world.proxy.holder(2);
    newer.query(&format!("BEGIN; {WRITE}")).ok();
    world.proxy.crash();
    world.server.crash();
    world.server.start_again();
    world.proxy.start_again();
    let mut newest = seal(&world, 3);
    newest.query(LATE).ok();
    assert_eq!(world.order(), "late");
}

#[test]
fn a_control_role_without_the_rights_is_told_at_the_start() {
    let world = World::new();
    let mut admin = world.admin();
    for right in ["pg_signal_backend", "pg_read_all_stats"] {
        admin
            .query(&format!("REVOKE {right} FROM ringfence_control"))
            .ok();
        let setup = Setup {
            name: "edge-2",
            ..Setup::new(world.server.address)
        };
        let said = Proxy::refuses_to_start(world.path(), &setup);
        assert!(said.contains(right), "{said}");
        admin
            .query(&format!("GRANT {right} TO ringfence_control"))
            .ok();
    }
}

#[test]
fn a_superusers_session_gets_no_fenced_write() {
    let world = World::new();
    let parameters = [
        ("user", "postgres"),
        ("ringfence.token", &*world.proxy.ticket(1)),
    ];
    let mut client = crate::client::Client::connect_with(world.proxy.address(), &parameters);
    let told = client.query(WRITE);
    assert!(told.code().starts_with("RF"), "{told:?}");
    assert!(told.faults[0].message.contains("superuser"), "{told:?}");
    assert_eq!(world.order(), "first");
}
