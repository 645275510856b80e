//! The tables of malformed requests, and their sound neighbours.

use ringfence::protocol::http::{HttpRule, HttpRules};
use ringfence::protocol::s3::{S3Rule, S3Rules};
use ringfence::protocol::{Classified, Fields, Head, Listener, Refusal, Unmatched};

use crate::{http, s3};

fn http_listener() -> Listener {
    let rule = HttpRule::new("/v1/accounts/{id}/**", "account/{id}").unwrap();
    Listener::Http(HttpRules::new(vec![rule], Unmatched::Pass))
}

fn s3_listener() -> Listener {
    let rule = S3Rule::new("data", Some("in/{day}/*"), "day/{day}").unwrap();
    Listener::S3(S3Rules::new(
        vec![rule],
        &["s3.example.com"],
        Unmatched::Pass,
    ))
}

/// The whole way of a request: head, and body where it is asked for.
fn refusal(
    listener: &Listener,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<Refusal> {
    let headers: Vec<(&str, &[u8])> = headers
        .iter()
        .map(|(name, value)| (*name, value.as_bytes()))
        .collect();
    let head = Head {
        method,
        target: target.as_bytes(),
        authority: None,
        headers: Fields::Pairs(&headers),
    };
    match listener.classify(&head) {
        Err(refusal) => Some(refusal),
        Ok(Classified::Ready(_)) => None,
        Ok(Classified::NeedsBody(pending)) => {
            listener.classify_body(pending, body.as_bytes()).err()
        }
    }
}

pub type Headers = &'static [(&'static str, &'static str)];

#[test]
fn malformed_requests_are_refused() {
    for (method, target, headers, code, part) in http::REQUESTS {
        let refusal = refusal(&http_listener(), method, target, headers, "")
            .unwrap_or_else(|| panic!("{method} {target} {headers:?} was taken"));
        assert_eq!(
            refusal.code, *code,
            "{method} {target} {headers:?}: {}",
            refusal.detail
        );
        assert!(
            refusal.detail.contains(part),
            "{part:?} is not in {:?}",
            refusal.detail
        );
    }
    for (method, target, headers, body, code, part) in s3::REQUESTS {
        let refusal = refusal(&s3_listener(), method, target, headers, body)
            .unwrap_or_else(|| panic!("{method} {target} {headers:?} was taken"));
        assert_eq!(
            refusal.code, *code,
            "{method} {target} {headers:?}: {}",
            refusal.detail
        );
        assert!(
            refusal.detail.contains(part),
            "{part:?} is not in {:?}",
            refusal.detail
        );
    }
}

/// The sound neighbour of each group above passes: the tables refuse for the reason they name.
#[test]
fn their_sound_neighbours_pass() {
    let headers = [
        ("host", "h"),
        ("content-length", "1"),
        ("Fencing-Token", "a, b"),
    ];
    for target in [
        "/v1/accounts/7",
        "/v1/accounts/7/x%2Fy",
        "http://h/v1/accounts/7",
        "/v2/%zz",
    ] {
        assert_eq!(
            refusal(&http_listener(), "PUT", target, &headers, ""),
            None,
            "{target}"
        );
    }
    let chunked = [("transfer-encoding", "chunked")];
    assert_eq!(refusal(&http_listener(), "PUT", "/", &chunked, ""), None);
    let body = "<Delete><Object><Key>in/7/x</Key></Object></Delete>";
    for (method, target) in [
        ("PUT", "/data/in/7/x"),
        ("DELETE", "/b"),
        ("POST", "/data?delete"),
    ] {
        assert_eq!(
            refusal(&s3_listener(), method, target, &[], body),
            None,
            "{method} {target}"
        );
    }
}

#[test]
fn no_refusal_repeats_a_ticket_or_breaks_its_own_document() {
    let ticket = "v4.public.secret\u{ff}";
    let refusal = refusal(
        &http_listener(),
        "PUT",
        "/",
        &[("fencing-token", ticket)],
        "",
    )
    .unwrap();
    assert!(!refusal.detail.contains("secret"));
    for listener in [http_listener(), s3_listener()] {
        let reply = listener.refusal_reply(&refusal, b"/\xff\x00<&>?x");
        let length = reply
            .headers
            .iter()
            .find(|(name, _)| *name == "content-length")
            .unwrap();
        assert_eq!(length.1, reply.body.len().to_string());
        assert_eq!(reply.status, 400);
        assert!(std::str::from_utf8(&reply.body).is_ok_and(|body| !body.contains('\0')));
    }
}
