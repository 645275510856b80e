//! Whose reply is whose, in every state that a connection can have.

use super::{Action, Change, Code, Kind, Send, Talk};
use super::{all, locks, needs, rules, two_rules};
use crate::protocol::redis::{Databases, Owed, ReplyProgress, ReplyScanner, encode_command};

/// The last reply that is due has come.
fn at_rest(talk: &Talk) -> bool {
    talk.conversation.outstanding() == 0
}

fn unexpected(talk: &mut Talk, reply: &[u8]) -> bool {
    let mut scanner = ReplyScanner::new();
    let Ok(ReplyProgress::Complete { head, .. }) = scanner.scan(reply) else {
        panic!("no whole reply");
    };
    talk.conversation.reply_begins(&head).is_err()
}

#[test]
fn replies_answer_commands_in_their_order() {
    let mut talk = Talk::new(rules(&[]));
    talk.client("GET a").client("SET b 1").client("NOSUCH");
    assert_eq!(
        talk.server("$1\r\nx\r\n").unwrap().payload.unwrap(),
        "GET a"
    );
    assert_eq!(talk.server("+OK\r\n").unwrap().payload.unwrap(), "SET b 1");
    let last = talk.server("-ERR unknown\r\n").unwrap();
    assert!(!last.succeeded && at_rest(&talk));
    assert!(unexpected(&mut talk, b"+OK\r\n"));
    // A push needs no command.
    assert!(!unexpected(&mut talk, b">1\r\n+invalidate\r\n"));
}

#[test]
fn what_has_no_reply_is_handed_back() {
    let mut talk = Talk::new(all());
    talk.client("GET a")
        .client("FENCE STATUS")
        .client("SET b 1");
    talk.server("+x\r\n");
    let payload = |owed| match owed {
        Owed::Reply { payload, .. } => payload,
        Owed::Answer(_) => None,
    };
    let left: Vec<String> = talk.conversation.into_owed().filter_map(payload).collect();
    assert_eq!(left, ["SET b 1"]);
}

#[test]
fn what_a_client_is_owed_is_told_in_its_order() {
    let mut talk = Talk::new(all());
    for line in [
        "GET a",
        "FENCE STATUS",
        "CLIENT REPLY SKIP",
        "SET b 1",
        "GET c",
    ] {
        talk.client(line);
    }
    let told = |owed| match owed {
        Owed::Answer(reply) => String::from_utf8(reply).unwrap(),
        Owed::Reply {
            wanted, operation, ..
        } => format!("{operation} {wanted}"),
    };
    let owed: Vec<String> = talk.conversation.into_owed().map(told).collect();
    assert_eq!(
        owed,
        [
            "get true",
            "+FENCE\r\n",
            "client|reply false",
            "set false",
            "get true"
        ]
    );
}

#[test]
fn a_transaction_needs_its_locks_again_at_its_end() {
    let mut talk = Talk::new(two_rules());
    talk.client("MULTI")
        .client("SET order 1")
        .client("GET job:7:a")
        .client("SET job:8:a 1");
    let exec = talk.plan("EXEC");
    assert_eq!(
        (exec.kind, locks(&exec)),
        (Kind::Write, vec!["jobs/7", "jobs/8", "orders"])
    );
    for reply in ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n"] {
        let finished = talk.server(reply).unwrap();
        assert_eq!(finished.queued, reply == "+QUEUED\r\n");
    }
    assert!(talk.conversation.in_transaction());
    talk.both("EXEC", "*3\r\n+OK\r\n_\r\n+OK\r\n");
    assert!(at_rest(&talk) && talk.conversation.is_plain());
    let reads = talk.client("MULTI").client("GET order").plan("EXEC");
    assert_eq!(reads.kind, Kind::Read);
}

