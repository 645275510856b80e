//! The server's own command table, with the overrides laid over it.
//!
//! It is read from the reply to `COMMAND`, which every server has, of RESP2 or RESP3, with key
//! specifications (Redis 7) or without. A name that is in neither is of a module that was loaded
//! since, or of nothing: it may write anything.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use super::args::Args;
use super::key_spec::{Begin, Find, KeySpec};
use super::overrides;
use super::reply::ReplyError;
use super::treatment::Treatment;
use super::value::Value;

/// Longest command name that is looked up, with its subcommand.
const NAME_BYTES_MAX: usize = 64;

/// A reply that is no command table.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidTable {
    /// It is no reply.
    #[error("the reply to COMMAND is malformed: {0}")]
    Reply(#[from] ReplyError),
    /// It is another reply.
    #[error("the reply to COMMAND is no list of commands: {0}")]
    Content(&'static str),
}

/// One command or subcommand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Command {
    /// In lower case, a subcommand as `client|list`.
    pub(super) name: Arc<str>,
    pub(super) flags: Flags,
    pub(super) keys: Vec<KeySpec>,
    pub(super) treatment: Option<Treatment>,
    /// Why it is treated so.
    pub(super) why: &'static str,
}

/// The flags that are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Flags {
    pub(super) write: bool,
    pub(super) readonly: bool,
    pub(super) blocking: bool,
    /// The server has it. Without it, only the overrides do.
    pub(super) known: bool,
    pub(super) module: bool,
    pub(super) pubsub: bool,
    /// Has subcommands: the second argument belongs to the name.
    pub(super) container: bool,
    /// Keys that no specification tells.
    pub(super) movable: bool,
}

/// What is known of a command by its name alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CommandClass {
    /// It changes nothing.
    Read,
    /// It writes to the keys that it names.
    Write,
    /// Its arguments tell whether it writes, and where to.
    ByArguments,
    /// It changes something that no key names.
    Keyless,
    /// It may write to any key of a database or of all.
    Whole,
    /// It changes the state of its connection.
    Connection,
    /// It is not let through.
    Denied,
}

/// Commands by name.
#[derive(Clone, Debug)]
pub struct CommandTable {
    commands: HashMap<Box<[u8]>, Command, BuildHasherDefault<Fnv>>,
    unknown: Command,
}

