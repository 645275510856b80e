//! Each rule of classification: one case that passes, one that is refused.

use super::{PendingBody, S3Rule, S3Rules};
use crate::protocol::{Classified, Code, Fields, Head, Kind, Refusal, RequestClass, Unmatched};

type Headers<'h> = &'h [(&'h str, &'h [u8])];

fn rules() -> S3Rules {
    let rules = vec![
        S3Rule::new("data", Some("in/{day}/*"), "day/{day}").unwrap(),
        S3Rule::new("data", Some("ledger"), "ledger").unwrap(),
        S3Rule::new("whole", None, "whole").unwrap(),
    ];
    S3Rules::new(rules, &["S3.example.com"], Unmatched::Pass)
}

fn classify<'h>(
    rules: &S3Rules,
    method: &'h str,
    target: &'h str,
    headers: Headers<'h>,
) -> Result<Classified<'h>, Refusal> {
    rules.classify(&Head {
        method,
        target: target.as_bytes(),
        authority: None,
        headers: Fields::Pairs(headers),
    })
}

fn show(class: RequestClass<'_>) -> (Kind, Vec<String>) {
    (
        class.kind,
        class.locks.iter().map(ToString::to_string).collect(),
    )
}

/// Kind and locks, or the code of the refusal; `None` when the body is asked for.
fn told(
    method: &str,
    target: &str,
    headers: Headers<'_>,
) -> Result<Option<(Kind, Vec<String>)>, Code> {
    match classify(&rules(), method, target, headers) {
        Ok(Classified::Ready(class)) => Ok(Some(show(class))),
        Ok(Classified::NeedsBody(_)) => Ok(None),
        Err(refusal) => Err(refusal.code),
    }
}

fn write(locks: &[&str]) -> Result<Option<(Kind, Vec<String>)>, Code> {
    Ok(Some((
        Kind::Write,
        locks.iter().map(ToString::to_string).collect(),
    )))
}

#[test]
fn a_write_needs_the_locks_of_its_key() {
    assert_eq!(told("PUT", "/data/in/7/a", &[]), write(&["day/7"]));
    assert_eq!(told("PUT", "/data/in/7/a/b/", &[]), write(&["day/7"]));
    assert_eq!(told("PUT", "/data/%69n/%37%2Fa", &[]), write(&["day/7"]));
    assert_eq!(
        told("DELETE", "/data/ledger?versionId=1", &[]),
        write(&["ledger"])
    );
    assert_eq!(
        told("PUT", "/whole/any//thing?partNumber=1&uploadId=u", &[]),
        write(&["whole"])
    );
    assert_eq!(told("PUT", "/data/out/7", &[]), write(&[]));
    assert_eq!(told("PUT", "/other/in/7/a", &[]), write(&[]));
    let read = Ok(Some((Kind::Read, vec!["day/7".to_owned()])));
    assert_eq!(told("GET", "/data/in/7/a", &[]), read);
}

#[test]
fn keys_in_doubt_are_refused_where_a_rule_could_cover_them() {
    for target in [
        "/data/in//a",
        "/data/in/7/../8/a",
        "/data/out/../in/7/a",
        "/other/../data/in/7/a",
        "/data/./in/7/a",
        "/data/in/%2e%2e/a",
        "/data/in/a+b/c",
        "/data/in/%00/c",
        "/data/in/%ff/c",
        "/data/in/%zz/c",
        "/data%2Fin/7/a",
        "//data/in/7/a",
        "/d%61ta%00/in/7/a",
    ] {
        assert_eq!(
            told("PUT", target, &[]),
            Err(Code::Unclassified),
            "{target}"
        );
    }
    // Nothing of it can be in a rule.
    assert_eq!(told("PUT", "/data/out/a+b%ff", &[]), write(&[]));
    assert_eq!(told("PUT", "/other/a+b", &[]), write(&[]));
    // On a store in a file system it is the guarded key.
    assert_eq!(told("PUT", "/data//ledger", &[]), write(&["ledger"]));
    assert_eq!(told("PUT", "/data/ledger/", &[]), write(&["ledger"]));
    assert_eq!(told("PUT", "/data/in/7//a", &[]), write(&["day/7"]));
}

#[test]
fn a_write_to_a_bucket_needs_every_lock_in_it_or_is_refused() {
    assert_eq!(told("DELETE", "/whole", &[]), write(&["whole"]));
    assert_eq!(told("PUT", "/whole/?lifecycle", &[]), write(&["whole"]));
    assert_eq!(told("PUT", "/whole/key?new-thing", &[]), write(&["whole"]));
    assert_eq!(told("DELETE", "/data", &[]), Err(Code::Unclassified));
    assert_eq!(
        told("PUT", "/data/out/x?new-thing", &[]),
        Err(Code::Unclassified)
    );
    assert_eq!(told("DELETE", "/other", &[]), write(&[]));
    assert_eq!(told("POST", "/", &[]), Err(Code::Unclassified));
    assert_eq!(
        told("GET", "/data?list-type=2", &[]),
        Ok(Some((Kind::Read, vec![])))
    );
}

