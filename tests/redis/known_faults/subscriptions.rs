//! Replies and messages on one connection.

use std::io::{Read as _, Write as _};

use redis::Value;

use super::{all, world};
use crate::client::{Client, ok};
use crate::stack::PATIENCE;

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

#[test]
fn replies_come_again_after_a_write_without_any() {
    let world = world();
    let mut client = world.proxy.client();
    for round in 0..20 {
        let gets = "GET a\r\n".repeat(round);
        let bytes = format!("CLIENT REPLY OFF\r\n{gets}SET a 1\r\nCLIENT REPLY ON\r\n");
        client.send_bytes(bytes.as_bytes());
        client.expect_bytes(b"+OK\r\n");
        client.send_bytes(b"GET a\r\n");
        client.expect_bytes(b"$1\r\n1\r\n");
    }
}

#[test]
fn every_channel_is_confirmed_and_no_reply_shifted() {
    let world = world();
    let bytes = b"GET a\r\nSUBSCRIBE a b c\r\nPING\r\nUNSUBSCRIBE a x b\r\nPSUBSCRIBE p* q*\r\n\
        UNSUBSCRIBE\r\nPUNSUBSCRIBE\r\nUNSUBSCRIBE\r\nGET a\r\nSUBSCRIBE a b\r\nUNSUBSCRIBE\r\n\
        ECHO the-end\r\n";
    for version in ["2", "3"] {
        // What the server itself sends.
        let end = "$7\r\nthe-end\r\n";
        let mut seen = [vec![], vec![]];
        for (address, seen) in [world.redis.address, world.proxy.address]
            .into_iter()
            .zip(&mut seen)
        {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
                .write_all(format!("HELLO {version}\r\n").as_bytes())
                .unwrap();
            stream.write_all(bytes).unwrap();
            let mut chunk = [0; 4096];
            while !seen.ends_with(end.as_bytes()) {
                let read = stream.read(&mut chunk).unwrap();
                assert!(
                    read > 0,
                    "it ended after {:?}",
                    String::from_utf8_lossy(seen)
                );
                seen.extend(&chunk[..read]);
            }
        }
        // `HELLO` tells the connection's number.
        let [direct, through] = seen.map(|seen| {
            let text = String::from_utf8(seen).unwrap();
            let (_, after) = text.split_once("modules\r\n").unwrap();
            after.to_owned()
        });
        assert_eq!(through, direct, "RESP{version}");
    }
}
