//! Where the older holder is when the newer one comes, and how it goes on afterwards.

use rustix::process::Signal;

use super::ledger::Ledger;
use crate::client::send::{bind, copy_data, copy_done, execute, flush, parse, query, run, sync};
use crate::client::{Answer, Client};
use crate::postgres::Postgres;
use crate::stack::eventually;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    BeforeBegin,
    AfterBegin,
    /// With row locks that the newer holder needs.
    IdleInTransaction,
    InSavepoint,
    LongStatement,
    LongImplicit,
    CopyIn,
    SuspendedPortal,
    BetweenParseAndExecute,
    /// A pipeline whose Sync is yet to come.
    PipelineWithoutSync,
    /// COMMIT is sent, and the backend is stopped before it.
    CommitToAStoppedBackend,
    Prepared,
    /// Everything in one write when it goes on.
    OnePipeline,
    OneText,
}

pub const STEPS: [Step; 14] = [
    Step::BeforeBegin,
    Step::AfterBegin,
    Step::IdleInTransaction,
    Step::InSavepoint,
    Step::LongStatement,
    Step::LongImplicit,
    Step::CopyIn,
    Step::SuspendedPortal,
    Step::BetweenParseAndExecute,
    Step::PipelineWithoutSync,
    Step::CommitToAStoppedBackend,
    Step::Prepared,
    Step::OnePipeline,
    Step::OneText,
];

/// What the older holder was told about its writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    Done,
    Refused,
    Unknown,
}

/// What the answer that decides says.
fn told(answer: &Answer) -> Told {
    let unknown = answer.status == 0 || ["08007", "57P01"].contains(&answer.code());
    let rolled_back = answer.done.last().is_some_and(|it| it == "ROLLBACK");
    match (unknown, rolled_back || !answer.faults.is_empty()) {
        (true, _) => Told::Unknown,
        (false, true) => Told::Refused,
        (false, false) => Told::Done,
    }
}

fn both_writes(token: u64) -> String {
    Ledger::writes(token).join("; ")
}

fn begin_and_write(client: &mut Client, token: u64) {
    client.query("BEGIN").ok();
    client.query(&both_writes(token)).ok();
}

/// Parse, Bind, Execute of both writes.
fn writes_extended(token: u64) -> Vec<u8> {
    Ledger::writes(token)
        .iter()
        .flat_map(|sql| run(sql, &[]))
        .collect()
}

fn wait_for_sleep(server: &Postgres, pid: i32) {
    let mut admin = Client::connect_with(server.address, &[("user", "postgres")]);
    let sleeps = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'PgSleep'"
    );
    eventually("the statement", || admin.query(&sleeps).value() == "1");
}

impl Step {
    pub fn stops_its_backend(self) -> bool {
        self == Step::CommitToAStoppedBackend
    }

    /// Up to where it is when the newer holder comes. Every step has presented its ticket.
    pub fn arrange(self, client: &mut Client, server: &Postgres, token: u64) {
        match self {
            Step::BeforeBegin | Step::OnePipeline | Step::OneText => {}
            Step::AfterBegin => {
                client.query("BEGIN").ok();
            }
            Step::IdleInTransaction => begin_and_write(client, token),
            Step::InSavepoint => {
                begin_and_write(client, token);
                client.query("SAVEPOINT a; SELECT 1").ok();
            }
            Step::LongStatement => {
                begin_and_write(client, token);
                let pid = client.backend_pid();
                client.send(&query("SELECT pg_sleep(60)"));
                wait_for_sleep(server, pid);
            }
            Step::LongImplicit => {
                let pid = client.backend_pid();
                let text = format!("{}; SELECT pg_sleep(60)", both_writes(token));
                client.send(&query(&text));
                wait_for_sleep(server, pid);
            }
            Step::CopyIn => {
                client.query("BEGIN").ok();
                client.query(&Ledger::writes(token)[0]).ok();
                client.send(&query("COPY ledger (token) FROM STDIN"));
                client.read_until(b'G');
                client.send(&copy_data(format!("{token}\n").as_bytes()));
            }
            Step::SuspendedPortal => {
                begin_and_write(client, token);
                let series = parse("", "SELECT generate_series(1, 9)");
                let start = [series, bind("", "", &[]), execute("", 2), flush()];
                client.send(&start.concat());
                client.read_until(b's');
            }
            Step::BetweenParseAndExecute => {
                let [first, second] = Ledger::writes(token);
                client.send(&[run(&first, &[]), parse("", &second), flush()].concat());
                client.read_until(b'C');
                client.read_until(b'1');
            }
            Step::PipelineWithoutSync => {
                client.send(&[run("BEGIN", &[]), writes_extended(token), flush()].concat());
                for _ in 0..3 {
                    client.read_until(b'C');
                }
            }
            Step::CommitToAStoppedBackend => {
                begin_and_write(client, token);
                let pid = client.backend_pid();
                server.signal(pid, Signal::STOP);
                client.send(&query("COMMIT"));
            }
            Step::Prepared => {
                begin_and_write(client, token);
                client
                    .query(&format!("PREPARE TRANSACTION 'g{token}'"))
                    .ok();
            }
        }
    }

    /// To the end, as if nothing had happened.
    pub fn go_on(self, client: &mut Client, token: u64) -> Told {
        let answer = match self {
            Step::BeforeBegin => {
                client.query("BEGIN");
                client.query(&both_writes(token));
                client.query("COMMIT")
            }
            Step::AfterBegin => {
                client.query(&both_writes(token));
                client.query("COMMIT")
            }
            Step::IdleInTransaction => client.query("COMMIT"),
            Step::InSavepoint => {
                client.query("ROLLBACK TO a");
                client.query("COMMIT")
            }
            Step::LongStatement => {
                client.answer();
                client.query("COMMIT")
            }
            Step::LongImplicit | Step::CommitToAStoppedBackend => client.answer(),
            Step::CopyIn => {
                client.ask(&copy_done());
                client.query("COMMIT")
            }
            Step::SuspendedPortal => {
                client.ask(&[execute("", 0), sync()].concat());
                client.query("COMMIT")
            }
            Step::BetweenParseAndExecute => {
                client.ask(&[bind("", "", &[]), execute("", 0), sync()].concat())
            }
            Step::PipelineWithoutSync => client.ask(&[run("COMMIT", &[]), sync()].concat()),
            Step::Prepared => client.query(&format!("COMMIT PREPARED 'g{token}'")),
            Step::OnePipeline => {
                let begin = run("BEGIN", &[]);
                let commit = [run("COMMIT", &[]), sync()].concat();
                client.ask(&[begin, writes_extended(token), commit].concat())
            }
            Step::OneText => client.query(&format!("BEGIN; {}; COMMIT", both_writes(token))),
        };
        told(&answer)
    }
}
