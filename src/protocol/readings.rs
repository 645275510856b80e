//! Generated addresses against backends that read them in their own ways.
//!
//! Each backend here is a small reader of paths, written for itself: it decodes, splits, merges and
//! resolves in one of the orders that real servers use. The property: if any of them finds a
//! guarded resource in a path, classification asks for its lock or refuses; it never passes the
//! write.

use percent_encoding::percent_decode_str;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_assert, proptest};
use proptest::sample::select;

use super::http::{HttpRule, HttpRules};
use super::s3::{S3Rule, S3Rules};
use super::{Classified, Code, Fields, Head, Listener, Refusal, Unmatched};
use crate::lock_name::LockName;

/// How a backend reads a path. Each true switch is a step that it takes.
#[derive(Clone, Copy, Debug)]
struct Backend {
    decodings: usize,
    decodes_before_split: bool,
    raw_dots_only: bool,
    resolves_dots: bool,
    merges_slashes: bool,
    strips_parameters: bool,
    splits_at_backslash: bool,
    stops_at_nul: bool,
    parses_after_decoding: bool,
    plus_is_space: bool,
}

impl Backend {
    fn of_bits(bits: u16) -> Backend {
        let bit = |nth: u16| bits & (1 << nth) != 0;
        Backend {
            decodings: if bit(0) { 2 } else { 1 },
            decodes_before_split: bit(1),
            raw_dots_only: bit(2),
            resolves_dots: bit(3),
            merges_slashes: bit(4),
            strips_parameters: bit(5),
            splits_at_backslash: bit(6),
            stops_at_nul: bit(7),
            parses_after_decoding: bit(8),
            plus_is_space: bit(9),
        }
    }

    /// The segments of the resource that this backend finds.
    fn read(self, path: &str) -> Vec<String> {
        let mut text = path.strip_prefix('/').unwrap_or(path).to_owned();
        if self.plus_is_space {
            text = text.replace('+', " ");
        }
        if self.raw_dots_only {
            text = resolve(text.split('/').map(str::to_owned).collect()).join("/");
        }
        if self.decodes_before_split {
            text = self.decode(&text);
            if self.parses_after_decoding {
                text = text.split(['?', '#']).next().unwrap_or("").to_owned();
            }
        }
        if self.splits_at_backslash {
            text = text.replace('\\', "/");
        }
        let mut segments: Vec<String> = text.split('/').map(str::to_owned).collect();
        if self.strips_parameters {
            segments.iter_mut().for_each(|segment| {
                segment.truncate(segment.find(';').unwrap_or(segment.len()));
            });
        }
        if !self.decodes_before_split {
            segments
                .iter_mut()
                .for_each(|segment| *segment = self.decode(segment));
        }
        if self.merges_slashes {
            segments.retain(|segment| !segment.is_empty());
        }
        if self.resolves_dots {
            segments = resolve(segments);
        }
        segments
    }

    fn decode(self, text: &str) -> String {
        let mut text = text.to_owned();
        for _ in 0..self.decodings {
            text = percent_decode_str(&text).decode_utf8_lossy().into_owned();
        }
        if self.stops_at_nul {
            text.truncate(text.find('\0').unwrap_or(text.len()));
        }
        text
    }
}

/// RFC 3986 5.2.4.
fn resolve(segments: Vec<String>) -> Vec<String> {
    let mut resolved: Vec<String> = vec![];
    for segment in segments {
        match &*segment {
            "." => {}
            ".." => {
                resolved.pop();
            }
            _ => resolved.push(segment),
        }
    }
    resolved
}

/// What is guarded: `a/{t}/**` and `b/{t}/x`. `None`: not this; `Some(None)`: with a capture that
/// makes no lock's name.
fn guarded(segments: &[String]) -> Option<Option<LockName>> {
    let tenant = match segments {
        [first, tenant, ..] if first == "a" => tenant,
        [first, tenant, last] if first == "b" && last == "x" => tenant,
        _ => return None,
    };
    Some(LockName::new(tenant).ok().filter(|_| !tenant.contains('/')))
}

