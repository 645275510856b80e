//! Each rule of classification: one case that passes, one that is refused.

use super::{HttpRule, HttpRules};
use crate::protocol::{Code, Fields, Head, Kind, Refusal, RequestClass, Unmatched};

type Headers<'h> = &'h [(&'h str, &'h [u8])];

fn accounts() -> HttpRules {
    let rules = vec![
        HttpRule::new("/v1/accounts/{id}/**", "account/{id}").unwrap(),
        HttpRule::new("/v1/ledgers/{tenant}/{name}", "ledger/{name}/{tenant}").unwrap(),
        HttpRule::new("/v1/search", "search")
            .unwrap()
            .with_read_methods(&["POST"])
            .unwrap(),
        HttpRule::new("/v1/pull/{id}", "pull/{id}")
            .unwrap()
            .with_write_methods(&["GET"])
            .unwrap(),
    ];
    HttpRules::new(rules, Unmatched::Pass)
}

fn classify<'h>(
    rules: &HttpRules,
    method: &'h str,
    target: &'h str,
    headers: Headers<'h>,
) -> Result<RequestClass<'h>, Refusal> {
    let head = Head {
        method,
        target: target.as_bytes(),
        authority: None,
        headers: Fields::Pairs(headers),
    };
    rules.classify(&head)
}

/// Kind and locks, or the code of the refusal.
fn told(method: &str, target: &str, headers: Headers<'_>) -> Result<(Kind, Vec<String>), Code> {
    classify(&accounts(), method, target, headers)
        .map(|class| {
            (
                class.kind,
                class.locks.iter().map(ToString::to_string).collect(),
            )
        })
        .map_err(|refusal| refusal.code)
}

fn write(locks: &[&str]) -> Result<(Kind, Vec<String>), Code> {
    Ok((Kind::Write, locks.iter().map(ToString::to_string).collect()))
}

fn read(locks: &[&str]) -> Result<(Kind, Vec<String>), Code> {
    Ok((Kind::Read, locks.iter().map(ToString::to_string).collect()))
}

#[test]
fn safe_methods_read_and_all_others_write() {
    for method in ["GET", "HEAD", "OPTIONS", "TRACE"] {
        assert_eq!(
            told(method, "/v1/accounts/7", &[]),
            read(&["account/7"]),
            "{method}"
        );
    }
    for method in [
        "POST", "PUT", "DELETE", "PATCH", "PROPFIND", "get", "Get", "X",
    ] {
        assert_eq!(
            told(method, "/v1/accounts/7", &[]),
            write(&["account/7"]),
            "{method}"
        );
    }
}

#[test]
fn a_rule_may_say_otherwise_for_its_paths() {
    assert_eq!(told("POST", "/v1/search", &[]), read(&["search"]));
    assert_eq!(told("PUT", "/v1/search", &[]), write(&["search"]));
    assert_eq!(told("GET", "/v1/pull/3", &[]), write(&["pull/3"]));
    assert_eq!(told("GET", "/v1/pull/%2F", &[]), Err(Code::Unclassified));
    // Frameworks run what serves GET for HEAD too (RFC 9110 9.3.2).
    assert_eq!(told("HEAD", "/v1/pull/3", &[]), write(&["pull/3"]));
    assert_eq!(told("OPTIONS", "/v1/pull/3", &[]), read(&["pull/3"]));
    let rule = HttpRule::new("/a", "a").unwrap();
    let rule = rule.with_write_methods(&["GET"]).unwrap();
    let rule = rule.with_read_methods(&["HEAD"]).unwrap();
    let rules = HttpRules::new(vec![rule], Unmatched::Pass);
    let kind = |method| classify(&rules, method, "/a", &[]).unwrap().kind;
    assert_eq!((kind("GET"), kind("HEAD")), (Kind::Write, Kind::Read));
}

#[test]
fn what_a_rule_says_of_methods_is_checked() {
    let rule = || HttpRule::new("/a", "a").unwrap();
    assert!(rule().with_read_methods(&["POST", "M-SEARCH"]).is_ok());
    for bad in ["post", "", "GET ", "CONNECT"] {
        assert!(
            rule().with_read_methods(&[bad]).is_err(),
            "{bad:?} was taken"
        );
        assert!(
            rule().with_write_methods(&[bad]).is_err(),
            "{bad:?} was taken"
        );
    }
}

