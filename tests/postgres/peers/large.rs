//! Long messages both ways at once, and results that are longer than any buffer.

use std::thread;

use super::Three;
use crate::client::send::{query, run, sync};

#[test]
fn a_long_statement_passes() {
    let three = Three::new();
    for length in [16 << 10, 300 << 10, 20 << 20] {
        for (way, mut client) in three.sessions() {
            client.query("CREATE TEMP TABLE t (a text)").ok();
            let value = "x".repeat(length);
            // As text of a statement and as a value.
            let inserted = client.query(&format!("INSERT INTO t VALUES ('{value}')"));
            assert_eq!(inserted.ok().done, ["INSERT 0 1"], "{way} {length}");
            let inserted = client.run("INSERT INTO t VALUES ($1)", &[&value]);
            assert_eq!(inserted.ok().done, ["INSERT 0 1"], "{way} {length}");
            let lengths = client.query("SELECT string_agg(length(a)::text, ',') FROM t");
            assert_eq!(lengths.value(), format!("{length},{length}"), "{way}");
        }
    }
}

#[test]
fn a_long_result_comes_whole() {
    const ROWS: usize = 64;
    let three = Three::new();
    for (way, mut client) in three.sessions() {
        let sql = format!("SELECT repeat('x', 1 << 20) FROM generate_series(1, {ROWS})");
        let answer = client.query(&sql).ok();
        let bytes: usize = answer.rows.iter().map(|row| row[0].len()).sum();
        assert_eq!(bytes, ROWS << 20, "{way}");
        assert_eq!(answer.done, [format!("SELECT {ROWS}")], "{way}");
    }
}

/// A client that writes on while it reads. Whoever waits for one direction before it serves the
/// other hangs here.
#[test]
fn both_directions_may_be_full_at_once() {
    const BATCHES: usize = 300;
    let three = Three::new();
    for (way, mut client) in three.sessions() {
        let value = "y".repeat(50_000);
        let batch = [run("SELECT repeat($1, 2)", &[&value]), sync()].concat();
        let mut writer = client.writer();
        thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..BATCHES {
                    writer.send(&batch);
                }
            });
            for at in 0..BATCHES {
                let answer = client.answer().ok();
                assert_eq!(answer.rows[0][0].len(), 100_000, "{way} {at}");
            }
        });
        client.query("SELECT 1").ok();
    }
}

#[test]
fn a_client_that_reads_nothing_for_a_while_gets_all() {
    let three = Three::new();
    for (way, mut client) in three.sessions() {
        client.send(&query(
            "SELECT repeat('x', 1000) FROM generate_series(1, 40000)",
        ));
        // Long enough for every buffer to fill: how full they are cannot be seen.
        thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(client.answer().ok().rows.len(), 40_000, "{way}");
    }
}