fn outcome(listener: &Listener, target: &str) -> Result<Vec<LockName>, Code> {
    let head = Head {
        method: "PUT",
        target: target.as_bytes(),
        authority: None,
        headers: Fields::Pairs(&[]),
    };
    match listener.classify(&head) {
        Ok(Classified::Ready(class)) => Ok(class.locks),
        Ok(Classified::NeedsBody(_)) => panic!("no body is needed for a PUT"),
        Err(refusal) => Err(refusal.code),
    }
}

fn http() -> Listener {
    let rules = [("/a/{t}/**", "{t}"), ("/b/{t}/x", "{t}")];
    let rules = rules.map(|(path, lock)| HttpRule::new(path, lock).unwrap());
    Listener::Http(HttpRules::new(rules.to_vec(), Unmatched::Pass))
}

fn s3() -> Listener {
    let rules = [("a/{t}/*", "{t}"), ("b/{t}/x", "{t}")];
    let rules = rules.map(|(key, lock)| S3Rule::new("k", Some(key), lock).unwrap());
    Listener::S3(S3Rules::new(rules.to_vec(), &[], Unmatched::Pass))
}

/// Paths of the pieces that readers quarrel about.
fn path() -> impl Strategy<Value = String> {
    let pieces = [
        "a", "b", "x", "7", "/", "/", "/", "//", "/./", "/../", "..", ".", "%2F", "%2f", "%2e",
        "%2E", "%252F", "%252e", "%61", "%62", "%2561", "%78", ";", ";p", "%3B", "\\", "%5C",
        "%00", "%0a", "%3F", "%23", "%25", "%", "%z", "+", "%20", "%ff", "%c0%ae", "ü", "%C3%BC",
        "*", "k", "%6b",
    ];
    proptest::collection::vec(select(pieces.to_vec()), 0..10)
        .prop_map(|parts| format!("/{}", parts.concat()))
}

/// Paths that are near to a guarded one: each part in some spelling.
fn near_path() -> impl Strategy<Value = String> {
    let slash = || {
        select(vec![
            "/", "//", "/./", "%2F", "/q/../", ";p/", "\\", "/", "/", "/",
        ])
    };
    let a = select(vec!["a", "%61", "%2561", "b", "%62", "a;x", "a%00"]);
    let tenant = select(vec![
        "7", "%37", "7;v", "%2e%2e", "", "7%2F8", "a+b", "%00", "7%3Fy", "ü",
    ]);
    let x = select(vec!["x", "%78", "x/", "x;p", "y", "", "%2578", "x%23"]);
    (slash(), a, slash(), tenant, slash(), x)
        .prop_map(|(s1, a, s2, tenant, s3, x)| format!("/{s1}{a}{s2}{tenant}{s3}{x}"))
}

/// The bucket `k`, or nearly.
fn bucket() -> impl Strategy<Value = &'static str> {
    let spellings = [
        "/k",
        "/k",
        "/k",
        "/%6b",
        "/k%2Fa",
        "/k%2Fb%2F7",
        "//k",
        "/q/../k",
        "/./k",
        "/k%00",
        "",
        "/q",
    ];
    select(spellings.to_vec())
}

/// Drops what every reader drops: a slash at the end, and parameters where the lock is named.
fn as_documented(mut segments: Vec<String>) -> Vec<String> {
    while segments.last().is_some_and(String::is_empty) {
        segments.pop();
    }
    if let Some(tenant) = segments.get_mut(1) {
        tenant.truncate(tenant.find(';').unwrap_or(tenant.len()));
    }
    segments
}

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(count)
    }
}

fn never_passed(path: &str, backend: Backend) -> Result<(), String> {
    // In a path `+` is itself (RFC 3986 3.3): it is documented that no other backend is covered.
    let backend = Backend {
        plus_is_space: false,
        ..backend
    };
    let found = guarded(&as_documented(backend.read(path)));
    match (found, outcome(&http(), path)) {
        (None, _) | (Some(_), Err(_)) => Ok(()),
        (Some(Some(lock)), Ok(locks)) if locks.contains(&lock) => Ok(()),
        (Some(lock), Ok(locks)) => Err(format!(
            "{path:?} is {lock:?} for {backend:?}, passed with {locks:?}"
        )),
    }
}

