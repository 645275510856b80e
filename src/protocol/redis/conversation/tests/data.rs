//! Which locks a command needs.

use super::super::super::encode;
use super::{
    Action, Code, ConversationSettings, Filter, Kind, NeedsMore, ReservedKeys, Scripts, Talk,
    Unmatched,
};
use super::{RedisRules, all, locks, needs, rules, two_rules};
use crate::protocol::redis::RedisRule;

fn check(talk: &Talk, cases: &[(&str, &str)]) {
    for (line, expected) in cases {
        let found = match needs(talk, line) {
            Ok(locks) => locks.join(","),
            Err(code) => code.as_str().to_owned(),
        };
        assert_eq!(found, *expected, "{line}");
    }
}

#[test]
fn a_write_needs_the_locks_of_the_keys_that_it_writes() {
    check(
        &Talk::new(two_rules()),
        &[
            ("GET job:7:a", "read"),
            ("SET job:7:a 1", "jobs/7"),
            ("SET order 1", "orders"),
            ("SET other 1", ""),
            ("DEL order job:7:a job:8:b other", "jobs/7,jobs/8,orders"),
            ("MSET job:7:a order order x", "jobs/7,orders"),
            ("BLPOP job:7:a order 0", "jobs/7,orders"),
            // The sources are only read.
            ("SUNIONSTORE job:7:a job:8:a order", "jobs/7"),
            ("RENAME job:7:a order", "jobs/7,orders"),
            ("PFCOUNT order", "orders"),
            ("ODD.POP order", "orders"),
            ("XGROUP CREATE order g 0", "orders"),
            // No lock can be named.
            ("SET job::a 1", "unclassified"),
            ("SET job:..:a 1", "unclassified"),
            ("SET job:a/b:c 1", "unclassified"),
            ("GET job::a", "read"),
        ],
    );
    // What is no text names no lock either.
    let talk = Talk::new(two_rules());
    let set = encode::command(&[b"SET".as_slice(), b"job:\xff:a", b"1"]);
    let plan = talk.plan_bytes(&set).unwrap();
    assert!(matches!(plan.action, Action::Refuse(refusal) if refusal.code == Code::Unclassified));
}

#[test]
fn a_write_to_everything_needs_every_lock_or_is_refused() {
    let whole = [
        "FLUSHALL",
        "FLUSHDB",
        "SWAPDB 0 1",
        "EVAL s 0",
        "EVALSHA x 0",
        "FCALL f 0",
        "NOSUCH k",
        "FUNCTION LOAD x",
        "FUNCTION FLUSH",
        "SCRIPT FLUSH",
        "CONFIG SET a b",
        "ACL SETUSER x",
        "SAVE",
        "ODD.NEITHER k",
        "ODD.KEYS k",
        "EVAL s x k",
        "EVAL s -1 k",
        "EVAL s 2 k",
        "SET",
        "CLIENT NOSUCH",
        "SORT k STORE",
        "SORT k NOSUCH x",
        "GEORADIUS k 0 0 1 m NOSUCH x",
        "XREADGROUP GROUP g c STREAMS k",
        "MOVE k x",
        "ACL LOG RESET",
        "ACL",
        "LATENCY RESET",
    ];
    let two = rules(&[("a*", "a", None), ("b*", "b", None)]);
    let (ends, endless) = (Talk::new(two), Talk::new(two_rules()));
    for line in whole.iter().filter(|line| !line.starts_with("MOVE")) {
        check(&ends, &[(line, "a,b")]);
        check(&endless, &[(line, "unclassified")]);
    }
    let free = Talk::new(rules(&[]));
    whole.iter().for_each(|line| check(&free, &[(line, "")]));
}

