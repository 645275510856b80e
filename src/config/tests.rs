//! What a configuration may say, and how it is told when it says something else.

use std::time::Duration;

use super::{
    EtcdConfig, LockdConfig, Mode, ProxyConfig, SealMode, StoreConfig, TicketSource, TruncatedBody,
    Trust,
};
use crate::lock_name::PATTERNS_MAX;

const SMALL: &str = r#"
instance = "edge-1"
data_dir = "/var/lib/ringfence"
[tickets]
lockd = "http://127.0.0.1:7420/"
[[listener]]
name = "a"
protocol = "http"
listen = "0.0.0.0:7480"
upstream = "backend.internal:80"
[[listener.rule]]
lock = "a/{x}"
path = "/{x}/**"
"#;

/// The errors of the small file with this text put in for that.
fn errors(that: &str, this: &str) -> String {
    assert!(SMALL.contains(that), "{that}");
    match ProxyConfig::parse(&SMALL.replacen(that, this, 1)) {
        Ok(_) => String::new(),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn what_is_left_out_has_a_default() {
    let config = ProxyConfig::parse(SMALL).unwrap();
    assert_eq!(
        config.tickets,
        TicketSource::Lockd("http://127.0.0.1:7420".to_owned())
    );
    assert_eq!(config.admin.listen.to_string(), "127.0.0.1:7431");
    let listener = &config.listeners[0];
    assert_eq!(
        (listener.trust, listener.mode),
        (Trust::Signed, Mode::Enforce)
    );
    assert_eq!(listener.truncated_body, TruncatedBody::Held);
    assert_eq!(listener.in_doubt_hold, Duration::from_secs(30));
    assert_eq!(listener.admit_deadline, Duration::from_secs(5));
    assert_eq!(listener.limits.head_bytes_max, 64 * 1024);
    assert_eq!(listener.limits.body_bytes_max, 5 * 1024 * 1024 * 1024);
    assert_eq!(listener.upstream.host, "backend.internal");
}

#[test]
fn what_is_given_is_taken() {
    let more = "mode = \"observe\"\ntrust = \"unsigned\"\nin_doubt_hold = \"500ms\"\n\
        admit_deadline = \"2m\"\nlimits = { connections_max = 5, upstream_connect_timeout = \"1s\" }\n\
        upstream = \"[::1]:81\"";
    let text = SMALL.replacen("upstream = \"backend.internal:80\"", more, 1);
    let config = ProxyConfig::parse(&text).unwrap();
    let listener = &config.listeners[0];
    assert_eq!(
        (listener.trust, listener.mode),
        (Trust::Unsigned, Mode::Observe)
    );
    assert_eq!(listener.in_doubt_hold, Duration::from_millis(500));
    assert_eq!(listener.admit_deadline, Duration::from_secs(120));
    assert_eq!(listener.limits.connections_max, 5);
    assert_eq!(
        listener.limits.upstream_connect_timeout,
        Duration::from_secs(1)
    );
    assert_eq!(
        (listener.upstream.host.as_str(), listener.upstream.port),
        ("::1", 81)
    );
}

#[test]
fn all_errors_are_told_at_once_in_the_order_of_their_lines() {
    let text = "instance = \"a b\"\ndatadir = \"/x\"\n[[listener]]\nname = \"l\"\n\
        protocol = \"http\"\nlisten = \"127.0.0.1:99999\"\nupstream = 5\n";
    let errors = ProxyConfig::parse(text).unwrap_err();
    let lines: Vec<_> = errors.errors.iter().map(|error| error.line).collect();
    assert_eq!(lines, [1, 1, 2, 6, 7].map(Some), "{errors}");
    let told = errors.to_string();
    for part in [
        "line 1: `data_dir` is missing",
        "line 1: `instance` is \"a b\": a name has 1 to 64 letters",
        "line 2: unknown key `datadir`: did you mean `data_dir`?",
        "line 6: `listener.listen` is \"127.0.0.1:99999\": expected an IP address and a port",
        "line 7: `listener.upstream` is 5: expected host:port",
    ] {
        assert!(told.contains(part), "{part:?} is not in:\n{told}");
    }
}

#[test]
fn a_signed_listener_needs_something_that_verifies() {
    let tickets = "[tickets]\nlockd = \"http://127.0.0.1:7420/\"\n";
    let told = errors(tickets, "");
    assert!(
        told.contains("[tickets] gives neither `lockd` nor `keys`"),
        "{told}"
    );
    let text = SMALL
        .replacen(tickets, "", 1)
        .replacen("name =", "trust = \"unsigned\"\nname =", 1);
    assert_eq!(
        ProxyConfig::parse(&text).unwrap().tickets,
        TicketSource::Unsigned
    );
    let keys = SMALL.replacen("lockd = \"http://127.0.0.1:7420/\"", "keys = \"k\"", 1);
    assert_eq!(
        ProxyConfig::parse(&keys).unwrap().tickets,
        TicketSource::Keys("k".into())
    );
}

#[test]
fn a_ticket_source_that_is_wrong_is_not_told_as_missing() {
    for (line, part) in [
        (
            "lockd = \"ftp://x\"",
            "`tickets.lockd` is \"ftp://x\": expected http://",
        ),
        ("keys = 5", "`tickets.keys` is 5"),
        ("keys = \"\"", "`tickets.keys` is \"\""),
    ] {
        let told = errors("lockd = \"http://127.0.0.1:7420/\"", line);
        assert!(
            told.starts_with("line 5: ") && told.contains(part),
            "{told}"
        );
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}

#[test]
fn a_folder_without_a_name_is_refused() {
    let told = errors("data_dir = \"/var/lib/ringfence\"", "data_dir = \"\"");
    assert!(told.contains("line 3: `data_dir` is \"\""), "{told}");
    for key in ["data_dir", "keys_dir"] {
        let told = LockdConfig::parse(&format!("{key} = \"\"")).unwrap_err();
        let told = told.to_string();
        assert!(told.contains(&format!("line 1: `{key}` is \"\"")), "{told}");
    }
}

#[test]
fn names_and_addresses_are_one_listeners_own() {
    let second = |name: &str, listen: &str| {
        let text = format!(
            "{SMALL}[[listener]]\nname = \"{name}\"\nprotocol = \"s3\"\nlisten = \"{listen}\"\n\
             upstream = \"h:1\"\n"
        );
        ProxyConfig::parse(&text)
            .map(|_| ())
            .map_err(|errors| errors.to_string())
    };
    assert_eq!(second("b", "127.0.0.1:7481"), Ok(()));
    assert_eq!(second("b", "127.0.0.1:0"), Ok(()));
    let told = second("a", "127.0.0.1:7481").unwrap_err();
    assert_eq!(told, "line 14: listener \"a\" is given twice: see line 6");
    let told = second("b", "127.0.0.1:7480").unwrap_err();
    assert_eq!(
        told,
        "line 14: listener \"b\" listens on 127.0.0.1:7480, which \"a\" has already"
    );
    let told = second("b", "127.0.0.1:7431").unwrap_err();
    assert!(
        told.contains("which is the admin port's (127.0.0.1:7431)"),
        "{told}"
    );
}

#[test]
fn a_rules_error_stands_at_its_own_line() {
    let told = errors("path = \"/{x}/**\"", "path = \"/{x}/**/y\"");
    assert_eq!(
        told,
        "line 13: invalid path \"/{x}/**/y\": `**` is not its last segment"
    );
    let told = errors("lock = \"a/{x}\"", "lock = \"a/{y}\"");
    assert_eq!(
        told,
        "line 12: invalid lock \"a/{y}\": no pattern of the rule captures `{y}`"
    );
    let told = errors(
        "path = \"/{x}/**\"",
        "path = \"/{x}\"\nread_methods = [\"post\"]",
    );
    assert_eq!(
        told,
        "line 14: invalid method \"post\": it is not in capitals"
    );
    let told = errors("path = \"/{x}/**\"", "path = \"/{x}\"\nbucket = \"b\"");
    assert_eq!(
        told,
        "line 14: unknown key `listener.rule.bucket`: only rules of s3 listeners have it"
    );
}

#[test]
fn what_is_certainly_wrong_is_told_by_the_check() {
    let upstream = "upstream = \"backend.internal:80\"";
    for (old, new, part) in [
        (
            "path = \"/{x}/**\"",
            "path = \"/{x}\"\nread_methods = [\"POST\"]\nwrite_methods = [\"PUT\", \"POST\"]",
            "line 14: \"POST\" is in `read_methods` and in `write_methods`",
        ),
        (
            upstream,
            "upstream = \"a:80\"\nin_doubt_hold = \"0s\"",
            "line 11: `listener.in_doubt_hold` is \"0s\"",
        ),
        (
            upstream,
            "upstream = \"127.0.0.1:7480\"",
            "line 10: `listener.upstream` is where this listener itself listens",
        ),
    ] {
        let told = errors(old, new);
        assert!(told.contains(part), "{told}");
    }
}

#[test]
fn more_patterns_than_a_lock_service_registers_are_refused() {
    let many = |count: usize| {
        let rules = (0..count)
            .map(|nth| format!("[[listener.rule]]\nlock = \"lock-{nth}\"\npath = \"/{nth}\"\n"));
        SMALL.to_owned() + &rules.collect::<String>()
    };
    assert!(ProxyConfig::parse(&many(PATTERNS_MAX - 1)).is_ok());
    let told = ProxyConfig::parse(&many(PATTERNS_MAX)).unwrap_err();
    assert!(told.to_string().contains("at most 1000"), "{told}");
    let alone =
        many(PATTERNS_MAX).replacen("lockd = \"http://127.0.0.1:7420/\"", "keys = \"k\"", 1);
    assert!(ProxyConfig::parse(&alone).is_ok());
}

#[test]
fn whoever_observes_is_told_that_grants_cannot_be_sealed_there() {
    let observing = SMALL.replacen("name =", "mode = \"observe\"\nname =", 1);
    let warnings = ProxyConfig::parse(&observing).unwrap().warnings();
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].ends_with("\"best-effort\": a/*"),
        "{warnings:?}"
    );
    assert!(ProxyConfig::parse(SMALL).unwrap().warnings().is_empty());
}

#[test]
fn lockd_runs_without_a_file_and_takes_one() {
    let default = LockdConfig::parse("").unwrap();
    assert_eq!(default, LockdConfig::default());
    assert_eq!(default.listen.port(), 7420);
    assert_eq!(default.keys_dir(), default.data_dir.join("keys"));
    let config = LockdConfig::parse(
        "listen = \"[::]:1\"\nadmin = \"127.0.0.1:2\"\ndata_dir = \"d\"\nkeys_dir = \"k\"\n\
         store = \"etcd\"\nsession_ttl_min = \"2s\"\nsession_ttl_max = \"10m\"\n\
         seal_timeout = \"250ms\"\nconnections_max = 7\nsessions_max = 8\n\
         [etcd]\nendpoints = [\"http://127.0.0.1:2379\", \"http://b:2379/\"]\nprefix = \"/r/\"\n\
         [[seal]]\npattern = \"tenant/*\"\nmode = \"required\"\n\
         [[seal]]\npattern = \"**\"\nmode = \"best-effort\"\n",
    )
    .unwrap();
    let endpoints = vec![
        "http://127.0.0.1:2379".to_owned(),
        "http://b:2379".to_owned(),
    ];
    let etcd = EtcdConfig {
        endpoints,
        prefix: "/r/".to_owned(),
    };
    assert_eq!(config.store, StoreConfig::Etcd(etcd));
    let modes: Vec<_> = config.seals.iter().map(|seal| seal.mode).collect();
    assert_eq!(modes, [SealMode::Required, SealMode::BestEffort]);
    assert_eq!(config.seal_timeout, Duration::from_millis(250));
    assert_eq!((config.connections_max, config.sessions_max), (7, 8));
    assert_eq!(config.keys_dir(), std::path::PathBuf::from("k"));
}

#[test]
fn a_lockd_that_contradicts_itself_is_refused() {
    let told = |text: &str| LockdConfig::parse(text).unwrap_err().to_string();
    for (text, part) in [
        ("store = \"etcd\"", "needs the table [etcd]"),
        (
            "[etcd]\nendpoints = [\"http://a:1\"]",
            "line 1: [etcd] is given, and store is not",
        ),
        (
            "store = \"etcd\"\n[etcd]\nendpoints = []",
            "`etcd.endpoints` is empty",
        ),
        (
            "store = \"etcd\"\n[etcd]\nendpoints = [\"a:1\"]",
            "line 3: `etcd.endpoints` has \"a:1\"",
        ),
        (
            "session_ttl_min = \"9s\"\nsession_ttl_max = \"3s\"",
            "line 2: `session_ttl_max` (3s) is below",
        ),
        (
            "sessions_max = 0",
            "`sessions_max` is 0: expected a whole number from 1 to 10000000",
        ),
        (
            "listen = \"127.0.0.1:1\"\nadmin = \"127.0.0.1:1\"",
            "are both 127.0.0.1:1",
        ),
        (
            "store = \"etdc\"\n[etcd]\nendpoints = [\"http://a:1\"]",
            "line 1: `store` is \"etdc\"",
        ),
        (
            "[[seal]]\npattern = \"a/x*\"\nmode = \"required\"",
            "line 2: `seal.pattern` is \"a/x*\"",
        ),
        (
            "[[seal]]\npattern = \"a\"",
            "line 1: `seal.mode` is missing",
        ),
        (
            "[lockd]\nlisten = \"127.0.0.1:1\"",
            "line 1: unknown key `lockd`",
        ),
    ] {
        assert!(
            told(text).contains(part),
            "{part:?} is not in {}",
            told(text)
        );
        assert_eq!(told(text).lines().count(), 1, "{}", told(text));
    }
}

const REDIS: &str = r#"
instance = "edge-1"
data_dir = "/var/lib/ringfence"
[tickets]
lockd = "http://127.0.0.1:7420"
[[listener]]
name = "jobs"
protocol = "redis"
listen = "127.0.0.1:6380"
upstream = "127.0.0.1:6379"
[[listener.rule]]
lock = "job/{id}"
key = "job:{id}:*"
"#;

fn redis_errors(that: &str, this: &str) -> String {
    assert!(REDIS.contains(that), "{that}");
    match ProxyConfig::parse(&REDIS.replacen(that, this, 1)) {
        Ok(_) => String::new(),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn a_redis_listener_is_read_with_its_defaults() {
    let config = ProxyConfig::parse(REDIS).unwrap();
    assert!(config.listeners.is_empty());
    let listener = &config.redis[0];
    assert_eq!(
        (listener.trust, listener.mode),
        (Trust::Signed, Mode::Enforce)
    );
    assert_eq!(listener.limits.bulk_bytes_max, 512 << 20);
    assert_eq!(listener.control, super::RedisUser::default());
}

#[test]
fn what_is_wrong_in_a_redis_listener_is_told() {
    let upstream = "upstream = \"127.0.0.1:6379\"";
    let wrong = |line: &str| redis_errors(upstream, &format!("{upstream}\n{line}"));
    assert_eq!(wrong("permit = [\"client|kill\"]"), "");
    for (line, told) in [
        (
            "in_doubt_hold = \"5s\"",
            "unknown key `listener.in_doubt_hold`",
        ),
        ("revoke_patience = 5", "`listener.revoke_patience` is 5"),
        ("limits = { connections_max = 0 }", "connections_max` is 0"),
        ("control = { user = \"x\" }", "needs a `password_file`"),
        ("control = { password_file = \"/none\" }", "cannot be read"),
    ] {
        let errors = wrong(line);
        assert!(errors.contains(told), "{line}: {errors}");
    }
    let twice = redis_errors(
        "[tickets]",
        "[admin]\nlisten = \"127.0.0.1:6380\"\n[tickets]",
    );
    assert!(twice.contains("admin port"), "{twice}");
    let unknown = redis_errors("key = \"job:{id}:*\"", "key = \"job:*\"");
    assert!(unknown.contains("id"), "{unknown}");
}

#[cfg(feature = "postgres")]
mod postgres;
