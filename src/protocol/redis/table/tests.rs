use super::super::request::{RequestLimits, RequestScanner};
use super::{CommandClass, CommandTable, InvalidTable};

/// RESP of a list of texts.
fn texts(list: &[&str], marker: char) -> String {
    let bulks: String = list
        .iter()
        .map(|text| format!("${}\r\n{text}\r\n", text.len()))
        .collect();
    format!("{marker}{}\r\n{bulks}", list.len())
}

/// One key specification of an index and a range, as RESP2 or RESP3 tells it.
fn spec(version: u8, flags: &[&str], index: i64, range: [i64; 3]) -> String {
    let map = |pairs: usize| match version {
        2 => format!("*{}\r\n", 2 * pairs),
        _ => format!("%{pairs}\r\n"),
    };
    let list = if version == 2 { '*' } else { '~' };
    let [last, step, limit] = range;
    [
        map(3),
        format!("+flags\r\n{}", texts(flags, list)),
        format!("+begin_search\r\n{}+type\r\n+index\r\n+spec\r\n", map(2)),
        format!("{}+index\r\n:{index}\r\n", map(1)),
        format!("+find_keys\r\n{}+type\r\n+range\r\n+spec\r\n", map(2)),
        format!(
            "{}+lastkey\r\n:{last}\r\n+keystep\r\n:{step}\r\n+limit\r\n:{limit}\r\n",
            map(3)
        ),
    ]
    .concat()
}

fn command(version: u8, name: &str, flags: &[&str], specs: &[String], subs: &[String]) -> String {
    let list = if version == 2 { '*' } else { '~' };
    format!(
        "*10\r\n${}\r\n{name}\r\n:-2\r\n{}:0\r\n:0\r\n:0\r\n*0\r\n*0\r\n*{}\r\n{}*{}\r\n{}",
        name.len(),
        texts(flags, list),
        specs.len(),
        specs.concat(),
        subs.len(),
        subs.concat()
    )
}

fn reply(version: u8) -> Vec<u8> {
    let one = |flags: &[&str]| [spec(version, flags, 1, [0, 1, 0])];
    let all = |flags: &[&str]| [spec(version, flags, 1, [-1, 1, 0])];
    let read = ["RO", "access"];
    let write = ["RW", "update"];
    let xgroup = command(
        version,
        "xgroup|create",
        &["write"],
        &[spec(version, &write, 2, [0, 1, 0])],
        &[],
    );
    let commands = [
        command(version, "get", &["readonly"], &one(&read), &[]),
        command(version, "strlen", &["readonly"], &one(&["RO"]), &[]),
        command(version, "set", &["write", "denyoom"], &one(&write), &[]),
        command(version, "incr", &["write"], &one(&write), &[]),
        command(version, "mget", &["readonly"], &all(&read), &[]),
        command(version, "del", &["write"], &all(&["RM", "delete"]), &[]),
        command(
            version,
            "mset",
            &["write"],
            &[spec(version, &["OW", "update"], 1, [-1, 2, 0])],
            &[],
        ),
        command(
            version,
            "blpop",
            &["write", "blocking"],
            &[spec(version, &write, 1, [-2, 1, 0])],
            &[],
        ),
        command(
            version,
            "sunionstore",
            &["write"],
            &[
                spec(version, &["OW", "update"], 1, [0, 1, 0]),
                spec(version, &read, 2, [-1, 1, 0]),
            ],
            &[],
        ),
        // Its flags say read, its key specification says write.
        command(
            version,
            "pfcount",
            &["readonly"],
            &all(&["RW", "access"]),
            &[],
        ),
        // The other way round.
        command(version, "odd.pop", &["write", "module"], &one(&read), &[]),
        command(
            version,
            "odd.keys",
            &["write", "module", "movablekeys"],
            &[],
            &[],
        ),
        command(version, "odd.neither", &["module"], &one(&write), &[]),
        command(version, "xread", &["readonly", "blocking"], &[], &[]),
        command(version, "xreadgroup", &["write", "blocking"], &[], &[]),
        command(version, "spublish", &["pubsub"], &one(&["not_key"]), &[]),
        command(version, "xlisten", &["pubsub"], &[], &[]),
        command(version, "watch", &[], &all(&["RO"]), &[]),
        command(version, "xgroup", &[], &[], &[xgroup]),
        command(version, "dump", &["readonly"], &one(&read), &[]),
        command(
            version,
            "rename",
            &["write"],
            &[
                spec(version, &["RW", "delete"], 1, [0, 1, 0]),
                spec(version, &["OW", "update"], 2, [0, 1, 0]),
            ],
            &[],
        ),
    ];
    format!("*{}\r\n{}", commands.len(), commands.concat()).into_bytes()
}

