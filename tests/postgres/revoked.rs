//! A newer token seals while a session of the older one is busy: each kind of being busy once, and
//! what the older client is told.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::client::send::{copy_data, copy_done, flush, query, run, sync};
use crate::client::{Client, cancel};
use crate::stack::eventually;
use crate::world::{WRITE, World};

const LATE: &str = "UPDATE orders SET note = 'late' WHERE id = 1";

/// The newer holder reads: this is when it seals.
#[track_caller]
pub fn seal(world: &World, token: u64) -> Client {
    let mut new = world.proxy.holder(token);
    new.query("SELECT note FROM orders").ok();
    new
}

#[test]
fn an_idle_transaction_is_rolled_back_at_once_and_its_locks_are_free() {
    let world = World::new();
    let mut old = world.proxy.holder(1);
    old.query(&format!("BEGIN; {WRITE}")).ok();
    let started = Instant::now();
    let mut new = seal(&world, 2);
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!(world.order(), "first");
    new.query(LATE).ok();
    // Told with the next statement, not before.
    let told = old.query(WRITE);
    assert_eq!(told.refused("RF001").json()["watermark"], "2");
    assert_eq!(told.status, b'E');
    let ended = old.query("ROLLBACK");
    assert_eq!((ended.code(), ended.status), ("", b'I'));
    old.query("SET ringfence.token = ''").ok();
    old.query("SELECT 1").ok();
    assert_eq!(world.order(), "late");
}

#[test]
fn a_commit_of_what_was_rolled_back_is_refused() {
    let world = World::new();
    for (token, by_sync) in [(1, false), (3, true)] {
        let mut old = world.proxy.holder(token);
        old.query(&format!("BEGIN; {WRITE}")).ok();
        let _new = seal(&world, token + 1);
        let told = match by_sync {
            false => old.query("COMMIT"),
            true => old.run("COMMIT", &[]),
        };
        told.refused("RF001");
        assert_eq!(told.status, b'I', "{told:?}");
        assert_eq!(world.order(), "first");
        old.query("SET ringfence.token = ''").ok();
        old.query("BEGIN; SELECT 1; COMMIT").ok();
    }
}

#[test]
fn a_rollback_of_what_was_rolled_back_succeeds() {
    let world = World::new();
    let mut old = world.proxy.holder(1);
    old.query(&format!("BEGIN; SAVEPOINT a; {WRITE}")).ok();
    let _new = seal(&world, 2);
    let told = old.query("ROLLBACK");
    assert_eq!((told.code(), told.status), ("", b'I'), "{told:?}");
    // Only a savepoint is rolled back: the rest must not be committed.
    let mut old = world.proxy.holder(3);
    old.query(&format!("BEGIN; {WRITE}; SAVEPOINT a; SELECT 1"))
        .ok();
    let _new = seal(&world, 4);
    old.query("ROLLBACK TO a");
    old.query("COMMIT");
    assert_eq!(world.order(), "first");
}

#[test]
fn a_running_statement_is_cancelled_and_its_transaction_rolled_back() {
    let world = World::new();
    for (token, begins) in [(1, true), (3, false)] {
        let mut old = world.proxy.holder(token);
        if begins {
            old.query("BEGIN").ok();
        }
        old.send(&query(&format!("{WRITE} RETURNING pg_sleep(60)")));
        let mut admin = world.admin();
        let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        eventually("the statement", || admin.query(sleeping).value() == "1");
        let started = Instant::now();
        let _new = seal(&world, token + 1);
        assert!(
            started.elapsed() < Duration::from_secs(4),
            "{:?}",
            started.elapsed()
        );
        let told = old.answer();
        assert!(
            ["57014", "RF001", "08007"].contains(&told.code()),
            "{told:?}"
        );
        if told.status != 0 {
            old.query("ROLLBACK");
            old.query("SELECT 1").refused("RF001");
            old.query("RESET ringfence.token").code();
            old.query("SET ringfence.token = ''").ok();
            old.query("SELECT 1").ok();
        }
        assert_eq!(world.order(), "first");
    }
}

/// A function that no cancel request ends.
fn make_stubborn(world: &World) {
    world
        .direct()
        .query(
            "CREATE FUNCTION stubborn() RETURNS void LANGUAGE plpgsql AS $$BEGIN \
             UPDATE orders SET note = 'stubborn'; \
             FOR i IN 1..1000 LOOP BEGIN PERFORM pg_sleep(60); \
             EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END$$",
        )
        .ok();
}