#[test]
fn commands_are_taken_apart_as_the_server_does() {
    check(
        &Talk::new(two_rules()),
        &[
            ("EVAL s 1 order", "orders"),
            ("EVAL s 2 order job:7:a x", "jobs/7,orders"),
            ("EVAL_RO s 1 order", "read"),
            ("FCALL_RO f 0", "read"),
            ("SORT order", "read"),
            ("SORT order BY w_* LIMIT 0 1 GET # ASC ALPHA", "read"),
            ("SORT x STORE order", "orders"),
            ("SORT x STORE a STORE order", "orders"),
            ("SORT x BY STORE GET STORE STORE order", "orders"),
            ("SORT x GET store", "read"),
            ("GEORADIUS x 0 0 1 km COUNT 1 ANY WITHDIST ASC", "read"),
            ("GEORADIUS x 0 0 1 km STOREDIST a STORE order", "orders"),
            ("GEORADIUSBYMEMBER x STORE 1 km STORE order", "orders"),
            ("XREAD COUNT 1 STREAMS order 0", "read"),
            ("XREADGROUP GROUP g c STREAMS order >", "orders"),
            // A consumer, or a group, of an unlucky name.
            (
                "XREADGROUP COUNT 1 GROUP g STREAMS STREAMS order >",
                "orders",
            ),
            ("XREADGROUP GROUP STREAMS c NOACK STREAMS order >", "orders"),
            ("BITFIELD order GET u8 0 GET u8 1", "read"),
            ("BITFIELD order GET u8 0 SET u8 1 2", "orders"),
            ("BITFIELD order OVERFLOW SAT GET u8 0", "orders"),
            ("COPY order other", ""),
            ("COPY other order REPLACE", "orders"),
            ("MOVE order 3", "orders"),
            ("PUBLISH c m", ""),
            ("SPUBLISH order m", ""),
            ("WAIT 1 0", "read"),
            ("SCRIPT LOAD x", "read"),
            ("CONFIG GET a", "read"),
            ("ACL LOG", "read"),
            ("WATCH order", "read"),
        ],
    );
}

#[test]
fn a_rule_may_be_about_one_database() {
    let talk = |list| Talk::new(rules(list));
    let three = talk(&[("order*", "orders", Some(3))]);
    check(
        &three,
        &[
            ("SET order 1", ""),
            ("FLUSHDB", ""),
            ("FLUSHALL", "orders"),
            ("SWAPDB 0 1", ""),
            ("SWAPDB 3 0", "orders"),
            ("SWAPDB x 0", "orders"),
            ("MOVE order 3", "orders"),
            ("MOVE order 4", ""),
            ("COPY a order DB 3", "orders"),
            ("COPY a order DB 3 DB 4", ""),
            ("COPY a order NOSUCH", "orders"),
            // A script can select.
            ("EVAL s 1 order", "orders"),
        ],
    );
    let mut three = three;
    three.both("SELECT 3", "+OK\r\n");
    check(
        &three,
        &[
            ("SET order 1", "orders"),
            ("FLUSHDB", "orders"),
            ("MOVE order 4", "orders"),
        ],
    );
    three.both("SELECT 0", "-ERR no\r\n");
    check(&three, &[("SET order 1", "orders")]);
}

#[test]
fn what_no_rule_covers_passes_or_is_refused() {
    let rule = || vec![RedisRule::new("order*", "orders", None).unwrap()];
    let reject = Talk::new(RedisRules::new(rule(), Unmatched::Reject));
    check(
        &reject,
        &[
            ("SET order 1", "orders"),
            ("SET other 1", "unclassified"),
            ("MSET order 1 other 2", "unclassified"),
            ("PUBLISH c m", "unclassified"),
            ("GET other", "read"),
            ("FLUSHALL", "orders"),
        ],
    );
    let nothing = Talk::new(RedisRules::new(vec![], Unmatched::Reject));
    check(
        &nothing,
        &[
            ("SET a 1", "unclassified"),
            ("FLUSHALL", "unclassified"),
            ("GET a", "read"),
        ],
    );
}

#[test]
fn dangerous_commands_are_denied_and_can_be_permitted_by_name() {
    let denied = [
        "PSYNC x 0",
        "SYNC",
        "REPLICAOF h 1",
        "SLAVEOF h 1",
        "REPLCONF x",
        "DEBUG SLEEP 1",
        "MIGRATE h 1 k 0 1",
        "RESTORE-ASKING k 0 x",
        "CLIENT KILL ID 1",
        "CLIENT PAUSE 1",
        "FAILOVER",
        "SHUTDOWN",
        "MODULE LOAD x",
        "CLUSTER SLOTS",
        "CLUSTER MEET h 1",
        "ASKING",
        "SCRIPT DEBUG YES",
        "POST x",
        "Host: x",
        "CLIENT CAPA redirect",
        "XLISTEN c",
    ];
    let talk = Talk::new(rules(&[]));
    denied
        .iter()
        .for_each(|line| check(&talk, &[(line, "unclassified")]));
    let permitted = all().with_permitted(&["client|kill", "debug"]).unwrap();
    let talk = Talk::new(permitted);
    check(
        &talk,
        &[
            ("CLIENT KILL ID 1", "all"),
            ("DEBUG SLEEP 1", "all"),
            ("CLIENT PAUSE 1", "unclassified"),
        ],
    );
    assert!(all().with_permitted(&["set"]).is_err());
    assert!(all().with_permitted(&["nosuch"]).is_err());
}

