//! The command table of a real server: what every command of it is taken for, and whether the keys
//! that are found are those that the server itself finds; and whether a conversation with it stays
//! in step.

mod classes;
mod in_step;
#[path = "../support/redis_server.rs"]
mod redis_server;
mod server;

use std::collections::BTreeSet;

use redis_server::RedisServer;
use ringfence::protocol::redis::{
    Action, CommandClass, CommandTable, Conversation, ConversationSettings, RedisRule, RedisRules,
    RequestLimits, RequestScanner, Value, encode_command,
};
use ringfence::protocol::{Kind, Unmatched};
use server::Server;

fn table(server: &Server, version: &str) -> CommandTable {
    let reply = server.connect(version).call(&["COMMAND"]);
    CommandTable::parse(&reply).expect("a command table")
}

/// The commands of a class, sorted.
fn of_class(table: &CommandTable, class: CommandClass) -> Vec<&str> {
    let mut names: Vec<&str> = table
        .names()
        .filter(|name| table.class(name) == class)
        .collect();
    names.sort_unstable();
    names
}

/// Reads are listed one by one: what is not in the list needs a ticket.
#[test]
fn every_command_has_its_class() {
    for which in RedisServer::ALL {
        let server = Server::start_as(&which.program());
        let table = table(&server, "2");
        let mut listed = 0;
        for (class, common) in classes::ALL {
            let added = classes::added(which).iter();
            let added = added.filter(|(other, _)| *other == class);
            let names = added.map(|(_, names)| *names).chain([common]);
            let mut expected: Vec<&str> = names.flat_map(str::split_whitespace).collect();
            expected.sort_unstable();
            listed += expected.len();
            assert_eq!(of_class(&table, class), expected, "{which:?} {class:?}");
        }
        assert_eq!(table.names().count(), listed, "{which:?}");
    }
}

#[test]
fn both_versions_of_the_protocol_tell_the_same_table() {
    let server = Server::start();
    let (two, three) = (table(&server, "2"), table(&server, "3"));
    let classes = |table: &CommandTable| -> BTreeSet<(String, CommandClass)> {
        let of = |name: &str| (name.to_owned(), table.class(name));
        table.names().map(of).collect()
    };
    assert_eq!(classes(&two), classes(&three));
    for line in COMMANDS {
        assert_eq!(written(&two, line), written(&three, line), "{line}");
    }
}

/// Commands whose keys hang on their arguments.
const COMMANDS: [&str; 61] = [
    "SET a 1",
    "SET a 1 GET",
    "SET a 1 NX EX 5",
    "GET a",
    "GETDEL a",
    "GETEX a PERSIST",
    "GETEX a",
    "MSET a 1 b 2 c 3",
    "MSETNX a 1 b 2",
    "MGET a b",
    "DEL a b c",
    "UNLINK a b",
    "EXISTS a b",
    "TOUCH a b",
    "RENAME a b",
    "RENAMENX a b",
    "COPY a b",
    "BLPOP a b c 0",
    "BRPOPLPUSH a b 0",
    "LMOVE a b LEFT LEFT",
    "BLMOVE a b LEFT LEFT 0",
    "LMPOP 2 a b LEFT",
    "BLMPOP 0 2 a b LEFT COUNT 1",
    "ZMPOP 1 a MIN",
    "BZMPOP 0 1 a MIN",
    "BZPOPMIN a b 0",
    "SINTERSTORE d a b",
    "SUNIONSTORE d a b",
    "SDIFFSTORE d a",
    "SMOVE a b m",
    "SINTERCARD 2 a b LIMIT 1",
    "ZUNIONSTORE d 2 a b WEIGHTS 1 2",
    "ZINTERSTORE d 1 a",
    "ZDIFFSTORE d 2 a b",
    "ZRANGESTORE d a 0 1",
    "ZUNION 2 a b",
    "GEOSEARCHSTORE d a FROMLONLAT 0 0 BYRADIUS 1 km",
    "GEORADIUS a 0 0 1 km STORE d",
    "GEORADIUSBYMEMBER a m 1 km STOREDIST d",
    "BITOP AND d a b",
    "BITFIELD a SET u8 0 1",
    "PFADD a x",
    "PFMERGE d a b",
    "PFCOUNT a b",
    "SORT a STORE d",
    "SORT a BY w_* LIMIT 0 1 STORE d",
    "XADD a * f v",
    "XGROUP CREATE a g $ MKSTREAM",
    "XGROUP DESTROY a g",
    "XACK a g 1-1",
    "XAUTOCLAIM a g c 0 0",
    "XREADGROUP GROUP g c COUNT 1 STREAMS a b > >",
    "XREAD STREAMS a b 0 0",
    "EVAL s 2 a b x",
    "EVALSHA x 1 a",
    "FCALL f 1 a x",
    "RESTORE a 0 x",
    "EXPIRE a 1",
    "PERSIST a",
    "MEMORY USAGE a",
    "OBJECT ENCODING a",
];