/// FNV-1a: names are short, and the server's, not a client's.
#[derive(Clone, Copy)]
pub(super) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn write_usize(&mut self, _: usize) {
        // The length of a slice: its bytes tell it.
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl CommandTable {
    /// Reads the reply to `COMMAND`. Valid for one run of the server (`run_id`).
    pub fn parse(reply: &[u8]) -> Result<CommandTable, InvalidTable> {
        let (value, _) = Value::parse(reply)?;
        let commands = value
            .as_array()
            .ok_or(InvalidTable::Content("it is no array"))?;
        if commands.is_empty() {
            return Err(InvalidTable::Content("it is empty"));
        }
        let mut table = CommandTable::empty();
        for command in commands {
            table.add(command)?;
        }
        Ok(table)
    }

    /// The overrides alone: every other name may write anything.
    pub fn empty() -> CommandTable {
        let mut table = CommandTable {
            commands: HashMap::default(),
            unknown: Command {
                name: "unknown".into(),
                flags: Flags::default(),
                keys: vec![],
                treatment: None,
                why: "",
            },
        };
        for known in overrides::all() {
            let command = Command {
                name: known.name.into(),
                flags: Flags::default(),
                keys: vec![],
                treatment: Some(known.treatment),
                why: known.why,
            };
            table.commands.insert(known.name.as_bytes().into(), command);
            if let Some((container, _)) = known.name.split_once('|') {
                table.entry(container.as_bytes()).flags.container = true;
            }
        }
        table
    }

    fn entry(&mut self, name: &[u8]) -> &mut Command {
        self.commands.entry(name.into()).or_insert_with(|| Command {
            name: String::from_utf8_lossy(name).into(),
            flags: Flags::default(),
            keys: vec![],
            treatment: None,
            why: "",
        })
    }

    /// One element: name, arity, flags, first key, last key, step; from Redis 6 ACL categories;
    /// from Redis 7 tips, key specifications, subcommands.
    fn add(&mut self, command: &Value<'_>) -> Result<(), InvalidTable> {
        let fields = command
            .as_array()
            .ok_or(InvalidTable::Content("a command is no array"))?;
        let (Some(name), Some(flags)) = (fields.first(), fields.get(2)) else {
            return Err(InvalidTable::Content("a command lacks its name or flags"));
        };
        let name = name
            .as_text()
            .filter(|name| !name.is_empty() && name.len() <= NAME_BYTES_MAX)
            .ok_or(InvalidTable::Content("a command has no name"))?
            .to_ascii_lowercase();
        let has = |flag: &str| has_text(flags, flag);
        let mut keys = match fields.get(8) {
            Some(specs) => read_specs(specs)?,
            None => read_range(fields)?.into_iter().collect(),
        };
        let subcommands = fields.get(9).and_then(Value::as_array).unwrap_or_default();
        let known = self.entry(&name);
        known.flags = Flags {
            write: has("write"),
            readonly: has("readonly"),
            blocking: has("blocking"),
            known: true,
            module: has("module"),
            pubsub: has("pubsub"),
            container: known.flags.container || !subcommands.is_empty(),
            movable: has("movablekeys") && keys.is_empty(),
        };
        // XREADGROUP's specification says read while its command is flagged write: what is written
        // cannot be told apart then.
        if known.flags.write && !keys.iter().any(|spec| spec.written) {
            keys.iter_mut().for_each(|spec| spec.written = true);
        }
        known.keys = keys;
        subcommands.iter().try_for_each(|sub| self.add(sub))
    }

    /// The command that these arguments name, and how many of them do.
    pub(super) fn find(&self, args: &Args<'_>) -> (&Command, usize) {
        let mut name = [0; NAME_BYTES_MAX];
        let Some(first) = args.get(0) else {
            return (&self.unknown, 0);
        };
        let Some(slot) = name.get_mut(..first.len()) else {
            return (&self.unknown, 1);
        };
        slot.copy_from_slice(first);
        slot.make_ascii_lowercase();
        let Some(command) = self.commands.get(&*slot) else {
            return (&self.unknown, 1);
        };
        if !command.flags.container {
            return (command, 1);
        }
        let Some(second) = args.get(1) else {
            return (command, 1);
        };
        let (start, end) = (first.len() + 1, first.len() + 1 + second.len());
        let Some(slot) = name.get_mut(start..end) else {
            return (&self.unknown, 2);
        };
        slot.copy_from_slice(second);
        slot.make_ascii_lowercase();
        name[first.len()] = b'|';
        match self.commands.get(&name[..end]) {
            Some(command) => (command, 2),
            None => (&self.unknown, 2),
        }
    }

    /// What is known of the command of this name, a subcommand as `client|list`.
    pub fn class(&self, name: &str) -> CommandClass {
        let known = self.commands.get(name.as_bytes());
        let command = known.unwrap_or(&self.unknown);
        match command.treatment {
            None if command.only_reads() => CommandClass::Read,
            None if command.flags.write && !command.keys.is_empty() => CommandClass::Write,
            None if command.flags.readonly && command.writes() => CommandClass::Write,
            None | Some(Treatment::Server) => CommandClass::Whole,
            Some(Treatment::Read) => CommandClass::Read,
            Some(Treatment::Keyless) => CommandClass::Keyless,
            Some(Treatment::Denied) => CommandClass::Denied,
            Some(Treatment::Special(special)) => special.class(),
        }
    }

    /// The names of all commands, subcommands included, that the server has.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let known = self.commands.values().filter(|command| command.flags.known);
        known.map(|command| &*command.name)
    }
}

