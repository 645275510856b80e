//! Replies and messages on one connection.

use redis::Value;

use super::{all, world};
use crate::client::{Client, ok};

#[test]
fn quit_comes_after_all_replies() {
    let world = world();
    let mut client = world.proxy.client();
    client.send_bytes(b"subscribe foo\r\nunsubscribe foo\r\nquit\r\n");
    client.expect_bytes(b"*3\r\n$9\r\nsubscribe\r\n$3\r\nfoo\r\n:1\r\n");
    client.expect_bytes(b"*3\r\n$11\r\nunsubscribe\r\n$3\r\nfoo\r\n:0\r\n+OK\r\n");
    assert!(client.try_read().is_none());
}

#[test]
fn messages_and_confirmations_keep_their_order() {
    let world = world();
    let mut client = world.proxy.client();
    client.send_bytes(b"UNSUBSCRIBE\r\nPING\r\n");
    client.expect_bytes(b"*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n+PONG\r\n");
    let mut publisher = world.redis.client();
    for round in 0..50 {
        client.send(&["SUBSCRIBE", "news"]);
        client.expect_bytes(b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n");
        let text = format!("{round:02}");
        assert_eq!(publisher.call(&["PUBLISH", "news", &text]), Value::Int(1));
        client.send_bytes(&all(&[&["UNSUBSCRIBE", "news"], &["ECHO", &text]]));
        let message = format!("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$2\r\n{text}\r\n");
        client.expect_bytes(message.as_bytes());
        client.expect_bytes(b"*3\r\n$11\r\nunsubscribe\r\n$4\r\nnews\r\n:0\r\n");
        client.expect_bytes(format!("$2\r\n{text}\r\n").as_bytes());
    }
}

#[test]
fn replies_that_are_off_withhold_no_message() {
    let world = world();
    let mut client = world.proxy.client();
    client.call(&["HELLO", "3"]);
    for mode in ["OFF", "SKIP"] {
        client.send(&["SUBSCRIBE", "news"]);
        assert!(matches!(client.read(), Value::Push { .. }));
        client.send(&["CLIENT", "REPLY", mode]);
        let mut publisher = Client::connect(world.redis.address);
        assert_eq!(publisher.call(&["PUBLISH", "news", "x"]), Value::Int(1));
        assert!(matches!(client.read(), Value::Push { .. }), "{mode}");
        assert_eq!(client.call(&["CLIENT", "REPLY", "ON"]), ok(), "{mode}");
        client.send(&["UNSUBSCRIBE", "news"]);
        assert!(matches!(client.read(), Value::Push { .. }));
    }
}
