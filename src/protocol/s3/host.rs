//! Which bucket a host names.

use std::borrow::Cow;

use crate::protocol::head::Head;
use crate::protocol::refusal::Refusal;

/// What the host says of the bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Bucket {
    /// It stands in the path.
    InPath,
    /// It is this one.
    Named(String),
    /// It may be one that a rule guards, for a backend that serves this host so.
    Doubtful,
}

/// The host that the request is for, in lower case, without port and trailing dot. The authority of
/// the target, `:authority` and `Host` must agree: readers differ in which they take (RFC 9112
/// 3.2.2 and 9113 8.3.1 say the former, many servers the latter).
pub(super) fn of_request<'h>(
    head: &Head<'h>,
    host: Option<&'h [u8]>,
) -> Result<Option<Cow<'h, str>>, Refusal> {
    let target = authority_of(head.target).map(normalise);
    let authority = head
        .authority
        .map(|authority| normalise(authority.as_bytes()));
    let host = host.map(normalise);
    let mut told = [target, authority, host].into_iter().flatten();
    let first = told.next();
    if told.any(|other| Some(&other) != first.as_ref()) {
        return Err(Refusal::malformed("the request names two different hosts"));
    }
    Ok(first)
}

fn authority_of(target: &[u8]) -> Option<&[u8]> {
    if target.starts_with(b"/") {
        return None;
    }
    let colon = target.iter().position(|&byte| byte == b':')?;
    let rest = target[colon..].strip_prefix(b"://")?;
    rest.split(|byte| b"/?".contains(byte)).next()
}

fn normalise(host: &[u8]) -> Cow<'_, str> {
    let host = host.trim_ascii();
    let digits = |port: &[u8]| port.iter().all(u8::is_ascii_digit);
    let colon = host.iter().rposition(|&byte| byte == b':');
    let bare = match colon {
        Some(at) if digits(&host[at + 1..]) => &host[..at],
        _ => host,
    };
    let text = String::from_utf8_lossy(bare.strip_suffix(b".").unwrap_or(bare));
    match text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => text.to_ascii_lowercase().into(),
        false => text,
    }
}

/// Reads the host. `virtual_hosts` are in lower case, the longest first; `guarded` are the buckets
/// that rules name outright.
pub(super) fn bucket<'b>(
    host: &str,
    virtual_hosts: &[Box<str>],
    mut guarded: impl Iterator<Item = &'b str>,
) -> Bucket {
    if virtual_hosts.iter().any(|known| **known == *host) {
        return Bucket::InPath;
    }
    for known in virtual_hosts {
        if let Some(bucket) = host
            .strip_suffix(&**known)
            .and_then(|rest| rest.strip_suffix('.'))
        {
            return Bucket::Named(bucket.to_owned());
        }
    }
    let begins_with = |bucket: &str| {
        host.len() >= bucket.len()
            && host.as_bytes()[..bucket.len()].eq_ignore_ascii_case(bucket.as_bytes())
            && matches!(host.as_bytes().get(bucket.len()), None | Some(b'.'))
    };
    if guarded.any(begins_with) {
        Bucket::Doubtful
    } else {
        Bucket::InPath
    }
}

#[cfg(test)]
mod tests {
    use super::{Bucket, bucket, of_request};
    use crate::protocol::head::{Fields, Head};

    fn host(target: &str, authority: Option<&str>, host: Option<&str>) -> Option<Option<String>> {
        let head = Head {
            method: "PUT",
            target: target.as_bytes(),
            authority,
            headers: Fields::Pairs(&[]),
        };
        of_request(&head, host.map(str::as_bytes))
            .ok()
            .map(|host| host.map(Into::into))
    }

    #[test]
    fn the_host_is_one_whatever_its_spelling() {
        let b = Some(Some("b.s3.example.com".to_owned()));
        assert_eq!(host("/k", None, Some("B.s3.Example.com:9000")), b);
        assert_eq!(host("/k", Some("b.s3.example.com."), None), b);
        assert_eq!(
            host("HTTP://b.s3.example.com/k", None, Some("b.s3.example.com")),
            b
        );
        assert_eq!(host("/k", None, None), Some(None));
        assert_eq!(host("http://a/k", None, Some("b")), None);
        assert_eq!(host("/k", Some("a"), Some("b")), None);
    }

    #[test]
    fn a_bucket_stands_before_a_known_host_only() {
        let hosts: Vec<Box<str>> = vec!["eu.s3.example.com".into(), "s3.example.com".into()];
        let read = |host| bucket(host, &hosts, ["guarded"].into_iter());
        assert_eq!(read("s3.example.com"), Bucket::InPath);
        assert_eq!(read("127.0.0.1"), Bucket::InPath);
        assert_eq!(read("b.s3.example.com"), Bucket::Named("b".to_owned()));
        assert_eq!(read("a.b.s3.example.com"), Bucket::Named("a.b".to_owned()));
        assert_eq!(read("b.eu.s3.example.com"), Bucket::Named("b".to_owned()));
        assert_eq!(read("eu.s3.example.com"), Bucket::InPath);
        assert_eq!(read("xs3.example.com"), Bucket::InPath);
        assert_eq!(read("guarded.other.example"), Bucket::Doubtful);
        assert_eq!(read("guarded"), Bucket::Doubtful);
        assert_eq!(read("guarded2.other.example"), Bucket::InPath);
    }
}