#[test]
fn a_refused_command_aborts_its_transaction() {
    let mut talk = Talk::new(two_rules());
    talk.client("MULTI").client("FLUSHALL");
    let exec = talk.plan("EXEC");
    let discard = b"*1\r\n$7\r\nDISCARD\r\n".to_vec();
    assert_eq!(exec.action, Action::Forward(Send::Instead(discard)));
    assert!(locks(&exec).is_empty());
    talk.client("EXEC");
    talk.server("+OK\r\n");
    talk.server("+OK\r\n");
    let answers = talk.answers();
    assert_eq!(answers[0], "+OK\r\n");
    assert!(answers[1].starts_with("-FENCEUNCLASS "), "{answers:?}");
    assert!(answers[2].starts_with("-EXECABORT "), "{answers:?}");
    assert!(at_rest(&talk) && !talk.conversation.in_transaction());
}

#[test]
fn a_refused_exec_is_discarded_at_the_server() {
    let mut talk = Talk::new(two_rules());
    talk.client("MULTI").client("SET order 1");
    let exec = talk.plan("EXEC");
    let refusal = crate::protocol::Refusal::missing(exec.locks[0].clone());
    let sent = talk.conversation.refuse(exec, &refusal);
    assert_eq!(sent, Some(b"*1\r\n$7\r\nDISCARD\r\n".to_vec()));
    for reply in ["+OK\r\n", "+QUEUED\r\n", "+OK\r\n"] {
        talk.server(reply);
    }
    assert!(talk.answers()[2].starts_with("-NOFENCE "));
    assert!(at_rest(&talk) && !talk.conversation.in_transaction());
}

#[test]
fn multi_that_fails_leaves_nothing_behind() {
    let mut talk = Talk::new(two_rules());
    talk.both("MULTI", "-NOAUTH Authentication required.\r\n");
    assert!(!talk.conversation.in_transaction());
    assert!(matches!(talk.plan("EXEC").action, Action::Answer(_)));
    assert!(!matches!(talk.plan("AUTH a b").action, Action::Refuse(_)));
    // One within another changes nothing.
    talk.both("MULTI", "+OK\r\n");
    talk.both("MULTI", "-ERR MULTI calls can not be nested\r\n");
    talk.both("WATCH a", "-ERR WATCH inside MULTI is not allowed\r\n");
    talk.both("SET order 1", "+QUEUED\r\n");
    talk.both("DISCARD x", "-ERR wrong number of arguments\r\n");
    assert_eq!(locks(&talk.plan("EXEC")), ["orders"]);
    assert!(talk.plan("DISCARD").barrier);
    talk.both("DISCARD", "-NOPERM no\r\n");
    assert_eq!(locks(&talk.plan("EXEC")), ["orders"]);
    talk.both("DISCARD", "+OK\r\n");
    assert!(!talk.conversation.in_transaction());
    // Nobody is asked to run what is not known here.
    talk.client("EXEC");
    assert_eq!(
        talk.answers().last().unwrap(),
        "-ERR EXEC without MULTI\r\n"
    );
    assert!(at_rest(&talk));
}

#[test]
fn what_would_break_the_count_is_not_queued() {
    let mut talk = Talk::new(rules(&[]));
    talk.both("MULTI", "+OK\r\n");
    for line in [
        "SUBSCRIBE a",
        "UNSUBSCRIBE",
        "PSUBSCRIBE a",
        "SSUBSCRIBE a",
        "HELLO 3",
        "AUTH a b",
        "MONITOR",
        "CLIENT REPLY OFF",
    ] {
        assert_eq!(needs(&talk, line), Err(Code::Unclassified), "{line}");
    }
    assert_eq!(needs(&talk, "FENCE SET a"), Err(Code::Invalid));
    assert_eq!(needs(&talk, "FENCE WITH a GET b"), Err(Code::Invalid));
    assert!(needs(&talk, "PUBLISH a b").is_ok());
}

