//! What is remembered of messages that come again.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof, proptest};

use super::{BackendMessage, Driven, E, I, Lexing, Message, T, bind, classify, consider};
use crate::protocol::postgres::classify::Classified;

/// Whether a message is recalled; that it is the same is checked there.
fn recalls(it: &Driven, message: Message<'_>) -> bool {
    it.0.recall(message).is_some()
}

fn classified(text: &str) -> Classified {
    classify(text.as_bytes(), Lexing::CERTAIN)
}

/// Bind, Execute and Sync of a prepared statement, answered.
fn bound(it: &mut Driven, statement: &str) -> [bool; 2] {
    let first = recalls(it, bind("", statement));
    it.bind("", statement);
    let second = recalls(it, Message::Execute(b""));
    it.execute("");
    it.sync();
    it.reply(BackendMessage::BindComplete);
    it.done("UPDATE 1");
    [first, second]
}

fn prepared(text: &str) -> Driven {
    let mut it = Driven::new();
    it.parse("s", text);
    it.sync();
    it.reply(BackendMessage::ParseComplete);
    it.ready(I);
    it
}

#[test]
fn what_is_bound_again_is_recalled() {
    let mut it = prepared("UPDATE t SET a = $1");
    assert_eq!(bound(&mut it, "s"), [false; 2]);
    it.ready(I);
    assert_eq!(bound(&mut it, "s"), [true; 2]);
    it.ready(I);
    // In a block the gate is not asked.
    it.did("BEGIN", "BEGIN", T);
    assert_eq!(bound(&mut it, "s"), [false; 2]);
    it.ready(T);
    assert_eq!(bound(&mut it, "s"), [true; 2]);
    it.ready(T);
    it.did("COMMIT", "COMMIT", I);
    assert_eq!(bound(&mut it, "s"), [true; 2]);
    it.ready(I);
    // One after the other before a Sync: the second goes on with a transaction.
    for expected in [false, true] {
        it.bind("", "s");
        it.execute("");
        assert_eq!(recalls(&it, bind("", "s")), expected);
        it.bind("", "s");
        it.execute("");
        it.sync();
        for _ in 0..2 {
            it.reply(BackendMessage::BindComplete);
            it.done("UPDATE 1");
        }
        it.ready(I);
    }
}

#[test]
fn what_is_queried_again_is_recalled() {
    let (mut it, text) = (Driven::new(), "UPDATE t SET a = 1");
    let known = classified(text);
    let send = |it: &mut Driven, text: &str| {
        let recalled = recalls(it, Message::Query(text.as_bytes(), &known));
        it.send(Message::Query(text.as_bytes(), &known));
        it.done("UPDATE 1");
        it.ready(I);
        recalled
    };
    assert!(!send(&mut it, text));
    assert!(send(&mut it, text));
    // Its comment may have a ticket.
    let commented = format!("/* fencing_token='a' */ {text}");
    assert!(!send(&mut it, &commented));
    // The gate is asked for another ticket.
    it.did("SET ringfence.token = 'a'", "SET", I);
    assert!(!send(&mut it, text));
}

#[test]
fn what_depends_on_more_is_not_recalled() {
    for text in [
        "BEGIN",
        "SET a = 1",
        "SELECT set_config('a', $1, false)",
        "EXECUTE p",
        "DECLARE c CURSOR FOR SELECT 1",
        "SELECT pg_catalog.pg_export_snapshot()",
        "CREATE TABLE t (a int)",
    ] {
        let mut it = Driven::new();
        let known = classified(text);
        let message = Message::Query(text.as_bytes(), &known);
        for _ in 0..3 {
            assert!(!recalls(&it, message), "{text}");
            let considered = Arc::new(it.0.consider(message).unwrap());
            it.0.remember(message, &considered);
        }
    }
}

#[test]
fn what_is_on_its_way_is_not_recalled() {
    let mut it = prepared("UPDATE t SET a = $1");
    for _ in 0..3 {
        bound(&mut it, "s");
        it.ready(I);
    }
    it.bind("", "s");
    it.execute("");
    it.sync();
    // It may fail.
    assert!(!recalls(&it, bind("", "s")));
    it.reply(BackendMessage::BindComplete);
    it.done("UPDATE 1");
    it.ready(I);
    it.parse("s", "DELETE FROM t");
    it.bind("", "s");
    assert!(!recalls(&it, Message::Execute(b"")));
}

