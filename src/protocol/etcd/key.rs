//! Keys and ranges of etcd, and the patterns of rules over them.
//!
//! A key is any bytes; etcd knows no segments. A pattern is literal text with
//!
//! | part | stands for |
//! |---|---|
//! | `{name}` | one byte or more, up to the next `/` or what follows in the pattern; captured |
//! | `*` | the same, not captured |
//! | `*` or `**` at the end | the rest of the key, which may be nothing, slashes included |
//!
//! so `job:{id}:*` covers `job:7:state`, and `tenant/{id}/**` covers `tenant/7/a/b`.
//!
//! **Ranges.** A range is covered where it *may* hold a key that the pattern covers. All keys of a
//! range begin with their longest common prefix; where that fixes what a rule's lock is built from,
//! the lock is known, and otherwise it cannot be told ([`Cover::Maybe`]).

use crate::protocol::pattern::{Captures, InvalidPattern, add_capture};

/// The keys that a request is about: one, or those from `key` up to, without, an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRange<'a> {
    key: &'a [u8],
    end: End<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End<'a> {
    /// The key alone.
    Key,
    Before(&'a [u8]),
    Never,
}

impl<'a> KeyRange<'a> {
    /// As etcd reads `key` and `range_end` (API reference, `RangeRequest`): no end is the key
    /// alone, the end `\0` is none.
    pub fn new(key: &'a [u8], range_end: &'a [u8]) -> KeyRange<'a> {
        let end = match range_end {
            [] => End::Key,
            [0] => End::Never,
            // Nothing lies between a key and the same with a NUL behind it.
            [rest @ .., 0] if rest == key => End::Key,
            range_end => End::Before(range_end),
        };
        KeyRange { key, end }
    }

    /// One key.
    pub fn one(key: &'a [u8]) -> KeyRange<'a> {
        KeyRange { key, end: End::Key }
    }

    /// Its first key.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The key, if it is one alone.
    pub fn as_key(&self) -> Option<&'a [u8]> {
        (self.end == End::Key).then_some(self.key)
    }

    /// What etcd is told as `range_end`.
    pub fn range_end(&self) -> &'a [u8] {
        match self.end {
            End::Key => &[],
            End::Before(end) => end,
            End::Never => &[0],
        }
    }

    /// Whether no key can be in it.
    pub fn is_empty(&self) -> bool {
        matches!(self.end, End::Before(end) if end <= self.key)
    }

    /// Whether this key is in it.
    pub fn holds(&self, key: &[u8]) -> bool {
        match self.end {
            End::Key => self.key == key,
            End::Before(end) => self.key <= key && key < end,
            End::Never => self.key <= key,
        }
    }

    /// Whether it holds a key that is at least `from` and below `to` (`None`: without an end).
    pub fn meets(&self, from: &[u8], to: Option<&[u8]>) -> bool {
        let begins_before = to.is_none_or(|to| self.key < to);
        begins_before
            && match self.end {
                End::Key => self.key >= from,
                End::Before(end) => end > from && !self.is_empty(),
                End::Never => true,
            }
    }

    /// What is left of it below `from` and at or above `to`.
    pub fn around(
        &self,
        from: &'a [u8],
        to: &'a [u8],
    ) -> (Option<KeyRange<'a>>, Option<KeyRange<'a>>) {
        if !self.meets(from, Some(to)) {
            return (Some(*self), None);
        }
        let below = (self.key < from).then_some(KeyRange {
            key: self.key,
            end: End::Before(from),
        });
        let above = match self.end {
            End::Before(end) if end > to => Some(End::Before(end)),
            End::Never => Some(End::Never),
            End::Key | End::Before(_) => None,
        };
        (below, above.map(|end| KeyRange { key: to, end }))
    }

    /// What all of its keys begin with.
    fn common_prefix(&self) -> &'a [u8] {
        let End::Before(end) = self.end else {
            return if self.end == End::Key { self.key } else { &[] };
        };
        let same = self.key.iter().zip(end).take_while(|(a, b)| a == b).count();
        // `[.., b, ..]` up to `[.., b + 1]`: everything between begins with `[.., b]`.
        let next = match (self.key.get(same), end.get(same)) {
            (Some(key), Some(end_byte)) => {
                end.len() == same + 1 && key.checked_add(1) == Some(*end_byte)
            }
            _ => false,
        };
        &self.key[..same + usize::from(next)]
    }
}

/// The first key after all that begin with this prefix; `None`: there is none.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let at = prefix.iter().rposition(|byte| *byte < 0xff)?;
    let mut end = prefix[..=at].to_vec();
    end[at] += 1;
    Some(end)
}

/// Whether a pattern covers a key, or may cover a key of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cover<'a> {
    /// No key of it.
    No,
    /// The key, or keys of the range; all captures are known.
    Yes {
        /// The captured texts.
        captures: Captures<'a>,
        /// Every key of the range is covered.
        whole: bool,
    },
    /// It may; only so many captures are known, from the first.
    Maybe(Captures<'a>, usize),
}

