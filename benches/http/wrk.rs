//! wrk: the requests it sends, and what it says of them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of the small body.
const BODY_BYTES: usize = 128;

/// One kind of request.
pub struct Variant {
    /// What it is called in the tables.
    pub name: &'static str,
    /// The Lua file that sets it up.
    script: PathBuf,
}

/// What one run of wrk found.
pub struct Run {
    pub requests: u64,
    pub requests_per_s: f64,
    pub p99_ms: f64,
}

/// The variants, with their scripts in `dir`.
pub fn variants(dir: &Path, ticket: &str) -> Vec<Variant> {
    let ticket = format!("wrk.headers[\"Fencing-Token\"] = \"{ticket}\"\n");
    let body = "x".repeat(BODY_BYTES);
    let post = format!(
        "wrk.method = \"POST\"\nwrk.body = \"{body}\"\n\
         wrk.headers[\"Content-Type\"] = \"application/json\"\n"
    );
    [
        ("GET without a rule", "wrk.path = \"/open/7\"\n".to_owned()),
        (
            "GET with a ticket",
            format!("wrk.path = \"/fenced/7\"\n{ticket}"),
        ),
        (
            "POST of 128 bytes, fenced",
            format!("wrk.path = \"/fenced/7\"\n{ticket}{post}"),
        ),
    ]
    .into_iter()
    .enumerate()
    .map(|(at, (name, lua))| {
        let script = dir.join(format!("variant{at}.lua"));
        std::fs::write(&script, lua).expect("a wrk script");
        Variant { name, script }
    })
    .collect()
}

/// Runs wrk. Any answer but a success, and any socket error, is an error: a fast refusal must not
/// pass for a fast proxy.
pub fn run(port: u16, variant: &Variant, seconds: u64) -> Result<Run, String> {
    let output = Command::new("wrk")
        .args(["-t1", "-c64", "--latency", &format!("-d{seconds}s")])
        .arg("-s")
        .arg(&variant.script)
        .arg(format!("http://127.0.0.1:{port}/"))
        .output()
        .map_err(|error| format!("wrk does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let refused = text.contains("Non-2xx") || text.contains("Socket errors");
    if !output.status.success() || refused {
        return Err(format!(
            "wrk: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    parse(&text).ok_or_else(|| format!("wrk's output is not understood:\n{text}"))
}

fn parse(text: &str) -> Option<Run> {
    let word_after = |label: &str| {
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(label))?;
        line.split_whitespace().next()
    };
    let requests = text.lines().find(|line| line.contains(" requests in "))?;
    Some(Run {
        requests: requests.split_whitespace().next()?.parse().ok()?,
        requests_per_s: word_after("Requests/sec:")?.parse().ok()?,
        p99_ms: milliseconds(word_after("99%")?)?,
    })
}

fn milliseconds(text: &str) -> Option<f64> {
    let (unit, factor) = [("us", 1e-3), ("ms", 1.0), ("s", 1e3)]
        .into_iter()
        .find(|(unit, _)| text.ends_with(unit))?;
    text.strip_suffix(unit)?
        .parse::<f64>()
        .ok()
        .map(|value| value * factor)
}
