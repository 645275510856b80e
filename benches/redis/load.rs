//! redis-benchmark: the requests it sends, and what it says of them.

use std::process::Command;

use super::servers::Contender;

/// Commands that a client sends before it reads an answer.
pub const PIPELINES: [u32; 2] = [1, 16];

/// SETs per second that the count of requests is computed from: a fast machine's.
const PER_S_GUESS: [u64; 2] = [35_000, 200_000];

/// What one run found.
pub struct Run {
    pub requests: u64,
    pub per_s: f64,
    pub p99_ms: f64,
}

/// Runs it. An error answer ends redis-benchmark, which is an error here: a fast refusal must not
/// pass for a fast proxy.
pub fn run(contender: &Contender, pipeline: u32, seconds: u64) -> Result<Run, String> {
    let guess = PER_S_GUESS[usize::from(pipeline > 1)];
    let requests = guess * seconds;
    let mut command = Command::new("redis-benchmark");
    command
        .args(["-t", "set", "-d", "64", "-r", "100000", "-c", "50", "--csv"])
        .args(["--precision", "3"])
        .args(["-p", &contender.port.to_string()])
        .args(["-n", &requests.to_string()])
        .args(["-P", &pipeline.to_string()]);
    if let Some(user) = &contender.user {
        command.args(["--user", user, "-a", "any"]);
    }
    let output = command
        .output()
        .map_err(|error| format!("redis-benchmark does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    // What Redis warns of where a proxy answers no CONFIG.
    let refused = text.contains("Error from server") || complaint.contains("Error from server");
    if !output.status.success() || refused {
        return Err(format!("redis-benchmark: {text}{complaint}"));
    }
    parse(&text, requests).ok_or_else(|| format!("redis-benchmark said:\n{text}{complaint}"))
}

/// Lines of `"SET","rps","avg","min","p50","p95","p99","max"`.
fn parse(text: &str, requests: u64) -> Option<Run> {
    let line = text.lines().find(|line| line.starts_with("\"SET\""))?;
    let fields: Vec<&str> = line
        .split(',')
        .map(|field| field.trim_matches('"'))
        .collect();
    Some(Run {
        requests,
        per_s: fields.get(1)?.parse().ok()?,
        p99_ms: fields.get(6)?.parse().ok()?,
    })
}
