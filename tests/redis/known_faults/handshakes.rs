//! What clients say first: HELLO, AUTH, their names.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::Value;

use super::{all, world};
use crate::client::{bulk, code, error, ok};
use crate::stack::{Proxy, Redis, Setup};

#[test]
fn hello_is_answered_in_the_servers_own_words() {
    let world = world();
    let (mut client, mut direct) = (world.proxy.client(), world.redis.client());
    for hello in [
        &["HELLO", "9"][..],
        &["HELLO", "x"],
        &["HELLO", "3", "NONSENSE"],
        &["HELLO", "3", "AUTH", "nobody", "wrong"],
    ] {
        let expected = error(&direct.call(hello));
        assert_eq!(error(&client.call(hello)), expected, "{hello:?}");
    }
    assert!(matches!(client.call(&["HELLO", "3"]), Value::Map(_)));
    assert!(matches!(client.call(&["HELLO", "2"]), Value::Array(_)));
}

#[test]
fn clients_name_themselves() {
    let world = world();
    let mut client = world.proxy.client();
    assert_eq!(client.call(&["CLIENT", "SETNAME", "me"]), ok());
    assert_eq!(client.call(&["CLIENT", "GETNAME"]), bulk("me"));
    // Redis knows SETINFO from 7.2 on: its own word, whichever.
    let setinfo = ["CLIENT", "SETINFO", "LIB-NAME", "lib"];
    let expected = world.redis.client().call(&setinfo);
    assert_eq!(client.call(&setinfo), expected);
    assert_eq!(client.call(&["CLIENT", "GETNAME"]), bulk("me"));
}

#[test]
fn auth_may_be_an_inline_command() {
    let world = world();
    let user = ["ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all"];
    assert_eq!(world.redis.client().call(&user), ok());
    let mut client = world.proxy.client();
    client.send_bytes(b"AUTH app \"secret\"\r\n");
    assert_eq!(client.read(), ok());
    let line = format!("AUTH \"app;fence={}\" secret\r\n", world.proxy.ticket(3));
    client.send_bytes(line.as_bytes());
    assert_eq!(client.read(), ok());
    assert_eq!(client.call(&["SET", "job:1:a", "x"]), ok());
}

#[test]
fn a_pipelined_handshake_takes_effect_in_its_order() {
    let world = world();
    let mut client = world.proxy.client();
    let handshake: &[&[&str]] = &[
        &["HELLO", "3"],
        &["CLIENT", "TRACKING", "ON"],
        &["SELECT", "2"],
        &["GET", "u"],
    ];
    client.send_bytes(&all(handshake));
    assert!(matches!(client.read(), Value::Map(_)));
    assert_eq!(client.read(), ok());
    assert_eq!(client.read(), ok());
    assert_eq!(client.read(), Value::Nil);
    let mut direct = world.redis.client();
    direct.call(&["SELECT", "2"]);
    direct.call(&["SET", "u", "x"]);
    assert!(matches!(client.read(), Value::Push { .. }));
}

/// A server's fault, played between the proxy and it: the reply to a failed AUTH is left out where
/// the command came with others in front of it.
fn leaving_out_failed_auths(upstream: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(upstream)) else {
                return;
            };
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let behind = Arc::new(AtomicBool::new(false));
            let noting = Arc::clone(&behind);
            std::thread::spawn(move || {
                pump(&mut from, &mut to, |bytes| {
                    let at = find(bytes, b"$4\r\nAUTH\r\n");
                    let others = at.and_then(|at| find(&bytes[..at], b"\r\n*"));
                    noting.store(others.is_some(), Ordering::SeqCst);
                    bytes.to_vec()
                });
            });
            let (mut from, mut to) = (server, client);
            std::thread::spawn(move || {
                pump(&mut from, &mut to, |bytes| {
                    let at = find(bytes, b"-WRONGPASS").filter(|_| behind.load(Ordering::SeqCst));
                    let Some(at) = at else {
                        return bytes.to_vec();
                    };
                    let end = at + find(&bytes[at..], b"\r\n").unwrap() + 2;
                    [&bytes[..at], &bytes[end..]].concat()
                });
            });
        }
    });
    address
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

fn pump(from: &mut TcpStream, to: &mut TcpStream, change: impl Fn(&[u8]) -> Vec<u8>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if to.write_all(&change(&bytes[..read])).is_err() {
            break;
        }
    }
    // Either side may have gone.
    let _ = to.shutdown(std::net::Shutdown::Write);
}

#[test]
fn a_failed_auth_is_sent_alone() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let upstream = leaving_out_failed_auths(redis.address);
    let proxy = Proxy::start(dir.path(), &Setup::new(upstream));
    let mut client = proxy.client();
    for auth in [
        &["AUTH", "app", "bad"][..],
        &["HELLO", "3", "AUTH", "app", "bad"],
    ] {
        let batch: &[&[&str]] = &[&["ECHO", "a"], auth, auth, &["ECHO", "b"], &["ECHO", "c"]];
        client.send_bytes(&all(batch));
        assert_eq!(client.read(), bulk("a"));
        (0..2).for_each(|_| assert_eq!(code(&client.read()), "WRONGPASS"));
        assert_eq!(client.read(), bulk("b"));
        assert_eq!(client.read(), bulk("c"));
    }
}
