//! pgbench: what it runs, and what it says and logs of it.

use std::path::Path;
use std::process::Command;

use super::postgres::{APP, programs};
use super::servers::Contender;
use super::stats::quantile;

/// Connections that pgbench has open at once.
pub const CONNECTIONS: [u32; 3] = [1, 8, 64];

/// One of pgbench's own scripts, by one protocol.
pub struct Load {
    /// What it is called in the tables.
    pub name: &'static str,
    arguments: &'static [&'static str],
    /// How many queries one of its transactions has.
    pub queries: u64,
}

/// TPC-B-like is BEGIN, five statements and END.
pub const LOADS: [Load; 4] = [
    Load {
        name: "-S, simple",
        arguments: &["-S", "-M", "simple"],
        queries: 1,
    },
    Load {
        name: "-S, prepared",
        arguments: &["-S", "-M", "prepared"],
        queries: 1,
    },
    Load {
        name: "TPC-B-like, simple",
        arguments: &["-b", "tpcb-like", "-M", "simple"],
        queries: 7,
    },
    Load {
        name: "TPC-B-like, prepared",
        arguments: &["-b", "tpcb-like", "-M", "prepared"],
        queries: 7,
    },
];

/// What one run found.
pub struct Run {
    pub transactions: u64,
    pub tps: f64,
    pub median_us: f64,
    pub p99_us: f64,
}

/// Runs it. A failed statement ends the client, which is an error here: a fast refusal must not
/// pass for a fast proxy.
pub fn run(
    contender: &Contender,
    load: &Load,
    connections: u32,
    seconds: u64,
) -> Result<Run, String> {
    let logs = tempfile::tempdir().expect("a directory for logs");
    let mut command = Command::new(programs().join("pgbench"));
    command
        .args([
            "-h",
            "127.0.0.1",
            "-p",
            &contender.port.to_string(),
            "-U",
            APP,
        ])
        // It vacuums first, and empties its history: every run begins with the same tables.
        .args(["-l", "--log-prefix"])
        .arg(logs.path().join("log"))
        .args(["-c", &connections.to_string(), "-T", &seconds.to_string()])
        .args(load.arguments)
        .arg(APP);
    if let Some(ticket) = &contender.ticket {
        command.env("PGOPTIONS", format!("-c ringfence.token={ticket}"));
    }
    let output = command
        .output()
        .map_err(|error| format!("pgbench does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || complaint.contains("ERROR") {
        return Err(format!("pgbench: {text}{complaint}"));
    }
    let latencies = latencies_us(logs.path());
    let tps = text
        .lines()
        .find_map(|line| line.strip_prefix("tps = "))
        .and_then(|rest| rest.split(' ').next()?.parse().ok());
    Ok(Run {
        transactions: latencies.len() as u64,
        tps: tps.ok_or_else(|| format!("pgbench said:\n{text}{complaint}"))?,
        median_us: quantile(&latencies, 0.5),
        p99_us: quantile(&latencies, 0.99),
    })
}

/// The third field of every line of its logs.
fn latencies_us(logs: &Path) -> Vec<f64> {
    let files = std::fs::read_dir(logs).expect("pgbench's logs");
    let texts = files
        .flatten()
        .map(|file| std::fs::read_to_string(file.path()));
    let texts: Vec<String> = texts.map(|text| text.expect("a log")).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    let third = |line: &str| line.split(' ').nth(2)?.parse().ok();
    lines.filter_map(third).collect()
}
