//! Writers take one token after the other and write as often as they can, under stops, kills and
//! the death of backends; the tables' own orders never decrease.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::ledger::Ledger;
use super::{quick, seed, try_holder};
use crate::client::Client;
use crate::random::Random;
use crate::stack::{PATIENCE, sign};
use crate::world::World;

/// `RINGFENCE_ORDER_SECONDS`, or 5.
fn time() -> Duration {
    let given = std::env::var("RINGFENCE_ORDER_SECONDS").ok();
    Duration::from_secs(given.map_or(5, |text| text.parse().expect("a number of seconds")))
}

/// So many writes must have succeeded.
const WRITES_MIN: u64 = 150;

struct Shared {
    next: AtomicU64,
    written: AtomicU64,
    over: AtomicBool,
}

/// One token's writes, until something ends it.
fn write(client: &mut Client, token: u64, shared: &Shared) -> Option<()> {
    for at in 0..30 {
        let [log, ledger] = Ledger::writes(token);
        let answers = match at % 3 {
            0 => vec![client.query(&format!("{log}; {ledger}"))],
            1 => ["BEGIN", &log, &ledger, "COMMIT"]
                .map(|sql| client.query(sql))
                .to_vec(),
            _ => vec![client.run(&log, &[]), client.run(&ledger, &[])],
        };
        let well = |answer: &crate::client::Answer| answer.faults.is_empty() && answer.status != 0;
        answers.iter().all(well).then_some(())?;
        shared.written.fetch_add(1, Ordering::SeqCst);
    }
    Some(())
}

#[test]
fn tokens_in_the_servers_own_order_never_decrease() {
    let mut world = World::with(quick);
    let mut ledger = Ledger::make(&world.server);
    let shared = Shared {
        next: AtomicU64::new(1),
        written: AtomicU64::new(0),
        over: AtomicBool::new(false),
    };
    let mut random = Random(seed());
    let (address, key, sharing) = (world.proxy.address(), world.proxy.key.clone(), &shared);
    thread::scope(|scope| {
        for _ in 0..4 {
            let key = &key;
            scope.spawn(move || {
                while !sharing.over.load(Ordering::SeqCst) {
                    let token = sharing.next.fetch_add(1, Ordering::SeqCst);
                    let ticket = sign(key, "app", token);
                    let start = [("ringfence.token", &*ticket)];
                    if let Ok(mut client) = Client::try_connect(address, &start) {
                        write(&mut client, token, sharing);
                    }
                }
            });
        }
        let (until, at_most) = (Instant::now() + time(), Instant::now() + time() + PATIENCE);
        let mut admin = world.admin();
        // On a busy machine few writes get through in the time.
        let few = || sharing.written.load(Ordering::SeqCst) < WRITES_MIN;
        while Instant::now() < until || few() && Instant::now() < at_most {
            thread::sleep(Duration::from_millis(50 + random.below(100) as u64));
            match random.below(8) {
                0 => {
                    world.proxy.process.signal("STOP");
                    thread::sleep(Duration::from_millis(50));
                    world.proxy.process.signal("CONT");
                }
                1 => {
                    world.proxy.crash();
                    world.proxy.start_again();
                }
                _ => end_one(&mut admin),
            }
        }
        shared.over.store(true, Ordering::SeqCst);
        world.proxy.crash();
    });
    let (rows, holders) = ledger.check_order();
    println!("{rows} rows, {holders} changes of holder");
    assert!(
        rows > 100 && holders > 10,
        "{rows} rows, {holders} changes of holder"
    );
    world.proxy.start_again();
    let token = shared.next.load(Ordering::SeqCst);
    let mut last = try_holder(&world.proxy, token).expect("a session");
    last.query("SELECT 1").ok();
}

/// Ends the session of one client.
fn end_one(admin: &mut Client) {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE usename = 'app' AND query LIKE 'INSERT%' ORDER BY random() LIMIT 1";
    admin.query(sql).ok();
}
