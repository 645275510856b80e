//! The patterns of rules, and the lock names that they give.
//!
//! A pattern is split at `/`. A segment is literal text, `{name}` (one non-empty segment, captured)
//! or `*` (one non-empty segment). The last may be `**`: the rest, which may be nothing. In the key
//! of an S3 rule the last segment may instead end in `*`, alone or after text: the rest of the key,
//! slashes included, as in S3's own prefixes; so `in/{day}/*` covers `in/7/a/b`.
//!
//! Patterns are compiled once and compare whole segments of *decoded* text: no regular expression,
//! no backtracking, no allocation.
//!
//! Invariant: a segment whose text depends on who reads it is never said to match or not to match
//! where that would decide ([`Match::Maybe`]).

use std::fmt;

use crate::lock_name::{InvalidLockName, LOCK_NAME_BYTES_MAX, LockName, LockPattern};

/// Most captures of one rule, over all its patterns.
pub const CAPTURES_MAX: usize = 8;

/// Which text a pattern is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// The path of an HTTP request: begins with `/`.
    Path,
    /// The name of an S3 bucket: one segment.
    Bucket,
    /// The key of an S3 object.
    Key,
    /// The names of a Postgres database, schema or table: a segment each.
    Names,
}

impl Subject {
    const fn as_str(self) -> &'static str {
        match self {
            Subject::Path => "path",
            Subject::Bucket => "bucket",
            Subject::Key => "key",
            Subject::Names => "name",
        }
    }
}

/// A compiled pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    text: Box<str>,
    parts: Vec<Part>,
    tail: Tail,
    captures: Vec<Box<str>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Literal(Box<str>),
    Capture,
    Any,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Tail {
    /// Nothing more.
    End,
    /// Zero segments or more.
    Rest,
    /// A segment that begins so, then anything.
    Prefix(Box<str>),
}

/// A text that is no pattern, or no lock of a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what} {text:?}: {reason}")]
pub struct InvalidPattern {
    /// `path`, `bucket`, `key` or `lock`.
    pub what: &'static str,
    /// What was given.
    pub text: String,
    /// The rule that it breaks.
    pub reason: String,
}

/// One decoded segment of the text that is matched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment<'a> {
    /// Its text, decoded once.
    pub text: &'a str,
    /// Whether every backend reads the same text here, and the same segments before it.
    pub certain: bool,
}

/// Whether a pattern covers a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Match<'a> {
    /// Under no reading.
    No,
    /// Under some reading, or with a capture that is empty.
    Maybe,
    /// Under every reading, with these captures.
    Yes(Captures<'a>),
}