/// A compiled pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyPattern {
    parts: Vec<Part>,
    captures: Vec<Box<str>>,
    /// Every key that it covers begins so.
    literal: Vec<u8>,
    literal_end: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Literal(Box<[u8]>),
    /// One byte or more, none of them `/` or this.
    Some {
        captured: bool,
        stop: u8,
    },
    Rest,
}

impl KeyPattern {
    /// Compiles a pattern.
    pub fn new(text: &str) -> Result<KeyPattern, InvalidPattern> {
        let invalid = |reason: &str| InvalidPattern {
            what: "key",
            text: text.to_owned(),
            reason: reason.to_owned(),
        };
        if text.is_empty() {
            return Err(invalid("it is empty"));
        }
        let mut pattern = KeyPattern {
            parts: vec![],
            captures: vec![],
            literal: vec![],
            literal_end: None,
        };
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}', '*']) {
            let (literal, special) = rest.split_at(at);
            pattern.add_literal(literal);
            rest = pattern
                .add_special(special)
                .map_err(|reason| invalid(&reason))?;
        }
        pattern.add_literal(rest);
        if let Some(Part::Literal(literal)) = pattern.parts.first() {
            pattern.literal = literal.to_vec();
        }
        pattern.literal_end = prefix_end(&pattern.literal);
        Ok(pattern)
    }

    fn add_literal(&mut self, text: &str) {
        if !text.is_empty() {
            self.parts.push(Part::Literal(text.as_bytes().into()));
        }
    }

    fn add_special<'t>(&mut self, text: &'t str) -> Result<&'t str, String> {
        if matches!(text, "*" | "**") {
            self.parts.push(Part::Rest);
            return Ok("");
        }
        if matches!(self.parts.last(), Some(Part::Some { .. })) {
            return Err("nothing stands between two `{name}` or `*`".to_owned());
        }
        let (captured, rest) = match text.strip_prefix('*') {
            Some(rest) => (None, rest),
            None => {
                let named = text.strip_prefix('{').and_then(|rest| rest.split_once('}'));
                let (name, rest) = named.ok_or("a `{` or `}` stands alone")?;
                (Some(name), rest)
            }
        };
        if rest.starts_with("*") && captured.is_none() {
            return Err("`**` is not its end".to_owned());
        }
        if let Some(name) = captured {
            add_capture(&mut self.captures, name)?;
        }
        self.parts.push(Part::Some {
            captured: captured.is_some(),
            stop: rest.bytes().next().unwrap_or(b'/'),
        });
        Ok(rest)
    }

    /// The names of the captures, in order.
    pub fn captures(&self) -> &[Box<str>] {
        &self.captures
    }

    /// Whether the pattern may cover a key of the range.
    pub fn cover<'a>(&self, range: KeyRange<'a>) -> Cover<'a> {
        if range.is_empty() || !range.meets(&self.literal, self.literal_end.as_deref()) {
            return Cover::No;
        }
        self.cover_prefix(range.common_prefix(), range.as_key().is_some())
    }

    /// `whole_key`: the prefix is a key itself, and the only one.
    fn cover_prefix<'a>(&self, prefix: &'a [u8], whole_key: bool) -> Cover<'a> {
        let mut rest = prefix;
        let (mut captures, mut known) = (Captures::default(), 0);
        let mut empty = false;
        for part in &self.parts {
            match part {
                Part::Literal(text) => match rest.strip_prefix(&**text) {
                    Some(after) => rest = after,
                    // More may follow in the keys of a range.
                    None if !whole_key && text.starts_with(rest) => {
                        return Cover::Maybe(captures, known);
                    }
                    None => return Cover::No,
                },
                Part::Rest if empty => return Cover::Maybe(captures, known),
                Part::Rest => return self.covered(captures, known, true),
                Part::Some { captured, stop } => {
                    let end = rest.iter().position(|byte| *byte == b'/' || byte == stop);
                    if end.is_none() && !whole_key {
                        return Cover::Maybe(captures, known);
                    }
                    let (text, after) = rest.split_at(end.unwrap_or(rest.len()));
                    // Matching nothing is not what the rule's author meant; passing it as uncovered
                    // would be a way around the rule.
                    empty |= text.is_empty();
                    match (captured, std::str::from_utf8(text)) {
                        (false, _) => {}
                        (true, Ok(text)) if !empty => {
                            captures.push(text);
                            known += 1;
                        }
                        (true, _) => empty = true,
                    }
                    rest = after;
                }
            }
        }
        match (rest.is_empty(), empty) {
            (false, _) => Cover::No,
            (true, true) => Cover::Maybe(captures, known),
            (true, false) => self.covered(captures, known, whole_key),
        }
    }

    fn covered<'a>(&self, captures: Captures<'a>, known: usize, whole: bool) -> Cover<'a> {
        match known == self.captures.len() {
            true => Cover::Yes { captures, whole },
            false => Cover::Maybe(captures, known),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cover, KeyPattern, KeyRange, prefix_end};

    fn cover(pattern: &str, key: &[u8], end: &[u8]) -> String {
        let pattern = KeyPattern::new(pattern).unwrap();
        match pattern.cover(KeyRange::new(key, end)) {
            Cover::No => "no".to_owned(),
            Cover::Yes { captures, whole } => format!("{:?} {whole}", captures.as_slice()),
            Cover::Maybe(captures, known) => format!("maybe {:?}", &captures.as_slice()[..known]),
        }
    }

    #[test]
    fn keys_are_covered_as_the_pattern_says() {
        let key = |pattern, key: &str| cover(pattern, key.as_bytes(), b"");
        assert_eq!(key("orders", "orders"), "[] true");
        assert_eq!(key("orders", "orders/1"), "no");
        assert_eq!(key("job:{id}:*", "job:7:state"), r#"["7"] true"#);
        assert_eq!(key("job:{id}:*", "job:7:"), r#"["7"] true"#);
        assert_eq!(key("job:{id}:*", "job:7"), "no");
        assert_eq!(key("job:{id}:*", "job:a/b:x"), "no");
        assert_eq!(key("t/{a}/x/{b}", "t/1/x/2"), r#"["1", "2"] true"#);
        assert_eq!(key("t/{a}/x/{b}", "t/1/x/2/3"), "no");
        assert_eq!(key("t/*/x", "t/1/x"), "[] true");
        assert_eq!(key("t/{a}/**", "t/1/a/b"), r#"["1"] true"#);
        assert_eq!(key("t/{a}/**", "t/1"), "no");
        assert_eq!(key("**", "anything"), "[] true");
        // Nothing where something should be: neither covered nor passed.
        assert_eq!(key("t/{a}/**", "t//x"), "maybe []");
        assert_eq!(key("t/*/x", "t//x"), "maybe []");
    }

    #[test]
    fn bytes_that_are_no_text_are_compared_as_bytes() {
        assert_eq!(cover("jobs/{id}", b"\xff\xfe", b""), "no");
        assert_eq!(cover("jobs/*", b"jobs/\xff", b""), "[] true");
        assert_eq!(cover("jobs/{id}", b"jobs/\xff", b""), "maybe []");
    }

    #[test]
    fn a_range_that_may_hold_a_covered_key_is_covered() {
        let range = |pattern, key: &str, end: &str| cover(pattern, key.as_bytes(), end.as_bytes());
        // Everything, from a key on, around.
        for (key, end) in [("\0", "\0"), ("a", "\0"), ("a", "z"), ("job", "job0")] {
            assert_ne!(range("job/{id}/**", key, end), "no", "{key} {end}");
        }
        for (key, end) in [
            ("k", "\0"),
            ("a", "b"),
            ("a", "job"),
            ("job0", "z"),
            ("z", "a"),
        ] {
            assert_eq!(range("job/{id}/**", key, end), "no", "{key} {end}");
        }
        // All keys below job/7/.
        assert_eq!(range("job/{id}/**", "job/7/", "job/70"), r#"["7"] true"#);
        assert_eq!(range("job/{id}/**", "job/7/a", "job/7/c"), r#"["7"] true"#);
        assert_eq!(range("job/{id}/x", "job/7/", "job/70"), r#"maybe ["7"]"#);
        // job/7, job/71, ...
        assert_eq!(range("job/{id}/**", "job/7", "job/8"), "maybe []");
        assert_eq!(range("job/{id}", "job/7", "job/7\0"), r#"["7"] true"#);
        assert_eq!(range("orders", "orders", "orders0"), "[] false");
    }

    #[test]
    fn a_range_is_split_around_another() {
        let around = |key: &str, end: &str| {
            let range = KeyRange::new(key.as_bytes(), end.as_bytes());
            let (below, above) = range.around(b"f/", b"f0");
            let show = |range: KeyRange<'_>| {
                let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                (text(range.key()), text(range.range_end()))
            };
            (below.map(show), above.map(show))
        };
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(around("a", "z"), (pair("a", "f/"), pair("f0", "z")));
        assert_eq!(around("\0", "\0"), (pair("\0", "f/"), pair("f0", "\0")));
        assert_eq!(around("f/x", "z"), (None, pair("f0", "z")));
        assert_eq!(around("a", "f/x"), (pair("a", "f/"), None));
        assert_eq!(around("f/x", ""), (None, None));
        assert_eq!(around("f/", "f0"), (None, None));
        assert_eq!(around("g", "z"), (pair("g", "z"), None));
        assert_eq!(around("f", ""), (pair("f", ""), None));
    }

    #[test]
    fn the_end_of_a_prefix_is_the_next_key() {
        assert_eq!(prefix_end(b"a/"), Some(b"a0".to_vec()));
        assert_eq!(prefix_end(b"a\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for bad in [
            "", "{", "}", "{}", "a{b", "{a}{b}", "{a}*b", "*{a}", "**a", "{a}/{a}", "{a-b}",
        ] {
            assert!(KeyPattern::new(bad).is_err(), "{bad:?} was taken");
        }
    }
}
