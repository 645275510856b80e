//! Random commands, all that change the state of a connection among them, once to the server and
//! once through a conversation, pipelined: the client must see the same bytes in the same order,
//! and no reply may be left over or missing. Runs once, or for `RINGFENCE_FUZZ_SECONDS`.

use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::Strategy;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use ringfence::protocol::Unmatched;
use ringfence::protocol::redis::{
    Action, CommandTable, Conversation, ConversationSettings, Delivery, RedisRules, ReplyProgress,
    ReplyScanner, RequestLimits, RequestScanner, Send, encode_command,
};

use crate::server::{Connection, Server};

/// The commands that are drawn, often those that count.
const COMMANDS: [&str; 47] = [
    "GET a",
    "SET a 1",
    "INCR a",
    "LRANGE l 0 -1",
    "RPUSH l message",
    "RPUSH l a",
    "SET a",
    "NOSUCH",
    "PING",
    "PING x",
    "ECHO hello",
    "MULTI",
    "MULTI",
    "EXEC",
    "EXEC",
    "DISCARD",
    "DISCARD x",
    "WATCH a",
    "UNWATCH",
    "SELECT 1",
    "SELECT 0",
    "SELECT 99",
    "SELECT x",
    "HELLO",
    "HELLO 2",
    "HELLO 3",
    "HELLO 4",
    "HELLO 3 SETNAME me",
    "HELLO 3 NOSUCH",
    "CLIENT GETNAME",
    "CLIENT SETNAME you",
    "CLIENT REPLY ON",
    "CLIENT REPLY OFF",
    "CLIENT REPLY SKIP",
    "CLIENT REPLY NOSUCH",
    "SUBSCRIBE a b",
    "SUBSCRIBE a",
    "SUBSCRIBE",
    "PSUBSCRIBE a* b",
    "SSUBSCRIBE s",
    "UNSUBSCRIBE",
    "UNSUBSCRIBE a",
    "PUNSUBSCRIBE",
    "SUNSUBSCRIBE",
    "PUBLISH a x",
    "AUTH default x",
    "RESET",
];

/// Turns replies on, and ends what a client could see.
const END: [&str; 2] = ["RESET", "ECHO the-end"];

const LAST: &[u8] = b"$7\r\nthe-end\r\n";

fn bytes(line: &str) -> Vec<u8> {
    encode_command(&line.split(' ').collect::<Vec<_>>())
}

/// What a client of the server itself sees.
fn direct(connection: &mut Connection, lines: &[&str]) -> Vec<u8> {
    let all: Vec<u8> = lines.iter().flat_map(|line| bytes(line)).collect();
    connection.write(&all);
    let mut seen = vec![];
    while !seen.ends_with(LAST) {
        connection.read(&mut seen);
    }
    seen
}

/// A client behind a conversation. It sends as much at once as may be.
struct Relay<'a> {
    connection: &'a mut Connection,
    conversation: Conversation<()>,
    replies: ReplyScanner,
    pending: Vec<u8>,
    seen: Vec<u8>,
}

impl Relay<'_> {
    /// Hands out what has come. False: a command was refused, which the server would have taken.
    fn send(&mut self, line: &str, table: &CommandTable) -> bool {
        let request = bytes(line);
        let mut scanner = RequestScanner::new(RequestLimits::default());
        scanner.scan(&request).unwrap();
        let rules = RedisRules::new(vec![], Unmatched::Pass);
        let plan = self
            .conversation
            .plan(&scanner.args(&request), table, &rules);
        let plan = plan.expect("all arguments are there");
        let barrier = plan.barrier;
        match plan.action.clone() {
            Action::Forward(Send::AsIs) => {
                self.connection.write(&request);
                self.conversation.forward(plan, ());
            }
            Action::Forward(Send::Instead(other)) => {
                self.connection.write(&other);
                self.conversation.forward(plan, ());
            }
            Action::Refuse(_) => return false,
            other => panic!("{line}: {other:?}"),
        }
        self.locals();
        while barrier && self.conversation.outstanding() > 0 {
            self.receive();
        }
        true
    }

    fn locals(&mut self) {
        while let Some(reply) = self.conversation.next_local() {
            self.seen.extend(reply);
        }
    }

    fn receive(&mut self) {
        self.connection.read(&mut self.pending);
        while let ReplyProgress::Complete { len, head, end } =
            self.replies.scan(&self.pending).expect("replies of RESP")
        {
            let reply: Vec<u8> = self.pending.drain(..len).collect();
            self.replies.reset();
            let text = String::from_utf8_lossy(&reply);
            match self.conversation.reply_begins(&head) {
                Ok(Delivery::Forward) => self.seen.extend(&reply),
                Ok(Delivery::Swallow) => {}
                other => panic!("{text}: {other:?}"),
            }
            self.conversation.reply_ended(&end);
            self.locals();
        }
    }
}

/// What a client of a conversation sees; none: it refuses one of the commands.
fn relayed(connection: &mut Connection, table: &CommandTable, lines: &[&str]) -> Option<Vec<u8>> {
    let mut relay = Relay {
        connection,
        conversation: Conversation::new(ConversationSettings::default()),
        replies: ReplyScanner::new(),
        pending: vec![],
        seen: vec![],
    };
    let taken = lines.iter().all(|line| relay.send(line, table));
    while relay.conversation.outstanding() > 0 {
        relay.receive();
    }
    assert!(relay.pending.is_empty(), "a reply is left over");
    taken.then_some(relay.seen)
}

/// `HELLO` tells the connection's number.
fn without_ids(seen: &[u8]) -> String {
    let text = String::from_utf8_lossy(seen).into_owned();
    let mut parts = text.split("$2\r\nid\r\n:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| {
        all + "(id)" + part.trim_start_matches(|char: char| char.is_ascii_digit())
    })
}

#[test]
fn a_client_sees_the_same_through_a_conversation() {
    let server = Server::start();
    let table = crate::table(&server, "2");
    let cleaner = std::cell::RefCell::new(server.connect("2"));
    let lines = vec(select(COMMANDS.to_vec()), 1..14).prop_map(|mut lines| {
        lines.extend(END);
        lines
    });
    let compared = std::cell::Cell::new(0);
    let check = |lines: Vec<&'static str>| {
        cleaner.borrow_mut().call(&["FLUSHALL"]);
        let Some(through) = relayed(&mut server.connect("2"), &table, &lines) else {
            return Ok(());
        };
        cleaner.borrow_mut().call(&["FLUSHALL"]);
        let straight = direct(&mut server.connect("2"), &lines);
        compared.set(compared.get() + 1);
        let (through, straight) = (without_ids(&through), without_ids(&straight));
        match through == straight {
            true => Ok(()),
            false => Err(TestCaseError::fail(format!(
                "{straight:?}\nbut {through:?}"
            ))),
        }
    };
    let seconds = std::env::var("RINGFENCE_FUZZ_SECONDS").ok();
    let seconds = seconds.map_or(0, |text| text.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        let config = Config {
            cases: 1_500,
            failure_persistence: None,
            ..Config::default()
        };
        let ran = TestRunner::new(config).run(&lines, check);
        ran.unwrap_or_else(|error| panic!("{error}"));
        if Instant::now() >= end {
            break;
        }
    }
    // Transactions refuse some of the commands; most are not in one.
    assert!(
        compared.get() > 700,
        "only {} were compared",
        compared.get()
    );
}