#[test]
fn select_counts_when_the_server_has_said_yes() {
    let mut talk = Talk::new(rules(&[("*", "three", Some(3))]));
    assert_eq!(needs(&talk, "SET a 1"), Ok(vec![]));
    talk.client("SELECT 3");
    // It may have succeeded, or not.
    assert_eq!(needs(&talk, "SET a 1"), Ok(vec!["three".to_owned()]));
    talk.client("SELECT 4");
    assert!(talk.conversation.databases().may_be(3) && talk.conversation.databases().may_be(0));
    talk.server("-ERR DB index is out of range\r\n");
    assert!(!talk.conversation.databases().may_be(3));
    talk.server("+OK\r\n");
    assert_eq!(talk.conversation.databases(), Databases::only(4));
    talk.both("SELECT x", "-ERR no\r\n");
    assert_eq!(talk.conversation.state().databases, Databases::only(4));
}

#[test]
fn a_queued_select_may_have_happened() {
    let mut talk = Talk::new(rules(&[("*", "three", Some(3))]));
    talk.client("MULTI").client("SELECT 3").client("SET a 1");
    assert_eq!(locks(&talk.plan("EXEC")), ["three"]);
    for reply in ["+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n"] {
        talk.server(reply);
    }
    assert_eq!(talk.conversation.state().databases, Databases::only(0));
    talk.both("EXEC", "*2\r\n+OK\r\n+OK\r\n");
    assert_eq!(needs(&talk, "SET a 1"), Ok(vec!["three".to_owned()]));
    assert_eq!(talk.conversation.databases().certain(), None);
    talk.both("SELECT 0", "+OK\r\n");
    assert_eq!(needs(&talk, "SET a 1"), Ok(vec![]));
    // Not, where the transaction did not run.
    talk.client("MULTI").client("SELECT 3");
    talk.server("+OK\r\n");
    talk.server("+QUEUED\r\n");
    talk.both("EXEC", "*-1\r\n");
    assert_eq!(talk.conversation.databases(), Databases::only(0));
}

#[test]
fn every_channel_is_confirmed() {
    let mut talk = Talk::new(rules(&[]));
    talk.client("SUBSCRIBE a b").client("PING");
    assert!(
        talk.server("*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n")
            .is_none()
    );
    assert!(
        talk.server("*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n")
            .is_none()
    );
    assert!(
        talk.server("*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n")
            .is_some()
    );
    assert!(
        talk.server("*3\r\n$7\r\nmessage\r\n$1\r\nb\r\n$1\r\nx\r\n")
            .is_none()
    );
    assert!(talk.server("*2\r\n$4\r\npong\r\n$0\r\n\r\n").is_some());
    assert!(!talk.conversation.is_plain());
    // All of one kind: as many as there are.
    talk.client("PSUBSCRIBE p")
        .client("UNSUBSCRIBE")
        .client("GET a");
    assert!(
        talk.server("*3\r\n$10\r\npsubscribe\r\n$1\r\np\r\n:3\r\n")
            .is_some()
    );
    assert!(
        talk.server("*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:2\r\n")
            .is_none()
    );
    assert!(
        talk.server("*4\r\n$8\r\npmessage\r\n$1\r\np\r\n$1\r\na\r\n$1\r\nx\r\n")
            .is_none()
    );
    assert!(
        talk.server("*3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:1\r\n")
            .is_some()
    );
    assert!(talk.server("-ERR Can't execute 'get'\r\n").is_some());
    talk.client("PUNSUBSCRIBE")
        .client("UNSUBSCRIBE")
        .client("LRANGE l 0 -1");
    assert!(
        talk.server("*3\r\n$12\r\npunsubscribe\r\n$1\r\np\r\n:0\r\n")
            .is_some()
    );
    assert!(
        talk.server("*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n")
            .is_some()
    );
    // Not subscribed any more: this is a reply.
    assert!(talk.server("*2\r\n$7\r\nmessage\r\n$1\r\na\r\n").is_some());
    assert!(at_rest(&talk) && talk.conversation.is_plain());
}

#[test]
fn a_subscription_that_fails_has_one_reply() {
    let mut talk = Talk::new(rules(&[]));
    talk.client("SUBSCRIBE a b")
        .client("SUBSCRIBE")
        .client("PING");
    assert!(talk.server("-NOPERM no\r\n").is_some());
    assert!(talk.server("-ERR wrong number of arguments\r\n").is_some());
    assert!(talk.server("+PONG\r\n").is_some());
    assert!(at_rest(&talk) && talk.conversation.is_plain());
}