#[test]
fn a_statement_that_cannot_be_cancelled_ends_with_its_session() {
    let world = World::new();
    make_stubborn(&world);
    let mut old = world.proxy.holder(1);
    old.send(&query("SELECT stubborn()"));
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    let mut admin = world.admin();
    eventually("the statement", || admin.query(sleeping).value() == "1");
    let _new = seal(&world, 2);
    assert_eq!(admin.query(sleeping).value(), "0");
    let told = old.answer();
    assert_eq!(told.status, 0, "{told:?}");
    let told = told.refused("RF001");
    assert_eq!(
        (&*told.severity, &told.json()["outcome"]),
        ("FATAL", &"not-applied".into())
    );
    assert_eq!(world.order(), "first");
}

/// Of what commits in its middle something is done, whoever has ended it.
#[test]
fn what_cannot_be_cancelled_and_may_be_done_in_part_is_told_as_unknown() {
    let world = World::new();
    let stubborn = "UPDATE orders SET note = 'in part'; COMMIT; \
                    FOR i IN 1..1000 LOOP BEGIN PERFORM pg_sleep(60); \
                    EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP;";
    let call = format!("CREATE PROCEDURE stubborn() LANGUAGE plpgsql AS $$BEGIN {stubborn} END$$");
    world.direct().query(&call).ok();
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    let mut admin = world.admin();
    let texts = [
        "CALL stubborn()".to_owned(),
        format!("DO $$BEGIN {stubborn} END$$"),
    ];
    let sent = texts.iter().flat_map(|text| {
        let piped = [run(text, &[]), sync()].concat();
        [query(text), piped]
    });
    for (n, sent) in sent.enumerate() {
        let token = 2 * n as u64 + 1;
        let mut old = world.proxy.holder(token);
        old.send(&sent);
        eventually("the statement", || admin.query(sleeping).value() == "1");
        let _new = seal(&world, token + 1);
        let told = old.answer();
        assert_eq!((told.status, told.faults.len()), (0, 1), "{told:?}");
        let told = told.refused("08007");
        assert_eq!(
            (&*told.severity, &told.json()["outcome"]),
            ("FATAL", &"unknown".into())
        );
        assert_eq!(world.order(), "in part");
    }
}

#[test]
fn a_statement_that_waits_for_the_seal_is_cancelled_by_its_client() {
    let late = "terminate_after = \"60s\"\nadmit_deadline = \"60s\"";
    let world = World::with(|setup| setup.with(late));
    make_stubborn(&world);
    let mut old = world.proxy.holder(1);
    old.send(&query("SELECT stubborn()"));
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    let mut admin = world.admin();
    eventually("the statement", || admin.query(sleeping).value() == "1");
    let mut new = world.proxy.holder(2);
    let extended = [run("SELECT 1", &[]), sync()].concat();
    for (round, waits) in [query("SELECT 1"), extended].into_iter().enumerate() {
        new.send(&waits);
        // It must have come to the gate, as a statement must have begun at a server.
        new.hears_nothing(Duration::from_millis(300));
        let started = Instant::now();
        cancel(world.proxy.address(), &new.key);
        let told = new.answer();
        assert_eq!((told.code(), told.status), ("57014", b'I'), "{told:?}");
        assert!(started.elapsed() < Duration::from_secs(10), "round {round}");
    }
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    admin.query(end).ok();
    new.query("SELECT 1").ok();
    assert_eq!(world.order(), "first");
}

#[test]
fn a_copy_that_is_open_ends() {
    use crate::client::send::{copy_data, copy_done};
    let world = World::new();
    let mut old = world.proxy.holder(1);
    old.send(&query("COPY plain FROM STDIN"));
    old.read_until(b'G');
    old.send(&copy_data(b"1\tcopied\n"));
    let _new = seal(&world, 2);
    old.send(&[copy_data(b"2\tcopied\n"), copy_done()].concat());
    let told = old.answer();
    assert_ne!(told.code(), "", "{told:?}");
    assert!(told.done.is_empty(), "{told:?}");
    assert_eq!(
        world.direct().query("SELECT count(*) FROM plain").value(),
        "0"
    );
}

#[test]
fn a_failed_pipeline_that_is_left_open_ends() {
    let world = World::new();
    let mut old = world.proxy.holder(1);
    let parts = [
        run(WRITE, &[]),
        run("SELECT 1/0", &[]),
        crate::client::send::flush(),
    ];
    old.send(&parts.concat());
    old.read_until(b'E');
    let _new = seal(&world, 2);
    let told = old.ask(&[run(WRITE, &[]), sync()].concat());
    assert!(told.done.is_empty(), "{told:?}");
    assert_eq!(world.order(), "first");
}

