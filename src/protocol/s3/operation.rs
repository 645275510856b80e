//! Which operation a request asks for, and how far it writes: method, level of the address, the
//! names in the query and whether the body is a form decide (Amazon S3 API Reference, "Actions").
//! Other fields of the head may widen the reach: that is for the caller.
//!
//! Invariant: a write is never given a narrower reach than a backend could give it. Whatever is not
//! in the table reaches the whole bucket.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// What the address names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Level {
    /// No bucket.
    Service,
    /// A bucket.
    Bucket,
    /// A key in a bucket.
    Object,
}

/// How far an operation writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    /// It reads.
    Nothing,
    /// The key of the address.
    Key,
    /// The keys that the body names.
    KeysInBody,
    /// A key that a form's field or a header names.
    KeyElsewhere,
    /// The bucket and whatever is in it.
    Bucket,
}

/// An operation's name, as S3 has it where it has one, and its reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Operation {
    pub(super) name: &'static str,
    pub(super) reach: Reach,
}

const fn operation(name: &'static str, reach: Reach) -> Operation {
    Operation { name, reach }
}

/// What the table does not know.
pub(super) const UNKNOWN: Operation = operation("UnknownWrite", Reach::Bucket);

/// Looks the operation up.
pub(super) fn find(method: &str, level: Level, query: &[u8], is_form: bool) -> Operation {
    match method {
        "GET" | "HEAD" | "OPTIONS" | "TRACE" => operation(read_name(level), Reach::Nothing),
        "PUT" | "POST" | "DELETE" => {
            let names = subresources(query);
            let names: Vec<&str> = names.iter().map(|name| &**name).collect();
            match level {
                Level::Service => operation("ServiceWrite", Reach::Bucket),
                Level::Bucket => bucket_write(method, &names, is_form),
                Level::Object => object_write(method, &names, is_form),
            }
        }
        _ => UNKNOWN,
    }
}

fn read_name(level: Level) -> &'static str {
    match level {
        Level::Service => "ListBuckets",
        Level::Bucket => "ReadBucket",
        Level::Object => "ReadObject",
    }
}

fn bucket_write(method: &str, names: &[&str], is_form: bool) -> Operation {
    match (method, names) {
        ("PUT", []) => operation("CreateBucket", Reach::Bucket),
        ("DELETE", []) => operation("DeleteBucket", Reach::Bucket),
        // First: s3s takes any of these for an upload, and what surrounds a form could be XML.
        ("POST", _) if is_form => operation("PostObject", Reach::KeyElsewhere),
        ("POST", ["delete"]) => operation("DeleteObjects", Reach::KeysInBody),
        // A reader that finds a form here by other signs does the same.
        ("POST", _) => operation("BucketWrite", Reach::KeyElsewhere),
        _ => operation("BucketWrite", Reach::Bucket),
    }
}

fn object_write(method: &str, names: &[&str], is_form: bool) -> Operation {
    // Every one of these may name the version that it is about.
    let unversioned: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| *name != "versionId")
        .collect();
    let name = match (method, unversioned.as_slice()) {
        ("PUT", []) => "PutObject",
        ("PUT", ["partNumber", "uploadId"]) => "UploadPart",
        ("PUT", ["acl"]) => "PutObjectAcl",
        ("PUT", ["tagging"]) => "PutObjectTagging",
        ("PUT", ["retention"]) => "PutObjectRetention",
        ("PUT", ["legal-hold"]) => "PutObjectLegalHold",
        ("POST", ["uploads"]) => "CreateMultipartUpload",
        ("POST", ["uploadId"]) => "CompleteMultipartUpload",
        ("POST", ["restore"]) => "RestoreObject",
        ("POST", ["select", "select-type"]) if !is_form => {
            return operation("SelectObjectContent", Reach::Nothing);
        }
        ("DELETE", []) => "DeleteObject",
        ("DELETE", ["uploadId"]) => "AbortMultipartUpload",
        ("DELETE", ["tagging"]) => "DeleteObjectTagging",
        // It takes its source away, which a header names and another lock may guard.
        ("PUT", ["renameObject"]) => return operation("RenameObject", Reach::KeyElsewhere),
        ("POST", _) if is_form => return operation("PostObject", Reach::KeyElsewhere),
        _ => return UNKNOWN,
    };
    operation(name, Reach::Key)
}

