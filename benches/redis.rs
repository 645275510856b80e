//! The redis listener next to HAProxy (TCP), twemproxy and Envoy, and Redis itself.
//!
//! Every proxy has one worker and the same Redis; redis-benchmark (SET of 64 bytes, 50 connections,
//! pipelines of 1 and 16) visits them in turn, several rounds, and the medians are compared.
//! Processor time is the proxy's own, from /proc. At the end each proxy keeps idle connections, for
//! its memory. How to run it and what it found: benches/README.md.

#[path = "support/process.rs"]
mod process;
#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/stats.rs"]
mod stats;

#[path = "redis/idle.rs"]
mod idle;
#[path = "redis/load.rs"]
mod load;
#[path = "redis/servers.rs"]
mod servers;

use std::path::Path;

use load::PIPELINES;
use servers::Contender;
use stats::{median, setting};

/// What one contender did with one pipeline length, over the rounds.
#[derive(Default)]
struct Samples {
    per_s: Vec<f64>,
    cpu_us: Vec<f64>,
    p99_ms: Vec<f64>,
}

fn main() {
    let arguments: Vec<_> = std::env::args_os().collect();
    if let [_, first, config] = arguments.as_slice()
        && first == proxy::ARGUMENT
    {
        return proxy::serve(Path::new(config));
    }
    idle::raise_file_limit();
    let dir = tempfile::tempdir().expect("a directory for configurations");
    let only = std::env::var("BENCH_SERVICE").unwrap_or_default();
    let all = servers::start_all(dir.path()).into_iter();
    // The others go on running: one of them is the backend.
    let (contenders, _others): (Vec<_>, Vec<_>) = all.partition(|it| it.name.contains(&only));
    compare(&contenders);
    idle::compare(&contenders);
}

fn compare(contenders: &[Contender]) {
    let rounds = setting("BENCH_ROUNDS", 5);
    let seconds = setting("BENCH_SECONDS", 3);
    println!("redis: {rounds} rounds of about {seconds} s each, SET of 64 bytes, 50 connections");
    let load = std::env::var("BENCH_LOAD").unwrap_or_default();
    let wanted = |pipeline: &u32| load.is_empty() || load == pipeline.to_string();
    for pipeline in PIPELINES.into_iter().filter(wanted) {
        let mut samples: Vec<Samples> = contenders.iter().map(|_| Samples::default()).collect();
        // The first round warms up: connections, caches, the first seal.
        for round in 0..=rounds {
            for (contender, samples) in contenders.iter().zip(&mut samples) {
                let before = contender.measured().cpu();
                let run = load::run(contender, pipeline, seconds)
                    .unwrap_or_else(|wrong| panic!("{}: {wrong}", contender.name));
                let cpu = contender.measured().cpu() - before;
                if round > 0 {
                    samples.per_s.push(run.per_s);
                    samples
                        .cpu_us
                        .push(cpu.as_secs_f64() * 1e6 / run.requests as f64);
                    samples.p99_ms.push(run.p99_ms);
                }
            }
        }
        print_table(pipeline, contenders, &samples);
    }
}

fn print_table(pipeline: u32, contenders: &[Contender], samples: &[Samples]) {
    println!("\npipeline of {pipeline}");
    println!(
        "  {:<20} {:>10} {:>10} {:>9}",
        "", "SETs/s", "CPU us/op", "p99 ms"
    );
    for (contender, samples) in contenders.iter().zip(samples) {
        println!(
            "  {:<20} {:>10.0} {:>10.2} {:>9.2}",
            contender.name,
            median(&samples.per_s),
            median(&samples.cpu_us),
            median(&samples.p99_ms),
        );
    }
}