#[test]
fn in_resp3_pushes_and_replies_go_side_by_side() {
    let mut talk = Talk::new(rules(&[]));
    talk.both("HELLO 3", "%1\r\n+proto\r\n:3\r\n");
    talk.client("SUBSCRIBE a")
        .client("LRANGE l 0 -1")
        .client("SSUBSCRIBE s");
    assert!(
        talk.server(">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n")
            .is_none()
    );
    assert!(
        talk.server(">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n")
            .is_some()
    );
    assert!(
        talk.server(">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n")
            .is_none()
    );
    // A list that looks like a message, to a subscriber.
    assert!(talk.server("*1\r\n$7\r\nmessage\r\n").is_some());
    assert!(
        talk.server(">3\r\n$10\r\nssubscribe\r\n$1\r\ns\r\n:1\r\n")
            .is_some()
    );
    assert_eq!(talk.conversation.state().shards, 1);
    talk.both("RESET", "+RESET\r\n");
    assert_eq!(
        (talk.conversation.state().resp, talk.conversation.is_plain()),
        (2, true)
    );
}

#[test]
fn a_monitors_lines_are_no_replies() {
    let mut talk = Talk::new(rules(&[]));
    talk.client("MONITOR").client("PING").client("RESET");
    assert!(talk.server("+OK\r\n").is_some());
    assert!(
        talk.server("+1795991935.664715 [0 x] \"PING\"\r\n")
            .is_none()
    );
    assert!(talk.server("+PONG\r\n").is_some());
    assert!(
        talk.server("+1795991935.664715 [0 x] \"RESET\"\r\n")
            .is_none()
    );
    assert_eq!(talk.server("+RESET\r\n").unwrap().change, Change::Reset);
    assert!(at_rest(&talk) && talk.conversation.is_plain());
}

#[test]
fn what_a_transaction_changes_of_the_connection_is_changed_by_its_end() {
    let mut talk = Talk::new(rules(&[]));
    let tracked = |talk: &mut Talk, end: &str| {
        talk.both("MULTI", "+OK\r\n");
        talk.both("CLIENT TRACKING ON", "+QUEUED\r\n");
        assert!(!talk.conversation.state().changed);
        talk.both("EXEC", end);
        !talk.conversation.is_plain()
    };
    assert!(!tracked(&mut talk, "-EXECABORT no\r\n"));
    assert!(tracked(&mut talk, "*1\r\n+OK\r\n"));
    talk.both("RESET", "+RESET\r\n");
    // The name of a library is no state that matters.
    talk.both("CLIENT SETINFO LIB-NAME x", "+OK\r\n");
    assert!(talk.conversation.is_plain());
}

/// Commands with the replies that the server makes, and what the client gets.
type Played<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);

