//! COPY: what comes before, within and after it, whether it works or not.

use super::Three;
use crate::client::Client;
use crate::client::send::{copy_data, copy_done, copy_fail, flush, query, run, sync, terminate};

fn table(client: &mut Client) {
    client.query("CREATE TEMP TABLE t (a int)");
}

/// Waits until the server takes data.
fn copying(client: &mut Client) {
    client.read_until(b'G');
}

#[test]
fn a_sync_after_execute_is_not_taken_for_the_end() {
    Three::new().hear_the_same(|client| {
        table(client);
        client.send(&[run("COPY t FROM STDIN", &[]), sync()].concat());
        copying(client);
        client.send(&[copy_data(b"1\n"), flush(), sync(), copy_data(b"2\n")].concat());
        client.ask(&[copy_done(), sync()].concat());
        client.query("SELECT * FROM t");
        // The same with everything in one write.
        let whole = [run("COPY t FROM STDIN", &[]), sync(), copy_data(b"3\n")];
        client.ask(&[whole.concat(), copy_done(), sync()].concat());
        client.query("SELECT * FROM t");
    });
}

#[test]
fn data_after_the_servers_error_is_passed_over() {
    Three::new().hear_the_same(|client| {
        table(client);
        client.send(&query("COPY t FROM STDIN"));
        copying(client);
        client.send(&copy_data(b"no number\n"));
        client.answer();
        client.send(&[copy_data(b"2\n"), copy_data(b"3\n"), copy_done()].concat());
        client.query("SELECT * FROM t");
        // In one write, by both protocols.
        let late = [copy_data(b"x\n"), copy_data(b"2\n"), copy_done()].concat();
        client.ask(&[query("COPY t FROM STDIN"), late.clone()].concat());
        client.query("SELECT * FROM t");
        client.ask(&[run("COPY t FROM STDIN", &[]), late, sync()].concat());
        client.query("SELECT * FROM t");
    });
}

#[test]
fn a_copy_that_fails_before_it_begins_is_ready_once() {
    Three::new().hear_the_same(|client| {
        client.ask(&[run("COPY missing FROM STDIN", &[]), sync()].concat());
        let data = [copy_data(b"1\n"), copy_done(), sync()].concat();
        client.ask(&[run("COPY missing FROM STDIN", &[]), data.clone()].concat());
        client.query("COPY missing FROM STDIN");
        client.ask(&[query("COPY missing FROM STDIN"), data].concat());
        // The Sync of the last one.
        client.answer();
        client.query("SELECT 'end'");
    });
}

/// A Query has a ReadyForQuery of its own, whichever Sync is ignored.
#[test]
fn a_sync_behind_a_query_that_copies_is_not_answered() {
    Three::new().hear_the_same(|client| {
        table(client);
        let copy = query("COPY t FROM STDIN");
        let (data, done) = (copy_data(b"1\n"), copy_done());
        for behind in [
            [sync(), data.clone(), done.clone()].concat(),
            [data.clone(), sync(), sync(), data.clone(), done.clone()].concat(),
            [sync(), copy_fail("changed my mind")].concat(),
            [flush(), sync(), done.clone()].concat(),
        ] {
            client.ask(&[copy.clone(), behind.clone()].concat());
            client.query("SELECT * FROM t");
            // What follows at once is answered, too.
            client.ask(&[copy.clone(), behind, query("SELECT 'behind'")].concat());
            client.answer();
            client.send(&[copy.clone(), sync()].concat());
            copying(client);
            client.ask(&done);
        }
        client.ask(
            &[
                copy,
                data.clone(),
                done.clone(),
                sync(),
                query("SELECT 'end'"),
            ]
            .concat(),
        );
        client.answer();
        client.answer();
        // Two in one text, with a Sync within the data of the second.
        let both = query("COPY t FROM STDIN; COPY t FROM STDIN");
        let (one, two) = ([data, done].concat(), [sync(), copy_done()].concat());
        client.ask(&[both.clone(), one.clone(), two.clone()].concat());
        client.send(&both);
        copying(client);
        client.send(&one);
        copying(client);
        client.ask(&two);
        client.query("SELECT * FROM t");
    });
}

#[test]
fn the_client_may_give_up() {
    Three::new().hear_the_same(|client| {
        table(client);
        client.send(&query("COPY t FROM STDIN"));
        copying(client);
        client.ask(&[copy_data(b"1\n"), copy_fail("changed my mind")].concat());
        client.send(&run("COPY t FROM STDIN", &[]));
        client.send(&flush());
        copying(client);
        client.ask(&[copy_fail("again"), sync()].concat());
        client.query("SELECT * FROM t");
    });
}

#[test]
fn statements_around_a_copy_are_answered_in_order() {
    Three::new().hear_the_same(|client| {
        table(client);
        let data = [copy_data(b"1\n"), copy_done()].concat();
        let text = "SELECT 'before'; COPY t FROM STDIN; SELECT * FROM t";
        client.ask(&[query(text), data.clone()].concat());
        let text = "COPY t FROM STDIN; SELECT 1/0";
        client.ask(&[query(text), data.clone()].concat());
        client.query("SELECT * FROM t");
        let text = "BEGIN; COPY t FROM STDIN; COMMIT; COPY t TO STDOUT";
        client.ask(&[query(text), data].concat());
    });
}

#[test]
fn what_is_copied_out_comes_whole() {
    Three::new().hear_the_same(|client| {
        let series = "SELECT g, repeat('x', 100) FROM generate_series(1, 20000) g";
        let copied = client.query(&format!("COPY ({series}) TO STDOUT")).ok();
        assert_eq!(copied.done, ["COPY 20000"]);
        client.run(&format!("COPY ({series}) TO STDOUT (FORMAT binary)"), &[]);
        client.query("COPY (SELECT 1/(g - 500) FROM generate_series(1, 1000) g) TO STDOUT");
        client.query("SELECT 'end'");
    });
}

#[test]
fn a_client_that_leaves_within_a_copy_leaves_nothing() {
    let three = Three::new();
    three.world.direct().query("CREATE TABLE t (a int)").ok();
    for (way, mut client) in three.sessions() {
        client.send(&query("COPY t FROM STDIN"));
        copying(&mut client);
        client.send(&[copy_data(b"1\n"), terminate()].concat());
        drop(client);
        let mut direct = three.world.direct();
        let left = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY t FROM%'";
        crate::stack::eventually("the session's end", || direct.query(left).value() == "0");
        assert_eq!(direct.query("SELECT count(*) FROM t").value(), "0", "{way}");
    }
}
