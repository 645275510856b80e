//! The older holder is stopped at every step of a transaction while a newer one takes over, with
//! the proxy alive, killed and started again, stopped for a while, and doubled.
//!
//! What must hold: what the newer holder reads first is final as far as the older one goes, what
//! the older one is told is so, and the table's own order shows tokens that never decrease.

mod ledger;
mod order;
mod pair;
mod shared;
mod step;

use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::client::Client;
use crate::postgres::Postgres;
use crate::random::Random;
use crate::stack::{PATIENCE, Proxy, Setup, eventually};
use crate::world::World;
use ledger::{Ledger, Rows};
use pair::{Fate, Pair};
use step::{STEPS, Step, Told};

pub use shared::BACKEND;

/// How often a race is tried: `RINGFENCE_RACE_TRIES`, or this.
pub fn tries(default: u64) -> u64 {
    let given = std::env::var("RINGFENCE_RACE_TRIES").ok();
    given.map_or(default, |text| text.parse().expect("a number of tries"))
}

/// `RINGFENCE_RACE_SEED`, or one of the time.
fn seed() -> u64 {
    let given = std::env::var("RINGFENCE_RACE_SEED").ok();
    let seed = given.map_or_else(
        || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.expect("a time after 1970").as_nanos() as u64
        },
        |text| text.parse().expect("a seed"),
    );
    println!("RINGFENCE_RACE_SEED={seed}");
    seed
}

fn quick(setup: Setup) -> Setup {
    setup
        .with("admit_deadline = \"1s\"")
        .with("cancel_after = \"5ms\"")
        .with("terminate_after = \"150ms\"")
}

/// Both holders' proxies, which may be one.
struct Race<'w> {
    server: &'w Postgres,
    ledger: Ledger,
    random: Random,
    /// What every newer holder has read, by the older one's token.
    sealed: Vec<(u64, Rows)>,
}

impl<'w> Race<'w> {
    fn new(server: &'w Postgres, seed: u64) -> Race<'w> {
        Race {
            server,
            ledger: Ledger::make(server),
            random: Random(seed),
            sealed: vec![],
        }
    }

    fn pause(&mut self, most_us: usize) -> Duration {
        Duration::from_micros(self.random.below(most_us) as u64)
    }

    /// One take-over, of the tokens `2 * round + 1` and the next.
    fn round(&mut self, pair: &mut Pair, round: u64, step: Step, fate: Fate) {
        let what = format!("round {round}: {step:?}, {fate:?}");
        println!("{what}");
        let token = 2 * round + 1;
        let mut old = pair.older().holder(token);
        let pid = old.backend_pid();
        step.arrange(&mut old, self.server, token);
        let (go_on, come, wake) = (self.pause(4000), self.pause(4000), self.pause(200_000));
        let server = self.server;
        let told = thread::scope(|scope| {
            let going_on = scope.spawn(move || {
                thread::sleep(go_on);
                step.go_on(&mut old, token)
            });
            if step.stops_its_backend() {
                scope.spawn(move || {
                    thread::sleep(wake);
                    server.signal(pid, Signal::CONT);
                });
            }
            thread::sleep(come);
            pair.suffer(fate);
            let sealed = self.take_over(pair.newer(), step, token, &what);
            self.sealed.push((token, sealed));
            pair.recover(fate);
            going_on.join().expect("the older holder")
        });
        self.judge(token, told, &what);
    }

    /// The newer holder reads first, which seals, and then writes.
    fn take_over(&mut self, proxy: &Proxy, step: Step, token: u64, what: &str) -> Rows {
        let mut sealed = None;
        eventually(what, || {
            let Some(mut new) = try_holder(proxy, token + 1) else {
                return false;
            };
            // Busy while something older is not gone.
            let Some(rows) = Ledger::try_read(&mut new, token) else {
                return false;
            };
            sealed = Some((new, rows));
            true
        });
        let (mut new, rows) = sealed.expect("it was admitted");
        if step == Step::Prepared {
            // Its row locks are kept until somebody who may decides.
            let told = new.query(&format!("ROLLBACK PREPARED 'g{token}'"));
            // Not there any more where the older one came first.
            let gone = ["", "42704", "RF005"];
            assert!(gone.contains(&told.code()), "{what}: {told:?}");
        }
        new.query(&format!("SET statement_timeout = {}", PATIENCE.as_millis()))
            .ok();
        for sql in Ledger::writes(token + 1) {
            let told = new.query(&sql);
            assert_eq!(told.code(), "", "{what}: {told:?}");
        }
        rows
    }

    /// What was told is so, and what was read is final.
    fn judge(&mut self, token: u64, told: Told, what: &str) {
        let rows = self.ledger.read(token);
        let (_, sealed) = self.sealed.last().expect("a seal");
        assert_eq!(
            rows, *sealed,
            "{what}: applied after the seal; told {told:?}"
        );
        match told {
            Told::Done => assert_eq!(rows, Rows::ALL, "{what}: told done"),
            Told::Refused => assert_eq!(rows, Rows::NONE, "{what}: told refused"),
            Told::Unknown => assert!([Rows::ALL, Rows::NONE].contains(&rows), "{what}: {rows:?}"),
        }
    }

    /// At the end nothing has come late, and the order is right.
    fn finish(mut self) {
        for (token, sealed) in std::mem::take(&mut self.sealed) {
            assert_eq!(self.ledger.read(token), sealed, "token {token}: came late");
        }
        self.ledger.check_order();
    }
}

/// A session of a proxy that may be just about to start.
fn try_holder(proxy: &Proxy, token: u64) -> Option<Client> {
    let ticket = proxy.ticket(token);
    Client::try_connect(proxy.address(), &[("ringfence.token", &ticket)]).ok()
}

/// One proxy for both holders.
fn alone() -> (Pair, Postgres, tempfile::TempDir) {
    let World { proxy, server, dir } = World::with(quick);
    (Pair::one(proxy), server, dir)
}

fn every_step_of(pair: &mut Pair, server: &Postgres, fate: Fate) {
    let mut race = Race::new(server, seed());
    for (round, step) in (0..).zip(STEPS) {
        race.round(pair, round, step, fate);
    }
    race.finish();
}

fn every_step_once(fate: Fate) {
    let (mut pair, server, _dir) = alone();
    every_step_of(&mut pair, &server, fate);
}

fn random_rounds(pair: &mut Pair, server: &Postgres, rounds: u64) {
    let mut race = Race::new(server, seed());
    for round in 0..rounds {
        let step = STEPS[race.random.below(STEPS.len())];
        let fate = match race.random.below(20) {
            0 => Fate::Killed,
            1..=3 => Fate::Stopped,
            _ => Fate::Alive,
        };
        race.round(pair, round, step, fate);
    }
    race.finish();
}

#[test]
fn every_step_with_the_proxy_alive() {
    every_step_once(Fate::Alive);
}

#[test]
fn every_step_with_the_proxy_killed() {
    every_step_once(Fate::Killed);
}

#[test]
fn every_step_with_the_proxy_stopped_for_a_while() {
    every_step_once(Fate::Stopped);
}

#[test]
fn random_steps_at_random_times() {
    let (mut pair, server, _dir) = alone();
    random_rounds(&mut pair, &server, tries(60));
}
