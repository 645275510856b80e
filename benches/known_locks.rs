//! Ten million known locks: each is raised once through its gate and its durable record, leaves
//! memory when idle, and comes back from the store. Prints what the process keeps resident.
//!
//! `KNOWN_LOCKS=n` takes another number of locks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence::lock_name::LockName;
use ringfence::protocol::Code;
use ringfence::proxy::gates::{Claim, Gates, Holds};
use ringfence::proxy::watermarks::{Opening, Watermarks};
use ringfence::token::Token;

/// Raises that wait for the disk at once.
const AT_ONCE: u64 = 4_096;
const IDLE: Duration = Duration::from_millis(500);

fn claim(lock: u64, token: u64) -> Claim {
    let lock = LockName::new(&format!("tenant/{}/ledger/{lock}", lock % 1_000)).unwrap();
    Claim {
        lock,
        token: Token::new(token).unwrap(),
        unsigned: false,
    }
}

fn memory_mib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        / 1024
}

/// A full queue to the disk is told as busy: then it is tried again, as a client would.
async fn raise(gates: &Gates, lock: u64) {
    loop {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        match gates
            .settle(&claim(lock, 7), Some(Duration::ZERO), deadline)
            .await
        {
            Ok(()) => return,
            Err(refusal) if refusal.code == Code::Busy => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(refusal) => panic!("lock {lock}: {refusal:?}"),
        }
    }
}

#[tokio::main]
async fn main() {
    let locks: u64 = std::env::var("KNOWN_LOCKS").map_or(10_000_000, |it| it.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let opening = Opening {
        init: true,
        alone: true,
        registered: false,
        fingerprint: 1,
        patterns: vec![],
    };
    let (watermarks, thread, start) = Watermarks::open(dir.path(), opening).unwrap();
    let gates = Gates::new(watermarks, start, Holds::default(), None, vec![]);
    tokio::spawn(gates.clone().run_eviction(IDLE));

    let started = Instant::now();
    let next = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let raisers = (0..AT_ONCE).map(|_| {
        let (gates, next) = (gates.clone(), Arc::clone(&next));
        tokio::spawn(async move {
            loop {
                let lock = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if lock >= locks {
                    return;
                }
                raise(&gates, lock).await;
            }
        })
    });
    for raiser in raisers.collect::<Vec<_>>() {
        raiser.await.unwrap();
    }
    let raised = started.elapsed();
    tokio::time::sleep(IDLE * 4).await;
    println!(
        "{locks} locks raised durably in {:.1} s",
        raised.as_secs_f64()
    );
    println!(
        "resident {} MiB, at its highest {} MiB",
        memory_mib("VmRSS"),
        memory_mib("VmHWM")
    );

    let step = (locks / 1_000).max(1) as usize;
    let asked = Instant::now();
    let mut back = 0;
    for lock in (0..locks).step_by(step) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        let older = gates.settle(&claim(lock, 6), None, deadline).await;
        assert!(
            older.is_err(),
            "lock {lock} came back without its watermark"
        );
        back += 1;
    }
    let each = asked.elapsed().as_micros() / back;
    println!("{back} of them came back from the store with their watermark, {each} us each");
    drop(gates);
    thread.close(true);
}
