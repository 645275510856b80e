//! Every file in `proxy-config/` is a configuration that is taken, has every key, and shows what it
//! says.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence::config::{
    LockdConfig, Mode, ProxyConfig, RedisLimits, SealMode, StoreConfig, TicketSource,
    TruncatedBody, Trust,
};
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

fn text(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

/// An example with all that is commented out: what may be added is there, and what begins with
/// `# or:` stands in place of the line above it.
fn whole(name: &str, files: &Path) -> String {
    let mut lines: Vec<String> = vec![];
    for line in text(name).lines() {
        match (line.strip_prefix("# or: "), line.strip_prefix("# ")) {
            (Some(other), _) => *lines.last_mut().unwrap() = other.to_owned(),
            (None, Some(left_out)) if is_toml(left_out) => lines.push(left_out.to_owned()),
            _ => lines.push(line.to_owned()),
        }
    }
    // Where a file must be there to be read.
    for name in ["redis-password", "postgres-password"] {
        std::fs::write(files.join(name), "secret\n").unwrap();
    }
    lines
        .join("\n")
        .replace("/etc/ringfence", files.to_str().unwrap())
}

/// A key with its value, or the head of a table; not a sentence.
fn is_toml(line: &str) -> bool {
    let key = line.split_once(" = ").map_or("", |(key, _)| key);
    let is_key = |key: &str| key.bytes().all(|it| it.is_ascii_lowercase() || it == b'_');
    line.starts_with('[') && line.ends_with(']') || !key.is_empty() && is_key(key)
}

fn whole_proxy(name: &str) -> ProxyConfig {
    let files = tempfile::tempdir().unwrap();
    let text = whole(name, files.path());
    ProxyConfig::parse(&text).unwrap_or_else(|errors| panic!("{name}: {errors}\n{text}"))
}

/// The examples of proxies that this build can read.
fn proxies() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "lockd.toml").collect();
    names.sort();
    assert_eq!(
        names,
        [
            "etcd.toml",
            "http.toml",
            "postgres.toml",
            "redis.toml",
            "s3.toml"
        ]
    );
    names.retain(|name| name != "postgres.toml" || cfg!(feature = "postgres"));
    names
}

#[test]
fn every_example_is_taken_as_it_is_and_with_what_is_commented_out() {
    for name in proxies() {
        assert_eq!(example(&name).instance, "edge-1", "{name}");
        assert_eq!(whole_proxy(&name).instance, "edge-1", "{name}");
    }
}

/// The examples that must have, between them, each key that a source of the configuration asks for.
const KEYS: [(&str, &[&str]); 11] = [
    ("lockd.rs", &["lockd.toml"]),
    ("proxy.rs", &["http.toml"]),
    ("proxy/every_listener.rs", &["http.toml"]),
    ("proxy/every_listener.rs", &["s3.toml"]),
    ("proxy/every_listener.rs", &["etcd.toml"]),
    ("proxy/every_listener.rs", &["redis.toml"]),
    ("proxy/every_listener.rs", &["postgres.toml"]),
    ("proxy/listener.rs", &["http.toml", "s3.toml", "etcd.toml"]),
    ("proxy/etcd.rs", &["etcd.toml"]),
    ("proxy/redis.rs", &["redis.toml"]),
    ("proxy/postgres.rs", &["postgres.toml"]),
];

/// Where the proxy has no control connection, or names its password otherwise.
const WITHOUT_PASSWORD_FILE: [&str; 3] = ["http.toml", "s3.toml", "etcd.toml"];

#[test]
fn every_key_is_in_the_example_that_it_belongs_to() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config");
    let mut missing = vec![];
    for (source, examples) in KEYS {
        let code = std::fs::read_to_string(sources.join(source)).unwrap();
        let there: String = examples.iter().map(|name| text(name)).collect();
        let mut keys = keys_of(&code);
        assert!(keys.len() > 4, "{source}: {keys:?}");
        if WITHOUT_PASSWORD_FILE.contains(&examples[0]) {
            keys.retain(|key| key != "password_file");
        }
        let absent = keys.into_iter().filter(|key| !has_key(&there, key));
        missing.extend(absent.map(|key| format!("{key} of {source} in {examples:?}")));
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// What stands for a key in the calls of the reader: `table.text(report, "key", ..)`.
fn keys_of(code: &str) -> Vec<String> {
    let mut found: Vec<String> = vec![];
    for call in ["report,", "read("] {
        for (at, _) in code.match_indices(call) {
            let rest = code[at + call.len()..].trim_start().strip_prefix('"');
            let key = rest.and_then(|rest| rest.split('"').next());
            found.extend(key.map(str::to_owned));
        }
    }
    found.sort();
    found.dedup();
    found
}

fn has_key(text: &str, key: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim_start_matches("# or: ").trim_start_matches("# ");
        let table = line.trim_matches(['[', ']']).rsplit('.').next();
        line.starts_with(&format!("{key} =")) || line.starts_with('[') && table == Some(key)
    })
}

#[test]
fn the_lockd_example_is_what_holds_without_it() {
    let path = folder().join("lockd.toml");
    let config = LockdConfig::load(&path).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config, LockdConfig::default());
    let files = tempfile::tempdir().unwrap();
    let whole = LockdConfig::parse(&whole("lockd.toml", files.path())).unwrap();
    assert_eq!(whole.keys_dir, Some(files.path().join("keys")));
    assert!(matches!(whole.store, StoreConfig::Etcd(_)));
    let modes: Vec<SealMode> = whole.seals.iter().map(|seal| seal.mode).collect();
    assert_eq!(modes, [SealMode::BestEffort, SealMode::Required]);
}

#[test]
fn the_http_example_says_what_its_comments_say() {
    let config = example("http.toml");
    assert_eq!(
        config.tickets,
        TicketSource::Lockd("http://127.0.0.1:7420".to_owned())
    );
    let alone = whole_proxy("http.toml").tickets;
    assert_eq!(alone, TicketSource::Keys("tickets.pub".into()));
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
    assert_eq!(listener.limits, ringfence::config::Limits::default());
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
    assert_eq!(listener.limits, ringfence::config::Limits::default());
    let user = whole_proxy("etcd.toml").listeners[0].backend_user.clone();
    assert_eq!(user.unwrap().name, "ringfence");
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
    let whole = whole_proxy("redis.toml").redis.remove(0);
    assert_eq!(whole.control.name.as_deref(), Some("ringfence"));
    assert_eq!(whole.fence_keys.unwrap().database, 15);
    let patterns = listener.rules.lock_patterns();
    let patterns: Vec<_> = patterns.iter().map(|it| it.as_str()).collect();
    assert_eq!(patterns, ["job/*", "ledger"]);
}

#[cfg(feature = "postgres")]
#[test]
fn the_postgres_example_says_what_its_comments_say() {
    use ringfence::config::{PostgresLimits, Replication, UpstreamPath, UpstreamTls};
    use ringfence::config::{UpstreamTlsMode, WatermarkStore};
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
    let whole = whole_proxy("postgres.toml").postgres.remove(0);
    assert!(whole.tls.is_some_and(|tls| !tls.required));
    assert_eq!(whole.upstream_tls.mode, UpstreamTlsMode::VerifyFull);
    assert_eq!(whole.store, WatermarkStore::Backend);
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