/// A command of which only the beginning is there.
fn partial(talk: &Talk, command: &[&str], large: usize) -> Result<String, NeedsMore> {
    let value = "v".repeat(1000);
    let mut args = command.to_vec();
    args.insert(large, &value);
    let bytes = encode::command(&args);
    let at = bytes
        .windows(100)
        .position(|window| window.iter().all(|&byte| byte == b'v'));
    let plan = talk.plan_bytes(&bytes[..at.unwrap() + 20])?;
    Ok(match plan.action {
        Action::Refuse(refusal) => refusal.code.as_str().to_owned(),
        _ => locks(&plan).join(","),
    })
}

#[test]
fn a_large_argument_is_waited_for_only_where_a_key_may_follow() {
    let talk = Talk::new(two_rules());
    let is = |command: &[&str], large, expected: &str| {
        assert_eq!(
            partial(&talk, command, large),
            Ok(expected.to_owned()),
            "{command:?}"
        );
    };
    is(&["SET", "order"], 2, "orders");
    is(&["SET", "order", "EX", "1"], 2, "orders");
    is(&["FENCE", "WITH", "t", "SET", "order"], 5, "orders");
    is(&["PUBLISH", "c"], 2, "");
    is(&["NOSUCH", "c"], 1, "unclassified");
    for (command, large) in [
        (&["MSET", "order", "job:7:a", "1"][..], 2),
        (&["EVAL", "1", "order"], 1),
        (&["DEL", "order"], 1),
        (&["SET"], 1),
        (&["FENCE", "SET"], 2),
        (&["FENCE", "WITH", "SET", "order"], 2),
        (&["AUTH", "u"], 2),
        (&["CLIENT"], 1),
        (&[], 0),
    ] {
        assert_eq!(
            partial(&talk, command, large),
            Err(NeedsMore),
            "{command:?}"
        );
    }
    // A read needs no lock, and without rules nothing does.
    is(&["MGET", "order"], 1, "");
    let free = Talk::new(rules(&[]));
    assert_eq!(
        partial(&free, &["MSET", "a", "b", "c"], 2),
        Ok(String::new())
    );
}

fn reserved(scripts: Scripts) -> RedisRules {
    all().with_reserved(ReservedKeys {
        prefix: (*b"rf:").into(),
        database: 0,
        scripts,
    })
}

#[test]
fn the_proxys_keys_are_neither_seen_nor_erased() {
    let mut talk = Talk::new(reserved(Scripts::Refused));
    let refused = [
        "GET rf:a",
        "SET rf:a 1",
        "DEL a rf:a",
        "DUMP rf:a",
        "RENAME rf:a a",
        "RENAME a rf:a",
        "COPY rf:a a",
        "COPY a rf:a DB 1",
        "MOVE rf:a 1",
        "WATCH rf:a",
        "MGET a rf:",
        "XREAD STREAMS rf:a 0",
        "SORT a BY rf:*",
        "SORT a GET r*",
        "SORT a GET *",
        "SORT a BY rf:x",
        "SORT rf:a",
        "FLUSHALL",
        "FLUSHDB",
        "SWAPDB 0 1",
        "SWAPDB 2 0",
        "EVAL s 1 a",
        "FCALL f 0",
        "EVAL_RO s 0",
        "MONITOR",
        "CONFIG SET save x MAXMEMORY-POLICY AllKeys-LRU",
        "NOSUCH a",
        "ODD.NEITHER a",
    ];
    refused
        .iter()
        .for_each(|line| check(&talk, &[(line, "unclassified")]));
    check(
        &talk,
        &[
            ("GET a", "read"),
            ("SET rf 1", "all"),
            ("SORT a BY w_* GET x_*->f", "read"),
            ("SWAPDB 1 2", "all"),
            ("CONFIG SET a b", "all"),
            ("CONFIG SET maxmemory-policy volatile-lru", "all"),
            ("SLOWLOG GET", "read"),
        ],
    );
    talk.both("SELECT 1", "+OK\r\n");
    check(
        &talk,
        &[
            ("FLUSHDB", "all"),
            ("FLUSHALL", "unclassified"),
            ("SET rf:a 1", "unclassified"),
        ],
    );
    check(
        &Talk::new(reserved(Scripts::Trusted)),
        &[("EVAL s 1 a", "all"), ("EVAL s 1 rf:a", "unclassified")],
    );
    check(
        &Talk::new(all()),
        &[
            ("GET rf:a", "read"),
            ("FLUSHALL", "all"),
            ("CONFIG SET maxmemory-policy allkeys-lru", "all"),
        ],
    );
}