/// A table of a few commands, as a server tells it.
pub(in crate::protocol::redis) fn sample() -> CommandTable {
    CommandTable::parse(&reply(2)).unwrap()
}

/// The name of the command that a line finds, and how many arguments it has.
fn find(table: &CommandTable, line: &str) -> (String, usize) {
    let line = format!("{line}\r\n");
    let mut scanner = RequestScanner::new(RequestLimits::default());
    scanner.scan(line.as_bytes()).unwrap();
    let (command, words) = table.find(&scanner.args(line.as_bytes()));
    (command.name.to_string(), words)
}

#[test]
fn both_versions_tell_the_same() {
    let (two, three) = (sample(), CommandTable::parse(&reply(3)).unwrap());
    assert_eq!(two.commands, three.commands);
    assert_eq!(two.names().count(), 22);
}

#[test]
fn names_have_any_case_and_subcommands_belong_to_them() {
    let table = sample();
    let is = |line: &str, name: &str, words: usize| {
        assert_eq!(find(&table, line), (name.to_owned(), words), "{line}");
    };
    is("GeT k", "get", 1);
    is("XGROUP Create k g 0", "xgroup|create", 2);
    is("xgroup other k", "unknown", 2);
    is("xgroup", "xgroup", 1);
    is("client KILL id 1", "client|kill", 2);
    is("nosuch a", "unknown", 1);
    is(&"x".repeat(65), "unknown", 1);
    is(&format!("client {}", "x".repeat(65)), "unknown", 2);
    is("\"\" a", "unknown", 1);
    // A name that looks like a subcommand is none.
    is("get|k v", "unknown", 1);
}

#[test]
fn flags_and_key_specifications_are_taken_together() {
    let table = sample();
    for (name, class) in [
        ("get", CommandClass::Read),
        ("set", CommandClass::Write),
        ("pfcount", CommandClass::Write),
        ("odd.pop", CommandClass::Write),
        ("odd.keys", CommandClass::Whole),
        ("odd.neither", CommandClass::Whole),
        ("nosuch", CommandClass::Whole),
        ("xgroup", CommandClass::Whole),
        ("xgroup|create", CommandClass::Write),
        ("spublish", CommandClass::Keyless),
        ("client|kill", CommandClass::Denied),
        ("watch", CommandClass::Connection),
        ("eval", CommandClass::ByArguments),
    ] {
        assert_eq!(table.class(name), class, "{name}");
    }
}

/// Redis before 7 tells first key, last key and step.
#[test]
fn an_older_server_tells_its_keys_by_places() {
    let old = "*3\r\n\
        *7\r\n$4\r\nmset\r\n:-3\r\n*1\r\n+write\r\n:1\r\n:-1\r\n:2\r\n*0\r\n\
        *6\r\n$3\r\nget\r\n:2\r\n*1\r\n+readonly\r\n:1\r\n:1\r\n:1\r\n\
        *7\r\n$11\r\nzunionstore\r\n:-4\r\n*2\r\n+write\r\n+movablekeys\r\n:0\r\n:0\r\n:0\r\n*0\r\n";
    let table = CommandTable::parse(old.as_bytes()).unwrap();
    assert_eq!(table.class("get"), CommandClass::Read);
    assert_eq!(table.class("mset"), CommandClass::Write);
    assert_eq!(table.class("zunionstore"), CommandClass::Whole);
}

#[test]
fn what_is_no_table_is_refused() {
    for bad in [
        "",
        "*0\r\n",
        "+OK\r\n",
        "-NOPERM no\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n*2\r\n+get\r\n:1\r\n",
        "*1\r\n*6\r\n:1\r\n:2\r\n*0\r\n:0\r\n:0\r\n:0\r\n",
        "*1\r\n*6\r\n+get\r\n:2\r\n*0\r\n:-1\r\n:0\r\n:0\r\n",
        "*1\r\n*3\r\n+get\r\n:2\r\n*0\r\n",
        "*1\r\n*9\r\n+g\r\n:2\r\n*0\r\n:0\r\n:0\r\n:0\r\n*0\r\n*0\r\n:1\r\n",
    ] {
        assert!(
            CommandTable::parse(bad.as_bytes()).is_err(),
            "{bad:?} was taken"
        );
    }
    let error = CommandTable::parse(b"*0\r\n").unwrap_err();
    assert_eq!(error, InvalidTable::Content("it is empty"));
}

#[test]
fn every_override_has_its_own_name_and_its_reason() {
    let mut names: Vec<_> = super::overrides::all().map(|known| known.name).collect();
    assert!(super::overrides::all().all(|known| !known.why.is_empty()));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(names.iter().all(|name| *name == name.to_ascii_lowercase()));
}