/// What a client does at once, with its Sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    /// One of [`TEXTS`] as a simple Query.
    Query(usize),
    /// One of those that read or change rows, prepared.
    Prepared(usize),
    /// The same, by the unnamed statement.
    Unnamed(usize),
    /// The prepared one three times before its Sync.
    Pipelined(usize),
    /// A simple Query that the server refuses.
    Fails,
    /// It waits until all is answered.
    Waits,
}

const TEXTS: [&str; 8] = [
    "SELECT a FROM t",
    "UPDATE t SET a = 1",
    "BEGIN",
    "COMMIT",
    "SET ringfence.token = 'a'",
    "SET LOCAL ringfence.token = 'b'",
    "SET search_path = s",
    "BEGIN ISOLATION LEVEL SERIALIZABLE",
];
const TAGS: [&str; 8] = [
    "SELECT 1", "UPDATE 1", "BEGIN", "COMMIT", "SET", "SET", "SET", "BEGIN",
];

/// The server, as far as the order of its answers goes.
#[derive(Default)]
struct Server {
    in_block: bool,
    failed: bool,
    unanswered: Vec<Doing>,
}

impl Server {
    fn answer(&mut self, it: &mut Driven) {
        for doing in std::mem::take(&mut self.unanswered) {
            match doing {
                _ if self.failed && doing != Doing::Query(3) => {
                    it.error();
                }
                Doing::Query(text) => {
                    let rolls_back = text == 3 && std::mem::take(&mut self.failed);
                    self.in_block = match text {
                        2 | 7 => true,
                        3 => false,
                        _ => self.in_block,
                    };
                    it.done(if rolls_back { "ROLLBACK" } else { TAGS[text] });
                }
                Doing::Prepared(text) | Doing::Unnamed(text) => {
                    if doing == Doing::Unnamed(text) {
                        it.reply(BackendMessage::ParseComplete);
                    }
                    it.reply(BackendMessage::BindComplete);
                    it.done(TAGS[text]);
                }
                Doing::Pipelined(text) => {
                    for _ in 0..3 {
                        it.reply(BackendMessage::BindComplete);
                        it.done(TAGS[text]);
                    }
                }
                Doing::Fails => {
                    it.error();
                    self.failed = self.in_block;
                }
                Doing::Waits => {}
            }
            it.ready(match (self.in_block, self.failed) {
                (_, true) => E,
                (true, false) => T,
                (false, false) => I,
            });
        }
    }
}

fn doing() -> impl Strategy<Value = Doing> {
    prop_oneof![
        2 => (0..TEXTS.len()).prop_map(Doing::Query),
        3 => (0..2_usize).prop_map(Doing::Query),
        3 => (0..2_usize).prop_map(Doing::Prepared),
        1 => (0..2_usize).prop_map(Doing::Unnamed),
        1 => (0..2_usize).prop_map(Doing::Pipelined),
        1 => Just(Doing::Fails),
        6 => Just(Doing::Waits),
    ]
}

proptest! {
    /// That it is the same is checked wherever something is recalled.
    #[test]
    fn what_is_recalled_is_what_would_be_found(doings in vec(doing(), 0..80)) {
        let known = TEXTS.map(classified);
        let fails = classified("SELECT 1/0");
        let mut it = Driven::new();
        for (name, text) in ["0", "1"].iter().zip(TEXTS) {
            it.parse(name, text);
            it.sync();
            it.reply(BackendMessage::ParseComplete);
            it.ready(I);
        }
        let mut server = Server::default();
        for doing in doings {
            let texts = |text: usize| (TEXTS[text].as_bytes(), &known[text]);
            let name = |text: usize| if text == 0 { "0" } else { "1" };
            let messages = match doing {
                Doing::Query(text) => vec![Message::Query(texts(text).0, texts(text).1)],
                Doing::Prepared(text) => {
                    vec![bind("", name(text)), Message::Execute(b""), Message::Sync]
                }
                Doing::Unnamed(text) => vec![
                    Message::Parse(b"", texts(text).0, texts(text).1),
                    bind("", ""),
                    Message::Execute(b""),
                    Message::Sync,
                ],
                Doing::Pipelined(text) => {
                    let once = [bind("", name(text)), Message::Execute(b"")];
                    let mut messages = [once; 3].concat();
                    messages.push(Message::Sync);
                    messages
                }
                Doing::Fails => vec![Message::Query(b"SELECT 1/0", &fails)],
                Doing::Waits => {
                    server.answer(&mut it);
                    continue;
                }
            };
            for message in messages {
                // A ticket that comes too late.
                let Ok(considered) = consider(&mut it.0, message) else {
                    return Ok(());
                };
                it.0.forward(&considered);
            }
            server.unanswered.push(doing);
        }
        server.answer(&mut it);
    }
}
