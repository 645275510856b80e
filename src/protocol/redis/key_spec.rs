//! Which arguments of a command are keys: by the key specifications of the server's own command
//! table (Redis 7, "Key specifications"), or by first, last and step of older ones.

use super::args::Args;
use super::number::integer;

/// The arguments that decide are not there yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeedsMore;

/// The database of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Home {
    /// The connection's.
    Current,
    /// One that the command names.
    Other(u32),
    /// It cannot be told.
    Any,
}

/// A key that a command names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeyUse<'a> {
    pub(super) key: &'a [u8],
    pub(super) written: bool,
    pub(super) home: Home,
}

/// Where to begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Begin {
    Index(usize),
    /// After this word, looked for from a place; from the end where that is negative.
    Keyword {
        word: Box<[u8]>,
        from: i64,
    },
    Unknown,
}

/// Which arguments from there on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Find {
    /// Up to the last, from the beginning or, where negative, from the end. With a limit above 1
    /// that part of the arguments only.
    Range {
        last: i64,
        step: usize,
        limit: usize,
    },
    /// As many as an argument says.
    Count {
        at: usize,
        first: usize,
        step: usize,
    },
    Unknown,
}

/// One key specification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KeySpec {
    pub(super) begin: Begin,
    pub(super) find: Find,
    pub(super) written: bool,
    /// Keys may be left out by it.
    pub(super) incomplete: bool,
}

/// The argument at a place: none where there never will be one.
pub(super) fn argument<'a>(args: &Args<'a>, at: usize) -> Result<Option<&'a [u8]>, NeedsMore> {
    match args.get(at) {
        None if at < args.declared() => Err(NeedsMore),
        found => Ok(found),
    }
}

impl KeySpec {
    /// Adds the keys. False: it cannot be told whether these are all.
    pub(super) fn find<'a>(
        &self,
        args: &Args<'a>,
        written: bool,
        keys: &mut Vec<KeyUse<'a>>,
    ) -> Result<bool, NeedsMore> {
        let begin = match &self.begin {
            Begin::Index(at) => *at,
            Begin::Unknown => return Ok(false),
            Begin::Keyword { word, from } => match after_keyword(args, word, *from)? {
                Some(at) => at,
                // An option that is not given names no key.
                None => return Ok(!self.incomplete),
            },
        };
        let (first, count, step) = match self.find {
            Find::Unknown => return Ok(false),
            Find::Range { last, step, limit } => {
                let Some(count) = range_count(args.declared(), begin, last, step, limit) else {
                    return Ok(false);
                };
                (begin, count, step)
            }
            Find::Count { at, first, step } => {
                let Some(text) = argument(args, begin + at)? else {
                    return Ok(false);
                };
                let count = integer(text).and_then(|count| usize::try_from(count).ok());
                // The server refuses more keys than there are arguments.
                match count.filter(|count| *count <= args.declared()) {
                    Some(count) => (begin + first, count, step),
                    None => return Ok(false),
                }
            }
        };
        for nth in 0..count {
            let Some(key) = argument(args, first + nth * step)? else {
                return Ok(false);
            };
            keys.push(KeyUse {
                key,
                written,
                home: Home::Current,
            });
        }
        Ok(!self.incomplete)
    }
}

/// How many keys a range has; none where it has no sense for so many arguments.
fn range_count(args: usize, first: usize, last: i64, step: usize, limit: usize) -> Option<usize> {
    let (first, args) = (i64::try_from(first).ok()?, i64::try_from(args).ok()?);
    let last = match (last, limit) {
        (0.., _) => first + last,
        (_, 0 | 1) => args + last,
        (_, limit) => first + (args - first) / i64::try_from(limit).ok()? + last,
    };
    let places = usize::try_from(last - first).ok()?;
    (step > 0).then(|| places / step + 1)
}

