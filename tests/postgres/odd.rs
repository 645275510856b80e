//! What is easily forgotten: transactions that carry several tickets, texts that are too long to be
//! looked at, catalogs that change within a transaction.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::client::send::{
    bind, execute, flush, function_call, parse, query, query_bytes, run, sync,
};
use crate::postgres::Options;
use crate::stack::{ORDERS, sign};
use crate::world::{WRITE, World};

/// Two locks in one database.
const TWO: &str = "[[listener.rule]]\nlock = \"orders\"\ntable = \"public.orders\"\n\
     [[listener.rule]]\nlock = \"plain\"\ntable = \"public.plain\"\n";

#[test]
fn what_is_prepared_needs_the_tickets_of_all_that_it_holds() {
    let world = World::with(|setup| setup.with_rules(TWO));
    let key = &world.proxy.key;
    let set = |lock: &str, token| {
        let ticket = sign(key, lock, token);
        format!("SET LOCAL ringfence.token = '{ticket}'")
    };
    let mut old = world.proxy.client();
    old.query("BEGIN").ok();
    old.query(&set("orders", 5)).ok();
    old.query(WRITE).ok();
    old.query(&set("plain", 9)).ok();
    old.query("PREPARE TRANSACTION 'both'").ok();
    let plain = sign(key, "plain", 9);
    let address = world.proxy.address();
    let mut half = Client::connect_with(address, &[("ringfence.token", &plain)]);
    let told = half.query("COMMIT PREPARED 'both'");
    assert_eq!(told.refused("RF002").json()["lock"], "orders");
    let both = format!("{plain},{}", sign(key, "orders", 5));
    let mut holder = Client::connect_with(address, &[("ringfence.token", &both)]);
    holder.query("COMMIT PREPARED 'both'").ok();
    assert_eq!(world.order(), "written");
}

#[test]
fn two_transactions_that_one_text_prepares_are_both_known() {
    let world = World::new();
    let mut holder = world.proxy.holder(1);
    let insert = |n: u8| format!("BEGIN; INSERT INTO plain VALUES ({n}, 'x')");
    let text = format!(
        "{}; PREPARE TRANSACTION 'a'; {}; PREPARE TRANSACTION 'b'",
        insert(1),
        insert(2)
    );
    holder.query(&text).ok();
    let mut nobody = world.proxy.client();
    for name in ["a", "b"] {
        nobody
            .query(&format!("COMMIT PREPARED '{name}'"))
            .refused("RF002");
        holder.query(&format!("COMMIT PREPARED '{name}'")).ok();
    }
}

#[test]
fn a_ticket_far_behind_in_a_long_text_does_not_reach_the_server() {
    let settings = [("log_statement", "all".to_owned())];
    let options = Options {
        settings: settings.to_vec(),
        ..Options::default()
    };
    let world = World::on(options, |setup| setup);
    let ticket = world.proxy.ticket(1);
    let value = "x".repeat(600 << 10);
    let text = format!("INSERT INTO plain VALUES (1, '{value}') /*fencing_token='{ticket}'*/");
    let mut client = world.proxy.holder(1);
    let told = client.query(&text);
    assert_eq!((told.code(), told.status), ("RF003", 0));
    let mut client = world.proxy.holder(1);
    client
        .ask(&[parse("s", "SELECT set_config($1, $2, false), $3"), sync()].concat())
        .ok();
    let values = ["ringfence.token", &*ticket, &*value];
    let told = client.ask(&[bind("", "s", &values), execute("", 0), sync()].concat());
    told.refused("RF003");
    client.query("SELECT 'still there'").ok();
    let log = world.server.log();
    assert!(log.contains("still there"));
    assert!(!log.contains(&ticket[10..]), "the log has a ticket");
    let written = world.direct().query("SELECT count(*) FROM plain").value();
    assert_eq!(written, "0");
}

