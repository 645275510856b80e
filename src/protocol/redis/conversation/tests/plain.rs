//! The short way: which commands go it, and that it is the same way. (Every conversation of these
//! tests goes it where it can, and compares.)

use super::super::super::reserved::{ReservedKeys, Scripts};
use super::{Talk, all, rules, two_rules};
use crate::protocol::redis::Owed;

fn goes(talk: &mut Talk, line: &str) -> bool {
    let plan = talk.plan(line);
    talk.is_plain(line, &plan)
}

#[test]
fn a_command_on_one_key_goes_the_short_way() {
    for rules in [rules(&[]), all(), two_rules()] {
        let mut talk = Talk::new(rules);
        for line in [
            "SET a 1",
            "set b 1",
            "SET job:1:a 1",
            "SET job:2:a 1",
            "SET order7 1",
            "INCR a",
            "GET job:2:a",
            "get job:2:a",
        ] {
            assert!(goes(&mut talk, line), "{line}");
        }
    }
}

#[test]
fn whatever_needs_a_second_look_is_planned() {
    let mut talk = Talk::new(all());
    for line in [
        "MGET a b",
        "DEL a b",
        "BLPOP a 0",
        "EVAL x 1 a",
        "SELECT 1",
        "MULTI",
        "PING",
        "GET",
        "NOSUCH a",
        "SUBSCRIBE a",
        "SORT a STORE b",
        "FLUSHALL",
        "FENCE STATUS",
        "CLIENT REPLY OFF",
    ] {
        assert!(!goes(&mut talk, line), "{line}");
    }
    // A name that no lock can be made of is refused, in words that only a plan has.
    let mut talk = Talk::new(two_rules());
    assert!(goes(&mut talk, "SET job:1:a 1") && !goes(&mut talk, "SET job::a 1"));
}

#[test]
fn what_is_known_of_a_command_is_known_for_its_databases() {
    let mut talk = Talk::new(rules(&[("*", "three", Some(3))]));
    assert!(goes(&mut talk, "SET a 1"));
    talk.client("SELECT 3");
    // Compared with its plan, which has the lock by now.
    assert!(goes(&mut talk, "SET a 1"));
    talk.client("MULTI");
    assert!(!goes(&mut talk, "SET a 1"));
}

#[test]
fn the_proxys_own_keys_are_planned_and_refused() {
    let reserved = ReservedKeys {
        prefix: (*b"fence:").into(),
        database: 0,
        scripts: Scripts::Refused,
    };
    let mut talk = Talk::new(all().with_reserved(reserved));
    assert!(goes(&mut talk, "SET a 1"));
    assert!(!goes(&mut talk, "SET fence:a 1"));
    assert!(goes(&mut talk, "SET b 1"));
}

#[test]
fn commands_in_a_run_are_answered_and_owed_one_by_one() {
    let mut talk = Talk::new(all());
    for line in [
        "INCR a",
        "INCR a",
        "SET b 1",
        "CLIENT REPLY SKIP",
        "INCR a",
        "INCR a",
    ] {
        talk.client(line);
    }
    assert_eq!(talk.conversation.outstanding(), 6);
    assert!(talk.server(":1\r\n").unwrap().succeeded);
    assert_eq!(talk.conversation.outstanding(), 5);
    assert!(!talk.server("-ERR no\r\n").unwrap().succeeded);
    assert_eq!(talk.answers(), [":1\r\n", "-ERR no\r\n"]);
    let told = |owed: Owed<String>| match owed {
        Owed::Answer(reply) => String::from_utf8(reply).unwrap(),
        Owed::Reply {
            wanted, payload, ..
        } => format!("{} {wanted}", payload.unwrap_or_default()),
    };
    let owed: Vec<String> = talk.conversation.into_owed().map(told).collect();
    let due = [
        "SET b 1 true",
        "CLIENT REPLY SKIP false",
        "INCR a false",
        "INCR a true",
    ];
    assert_eq!(owed, due);
}
