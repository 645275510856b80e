//! What tells of the fence keys beside their own names: notifications, invalidations, logs.

use redis::Value;

use crate::client::{Client, bulk, code, ok};
use crate::stack::{Proxy, Redis, Setup, sign};

const BACKEND: &str = "[watermarks]\nstore = \"backend\"\n";
const OURS: &str = "ringfence:";

struct World {
    redis: Redis,
    proxy: Proxy,
    _dir: tempfile::TempDir,
}

/// A server that tells all it can.
fn world(with: impl FnOnce(Setup) -> Setup) -> World {
    let dir = tempfile::tempdir().unwrap();
    let lines = "notify-keyspace-events KEA\nslowlog-log-slower-than 0\nslowlog-max-len 1000\n\
                 client-output-buffer-limit pubsub 0 0 0";
    let redis = Redis::start_with(dir.path(), "redis", lines);
    let setup = Setup {
        tables: BACKEND.to_owned(),
        ..Setup::new(redis.address)
    };
    let proxy = Proxy::start(dir.path(), &with(setup));
    // It has swept: no client is killed from here on.
    drop(proxy.holder(1));
    World {
        redis,
        proxy,
        _dir: dir,
    }
}

/// All texts of a reply, at any depth.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::BulkString(text) => vec![String::from_utf8_lossy(text).into_owned()],
        Value::SimpleString(text) => vec![text.clone()],
        Value::Array(parts) => parts.iter().flat_map(texts).collect(),
        Value::Push { data, .. } => data.iter().flat_map(texts).collect(),
        _ => vec![],
    }
}

impl World {
    /// Touches the fence keys, and then a key of a client in the same database.
    fn touch(&self, token: u64) -> String {
        let marker = format!("marker:{token}");
        self.proxy.holder(token);
        let mut direct = self.redis.client();
        direct.call(&["SELECT", "15"]);
        assert_eq!(direct.call(&["SET", &marker, "x"]), ok());
        marker
    }

    /// What is pushed up to the marker.
    fn pushed(&self, client: &mut Client, marker: &str) -> Vec<String> {
        let mut all = vec![];
        while !all.iter().any(|text: &String| text.contains(marker)) {
            all.extend(texts(&client.read()));
        }
        all
    }
}

fn is_ours(text: &String) -> bool {
    text.contains(OURS)
}

#[test]
fn key_space_notifications_do_not_tell_them() {
    let world = world(|setup| setup);
    let patterns = ["PSUBSCRIBE", "__keyspace@*", "__keyevent@*", "*"];
    let channels = [
        "SUBSCRIBE",
        "__keyspace@15__:ringfence:fence",
        "__keyevent@15__:hset",
    ];
    let mut direct = world.redis.client();
    direct.send(&patterns);
    (0..3).for_each(|_| drop(direct.read()));
    for version in ["2", "3"] {
        let mut client = world.proxy.client();
        client.call(&["HELLO", version]);
        for subscription in [&patterns[..], &channels] {
            client.send(subscription);
            subscription[1..].iter().for_each(|_| drop(client.read()));
        }
        let token = version.parse().unwrap();
        let marker = world.touch(token);
        let told = world.pushed(&mut client, &marker);
        assert!(!told.iter().any(is_ours), "{told:?}");
        // Without the proxy they are told: there is something to hide.
        let told = world.pushed(&mut direct, &marker);
        assert!(told.iter().any(is_ours), "{told:?}");
        // Messages of clients pass, whatever they are about.
        assert!(matches!(
            direct_publish(&world, "news", "ringfence:fence"),
            Value::Int(2..)
        ));
        let told = world.pushed(&mut client, "ringfence:fence");
        assert!(told.contains(&"news".to_owned()), "{told:?}");
        world.pushed(&mut direct, "ringfence:fence");
    }
}

fn direct_publish(world: &World, channel: &str, message: &str) -> Value {
    world.redis.client().call(&["PUBLISH", channel, message])
}

