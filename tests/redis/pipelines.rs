//! Many commands at once: replies stay in order, whatever is refused among them.

use redis::Value;

use crate::client::{Client, bulk, code, encode, ok};
use crate::stack::{Proxy, Redis, Setup};

fn world() -> (tempfile::TempDir, Redis, Proxy) {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    (dir, redis, proxy)
}

fn simple(text: &str) -> Value {
    Value::SimpleString(text.to_owned())
}

fn send_all(client: &mut Client, commands: &[&[&str]]) {
    let bytes: Vec<u8> = commands.iter().flat_map(|it| encode(it)).collect();
    client.send_bytes(&bytes);
}

#[test]
fn replies_keep_their_order_among_refusals() {
    let (_dir, _redis, proxy) = world();
    let mut client = proxy.holder(1);
    let mut bytes = vec![];
    for round in 0..500 {
        let value = round.to_string();
        bytes.extend(encode(&["SET", "job:1:a", &value]));
        bytes.extend(encode(&["SET", "job:2:a", &value]));
        bytes.extend(encode(&["GET", "job:1:a"]));
        bytes.extend(encode(&["FENCE", "STATUS"]));
        bytes.extend(encode(&["ECHO", &value]));
    }
    client.send_bytes(&bytes);
    for round in 0..500 {
        let value = round.to_string();
        assert_eq!(client.read(), ok(), "round {round}");
        assert_eq!(code(&client.read()), "NOFENCE", "round {round}");
        assert_eq!(client.read(), bulk(&value), "round {round}");
        assert_eq!(client.read(), Value::Array(vec![bulk("job/1"), bulk("1")]));
        assert_eq!(client.read(), bulk(&value));
    }
}

#[test]
fn messages_within_the_reply_to_an_exec_put_nothing_out_of_step() {
    let (_dir, _redis, proxy) = world();
    let mut client = proxy.client();
    client.send_bytes(b"HELLO 3\r\nSUBSCRIBE a\r\n");
    client.read();
    client.read();
    let commands: [&[&str]; 6] = [
        &["MULTI"],
        &["PUBLISH", "a", "1"],
        &["SET", "u", "1"],
        &["EXEC"],
        &["SELECT", "99"],
        &["ECHO", "end"],
    ];
    send_all(&mut client, &commands);
    // Redis 7.0 sends the message within the reply, and later servers after it.
    let message = ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\n1\r\n";
    let orders = [(message, ""), ("", message)].map(|(within, after)| {
        format!(
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n{within}:1\r\n+OK\r\n{after}\
             -ERR DB index is out of range\r\n$3\r\nend\r\n"
        )
    });
    let got = client.read_bytes(orders[0].len());
    assert!(orders.contains(&got), "{got}");
    // SELECT has failed: this is the guarded key of database 0.
    assert_eq!(code(&client.call(&["SET", "job:1:a", "x"])), "NOFENCE");
}

#[test]
fn a_long_command_is_answered_once_its_keys_are_there() {
    let (_dir, redis, proxy) = world();
    let (long, mut client) = ("x".repeat(400_000), proxy.client());
    assert_eq!(client.call(&["MSET", "u", &long, "u2", "y"]), ok());
    assert_eq!(redis.client().call(&["GET", "u2"]), bulk("y"));
    let guarded = client.call(&["MSET", "u", &long, "job:1:a", "y"]);
    assert_eq!(code(&guarded), "NOFENCE");
    let longer = "x".repeat(2_000_000);
    client.send(&["MSET", "u", &longer, "u2", "y"]);
    assert_eq!(code(&client.read()), "FENCEUNCLASS");
}

#[test]
fn a_long_read_presents_its_bare_token() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let setup = Setup::new(redis.address).with("trust = \"unsigned\"");
    let proxy = Proxy::start(dir.path(), &setup);
    let keys = vec!["job:1:a"; 20_000];
    let read = [&["FENCE", "WITH", "9", "MGET"], &keys[..]].concat();
    let write = ["FENCE", "WITH", "8", "SET", "job:1:a", "x"];
    let mut client = proxy.client();
    assert_eq!(client.call(&write), ok());
    // The read raises to 9, after which 8 is stale; then 9 is, for a read as long.
    assert!(matches!(client.call(&read), Value::Array(_)));
    assert_eq!(code(&client.call(&write)), "FENCED");
    let newer = ["FENCE", "WITH", "10", "SET", "job:1:a", "x"];
    assert_eq!(client.call(&newer), ok());
    assert_eq!(code(&client.call(&read)), "FENCED");
}

#[test]
fn requests_without_arguments_are_passed_over() {
    let (_dir, _redis, proxy) = world();
    let mut client = proxy.client();
    for empty in ["\r\n", "\n", "*0\r\n", "*-10\r\n"] {
        client.send_bytes(empty.as_bytes());
        assert_eq!(client.call(&["PING"]), simple("PONG"), "after {empty:?}");
        client.send_bytes(&[empty.as_bytes(), b"PING\r\n", empty.as_bytes()].concat());
        assert_eq!(client.read(), simple("PONG"), "around {empty:?}");
    }
    assert_eq!(client.call(&["ECHO", "a"]), bulk("a"));
}