/// What Redis 7.0.15 sends for each of these, whose `CLIENT REPLY` it is told as `ON`.
#[test]
fn withheld_replies_are_withheld_here_and_still_counted() {
    const OK: &str = "+OK\r\n";
    let subscribed = "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n";
    let cases: [Played<'_>; 9] = [
        (
            &[("SKIP", OK), ("GET x", "+x\r\n"), ("GET y", "+y\r\n")],
            &["+y\r\n"],
        ),
        (
            &[
                ("SKIP", OK),
                ("SKIP", OK),
                ("GET x", "+x\r\n"),
                ("GET y", "+y\r\n"),
            ],
            &["+y\r\n"],
        ),
        (
            &[("SKIP", OK), ("ON", OK), ("GET y", "+y\r\n")],
            &[OK, "+y\r\n"],
        ),
        (
            &[
                ("OFF", OK),
                ("SKIP", OK),
                ("GET x", "+x\r\n"),
                ("ON", OK),
                ("GET y", "+y\r\n"),
            ],
            &[OK, "+y\r\n"],
        ),
        (&[("OFF", OK), ("NOSUCH", "-ERR x\r\n"), ("ON", OK)], &[OK]),
        (
            &[("OFF", OK), ("RESET", "+RESET\r\n"), ("GET x", "+x\r\n")],
            &["+RESET\r\n", "+x\r\n"],
        ),
        (
            &[("SKIP", OK), ("RESET", "+RESET\r\n"), ("GET x", "+x\r\n")],
            &["+x\r\n"],
        ),
        (
            &[
                ("SKIP", OK),
                ("SUBSCRIBE a", subscribed),
                ("PING", "*1\r\n$4\r\npong\r\n"),
            ],
            &[subscribed, "*1\r\n$4\r\npong\r\n"],
        ),
        // A subscriber may not.
        (
            &[
                ("SUBSCRIBE a", subscribed),
                ("OFF", "-ERR no\r\n"),
                ("PING", "+PONG\r\n"),
            ],
            &[subscribed, "-ERR no\r\n", "+PONG\r\n"],
        ),
    ];
    for (commands, expected) in cases {
        let mut talk = Talk::new(rules(&[]));
        for (command, _) in commands {
            match *command {
                mode @ ("ON" | "OFF" | "SKIP") => talk.client(&format!("CLIENT REPLY {mode}")),
                command => talk.client(command),
            };
        }
        for (_, reply) in commands {
            talk.server(reply);
        }
        assert_eq!(talk.answers(), expected, "{commands:?}");
        assert!(at_rest(&talk), "{commands:?}");
    }
    let talk = Talk::new(rules(&[]));
    let sent = Action::Forward(Send::Instead(encode_command(&["CLIENT", "REPLY", "ON"])));
    assert_eq!(talk.plan("CLIENT REPLY OFF").action, sent);
    assert_eq!(
        talk.plan("CLIENT REPLY NOSUCH").action,
        Action::Forward(Send::AsIs)
    );
}

#[test]
fn an_empty_request_uses_up_a_skip() {
    let mut talk = Talk::new(rules(&[]));
    talk.both("CLIENT REPLY SKIP", "+OK\r\n");
    talk.conversation.empty_request();
    talk.locals();
    talk.both("GET x", "+x\r\n");
    let seen = talk.answers().concat();
    assert_eq!(seen, "+x\r\n");
}

#[test]
fn reset_and_quit_are_told_to_the_shell() {
    let mut talk = Talk::new(all());
    assert!(talk.plan("RESET").barrier && !talk.plan("RESET x").barrier);
    talk.both("SELECT 3", "+OK\r\n");
    talk.both("CLIENT SETNAME a", "+OK\r\n");
    talk.both("MULTI", "+OK\r\n");
    assert_eq!(talk.both("RESET", "+RESET\r\n").change, Change::Reset);
    assert!(talk.conversation.is_plain());
    assert_eq!(talk.conversation.databases(), Databases::only(0));
    assert_eq!(talk.both("QUIT", "+OK\r\n").change, Change::Close);
}

#[test]
fn watch_binds_the_connection_until_the_transaction_ends() {
    let mut talk = Talk::new(all());
    talk.both("WATCH a", "+OK\r\n");
    assert!(
        talk.conversation.watching() && talk.plan("GET a").action == Action::Forward(Send::AsIs)
    );
    talk.both("UNWATCH", "+OK\r\n");
    assert!(talk.conversation.is_plain());
    talk.both("WATCH a", "+OK\r\n");
    talk.both("MULTI", "+OK\r\n");
    talk.both("EXEC", "*-1\r\n");
    assert!(talk.conversation.is_plain());
}

#[test]
fn an_auth_is_sent_alone() {
    let talk = Talk::new(rules(&[]));
    for (line, alone) in [
        ("AUTH pw", true),
        ("AUTH app pw", true),
        ("AUTH app;fence=t pw", true),
        ("HELLO 3 AUTH app pw", true),
        ("HELLO 3 SETNAME a AUTH app pw", true),
        ("HELLO 3", false),
        ("PING", false),
    ] {
        assert_eq!(talk.plan(line).alone, alone, "{line}");
    }
}