/// A store in a file system (merges, resolves) and one that takes `+` for a space; all decode once,
/// the whole key.
fn never_passed_s3(address: &str, bits: u16) -> Result<(), String> {
    let backend = Backend {
        decodings: 1,
        decodes_before_split: true,
        strips_parameters: false,
        splits_at_backslash: false,
        parses_after_decoding: false,
        ..Backend::of_bits(bits)
    };
    let mut segments = backend.read(address);
    if backend.merges_slashes {
        segments.retain(|segment| !segment.is_empty());
    }
    let found = match segments.split_first() {
        // `a/{t}/*` wants a slash after the tenant, which `guarded` does not.
        Some((bucket, key)) if bucket == "k" => guarded(key).filter(|_| key.len() > 2),
        _ => None,
    };
    match (found, outcome(&s3(), address)) {
        (None, _) | (Some(_), Err(_)) => Ok(()),
        (Some(Some(lock)), Ok(locks)) if locks.contains(&lock) => Ok(()),
        (Some(lock), Ok(locks)) => Err(format!(
            "{address:?} is {lock:?} for {backend:?}, passed with {locks:?}"
        )),
    }
}

proptest! {
    #![proptest_config(cases(20_000))]

    #[test]
    fn no_backend_finds_a_guarded_resource_that_passes(path in path(), bits in any::<u16>()) {
        let checked = never_passed(&path, Backend::of_bits(bits));
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
    }

    #[test]
    fn no_backend_finds_one_in_a_path_near_to_it(path in near_path(), bits in any::<u16>()) {
        let checked = never_passed(&path, Backend::of_bits(bits));
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
    }

    #[test]
    fn no_store_finds_a_guarded_key_that_passes(
        bucket in bucket(),
        key in path(),
        bits in any::<u16>(),
    ) {
        let checked = never_passed_s3(&format!("{bucket}{key}"), bits);
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
    }

    #[test]
    fn no_store_finds_one_near_to_it(
        bucket in bucket(),
        key in near_path(),
        bits in any::<u16>(),
    ) {
        let checked = never_passed_s3(&format!("{bucket}{key}"), bits);
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
    }
}

/// The names that classification looks at, and one that it does not.
fn header_name() -> impl Strategy<Value = String> {
    let known = [
        "host",
        "te",
        "upgrade",
        "trailer",
        "connection",
        "content-type",
        "content-length",
        "transfer-encoding",
        "authorization",
        "fencing-token",
        "fencing_token",
        "x-http-method",
        "x-method-override",
        "destination",
        "x-original-url",
        "x-amz-copy-source",
        "x-other",
        "",
    ];
    select(known.map(str::to_owned).to_vec())
}

fn classify_anything(
    method: &str,
    target: &[u8],
    headers: &[(&str, &[u8])],
    body: &[u8],
) -> Vec<Option<Refusal>> {
    let head = Head {
        method,
        target,
        authority: None,
        headers: Fields::Pairs(headers),
    };
    let one = |listener: Listener| {
        let refusal = match listener.classify(&head) {
            Ok(Classified::Ready(_)) => return None,
            Ok(Classified::NeedsBody(pending)) => listener.classify_body(pending, body).err()?,
            Err(refusal) => refusal,
        };
        let reply = listener.refusal_reply(&refusal, target);
        assert_eq!(reply.status, refusal.code.status());
        Some(refusal)
    };
    [http(), s3()].map(one).to_vec()
}

proptest! {
    #![proptest_config(cases(5_000))]

    #[test]
    fn no_bytes_panic(
        method in "[A-Za-z _]{0,8}",
        target in proptest::collection::vec(any::<u8>(), 0..64),
        headers in proptest::collection::vec(
            (header_name(), proptest::collection::vec(any::<u8>(), 0..48)), 0..4),
        body in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let headers: Vec<(&str, &[u8])> =
            headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        for refusal in classify_anything(&method, &target, &headers, &body).into_iter().flatten() {
            prop_assert!(matches!(refusal.code, Code::Invalid | Code::Unclassified));
        }
    }

    #[test]
    fn no_path_and_no_body_panics(
        path in path(),
        query in "[a-z%=&;_]{0,12}",
        body in "(<Delete>|<Object>|<Key>|</Key>|</Object>|</Delete>|a|&amp;|&#1;|<!|]]>| ){0,12}",
    ) {
        for target in [format!("{path}?{query}"), "/k?delete".to_owned(), format!("http://h{path}")] {
            classify_anything("POST", target.as_bytes(), &[], body.as_bytes());
        }
    }
}
