//! Patterns of Redis keys. Keys are bytes: any bytes.
//!
//! A pattern is split at `:`. A segment is literal text; or text with one `{name}` in it, which
//! captures one byte or more, never `:`; or `*` alone, any bytes but `:`. The last segment may end
//! in `*`, alone or after text: the rest of the key, `:` included; so `job:{id}:*` covers
//! `job:7:a:b`. `{{` and `}}` stand for the braces of hash tags: `{{{id}}}:*` covers `{7}:a`.
//!
//! One wildcard a segment at most, so a key has one reading and nothing is searched for twice.

use std::fmt;

use crate::protocol::pattern::{CAPTURES_MAX, InvalidPattern, add_capture};

/// A compiled pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyPattern {
    text: Box<str>,
    parts: Vec<Part>,
    /// The key may go on after its last part, which begins so.
    rest: Option<Box<[u8]>>,
    captures: Vec<Box<str>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Literal(Box<[u8]>),
    Capture { before: Box<[u8]>, after: Box<[u8]> },
    Any,
}

/// The text before a capture, whether there is one, and the text after it.
type SegmentTexts = (Box<[u8]>, bool, Box<[u8]>);

/// Whether a pattern covers a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyMatch<'k> {
    No,
    /// It does, but a capture is empty: no lock can be named, and passing it as uncovered would be
    /// a way around the rule.
    EmptyCapture,
    Yes(KeyCaptures<'k>),
}

/// The captured bytes, in the order of their names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct KeyCaptures<'k> {
    texts: [&'k [u8]; CAPTURES_MAX],
    len: usize,
}

impl<'k> KeyCaptures<'k> {
    pub(super) fn as_slice(&self) -> &[&'k [u8]] {
        &self.texts[..self.len]
    }
}

impl KeyPattern {
    /// Compiles a pattern.
    pub fn new(text: &str) -> Result<KeyPattern, InvalidPattern> {
        let mut pattern = KeyPattern {
            text: text.into(),
            parts: vec![],
            rest: None,
            captures: vec![],
        };
        match pattern.add_segments(text) {
            Ok(()) => Ok(pattern),
            Err(reason) => Err(InvalidPattern {
                what: "key",
                text: text.to_owned(),
                reason,
            }),
        }
    }

    /// Whether it covers every key.
    pub(super) fn is_every_key(&self) -> bool {
        self.parts.is_empty() && self.rest.as_ref().is_some_and(|rest| rest.is_empty())
    }

    fn add_segments(&mut self, text: &str) -> Result<(), String> {
        if text.is_empty() {
            return Err("it is empty".to_owned());
        }
        let mut segments = text.split(':').peekable();
        while let Some(segment) = segments.next() {
            let last = segments.peek().is_none();
            match segment.strip_suffix('*') {
                Some("") if !last => self.parts.push(Part::Any),
                Some(before) if last => {
                    let (before, capture, _) = self.read_segment(before)?;
                    if capture {
                        return Err("`*` follows a capture in one segment".to_owned());
                    }
                    self.rest = Some(before);
                }
                _ => {
                    let (before, capture, after) = self.read_segment(segment)?;
                    self.parts.push(match capture {
                        true => Part::Capture { before, after },
                        false => Part::Literal(before),
                    });
                }
            }
        }
        Ok(())
    }

    fn read_segment(&mut self, segment: &str) -> Result<SegmentTexts, String> {
        let (mut texts, mut at) = ([String::new(), String::new()], 0);
        let mut rest = segment;
        while let Some(char) = rest.chars().next() {
            if let Some(brace) = ["{{", "}}"].iter().find(|brace| rest.starts_with(**brace)) {
                // `{{{id}}}`: the outer braces are the literal ones.
                texts[at].push_str(&brace[..1]);
                rest = &rest[2..];
                continue;
            }
            match char {
                '{' if at == 1 => return Err("two captures share a segment".to_owned()),
                '{' => {
                    let (name, after) = rest[1..]
                        .split_once('}')
                        .ok_or("a `{` stands alone: `{{` is a literal brace")?;
                    add_capture(&mut self.captures, name)?;
                    at = 1;
                    rest = after;
                }
                '}' => return Err("a `}` stands alone: `}}` is a literal brace".to_owned()),
                '*' => return Err("`*` has other text after it, or before it".to_owned()),
                char => {
                    texts[at].push(char);
                    rest = &rest[char.len_utf8()..];
                }
            }
        }
        let [before, after] = texts.map(|text| text.into_bytes().into_boxed_slice());
        Ok((before, at == 1, after))
    }