#[test]
fn while_a_backend_is_stopped_the_newer_holder_is_told_busy() {
    let world = World::with(|setup| setup.with("admit_deadline = \"400ms\""));
    let mut old = world.proxy.holder(1);
    old.query(&format!("BEGIN; {WRITE}")).ok();
    let pid = old.backend_pid();
    world.server.signal(pid, Signal::STOP);
    let mut new = world.proxy.holder(2);
    let told = new.query("SELECT note FROM orders");
    let fault = told.refused("RF004");
    assert_eq!(fault.json()["code"], "busy");
    // Stale already, although the newer one does not write yet.
    world.proxy.holder(1).query(WRITE).refused("RF001");
    world.server.signal(pid, Signal::CONT);
    eventually("the newer holder", || {
        new.query("SELECT note FROM orders").code().is_empty()
    });
    assert_eq!(world.order(), "first");
    drop(old);
}

#[test]
fn a_commit_whose_outcome_is_not_known_is_told_so() {
    let world = World::new();
    let mut old = world.proxy.holder(1);
    old.query(&format!("BEGIN; {WRITE}")).ok();
    let pid = old.backend_pid();
    world.server.signal(pid, Signal::STOP);
    old.send(&query("COMMIT"));
    // On its way; that it has left the proxy cannot be seen from here.
    std::thread::sleep(Duration::from_millis(100));
    world.server.signal(pid, Signal::KILL);
    let told = old.answer();
    assert_eq!(told.status, 0, "{told:?}");
    assert_eq!(told.code(), "08007", "{told:?}");
    assert_eq!(told.faults[0].json()["outcome"], "unknown");
}

#[test]
fn readers_and_writers_of_one_token_go_on_beside_each_other() {
    let world = World::new();
    let mut holders: Vec<Client> = (0..5).map(|_| world.proxy.holder(4)).collect();
    for (at, holder) in holders.iter_mut().enumerate() {
        holder.query("BEGIN").ok();
        let insert = format!("INSERT INTO plain VALUES ({at}, 'x')");
        holder.query(&insert).ok();
    }
    for holder in &mut holders {
        holder.query("COMMIT").ok();
    }
    assert_eq!(
        world.direct().query("SELECT count(*) FROM plain").value(),
        "5"
    );
}

/// So long that nothing of a test may wait for it.
const PATIENT: &str = "terminate_after = \"60s\"\nadmit_deadline = \"20s\"";

#[test]
fn a_pipeline_that_waits_for_its_sync_ends_without_its_session() {
    let world = World::with(|setup| setup.with(PATIENT));
    for (token, flushes) in [(1, true), (3, false)] {
        let mut old = world.proxy.holder(token);
        let pid = old.backend_pid();
        old.send(&run(WRITE, &[]));
        if flushes {
            old.send(&flush());
            old.read_until(b'C');
        } else {
            let written = "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid'";
            let mut admin = world.admin();
            eventually("the write", || admin.query(written).value() != "0");
        }
        let mut new = seal(&world, token + 1);
        // Its row is free.
        new.query(LATE).ok();
        let told = old.ask(&[run(WRITE, &[]), sync()].concat());
        assert_eq!(told.refused("RF001").json()["code"], "stale");
        assert_eq!((told.faults.len(), told.status), (1, b'I'), "{told:?}");
        old.query("SET ringfence.token = ''").ok();
        assert_eq!(old.backend_pid(), pid);
        assert_eq!(world.order(), "late");
        world
            .direct()
            .query("UPDATE orders SET note = 'first'")
            .ok();
    }
}

#[test]
fn a_failed_pipeline_of_a_block_ends_without_its_session() {
    let world = World::with(|setup| setup.with(PATIENT));
    let mut old = world.proxy.holder(1);
    let pid = old.backend_pid();
    old.query(&format!("BEGIN; {WRITE}; SAVEPOINT a")).ok();
    old.send(&[run("SELECT 1/0", &[]), flush()].concat());
    let failed = old.read_until(b'E');
    assert!(format!("{failed:?}").contains("22012"));
    let mut new = seal(&world, 2);
    new.query(LATE).ok();
    // The rest of it is skipped, as the server would have done.
    let told = old.ask(&[run(WRITE, &[]), sync()].concat());
    assert_eq!((told.code(), told.status), ("", b'E'), "{told:?}");
    let told = old.query("ROLLBACK TO a");
    assert_ne!(told.code(), "");
    assert_eq!(told.status, b'E');
    old.query("ROLLBACK").ok();
    old.query("SELECT 1").refused("RF001");
    old.query("SET ringfence.token = ''").ok();
    assert_eq!(old.backend_pid(), pid);
    assert_eq!(world.order(), "late");
}

