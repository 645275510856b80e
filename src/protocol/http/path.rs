//! How a request's path is read for matching. The bytes that travel on stay as they came.
//!
//! Taken as the same path, since backends that tell them apart lose nothing by it: a
//! percent-encoded and a plain character (decoded once; RFC 3986 6.2.2.2), `//` and `/`, with and
//! without a slash at the end, a segment with and without `;parameters`, the absolute form and the
//! origin form of the target. Scheme and host play no part. Case counts, and `+` is itself (RFC
//! 3986 3.3): rules do not hold for a backend that ignores case in its paths or reads `+` there as
//! a space.
//!
//! Read differently by different backends, so that a write on it is refused where a rule could
//! cover it under one of the readings:
//! - a `.` or `..` segment in any spelling: nothing about the path is certain;
//! - from the segment that has it on: `%2F`, `\` or `%5C`, `%3F`, `%23`, a control character or
//!   `%00`, an escape that is none (`%zz`) or that decodes to another one (`%2561`), bytes that are
//!   not UTF-8 (overlong forms among them), a segment that begins with `;`;
//! - an empty segment (`//`) that a capture or `*` would match if slashes were not merged, and a
//!   leading `//`, which some read as the start of an authority.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use crate::protocol::pattern::{Match, Pattern, Segment};

/// Splits a target into path and query. `None`: neither origin form, absolute form nor `*` (RFC
/// 9112 3.2).
pub fn split_target(target: &[u8]) -> Option<(&[u8], &[u8])> {
    let target = match target {
        [b'/', ..] | b"*" => target,
        _ => after_authority(target)?,
    };
    match target.iter().position(|&byte| byte == b'?') {
        Some(at) => Some((&target[..at], &target[at + 1..])),
        None => Some((target, b"")),
    }
}

/// The path and query of an absolute form; its path may be empty (RFC 9110 4.2.3: then it is `/`,
/// of which the segments are none as well).
fn after_authority(target: &[u8]) -> Option<&[u8]> {
    let colon = target.iter().position(|&byte| byte == b':')?;
    let rest = target[colon..].strip_prefix(b"://")?;
    let scheme = &target[..colon];
    let known = scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https");
    let end = rest
        .iter()
        .position(|byte| b"/?\\".contains(byte))
        .unwrap_or(rest.len());
    // `http://host\path`: where the authority ends depends on the reader.
    let sound = end > 0 && rest.get(end) != Some(&b'\\');
    (known && sound).then(|| &rest[end..])
}

/// Whether the query asks for another method, as several frameworks allow: `_method=DELETE`.
pub fn overrides_method(query: &[u8]) -> bool {
    let names = query
        .split(|byte| matches!(byte, b'&' | b';'))
        .map(|pair| pair.split(|&byte| byte == b'=').next().unwrap_or(pair));
    for name in names {
        // Brackets and dots: PHP reads `.method` and ` method` as `_method`.
        let decoded: Cow<'_, [u8]> = percent_decode(name).into();
        if decoded.len() == "_method".len()
            && decoded[1..].eq_ignore_ascii_case(b"method")
            && b"_. +[".contains(&decoded[0])
        {
            return true;
        }
    }
    false
}

/// A path, read for matching.
pub enum Path<'a> {
    /// Every reader sees the same segments: the text between its first and its last slash, and the
    /// first of them.
    Plain(&'a str, &'a str),
    /// Anything else.
    Decoded(Decoded),
}

/// A path with encoded or unusual bytes.
pub struct Decoded {
    /// Empty ones included, those at the end left out.
    segments: Vec<(String, bool)>,
    /// It has a `.` or `..` segment.
    has_dots: bool,
    has_empty: bool,
}

impl<'a> Path<'a> {
    /// Reads the bytes before the `?`.
    pub fn read(path: &'a [u8]) -> Path<'a> {
        let body = path.strip_prefix(b"/").unwrap_or(path);
        match std::str::from_utf8(body) {
            Ok(text) if is_plain(body) => {
                let text = text.strip_suffix('/').unwrap_or(text);
                Path::Plain(text, text.split('/').next().unwrap_or(text))
            }
            _ => Path::Decoded(Decoded::read(body)),
        }
    }

    /// Whether the pattern covers it, under all readings together.
    pub fn matches<'s>(&'s self, pattern: &Pattern) -> Match<'s> {
        match self {
            Path::Plain("", _) => pattern.matches(std::iter::empty()),
            Path::Plain(_, first) if pattern.rejects_first(first) => Match::No,
            Path::Plain(text, _) => pattern.matches(text.split('/').map(|text| Segment {
                text,
                certain: true,
            })),
            Path::Decoded(decoded) => decoded.matches(pattern),
        }
    }
}

