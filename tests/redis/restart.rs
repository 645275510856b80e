//! The proxy or the server starts again: nothing is forgotten, nothing old comes back.

use redis::Value;

use crate::client::{bulk, code, ok};
use crate::stack::{Proxy, Redis, Setup};

#[test]
fn the_watermark_survives_kill_9_of_the_proxy() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let mut proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    let mut holder = proxy.holder(8);
    assert_eq!(holder.call(&["SET", "job:1:a", "x"]), ok());
    let mut reader = proxy.holder(9);
    proxy.crash();
    assert!(reader.try_read().is_none());
    proxy.start_again();
    let mut late = proxy.client();
    let stale = proxy.ticket(8);
    assert_eq!(code(&late.call(&["FENCE", "SET", &stale])), "FENCED");
    assert_eq!(proxy.holder(9).call(&["SET", "job:1:a", "y"]), ok());
}

#[test]
fn a_restarted_server_is_another_one_and_its_old_sessions_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let mut redis = Redis::start(dir.path());
    let mut proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    let mut old = proxy.holder(1);
    old.send(&["BLPOP", "job:1:q", "0"]);
    let mut direct = redis.client();
    crate::revoked::wait_until_blocked(&mut direct, "1");
    redis.restart();
    assert_eq!(code(&old.read()), "FENCEDOUBT");
    // The doubt ends by the other run id.
    let mut new = proxy.holder(2);
    assert_eq!(new.call(&["RPUSH", "job:1:q", "x"]), Value::Int(1));
    // And with both gone at once.
    new.send(&["BLPOP", "job:1:other", "0"]);
    crate::revoked::wait_until_blocked(&mut redis.client(), "1");
    proxy.crash();
    redis.restart();
    proxy.start_again();
    assert_eq!(proxy.holder(3).call(&["SET", "job:1:a", "x"]), ok());
    assert_eq!(redis.client().call(&["GET", "job:1:a"]), bulk("x"));
}

#[test]
fn a_backend_that_is_away_is_told_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut redis = Redis::start(dir.path());
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    redis.process.kill();
    let mut client = proxy.client();
    assert_eq!(code(&client.read()), "FENCEBUSY");
    assert!(client.try_read().is_none());
    redis.restart();
    assert_eq!(proxy.holder(1).call(&["SET", "job:1:a", "x"]), ok());
}