impl<'a> Match<'a> {
    /// Both readings of one text together: where only one of them is covered, its locks are asked
    /// for, which is safe under either; where both are and differ, nothing is decided.
    pub fn or(self, other: Match<'a>) -> Match<'a> {
        match (self, other) {
            (Match::No, only) | (only, Match::No) => only,
            (one, two) if one == two => one,
            _ => Match::Maybe,
        }
    }
}

/// The captured texts, in the order of their names in the pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Captures<'a> {
    texts: [&'a str; CAPTURES_MAX],
    len: usize,
}

impl<'a> Captures<'a> {
    /// These texts, at most [`CAPTURES_MAX`].
    pub(super) fn of(texts: &[&'a str]) -> Captures<'a> {
        let mut captures = Captures::default();
        texts.iter().for_each(|text| captures.push(text));
        captures
    }

    pub(super) fn push(&mut self, text: &'a str) {
        // Patterns with more captures do not compile.
        if let Some(slot) = self.texts.get_mut(self.len) {
            *slot = text;
            self.len += 1;
        }
    }

    /// These and then those: a rule of two patterns.
    pub fn then(mut self, other: Captures<'a>) -> Captures<'a> {
        for text in other.as_slice() {
            self.push(text);
        }
        self
    }

    /// The texts.
    pub fn as_slice(&self) -> &[&'a str] {
        &self.texts[..self.len]
    }
}

impl Pattern {
    /// Compiles a pattern.
    pub fn new(subject: Subject, text: &str) -> Result<Pattern, InvalidPattern> {
        let invalid = |reason: String| InvalidPattern {
            what: subject.as_str(),
            text: text.to_owned(),
            reason,
        };
        let body = match subject {
            Subject::Path => text
                .strip_prefix('/')
                .ok_or_else(|| invalid("it does not begin with `/`".to_owned()))?,
            Subject::Bucket if text.contains('/') || text == "**" => {
                return Err(invalid("a bucket's name is one segment".to_owned()));
            }
            Subject::Names if text.contains("**") => {
                return Err(invalid("`**` has no place in a name".to_owned()));
            }
            Subject::Bucket | Subject::Key | Subject::Names => text,
        };
        let mut pattern = Pattern {
            text: text.into(),
            parts: vec![],
            tail: Tail::End,
            captures: vec![],
        };
        // `/` alone is the root: no segment at all.
        if !(subject == Subject::Path && body.is_empty()) {
            let mut segments = body.split('/').peekable();
            while let Some(segment) = segments.next() {
                let last = segments.peek().is_none();
                pattern.add(subject, segment, last).map_err(invalid)?;
            }
        }
        Ok(pattern)
    }

    fn add(&mut self, subject: Subject, segment: &str, last: bool) -> Result<(), String> {
        let prefix = segment
            .strip_suffix('*')
            .filter(|_| last && subject == Subject::Key);
        match (segment, prefix) {
            ("**", _) if last => self.tail = Tail::Rest,
            ("**", _) => return Err("`**` is not its last segment".to_owned()),
            (_, Some(prefix)) => {
                if !prefix.is_empty() {
                    check_literal(subject, prefix)?;
                }
                self.tail = Tail::Prefix(prefix.into());
            }
            ("*", None) => self.parts.push(Part::Any),
            (_, None) => match segment
                .strip_prefix('{')
                .and_then(|rest| rest.strip_suffix('}'))
            {
                Some(name) => {
                    add_capture(&mut self.captures, name)?;
                    self.parts.push(Part::Capture);
                }
                None => {
                    check_literal(subject, segment)?;
                    self.parts.push(Part::Literal(segment.into()));
                }
            },
        }
        Ok(())
    }

    /// The names of the captures, in order.
    pub fn captures(&self) -> &[Box<str>] {
        &self.captures
    }

    /// Whether it can be told from this first segment alone that nothing matches. Most rules are
    /// not about the request at hand: this is what they cost.
    pub(super) fn rejects_first(&self, first: &str) -> bool {
        matches!(self.parts.first(), Some(Part::Literal(text)) if **text != *first)
    }

    /// Compares segment by segment.
    pub fn matches<'a>(&self, mut segments: impl Iterator<Item = Segment<'a>>) -> Match<'a> {
        let mut captures = Captures::default();
        let mut empty_wildcard = false;
        for part in &self.parts {
            let Some(segment) = segments.next() else {
                return Match::No;
            };
            if !segment.certain {
                return Match::Maybe;
            }
            match part {
                Part::Literal(text) if **text == *segment.text => {}
                Part::Literal(_) => return Match::No,
                // Matching nothing is not what the rule's author meant; passing it as uncovered
                // would be a way around the rule.
                Part::Any | Part::Capture if segment.text.is_empty() => empty_wildcard = true,
                Part::Any => {}
                Part::Capture => captures.push(segment.text),
            }
        }
        let tail = match (&self.tail, segments.next()) {
            (Tail::Rest, _) | (Tail::End, None) => true,
            (_, Some(segment)) if !segment.certain => return Match::Maybe,
            (Tail::End, Some(_)) | (Tail::Prefix(_), None) => false,
            (Tail::Prefix(prefix), Some(segment)) => segment.text.starts_with(&**prefix),
        };
        match (tail, empty_wildcard) {
            (false, _) => Match::No,
            (true, true) => Match::Maybe,
            (true, false) => Match::Yes(captures),
        }
    }

    /// The text when the pattern is one literal segment.
    pub(super) fn as_literal(&self) -> Option<&str> {
        match (self.parts.as_slice(), &self.tail) {
            ([Part::Literal(text)], Tail::End) => Some(text),
            _ => None,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn check_literal(subject: Subject, segment: &str) -> Result<(), String> {
    match segment {
        "" => return Err("it has an empty segment, or ends in `/`".to_owned()),
        "." | ".." => return Err("it has a `.` or `..` segment".to_owned()),
        _ => {}
    }
    for char in segment.chars() {
        match char {
            '*' => return Err("`*` shares a segment with other text".to_owned()),
            '{' | '}' => return Err("`{name}` is not a segment of its own".to_owned()),
            _ if char.is_control() => return Err("it has a control character".to_owned()),
            // What a path has only in encoded or ambiguous form cannot match.
            '%' if subject == Subject::Path => {
                return Err("it has `%`: patterns are written decoded".to_owned());
            }
            ';' | '\\' | '?' | '#' if subject == Subject::Path => {
                return Err(format!("it has `{char}`, which backends read differently"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Adds a capture's name to those of a pattern.
pub(super) fn add_capture(captures: &mut Vec<Box<str>>, name: &str) -> Result<(), String> {
    check_capture_name(name)?;
    if captures.iter().any(|known| **known == *name) {
        return Err(format!("`{{{name}}}` is captured twice"));
    }
    if captures.len() == CAPTURES_MAX {
        return Err(format!("it captures more than {CAPTURES_MAX} texts"));
    }
    captures.push(name.into());
    Ok(())
}

fn check_capture_name(name: &str) -> Result<(), String> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(word) {
        return Err(format!(
            "`{{{name}}}` is no name: letters, digits and `_` make one"
        ));
    }
    Ok(())
}

/// The lock of a rule: a lock name in which `{name}` stands for a captured text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockTemplate {
    parts: Vec<TemplatePart>,
    fixed: Option<LockName>,
    pattern: LockPattern,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum TemplatePart {
    Text(Box<str>),
    /// The capture at this place.
    Capture(usize),
}

impl LockTemplate {
    /// Compiles the lock of a rule whose patterns capture these names, in order.
    pub fn new(text: &str, captures: &[Box<str>]) -> Result<LockTemplate, InvalidPattern> {
        let invalid = |reason: String| InvalidPattern {
            what: "lock",
            text: text.to_owned(),
            reason,
        };
        if text.contains('*') {
            return Err(invalid(
                "a rule's lock is one lock: `*` has no place in it".to_owned(),
            ));
        }
        let parts = template_parts(text, captures).map_err(invalid)?;
        // Its fixed parts must make a name with any capture, so with this one.
        let sample: String = parts
            .iter()
            .map(|part| part.text(&["x"; CAPTURES_MAX]))
            .collect();
        let sample = LockName::new(&sample).map_err(|error| invalid(error.reason.to_owned()))?;
        let any = |segment: &str| if segment.contains('{') { "*" } else { segment }.to_owned();
        let pattern = text.split('/').map(any).collect::<Vec<_>>().join("/");
        let pattern = LockPattern::new(&pattern).map_err(|error| invalid(error.to_string()))?;
        let fixed = parts
            .iter()
            .all(|part| matches!(part, TemplatePart::Text(_)));
        Ok(LockTemplate {
            parts,
            fixed: fixed.then_some(sample),
            pattern,
        })
    }

    /// The lock with these captures; an error when a captured text has no place in a lock's name.
    pub fn build(&self, captures: &Captures<'_>) -> Result<LockName, InvalidLockName> {
        if let Some(name) = &self.fixed {
            return Ok(name.clone());
        }
        let texts = captures.as_slice();
        for part in &self.parts {
            if let TemplatePart::Capture(_) = part {
                check_capture(part.text(texts))?;
            }
        }
        let mut name = String::with_capacity(LOCK_NAME_BYTES_MAX);
        name.extend(self.parts.iter().map(|part| part.text(texts)));
        LockName::new(&name)
    }

    /// The lock, where no capture is in it.
    pub fn fixed(&self) -> Option<&LockName> {
        self.fixed.as_ref()
    }

    /// The highest place of a capture that it uses, plus one.
    pub(super) fn captures_used(&self) -> usize {
        let place = |part: &TemplatePart| match part {
            TemplatePart::Text(_) => 0,
            TemplatePart::Capture(at) => at + 1,
        };
        self.parts.iter().map(place).max().unwrap_or(0)
    }

    /// Every lock that it can give: each segment with a capture is `*`.
    pub fn lock_pattern(&self) -> &LockPattern {
        &self.pattern
    }
}

impl TemplatePart {
    fn text<'a>(&'a self, captures: &[&'a str]) -> &'a str {
        match self {
            TemplatePart::Text(text) => text,
            TemplatePart::Capture(at) => captures.get(*at).copied().unwrap_or(""),
        }
    }
}

fn template_parts(text: &str, captures: &[Box<str>]) -> Result<Vec<TemplatePart>, String> {
    let mut parts = vec![];
    let mut rest = text;
    while let Some(open) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(open);
        if !before.is_empty() {
            parts.push(TemplatePart::Text(before.into()));
        }
        let (name, after) = from
            .strip_prefix('{')
            .and_then(|inner| inner.split_once('}'))
            .ok_or("a `{` or `}` stands alone")?;
        check_capture_name(name)?;
        let at = captures.iter().position(|known| **known == *name);
        let at = at.ok_or_else(|| format!("no pattern of the rule captures `{{{name}}}`"))?;
        parts.push(TemplatePart::Capture(at));
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(TemplatePart::Text(rest.into()));
    }
    Ok(parts)
}

/// A captured text must fill its place in the name and nothing more, or `a/{x}` could be led to
/// another lock. What else a name forbids is looked for in the whole of it.
fn check_capture(text: &str) -> Result<(), InvalidLockName> {
    let reason = match text {
        "" => "a captured text is empty",
        "." | ".." => "a captured text is `.` or `..`",
        _ if text.contains('/') => "a captured text has a `/`",
        _ => return Ok(()),
    };
    Err(InvalidLockName {
        name: text.chars().take(64).collect(),
        reason,
    })
}

#[cfg(test)]
mod tests;
