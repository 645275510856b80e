//! How a request's bucket and key are read for matching. The bytes that travel on stay as they
//! came.
//!
//! The bucket stands in the path (`/bucket/key`) or, for the hosts that the listener names, before
//! the host (`bucket.s3.example.com`). The key is decoded once; `%2F` is a slash in it; everything
//! counts, empty segments and slashes at the end included. In doubt, so that a write on it is
//! refused where a rule could cover it:
//! - `.` and `..` as a segment, which stores on file systems and normalising hops resolve;
//! - a plain `+`, which Amazon S3 reads as a space and others do not; a control character; an
//!   escape that is none; bytes that are not UTF-8;
//! - an empty segment, where it and its absence (stores on file systems) lead to different locks;
//! - a bucket that is empty, or has `%2F` or another of these in it;
//! - a host that begins with the name of a guarded bucket and is not known to the listener.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use super::operation::Level;
use crate::protocol::pattern::{Match, Pattern, Segment};

/// What a request is about.
#[derive(Debug)]
pub(super) struct Address<'h> {
    bucket: Option<Cow<'h, str>>,
    key: Option<Key<'h>>,
    /// Some reader may find any bucket and key here.
    anything: bool,
}

#[derive(Debug)]
struct Name<'h> {
    text: Cow<'h, str>,
    certain: bool,
}

/// A key, read for matching.
#[derive(Debug)]
pub(super) enum Key<'k> {
    /// Every reader sees the same segments.
    Plain(&'k str),
    /// Anything else.
    Decoded(Decoded),
}

/// A key with encoded or unusual characters.
#[derive(Debug)]
pub(super) struct Decoded {
    segments: Vec<(String, bool)>,
    has_dots: bool,
    has_empty: bool,
}

impl<'h> Address<'h> {
    /// Reads a path whose bucket stands in it.
    pub(super) fn in_path(path: &'h [u8]) -> Address<'h> {
        let body = path.strip_prefix(b"/").unwrap_or(path);
        let slash = body.iter().position(|&byte| byte == b'/');
        let (bucket, key) = match slash {
            Some(at) => (&body[..at], Some(&body[at + 1..])),
            None => (body, None),
        };
        if bucket.is_empty() && key.is_none() {
            return Address {
                bucket: None,
                key: None,
                anything: false,
            };
        }
        let bucket = Name::read(bucket);
        let key = key.filter(|key| !key.is_empty()).map(Key::read);
        Address::new(bucket, key)
    }

    /// Reads a path of a bucket that stands before the host.
    pub(super) fn in_bucket(bucket: String, path: &'h [u8]) -> Address<'h> {
        let key = path.strip_prefix(b"/").unwrap_or(path);
        let key = Some(key).filter(|key| !key.is_empty()).map(Key::read);
        Address::new(
            Name {
                text: bucket.into(),
                certain: true,
            },
            key,
        )
    }

    fn new(bucket: Name<'h>, key: Option<Key<'h>>) -> Address<'h> {
        let has_dots = key.as_ref().is_some_and(Key::has_dots) || is_dots(&bucket.text);
        // Resolved by a hop before the backend, dots may lead into another bucket; where the end
        // of the bucket is in doubt, so is the start of the key.
        let anything = has_dots || bucket.text.is_empty() || !bucket.certain;
        Address {
            bucket: Some(bucket.text),
            key,
            anything,
        }
    }

    /// A key that a body names, in a bucket that the head names.
    pub(super) fn of_key(bucket: &'h str, key: Key<'h>) -> Address<'h> {
        Address::new(
            Name {
                text: bucket.into(),
                certain: true,
            },
            Some(key),
        )
    }

    /// Whether every reader finds this bucket.
    pub(super) fn is_certain(&self) -> bool {
        !self.anything && self.bucket.is_some()
    }

    /// Whether some reader may find any bucket and key here.
    pub(super) fn is_anything(&self) -> bool {
        self.anything
    }

    /// The same path, where the host may name the bucket instead.
    pub(super) fn doubtful(self) -> Address<'h> {
        Address {
            anything: true,
            ..self
        }
    }

    /// What it names.
    pub(super) fn level(&self) -> Level {
        match (&self.bucket, &self.key) {
            (None, _) => Level::Service,
            (Some(_), None) => Level::Bucket,
            (Some(_), Some(_)) => Level::Object,
        }
    }

    /// The bucket's name.
    pub(super) fn bucket(&self) -> Option<&str> {
        self.bucket.as_deref()
    }

    /// The key.
    pub(super) fn key(&self) -> Option<&Key<'h>> {
        self.key.as_ref()
    }

    /// Whether the pattern covers the bucket.
    pub(super) fn match_bucket<'s>(&'s self, pattern: &Pattern) -> Match<'s> {
        match &self.bucket {
            _ if self.anything => Match::Maybe,
            // The whole service: every bucket.
            None => Match::Maybe,
            Some(name) if pattern.rejects_first(name) => Match::No,
            Some(name) => {
                let segment = Segment {
                    text: name,
                    certain: true,
                };
                pattern.matches(std::iter::once(segment))
            }
        }
    }
}

