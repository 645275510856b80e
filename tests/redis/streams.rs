//! Long values pass without being kept in the proxy.

use crate::client::{Client, code, encode, error, ok};
use crate::stack::{Proxy, Redis, Setup};

const CHUNK_BYTES: usize = 1 << 20;

/// `RINGFENCE_BULK_MB`, or 64.
fn megabytes() -> usize {
    let given = std::env::var("RINGFENCE_BULK_MB").ok();
    given.map_or(64, |text| text.parse().expect("a number of megabytes"))
}

/// The most memory that a process ever had, in kB (proc(5), VmHWM).
fn peak_kb(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix("VmHWM:"));
    let words = line.unwrap().split_whitespace().next().unwrap();
    words.parse().unwrap()
}

fn send_long(client: &mut Client, key: &str, megabytes: usize) {
    let len = megabytes * CHUNK_BYTES;
    let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${len}\r\n", key.len());
    client.send_bytes(head.as_bytes());
    let chunk = vec![b'x'; CHUNK_BYTES];
    for _ in 0..megabytes {
        client.send_bytes(&chunk);
    }
    client.send_bytes(b"\r\n");
}

#[test]
fn a_long_value_streams_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    let mut client = proxy.holder(1);
    let before = peak_kb(proxy.process.pid());
    let megabytes = megabytes();
    send_long(&mut client, "job:1:long", megabytes);
    assert_eq!(client.read(), ok());
    client.send(&["GET", "job:1:long"]);
    let head = format!("${}\r\n", megabytes * CHUNK_BYTES);
    client.expect_bytes(head.as_bytes());
    let chunk = vec![b'x'; CHUNK_BYTES];
    for _ in 0..megabytes {
        client.expect_bytes(&chunk);
    }
    client.expect_bytes(b"\r\n");
    let grown = peak_kb(proxy.process.pid()) - before;
    assert!(grown < 16 << 10, "{grown} kB more for {megabytes} MB");
    let length = redis.client().call(&["STRLEN", "job:1:long"]);
    let expected = i64::try_from(megabytes * CHUNK_BYTES).unwrap();
    assert_eq!(length, redis::Value::Int(expected));
}

#[test]
fn a_long_value_that_is_refused_leaves_the_connection_usable() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    let mut client = proxy.holder(1);
    send_long(&mut client, "job:2:long", 4);
    assert_eq!(code(&client.read()), "NOFENCE");
    assert_eq!(client.call(&["SET", "job:1:a", "x"]), ok());
    let exists = redis.client().call(&["EXISTS", "job:2:long"]);
    assert_eq!(exists, redis::Value::Int(0));
}

#[test]
fn a_long_value_whose_end_comes_after_the_seal_is_not_stored() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    let mut old = proxy.holder(1);
    let len = 4 * CHUNK_BYTES;
    let head = format!("*3\r\n$3\r\nSET\r\n$10\r\njob:1:long\r\n${len}\r\n");
    old.send_bytes(head.as_bytes());
    old.send_bytes(&vec![b'x'; len]);
    let mut new = proxy.holder(2);
    assert_eq!(new.call(&["EXISTS", "job:1:long"]), redis::Value::Int(0));
    // Refused before its first byte left, or ended with its connection: its last byte never was
    // there, and so nothing is in doubt.
    let _ = old.try_send_bytes(b"\r\nQUIT\r\n");
    let told = error(&old.read());
    assert!(
        told.starts_with("FENCED ") && told.contains("outcome=not-applied"),
        "{told}"
    );
    let exists = redis.client().call(&["EXISTS", "job:1:long"]);
    assert_eq!(exists, redis::Value::Int(0));
}

#[test]
fn what_is_unanswered_before_a_value_that_is_cut_off_is_told_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    let mut old = proxy.holder(1);
    // A command that waits, one behind it whose reply cannot come yet, a read, a part of a value.
    let mut bytes = encode(&["BLPOP", "job:1:q", "0"]);
    bytes.extend(encode(&["SET", "job:1:a", "x"]));
    bytes.extend(encode(&["GET", "job:1:a"]));
    bytes.extend(b"*3\r\n$3\r\nSET\r\n$10\r\njob:1:long\r\n$200000\r\n");
    bytes.extend([b'x'; 100_000]);
    old.send_bytes(&bytes);
    crate::revoked::wait_until_blocked(&mut redis.client(), "1");
    let mut new = proxy.holder(2);
    for code in ["FENCEDOUBT", "FENCEDOUBT", "FENCEBUSY", "FENCED"] {
        let told = error(&old.read());
        assert!(told.starts_with(&format!("{code} ")), "{told}");
        let applied = if code == "FENCEDOUBT" {
            "unknown"
        } else {
            "not-applied"
        };
        assert!(told.contains(&format!("outcome={applied}")), "{told}");
    }
    assert!(old.try_read().is_none());
    assert_eq!(
        new.call(&["EXISTS", "job:1:a", "job:1:long"]),
        redis::Value::Int(0)
    );
}