#[test]
fn a_lock_of_the_bucket_alone_is_known_for_the_whole_bucket() {
    let rule = S3Rule::new("{bucket}", Some("a/{x}"), "bucket/{bucket}").unwrap();
    let rules = S3Rules::new(vec![rule], &[], Unmatched::Pass);
    let Ok(Classified::Ready(class)) = classify(&rules, "DELETE", "/b7", &[]) else {
        panic!("not classified")
    };
    assert_eq!(show(class), (Kind::Write, vec!["bucket/b7".to_owned()]));
}

#[test]
fn the_bucket_may_stand_before_a_known_host() {
    let host = |host: &'static str| [("Host", host.as_bytes())];
    assert_eq!(
        told("PUT", "/in/7/a", &host("DATA.s3.example.com:9000")),
        write(&["day/7"])
    );
    assert_eq!(
        told("PUT", "/data/in/7/a", &host("s3.example.com")),
        write(&["day/7"])
    );
    assert_eq!(
        told("PUT", "/data/in/7/a", &host("127.0.0.1:80")),
        write(&["day/7"])
    );
    assert_eq!(
        told("DELETE", "/", &host("data.s3.example.com")),
        Err(Code::Unclassified)
    );
    // The backend may serve this host as a bucket's; the listener does not know it.
    assert_eq!(
        told("PUT", "/in/7/a", &host("data.s3.internal")),
        Err(Code::Unclassified)
    );
    assert_eq!(
        told(
            "PUT",
            "http://s3.example.com/in/7/a",
            &host("data.s3.example.com")
        ),
        Err(Code::Invalid)
    );
}

#[test]
fn a_copy_needs_the_lock_of_its_destination_only() {
    let source: [(&str, &[u8]); 1] = [("x-amz-copy-source", b"/data/in/1/a")];
    assert_eq!(told("PUT", "/data/in/7/a", &source), write(&["day/7"]));
    assert_eq!(told("PUT", "/data/out/a", &source), write(&[]));
}

#[test]
fn a_form_hides_its_key_and_another_method_its_reach() {
    let form: [(&str, &[u8]); 1] = [("content-type", b"multipart/form-data; boundary=b")];
    assert_eq!(told("POST", "/data", &form), Err(Code::Unclassified));
    // `../data/ledger` in a form's field: a store in a file system resolves it.
    let plain: (&str, &[u8]) = ("content-type", b"text/plain");
    for headers in [
        &form[..],
        &[],
        &[plain],
        &[plain, form[0]],
        &[form[0], plain],
    ] {
        for target in ["/other", "/other/", "/other?x", "/whole"] {
            let told = told("POST", target, headers);
            assert_eq!(told, Err(Code::Unclassified), "{target} {headers:?}");
        }
    }
    assert_eq!(told("POST", "/other/key", &form), Err(Code::Unclassified));
    assert_eq!(
        told("POST", "/other?delete", &form),
        Err(Code::Unclassified)
    );
    let free = S3Rules::new(vec![], &[], Unmatched::Pass);
    assert!(classify(&free, "POST", "/other", &form).is_ok());
    let other: [(&str, &[u8]); 1] = [("x-http-method-override", b"DELETE")];
    assert_eq!(told("GET", "/data/in/7/a", &other), Err(Code::Unclassified));
}

/// Wasabi's MOVE names where it writes; rewriting servers take another path for the request's.
#[test]
fn a_path_in_a_header_may_be_any() {
    for name in ["Destination", "X-Original-URL", "X-Rewrite-URL"] {
        let header: [(&str, &[u8]); 1] = [(name, b"/data/ledger")];
        for method in ["PUT", "MOVE"] {
            let told = told(method, "/other/x", &header);
            assert_eq!(told, Err(Code::Unclassified), "{method} {name}");
        }
        let read = Ok(Some((Kind::Read, vec![])));
        assert_eq!(told("GET", "/other/x", &header), read);
    }
}

/// MinIO: an archive is unpacked into other keys; a folder goes with all that is in it.
#[test]
fn extensions_that_write_more_than_their_key_reach_the_bucket() {
    for (method, name, value) in [
        ("PUT", "X-Amz-Meta-Snowball-Auto-Extract", "true"),
        ("PUT", "x-amz-meta-snowball-auto-extract", "TRUE"),
        ("DELETE", "x-minio-force-delete", "true"),
    ] {
        let told = |target: &str| told(method, target, &[(name, value.as_bytes())]);
        assert_eq!(told("/data/out/x.tar"), Err(Code::Unclassified), "{name}");
        assert_eq!(told("/whole/x.tar"), write(&["whole"]));
        assert_eq!(told("/other/x.tar"), write(&[]));
    }
    let read = Ok(Some((Kind::Read, vec![])));
    let extract: [(&str, &[u8]); 1] = [("x-minio-extract", b"true")];
    assert_eq!(told("GET", "/data/out/x.zip/a", &extract), read);
    assert_eq!(told("PUT", "/data/out/x.zip/a", &extract), write(&[]));
}