#[test]
fn what_a_transaction_defines_is_not_resolved_by_what_was_there_before() {
    let world = World::with(|setup| setup.with_rules(ORDERS));
    world
        .direct()
        .query("CREATE TABLE free (a int); CREATE VIEW seen AS SELECT * FROM free")
        .ok();
    for escape in [
        [
            "CREATE RULE r AS ON INSERT TO free DO ALSO UPDATE orders SET note = 'escaped'",
            "INSERT INTO free VALUES (1)",
        ],
        [
            "DROP VIEW seen; CREATE VIEW seen AS SELECT * FROM orders",
            "DELETE FROM seen",
        ],
    ] {
        let mut client = world.proxy.client();
        let text = format!("BEGIN; {}; {}; COMMIT", escape[0], escape[1]);
        client.query(&text).refused("RF002");
        client.query("BEGIN").ok();
        client.query(escape[0]);
        let told = client.query(escape[1]);
        assert_ne!(told.code(), "", "{escape:?}: {told:?}");
        client.query("ROLLBACK").ok();
    }
    assert_eq!(world.order(), "first");
    // Tables of its own are not in doubt.
    let mut client = world.proxy.client();
    client
        .query("BEGIN; CREATE TABLE fresh (a int); INSERT INTO fresh VALUES (1); COMMIT")
        .ok();
}

#[test]
fn a_client_that_only_listens_any_more_gets_its_answer() {
    let world = World::new();
    let mut client = world.proxy.holder(1);
    client.send(&query("SELECT 'heard'"));
    client.shut_down();
    assert_eq!(client.answer().value(), "heard");
    assert!(client.has_ended());
}

/// It skips a message that is refused like any other, up to the Sync.
#[test]
fn what_is_refused_in_a_failed_pipeline_has_no_answer() {
    let world = World::new();
    for refused in [query(WRITE), function_call(177, &["2", "3"])] {
        let mut client = world.proxy.client();
        client.send(&[run("SELECT 1/0", &[]), flush()].concat());
        client.read_until(b'E');
        client.send(&[refused, sync()].concat());
        assert_eq!(client.answer().tags, "Z");
        assert_eq!(client.query("SELECT 'next'").value(), "next");
    }
}

/// What a client of another encoding has in its values does nothing; in names it might.
#[test]
fn values_in_other_encodings_are_read_where_ascii_is_certain() {
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
    let mut client = world.proxy.client();
    let read = b"SELECT note FROM plain WHERE note = 'caf\xe9'";
    let written = b"INSERT INTO plain VALUES (1, 'caf\xe9')";
    let guarded = b"UPDATE orders SET note = 'caf\xe9'";
    let named = b"SELECT 1 AS \"caf\xe9\"";
    client.query("SET client_encoding = 'LATIN1'").ok();
    for text in [&read[..], written] {
        assert_eq!(client.ask(&query_bytes(text)).code(), "", "{text:?}");
    }
    for text in [&guarded[..], named] {
        client.ask(&query_bytes(text)).refused("RF002");
    }
    // Within what is not committed the one before may come back.
    client.query("BEGIN; SET client_encoding = 'SJIS'").ok();
    client.ask(&query_bytes(read)).refused("RF002");
    client.query("ROLLBACK").ok();
    assert_eq!(client.ask(&query_bytes(read)).code(), "");
    client.query("SET client_encoding = 'SJIS'").ok();
    client.ask(&query_bytes(read)).refused("RF002");
    let noted = "SELECT count(*) FROM plain WHERE note = 'caf\u{e9}'";
    assert_eq!(world.direct().query(noted).value(), "1");
}

#[test]
fn a_client_that_does_not_begin_does_not_keep_its_place() {
    let world = World::with(|setup| setup.with("limits.startup_timeout = \"1s\""));
    let connections = [&b""[..], &[0x16], b"\0\0\0\x20\0\x03\0\0user"].map(|sent| {
        let mut stream = TcpStream::connect(world.proxy.address()).unwrap();
        stream.write_all(sent).unwrap();
        stream
    });
    let late = Instant::now() + Duration::from_secs(20);
    for (nth, mut stream) in connections.into_iter().enumerate() {
        let left = late.saturating_duration_since(Instant::now());
        stream
            .set_read_timeout(Some(left.max(Duration::from_secs(1))))
            .unwrap();
        let ended = stream.read(&mut [0; 64]);
        // It may be reset, since what was sent is not read.
        let waits = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
        assert!(
            !ended.is_err_and(|error| waits(&error)),
            "the {nth}. is open"
        );
    }
}