#[test]
fn tickets_in_a_pipeline_hold_from_their_place_on() {
    let (_dir, _redis, proxy) = world();
    let mut client = proxy.client();
    let ticket = proxy.ticket(3);
    send_all(
        &mut client,
        &[
            &["SET", "job:1:a", "before"],
            &["FENCE", "SET", &ticket],
            &["SET", "job:1:a", "within"],
            &["FENCE", "CLEAR"],
            &["SET", "job:1:a", "after"],
            &["GET", "job:1:a"],
        ],
    );
    assert_eq!(code(&client.read()), "NOFENCE");
    assert_eq!(client.read(), ok());
    assert_eq!(client.read(), ok());
    assert_eq!(client.read(), ok());
    assert_eq!(code(&client.read()), "NOFENCE");
    assert_eq!(client.read(), bulk("within"));
}

#[test]
fn a_transaction_is_checked_at_each_command_and_again_at_exec() {
    let (_dir, redis, proxy) = world();
    let mut old = proxy.holder(1);
    assert_eq!(old.call(&["MULTI"]), ok());
    assert_eq!(old.call(&["INCR", "job:1:n"]), simple("QUEUED"));
    assert_eq!(old.call(&["EXEC"]), Value::Array(vec![Value::Int(1)]));

    // One of its commands needs another ticket: nothing of it runs.
    assert_eq!(old.call(&["MULTI"]), ok());
    assert_eq!(old.call(&["INCR", "job:1:n"]), simple("QUEUED"));
    assert_eq!(code(&old.call(&["INCR", "job:2:n"])), "NOFENCE");
    assert_eq!(code(&old.call(&["EXEC"])), "EXECABORT");

    // A newer token comes between its commands and EXEC.
    assert_eq!(old.call(&["MULTI"]), ok());
    assert_eq!(old.call(&["INCR", "job:1:n"]), simple("QUEUED"));
    let _new = proxy.holder(2);
    assert!(["FENCED", "EXECABORT"].contains(&&*code(&old.call(&["EXEC"]))));
    assert_eq!(redis.client().call(&["GET", "job:1:n"]), bulk("1"));
    assert_eq!(old.call(&["PING"]), simple("PONG"));
}

#[test]
fn replies_that_are_switched_off_are_not_missed() {
    let (_dir, _redis, proxy) = world();
    let mut client = proxy.holder(1);
    send_all(
        &mut client,
        &[
            &["CLIENT", "REPLY", "OFF"],
            &["SET", "job:1:a", "1"],
            &["SET", "job:2:a", "refused"],
            &["CLIENT", "REPLY", "ON"],
            &["GET", "job:1:a"],
            &["CLIENT", "REPLY", "SKIP"],
            &["SET", "job:1:a", "2"],
            &["GET", "job:1:a"],
        ],
    );
    assert_eq!(client.read(), ok());
    assert_eq!(client.read(), bulk("1"));
    assert_eq!(client.read(), bulk("2"));
}

#[test]
fn subscriptions_pass() {
    let (_dir, redis, proxy) = world();
    let mut client = proxy.client();
    send_all(&mut client, &[&["SUBSCRIBE", "a", "b"], &["PING"]]);
    client.expect_bytes(b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    client.expect_bytes(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n");
    client.expect_bytes(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n");
    assert_eq!(
        redis.client().call(&["PUBLISH", "b", "hello"]),
        Value::Int(1)
    );
    client.expect_bytes(b"*3\r\n$7\r\nmessage\r\n$1\r\nb\r\n$5\r\nhello\r\n");
    send_all(&mut client, &[&["UNSUBSCRIBE"], &["ECHO", "x"]]);
    client.expect_bytes(b"*3\r\n$11\r\nunsubscribe\r\n$1\r\n");
}

#[test]
fn inline_commands_and_both_protocol_versions_pass() {
    let (_dir, _redis, proxy) = world();
    let mut client = proxy.client();
    client.send_bytes(b"SET plain \"a b\"\r\nGET plain\r\n\r\nPING\n");
    client.expect_bytes(b"+OK\r\n$3\r\na b\r\n+PONG\r\n");
    assert!(matches!(client.call(&["HELLO", "3"]), Value::Map(_)));
    assert_eq!(client.call(&["HSET", "h", "f", "v"]), Value::Int(1));
    let all = client.call(&["HGETALL", "h"]);
    assert_eq!(all, Value::Map(vec![(bulk("f"), bulk("v"))]));
    client.send_bytes(b"*1\r\n$4\r\nPIN");
    client.send_bytes(b"G\r\n*3\r\n!oops\r\n");
    assert_eq!(client.read(), simple("PONG"));
    assert_eq!(code(&client.read()), "ERR");
    assert!(
        client.try_read().is_none(),
        "a broken request ends the connection"
    );
}