/// The place after a word, where it is (`getKeysUsingKeySpecs`).
fn after_keyword(args: &Args<'_>, word: &[u8], from: i64) -> Result<Option<usize>, NeedsMore> {
    let declared = args.declared();
    let is_word = |at: usize| -> Result<bool, NeedsMore> {
        Ok(argument(args, at)?.is_some_and(|arg| arg.eq_ignore_ascii_case(word)))
    };
    match usize::try_from(from) {
        Ok(from) => {
            for at in from..declared {
                if is_word(at)? {
                    return Ok(Some(at + 1));
                }
            }
        }
        Err(_) => {
            let back = usize::try_from(from.unsigned_abs()).unwrap_or(usize::MAX);
            for at in (1..=declared.saturating_sub(back)).rev() {
                if is_word(at)? {
                    return Ok(Some(at + 1));
                }
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::{Begin, Find, KeySpec, NeedsMore};
    use crate::protocol::redis::request::{RequestLimits, RequestScanner};

    /// The keys of a command of which so many bytes are there.
    fn keys(spec: &KeySpec, command: &str, bytes: usize) -> Result<Option<Vec<String>>, NeedsMore> {
        let parts: Vec<&str> = command.split(' ').collect();
        let mut text = format!("*{}\r\n", parts.len());
        for part in parts {
            text += &format!("${}\r\n{part}\r\n", part.len());
        }
        let there = &text.as_bytes()[..bytes.min(text.len())];
        let mut scanner = RequestScanner::new(RequestLimits::default());
        scanner.scan(there).unwrap();
        let mut found = vec![];
        let all = spec.find(&scanner.args(there), true, &mut found)?;
        let text = |found: &super::KeyUse<'_>| String::from_utf8(found.key.to_vec()).unwrap();
        Ok(all.then(|| found.iter().map(text).collect()))
    }

    fn spec(begin: Begin, find: Find) -> KeySpec {
        KeySpec {
            begin,
            find,
            written: true,
            incomplete: false,
        }
    }

    fn range(first: usize, last: i64, step: usize, limit: usize) -> KeySpec {
        spec(Begin::Index(first), Find::Range { last, step, limit })
    }

    fn found(spec: &KeySpec, command: &str) -> Option<String> {
        keys(spec, command, usize::MAX)
            .unwrap()
            .map(|keys| keys.join(","))
    }

    #[test]
    fn ranges_count_from_either_end() {
        let is = |spec: &KeySpec, command, expected: &str| {
            assert_eq!(found(spec, command).as_deref(), Some(expected), "{command}");
        };
        is(&range(1, 0, 1, 0), "SET k v", "k");
        is(&range(1, -1, 2, 0), "MSET a 1 b 2", "a,b");
        is(&range(1, -2, 1, 0), "BLPOP a b 0", "a,b");
        is(&range(2, -1, 1, 0), "SUNIONSTORE d a b", "a,b");
        is(&range(1, 1, 1, 0), "RENAME a b", "a,b");
        let streams = |from| {
            let word = (*b"STREAMS").into();
            let find = Find::Range {
                last: -1,
                step: 1,
                limit: 2,
            };
            spec(Begin::Keyword { word, from }, find)
        };
        is(&streams(1), "XREAD COUNT 1 streams a b 0 0", "a,b");
        is(&streams(-2), "XREAD COUNT 1 streams a 0", "a");
        is(&streams(1), "XREAD COUNT 1", "");
        assert_eq!(found(&range(1, -2, 1, 0), "BLPOP"), None);
        assert_eq!(found(&range(1, 0, 1, 0), "SET"), None);
    }

    #[test]
    fn counted_keys_are_as_many_as_said() {
        let counted = spec(
            Begin::Index(2),
            Find::Count {
                at: 0,
                first: 1,
                step: 1,
            },
        );
        assert_eq!(found(&counted, "EVAL s 2 a b c").as_deref(), Some("a,b"));
        assert_eq!(found(&counted, "EVAL s 0").as_deref(), Some(""));
        for bad in [
            "EVAL s",
            "EVAL s -1 a",
            "EVAL s 01 a",
            "EVAL s 2 a",
            "EVAL s 9999999999 a",
        ] {
            assert_eq!(found(&counted, bad), None, "{bad}");
        }
        assert_eq!(found(&spec(Begin::Unknown, Find::Unknown), "X a"), None);
        assert_eq!(found(&spec(Begin::Index(1), Find::Unknown), "X a"), None);
    }

    #[test]
    fn a_key_that_is_still_to_come_is_waited_for() {
        let set = range(1, 0, 1, 0);
        let header = "*3\r\n$3\r\nSET\r\n$1\r\n".len();
        assert_eq!(keys(&set, "SET k v", header), Err(NeedsMore));
        assert_eq!(
            keys(&set, "SET k v", header + 3),
            Ok(Some(vec!["k".to_owned()]))
        );
        let mset = range(1, -1, 2, 0);
        assert_eq!(keys(&mset, "MSET a 1 b 2", 30), Err(NeedsMore));
    }
}
