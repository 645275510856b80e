//! A newer token seals while the older holder's commands are on their way: none of them takes
//! effect after the seal.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Value;

use crate::client::{Client, bulk, code, encode};
use crate::relay::Relay;
use crate::stack::{Proxy, Redis, Setup, eventually, tries};

/// How many clients are blocked at the server.
fn blocked(redis: &mut Client) -> String {
    let Value::BulkString(info) = redis.call(&["INFO", "clients"]) else {
        panic!("INFO tells no text");
    };
    let info = String::from_utf8(info).unwrap();
    let line = info
        .lines()
        .find_map(|it| it.strip_prefix("blocked_clients:"));
    line.unwrap().trim().to_owned()
}

pub fn wait_until_blocked(redis: &mut Client, count: &str) {
    eventually("a client blocked at the server", || blocked(redis) == count);
}

fn count(client: &mut Client) -> i64 {
    match client.call(&["GET", "job:1:n"]) {
        Value::BulkString(text) => String::from_utf8(text).unwrap().parse().unwrap(),
        Value::Nil => 0,
        other => panic!("no number: {other:?}"),
    }
}

#[test]
fn a_blocked_pop_of_the_older_holder_never_pops() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    let mut direct = redis.client();
    for round in 0..tries(50) as u64 {
        let queue = format!("job:1:q{round}");
        let mut old = proxy.holder(2 * round + 1);
        old.send(&["BLPOP", &queue, "0"]);
        wait_until_blocked(&mut direct, "1");
        let mut new = proxy.holder(2 * round + 2);
        assert_eq!(new.call(&["RPUSH", &queue, "x"]), Value::Int(1));
        // What the killed connection left unanswered is told as unknown.
        assert_eq!(code(&old.read()), "FENCEDOUBT", "round {round}");
        assert!(old.try_read().is_none(), "round {round}");
        assert_eq!(
            direct.call(&["LLEN", &queue]),
            Value::Int(1),
            "round {round}"
        );
    }
}

/// Sends INCR until the connection ends or refuses.
fn increment(mut client: Client, ended: &AtomicBool) {
    let batch: Vec<u8> = (0..50).flat_map(|_| encode(&["INCR", "job:1:n"])).collect();
    'all: while !ended.load(Ordering::SeqCst) && client.try_send_bytes(&batch) {
        for _ in 0..50 {
            match client.try_read() {
                Some(Value::Int(_)) => {}
                _ => break 'all,
            }
        }
    }
    ended.store(true, Ordering::SeqCst);
}

/// Ends what still writes when a test fails, so that it tells why.
pub struct EndOnPanic<'e>(pub &'e AtomicBool);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

pub fn race(old: Client, seal: impl FnOnce() -> Client, direct: &mut Client) {
    let ended = AtomicBool::new(false);
    let before = count(direct);
    std::thread::scope(|scope| {
        scope.spawn(|| increment(old, &ended));
        let _end = EndOnPanic(&ended);
        eventually("increments", || count(direct) > before);
        let mut new = seal();
        let sealed = count(&mut new);
        eventually("the older holder's end", || ended.load(Ordering::SeqCst));
        assert_eq!(count(direct), sealed, "an increment ran after the seal");
    });
}

#[test]
fn pipelined_increments_of_the_older_holder_never_run_after_the_seal() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    let mut direct = redis.client();
    for round in 0..tries(50) as u64 {
        let old = proxy.holder(2 * round + 1);
        race(old, || proxy.holder(2 * round + 2), &mut direct);
    }
}

#[test]
fn nor_when_the_proxy_is_killed_in_between() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let mut proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    let mut direct = redis.client();
    for round in 0..tries(10) as u64 {
        let old = proxy.holder(2 * round + 1);
        let seal = || {
            proxy.crash();
            proxy.start_again();
            proxy.holder(2 * round + 2)
        };
        race(old, seal, &mut direct);
    }
}

/// The older holder's command is on the network when its proxy dies, and arrives after the seal.
fn late_arrival(dir: &Path, redis: &Redis, command: &[&str]) -> (Client, Relay) {
    let relay = Relay::start(redis.address);
    let mut proxy = Proxy::start(dir, &Setup::new(relay.address));
    let mut old = proxy.holder(1);
    assert_eq!(old.call(&["INCR", "job:1:n"]), Value::Int(1));
    relay.hold();
    old.send(command);
    relay.wait_until_held();
    proxy.crash();
    proxy.start_again();
    let new = proxy.holder(2);
    relay.release();
    drop(proxy);
    (new, relay)
}

#[test]
fn what_a_killed_proxy_left_on_the_network_arrives_at_a_dead_session() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let (_new, _relay) = late_arrival(dir.path(), &redis, &["INCR", "job:1:n"]);
    // Long enough for it to arrive; that nothing happens has no end to wait for.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(redis.client().call(&["GET", "job:1:n"]), bulk("1"));
}

#[test]
fn while_a_script_runs_the_seal_fails_closed() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start_with(dir.path(), "redis", "busy-reply-threshold 20");
    let setup = Setup::new(redis.address).with("admit_deadline = \"300ms\"");
    let proxy = Proxy::start(dir.path(), &setup);
    let mut old = proxy.holder(1);
    let script = "redis.call('SET', KEYS[1], 'x') while redis.call('EXISTS', KEYS[1]) == 1 do end";
    old.send(&["EVAL", script, "1", "job:1:s"]);
    let mut direct = redis.client();
    eventually(
        "a busy script",
        || matches!(direct.call(&["PING"]), Value::ServerError(error) if error.code() == "BUSY"),
    );
    let mut new = proxy.client();
    let ticket = proxy.ticket(2);
    assert_eq!(code(&new.call(&["FENCE", "SET", &ticket])), "FENCEBUSY");
    // A script that has written ends only with its server.
    drop(redis);
}
