//! Fencing by transaction: a refusal leaves the state that the server has, and what is prepared is
//! committed by the holder only.

use crate::client::send::{bind, execute, parse, query, run, sync};
use crate::stack::ORDERS;
use crate::world::{WRITE, World};

#[test]
fn a_refused_statement_fails_its_transaction_as_any_error_does() {
    let world = World::with(|setup| setup.with_rules(ORDERS));
    let mut client = world.proxy.client();
    client
        .query("BEGIN; INSERT INTO plain VALUES (1, 'never')")
        .ok();
    let told = client.query(WRITE);
    told.refused("RF002");
    assert_eq!(told.status, b'E');
    client.query("SELECT 1").refused("25P02");
    let ended = client.query("COMMIT");
    assert_eq!(
        (ended.done, ended.status),
        (vec!["ROLLBACK".to_owned()], b'I')
    );
    assert_eq!(client.query("SELECT count(*) FROM plain").value(), "0");
    // A savepoint is enough.
    client
        .query("BEGIN; INSERT INTO plain VALUES (2, 'kept'); SAVEPOINT a")
        .ok();
    client.query(WRITE).refused("RF002");
    client.query("ROLLBACK TO a").ok();
    let ended = client.query("COMMIT").ok();
    assert_eq!(
        (ended.done, ended.status),
        (vec!["COMMIT".to_owned()], b'I')
    );
    assert_eq!(client.query("SELECT note FROM plain").value(), "kept");
}

#[test]
fn a_refused_text_runs_nothing_of_it() {
    let world = World::with(|setup| setup.with_rules(ORDERS));
    let mut client = world.proxy.client();
    let told = client.query(&format!("INSERT INTO plain VALUES (1, 'x'); {WRITE}"));
    told.refused("RF002");
    assert_eq!((told.faults.len(), told.status), (1, b'I'));
    let told = client.query(&format!("SELECT 1; BEGIN; {WRITE}; COMMIT"));
    told.refused("RF002");
    assert_eq!(client.query("SELECT count(*) FROM plain").value(), "0");
}

#[test]
fn a_refused_statement_of_a_pipeline_skips_to_its_sync() {
    let world = World::with(|setup| setup.with_rules(ORDERS));
    let mut client = world.proxy.client();
    let insert = "INSERT INTO plain VALUES (1, 'x')";
    let batch = [run(insert, &[]), run(WRITE, &[]), run(insert, &[]), sync()];
    let next = [run("SELECT 'next'", &[]), sync(), query("SELECT 'last'")];
    client.send(&[batch.concat(), next.concat()].concat());
    let told = client.answer();
    told.refused("RF002");
    assert_eq!(
        (told.done.len(), told.faults.len(), told.status),
        (1, 1, b'I')
    );
    assert_eq!(client.answer().value(), "next");
    assert_eq!(client.answer().value(), "last");
    assert_eq!(client.query("SELECT count(*) FROM plain").value(), "0");
    // Statements that were prepared stay; the refused one can run once there is a ticket.
    client.ask(&[parse("w", WRITE), sync()].concat()).ok();
    let go = [bind("", "w", &[]), execute("", 0), sync()].concat();
    client.ask(&go).refused("RF002");
    let ticket = crate::stack::sign(&world.proxy.key, "orders", 1);
    client
        .query(&format!("SET ringfence.token = '{ticket}'"))
        .ok();
    client.ask(&go).ok();
    assert_eq!(world.order(), "written");
}

#[test]
fn the_gate_is_asked_again_after_a_commit_in_the_middle() {
    let world = World::new();
    let mut old = world.proxy.holder(1);
    old.query("BEGIN; SELECT 1; COMMIT; SELECT 2").ok();
    let mut pipeline = world.proxy.holder(2);
    pipeline.send(&[run("BEGIN", &[]), run(WRITE, &[]), run("COMMIT", &[])].concat());
    pipeline.send(&crate::client::send::flush());
    let committed = loop {
        let reply = pipeline.read_until(b'C');
        if reply.body.starts_with(b"COMMIT") {
            break reply;
        }
    };
    assert_eq!(committed.body, b"COMMIT\0");
    // Its Sync is yet to come; the newer holder need not wait for it for ever.
    let mut new = world.proxy.holder(3);
    let sealed = new.query("SELECT note FROM orders");
    let late = [run("UPDATE orders SET note = 'late'", &[]), sync()];
    let told = pipeline.ask(&late.concat());
    if sealed.code().is_empty() {
        assert!(told.status == 0 || told.code() == "RF001", "{told:?}");
        assert_eq!(world.order(), "written");
    } else {
        sealed.refused("RF004");
    }
}

#[test]
fn prepared_writes_are_committed_by_the_holder_only() {
    let world = World::new();
    let mut old = world.proxy.holder(1);
    old.query(&format!("BEGIN; {WRITE}")).ok();
    old.query("PREPARE TRANSACTION 'g'").ok();
    // Nobody's ticket, then the holder's.
    world
        .proxy
        .client()
        .query("COMMIT PREPARED 'g'")
        .refused("RF002");
    world
        .proxy
        .client()
        .query("ROLLBACK PREPARED 'g'")
        .refused("RF002");
    old.query("COMMIT PREPARED 'g'").ok();
    assert_eq!(world.order(), "written");
}

#[test]
fn a_transaction_is_prepared_under_a_ticket_only() {
    let world = World::new();
    let mut client = world.proxy.client();
    client.query("BEGIN").ok();
    let told = client.query("PREPARE TRANSACTION 'g'");
    assert!(told.code().starts_with("RF"), "{told:?}");
    client.query("ROLLBACK").ok();
    assert_eq!(
        world
            .direct()
            .query("SELECT count(*) FROM pg_prepared_xacts")
            .value(),
        "0"
    );
}

#[test]
fn what_an_older_holder_prepared_is_never_committed_after_the_seal() {
    let mut world = World::new();
    for restart in [false, true] {
        let first = 10 * u64::from(restart) + 1;
        let mut old = world.proxy.holder(first);
        let write = format!("INSERT INTO plain VALUES ({first}, 'prepared')");
        old.query(&format!("BEGIN; {write}")).ok();
        old.query("PREPARE TRANSACTION 'g'").ok();
        if restart {
            world.proxy.crash();
            world.proxy.start_again();
            old = world.proxy.holder(first);
        }
        let mut new = world.proxy.holder(first + 1);
        let before = new.query("SELECT count(*) FROM plain").value();
        old.query("COMMIT PREPARED 'g'").refused("RF001");
        let mut none = world.proxy.client();
        assert_ne!(none.query("COMMIT PREPARED 'g'").code(), "");
        // The new holder cleans up, or it is gone already.
        let ended = new.query("ROLLBACK PREPARED 'g'");
        assert!(["", "42704"].contains(&ended.code()), "{ended:?}");
        assert_eq!(new.query("SELECT count(*) FROM plain").value(), before);
        let left = "SELECT count(*) FROM pg_prepared_xacts";
        assert_eq!(world.direct().query(left).value(), "0");
    }
}
