//! The postgres listener next to pgbouncer (session mode) and HAProxy (TCP), and Postgres itself.
//!
//! Every proxy has one worker and the same server; pgbench (-S and TPC-B-like, simple and prepared,
//! 1, 8 and 64 connections) visits them in turn, several rounds, and the medians are compared.
//! Processor time is the proxy's own, from /proc. At the end each proxy keeps idle connections, for
//! its memory. How to run it and what it found: benches/README.md.

#[path = "../tests/support/postgres/mod.rs"]
mod postgres;
#[path = "support/process.rs"]
mod process;
#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/stats.rs"]
mod stats;

#[path = "postgres/idle.rs"]
mod idle;
#[path = "postgres/load.rs"]
mod load;
#[path = "postgres/servers.rs"]
mod servers;

use std::path::Path;

use load::{CONNECTIONS, LOADS, Load};
use servers::Contender;
use stats::{median, setting};

/// What one contender did with one load, over the rounds.
#[derive(Default)]
struct Samples {
    tps: Vec<f64>,
    median_us: Vec<f64>,
    p99_us: Vec<f64>,
    cpu_us: Vec<f64>,
}

fn main() {
    let arguments: Vec<_> = std::env::args_os().collect();
    if let [_, first, config] = arguments.as_slice()
        && first == proxy::ARGUMENT
    {
        return proxy::serve(Path::new(config));
    }
    let dir = tempfile::tempdir().expect("a directory for configurations");
    let server = servers::postgres();
    let contenders = servers::start_all(&server, dir.path());
    let wanted = std::env::var("BENCH_LOAD").unwrap_or_default();
    let rounds = setting("BENCH_ROUNDS", 5);
    let seconds = setting("BENCH_SECONDS", 3);
    println!("postgres: {rounds} rounds of {seconds} s each");
    for load in &LOADS {
        for connections in CONNECTIONS {
            let name = format!("{}, {connections} connections", load.name);
            if name.contains(&wanted) {
                let samples = compare(&contenders, load, connections, rounds, seconds);
                print_table(&name, &contenders, &samples);
            }
        }
    }
    if "idle".contains(&wanted) {
        idle::compare(&contenders);
    }
}

fn compare(
    contenders: &[Contender],
    load: &Load,
    connections: u32,
    rounds: u64,
    seconds: u64,
) -> Vec<Samples> {
    let mut samples: Vec<Samples> = contenders.iter().map(|_| Samples::default()).collect();
    // The first round warms up: caches, the first seal.
    for round in 0..=rounds {
        for turn in 0..contenders.len() {
            // Each begins a round once: what comes later finds more in the tables.
            let at = (turn + round as usize) % contenders.len();
            let (contender, samples) = (&contenders[at], &mut samples[at]);
            let before = contender.cpu();
            let length = if round == 0 { 1 } else { seconds };
            let run = load::run(contender, load, connections, length)
                .unwrap_or_else(|wrong| panic!("{}: {wrong}", contender.name));
            let cpu = contender.cpu() - before;
            if round > 0 {
                let queries = run.transactions * load.queries;
                samples.tps.push(run.tps);
                samples.median_us.push(run.median_us);
                samples.p99_us.push(run.p99_us);
                samples
                    .cpu_us
                    .push(cpu.as_secs_f64() * 1e6 / queries as f64);
            }
        }
    }
    samples
}

fn print_table(name: &str, contenders: &[Contender], samples: &[Samples]) {
    println!("\n{name}");
    println!(
        "  {:<24} {:>9} {:>10} {:>9} {:>13}",
        "", "tps", "median us", "p99 us", "CPU us/query"
    );
    for (contender, samples) in contenders.iter().zip(samples) {
        let cpu = contender.proxy().map(|_| median(&samples.cpu_us));
        let cpu = cpu.map_or("-".to_owned(), |us| format!("{us:.2}"));
        println!(
            "  {:<24} {:>9.0} {:>10.0} {:>9.0} {cpu:>13}",
            contender.name,
            median(&samples.tps),
            median(&samples.median_us),
            median(&samples.p99_us),
        );
    }
}