#[test]
fn a_signature_over_the_ticket_is_refused() {
    let signed: [(&str, &[u8]); 2] = [
        (
            "Authorization",
            b"AWS4-HMAC-SHA256 Credential=A, SignedHeaders=fencing-token;host, Signature=f",
        ),
        ("Fencing-Token", b"ticket"),
    ];
    assert_eq!(told("PUT", "/data/in/7/a", &signed), Err(Code::Invalid));
    assert_eq!(told("PUT", "/data/in/7/a", &signed[1..]), write(&["day/7"]));
    let query = "/data/in/7/a?X-Amz-SignedHeaders=fencing-token%3Bhost";
    assert_eq!(told("PUT", query, &[]), Err(Code::Invalid));
}

fn delete(rules: &S3Rules, target: &str, body: &[u8]) -> Result<(Kind, Vec<String>), Refusal> {
    match classify(rules, "POST", target, &[("fencing-token", b"t")])? {
        Classified::NeedsBody(pending) => {
            let class = rules.classify_body(pending, body)?;
            assert_eq!(
                (&*class.tickets, class.operation),
                (&["t"][..], "DeleteObjects")
            );
            Ok(show(class))
        }
        Classified::Ready(class) => Ok(show(class)),
    }
}

fn objects(keys: &[&str]) -> Vec<u8> {
    let object = |key: &&str| format!("<Object><Key>{key}</Key></Object>");
    let objects: String = keys.iter().map(object).collect();
    format!("<Delete>{objects}</Delete>").into_bytes()
}

#[test]
fn deleting_many_needs_the_locks_of_all_the_keys() {
    let body = objects(&["in/2/a", "out/x", "in/1/b", "in/2/c", "ledger"]);
    let locks = ["day/1", "day/2", "ledger"].map(str::to_owned).to_vec();
    assert_eq!(
        delete(&rules(), "/data?delete", &body),
        Ok((Kind::Write, locks))
    );
    // A percent sign or plus in a body is itself.
    let body = objects(&["in/%37+/a"]);
    let locks = vec!["day/%37+".to_owned()];
    assert_eq!(
        delete(&rules(), "/data?delete", &body),
        Ok((Kind::Write, locks))
    );
    // No rule is on this bucket, but a key in the body may lead out of it.
    let plain = objects(&["in/1/b", "ledger"]);
    let passed = Ok((Kind::Write, vec![]));
    assert_eq!(delete(&rules(), "/other?delete", &plain), passed);
    let dots = objects(&["../data/ledger"]);
    let refused = delete(&rules(), "/other?delete", &dots).unwrap_err();
    assert_eq!(refused.code, Code::Unclassified);
    // Without rules no body is asked for.
    let free = S3Rules::new(vec![], &[], Unmatched::Pass);
    assert_eq!(delete(&free, "/other?delete", &dots), passed);
}

#[test]
fn deleting_many_is_refused_whole_where_one_key_is_in_doubt() {
    let refused = |body: &[u8]| delete(&rules(), "/data?delete", body).unwrap_err().code;
    assert_eq!(refused(&objects(&["out/x", "in//a"])), Code::Unclassified);
    assert_eq!(refused(&objects(&["out/../in/7/x"])), Code::Unclassified);
    assert_eq!(refused(b"<Delete><Object>"), Code::Unclassified);
    assert_eq!(
        refused(&vec![b' '; PendingBody::BYTES_MAX + 1]),
        Code::Unclassified
    );
    assert_eq!(told("POST", "/d%00?delete", &[]), Err(Code::Unclassified));
    let strict = S3Rules::new(
        vec![S3Rule::new("data", Some("a"), "a").unwrap()],
        &[],
        Unmatched::Reject,
    );
    assert!(delete(&strict, "/data?delete", &objects(&["a"])).is_ok());
    assert!(delete(&strict, "/data?delete", &objects(&["a", "b"])).is_err());
    assert!(delete(&strict, "/other?delete", &objects(&["a"])).is_err());
}

#[test]
fn rules_of_two_patterns_are_checked_together() {
    assert!(S3Rule::new("{b}", Some("{k}/*"), "{b}/{k}").is_ok());
    assert!(S3Rule::new("{b}", Some("{b}/*"), "{b}").is_err());
    assert!(S3Rule::new("{a}", Some("{b}/{c}/{d}/{e}/{f}/{g}/{h}/{i}"), "x").is_err());
    assert!(S3Rule::new("b", None, "{k}").is_err());
    let patterns = rules().lock_patterns();
    let patterns: Vec<_> = patterns.iter().map(|pattern| pattern.as_str()).collect();
    assert_eq!(patterns, ["day/*", "ledger", "whole"]);
}
