//! Postgres listeners.

use std::time::Duration;

use crate::config::{ControlRole, ProxyConfig, UpstreamTlsMode};
use crate::protocol::Unmatched;

const POSTGRES: &str = r#"
instance = "edge-1"
data_dir = "d"
[tickets]
lockd = "http://127.0.0.1:7420"
[[listener]]
name = "shop"
protocol = "postgres"
listen = "127.0.0.1:6432"
upstream = "db:5432"
[listener.control]
user = "ringfence"
[[listener.rule]]
lock = "orders"
table = "public.orders"
"#;

fn errors(that: &str, this: &str) -> String {
    assert!(POSTGRES.contains(that), "{that}");
    match ProxyConfig::parse(&POSTGRES.replacen(that, this, 1)) {
        Ok(_) => String::new(),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn a_listener_is_read_with_its_defaults() {
    let config = ProxyConfig::parse(POSTGRES).unwrap();
    assert!(config.listeners.is_empty());
    let listener = &config.postgres[0];
    let control = ControlRole {
        user: "ringfence".to_owned(),
        password: None,
        database: "postgres".to_owned(),
    };
    assert_eq!(listener.control, Some(control));
    assert_eq!(listener.rules.unmatched(), Unmatched::Pass);
    assert_eq!(listener.upstream_tls.mode, UpstreamTlsMode::Prefer);
    assert_eq!(listener.terminate_after, Duration::from_secs(1));
    assert!(listener.tls.is_none());
    assert!(!format!("{listener:?}").contains("password"));
}

#[test]
fn only_a_listener_that_guards_something_needs_a_control_role() {
    let control = "[listener.control]\nuser = \"ringfence\"\n";
    assert!(errors(control, "").contains("control"));
    let rule = "[[listener.rule]]\nlock = \"orders\"\ntable = \"public.orders\"\n";
    let open = POSTGRES.replacen(rule, "", 1);
    let parse = |text: &str| ProxyConfig::parse(text);
    let with = parse(&open).unwrap();
    assert!(with.postgres[0].control.is_some());
    let open = open.replacen(control, "", 1);
    assert_eq!(parse(&open).unwrap().postgres[0].control, None);
    let rejects = open.replacen("upstream = ", "unmatched = \"reject\"\nupstream = ", 1);
    assert!(parse(&rejects).unwrap_err().to_string().contains("control"));
}

/// A bare token does not say which lock it is for, and reads present it, too.
#[test]
fn bare_tokens_need_one_lock_in_each_database() {
    let rules = "[[listener.rule]]\nlock = \"orders\"\ntable = \"public.orders\"\n";
    let unsigned = POSTGRES.replacen("upstream = ", "trust = \"unsigned\"\nupstream = ", 1);
    let errors = |these: &[(&str, &str)]| {
        let rule = |(lock, place): &(&str, &str)| {
            format!("[[listener.rule]]\nlock = \"{lock}\"\n{place}\n")
        };
        let these: String = these.iter().map(rule).collect();
        let config = ProxyConfig::parse(&unsigned.replacen(rules, &these, 1));
        config.map_or_else(|errors| errors.to_string(), |_| String::new())
    };
    let orders = ("orders", "table = \"public.orders\"");
    for one in [
        &[orders][..],
        &[orders, ("orders", "schema = \"audit\"")],
        &[("{name}", "database = \"{name}\"")],
        &[("a", "database = \"a\""), ("b", "database = \"b\"")],
    ] {
        assert_eq!(errors(one), "", "{one:?}");
    }
    let plain = ("plain", "table = \"public.plain\"");
    assert!(errors(&[orders, plain]).contains("for `orders` and `plain`"));
    let each = ("of/{name}", "schema = \"{name}\"");
    assert!(errors(&[each]).contains("these are for `of/*`"));
    let all = ("{name}", "database = \"{name}\"");
    assert!(errors(&[all, orders]).contains("`*` and `orders`"));
}

#[test]
fn what_is_wrong_is_told() {
    let upstream = "upstream = \"db:5432\"";
    for (line, told) in [
        (
            "in_doubt_hold = \"5s\"",
            "unknown key `listener.in_doubt_hold`",
        ),
        ("terminate_after = 5", "`listener.terminate_after` is 5"),
        ("limits = { connections_max = 0 }", "connections_max` is 0"),
        (
            "upstream_path = \"pooled\"",
            "expected one of \"direct\", \"relayed\"",
        ),
        ("tls = { cert = \"c\" }", "`listener.tls.key` is missing"),
        ("tls = 1", "expected [listener.tls]"),
        ("upstream_tls = { mode = \"verify-full\" }", "needs `ca`"),
        ("upstream_tls = { ca = \"c\" }", "\"verify-full\" only"),
        (
            "reading_functions = [\"total\"]",
            "is not a schema and a name",
        ),
    ] {
        let errors = errors(upstream, &format!("{upstream}\n{line}"));
        assert!(errors.contains(told), "{line}: {errors}");
    }
    let user = "user = \"ringfence\"";
    for (line, told) in [
        ("", "`listener.control.user` is missing"),
        ("user = \"r\"\npassword_file = \"/none\"", "cannot be read"),
        ("user = 1", "`listener.control.user` is 1"),
    ] {
        let errors = errors(user, line);
        assert!(errors.contains(told), "{line}: {errors}");
    }
    let table = "table = \"public.orders\"";
    for (line, told) in [
        ("", "it names no database, schema or table"),
        ("table = \"orders\"", "it is not a schema and a name"),
        ("key = \"public.orders\"", "unknown key `listener.rule.key`"),
    ] {
        let errors = errors(table, line);
        assert!(errors.contains(told), "{line}: {errors}");
    }
    assert!(errors("lock = \"orders\"", "").contains("`listener.rule.lock` is missing"));
}