fn has_text(list: &Value<'_>, text: &str) -> bool {
    let is = |value: &Value<'_>| value.as_text() == Some(text.as_bytes());
    list.as_array().is_some_and(|list| list.iter().any(is))
}

/// Keys as Redis before 7 tells them: first, last, step.
fn read_range(fields: &[Value<'_>]) -> Result<Option<KeySpec>, InvalidTable> {
    let number = |at: usize| fields.get(at).and_then(Value::as_integer);
    let (Some(first), Some(last), Some(step)) = (number(3), number(4), number(5)) else {
        return Err(InvalidTable::Content("a command lacks its keys"));
    };
    let (Ok(first), Ok(step)) = (usize::try_from(first), usize::try_from(step)) else {
        return Err(InvalidTable::Content("a command's keys are malformed"));
    };
    if first == 0 {
        return Ok(None);
    }
    // Told as an argument's index; wanted as the distance from the first.
    let last = if last < 0 { last } else { last - first as i64 };
    let movable = fields
        .get(2)
        .is_some_and(|flags| has_text(flags, "movablekeys"));
    Ok(Some(KeySpec {
        begin: Begin::Index(first),
        find: Find::Range {
            last,
            step,
            limit: 0,
        },
        written: false,
        incomplete: movable,
    }))
}

fn read_specs(specs: &Value<'_>) -> Result<Vec<KeySpec>, InvalidTable> {
    let specs = specs
        .as_array()
        .ok_or(InvalidTable::Content("key specifications are no array"))?;
    let read = specs.iter().filter_map(|spec| read_spec(spec).transpose());
    read.collect()
}

/// None: it is about no key.
fn read_spec(spec: &Value<'_>) -> Result<Option<KeySpec>, InvalidTable> {
    let malformed = InvalidTable::Content("a key specification is malformed");
    let flags = spec.field("flags").ok_or(malformed.clone())?;
    let has = |flag: &str| has_text(flags, flag);
    if has("not_key") {
        return Ok(None);
    }
    let written = ["RW", "OW", "RM", "insert", "update", "delete"];
    let begin = spec.field("begin_search").ok_or(malformed.clone())?;
    let find = spec.field("find_keys").ok_or(malformed)?;
    Ok(Some(KeySpec {
        begin: read_begin(begin).unwrap_or(Begin::Unknown),
        find: read_find(find).unwrap_or(Find::Unknown),
        written: written.iter().any(|flag| has(flag)),
        incomplete: has("incomplete"),
    }))
}

fn kind<'a>(value: &Value<'a>) -> Option<&'a [u8]> {
    value.field("type").and_then(Value::as_text)
}

fn read_begin(begin: &Value<'_>) -> Option<Begin> {
    let spec = begin.field("spec")?;
    match kind(begin)? {
        b"index" => Some(Begin::Index(place(spec, "index")?)),
        b"keyword" => Some(Begin::Keyword {
            word: spec.field("keyword")?.as_text()?.into(),
            from: spec.field("startfrom")?.as_integer()?,
        }),
        _ => None,
    }
}

fn read_find(find: &Value<'_>) -> Option<Find> {
    let spec = find.field("spec")?;
    match kind(find)? {
        b"range" => Some(Find::Range {
            last: spec.field("lastkey")?.as_integer()?,
            step: place(spec, "keystep")?,
            limit: place(spec, "limit")?,
        }),
        b"keynum" => Some(Find::Count {
            at: place(spec, "keynumidx")?,
            first: place(spec, "firstkey")?,
            step: place(spec, "keystep")?,
        }),
        _ => None,
    }
}

/// A place or a step among arguments: small, so that sums of them cannot overflow.
fn place(spec: &Value<'_>, name: &str) -> Option<usize> {
    let number = spec.field(name)?.as_integer()?;
    u16::try_from(number).ok().map(usize::from)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
pub(super) use tests::sample as sample_table;
