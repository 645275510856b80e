//! Several proxies before one server, with nothing else shared: `watermarks.store = "backend"`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use redis::Value;
use ringfence::lock_name::LockName;
use ringfence::proto::fence_service_client::FenceServiceClient;
use ringfence::proto::{CloseRequest, SealRequest};
use ringfence::ticket::{Action, Order};
use ringfence::token::Token;
use tonic::Code;

use crate::client::{bulk, code, ok};
use crate::relay::Relay;
use crate::revoked::{race, wait_until_blocked};
use crate::stack::{PATIENCE, Proxy, Redis, Setup, eventually, tries};

const BACKEND: &str = "[watermarks]\nstore = \"backend\"\n";

fn setup(redis: &Redis) -> Setup {
    Setup {
        tables: BACKEND.to_owned(),
        ..Setup::new(redis.address)
    }
}

fn two_proxies(dir: &Path, redis: &Redis) -> (Proxy, Proxy) {
    let one = setup(redis);
    let two = Setup {
        name: "edge-2",
        key: Arc::clone(&one.key),
        ..one.clone()
    };
    let one = Proxy::start(dir, &one);
    // It has swept, so that the next one finds the keys ready.
    drop(one.holder(1));
    (one, Proxy::start(dir, &two))
}

#[test]
fn a_token_that_was_seen_at_one_proxy_makes_older_ones_stale_at_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let (one, two) = two_proxies(dir.path(), &redis);
    let mut old = one.holder(5);
    assert_eq!(old.call(&["SET", "job:1:a", "old"]), ok());
    let mut new = two.holder(6);
    assert_eq!(new.call(&["GET", "job:1:a"]), bulk("old"));
    // The older session was killed at the server.
    assert!(old.try_read().is_none());
    let mut late = one.client();
    let stale = one.ticket(5);
    assert_eq!(code(&late.call(&["FENCE", "SET", &stale])), "FENCED");
    assert_eq!(new.call(&["SET", "job:1:a", "new"]), ok());
    // Equal passes, at both.
    assert_eq!(one.holder(6).call(&["GET", "job:1:a"]), bulk("new"));
    assert_eq!(new.call(&["SET", "job:1:a", "newer"]), ok());
}

/// What lockd asks of a proxy: an order that it has signed.
fn order(proxy: &Proxy, action: Action, token: u64) {
    let authority = proxy.key.sign_order(&Order {
        action,
        lock: LockName::new("job/1").unwrap(),
        token: Token::new(token).unwrap(),
        grant: String::new(),
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let address = format!("http://{}", proxy.admin);
        let mut fence = FenceServiceClient::connect(address).await.unwrap();
        let wait_ms = 10_000;
        match action {
            Action::Seal => {
                let seal = SealRequest { authority, wait_ms };
                let until = Instant::now() + PATIENCE;
                // On a busy machine it may take longer than one try.
                while let Err(status) = fence.seal(seal.clone()).await {
                    let again = status.code() == Code::Unavailable && Instant::now() < until;
                    assert!(again, "{status}");
                }
            }
            Action::Close => {
                let close = CloseRequest { authority, wait_ms };
                let closed = fence.close(close).await.unwrap().into_inner();
                assert_eq!(closed.floor, token + 1);
            }
        }
    });
}

#[test]
fn a_seal_or_a_close_from_outside_reaches_every_proxy_before_it_returns() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let (one, two) = two_proxies(dir.path(), &redis);
    let mut old = two.holder(5);
    assert_eq!(old.call(&["SET", "job:1:a", "old"]), ok());
    old.send(&["BLPOP", "job:1:q", "0"]);
    wait_until_blocked(&mut redis.client(), "1");
    order(&one, Action::Seal, 6);
    // Nothing of it can be applied: the other proxy has seen nothing of the seal.
    assert_eq!(
        redis.client().call(&["RPUSH", "job:1:q", "x"]),
        Value::Int(1)
    );
    assert_eq!(code(&old.read()), "FENCEDOUBT");
    assert_eq!(redis.client().call(&["LLEN", "job:1:q"]), Value::Int(1));
    let stale = two.ticket(5);
    assert_eq!(
        code(&two.client().call(&["FENCE", "SET", &stale])),
        "FENCED"
    );
    let mut new = two.holder(6);
    assert_eq!(new.call(&["SET", "job:1:a", "new"]), ok());
    order(&one, Action::Close, 6);
    let stale = two.ticket(6);
    assert!(new.try_read().is_none());
    assert_eq!(
        code(&two.client().call(&["FENCE", "SET", &stale])),
        "FENCED"
    );
    assert_eq!(two.holder(7).call(&["GET", "job:1:a"]), bulk("new"));
}

#[test]
fn increments_at_one_proxy_never_run_after_a_seal_from_outside() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let (one, two) = two_proxies(dir.path(), &redis);
    let mut direct = redis.client();
    for round in 1..=tries(20) as u64 {
        let old = two.holder(2 * round);
        let seal = || {
            order(&one, Action::Seal, 2 * round + 1);
            redis.client()
        };
        race(old, seal, &mut direct);
    }
}

