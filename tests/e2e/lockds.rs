//! Two lock services over one etcd: one is killed, clients go on through the other.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ringfence::proto::lock_service_client::LockServiceClient;
use ringfence::proto::{GetLockRequest, GetLockResponse, KeepAliveRequest};

use crate::backend::Origin;
use crate::clients::{Holder, put};
use crate::process::PATIENCE;
use crate::stack::{Lockd, Process, Proxy, ProxySetup, eventually, free_address};

const RULE: &str = "[[listener.rule]]\nlock = \"orders\"\npath = \"/orders/**\"\n";

/// A real etcd of Debian's package.
pub fn etcd(dir: &Path) -> (Process, String) {
    etcd_at(dir, free_address())
}

/// One whose clients come here.
pub fn etcd_at(dir: &Path, client: SocketAddr) -> (Process, String) {
    let peer = free_address();
    let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
    let mut command = Command::new("etcd");
    command
        .arg("--data-dir")
        .arg(dir.join("etcd"))
        .args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ])
        .args(["--initial-cluster", &format!("default={peer}")]);
    let process = Process::spawn(&mut command, dir.join("etcd.log"));
    eventually("a healthy etcd", || {
        let health = Command::new("curl")
            .args(["-s", &format!("{client}/health")])
            .output();
        health.is_ok_and(|it| String::from_utf8_lossy(&it.stdout).contains("\"true\""))
    });
    (process, client)
}

pub fn lockd(dir: &Path, name: &str, etcd: &str) -> Lockd {
    let own = dir.join(name);
    std::fs::create_dir_all(&own).unwrap();
    let more = format!(
        "store = \"etcd\"\nkeys_dir = \"{}\"\nseal_timeout = \"2s\"\n\
         [etcd]\nendpoints = [\"{etcd}\"]\nprefix = \"locks/\"\n",
        dir.join("keys").display()
    );
    Lockd::start(&own, &more)
}

async fn keep_alive(lockd: &Lockd, session: &str) -> u64 {
    let mut client = LockServiceClient::connect(lockd.url()).await.unwrap();
    let request = KeepAliveRequest {
        session: session.to_owned(),
    };
    let answers = client
        .keep_alive(tokio_stream::once(request))
        .await
        .unwrap();
    answers
        .into_inner()
        .message()
        .await
        .unwrap()
        .unwrap()
        .ttl_ms
}

/// Waits until `orders` is so, as this lockd sees it.
async fn until(lockd: &Lockd, what: &str, holds: impl Fn(&GetLockResponse) -> bool) {
    let mut client = LockServiceClient::connect(lockd.url()).await.unwrap();
    let end = Instant::now() + PATIENCE;
    loop {
        let lock = "orders".to_owned();
        let seen = client.get_lock(GetLockRequest { lock }).await.unwrap();
        let seen = seen.into_inner();
        if holds(&seen) {
            return;
        }
        assert!(Instant::now() < end, "never: {what}: {seen:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_place_and_token_are_kept_when_one_of_two_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (_etcd, url) = etcd(dir.path());
    let mut one = lockd(dir.path(), "one", &url);
    let two = lockd(dir.path(), "two", &url);

    let mut a = Holder::open(&one, 60_000).await;
    let held = a.acquire("orders", 0).await.unwrap();
    // B waits through the first, C through the second, in this order.
    let mut b = Holder::open(&one, 60_000).await;
    let b_session = b.session.clone();
    let b_waiting = tokio::spawn(async move { b.acquire("orders", 60_000).await });
    until(&two, "B waits", |lock| lock.waiters.len() == 1).await;
    let mut c = Holder::open(&two, 60_000).await;
    let c_waiting = tokio::spawn(async move { c.acquire("orders", 60_000).await });
    until(&two, "C waits", |lock| lock.waiters.len() == 2).await;

    one.process.kill();
    b_waiting.await.unwrap().unwrap_err();
    assert!(
        keep_alive(&two, &a.session).await > 0,
        "A's session ended with its lockd"
    );
    let mut a = Holder::resume(&two, &a.session).await;
    let again = a.acquire("orders", 0).await.unwrap();
    assert_eq!(
        again.token, held.token,
        "the same attempt is the same grant"
    );

    let mut b = Holder::resume(&two, &b_session).await;
    let b_waiting = tokio::spawn(async move {
        let grant = b.acquire("orders", 60_000).await;
        (b, grant)
    });
    assert!(a.release("orders", held.token).await);
    let (mut b, b_grant) = b_waiting.await.unwrap();
    let b_grant = b_grant.expect("B kept its place before C");
    assert!(b_grant.token > held.token);
    assert!(!c_waiting.is_finished(), "C overtook B");
    assert!(b.release("orders", b_grant.token).await);
    let c_grant = c_waiting.await.unwrap().unwrap();
    assert!(c_grant.token > b_grant.token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lockd_stopped_before_its_seal_tells_nothing_of_a_grant_that_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let (_etcd, url) = etcd(dir.path());
    let one = lockd(dir.path(), "one", &url);
    let two = lockd(dir.path(), "two", &url);
    let origin = Origin::start();
    let setup = ProxySetup {
        name: "edge-1",
        protocol: "http",
        upstream: origin.address,
        lockd: &two,
        listener: "",
        rules: RULE,
        data: None,
    };
    let proxy = Proxy::start(dir.path(), &setup);

    // A is first, and its seal cannot end: the proxy is stopped. Then its lockd is stopped too.
    let mut warm = Holder::open(&two, 60_000).await;
    let first = loop {
        match warm.acquire("orders", 2_000).await {
            Ok(grant) if !grant.sealed.is_empty() => break grant,
            Ok(grant) => assert!(warm.release("orders", grant.token).await),
            Err(_) => {}
        }
        warm = Holder::open(&two, 60_000).await;
    };
    assert!(warm.release("orders", first.token).await);
    proxy.process.signal("STOP");
    let mut a = Holder::open(&one, 2_000).await;
    let a_session = a.session.clone();
    let a_waiting = tokio::spawn(async move { a.acquire("orders", 30_000).await });
    until(&two, "A is first", |lock| {
        let holder = lock.holder.as_ref();
        holder.is_some_and(|grant| grant.session == a_session)
    })
    .await;
    one.process.signal("STOP");
    proxy.process.signal("CONT");

    // A's session ends; B is granted and sealed by the other lockd.
    let mut b = Holder::open(&two, 60_000).await;
    let b_grant = b.acquire("orders", 30_000).await.unwrap();
    assert_eq!(b_grant.sealed, ["edge-1"]);
    assert_eq!(
        put(&proxy.url("/orders/1"), "B", Some(&b_grant.ticket)).status,
        200
    );

    one.process.signal("CONT");
    let late = a_waiting.await.unwrap();
    let refused = late.expect_err("a grant was told that was over");
    let reason = refused.metadata().get("ringfence-reason");
    assert_eq!(reason.unwrap(), "place-gone", "{refused:?}");
    assert_eq!(
        put(&proxy.url("/orders/1"), "B again", Some(&b_grant.ticket)).status,
        200
    );
}