    /// The names of the captures, in order.
    pub(super) fn captures(&self) -> &[Box<str>] {
        &self.captures
    }

    /// Compares segment by segment.
    pub(super) fn matches<'k>(&self, key: &'k [u8]) -> KeyMatch<'k> {
        let mut captures = KeyCaptures::default();
        let mut empty = false;
        let mut rest = Some(key);
        for part in &self.parts {
            let Some(text) = rest else {
                return KeyMatch::No;
            };
            let end = text.iter().position(|&byte| byte == b':');
            let segment = &text[..end.unwrap_or(text.len())];
            match part {
                Part::Any => {}
                Part::Literal(literal) if **literal == *segment => {}
                Part::Literal(_) => return KeyMatch::No,
                Part::Capture { before, after } => {
                    let inner = segment.strip_prefix(&**before);
                    match inner.and_then(|inner| inner.strip_suffix(&**after)) {
                        None => return KeyMatch::No,
                        Some([]) => empty = true,
                        Some(captured) => {
                            // Patterns with more captures do not compile.
                            if let Some(slot) = captures.texts.get_mut(captures.len) {
                                *slot = captured;
                                captures.len += 1;
                            }
                        }
                    }
                }
            }
            rest = end.map(|end| &text[end + 1..]);
        }
        let whole = match (&self.rest, rest) {
            (None, None) => true,
            (Some(prefix), Some(text)) => text.starts_with(prefix),
            (None, Some(_)) | (Some(_), None) => false,
        };
        match (whole, empty) {
            (false, _) => KeyMatch::No,
            (true, true) => KeyMatch::EmptyCapture,
            (true, false) => KeyMatch::Yes(captures),
        }
    }
}

impl fmt::Display for KeyPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::{KeyMatch, KeyPattern};

    fn captured<'k>(pattern: &str, key: &'k [u8]) -> Option<Vec<&'k [u8]>> {
        match KeyPattern::new(pattern).unwrap().matches(key) {
            KeyMatch::Yes(captures) => Some(captures.as_slice().to_vec()),
            _ => None,
        }
    }

    #[test]
    fn segments_are_compared_whole() {
        let none: Vec<&[u8]> = vec![];
        assert_eq!(captured("job:{id}:*", b"job:7:a:b"), Some(vec![&b"7"[..]]));
        assert_eq!(captured("job:{id}:*", b"job:7:"), Some(vec![&b"7"[..]]));
        assert_eq!(captured("job:{id}:*", b"job:7"), None);
        assert_eq!(captured("job:{id}:*", b"jobs:7:a"), None);
        assert_eq!(captured("job:{id}", b"job:7:a"), None);
        assert_eq!(captured("*", b""), Some(none.clone()));
        assert_eq!(captured("*", b"a:\0\xff"), Some(none.clone()));
        assert_eq!(captured("a*", b"ab:c"), Some(none.clone()));
        assert_eq!(captured("a*", b"b"), None);
        assert_eq!(captured("a:*:z", b"a:x:z"), Some(none.clone()));
        assert_eq!(captured("a:*:z", b"a::z"), Some(none));
        assert_eq!(captured("a:*:z", b"a:x:y:z"), None);
        assert_eq!(
            captured("a:{x}:{y}", b"a:\xff:2"),
            Some(vec![&b"\xff"[..], b"2"])
        );
    }

    #[test]
    fn a_capture_may_have_text_around_it() {
        assert_eq!(
            captured("job-{id}:x", b"job-7-8:x"),
            Some(vec![&b"7-8"[..]])
        );
        assert_eq!(captured("{{{id}}}:*", b"{7}:x"), Some(vec![&b"7"[..]]));
        assert_eq!(captured("{{{id}}}:*", b"{a}b}:x"), Some(vec![&b"a}b"[..]]));
        assert_eq!(captured("{{{id}}}:*", b"7:x"), None);
        // The texts around it may not overlap.
        assert_eq!(captured("aa{id}aa", b"aaa"), None);
    }

    #[test]
    fn an_empty_capture_is_told_apart() {
        let matches = |key: &'static [u8]| KeyPattern::new("job:{id}:*").unwrap().matches(key);
        assert_eq!(matches(b"job::x"), KeyMatch::EmptyCapture);
        assert_eq!(matches(b"job:"), KeyMatch::No);
        assert_eq!(matches(b"x::x"), KeyMatch::No);
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for bad in [
            "", "a*b", "a*:b", "{a}*", "{a}{b}", "{a", "a}", "{}", "{a-b}", "{a}:{a}", "**",
        ] {
            assert!(KeyPattern::new(bad).is_err(), "{bad:?} was taken");
        }
    }
}
