//! What counts is on disk before it counts. A killed process loses nothing that it handed to the
//! kernel, so that no kill shows whether the disk was told to keep it: strace does, which sees the
//! writes to the file, the end of its sync, and the first byte that depends on it. Each sync is
//! made to take its time, or what does not wait for it might come behind it all the same.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::backend::Origin;
use crate::clients::{Holder, put};
use crate::stack::{Lockd, Proxy, ProxySetup};
use crate::strace::Strace;

/// How long each sync takes at least.
const SYNC: Duration = Duration::from_millis(200);

/// strace on what matters of a process; sent bytes are shown as far as they tell what they are.
fn follow(pid: u32, to: &Path) -> Strace {
    let slow = format!("inject=fdatasync,fsync:delay_exit={}", SYNC.as_micros());
    let calls = "trace=pwrite64,pwritev,fdatasync,fsync,write,writev,sendto,sendmsg";
    let to = to.to_str().unwrap();
    // -y: which file a descriptor is.
    let arguments = ["-y", "-s", "4096", "-o", to, "-e", calls, "-e", &slow];
    Strace::on_process(pid, &arguments)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Written,
    Synced,
    Sent,
}

/// What was done to the file, and what was sent that contains `sent`, in order.
fn steps(trace: &Path, file: &str, sent: &str) -> Vec<Step> {
    let text = std::fs::read_to_string(trace).unwrap();
    // A call stands in two lines where another thread's came between: `PID call(... <unfinished
    // ...>` and `PID <... call resumed>...`. Writes and sends count as they begin, syncs as they
    // end.
    let mut syncing = vec![];
    let mut found = vec![];
    for line in text.lines() {
        let (thread, call) = line.split_once(' ').unwrap();
        let call = call.trim_start();
        let name = call.split(['(', ' ']).next().unwrap();
        let on_file = call.contains(&format!("/{file}>"));
        match name {
            "pwrite64" | "pwritev" if on_file => found.push(Step::Written),
            "fdatasync" | "fsync" if on_file && call.contains("<unfinished") => {
                syncing.push(thread);
            }
            "fdatasync" | "fsync" if on_file => found.push(Step::Synced),
            "<..." if call.contains("sync resumed>") && syncing.contains(&thread) => {
                syncing.retain(|it| *it != thread);
                found.push(Step::Synced);
            }
            "write" | "writev" | "sendto" | "sendmsg" if call.contains(sent) => {
                found.push(Step::Sent);
            }
            _ => {}
        }
    }
    found
}

/// Each time it was sent, something had been written since the last time, and synced after that.
fn each_is_synced_first(steps: &[Step], times: usize) {
    let parts: Vec<&[Step]> = steps.split(|step| *step == Step::Sent).collect();
    assert_eq!(parts.len(), times + 1, "{steps:?}");
    for part in &parts[..times] {
        let written = part.iter().position(|step| *step == Step::Written);
        let after = written.map_or(&part[..0], |at| &part[at..]);
        assert!(after.contains(&Step::Synced), "{steps:?}");
    }
}

fn proxy(dir: &Path, lockd: &Lockd, origin: &Origin, listener: &str, by: &[&str]) -> Proxy {
    let setup = ProxySetup {
        name: "edge-1",
        protocol: "http",
        upstream: origin.address,
        lockd,
        listener,
        rules: "[[listener.rule]]\nlock = \"orders/{id}\"\npath = \"/orders/{id}\"\n",
        data: None,
    };
    let by: Vec<String> = by.iter().map(ToString::to_string).collect();
    Proxy::start_by(dir, &setup, &by)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watermark_is_synced_before_the_first_write_under_it_is_forwarded() {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), "");
    let origin = Origin::start();
    // Tokens of another lock service are sealed by nobody: the write itself is what raises. Nobody
    // knows their floors either, so that the proxy wants to be told that it is new.
    let unsigned = "trust = \"unsigned\"";
    let new = ["sh", "-c", "exec \"$@\" --init", "sh"];
    let proxy = proxy(dir.path(), &lockd, &origin, unsigned, &new);
    let trace = dir.path().join("trace");
    let strace = follow(proxy.process.pid(), &trace);
    let tokens = [(1, "7"), (2, "7"), (1, "8")];
    for (lock, token) in tokens {
        let url = proxy.url(&format!("/orders/{lock}"));
        assert_eq!(put(&url, token, Some(token)).status, 200);
    }
    drop(strace);
    let steps = steps(&trace, "watermarks.redb", "\"PUT /orders/");
    each_is_synced_first(&steps, tokens.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watermark_is_synced_before_its_seal_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), "");
    let origin = Origin::start();
    let proxy = proxy(dir.path(), &lockd, &origin, "", &[]);
    let trace = dir.path().join("trace");
    let strace = follow(proxy.process.pid(), &trace);
    let mut holder = Holder::open(&lockd, 120_000).await;
    let asked = Instant::now();
    let grant = holder.acquire("orders/1", 0).await.unwrap();
    assert_eq!(grant.sealed, ["edge-1"]);
    // Its answer is not to be told from others in bytes: it is told by waiting for the slow sync.
    assert!(asked.elapsed() > SYNC, "{:?}", asked.elapsed());
    drop(strace);
    let steps = steps(&trace, "watermarks.redb", "\"PUT /orders/");
    assert_eq!(steps.last(), Some(&Step::Synced), "{steps:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_is_synced_before_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), "");
    let mut holder = Holder::open(&lockd, 120_000).await;
    let trace = dir.path().join("trace");
    let strace = follow(lockd.process.pid(), &trace);
    let locks = ["a", "b", "c"];
    for lock in locks {
        holder.acquire(lock, 0).await.unwrap();
    }
    drop(strace);
    // Its ticket tells it.
    let steps = steps(&trace, "locks.redb", "v4.public.");
    each_is_synced_first(&steps, locks.len());
}
