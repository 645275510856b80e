//! kill -9 of the proxy between any two steps, and what a restart on the same data refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::backend::Origin;
use crate::clients::{Holder, Reply, get, put};
use crate::stack::{Lockd, Proxy, ProxySetup};

const RULE: &str = "[[listener.rule]]\nlock = \"orders\"\npath = \"/orders/**\"\n";
const HOLD: Duration = Duration::from_secs(3);

struct Stage {
    _dir: tempfile::TempDir,
    lockd: Lockd,
    proxy: Proxy,
    origin: Origin,
}

fn stage() -> Stage {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), "");
    let origin = Origin::start();
    let hold = format!("in_doubt_hold = \"{}s\"", HOLD.as_secs());
    let setup = ProxySetup {
        name: "edge-1",
        protocol: "http",
        upstream: origin.address,
        lockd: &lockd,
        listener: &hold,
        rules: RULE,
        data: None,
    };
    let proxy = Proxy::start(dir.path(), &setup);
    Stage {
        lockd,
        proxy,
        origin,
        _dir: dir,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_below_the_watermark_is_refused_at_the_first_request_after_a_kill() {
    let mut stage = stage();
    let url = stage.proxy.url("/orders/1");
    let mut a = Holder::open(&stage.lockd, 30_000).await;
    let old = a.acquire("orders", 0).await.unwrap();
    assert_eq!(put(&url, "A", Some(&old.ticket)).status, 200);
    a.close().await;
    let mut b = Holder::open(&stage.lockd, 30_000).await;
    let new = b.acquire("orders", 0).await.unwrap();
    assert_eq!(put(&url, "B", Some(&new.ticket)).status, 200);

    stage.proxy.kill_and_restart();
    let refused = put(&url, "A again", Some(&old.ticket));
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (412, "stale"),
        "{refused:?}"
    );
    assert_eq!(put(&url, "B again", Some(&new.ticket)).status, 200);
    assert_eq!(
        stage.origin.applied(),
        ["/orders/1=A", "/orders/1=B", "/orders/1=B again"]
    );
}

/// A write whose proxy is killed before it answers.
fn put_and_lose(url: &str, body: &str, ticket: &str) {
    let output = std::process::Command::new("curl")
        .args(["-s", "--noproxy", "*", "-X", "PUT", "--data-binary", body])
        .arg("-H")
        .arg(format!("Fencing-Token: {ticket}"))
        .arg(url)
        .output()
        .unwrap();
    assert!(!output.status.success(), "the killed proxy answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_proxy_left_in_flight_keeps_the_lock_closed_to_newer_tokens() {
    let mut stage = stage();
    let url = stage.proxy.url("/orders/1");
    let mut a = Holder::open(&stage.lockd, 30_000).await;
    let old = a.acquire("orders", 0).await.unwrap();
    stage.origin.hold_before_apply();
    let (held_url, ticket) = (url.clone(), old.ticket.clone());
    let lost = std::thread::spawn(move || put_and_lose(&held_url, "late A", &ticket));
    let origin = stage.origin.clone();
    tokio::task::spawn_blocking(move || origin.wait_until_held())
        .await
        .unwrap();

    stage.proxy.kill_and_restart();
    let restarted = Instant::now();
    lost.join().unwrap();
    a.close().await;
    let mut b = Holder::open(&stage.lockd, 60_000).await;
    let acquiring = tokio::spawn(async move {
        let grant = b.acquire("orders", 40_000).await.unwrap();
        (b, grant)
    });
    tokio::time::sleep(HOLD / 2).await;
    assert!(
        !acquiring.is_finished(),
        "B was sealed over a write that may still land"
    );
    stage.origin.let_go();
    let (_b, new) = acquiring.await.unwrap();
    assert!(
        restarted.elapsed() + Duration::from_millis(500) > HOLD,
        "the hold was cut short"
    );
    assert_eq!(get(&url, Some(&new.ticket)).body, "late A");
    assert_eq!(put(&url, "B", Some(&new.ticket)).status, 200);
    assert_eq!(stage.origin.applied(), ["/orders/1=late A", "/orders/1=B"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_taken_out_after_a_kill_guards_until_what_was_in_flight_is_over() {
    let mut stage = stage();
    let url = stage.proxy.url("/orders/1");
    let mut a = Holder::open(&stage.lockd, 30_000).await;
    let old = a.acquire("orders", 0).await.unwrap();
    stage.origin.hold_before_apply();
    let lost = std::thread::spawn(move || put_and_lose(&url, "late A", &old.ticket));
    let origin = stage.origin.clone();
    tokio::task::spawn_blocking(move || origin.wait_until_held())
        .await
        .unwrap();

    stage
        .proxy
        .kill_and_restart_with("lock = \"orders\"", "lock = \"invoices\"");
    let restarted = Instant::now();
    lost.join().unwrap();
    a.close().await;
    let mut b = Holder::open(&stage.lockd, 60_000).await;
    b.acquire("orders", 40_000).await.unwrap();
    assert!(
        restarted.elapsed() + Duration::from_millis(500) > HOLD,
        "B was sealed over a write that may still land"
    );
    stage.origin.let_go();
}

fn token_of(applied: &str) -> u64 {
    applied.rsplit('=').next().unwrap().parse().unwrap()
}

/// A writer that writes its token as fast as it can until it is told to stop.
fn write_on(url: String, token: u64, ticket: String, stop: Arc<AtomicBool>) -> Vec<Reply> {
    let mut replies = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let sent = std::panic::catch_unwind(|| put(&url, &token.to_string(), Some(&ticket)));
        replies.extend(sent.ok());
    }
    replies
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_never_decrease_at_the_backend_through_kills_at_any_moment() {
    const ROUNDS: u64 = 6;
    let mut stage = stage();
    let url = stage.proxy.url("/orders/1");
    let mut writers = Vec::new();
    let stop = Arc::new(AtomicBool::new(false));
    for round in 0..ROUNDS {
        let mut holder = Holder::open(&stage.lockd, 120_000).await;
        let grant = holder.acquire("orders", 60_000).await.unwrap();
        let (url, stop, ticket) = (url.clone(), Arc::clone(&stop), grant.ticket.clone());
        let token = grant.token;
        writers.push(std::thread::spawn(move || {
            write_on(url, token, ticket, stop)
        }));
        // Not a condition but the very point: a moment that nothing marks.
        tokio::time::sleep(Duration::from_millis(40 + round * 37)).await;
        if round % 2 == 0 {
            stage.proxy.kill_and_restart();
        }
        // The holder loses its lock but goes on writing.
        holder.close().await;
    }
    stop.store(true, Ordering::SeqCst);
    let replies = writers
        .into_iter()
        .flat_map(|writer| writer.join().unwrap());
    let stored = replies.filter(|reply| reply.status == 200).count();
    let applied: Vec<u64> = stage
        .origin
        .applied()
        .iter()
        .map(|write| token_of(write))
        .collect();
    assert!(applied.is_sorted(), "applied in the order {applied:?}");
    assert!(
        applied.len() >= stored,
        "{stored} told stored, {} applied",
        applied.len()
    );
    assert!(stored > 0, "nothing was ever written");
}
