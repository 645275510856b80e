//! The four loads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::sync::{Mutex, mpsc, oneshot};

use super::service::Locks;
use super::stats::quantile;

/// What a load found.
pub struct Figures {
    /// Acquire and release, once each.
    pub operations: u64,
    elapsed: Duration,
    latencies_ms: Vec<f64>,
}

impl Figures {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64()
    }

    /// A quantile of the time from the request (or, with waiters, from the release before) to the
    /// grant.
    pub fn latency_ms(&self, q: f64) -> f64 {
        quantile(&self.latencies_ms, q)
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

async fn open_all<L: Locks>(locks: &L, clients: usize) -> Vec<L::Session> {
    join_all((0..clients).map(|client| locks.open(client))).await
}

async fn close_all<L: Locks>(locks: &L, sessions: Vec<L::Session>) {
    join_all(sessions.into_iter().map(|session| locks.close(session))).await;
}

/// Each client acquires and releases a lock of its own, again and again.
pub async fn closed<L: Locks>(locks: &L, clients: usize, period: Duration) -> Figures {
    loops(locks, clients, period, |client| {
        format!("bench/closed/{client}")
    })
    .await
}

/// All clients want the same lock.
pub async fn hot<L: Locks>(locks: &L, clients: usize, period: Duration) -> Figures {
    loops(locks, clients, period, |_| "bench/hot".to_owned()).await
}

async fn loops<L: Locks>(
    locks: &L,
    clients: usize,
    period: Duration,
    name: impl Fn(usize) -> String,
) -> Figures {
    let sessions = open_all(locks, clients).await;
    let started = Instant::now();
    let mut tasks = Vec::new();
    for (client, mut session) in sessions.into_iter().enumerate() {
        let (locks, name) = (locks.clone(), name(client));
        tasks.push(tokio::spawn(async move {
            let mut latencies_ms = Vec::new();
            while started.elapsed() < period {
                let asked = Instant::now();
                let held = locks.lock(&mut session, &name).await;
                latencies_ms.push(ms(asked.elapsed()));
                locks.unlock(held).await;
            }
            (session, latencies_ms)
        }));
    }
    let mut sessions = Vec::new();
    let mut latencies_ms = Vec::new();
    for task in tasks {
        let (session, of_client) = task.await.expect("a client");
        sessions.push(session);
        latencies_ms.extend(of_client);
    }
    let elapsed = started.elapsed();
    close_all(locks, sessions).await;
    Figures {
        operations: latencies_ms.len() as u64,
        elapsed,
        latencies_ms,
    }
}

/// Acquires begin at fixed times, whether or not earlier ones have ended, each by the next client
/// on a lock of its own. Latency counts from the time at which an acquire should have begun.
pub async fn open<L: Locks>(locks: &L, clients: usize, rate: u32, period: Duration) -> Figures {
    let sessions: Vec<_> = open_all(locks, clients)
        .await
        .into_iter()
        .map(|s| Arc::new(Mutex::new(s)))
        .collect();
    let gap = Duration::from_secs(1) / rate;
    let count = (period.as_secs_f64() / gap.as_secs_f64()) as u32;
    let started = Instant::now();
    let mut tasks = Vec::new();
    for n in 0..count {
        let due = started + gap * n;
        tokio::time::sleep_until(due.into()).await;
        let client = n as usize % clients;
        let (locks, session) = (locks.clone(), sessions[client].clone());
        tasks.push(tokio::spawn(async move {
            let mut session = session.lock().await;
            let held = locks
                .lock(&mut session, &format!("bench/open/{client}"))
                .await;
            let latency = due.elapsed();
            locks.unlock(held).await;
            ms(latency)
        }));
    }
    let mut latencies_ms = Vec::new();
    for task in tasks {
        latencies_ms.push(task.await.expect("a client"));
    }
    let elapsed = started.elapsed();
    let sessions = sessions
        .into_iter()
        .map(|s| Arc::into_inner(s).expect("all ended"));
    close_all(locks, sessions.map(Mutex::into_inner).collect()).await;
    Figures {
        operations: latencies_ms.len() as u64,
        elapsed,
        latencies_ms,
    }
}

/// Many wait for one lock, and it is released a number of times. Each release must grant it to one.
pub async fn waiters<L: Locks>(locks: &L, clients: usize, releases: u64) -> Figures {
    const NAME: &str = "bench/waiters";
    let mut first = locks.open(0).await;
    let mut held = locks.lock(&mut first, NAME).await;

    let (granted, mut grants) = mpsc::channel(clients);
    let mut tasks = Vec::new();
    for mut session in open_all(locks, clients).await {
        let (locks, granted) = (locks.clone(), granted.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            tokio::select! {
                held = locks.lock(&mut session, NAME) => {
                    let _ = granted.send((Instant::now(), held)).await;
                }
                _ = stopped => {}
            }
            session
        });
        tasks.push((stop, task));
    }
    while locks.queued(NAME).await < 1 + clients as u64 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let started = Instant::now();
    let mut latencies_ms = Vec::new();
    for _ in 0..releases {
        let released = Instant::now();
        locks.unlock(held).await;
        let (at, next) = grants.recv().await.expect("a waiter is granted the lock");
        latencies_ms.push(ms(at - released));
        assert!(
            grants.try_recv().is_err(),
            "one release granted the lock to two"
        );
        held = next;
    }
    let elapsed = started.elapsed();

    // The other waiters leave while the lock is held, so that the closes grant nothing to them.
    let mut sessions = Vec::new();
    for (stop, task) in tasks {
        let _ = stop.send(());
        sessions.push(task.await.expect("a waiter"));
    }
    close_all(locks, sessions).await;
    locks.close(first).await;
    drop(held);
    Figures {
        operations: releases,
        elapsed,
        latencies_ms,
    }
}