impl<'h> Name<'h> {
    fn read(raw: &'h [u8]) -> Name<'h> {
        let decoded: Cow<'h, [u8]> = percent_decode(raw).into();
        let (text, utf8) = match decoded {
            Cow::Borrowed(bytes) => {
                let text = String::from_utf8_lossy(bytes);
                let utf8 = matches!(text, Cow::Borrowed(_));
                (text, utf8)
            }
            Cow::Owned(bytes) => match String::from_utf8(bytes) {
                Ok(text) => (text.into(), true),
                Err(error) => (
                    String::from_utf8_lossy(error.as_bytes())
                        .into_owned()
                        .into(),
                    false,
                ),
            },
        };
        let odd =
            |char: char| char.is_control() || matches!(char, '/' | '\\' | '?' | '#' | '%' | ';');
        let certain = utf8 && !text.contains(odd) && !raw.contains(&b'+');
        Name { text, certain }
    }
}

impl<'k> Key<'k> {
    /// Reads a key as it stands in a path.
    fn read(raw: &'k [u8]) -> Key<'k> {
        match std::str::from_utf8(raw) {
            Ok(text) if is_plain(raw) => Key::Plain(text),
            _ => Key::Decoded(Decoded::new(decode(raw))),
        }
    }

    /// Takes a key as it is: nothing in it is encoded.
    pub(super) fn verbatim(text: &'k str) -> Key<'k> {
        let certain = |text: &str| (text.to_owned(), !text.contains(char::is_control));
        Key::Decoded(Decoded::new(text.split('/').map(certain).collect()))
    }

    fn has_dots(&self) -> bool {
        matches!(self, Key::Decoded(decoded) if decoded.has_dots)
    }

    /// Whether the pattern covers it, under all readings together.
    pub(super) fn matches<'s>(&'s self, pattern: &Pattern) -> Match<'s> {
        match self {
            Key::Plain(text) => pattern.matches(text.split('/').map(|text| Segment {
                text,
                certain: true,
            })),
            Key::Decoded(decoded) => decoded.matches(pattern),
        }
    }
}

impl Decoded {
    fn new(segments: Vec<(String, bool)>) -> Decoded {
        let has_dots = segments.iter().any(|(text, _)| is_dots(text));
        let has_empty = segments.iter().any(|(text, _)| text.is_empty());
        Decoded {
            segments,
            has_dots,
            has_empty,
        }
    }

    fn matches<'s>(&'s self, pattern: &Pattern) -> Match<'s> {
        if self.has_dots {
            return Match::Maybe;
        }
        let raw = || {
            self.segments.iter().map(|(text, certain)| Segment {
                text,
                certain: *certain,
            })
        };
        let exact = pattern.matches(raw());
        if !self.has_empty {
            return exact;
        }
        exact.or(pattern.matches(raw().filter(|segment| !segment.text.is_empty())))
    }
}

fn is_dots(text: &str) -> bool {
    // Also before a NUL or another control character, where a reader in C would stop.
    let end = text.find(char::is_control).unwrap_or(text.len());
    matches!(&text[..end], "." | "..")
}

/// Whether no byte needs thought: no escape, plus sign, empty segment, or dot at a segment's start.
fn is_plain(key: &[u8]) -> bool {
    let mut previous = b'/';
    for &byte in key {
        let thoughtful = match byte {
            b'%' | b'+' => true,
            b'/' | b'.' => previous == b'/',
            _ => byte.is_ascii_control(),
        };
        if thoughtful {
            return false;
        }
        previous = byte;
    }
    previous != b'/'
}

/// The segments, decoded, and whether every backend reads each so.
fn decode(raw: &[u8]) -> Vec<(String, bool)> {
    let mut segments = vec![];
    for part in raw.split(|&byte| byte == b'/') {
        let bytes: Cow<'_, [u8]> = percent_decode(part).into();
        let text = String::from_utf8_lossy(&bytes);
        let utf8 = matches!(text, Cow::Borrowed(_));
        let certain = utf8
            && !text.contains(char::is_control)
            && !part.contains(&b'+')
            && escapes_are_whole(part);
        segments.extend(text.split('/').map(|text| (text.to_owned(), certain)));
    }
    segments
}

/// Whether each `%` begins an escape.
fn escapes_are_whole(raw: &[u8]) -> bool {
    let whole = |at: usize| {
        raw.get(at + 1..at + 3)
            .is_some_and(|pair| pair.iter().all(u8::is_ascii_hexdigit))
    };
    raw.iter()
        .enumerate()
        .all(|(at, &byte)| byte != b'%' || whole(at))
}