#[test]
fn a_request_for_another_method_is_a_write() {
    let header: [(&str, &[u8]); 1] = [("X-HTTP-Method-Override", b"DELETE")];
    assert_eq!(
        told("GET", "/v1/accounts/7", &header),
        write(&["account/7"])
    );
    let underscores: [(&str, &[u8]); 1] = [("x_method_override", b"GET")];
    assert_eq!(told("POST", "/v1/search", &underscores), write(&["search"]));
    assert_eq!(
        told("GET", "/v1/accounts/7?a=1&_method=DELETE", &[]),
        write(&["account/7"])
    );
    assert_eq!(
        told("GET", "/v1/accounts/7?%5Fmethod=DELETE", &[]),
        write(&["account/7"])
    );
    assert_eq!(
        told("GET", "/v1/accounts/7?a_method=DELETE", &[]),
        read(&["account/7"])
    );
}

/// RFC 4918 10.3: where a COPY or a MOVE writes.
#[test]
fn the_destination_is_written_to_as_well() {
    let to = |method: &str, target: &str, destination: &str| {
        told(method, target, &[("Destination", destination.as_bytes())])
    };
    for method in ["COPY", "MOVE", "POST", "X"] {
        for destination in [
            "/v1/accounts/7",
            "http://host/v1/accounts/7",
            "HTTPS://user@another.host:1/v1/%61ccounts/7/x",
            "//host/v1/accounts/7",
        ] {
            let told = to(method, "/tmp/x", destination);
            assert_eq!(told, write(&["account/7"]), "{method} {destination}");
        }
        assert_eq!(to(method, "/tmp/x", "/tmp/y"), write(&[]));
    }
    let both = write(&["account/7", "account/8"]);
    assert_eq!(to("MOVE", "/v1/accounts/8/a", "/v1/accounts/7/a"), both);
    assert_eq!(
        to("MOVE", "/v1/accounts/8/a", "/tmp/y"),
        write(&["account/8"])
    );
    // A declared read of the one is none of the other.
    assert_eq!(
        to("POST", "/v1/search", "/v1/accounts/7"),
        write(&["account/7", "search"])
    );
    assert_eq!(to("GET", "/tmp/x", "/v1/accounts/7"), read(&[]));
    let several: [(&str, &[u8]); 2] = [
        ("destination", b"/tmp/y"),
        ("destination", b"/v1/accounts/7"),
    ];
    assert_eq!(told("MOVE", "/tmp/x", &several), write(&["account/7"]));
}

#[test]
fn a_destination_that_cannot_be_told_is_refused_where_a_rule_is() {
    for destination in [
        "",
        "*",
        "y",
        "accounts/7",
        "../v1/accounts/7",
        "/tmp/../v1/accounts/7",
        "/tmp/y, /v1/accounts/7",
        "/v1/accounts/7#x",
        "/tmp/y?/../../v1/accounts/7",
        "ftp://host/v1/accounts/7",
        "http:/v1/accounts/7",
        "http://host\\v1/accounts/7",
    ] {
        let header: [(&str, &[u8]); 1] = [("Destination", destination.as_bytes())];
        for method in ["COPY", "MOVE", "POST"] {
            let told = told(method, "/tmp/x", &header);
            assert_eq!(told, Err(Code::Unclassified), "{method} {destination:?}");
        }
        let free = HttpRules::default();
        assert!(classify(&free, "MOVE", "/tmp/x", &header).is_ok());
    }
    // RFC 5842: their bodies name what is written.
    for method in ["BIND", "UNBIND", "REBIND"] {
        assert_eq!(told(method, "/tmp/", &[]), Err(Code::Unclassified));
    }
}

#[test]
fn each_written_path_needs_a_rule_where_the_listener_says_so() {
    let strict = HttpRules::new(
        vec![HttpRule::new("/a/**", "a").unwrap()],
        Unmatched::Reject,
    );
    let to = |target, destination: &'static str| {
        classify(
            &strict,
            "MOVE",
            target,
            &[("Destination", destination.as_bytes())],
        )
        .is_ok()
    };
    assert!(to("/a/x", "/a/y"));
    assert!(!to("/a/x", "/b"));
    assert!(!to("/b", "/a/y"));
}

/// IIS, Symfony, Laminas and others take the path in such a header for the request's.
#[test]
fn a_path_instead_of_the_targets_is_classified_as_well() {
    for name in [
        "X-Original-URL",
        "X-Rewrite-URL",
        "x_original_url",
        "X_REWRITE_URL",
    ] {
        let to = |method: &str, target: &str, path: &str| {
            told(method, target, &[(name, path.as_bytes())])
        };
        assert_eq!(
            to("PUT", "/tmp/x", "/v1/accounts/7?a=/b"),
            write(&["account/7"])
        );
        assert_eq!(to("PUT", "/v1/accounts/8", "/tmp/x"), write(&["account/8"]));
        assert_eq!(
            to("PUT", "/tmp/x", "v1/accounts/7"),
            Err(Code::Unclassified)
        );
        assert_eq!(to("GET", "/tmp/x", "/v1/pull/7"), write(&["pull/7"]));
        assert_eq!(to("GET", "/tmp/x", "v1/pull/7"), Err(Code::Unclassified));
        assert_eq!(to("GET", "/tmp/x", "/tmp/y"), read(&[]));
        assert_eq!(
            to("GET", "/tmp/x", "/v1/accounts/7?_method=PUT"),
            write(&["account/7"])
        );
    }
}

