//! With a lock service: what it says of keys and of the proxy counts for connections that are open,
//! and what it says of a lost store for what that left.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use redis::Value;
use ringfence::ticket::SigningKey;

use crate::client::{Client, bulk, code, ok};
use crate::lanes::{holders, until_shared, write};
use crate::registry::{Lockd, wait_until_ready};
use crate::relay::Relay;
use crate::stack::{PATIENCE, Proxy, Redis, Setup, eventually, sign};

/// Connections that hold token 1 of `job/1`, bound in each of the ways that there are, and have
/// written.
fn bound(proxy: &Proxy) -> Vec<Client> {
    let ticket = proxy.ticket(1);
    let set = proxy.holder(1);
    let mut logged_in = proxy.client();
    let user = format!("default;fence={ticket}");
    assert_eq!(logged_in.call(&["AUTH", &user, "any"]), ok());
    let mut clients = vec![set, logged_in];
    for client in &mut clients {
        assert_eq!(client.call(&["SET", "job:1:a", "x"]), ok());
    }
    clients
}

fn start(dir: &Path) -> (Redis, Proxy, Lockd) {
    let redis = Redis::start(dir);
    let (proxy, lockd) = start_before(dir, redis.address);
    (redis, proxy, lockd)
}

fn start_before(dir: &Path, upstream: SocketAddr) -> (Proxy, Lockd) {
    let setup = Setup::new(upstream);
    let lockd = Lockd::start(&setup.key);
    let tickets = Some(lockd.tickets());
    let proxy = Proxy::start(dir, &Setup { tickets, ..setup });
    (proxy, lockd)
}

#[test]
fn a_proxy_that_was_taken_out_of_the_set_lets_bound_tickets_write_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let (_redis, proxy, lockd) = start(dir.path());
    let mut clients = bound(&proxy);
    lockd.remove("edge-1");
    for client in &mut clients {
        let mut last = Value::Nil;
        eventually("the end of what it admits", || {
            last = client.call(&["SET", "job:1:a", "late"]);
            last != ok()
        });
        assert_eq!(code(&last), "FENCEBUSY");
        // A read may see what a newer holder has not sealed here.
        assert_eq!(code(&client.call(&["GET", "job:1:a"])), "FENCEBUSY");
        assert_eq!(
            client.call(&["PING"]),
            Value::SimpleString("PONG".to_owned())
        );
    }
}

#[test]
fn nor_do_those_whose_connection_to_the_backend_is_shared() {
    let dir = tempfile::tempdir().unwrap();
    let (redis, proxy, lockd) = start(dir.path());
    let (clients, _) = until_shared(&redis, holders(&proxy, 1));
    lockd.remove("edge-1");
    let until = Instant::now() + PATIENCE;
    write(clients, |_, client| {
        assert!(Instant::now() < until, "they write on");
        let answer = client.call(&["INCR", "job:1:n"]);
        let goes_on = matches!(answer, Value::Int(_));
        assert!(goes_on || code(&answer) == "FENCEBUSY", "{answer:?}");
        goes_on
    });
}

#[test]
fn a_bound_ticket_ends_with_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let (_redis, proxy, lockd) = start(dir.path());
    let mut clients = bound(&proxy);
    let new = SigningKey::generate();
    lockd.set_key(&new);
    // A key that is not known yet has the proxy ask.
    let mut newer = proxy.client();
    let ticket = sign(&new, "job/1", 1);
    eventually("the new key", || {
        newer.call(&["FENCE", "SET", &ticket]) == ok()
    });
    for client in &mut clients {
        let late = client.call(&["SET", "job:1:a", "late"]);
        assert_eq!(code(&late), "BADFENCE");
        // Also where it is not the last command of what was sent at once.
        client.send(&["GET", "job:1:a"]);
        client.send(&["PING"]);
        assert_eq!(code(&client.read()), "BADFENCE");
        assert_eq!(client.read(), Value::SimpleString("PONG".to_owned()));
        assert_eq!(client.call(&["FENCE", "SET", &ticket]), ok());
        assert_eq!(client.call(&["SET", "job:1:a", "new"]), ok());
    }
}

#[test]
fn what_a_proxy_left_whose_store_was_lost_arrives_at_a_dead_session() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let relay = Relay::start(redis.address);
    let (mut proxy, lockd) = start_before(dir.path(), relay.address);
    let mut old = proxy.holder(1);
    assert_eq!(old.call(&["INCR", "job:1:n"]), Value::Int(1));
    relay.hold();
    old.send(&["INCR", "job:1:n"]);
    relay.wait_until_held();
    proxy.lose();
    lockd.set_floor(2);
    proxy.start_again();
    wait_until_ready(proxy.admin);
    let mut new = proxy.holder(2);
    relay.release();
    // Long enough for it to arrive; that nothing happens has no end to wait for.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(new.call(&["GET", "job:1:n"]), bulk("1"));
}
