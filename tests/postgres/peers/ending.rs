//! Sessions that end or are cancelled: nobody else's, and nothing hangs.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Three;
use crate::client::send::{V3_0, V3_2, flush, query, run, startup, sync, terminate};
use crate::client::{Client, cancel};
use crate::relay::Relay;
use crate::stack::{Proxy, RELAYED, Setup, eventually};
use crate::world::World;

fn running(direct: &mut Client) -> String {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    direct.query(sql).value()
}

#[test]
fn a_cancel_request_ends_its_own_statement_only() {
    let three = Three::new();
    let mut direct = three.world.admin();
    for (way, mut client) in three.sessions() {
        let mut other = three.world.proxy.client();
        client.send(&query("SELECT pg_sleep(60)"));
        other.send(&query("SELECT pg_sleep(60)"));
        eventually("both statements", || running(&mut direct) == "2");
        let address = match way {
            "direct" => three.world.server.address,
            "fenced" => three.world.proxy.address(),
            _ => three.world.proxy.addresses[1],
        };
        cancel(address, &client.key);
        client.answer().refused("57014");
        assert_eq!(running(&mut direct), "1", "{way}");
        client.query("SELECT 1").ok();
        cancel(three.world.proxy.address(), &other.key);
        other.answer().refused("57014");
    }
}

#[test]
fn a_late_cancel_request_does_not_hit_the_next_statement() {
    let world = World::new();
    let mut client = world.proxy.holder(1);
    for round in 0..50 {
        client.query("SELECT 1").ok();
        // Returns when the other side has ended the connection: it has had its effect by then.
        cancel(world.proxy.address(), &client.key);
        let answer = client.query("SELECT count(*) FROM generate_series(1, 10000)");
        assert_eq!(answer.value(), "10000", "round {round}");
    }
}

/// pgwire 440: a CancelRequest names no version, and its key is what the session was told, of four
/// bytes or of more.
#[test]
fn a_cancel_request_counts_for_a_session_of_either_version() {
    let three = Three::new();
    let mut admin = three.world.admin();
    let proxy = &three.world.proxy;
    for version in [V3_0, V3_2] {
        let [direct, ours] = [three.world.server.address, proxy.address()].map(|address| {
            let mut client = Client::open(address);
            client.send(&startup(version, &[("user", "app"), ("database", "app")]));
            client.begin().unwrap();
            client
        });
        assert_eq!(direct.key.len(), ours.key.len());
        let mut client = ours;
        client.send(&query("SELECT pg_sleep(60)"));
        eventually("the statement", || running(&mut admin) == "1");
        let (short, long) = (&client.key[..7], [&client.key[..], &[0]].concat());
        cancel(proxy.address(), short);
        cancel(proxy.address(), &long);
        assert_eq!(running(&mut admin), "1");
        cancel(proxy.address(), &client.key);
        client.answer().refused("57014");
    }
}

/// pgbouncer 245: a request that was held up reached the server when its session had long been busy
/// with something else. Who cancels is not told that it is done before the server has taken it.
#[test]
fn a_cancel_request_that_is_held_up_is_not_done_before_it_is_carried() {
    let world = World::new();
    let mut client = world.proxy.holder(1);
    let postmaster = parent(client.backend_pid());
    client.send(&query("SELECT pg_sleep(0.3)"));
    let mut admin = world.admin();
    eventually("the statement", || running(&mut admin) == "1");
    world.server.signal(postmaster, Signal::STOP);
    let (address, key) = (world.proxy.address(), client.key.clone());
    let cancels = std::thread::spawn(move || cancel(address, &key));
    client.answer().ok();
    let done = cancels.is_finished();
    world.server.signal(postmaster, Signal::CONT);
    cancels.join().unwrap();
    assert!(!done, "what comes next could be hit");
    for _ in 0..20 {
        client
            .query("SELECT count(*) FROM generate_series(1, 10000)")
            .ok();
    }
}

