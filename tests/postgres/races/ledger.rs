//! Two append-only tables. `ledger` numbers its rows in the order of their commits, by a row lock
//! that every insert keeps to the end of its transaction; `log` does not, so that inserts run
//! beside each other, and is put in order by the server's commit timestamps.

use crate::client::Client;
use crate::postgres::Postgres;

const SCHEMA: &[&str] = &[
    "CREATE TABLE turn (n bigint NOT NULL)",
    "INSERT INTO turn VALUES (0)",
    "CREATE TABLE ledger (n bigint, token bigint)",
    "CREATE TABLE log (token bigint)",
    "CREATE FUNCTION take_turn() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN \
     UPDATE turn SET n = n + 1 RETURNING n INTO NEW.n; RETURN NEW; END$$",
    "CREATE TRIGGER take_turn BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION take_turn()",
];

/// How many rows of one token are in `ledger` and in `log`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows(u32, u32);

impl Rows {
    pub const NONE: Rows = Rows(0, 0);
    /// What one holder writes.
    pub const ALL: Rows = Rows(1, 1);
}

/// The tables, past the proxies.
pub struct Ledger {
    direct: Client,
}

impl Ledger {
    pub fn make(server: &Postgres) -> Ledger {
        let mut direct = Client::connect(server.address);
        for sql in SCHEMA {
            direct.query(sql).ok();
        }
        Ledger { direct }
    }

    /// The statements by which a holder writes.
    pub fn writes(token: u64) -> [String; 2] {
        // The one without a lock first, so that both are open for as long as possible.
        [
            format!("INSERT INTO log VALUES ({token})"),
            format!("INSERT INTO ledger (token) VALUES ({token})"),
        ]
    }

    /// `None`: refused.
    pub fn try_read(client: &mut Client, token: u64) -> Option<Rows> {
        let answer = client.query(&format!(
            "SELECT (SELECT count(*) FROM ledger WHERE token = {token}), \
             (SELECT count(*) FROM log WHERE token = {token})"
        ));
        let row = answer.rows.first()?;
        let count = |at: usize| row[at].parse().expect("a count");
        answer.faults.is_empty().then(|| Rows(count(0), count(1)))
    }

    pub fn read(&mut self, token: u64) -> Rows {
        Ledger::try_read(&mut self.direct, token).expect("the server answers")
    }

    /// Tokens never decrease; returns how many rows there are and how often the token changes.
    pub fn check_order(&mut self) -> (usize, usize) {
        let by_turn = "SELECT token FROM ledger ORDER BY n";
        let by_commit = "SELECT token FROM log ORDER BY pg_xact_commit_timestamp(xmin)";
        let mut found = (0, 0);
        for sql in [by_turn, by_commit] {
            let answer = self.direct.query(sql).ok();
            let tokens: Vec<u64> = answer
                .rows
                .iter()
                .map(|row| row[0].parse().unwrap())
                .collect();
            for (at, pair) in tokens.windows(2).enumerate() {
                assert!(
                    pair[0] <= pair[1],
                    "{sql}: row {at}: {} then {}",
                    pair[0],
                    pair[1]
                );
            }
            let changes = tokens.windows(2).filter(|pair| pair[0] != pair[1]).count();
            found = (tokens.len(), changes);
        }
        found
    }
}

/// The checker finds what it is for.
#[test]
fn a_token_that_comes_late_is_found() {
    for table in ["ledger", "log"] {
        let server = Postgres::start();
        let mut ledger = Ledger::make(&server);
        let mut direct = Client::connect(server.address);
        for token in [1, 1, 2, 3] {
            direct
                .query(&format!("INSERT INTO {table} (token) VALUES ({token})"))
                .ok();
        }
        ledger.check_order();
        direct
            .query(&format!("INSERT INTO {table} (token) VALUES (2)"))
            .ok();
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ledger.check_order();
        }));
        assert!(checked.is_err(), "{table}");
    }
}
