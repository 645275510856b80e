//! The lock service next to etcd's own v3lock service, on the same etcd in the same run.
//!
//! Every load is given to v3lock and to lockd in turn, several rounds, and the medians are
//! compared; lockd with its embedded store is measured beside them. Client, servers and etcd share
//! the machine. How to run it and what it found: benches/README.md.

#[path = "support/process.rs"]
mod process;
#[path = "support/stats.rs"]
mod stats;

#[path = "lock/disk.rs"]
mod disk;
#[path = "lock/loads.rs"]
mod loads;
#[path = "lock/servers.rs"]
mod servers;
#[path = "lock/service.rs"]
mod service;
#[path = "lock/v3lock.rs"]
mod v3lock;

use std::time::Duration;

use loads::Figures;
use service::{Lockd, Locks};
use stats::{median, setting};
use v3lock::V3Lock;

/// The services that are compared.
const V3LOCK: &str = "etcd v3lock";
const ON_ETCD: &str = "lockd on etcd";
const EMBEDDED: &str = "lockd embedded";

/// Acquires per second of the open loop.
const OPEN_RATE: u32 = 500;

/// A load that takes longer is given up: its figures would mean nothing.
const LOAD_MAX: Duration = Duration::from_secs(120);

/// A load by its name and what it counts.
#[derive(Clone, Copy)]
enum Load {
    Closed,
    Hot,
    Open,
    Waiters,
}

const LOADS: [Load; 4] = [Load::Closed, Load::Hot, Load::Open, Load::Waiters];

impl Load {
    fn name(self) -> &'static str {
        match self {
            Load::Closed => "closed loop, 64 clients, a lock each: pairs/s",
            Load::Hot => "one lock, 32 contenders: handoffs/s",
            Load::Open => "open loop, 1000 clients, 500/s: acquires/s",
            Load::Waiters => "one lock, 1000 waiters: handoffs/s, one wake-up each",
        }
    }

    async fn run<L: Locks>(self, locks: &L, period: Duration) -> Figures {
        match self {
            Load::Closed => loads::closed(locks, 64, period).await,
            Load::Hot => loads::hot(locks, 32, period).await,
            Load::Open => loads::open(locks, 1000, OPEN_RATE, period).await,
            Load::Waiters => loads::waiters(locks, 1000, 200).await,
        }
    }
}

#[tokio::main]
async fn main() {
    let rounds = setting("BENCH_ROUNDS", 3);
    let period = Duration::from_secs(setting("BENCH_SECONDS", 5));
    let dir = tempfile::tempdir().expect("a directory for the servers' data");
    let etcd = servers::etcd(dir.path());
    let over_etcd = servers::lockd_on_etcd(dir.path(), &etcd);
    let embedded = servers::lockd_embedded(dir.path());
    let v3lock = V3Lock::connect(&etcd.url).await;
    let lockd = Lockd::connect(&over_etcd.url).await;
    let alone = Lockd::connect(&embedded.url).await;

    println!(
        "lock: {rounds} rounds of {} s each; medians",
        period.as_secs()
    );
    // Parts of names, for one load or one service alone, as when profiling.
    let of_load = std::env::var("BENCH_LOAD").unwrap_or_default();
    let of_service = std::env::var("BENCH_SERVICE").unwrap_or_default();
    let wanted = |name: &str| name.contains(&of_service);
    for load in LOADS
        .into_iter()
        .filter(|load| load.name().contains(&of_load))
    {
        let mut peer = Vec::new();
        let mut ours = Vec::new();
        let mut own_store = Vec::new();
        for _ in 0..rounds {
            if wanted(V3LOCK) {
                peer.extend(with_cpu(load.run(&v3lock, period), &[&etcd]).await);
            }
            if wanted(ON_ETCD) {
                ours.extend(with_cpu(load.run(&lockd, period), &[&etcd, &over_etcd]).await);
            }
            if wanted(EMBEDDED) {
                own_store.extend(with_cpu(load.run(&alone, period), &[&embedded]).await);
            }
        }
        println!("\n{}", load.name());
        println!(
            "  {:<16} {:>9} {:>9} {:>9} {:>10}   lockd against it",
            "", "rate/s", "p50 ms", "p99 ms", "CPU us/op"
        );
        let our_rate = rate(&ours);
        for (name, measured) in [(V3LOCK, &peer), (ON_ETCD, &ours), (EMBEDDED, &own_store)] {
            if !measured.is_empty() {
                print_row(name, measured, our_rate);
            }
        }
        if let Load::Open = load {
            let (p50, p99) = disk::sync_alone(dir.path(), OPEN_RATE, period);
            println!(
                "  {:<16} {OPEN_RATE:>9} {p50:>9.2} {p99:>9.2}",
                "one sync alone"
            );
        }
    }
}

/// A load's figures and the servers' processor time for each operation, in microseconds.
struct Measured {
    figures: Figures,
    cpu_us: f64,
}

/// `None`: it has not ended, as v3lock's waiters now and then do not.
async fn with_cpu(
    load: impl Future<Output = Figures>,
    used: &[&servers::Running],
) -> Option<Measured> {
    let cpu = || {
        used.iter()
            .map(|running| running.server.cpu())
            .sum::<Duration>()
    };
    let before = cpu();
    let Ok(figures) = tokio::time::timeout(LOAD_MAX, load).await else {
        println!("a load has not ended after {} s", LOAD_MAX.as_secs());
        return None;
    };
    let cpu_us = (cpu() - before).as_secs_f64() * 1e6 / figures.operations as f64;
    Some(Measured { figures, cpu_us })
}

fn rate(measured: &[Measured]) -> f64 {
    median(
        &measured
            .iter()
            .map(|m| m.figures.rate())
            .collect::<Vec<_>>(),
    )
}

fn print_row(name: &str, measured: &[Measured], our_rate: f64) {
    let of = |pick: fn(&Measured) -> f64| median(&measured.iter().map(pick).collect::<Vec<_>>());
    println!(
        "  {name:<16} {:>9.0} {:>9.2} {:>9.2} {:>10.0}   x{:.2}",
        rate(measured),
        of(|m| m.figures.latency_ms(0.5)),
        of(|m| m.figures.latency_ms(0.99)),
        of(|m| m.cpu_us),
        our_rate / rate(measured),
    );
}