#[test]
fn a_copy_in_a_pipeline_ends_without_its_session() {
    let world = World::with(|setup| setup.with(PATIENT));
    let mut old = world.proxy.holder(1);
    let pid = old.backend_pid();
    old.send(&[run("COPY plain FROM STDIN", &[]), flush()].concat());
    old.read_until(b'G');
    old.send(&copy_data(b"1\tx\n"));
    let _new = seal(&world, 2);
    let told = old.ask(&[copy_data(b"2\tx\n"), copy_done(), sync()].concat());
    assert_ne!(told.code(), "");
    assert_eq!(told.status, b'I', "{told:?}");
    old.query("SET ringfence.token = ''").ok();
    assert_eq!(old.backend_pid(), pid);
    assert_eq!(old.query("SELECT count(*) FROM plain").value(), "0");
}

/// What commits in its middle, or is bound to no transaction, may have done something.
#[test]
fn a_cancelled_statement_that_may_be_done_in_part_is_told_as_unknown() {
    let world = World::new();
    let mut direct = world.direct();
    direct.query("CREATE SEQUENCE counter").ok();
    direct
        .query(
            "CREATE PROCEDURE pause() LANGUAGE plpgsql AS \
             $$BEGIN UPDATE orders SET note = 'called'; COMMIT; PERFORM pg_sleep(60); END$$",
        )
        .ok();
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    let note = "SELECT note FROM orders WHERE id = 1";
    for (n, (text, seen, after)) in [
        (
            "DO $$BEGIN UPDATE orders SET note = 'done'; COMMIT; PERFORM pg_sleep(60); END$$",
            note,
            "done",
        ),
        ("CALL pause()", note, "called"),
        (
            "SELECT setval('counter', 777), pg_sleep(60)",
            "SELECT last_value FROM counter",
            "777",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let token = 2 * n as u64 + 1;
        let mut old = world.proxy.holder(token);
        old.send(&query(text));
        eventually("the statement", || {
            world.admin().query(sleeping).value() == "1"
        });
        let _new = seal(&world, token + 1);
        let told = old.answer();
        let told = told.refused("08007");
        assert_eq!(told.json()["outcome"], "unknown", "{text}");
        assert_eq!(world.direct().query(seen).value(), after, "{text}");
        // Its session stays usable.
        old.query("SET ringfence.token = ''").ok();
    }
}

#[test]
fn an_index_that_is_built_concurrently_and_cancelled_is_told_as_unknown() {
    let world = World::new();
    let mut blocker = world.direct();
    blocker.query("BEGIN; SELECT * FROM orders").ok();
    let mut old = world.proxy.holder(1);
    old.send(&query(
        "CREATE INDEX CONCURRENTLY left_over ON orders (note)",
    ));
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    blocker
        .query("COMMIT; BEGIN; UPDATE orders SET note = note")
        .ok();
    eventually("the index", || world.admin().query(waits).value() == "1");
    let mut new = world.proxy.holder(2);
    new.send(&query("SELECT note FROM orders"));
    let told = old.answer();
    told.refused("08007");
    new.answer().ok();
}

/// Cancelled there, the server would tell that it is committed, which no standby knows yet.
#[test]
fn a_statement_that_waits_for_a_standby_is_not_told_as_committed() {
    let world = World::new();
    let mut admin = world.admin();
    for sql in [
        "ALTER SYSTEM SET synchronous_standby_names = 'nobody'",
        "SELECT pg_reload_conf()",
    ] {
        admin.query(sql).ok();
    }
    let mut old = world.proxy.holder(1);
    eventually("the setting", || {
        old.query("SHOW synchronous_standby_names").value() == "nobody"
    });
    old.send(&query(WRITE));
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    eventually("the wait", || admin.query(waits).value() == "1");
    let _new = seal(&world, 2);
    let told = old.answer();
    assert_eq!(told.done, Vec::<String>::new(), "{told:?}");
    assert_eq!(told.status, 0, "{told:?}");
    assert_eq!(
        told.faults.last().map(|it| &*it.code),
        Some("08007"),
        "{told:?}"
    );
}