/// Whether no byte needs thought: no escape, parameter, empty segment, or dot at a segment's start.
fn is_plain(body: &[u8]) -> bool {
    let mut previous = b'/';
    for &byte in body {
        let thoughtful = match byte {
            b'%' | b';' | b'\\' | b'*' => true,
            b'/' | b'.' => previous == b'/',
            _ => byte.is_ascii_control(),
        };
        if thoughtful {
            return false;
        }
        previous = byte;
    }
    true
}

impl Decoded {
    fn read(body: &[u8]) -> Decoded {
        let mut segments: Vec<(String, bool)> = body
            .split(|&byte| byte == b'/')
            .map(decode_segment)
            .collect();
        while segments
            .last()
            .is_some_and(|(text, certain)| text.is_empty() && *certain)
        {
            segments.pop();
        }
        let has_dots = body.split(|&byte| byte == b'/').any(may_be_dots);
        let has_empty = segments
            .iter()
            .any(|(text, certain)| text.is_empty() && *certain);
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
        let filled = |segment: &Segment<'_>| !(segment.certain && segment.text.is_empty());
        let merged = pattern.matches(raw().filter(filled));
        if !self.has_empty {
            return merged;
        }
        let starts_empty = self
            .segments
            .first()
            .is_some_and(|(text, _)| text.is_empty());
        let as_authority = if starts_empty {
            pattern.matches(raw().skip(2).filter(filled))
        } else {
            Match::No
        };
        merged.or(pattern.matches(raw())).or(as_authority)
    }
}

/// The text of a segment, decoded once, and whether every backend reads it so.
fn decode_segment(raw: &[u8]) -> (String, bool) {
    let bytes: Cow<'_, [u8]> = percent_decode(raw).into();
    let text = String::from_utf8_lossy(&bytes);
    let utf8 = matches!(text, Cow::Borrowed(_));
    let odd = |char: char| char.is_control() || matches!(char, '/' | '\\' | '?' | '#');
    // `;x` alone would leave an empty segment.
    let certain = utf8
        && !text.contains(odd)
        && !text.starts_with(';')
        && escapes_are_whole(raw)
        && !has_escape(&bytes);
    let end = text.find(';').unwrap_or(text.len());
    let kept = if certain { &text[..end] } else { &text };
    (kept.to_owned(), certain)
}

/// Most rounds of decoding that are followed in the search for hidden dots.
const DECODING_ROUNDS_MAX: usize = 4;

/// Whether some reader, however often it decodes and wherever it splits, sees `.` or `..` here.
fn may_be_dots(raw: &[u8]) -> bool {
    let mut bytes = raw.to_vec();
    for _ in 0..DECODING_ROUNDS_MAX {
        if has_dots(&bytes) || has_overlong(&bytes) {
            return true;
        }
        let decoded: Cow<'_, [u8]> = percent_decode(&bytes).into();
        if *decoded == *bytes {
            // `%u002e`, which IIS decodes.
            return bytes
                .windows(2)
                .any(|pair| pair.eq_ignore_ascii_case(b"%u"));
        }
        bytes = decoded.into_owned();
    }
    true
}

fn has_dots(bytes: &[u8]) -> bool {
    let splits = |byte: &u8| byte.is_ascii_control() || b"/\\?#;".contains(byte);
    bytes
        .split(splits)
        .any(|part| matches!(part.trim_ascii(), b"." | b".."))
}

/// Overlong forms of ASCII characters, which lax decoders of UTF-8 take (RFC 3629 10).
fn has_overlong(bytes: &[u8]) -> bool {
    let overlong = |pair: &[u8]| {
        matches!(
            pair,
            [0xc0 | 0xc1, 0x80..=0xbf] | [0xe0, 0x80..=0x9f] | [0xf0, 0x80..=0x8f]
        )
    };
    bytes.windows(2).any(overlong)
}

/// Whether each `%` begins an escape.
fn escapes_are_whole(raw: &[u8]) -> bool {
    let percents = raw.iter().filter(|&&byte| byte == b'%').count();
    percents == escapes(raw)
}

/// Whether decoded text could be decoded again.
fn has_escape(bytes: &[u8]) -> bool {
    escapes(bytes) > 0
        || bytes
            .windows(2)
            .any(|pair| pair.eq_ignore_ascii_case(b"%u"))
}

fn escapes(bytes: &[u8]) -> usize {
    let escape = |window: &&[u8]| {
        window[0] == b'%' && window[1].is_ascii_hexdigit() && window[2].is_ascii_hexdigit()
    };
    bytes.windows(3).filter(escape).count()
}

#[cfg(test)]
mod tests;
