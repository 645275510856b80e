//! What a command does to data: read or write, which keys, how far.
//!
//! Flags of the command and of its key specifications are taken together: where either says write
//! it is a write. Neither is a write to anything, unless the overrides say otherwise.

use super::args::Args;
use super::key_spec::{Home, KeyUse, NeedsMore, argument};
use super::number::integer;
use super::options::{self, Options};
use super::table::Command;
use super::treatment::{Special, Treatment};
use crate::protocol::Kind;

/// How far a write goes beyond the keys that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    /// Not at all.
    Keys,
    /// All keys of these databases.
    Databases(Home, Home),
    /// All keys of all databases.
    Server,
}

/// What a command does to data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Class<'a> {
    pub(super) kind: Kind,
    pub(super) reach: Reach,
    pub(super) keys: Vec<KeyUse<'a>>,
    /// Patterns of keys that it reads.
    pub(super) patterns: Vec<&'a [u8]>,
    /// It may wait at the server.
    pub(super) blocks: bool,
}

impl<'a> Class<'a> {
    fn new(kind: Kind, reach: Reach, keys: Vec<KeyUse<'a>>) -> Class<'a> {
        Class {
            kind,
            reach,
            keys,
            patterns: vec![],
            blocks: false,
        }
    }

    /// Of a command that does this to these keys and to nothing else.
    pub(super) fn of_keys(kind: Kind, keys: Vec<KeyUse<'a>>) -> Class<'a> {
        Class::new(kind, Reach::Keys, keys)
    }

    pub(super) fn read() -> Class<'a> {
        Class::new(Kind::Read, Reach::Keys, vec![])
    }

    fn keyless_write() -> Class<'a> {
        Class::new(Kind::Write, Reach::Keys, vec![])
    }

    fn databases(one: Home, other: Home) -> Class<'a> {
        Class::new(Kind::Write, Reach::Databases(one, other), vec![])
    }

    pub(super) fn server() -> Class<'a> {
        Class::new(Kind::Write, Reach::Server, vec![])
    }
}

impl Command {
    /// Whether it can be told without its arguments that it is no write.
    pub(super) fn only_reads(&self) -> bool {
        match self.treatment {
            Some(Treatment::Read) => true,
            None => self.flags.readonly && !self.writes(),
            Some(_) => false,
        }
    }

    pub(super) fn writes(&self) -> bool {
        self.flags.write || self.keys.iter().any(|spec| spec.written)
    }

    /// What it does with these arguments.
    pub(super) fn classify<'a>(&self, args: &Args<'a>) -> Result<Class<'a>, NeedsMore> {
        let mut class = match self.treatment {
            None => self.by_flags(args)?,
            Some(Treatment::Read) => {
                let mut class = Class::read();
                self.add_keys(args, &mut class.keys)?;
                class
            }
            Some(Treatment::Keyless) => Class::keyless_write(),
            // A denied command that is permitted by name is as bad as any can be.
            Some(Treatment::Server | Treatment::Denied) => Class::server(),
            Some(Treatment::Special(special)) => self.special(special, args)?,
        };
        class.blocks |= self.flags.blocking && !is_xread(self.treatment);
        Ok(class)
    }

    fn by_flags<'a>(&self, args: &Args<'a>) -> Result<Class<'a>, NeedsMore> {
        let kind = match (self.writes(), self.flags.readonly) {
            // The command itself says so; a key specification alone does not make the command of
            // a module a write to these keys only.
            (true, true) => Kind::Write,
            (true, false) if self.flags.write => Kind::Write,
            (false, true) => Kind::Read,
            _ => return Ok(Class::server()),
        };
        let mut class = Class::new(kind, Reach::Keys, vec![]);
        let all = self.add_keys(args, &mut class.keys)?;
        if kind == Kind::Write && (!all || class.keys.is_empty()) {
            return Ok(Class::server());
        }
        Ok(class)
    }

    /// Adds the keys that the specifications tell. False: there may be more.
    fn add_keys<'a>(&self, args: &Args<'a>, keys: &mut Vec<KeyUse<'a>>) -> Result<bool, NeedsMore> {
        let mut all = !self.flags.movable;
        for spec in &self.keys {
            all &= spec.find(args, spec.written, keys)?;
        }
        Ok(all)
    }

    fn special<'a>(&self, special: Special, args: &Args<'a>) -> Result<Class<'a>, NeedsMore> {
        match special {
            Special::Eval { writes } => eval(args, writes),
            Special::Sort => {
                match options::sort(args)? {
                    // The server refuses to write in SORT_RO.
                    Options::Unknown if self.flags.readonly => Ok(Class::read()),
                    options => with_options(args, options),
                }
            }
            Special::GeoRadius { options } => {
                let options = options::georadius(args, options)?;
                with_options(args, options)
            }
            Special::XRead { writes } => match options::xread(args, writes)? {
                Options::Unknown if writes => Ok(Class::server()),
                Options::Unknown => Ok(Class::read()),
                Options::Read { keys, blocks, .. } => {
                    let kind = if writes { Kind::Write } else { Kind::Read };
                    let class = Class::new(kind, Reach::Keys, keys);
                    Ok(Class { blocks, ..class })
                }
            },
            Special::BitField => {
                let mut class = self.one_key(args, 1)?;
                if options::bitfield_reads(args) {
                    class.kind = Kind::Read;
                    class.keys.iter_mut().for_each(|key| key.written = false);
                }
                Ok(class)
            }
            Special::Copy => copy(args),
            Special::Move => {
                let mut class = self.one_key(args, 1)?;
                let home = argument(args, 2)?.map_or(Home::Any, options::home_of);
                let moved = class.keys.first().map(|key| KeyUse { home, ..*key });
                class.keys.extend(moved);
                Ok(class)
            }
            Special::SwapDb => {
                let home = |at| Ok(argument(args, at)?.map_or(Home::Any, options::home_of));
                Ok(Class::databases(home(1)?, home(2)?))
            }
            Special::FlushDb => Ok(Class::databases(Home::Current, Home::Current)),
            Special::AclLog => match argument(args, 2)? {
                Some(arg) if arg.eq_ignore_ascii_case(b"reset") => Ok(Class::server()),
                _ => Ok(Class::read()),
            },
            Special::Wait => Ok(Class {
                blocks: true,
                ..Class::read()
            }),
            // `EXEC` needs what was queued: the conversation knows that.
            _ => {
                let mut class = Class::read();
                self.add_keys(args, &mut class.keys)?;
                Ok(class)
            }
        }
    }

    /// A write to the key at a place.
    fn one_key<'a>(&self, args: &Args<'a>, at: usize) -> Result<Class<'a>, NeedsMore> {
        let Some(key) = argument(args, at)? else {
            return Ok(Class::server());
        };
        Ok(Class::new(Kind::Write, Reach::Keys, vec![written(key)]))
    }
}