fn parent(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // Behind the name, which may have anything in it: the state, and the parent.
    let rest = stat.rsplit_once(')').unwrap().1;
    rest.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn the_keys_of_sessions_are_not_the_servers_and_differ() {
    let world = World::new();
    let (mut one, two) = (world.proxy.client(), world.proxy.client());
    assert_ne!(one.key, two.key);
    // A key of the listener's does nothing at the server, nor one of another session's.
    one.send(&query("SELECT pg_sleep(0.5)"));
    cancel(world.proxy.address(), &two.key);
    let mut wrong = one.key.clone();
    *wrong.last_mut().unwrap() ^= 1;
    cancel(world.proxy.address(), &wrong);
    one.answer().ok();
}

#[test]
fn a_client_that_leaves_within_a_pipeline_takes_its_backend_along() {
    let three = Three::new();
    let mut direct = three.world.admin();
    // A direct server does not tell either before a Sync or Flush.
    let one = run("INSERT INTO plain VALUES (1)", &[]);
    let failed = run("SELECT 1/0", &[]);
    let block = run("BEGIN", &[]);
    let flushed = [&one[..], &flush()].concat();
    for left in [&one, &[&block[..], &one].concat(), &flushed, &failed] {
        for (way, mut client) in three.sessions() {
            let pid = client.backend_pid();
            client.send(left);
            if *left == flushed {
                client.read_until(b'C');
            }
            drop(client);
            let left = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
            eventually(&format!("the backend's end: {way}"), || {
                direct.query(&left).value() == "0"
            });
        }
    }
    let rows = "SELECT count(*) FROM plain";
    assert_eq!(direct.query(rows).value(), "0");
}

#[test]
fn a_backend_that_dies_within_a_result_ends_the_session() {
    let three = Three::new();
    for (way, mut client) in three.sessions() {
        let pid = client.backend_pid();
        client.send(&query(
            "SELECT repeat('x', 1000) FROM generate_series(1, 10000000)",
        ));
        client.read_until(b'D');
        let end = format!("SELECT pg_terminate_backend({pid})");
        assert_eq!(three.world.admin().query(&end).value(), "t");
        let answer = client.answer();
        assert_eq!(answer.status, 0, "{way}: ready after its backend's death");
        // A backend that is blocked in a write dies without a word.
        let code = answer.code();
        assert!(["", "57P01", "08007"].contains(&code), "{way}: {code}");
    }
}

#[test]
fn a_backend_that_dies_idle_is_told_to_its_client() {
    let three = Three::new();
    for (way, mut client) in three.sessions() {
        let pid = client.backend_pid();
        let end = format!("SELECT pg_terminate_backend({pid})");
        assert_eq!(three.world.admin().query(&end).value(), "t");
        let answer = client.answer();
        assert_eq!((answer.status, answer.code()), (0, "57P01"), "{way}");
    }
}

#[test]
fn a_client_that_leaves_takes_its_backend_along() {
    let three = Three::new();
    let mut direct = three.world.admin();
    for (_, mut client) in three.sessions() {
        let pid = client.backend_pid();
        client.query("BEGIN; CREATE TABLE never (a int)").ok();
        drop(client);
        let left = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
        eventually("the backend's end", || direct.query(&left).value() == "0");
    }
}

#[test]
fn a_goodbye_behind_a_statement_comes_after_its_answer() {
    let three = Three::new();
    for (way, mut client) in three.sessions() {
        let series = query("SELECT repeat('x', 1000) FROM generate_series(1, 5000)");
        let answer = client.ask(&[series, terminate()].concat());
        assert_eq!((answer.rows.len(), answer.code()), (5000, ""), "{way}");
        assert!(client.has_ended(), "{way}");
    }
}

#[test]
fn an_error_without_a_code_harms_nobody() {
    let world = World::new();
    let between = Relay::start(world.server.address);
    let proxy = Proxy::start(
        world.path(),
        &Setup {
            name: "edge-2",
            ..Setup::new(between.address).with(RELAYED)
        },
    );
    let mut client = proxy.client();
    // Severity and message, and no SQLSTATE; then what ends the answer.
    between.replace(b"SELECT 1\0", b"E\0\0\0\x0cSERROR\0\0Z\0\0\0\x05I");
    let answer = client.query("SELECT 1");
    assert!(
        answer.status == 0 || answer.tags.starts_with('E'),
        "{answer:?}"
    );
    // Whatever became of that session, the next one works.
    proxy.client().query("SELECT 2").ok();
}

#[test]
fn settings_of_one_session_are_not_those_of_the_next() {
    let world = World::new();
    let mut first = world.proxy.holder(1);
    first
        .query("SET default_transaction_read_only = on; SET search_path = x")
        .ok();
    drop(first);
    let mut next = world.proxy.holder(1);
    next.query("UPDATE orders SET note = 'next' WHERE id = 1")
        .ok();
    assert_eq!(world.order(), "next");
}

#[test]
fn a_server_that_is_away_is_told_and_comes_back() {
    let mut world = World::new();
    let mut idle = world.proxy.holder(1);
    world.server.crash();
    assert_eq!(idle.answer().status, 0);
    let started = Instant::now();
    let fault = Client::try_connect(world.proxy.address(), &[]).err();
    let fault = fault.expect("a session without a server");
    assert!(started.elapsed() < Duration::from_secs(10));
    assert!(
        ["08006", "08001", "57P03", "RF004"].contains(&&*fault.code),
        "{fault:?}"
    );
    world.server.start_again();
    eventually("a session that writes", || {
        let ticket = world.proxy.ticket(2);
        let again = Client::try_connect(world.proxy.address(), &[("ringfence.token", &ticket)]);
        again.is_ok_and(|mut it| {
            it.query("UPDATE orders SET note = 'back'")
                .code()
                .is_empty()
        })
    });
    assert_eq!(world.order(), "back");
}

#[test]
fn an_error_in_a_batch_that_is_cancelled_is_one() {
    let three = Three::new();
    let mut direct = three.world.admin();
    for (way, mut client) in three.sessions() {
        let batch = [
            run("SELECT pg_sleep(60)", &[]),
            run("SELECT 1", &[]),
            sync(),
        ];
        client.send(&batch.concat());
        eventually("the statement", || running(&mut direct) == "1");
        let pid = client_pid(&mut direct);
        direct
            .query(&format!("SELECT pg_cancel_backend({pid})"))
            .ok();
        let answer = client.answer();
        answer.refused("57014");
        assert_eq!((answer.faults.len(), answer.status), (1, b'I'), "{way}");
        client.query("SELECT 1").ok();
    }
}

fn client_pid(direct: &mut Client) -> String {
    let sql = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    direct.query(sql).value()
}