/// The same of servers after 7.0, where they have them.
const NEWER: [&str; 20] = [
    "HEXPIRE a 5 FIELDS 1 f",
    "HPEXPIRE a 5 FIELDS 1 f",
    "HEXPIREAT a 5 FIELDS 1 f",
    "HPEXPIREAT a 5 FIELDS 1 f",
    "HPERSIST a FIELDS 1 f",
    "HTTL a FIELDS 1 f",
    "HEXPIRETIME a FIELDS 1 f",
    "HGETEX a EX 5 FIELDS 1 f",
    "HGETEX a FIELDS 1 f",
    "HGETDEL a FIELDS 1 f",
    "HSETEX a EX 5 FIELDS 1 f v",
    "VADD a VALUES 1 1 e",
    "VREM a e",
    "VSETATTR a e {}",
    "SET a 1 IFEQ 2",
    "DELIFEQ a 1",
    "MSETEX 2 a 1 b 2 EX 5",
    "XDELEX a IDS 1 1-1",
    "XACKDEL a g IDS 1 1-1",
    "DELEX a IFEQ 1",
];

/// The keys that are taken for written: each is made the name of its own lock.
fn written(table: &CommandTable, line: &str) -> BTreeSet<String> {
    let rule = RedisRule::new("{key}", "{key}", None).unwrap();
    let rules = RedisRules::new(vec![rule], Unmatched::Pass);
    let args: Vec<&str> = line.split(' ').collect();
    let bytes = encode_command(&args);
    let mut scanner = RequestScanner::new(RequestLimits::default());
    scanner.scan(&bytes).unwrap();
    let conversation: Conversation<()> = Conversation::new(ConversationSettings::default());
    let plan = conversation
        .plan(&scanner.args(&bytes), table, &rules)
        .expect("all arguments are there");
    assert!(
        matches!(plan.action, Action::Forward(_)),
        "{line}: {:?}",
        plan.action
    );
    let locks = plan.locks.iter().map(|lock| lock.to_string());
    match plan.kind {
        Kind::Read => BTreeSet::new(),
        Kind::Write => locks.collect(),
    }
}

/// The keys that the server says a command writes, or all of one that only its command's flag says
/// writes.
fn told(server: &mut server::Connection, line: &str) -> BTreeSet<String> {
    let words = ["COMMAND", "GETKEYSANDFLAGS"];
    let args: Vec<&str> = words.into_iter().chain(line.split(' ')).collect();
    let reply = server.call(&args);
    let (value, _) = Value::parse(&reply).unwrap();
    let keys = value
        .as_array()
        .unwrap_or_else(|| panic!("{line}: {value:?}"));
    let is_written = |flags: &Value<'_>| {
        let written = ["RW", "OW", "RM", "insert", "update", "delete"];
        let flags = flags.as_array().unwrap_or_default().iter();
        flags
            .filter_map(Value::as_text)
            .any(|flag| written.iter().any(|known| known.as_bytes() == flag))
    };
    let name = |key: &Value<'_>| String::from_utf8(key.as_text().unwrap().to_vec()).unwrap();
    let pairs = keys.iter().filter_map(Value::as_array);
    pairs
        .filter(|pair| is_written(&pair[1]))
        .map(|pair| name(&pair[0]))
        .collect()
}

#[test]
fn the_keys_that_are_written_are_those_that_the_server_tells() {
    for which in RedisServer::ALL {
        compare_keys(&Server::start_as(&which.program()));
    }
    // What else is asked for.
    compare_keys(&Server::start());
}

fn compare_keys(server: &Server) {
    let table = table(server, "2");
    let mut connection = server.connect("2");
    let newer = NEWER.into_iter().filter(|line| {
        let name = line.split(' ').next().unwrap_or_default();
        table.names().any(|known| known.eq_ignore_ascii_case(name))
    });
    for line in COMMANDS.into_iter().chain(newer) {
        let expected = match line.split(' ').next() {
            // Told as read, though the group moves.
            Some("XREADGROUP") => ["a", "b"].map(str::to_owned).into(),
            _ => told(&mut connection, line),
        };
        assert_eq!(written(&table, line), expected, "{line}");
    }
}

/// A name that the server does not have, and a server whose table could not be had.
#[test]
fn what_the_table_does_not_have_may_write_anything() {
    let server = Server::start();
    assert_eq!(table(&server, "2").class("nosuch"), CommandClass::Whole);
    assert_eq!(CommandTable::empty().class("get"), CommandClass::Whole);
    assert_eq!(CommandTable::empty().class("psync"), CommandClass::Denied);
}
