//! Spellings of paths: those that are one path, and those that are refused.

use super::{Path, overrides_method};
use crate::protocol::pattern::{Match, Pattern, Subject};

fn read(pattern: &str, path: &str) -> Result<Option<Vec<String>>, ()> {
    let pattern = Pattern::new(Subject::Path, pattern).unwrap();
    match Path::read(path.as_bytes()).matches(&pattern) {
        Match::No => Ok(None),
        Match::Maybe => Err(()),
        Match::Yes(captures) => Ok(Some(
            captures
                .as_slice()
                .iter()
                .map(ToString::to_string)
                .collect(),
        )),
    }
}

fn captured(text: &str) -> Result<Option<Vec<String>>, ()> {
    Ok(Some(vec![text.to_owned()]))
}

#[test]
fn these_spellings_are_one_path() {
    for path in [
        "/v1/accounts/a7/x",
        "/v1/%61ccounts/a7/x",
        "/v1/accounts/%617/x",
        "//v1/accounts/a7/x",
        "///v1//accounts/a7///x",
        "/v1/accounts/a7/x/",
        "/v1/accounts/a7/x//",
        "/v1;p=1/accounts;q/a7;jsessionid=3/x;",
        "/v1/accounts/a7%3Bp/x",
    ] {
        assert_eq!(read("/v1/accounts/{id}/x", path), captured("a7"), "{path}");
    }
}

#[test]
fn these_spellings_are_in_doubt_where_the_rule_could_cover_them() {
    for path in [
        "/v1/./accounts/7",
        "/v1/x/../accounts/7",
        "/x/../v1/accounts/7",
        "/v1/%2e/accounts/7",
        "/v1/x/%2E%2e/accounts/7",
        "/v1/x/.%2e/accounts/7",
        "/x/..;/v1/accounts/7",
        "/x/..%2Fv1/accounts/7",
        "/x/..\\v1/accounts/7",
        "/x/..%5Cv1/accounts/7",
        "/x/%252e%252e/v1/accounts/7",
        "/x/%25252e%25252e/v1/accounts/7",
        "/x/%c0%ae%c0%ae/v1/accounts/7",
        "/x/%e0%80%ae./v1/accounts/7",
        "/x/%u002e%u002e/v1/accounts/7",
        "/x/..%00/v1/accounts/7",
        "/v1%2Faccounts/7",
        "/v1%2faccounts%2f7",
        "/v1\\accounts\\7",
        "/v1/accounts%5C7",
        "/v1/accounts/7%2Fx",
        "/v1/accounts/7%00",
        "/v1/accounts/7%3Fx",
        "/v1/accounts/7%23x",
        "/v1/accounts/%2537",
        "/v1/%2561ccounts/7",
        "/v1/accounts/%zz",
        "/v1/accounts/7%",
        "/v1/accounts/%ff",
        "/v1/accounts/;p",
        "/v1/accounts/7/;p",
        "/v1/accounts/7/%2F",
        "//host/v1/accounts/7/..",
    ] {
        assert_eq!(read("/v1/accounts/{id}", path), Err(()), "{path}");
    }
}

#[test]
fn a_doubt_where_the_rule_cannot_cover_it_is_none() {
    for path in [
        "/v2/%2F",
        "/v1/ledgers/%ff",
        "/v1/x%5C/7",
        "/v2/accounts/%zz",
    ] {
        let expected = if path == "/v1/x%5C/7" {
            Err(())
        } else {
            Ok(None)
        };
        assert_eq!(read("/v1/accounts/{id}", path), expected, "{path}");
    }
    // What comes after the part that decides does not matter.
    assert_eq!(
        read("/v1/accounts/{id}/**", "/v1/accounts/7/a%2Fb/%ff"),
        captured("7")
    );
}

#[test]
fn an_empty_segment_is_merged_unless_a_wildcard_would_take_it() {
    assert_eq!(read("/v1/{t}/x", "/v1//x"), Err(()));
    assert_eq!(read("/v1/*/x", "/v1//x"), Err(()));
    assert_eq!(read("/v1/{t}", "/v1//x"), captured("x"));
    assert_eq!(read("/v1/{t}", "/v1/"), Ok(None));
    assert_eq!(read("/{t}/**", "//h/x"), Err(()));
    assert_eq!(read("/v1/{t}", "//host/v1/7"), captured("7"));
}

#[test]
fn text_is_decoded_once_and_compared_by_case() {
    assert_eq!(read("/{t}", "/a%20b+c"), captured("a b+c"));
    assert_eq!(read("/{t}", "/%C3%BC"), captured("ü"));
    assert_eq!(read("/{t}", "/ü"), captured("ü"));
    assert_eq!(read("/{t}", "/.well-known"), captured(".well-known"));
    assert_eq!(read("/{t}", "/..."), captured("..."));
    assert_eq!(read("/a", "/A"), Ok(None));
    assert_eq!(read("/", "/"), Ok(Some(vec![])));
    assert_eq!(read("/", ""), Ok(Some(vec![])));
    assert_eq!(read("/", "//"), Ok(Some(vec![])));
    assert_eq!(read("/", "/a"), Ok(None));
}

#[test]
fn other_methods_in_the_query_are_seen() {
    for query in [
        "_method=PUT",
        "a=1&_method",
        "a;_METHOD=x",
        "%5f%6dethod=x",
        ".method=DELETE",
    ] {
        assert!(overrides_method(query.as_bytes()), "{query}");
    }
    for query in ["", "method=PUT", "a=_method", "_methods=x", "x_method=1"] {
        assert!(!overrides_method(query.as_bytes()), "{query}");
    }
}
