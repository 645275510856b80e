//! Random pipelines of a client, with refusals and roll-backs of the proxy, against a real server:
//! every answer is the one that the session awaits, and no refused statement has an effect.

use ringfence::protocol::postgres::classify::{Isolation, Lexing, classify};
use ringfence::protocol::postgres::frame::{
    BackendMessage, BindHead, ClosedKind, TransactionStatus, bind, close_statement, error_response,
    message, parse, query, sync,
};
use ringfence::protocol::postgres::session::{Considered, Deliver, Message, Session};
use ringfence::protocol::postgres::ticket::Tickets;
use ringfence::protocol::postgres::ticket::scope::Settings;

use crate::random::Random;
use crate::server::{Answer, Client, Server};

/// How many sessions, each of [`BATCHES`] batches; a longer campaign sets
/// `RINGFENCE_POSTGRES_PIPELINE_SESSIONS`.
const SESSIONS: u64 = 150;
const BATCHES: usize = 12;

const TEXTS: &[&str] = &[
    "BEGIN",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "COMMIT AND CHAIN",
    "SAVEPOINT a",
    "ROLLBACK TO a",
    "SET ringfence.token = 'a'",
    "SET LOCAL ringfence.token = 'b'",
    "INSERT INTO good VALUES (1)",
    "SELECT 1/0",
    UNREAD,
    "SELECT * FROM generate_series(1, 3)",
    "DEALLOCATE ALL",
    "",
];

const UNREAD: &str = "SELEC 1";

/// Of the refusal of a ticket that may come behind a snapshot.
const LATE: &str = "before the first query of a REPEATABLE READ";

/// What must never run: it is refused wherever it stands.
const REFUSED: &str = "INSERT INTO bad VALUES (1)";

struct Proxied {
    session: Session,
    client: Client,
    /// What goes to the server at once.
    batch: Vec<u8>,
    random: Random,
    refusals: usize,
    /// Those of tickets that may come behind a snapshot.
    late: usize,
    /// A text that cannot be read was sent: from then on the isolation is not known.
    unread: bool,
}

impl Proxied {
    fn carry(&mut self, sent: Message<'_>, bytes: &[u8], refused: bool) {
        if !refused && self.session.pass(sent) {
            return self.batch.extend_from_slice(bytes);
        }
        let considered = match self.session.consider(sent) {
            Ok(considered) => considered,
            Err(refusal) if self.unread && refusal.detail.contains(LATE) => {
                return self.refuse_unread(sent, bytes);
            }
            Err(refusal) => panic!("{refusal:?}"),
        };
        // Shown when the test fails.
        println!("> {} {refused}", String::from_utf8_lossy(bytes));
        if refused || Self::must_refuse(&considered) {
            let error = error_response(&[(b'C', "RF001")]);
            self.batch.extend(self.session.refuse(&considered, error));
            self.refusals += 1;
            return;
        }
        self.unread |= bytes
            .windows(UNREAD.len())
            .any(|it| it == UNREAD.as_bytes());
        let forward = self.session.forward(&considered);
        self.batch.extend(forward.before);
        self.batch.extend_from_slice(bytes);
        self.batch.extend(forward.after);
    }

    /// As the proxy does with what the session does not take.
    fn refuse_unread(&mut self, sent: Message<'_>, bytes: &[u8]) {
        println!("> {} late", String::from_utf8_lossy(bytes));
        if let Some(instead) = self.session.skip(sent) {
            return self.batch.extend(instead);
        }
        let considered = self.session.unread(sent);
        let error = error_response(&[(b'C', "RF005")]);
        self.batch.extend(self.session.refuse(&considered, error));
        self.late += 1;
    }

    fn must_refuse(considered: &Considered) -> bool {
        considered.rolled_back && !considered.only_rolls_back()
    }

    fn query(&mut self, text: &str) {
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        let sent = Message::Query(text.as_bytes(), &classified);
        self.carry(sent, &query(text.as_bytes()), text == REFUSED);
    }

    fn execute(&mut self, text: &str) {
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        let sent = Message::Parse(b"", text.as_bytes(), &classified);
        self.carry(sent, &parse(b"", text.as_bytes()), false);
        let head = BindHead {
            portal: b"",
            statement: b"",
            has_values: false,
        };
        self.carry(Message::BindHead(head), &bind(b"", b""), false);
        self.carry(
            Message::Execute(b""),
            &message(b'E', &[0; 5]),
            text == REFUSED,
        );
    }

