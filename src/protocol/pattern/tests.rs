//! What patterns match, and which are none.

use super::{Captures, LockTemplate, Match, Pattern, Segment, Subject};

fn matches<'a>(subject: Subject, pattern: &str, text: &'a str) -> Match<'a> {
    let pattern = Pattern::new(subject, pattern).unwrap();
    let body = text
        .strip_prefix('/')
        .filter(|_| subject == Subject::Path)
        .unwrap_or(text);
    let certain = |text: &'a str| Segment {
        certain: !text.contains('~'),
        text,
    };
    pattern.matches(body.split('/').map(certain))
}

fn captured<'a>(subject: Subject, pattern: &str, text: &'a str) -> Option<Vec<&'a str>> {
    match matches(subject, pattern, text) {
        Match::Yes(captures) => Some(captures.as_slice().to_vec()),
        _ => None,
    }
}

#[test]
fn whole_segments_are_compared() {
    let path = |pattern, text| captured(Subject::Path, pattern, text);
    assert_eq!(path("/v1/accounts/{id}", "/v1/accounts/7"), Some(vec!["7"]));
    assert_eq!(path("/v1/accounts/{id}", "/v1/accounts/7/x"), None);
    assert_eq!(path("/v1/accounts/{id}", "/v1/accounts"), None);
    assert_eq!(
        path("/v1/accounts/{id}/**", "/v1/accounts/7"),
        Some(vec!["7"])
    );
    assert_eq!(
        path("/v1/accounts/{id}/**", "/v1/accounts/7/x/y"),
        Some(vec!["7"])
    );
    assert_eq!(path("/{a}/*/{b}", "/1/2/3"), Some(vec!["1", "3"]));
    assert_eq!(path("/*", "/a/b"), None);
    assert_eq!(path("/**", "/a/b"), Some(vec![]));
}

#[test]
fn the_last_star_of_a_key_is_the_rest_of_it() {
    let key = |pattern, text| captured(Subject::Key, pattern, text);
    assert_eq!(key("in/{day}/*", "in/7/a/b"), Some(vec!["7"]));
    assert_eq!(key("in/{day}/*", "in/7/"), Some(vec!["7"]));
    assert_eq!(key("in/{day}/*", "in/7"), None);
    assert_eq!(key("in/part-*", "in/part-1/x"), Some(vec![]));
    assert_eq!(key("in/part-*", "in/par"), None);
    assert_eq!(key("*/x", "a/x"), Some(vec![]));
    assert_eq!(key("*/x", "a/b/x"), None);
}

#[test]
fn an_uncertain_or_empty_segment_decides_nothing() {
    let path = |pattern, text| matches(Subject::Path, pattern, text);
    assert_eq!(path("/a/{x}", "/a/~"), Match::Maybe);
    assert_eq!(path("/b/{x}", "/a/~"), Match::No);
    assert_eq!(path("/a/{x}/b", "/a/1/b/~"), Match::Maybe);
    assert_eq!(path("/a/{x}", "/a/1/b/~"), Match::No);
    assert!(matches!(path("/a/**", "/a/~"), Match::Yes(_)));
    assert_eq!(path("/a/{x}/b", "/a//b"), Match::Maybe);
    assert_eq!(path("/a/{x}/b", "/a//c"), Match::No);
    assert_eq!(path("/a/*", "/a/"), Match::Maybe);
}

#[test]
fn what_is_no_pattern_is_refused() {
    let path = [
        "", "a", "/a/", "/a//b", "/**/a", "/a*", "/{a", "/{a}b", "/{}", "/{a-b}",
    ];
    let more = [
        "/{a}/{a}", "/a%20b", "/a;b", "/../a", "/a\\b", "/a?b", "/a\nb", "/a}",
    ];
    for bad in path.into_iter().chain(more) {
        assert!(
            Pattern::new(Subject::Path, bad).is_err(),
            "{bad:?} was taken"
        );
    }
    for bad in ["", "/a", "a/", "a//b", "a*b", "a*/b", "**/a"] {
        assert!(
            Pattern::new(Subject::Key, bad).is_err(),
            "{bad:?} was taken"
        );
    }
    for bad in ["", "a/b", "**", "a*"] {
        assert!(
            Pattern::new(Subject::Bucket, bad).is_err(),
            "{bad:?} was taken"
        );
    }
    assert!(Pattern::new(Subject::Path, "/").is_ok());
    assert!(Pattern::new(Subject::Bucket, "{bucket}").is_ok());
}

fn build(template: &str, captured: &[&str]) -> Option<String> {
    let names: Vec<Box<str>> = ["a", "b"].map(Into::into).to_vec();
    let template = LockTemplate::new(template, &names).unwrap();
    let mut captures = Captures::default();
    captured.iter().for_each(|text| captures.push(text));
    template.build(&captures).ok().map(|name| name.to_string())
}

#[test]
fn captures_fill_their_places_and_nothing_more() {
    assert_eq!(build("orders", &[]), Some("orders".to_owned()));
    assert_eq!(
        build("t/{b}/x-{a}", &["1", "2"]),
        Some("t/2/x-1".to_owned())
    );
    for bad in ["", ".", "..", "x/y", "a\nb", "\0"] {
        assert_eq!(build("t/{a}", &[bad, "2"]), None, "{bad:?}");
        assert_eq!(build("t/x{a}", &[bad, "2"]), None, "{bad:?}");
    }
    assert_eq!(build("t/{a}", &[&"x".repeat(254)]), None);
}

#[test]
fn a_lock_names_captures_that_exist() {
    let names: Vec<Box<str>> = vec!["a".into()];
    for bad in ["", "t/{b}", "t/{a", "t/a}", "t/*", "t//{a}", "{}", "t/"] {
        assert!(LockTemplate::new(bad, &names).is_err(), "{bad:?} was taken");
    }
    let pattern = |text| {
        LockTemplate::new(text, &names)
            .unwrap()
            .lock_pattern()
            .clone()
    };
    assert_eq!(pattern("tenant/{a}/x-{a}").as_str(), "tenant/*/*");
    assert_eq!(pattern("orders").as_str(), "orders");
}
