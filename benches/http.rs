//! The http listener next to nginx and haproxy, which remove the same header.
//!
//! Every proxy has one worker and the same origin; wrk (64 connections, one thread) visits them in
//! turn, several rounds, and the medians are compared. Processor time is the proxy's own, from
//! /proc. How to run it and what it found: benches/README.md.

#[path = "support/process.rs"]
mod process;
#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/stats.rs"]
mod stats;

#[path = "http/proxies.rs"]
mod proxies;
#[path = "http/wrk.rs"]
mod wrk;

use std::path::Path;

use proxies::Proxy;
use stats::{median, setting};
use wrk::Variant;

/// What one proxy did with one variant, over the rounds.
#[derive(Default)]
struct Samples {
    requests_per_s: Vec<f64>,
    cpu_us: Vec<f64>,
    p99_ms: Vec<f64>,
}

struct Contender {
    proxy: Proxy,
    samples: Vec<Samples>,
}

fn main() {
    let arguments: Vec<_> = std::env::args_os().collect();
    if let [_, first, config] = arguments.as_slice()
        && first == proxy::ARGUMENT
    {
        return proxy::serve(Path::new(config));
    }
    compare();
}

fn compare() {
    let rounds = setting("BENCH_ROUNDS", 5);
    let seconds = setting("BENCH_SECONDS", 3);
    let dir = tempfile::tempdir().expect("a directory for configurations");
    let origin = proxies::origin(dir.path());
    let ticket = proxies::ticket();
    let variants = wrk::variants(dir.path(), &ticket.envelope);

    let started = [
        proxies::ringfence(dir.path(), origin.port, &ticket),
        proxies::nginx(dir.path(), origin.port),
        proxies::haproxy(dir.path(), origin.port),
    ];
    let mut contenders = started.map(|proxy| {
        let samples = variants.iter().map(|_| Samples::default()).collect();
        Contender { proxy, samples }
    });

    println!("http: {rounds} rounds of {seconds} s each, wrk -t1 -c64; medians");
    for round in 0..=rounds {
        for (at, variant) in variants.iter().enumerate() {
            for contender in &mut contenders {
                // The first round warms up: connections, caches, the first seal.
                let seconds = if round == 0 { 1 } else { seconds };
                let sample = measure(contender, variant, seconds);
                if round > 0 {
                    contender.samples[at].add(&sample);
                }
            }
        }
    }
    for (at, variant) in variants.iter().enumerate() {
        print_variant(variant, at, &contenders);
    }
}

struct Sample {
    requests_per_s: f64,
    cpu_us: f64,
    p99_ms: f64,
}

impl Samples {
    fn add(&mut self, sample: &Sample) {
        self.requests_per_s.push(sample.requests_per_s);
        self.cpu_us.push(sample.cpu_us);
        self.p99_ms.push(sample.p99_ms);
    }
}

fn measure(contender: &Contender, variant: &Variant, seconds: u64) -> Sample {
    let before = contender.proxy.server.cpu();
    let run = wrk::run(contender.proxy.port, variant, seconds)
        .unwrap_or_else(|wrong| panic!("{} with {}: {wrong}", contender.proxy.name, variant.name));
    let cpu = contender.proxy.server.cpu() - before;
    Sample {
        requests_per_s: run.requests_per_s,
        cpu_us: cpu.as_secs_f64() * 1e6 / run.requests as f64,
        p99_ms: run.p99_ms,
    }
}

fn print_variant(variant: &Variant, at: usize, contenders: &[Contender]) {
    let ours = &contenders[0].samples[at];
    let (our_rate, our_cpu) = (median(&ours.requests_per_s), median(&ours.cpu_us));
    println!("\n{}", variant.name);
    println!(
        "  {:<10} {:>11} {:>12} {:>9}   ringfence: requests/s, CPU against it",
        "", "requests/s", "CPU us/req", "p99 ms"
    );
    for contender in contenders {
        let samples = &contender.samples[at];
        let (rate, cpu) = (median(&samples.requests_per_s), median(&samples.cpu_us));
        println!(
            "  {:<10} {rate:>11.0} {cpu:>12.1} {:>9.2}   x{:.2} x{:.2}",
            contender.proxy.name,
            median(&samples.p99_ms),
            our_rate / rate,
            our_cpu / cpu,
        );
    }
}