/// The names in the query that choose an operation: sorted, each once; without those that sign,
/// stand for a header (`x-amz-*`), or name the operation for logs (`x-id`).
fn subresources(query: &[u8]) -> Vec<Cow<'_, str>> {
    let mut names: Vec<Cow<'_, str>> = vec![];
    for pair in query
        .split(|&byte| byte == b'&')
        .filter(|pair| !pair.is_empty())
    {
        let name = pair.split(|&byte| byte == b'=').next().unwrap_or(pair);
        let name = match percent_decode(name).decode_utf8() {
            Ok(name) => name,
            // No operation has such a name: the table will not know it either.
            Err(_) => Cow::Borrowed("\u{fffd}"),
        };
        let amz = name
            .get(..6)
            .is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"));
        let plain = matches!(&*name, "AWSAccessKeyId" | "Signature" | "Expires" | "x-id");
        if !amz && !plain {
            names.push(name);
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::{Level, Reach, find};

    fn reach(method: &str, level: Level, query: &str) -> Reach {
        find(method, level, query.as_bytes(), false).reach
    }

    #[test]
    fn reads_write_nothing() {
        for (method, query) in [
            ("GET", ""),
            ("HEAD", "versionId=1"),
            ("OPTIONS", ""),
            ("GET", "uploads"),
            ("POST", "select&select-type=2"),
        ] {
            assert_eq!(
                reach(method, Level::Object, query),
                Reach::Nothing,
                "{method} {query}"
            );
        }
        assert_eq!(reach("GET", Level::Service, ""), Reach::Nothing);
        assert_eq!(
            reach("GET", Level::Bucket, "list-type=2&prefix=a"),
            Reach::Nothing
        );
    }

    #[test]
    fn operations_on_a_key_reach_that_key() {
        for (method, query) in [
            ("PUT", ""),
            ("PUT", "x-id=PutObject"),
            ("PUT", "uploadId=u&partNumber=1"),
            ("PUT", "tagging"),
            ("PUT", "acl&versionId=1"),
            ("PUT", "retention="),
            ("PUT", "legal-hold"),
            (
                "PUT",
                "X-Amz-Signature=f&X-Amz-SignedHeaders=host&x-amz-acl=private",
            ),
            ("PUT", "AWSAccessKeyId=a&Signature=s&Expires=1"),
            ("POST", "uploads"),
            ("POST", "uploadId=u"),
            ("POST", "restore&versionId=3"),
            ("DELETE", ""),
            ("DELETE", "versionId=1"),
            ("DELETE", "tagging"),
            ("DELETE", "uploadId=u"),
        ] {
            assert_eq!(
                reach(method, Level::Object, query),
                Reach::Key,
                "{method} {query}"
            );
        }
    }

    #[test]
    fn what_the_table_does_not_know_reaches_the_bucket() {
        for (method, query) in [
            ("PUT", "new-thing"),
            ("PUT", "Tagging"),
            ("PUT", "tagging&acl"),
            ("PUT", "uploadId=u"),
            ("POST", ""),
            ("POST", "select"),
            ("POST", "select&select-type=2&uploads"),
            ("POST", "delete"),
            ("DELETE", "acl"),
            ("PATCH", ""),
            ("get", ""),
            ("PUT", "%ff"),
        ] {
            assert_eq!(
                reach(method, Level::Object, query),
                Reach::Bucket,
                "{method} {query}"
            );
        }
        for (method, query) in [("PUT", ""), ("DELETE", ""), ("PUT", "lifecycle")] {
            assert_eq!(
                reach(method, Level::Bucket, query),
                Reach::Bucket,
                "{method} {query}"
            );
        }
        assert_eq!(reach("POST", Level::Service, ""), Reach::Bucket);
    }

    #[test]
    fn keys_in_a_body_or_a_form_are_told_apart() {
        assert_eq!(reach("POST", Level::Bucket, "delete"), Reach::KeysInBody);
        assert_eq!(reach("POST", Level::Bucket, "%64elete="), Reach::KeysInBody);
        for query in [&b""[..], b"delete", b"x"] {
            let form = find("POST", Level::Bucket, query, true).reach;
            assert_eq!(form, Reach::KeyElsewhere);
        }
        assert_eq!(reach("POST", Level::Bucket, ""), Reach::KeyElsewhere);
        assert_eq!(
            reach("POST", Level::Bucket, "delete&x"),
            Reach::KeyElsewhere
        );
        assert_eq!(
            reach("PUT", Level::Object, "renameObject"),
            Reach::KeyElsewhere
        );
        let form = |method| find(method, Level::Object, b"", true).reach;
        assert_eq!(form("POST"), Reach::KeyElsewhere);
        assert_eq!(form("PUT"), Reach::Key);
        let bucket = find("PUT", Level::Bucket, b"", true).reach;
        assert_eq!(bucket, Reach::Bucket);
    }
}
