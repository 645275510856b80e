//! Every file in `proxy-config/` is a configuration that the proxy takes, and shows what it says.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence::config::{Mode, ProxyConfig, RedisLimits, TicketSource, TruncatedBody, Trust};
use ringfence::protocol::etcd::method::find;
use ringfence::protocol::{Classified, EtcdRules, Fields, Head, Kind, Listener};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("proxy-config")
}

fn example(name: &str) -> ProxyConfig {
    ProxyConfig::load(&folder().join(name)).unwrap_or_else(|errors| panic!("{errors}"))
}

fn locks(listener: &Listener, method: &str, target: &str) -> (Kind, Vec<String>) {
    let head = Head {
        method,
        target: target.as_bytes(),
        authority: None,
        headers: Fields::Pairs(&[]),
    };
    match listener.classify(&head) {
        Ok(Classified::Ready(class)) => (
            class.kind,
            class.locks.iter().map(ToString::to_string).collect(),
        ),
        other => panic!("{method} {target}: {other:?}"),
    }
}

fn one(lock: &str) -> Vec<String> {
    vec![lock.to_owned()]
}

#[test]
fn every_example_is_taken() {
    let mut names = vec![];
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name == "postgres.toml" && cfg!(not(feature = "postgres")) {
            continue;
        }
        assert_eq!(example(&name).instance, "edge-1", "{name}");
        names.push(name);
    }
    names.sort();
    names.retain(|name| name != "postgres.toml");
    assert_eq!(names, ["etcd.toml", "http.toml", "redis.toml", "s3.toml"]);
}

#[test]
fn the_http_example_says_what_its_comments_say() {
    let config = example("http.toml");
    assert_eq!(
        config.tickets,
        TicketSource::Lockd("http://127.0.0.1:7420".to_owned())
    );
    assert_eq!(config.admin.listen.port(), 7431);
    let [listener] = &config.listeners[..] else {
        panic!("one listener")
    };
    assert_eq!(
        (listener.trust, listener.mode),
        (Trust::Signed, Mode::Enforce)
    );
    assert_eq!(listener.listen.port(), 7480);
    assert_eq!(
        (listener.upstream.host.as_str(), listener.upstream.port),
        ("127.0.0.1", 8080)
    );
    assert_eq!(listener.truncated_body, TruncatedBody::Held);
    assert_eq!(listener.in_doubt_hold, Duration::from_secs(30));
    // What the example writes out is what holds without it.
    assert_eq!(listener.limits, ringfence::config::Limits::default());
    assert_eq!(config.audit, ringfence::config::AuditConfig::default());
    let rules = &listener.rules;
    assert_eq!(
        locks(rules, "PUT", "/v1/accounts/7"),
        (Kind::Write, one("account/7"))
    );
    assert_eq!(
        locks(rules, "POST", "/v1/search"),
        (Kind::Read, one("search"))
    );
    assert_eq!(
        locks(rules, "GET", "/v1/import/bank"),
        (Kind::Write, one("import/bank"))
    );
}

#[test]
fn the_s3_example_says_what_its_comments_say() {
    let config = example("s3.toml");
    let [listener] = &config.listeners[..] else {
        panic!("one listener")
    };
    assert_eq!(listener.truncated_body, TruncatedBody::Discarded);
    assert_eq!(listener.in_doubt_hold, Duration::from_secs(60));
    let rules = &listener.rules;
    assert_eq!(
        locks(rules, "PUT", "/lake/in/7/a/b"),
        (Kind::Write, one("day/7"))
    );
    assert_eq!(
        locks(rules, "DELETE", "/ledger"),
        (Kind::Write, one("ledger"))
    );
    let patterns = rules.lock_patterns();
    let patterns: Vec<_> = patterns.iter().map(|pattern| pattern.as_str()).collect();
    assert_eq!(patterns, ["day/*", "ledger"]);
}

#[test]
fn the_etcd_example_says_what_its_comments_say() {
    let config = example("etcd.toml");
    let [listener] = &config.listeners[..] else {
        panic!("one listener")
    };
    assert_eq!(
        (listener.listen.port(), listener.upstream.port),
        (2389, 2379)
    );
    assert_eq!(listener.in_doubt_hold, Duration::ZERO);
    let Listener::Etcd(rules) = &listener.rules else {
        panic!("rules of etcd")
    };
    // What the example writes out is what holds without it.
    let default = EtcdRules::default();
    assert_eq!(rules.keys, default.keys);
    assert_eq!(rules.keyless_writes, default.keyless_writes);
    assert_eq!(rules.leased_writes, default.leased_writes);
    assert_eq!(rules.snapshots, default.snapshots);
    assert_eq!(rules.txn_ops_max, default.txn_ops_max);
    let put = |key: &str| {
        // `PutRequest.key`: a field of bytes with the number 1.
        let message = [&[0x0a, key.len() as u8], key.as_bytes()].concat();
        let call = rules
            .classify(find("/etcdserverpb.KV/Put"), &message)
            .unwrap();
        call.locks
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(put("job/7/state"), one("job/7"));
    assert_eq!(put("queue:a:1"), one("queue/a"));
    assert_eq!(put("config/leader"), one("leader"));
    assert!(put("config/other").is_empty());
}

#[test]
fn the_redis_example_says_what_its_comments_say() {
    let config = example("redis.toml");
    let [listener] = &config.redis[..] else {
        panic!("one listener")
    };
    assert_eq!(listener.upstream.port, 6379);
    assert_eq!(listener.admit_deadline, Duration::from_secs(5));
    assert_eq!(listener.revoke_patience, Duration::from_millis(50));
    assert_eq!(listener.limits, RedisLimits::default());
    let patterns = listener.rules.lock_patterns();
    let patterns: Vec<_> = patterns.iter().map(|it| it.as_str()).collect();
    assert_eq!(patterns, ["job/*", "ledger"]);
}

#[cfg(feature = "postgres")]
#[test]
fn the_postgres_example_says_what_its_comments_say() {
    use ringfence::config::{PostgresLimits, Replication, UpstreamPath, UpstreamTls};
    let config = example("postgres.toml");
    let [listener] = &config.postgres[..] else {
        panic!("one listener")
    };
    assert_eq!(
        (listener.listen.port(), listener.upstream.port),
        (6432, 5432)
    );
    let control = listener.control.as_ref().unwrap();
    assert_eq!(
        (&*control.user, &*control.database),
        ("ringfence", "postgres")
    );
    let patterns = listener.rules.lock_patterns();
    let patterns: Vec<_> = patterns.iter().map(|it| it.as_str()).collect();
    assert_eq!(patterns, ["orders", "tenant/*"]);
    // What the example writes out is what holds without it.
    assert_eq!(listener.upstream_path, UpstreamPath::default());
    assert_eq!(listener.replication, Replication::default());
    assert_eq!(listener.upstream_tls, UpstreamTls::default());
    assert_eq!(listener.limits, PostgresLimits::default());
    let times = (listener.cancel_after, listener.terminate_after);
    let written = (Duration::from_millis(50), Duration::from_secs(1));
    assert_eq!(times, written);
    assert_eq!(listener.catalog_age_max, Duration::from_secs(30));
}