#[test]
fn a_long_message_passes_as_it_comes() {
    let world = world(|setup| setup);
    let mut client = world.proxy.client();
    client.send(&["SUBSCRIBE", "news"]);
    client.read();
    // Longer than what is held to be filtered.
    let long = "x".repeat(40 << 20);
    assert_eq!(direct_publish(&world, "news", &long), Value::Int(1));
    let parts = vec![bulk("message"), bulk("news"), bulk(&long)];
    assert!(client.read() == Value::Array(parts), "another message");
}

#[test]
fn invalidations_do_not_tell_them() {
    let world = world(|setup| setup);
    // RESP3: pushed to the client itself. RESP2: to another one, as messages.
    let mut tracking = world.proxy.client();
    tracking.call(&["HELLO", "3"]);
    assert_eq!(tracking.call(&["CLIENT", "TRACKING", "ON", "BCAST"]), ok());
    let mut listening = world.proxy.client();
    let Value::Int(id) = listening.call(&["CLIENT", "ID"]) else {
        panic!("no id");
    };
    listening.call(&["SUBSCRIBE", "__redis__:invalidate"]);
    let mut redirecting = world.proxy.client();
    let id = id.to_string();
    let redirect = ["CLIENT", "TRACKING", "ON", "REDIRECT", &id, "BCAST"];
    assert_eq!(redirecting.call(&redirect), ok());
    for token in 2..5 {
        let marker = world.touch(token);
        for client in [&mut tracking, &mut listening] {
            let told = world.pushed(client, &marker);
            assert!(!told.iter().any(is_ours), "{told:?}");
        }
    }
}

#[test]
fn logs_do_not_tell_them_and_a_monitor_is_refused() {
    let world = world(|setup| setup);
    let marker = world.touch(2);
    let log = ["SLOWLOG", "GET", "1000"];
    let all = texts(&world.redis.client().call(&log));
    assert!(all.iter().any(is_ours), "{all:?}");
    let mut client = world.proxy.client();
    for version in ["2", "3"] {
        client.call(&["HELLO", version]);
        let shown = texts(&client.call(&log));
        assert!(shown.contains(&marker), "{shown:?}");
        assert!(!shown.iter().any(is_ours), "{shown:?}");
    }
    assert_eq!(client.call(&["MULTI"]), ok());
    assert_eq!(code(&client.call(&log)), "FENCEUNCLASS");
    assert_eq!(code(&client.call(&["EXEC"])), "EXECABORT");
    assert_eq!(code(&client.call(&["MONITOR"])), "FENCEUNCLASS");
    assert_eq!(client.call(&["ECHO", "x"]), bulk("x"));
}

#[test]
fn a_log_of_denials_does_not_tell_them() {
    let world = world(|setup| setup);
    let mut direct = world.redis.client();
    let user = ["ACL", "SETUSER", "poor", "on", ">pw", "~app:*", "+@all"];
    assert_eq!(direct.call(&user), ok());
    let mut poor = world.redis.client();
    assert_eq!(poor.call(&["AUTH", "poor", "pw"]), ok());
    for key in ["ringfence:fence", "other"] {
        assert_eq!(code(&poor.call(&["GET", key])), "NOPERM");
    }
    assert!(texts(&direct.call(&["ACL", "LOG"])).iter().any(is_ours));
    let shown = texts(&world.proxy.client().call(&["ACL", "LOG"]));
    assert!(shown.contains(&"other".to_owned()), "{shown:?}");
    assert!(!shown.iter().any(is_ours), "{shown:?}");
}

#[test]
fn no_client_has_them_evicted() {
    let rule = "[[listener.rule]]\nlock = \"all\"\nkey = \"*\"\n";
    let world = world(|setup| setup.with_rules(rule));
    let mut client = world.proxy.client();
    let ticket = sign(&world.proxy.key, "all", 1);
    assert_eq!(client.call(&["FENCE", "SET", &ticket]), ok());
    let evicting = ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"];
    assert_eq!(code(&client.call(&evicting)), "FENCEUNCLASS");
    let sparing = ["CONFIG", "SET", "maxmemory-policy", "volatile-lru"];
    assert_eq!(client.call(&sparing), ok());
}