    fn describe(&mut self) {
        let text = "SELECT 1";
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        let sent = Message::Parse(b"named", text.as_bytes(), &classified);
        self.carry(sent, &parse(b"named", text.as_bytes()), false);
        let described = Message::Describe(ClosedKind::Statement, b"named");
        self.carry(described, &message(b'D', b"Snamed\0"), false);
        if self.random.below(2) == 0 {
            let sent = Message::Close(ClosedKind::Statement, b"named");
            self.carry(sent, &close_statement(b"named"), false);
        }
    }

    fn copy(&mut self, text: &str) {
        match self.random.below(2) {
            0 => self.query(text),
            _ => {
                self.execute(text);
                // Some drivers send it before the data; the server ignores it there.
                if self.random.below(2) == 0 {
                    self.sync();
                }
            }
        }
        self.carry(Message::CopyData, &message(b'd', b"7\n"), false);
        let end = match self.random.below(2) {
            0 => message(b'c', &[]),
            _ => message(b'f', b"no\0"),
        };
        self.carry(Message::CopyEnd, &end, false);
    }

    fn sync(&mut self) {
        self.carry(Message::Sync, &sync(), false);
    }

    fn step(&mut self) {
        let text = TEXTS[self.random.below(TEXTS.len())];
        match self.random.below(12) {
            0..4 => self.execute(text),
            4..6 => self.query(text),
            6 => {
                let second = TEXTS[self.random.below(TEXTS.len())];
                self.query(&format!("{text}; {second}"));
            }
            7 => self.describe(),
            8 => self.copy("COPY good FROM STDIN"),
            9 => self.copy("COPY missing FROM STDIN"),
            10 if self.random.below(2) == 0 => self.query(REFUSED),
            10 => self.execute(REFUSED),
            _ => self.sync(),
        }
    }

    /// Sends what was put together and hears everything that the server says to it.
    fn exchange(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        self.client.send(&batch);
        while !self.session.is_quiet() {
            let (tag, payload) = self.client.receive();
            println!("< {} {}", tag as char, String::from_utf8_lossy(&payload));
            let told = BackendMessage::read(tag, &payload).unwrap();
            let reply = self
                .session
                .reply(&told)
                .unwrap_or_else(|error| panic!("{error}"));
            if let (BackendMessage::Error(fields), Deliver::Pass) = (&told, &reply.deliver) {
                // What the refused text gives at the server is never told.
                let text = String::from_utf8_lossy(fields.get(b'M').unwrap_or_default());
                assert!(!text.contains("ringfence"), "{text}");
            }
        }
        self.session.catch_up();
    }
}

fn sessions() -> u64 {
    let name = "RINGFENCE_POSTGRES_PIPELINE_SESSIONS";
    let set = std::env::var(name).ok();
    set.map_or(SESSIONS, |count| count.parse().expect("a number"))
}

#[test]
fn the_server_answers_what_the_session_awaits() {
    let server = Server::start();
    let mut judge = server.connect();
    assert_eq!(judge.query("CREATE TABLE good (a int)"), Answer::Done);
    assert_eq!(judge.query("CREATE TABLE bad (a int)"), Answer::Done);
    let (mut refusals, mut late) = (0, 0);
    for seed in 0..sessions() {
        println!("seed {seed}");
        let start = Settings::new(Tickets::default(), None, Isolation::PerStatement);
        let mut it = Proxied {
            session: Session::new(start),
            client: server.connect(),
            batch: vec![],
            random: Random(seed),
            refusals: 0,
            late: 0,
            unread: false,
        };
        for _ in 0..BATCHES {
            for _ in 0..1 + it.random.below(8) {
                it.step();
            }
            it.sync();
            it.exchange();
            let open = it.session.status() != TransactionStatus::Idle;
            assert_eq!(open, it.session.in_transaction());
            if open && it.random.below(3) == 0 {
                it.batch = it.session.roll_back(vec![]);
                it.exchange();
                assert_eq!(it.session.status(), TransactionStatus::Idle);
            }
        }
        refusals += it.refusals;
        late += it.late;
    }
    println!("{refusals} refusals, {late} late tickets");
    assert!(refusals > 100, "{refusals} refusals");
    let (_, rows) = judge.rows("SELECT count(*) > 0, (SELECT count(*) FROM bad) FROM good");
    assert_eq!(rows, [["t", "0"]]);
}