#[test]
fn what_reaches_every_key_is_refused_though_it_is_permitted() {
    let names = [
        "debug",
        "migrate",
        "psync",
        "cluster|getkeysinslot",
        "client|kill",
    ];
    let permitted = |rules: RedisRules| Talk::new(rules.with_permitted(&names).unwrap());
    for line in [
        "DEBUG RELOAD",
        "MIGRATE h 1 k 0 9",
        "PSYNC ? -1",
        "CLUSTER GETKEYSINSLOT 1 9",
    ] {
        check(&permitted(all()), &[(line, "all")]);
        check(
            &permitted(reserved(Scripts::Trusted)),
            &[(line, "unclassified")],
        );
    }
    check(
        &permitted(reserved(Scripts::Trusted)),
        &[("CLIENT KILL ID 7", "all")],
    );
}

#[test]
fn listings_are_filtered_where_the_proxys_keys_may_be() {
    let mut talk = Talk::new(reserved(Scripts::Refused));
    let prefix = || (*b"rf:").into();
    talk.both("KEYS *", "*0\r\n");
    talk.both("SCAN 0", "*2\r\n$1\r\n0\r\n*0\r\n");
    talk.both("RANDOMKEY", "$-1\r\n");
    let filters = [
        Filter::Keys(prefix()),
        Filter::Scan(prefix()),
        Filter::RandomKey(prefix()),
    ];
    assert_eq!(talk.answers(), filters.map(|filter| format!("{filter:?}")));
    talk.both("SELECT 1", "+OK\r\n");
    talk.both("KEYS *", "*0\r\n");
    assert_eq!(talk.answers()[1], "*0\r\n");
    // Logs tell of every database.
    talk.both("SLOWLOG GET 10", "*0\r\n");
    talk.both("ACL LOG", "*0\r\n");
    let filters = [Filter::SlowLog(prefix()), Filter::AclLog(prefix())];
    assert_eq!(talk.answers(), filters.map(|filter| format!("{filter:?}")));
    // In a transaction the reply could not be filtered.
    talk.both("MULTI", "+OK\r\n");
    check(
        &talk,
        &[
            ("KEYS *", "unclassified"),
            ("SCAN 0", "unclassified"),
            ("SLOWLOG GET", "unclassified"),
            ("ACL LOG", "unclassified"),
        ],
    );
}

#[test]
fn what_the_server_sends_by_itself_is_filtered() {
    let settings = || ConversationSettings {
        hidden: Some((*b"rf:").into()),
        ..ConversationSettings::default()
    };
    let held = format!("{:?}", Filter::Pushed((*b"rf:").into()));
    let mut talk = Talk::with(all(), settings());
    let subscribed = "*3\r\n$10\r\npsubscribe\r\n$1\r\n*\r\n:1\r\n";
    talk.both("PSUBSCRIBE *", subscribed);
    let message = "*4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\na\r\n$1\r\nb\r\n";
    assert_eq!(talk.server(message), None);
    assert_eq!(talk.answers(), [subscribed, &held]);
    let mut talk = Talk::with(all(), settings());
    talk.both("HELLO 3", "%1\r\n+proto\r\n:3\r\n");
    talk.server(">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n");
    talk.server(">1\r\n$4\r\nnews\r\n");
    assert_eq!(talk.answers()[1..], [&held, ">1\r\n$4\r\nnews\r\n"]);
    // Elsewhere they pass as they come.
    let mut talk = Talk::new(all());
    talk.both("PSUBSCRIBE *", subscribed);
    talk.server(message);
    assert_eq!(talk.answers(), [subscribed, message]);
}

#[test]
fn waiting_commands_are_told() {
    let talk = Talk::new(all());
    for (line, blocks) in [
        ("BLPOP a 0", true),
        ("XREAD BLOCK 0 STREAMS a 0", true),
        ("XREAD STREAMS a 0", false),
        ("XREADGROUP GROUP g c BLOCK 0 STREAMS a >", true),
        ("XREADGROUP GROUP g c STREAMS a >", false),
        ("WAIT 1 0", true),
        ("GET a", false),
        ("SET a 1", false),
    ] {
        assert_eq!(talk.plan(line).blocks, blocks, "{line}");
    }
    assert_eq!(talk.plan("BLPOP a 0").kind, Kind::Write);
}
