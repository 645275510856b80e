//! The commands whose keys and meaning hang on their options, walked as the server walks them. Key
//! specifications look for a word anywhere, and can be led astray by a consumer named `STREAMS` or
//! by a second `STORE`.

use super::args::Args;
use super::key_spec::{Home, KeyUse, NeedsMore, argument};
use super::number::integer;

/// What the options of a command say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Options<'a> {
    /// As the server reads them.
    Read {
        /// Keys beside the ones at fixed places.
        keys: Vec<KeyUse<'a>>,
        /// `BY` and `GET`: patterns of keys that are read.
        patterns: Vec<&'a [u8]>,
        blocks: bool,
    },
    /// The server will refuse them; should it not, the command may write anything.
    Unknown,
}

fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

fn written(key: &[u8]) -> KeyUse<'_> {
    KeyUse {
        key,
        written: true,
        home: Home::Current,
    }
}

/// `SORT key [BY p] [LIMIT o n] [GET p]... [ASC|DESC] [ALPHA] [STORE key]` (`sortCommandGeneric`).
pub(super) fn sort<'a>(args: &Args<'a>) -> Result<Options<'a>, NeedsMore> {
    let (mut keys, mut patterns) = (vec![], vec![]);
    let mut at = 2;
    while let Some(option) = argument(args, at)? {
        at += 1;
        if is(option, "asc") || is(option, "desc") || is(option, "alpha") {
            continue;
        }
        let Some(value) = argument(args, at)? else {
            return Ok(Options::Unknown);
        };
        at += 1;
        if is(option, "limit") {
            at += 1;
        } else if is(option, "store") {
            // The last one counts; asking for the locks of all is safe.
            keys.push(written(value));
        } else if is(option, "by") || is(option, "get") {
            patterns.push(value);
        } else {
            return Ok(Options::Unknown);
        }
    }
    Ok(Options::Read {
        keys,
        patterns,
        blocks: false,
    })
}

/// `GEORADIUS key x y radius unit [options]`, `GEORADIUSBYMEMBER key member radius unit [options]`
/// (`georadiusGeneric`): the options begin at `from`.
pub(super) fn georadius<'a>(args: &Args<'a>, from: usize) -> Result<Options<'a>, NeedsMore> {
    let mut keys = vec![];
    let mut at = from;
    while let Some(option) = argument(args, at)? {
        at += 1;
        let flags = ["withdist", "withhash", "withcoord", "any", "asc", "desc"];
        if flags.iter().any(|flag| is(option, flag)) {
            continue;
        }
        let Some(value) = argument(args, at)? else {
            return Ok(Options::Unknown);
        };
        at += 1;
        if is(option, "store") || is(option, "storedist") {
            keys.push(written(value));
        } else if !is(option, "count") {
            return Ok(Options::Unknown);
        }
    }
    Ok(Options::Read {
        keys,
        patterns: vec![],
        blocks: false,
    })
}

/// `XREAD` and `XREADGROUP` (`xreadCommand`): the keys are the first half of what follows
/// `STREAMS`, wherever it stands among the options.
pub(super) fn xread<'a>(args: &Args<'a>, writes: bool) -> Result<Options<'a>, NeedsMore> {
    let mut blocks = false;
    let mut at = 1;
    while let Some(option) = argument(args, at)? {
        at += 1;
        if is(option, "block") {
            blocks = true;
            at += 1;
        } else if is(option, "count") || is(option, "claim") {
            at += 1;
        } else if is(option, "group") {
            at += 2;
        } else if is(option, "streams") {
            let rest = args.declared().saturating_sub(at);
            if rest == 0 || rest % 2 != 0 {
                return Ok(Options::Unknown);
            }
            let mut keys = Vec::with_capacity(1);
            for place in at..at + rest / 2 {
                let Some(key) = argument(args, place)? else {
                    return Ok(Options::Unknown);
                };
                keys.push(KeyUse {
                    key,
                    written: writes,
                    home: Home::Current,
                });
            }
            return Ok(Options::Read {
                keys,
                patterns: vec![],
                blocks,
            });
        } else if !is(option, "noack") {
            return Ok(Options::Unknown);
        }
    }
    Ok(Options::Unknown)
}

/// `COPY source destination [DB n] [REPLACE]`: the database of the destination.
pub(super) fn copy_home(args: &Args<'_>) -> Result<Home, NeedsMore> {
    let mut home = Home::Current;
    let mut at = 3;
    while let Some(option) = argument(args, at)? {
        at += 1;
        if is(option, "replace") {
            continue;
        }
        if !is(option, "db") {
            return Ok(Home::Any);
        }
        home = argument(args, at)?.map_or(Home::Any, home_of);
        at += 1;
    }
    Ok(home)
}

/// The database that an argument names.
pub(super) fn home_of(index: &[u8]) -> Home {
    database_index(index).map_or(Home::Any, Home::Other)
}

/// The index of a database, as `SELECT` reads it.
pub(super) fn database_index(text: &[u8]) -> Option<u32> {
    integer(text).and_then(|index| u32::try_from(index).ok())
}

/// Whether a `BITFIELD` only reads: all its operations are `GET` (`bitfieldGeneric`).
pub(super) fn bitfield_reads(args: &Args<'_>) -> bool {
    let mut at = 2;
    while at < args.declared() {
        match args.get(at) {
            Some(operation) if is(operation, "get") => at += 3,
            _ => return false,
        }
    }
    at == args.declared()
}