#[test]
fn one_connection_can_present_one_token_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let (one, _two) = two_proxies(dir.path(), &redis);
    let mut client = one.client();
    for token in 2..6 {
        assert_eq!(client.call(&["FENCE", "SET", &one.ticket(token)]), ok());
        assert_eq!(
            client.call(&["INCR", "job:1:n"]),
            Value::Int(token as i64 - 1)
        );
    }
}

#[test]
fn increments_at_one_proxy_never_run_after_the_seal_at_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let (one, two) = two_proxies(dir.path(), &redis);
    let mut direct = redis.client();
    for round in 1..=tries(50) as u64 {
        let old = one.holder(2 * round);
        race(old, || two.holder(2 * round + 1), &mut direct);
    }
}

#[test]
fn a_blocked_pop_at_one_proxy_never_pops_after_the_seal_at_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let (one, two) = two_proxies(dir.path(), &redis);
    let mut direct = redis.client();
    for round in 1..=tries(50) as u64 {
        let queue = format!("job:1:q{round}");
        let mut old = one.holder(2 * round);
        old.send(&["BLPOP", &queue, "0"]);
        wait_until_blocked(&mut direct, "1");
        let mut new = two.holder(2 * round + 1);
        assert_eq!(new.call(&["RPUSH", &queue, "x"]), Value::Int(1));
        assert_eq!(code(&old.read()), "FENCEDOUBT", "round {round}");
        assert_eq!(
            direct.call(&["LLEN", &queue]),
            Value::Int(1),
            "round {round}"
        );
    }
}

#[test]
fn what_a_stopped_proxy_has_sent_arrives_at_a_dead_session() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let relay = Relay::start(redis.address);
    let one = Setup {
        upstream: relay.address,
        ..setup(&redis)
    };
    let two = Setup {
        name: "edge-2",
        upstream: redis.address,
        ..one.clone()
    };
    let one = Proxy::start(dir.path(), &one);
    let mut old = one.holder(1);
    assert_eq!(old.call(&["INCR", "job:1:n"]), Value::Int(1));
    let two = Proxy::start(dir.path(), &two);
    relay.hold();
    old.send(&["INCR", "job:1:n"]);
    relay.wait_until_held();
    one.process.signal("STOP");
    let mut new = two.holder(2);
    relay.release();
    one.process.signal("CONT");
    assert_eq!(code(&old.read()), "FENCEDOUBT");
    assert_eq!(new.call(&["GET", "job:1:n"]), bulk("1"));
}

#[test]
fn clients_neither_see_nor_erase_the_fence_keys() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let (one, _two) = two_proxies(dir.path(), &redis);
    let mut client = one.holder(3);
    assert_eq!(client.call(&["SELECT", "15"]), ok());
    assert_eq!(client.call(&["KEYS", "*"]), Value::Array(vec![]));
    let scanned = Value::Array(vec![bulk("0"), Value::Array(vec![])]);
    assert_eq!(client.call(&["SCAN", "0"]), scanned);
    assert_eq!(client.call(&["RANDOMKEY"]), Value::Nil);
    let script = "return redis.call('HGETALL', 'ringfence:fence')";
    for command in [
        &["HGETALL", "ringfence:fence"][..],
        &["DEL", "ringfence:fence"],
        &["RENAME", "ringfence:fence", "x"],
        &["COPY", "ringfence:fence", "x"],
        &["FLUSHDB"],
        &["FLUSHALL"],
        &["SWAPDB", "0", "15"],
        &["EVAL", script, "0"],
    ] {
        let word = code(&client.call(command));
        assert!(word.starts_with("FENCE"), "{command:?}: {word}");
    }
    let mut direct = redis.client();
    direct.call(&["SELECT", "15"]);
    assert_eq!(direct.call(&["EXISTS", "ringfence:fence"]), Value::Int(1));
}

#[test]
fn lost_fence_keys_close_the_server_until_every_older_session_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let (one, two) = two_proxies(dir.path(), &redis);
    let mut old = one.holder(5);
    assert_eq!(old.call(&["SET", "job:1:a", "old"]), ok());
    // An operator's mistake, past the proxies.
    assert_eq!(redis.client().call(&["FLUSHALL"]), ok());
    // Its session is in no list any more, and dies all the same.
    eventually("a new holder", || {
        let mut new = two.client();
        new.send(&["FENCE", "SET", &two.ticket(6)]);
        new.try_read() == Some(ok())
    });
    assert!(old.try_read().is_none());
    assert_eq!(two.holder(6).call(&["SET", "job:1:a", "new"]), ok());
    // What this proxy has on disk is asserted again.
    let mut late = two.client();
    let stale = two.ticket(5);
    assert_eq!(code(&late.call(&["FENCE", "SET", &stale])), "FENCED");
}
