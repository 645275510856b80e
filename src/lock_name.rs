//! Lock names and the patterns that rules use to build and to match them.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// Longest lock name, in bytes of UTF-8.
pub const LOCK_NAME_BYTES_MAX: usize = 255;
/// Most patterns that one proxy registers for. With their quotes they fit into a record of a store
/// (256 KiB), and each grant compares its name with all of them.
pub const PATTERNS_MAX: usize = 1000;

/// A lock's name, which is also the name of the resource that it guards: 1 to 255 bytes of UTF-8,
/// segments split by `/`, no empty segment, no control character, no `.` or `..` segment.
///
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

/// Why a text is no lock name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid lock name {name:?}: {reason}")]
pub struct InvalidLockName {
    /// What was given, cut to 64 characters.
    pub name: String,
    /// The rule that it breaks.
    pub reason: &'static str,
}

impl LockName {
    /// Checks the text.
    pub fn new(text: &str) -> Result<LockName, InvalidLockName> {
        match broken_rule(text) {
            None => Ok(LockName(text.into())),
            Some(reason) => Err(InvalidLockName {
                name: text.chars().take(64).collect(),
                reason,
            }),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn broken_rule(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("it is empty");
    }
    if text.len() > LOCK_NAME_BYTES_MAX {
        return Some("it is longer than 255 bytes");
    }
    if text.chars().any(char::is_control) {
        return Some("it has a control character");
    }
    for segment in text.split('/') {
        match segment {
            "" => return Some("it has an empty segment"),
            "." | ".." => return Some("it has a `.` or `..` segment"),
            _ => {}
        }
    }
    None
}

impl std::str::FromStr for LockName {
    type Err = InvalidLockName;

    fn from_str(text: &str) -> Result<LockName, InvalidLockName> {
        LockName::new(text)
    }
}

impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// A set of lock names: `orders`, `tenant/*` (`*` is exactly one segment), `tenant/**` (`**`, last
/// only, is one segment or more).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockPattern(String);

impl LockPattern {
    /// Checks the text. It obeys the rules of a lock name; `*` and `**` stand for whole segments.
    pub fn new(text: &str) -> Result<LockPattern, InvalidLockName> {
        LockName::new(text)?;
        let invalid = |reason| InvalidLockName {
            name: text.chars().take(64).collect(),
            reason,
        };
        let mut segments = text.split('/').peekable();
        while let Some(segment) = segments.next() {
            match segment {
                "*" => {}
                "**" if segments.peek().is_none() => {}
                "**" => return Err(invalid("`**` is not its last segment")),
                _ if segment.contains('*') => {
                    return Err(invalid("`*` shares a segment with other text"));
                }
                _ => {}
            }
        }
        Ok(LockPattern(text.to_owned()))
    }

    /// The text of the pattern.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the name is one of the set.
    pub fn matches(&self, name: &LockName) -> bool {
        let mut names = name.as_str().split('/');
        for pattern in self.0.split('/') {
            match (pattern, names.next()) {
                ("**", rest) => return rest.is_some(),
                ("*", Some(_)) => {}
                (pattern, Some(segment)) if pattern == segment => {}
                _ => return false,
            }
        }
        names.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_pass_and_names_that_do_not() {
        for good in [
            "a",
            "orders",
            "tenant/42/ledger",
            "ü/ß",
            "a b",
            "...",
            &"x".repeat(255),
        ] {
            assert!(LockName::new(good).is_ok(), "{good:?} was refused");
        }
        let long = "x".repeat(256);
        for bad in [
            "", "/", "a/", "/a", "a//b", ".", "a/../b", "a/.", "a\nb", "a\0", "\u{7f}", &long,
        ] {
            assert!(LockName::new(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn patterns_match_whole_segments() {
        let matches = |pattern: &str, name: &str| {
            LockPattern::new(pattern)
                .unwrap()
                .matches(&LockName::new(name).unwrap())
        };
        assert!(matches("orders", "orders"));
        assert!(!matches("orders", "orders/1"));
        assert!(matches("tenant/*", "tenant/42"));
        assert!(!matches("tenant/*", "tenant/42/x"));
        assert!(!matches("tenant/*", "tenant"));
        assert!(matches("tenant/**", "tenant/42/x"));
        assert!(!matches("tenant/**", "tenant"));
        assert!(matches("**", "anything/at/all"));
        assert!(LockPattern::new("a/**/b").is_err());
        assert!(LockPattern::new("a/x*").is_err());
    }
}