#[test]
fn tunnels_and_upgrades_are_refused_where_something_is_guarded() {
    let upgrade: [(&str, &[u8]); 2] = [("upgrade", b"websocket"), ("connection", b"upgrade")];
    assert_eq!(told("GET", "/other", &upgrade), Err(Code::Unclassified));
    assert_eq!(told("CONNECT", "/other", &[]), Err(Code::Unclassified));
    // Offered by curl on every first request, and never taken up.
    let h2c: [(&str, &[u8]); 1] = [("upgrade", b"h2c")];
    assert_eq!(told("GET", "/other", &h2c), read(&[]));
    let free = HttpRules::default();
    assert!(classify(&free, "GET", "/other", &upgrade).is_ok());
}

#[test]
fn all_rules_that_cover_a_write_apply_each_lock_once_in_order() {
    let rules = vec![
        HttpRule::new("/b/{x}/**", "z").unwrap(),
        HttpRule::new("/b/**", "a").unwrap(),
        HttpRule::new("/b/{x}/c", "b/{x}").unwrap(),
        HttpRule::new("/{any}/**", "a").unwrap(),
    ];
    let rules = HttpRules::new(rules, Unmatched::Pass);
    let class = classify(&rules, "PUT", "/b/1/c", &[]).unwrap();
    let locks: Vec<_> = class.locks.iter().map(|lock| lock.as_str()).collect();
    assert_eq!(locks, ["a", "b/1", "z"]);
}

#[test]
fn a_write_that_no_rule_covers_passes_or_is_refused_as_the_listener_says() {
    assert_eq!(told("PUT", "/v2/accounts/7", &[]), write(&[]));
    let strict = HttpRules::new(vec![HttpRule::new("/a", "a").unwrap()], Unmatched::Reject);
    let refusal = classify(&strict, "PUT", "/b", &[]).unwrap_err();
    assert_eq!(
        (refusal.code, &*refusal.detail),
        (Code::Unclassified, "no rule covers this write")
    );
    assert!(classify(&strict, "GET", "/b", &[]).is_ok());
    assert!(classify(&strict, "PUT", "/a", &[]).is_ok());
}

#[test]
fn a_capture_that_makes_no_lock_name_is_refused_and_never_passed() {
    assert_eq!(
        told("PUT", "/v1/ledgers/t/%20", &[]),
        write(&["ledger/ /t"])
    );
    let long = format!("/v1/accounts/{}", "x".repeat(256));
    for path in [
        "/v1/accounts/%0a",
        "/v1/accounts/%00",
        "/v1/accounts/a%2Fb",
        &long,
    ] {
        assert_eq!(told("PUT", path, &[]), Err(Code::Unclassified), "{path}");
    }
    // A read of the same is nobody's loss.
    assert_eq!(told("GET", "/v1/accounts/%0a", &[]), read(&[]));
}

#[test]
fn tickets_are_handed_on_as_they_came() {
    let headers: [(&str, &[u8]); 1] = [("Fencing-Token", b"one, two,one")];
    let class = classify(&accounts(), "GET", "/", &headers).map(|class| class.tickets);
    assert_eq!(class, Ok(vec!["one", "two"]));
    let empty: [(&str, &[u8]); 1] = [("Fencing-Token", b"")];
    assert_eq!(told("GET", "/", &empty), Err(Code::Invalid));
}

#[test]
fn targets_that_are_no_path_are_refused() {
    for target in [
        "",
        "v1",
        "host:80",
        "ftp://h/p",
        "http:///p",
        "/a b",
        "/a#b",
        "/a\n",
    ] {
        assert_eq!(told("PUT", target, &[]), Err(Code::Invalid), "{target:?}");
    }
    assert_eq!(told("OPTIONS", "*", &[]), read(&[]));
    assert_eq!(
        told("PUT", "HTTP://Any.Host:80/v1/accounts/7?x", &[]),
        write(&["account/7"])
    );
}

#[test]
fn registration_names_every_lock_once() {
    let patterns = accounts().lock_patterns();
    let patterns: Vec<_> = patterns.iter().map(|pattern| pattern.as_str()).collect();
    assert_eq!(patterns, ["account/*", "ledger/*/*", "search", "pull/*"]);
}