fn is_xread(treatment: Option<Treatment>) -> bool {
    matches!(treatment, Some(Treatment::Special(Special::XRead { .. })))
}

fn written(key: &[u8]) -> KeyUse<'_> {
    KeyUse {
        key,
        written: true,
        home: Home::Current,
    }
}

/// `EVAL script count key...`: the declared keys, of any database, for a script can `SELECT`.
fn eval<'a>(args: &Args<'a>, writes: bool) -> Result<Class<'a>, NeedsMore> {
    let kind = if writes { Kind::Write } else { Kind::Read };
    let none = || {
        if writes {
            Class::server()
        } else {
            Class::read()
        }
    };
    let Some(count) = argument(args, 2)? else {
        return Ok(none());
    };
    let count = integer(count).and_then(|count| usize::try_from(count).ok());
    let Some(count) = count.filter(|count| (1..=args.declared()).contains(count)) else {
        return Ok(none());
    };
    let mut keys = Vec::with_capacity(count.min(args.len()));
    for at in 3..3 + count {
        let Some(key) = argument(args, at)? else {
            return Ok(none());
        };
        keys.push(KeyUse {
            key,
            written: writes,
            home: Home::Any,
        });
    }
    Ok(Class::new(kind, Reach::Keys, keys))
}

/// `SORT` and `GEORADIUS`: a write when the options name a destination.
fn with_options<'a>(args: &Args<'a>, options: Options<'a>) -> Result<Class<'a>, NeedsMore> {
    let Options::Read { keys, patterns, .. } = options else {
        return Ok(Class::server());
    };
    let kind = if keys.is_empty() {
        Kind::Read
    } else {
        Kind::Write
    };
    let mut class = Class::new(kind, Reach::Keys, keys);
    class.patterns = patterns;
    if let Some(source) = argument(args, 1)? {
        class.keys.push(KeyUse {
            written: false,
            ..written(source)
        });
    }
    Ok(class)
}

fn copy<'a>(args: &Args<'a>) -> Result<Class<'a>, NeedsMore> {
    let (Some(source), Some(destination)) = (argument(args, 1)?, argument(args, 2)?) else {
        return Ok(Class::server());
    };
    let source = KeyUse {
        written: false,
        ..written(source)
    };
    let destination = KeyUse {
        home: options::copy_home(args)?,
        ..written(destination)
    };
    let keys = vec![source, destination];
    Ok(Class::new(Kind::Write, Reach::Keys, keys))
}
