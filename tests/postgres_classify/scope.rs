//! For how long a ticket counts, against the server's own parameter: random transactions, with
//! errors, savepoints and several statements in a query.

use ringfence::protocol::postgres::classify::{Isolation, Lexing, classify};
use ringfence::protocol::postgres::frame::{BackendMessage, TransactionStatus};
use ringfence::protocol::postgres::session::{Message, Session};
use ringfence::protocol::postgres::ticket::Tickets;
use ringfence::protocol::postgres::ticket::scope::Settings;

use crate::random::Random;
use crate::server::{Client, Server};

/// How many sessions, each of [`QUERIES`] queries; a longer campaign sets
/// `RINGFENCE_POSTGRES_SCOPE_SESSIONS`.
const SESSIONS: u64 = 150;
const QUERIES: usize = 25;

const STATEMENTS: &[&str] = &[
    "BEGIN",
    "BEGIN",
    "COMMIT",
    "COMMIT AND CHAIN",
    "ROLLBACK",
    "ROLLBACK AND CHAIN",
    "SAVEPOINT a",
    "SAVEPOINT b",
    "RELEASE a",
    "ROLLBACK TO a",
    "ROLLBACK TO b",
    "SET ringfence.token = '@'",
    "SET ringfence.token TO '@', 'x'",
    "SET LOCAL ringfence.token = '@'",
    "SET SESSION Ringfence.Token = '@'",
    "SET LOCAL ringfence.token TO DEFAULT",
    "RESET ringfence.token",
    "RESET ALL",
    "DISCARD ALL",
    "SELECT set_config('ringfence.token', '@', false)",
    "SELECT set_config('ringfence.token', '@', true)",
    "SELECT set_config('ringfence.token', NULL, true)",
    "SELECT 1/0",
    "SELECT 1",
    "PREPARE TRANSACTION 'g@'",
    BLOCK,
];

fn sessions() -> u64 {
    let name = "RINGFENCE_POSTGRES_SCOPE_SESSIONS";
    let set = std::env::var(name).ok();
    set.map_or(SESSIONS, |count| count.parse().expect("a number"))
}

const BLOCK: &str = "DO $$ BEGIN PERFORM 1; END $$";

/// Of the refusal of a ticket that may come behind a snapshot.
const LATE: &str = "before the first query of a REPEATABLE READ";

/// Sends a query as the proxy would; the session hears every answer. `None`: a ticket in it may
/// come behind a snapshot, which is refused.
fn run(session: &mut Session, client: &mut Client, text: &str) -> Option<TransactionStatus> {
    let classified = classify(text.as_bytes(), Lexing::CERTAIN);
    let considered = match session.consider(Message::Query(text.as_bytes(), &classified)) {
        Ok(considered) => considered,
        Err(refusal) if refusal.detail.contains(LATE) => return None,
        Err(refusal) => panic!("{text}: {refusal:?}"),
    };
    let forward = session.forward(&considered);
    assert!(forward.before.is_empty() && forward.after.is_empty());
    for (tag, payload) in client.messages(text) {
        let message = BackendMessage::read(tag, &payload).unwrap();
        session
            .reply(&message)
            .unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    session.catch_up();
    Some(session.status())
}

fn shown(client: &mut Client) -> String {
    let (_, rows) = client.rows("SELECT current_setting('ringfence.token', true)");
    rows[0][0].split(", ").collect::<Vec<_>>().join(",")
}

#[test]
fn a_ticket_counts_as_long_as_the_server_keeps_a_parameter() {
    let server = Server::start();
    let (mut compared, mut late) = (0, 0);
    for seed in 0..sessions() {
        let mut random = Random(seed);
        let mut client = server.connect_with(&[("ringfence.token", "start")]);
        let mut session = Session::new(Settings::new(
            Tickets::parse(b"start").unwrap(),
            None,
            Isolation::PerStatement,
        ));
        let mut sent = vec![];
        for step in 0..QUERIES {
            let statements: Vec<String> = (0..1 + random.below(3))
                .map(|at| {
                    let statement = STATEMENTS[random.below(STATEMENTS.len())];
                    statement.replace('@', &format!("t{seed}_{step}_{at}"))
                })
                .collect();
            let text = statements.join("; ");
            let blocks = sent.iter().any(|it: &String| it.contains(BLOCK));
            sent.push(text.clone());
            let Some(status) = run(&mut session, &mut client, &text) else {
                // Only behind a block of code, which may have set the isolation.
                assert!(blocks, "seed {seed}: {sent:#?}");
                sent.pop();
                late += 1;
                continue;
            };
            // In a failed transaction the server shows nothing.
            if status != TransactionStatus::Failed {
                let counts = session.settings().tickets.as_slice().join(",");
                assert_eq!(counts, shown(&mut client), "seed {seed}: {sent:#?}");
                compared += 1;
            }
        }
    }
    println!("{compared} compared, {late} with late tickets");
    assert!(compared > 10 * sessions(), "{compared} compared");
}
