//! Randomised writers through proxies that share nothing: in the order of etcd's revisions the
//! tokens of the values never decrease, whatever is paused, killed and delayed.
//!
//! `RINGFENCE_TEST_ETCD_ROUNDS` says how many grants there are in each run; 40 unless it is set.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use ringfence::etcd_proto::etcdserverpb::kv_client::KvClient;
use ringfence::etcd_proto::etcdserverpb::request_op::Request as Op;
use ringfence::etcd_proto::etcdserverpb::watch_client::WatchClient;
use ringfence::etcd_proto::etcdserverpb::watch_request::RequestUnion;
use ringfence::etcd_proto::etcdserverpb::{
    RequestOp, TxnRequest, WatchCreateRequest, WatchRequest,
};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::support::{JOBS, Process, Version, World, channel, get, put, soon, with};

fn rounds() -> u64 {
    match std::env::var("RINGFENCE_TEST_ETCD_ROUNDS") {
        Ok(rounds) => rounds.parse().expect("a number of rounds"),
        Err(_) => 40,
    }
}

/// xorshift64*: the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

#[derive(Default)]
struct Counts {
    applied: AtomicU64,
    stale: AtomicU64,
    other: AtomicU64,
}

/// Writes its token, in puts and transactions, until it is told that it is stale or to stop.
async fn write(
    mut client: KvClient<Channel>,
    ticket: String,
    token: u64,
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
) {
    let mut nth = 0;
    while !stop.load(Ordering::Relaxed) {
        nth += 1;
        let request = put("orders", &token.to_string());
        let answer = if nth % 2 == 0 {
            client.put(with(request, &[&ticket])).await.map(drop)
        } else {
            let op = RequestOp {
                request: Some(Op::RequestPut(request)),
            };
            let txn = TxnRequest {
                success: vec![op],
                ..Default::default()
            };
            client.txn(with(txn, &[&ticket])).await.map(drop)
        };
        match answer {
            Ok(()) => counts.applied.fetch_add(1, Ordering::Relaxed),
            Err(status) if status.code() == Code::FailedPrecondition => {
                counts.stale.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
                counts.other.fetch_add(1, Ordering::Relaxed)
            }
        };
    }
}

/// Revision and token of every write of a run, and how many of them clients know to be applied.
async fn run(version: Version, seed: u64, listener: &str, rounds: u64) -> (Vec<(i64, u64)>, u64) {
    println!("seed {seed}");
    let mut random = Random(seed);
    let world = World::new(version);
    let names = ["a", "b", "c"];
    let configs = names.map(|name| world.config(name, &world.etcd_address(), listener));
    let mut proxies: Vec<Process> = names
        .iter()
        .zip(&configs)
        .map(|(name, config)| Process::start(&world, name, config, true))
        .collect();
    let mut channels: Vec<Channel> = proxies.iter().map(lazy).collect();
    let (stop, counts) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Counts::default()),
    );
    let mut writers = tokio::task::JoinSet::new();
    for token in 1..=rounds {
        let ticket = world.ticket("orders", token);
        let at = random.below(3) as usize;
        let mut client = KvClient::new(channels[at].clone());
        // As a new holder does: read, then write.
        let _ = tokio::time::timeout(
            Duration::from_millis(500),
            client.range(with(get("orders"), &[&ticket])),
        )
        .await;
        for _ in 0..2 {
            let at = random.below(3) as usize;
            writers.spawn(write(
                KvClient::new(channels[at].clone()),
                ticket.clone(),
                token,
                Arc::clone(&stop),
                Arc::clone(&counts),
            ));
        }
        tokio::time::sleep(Duration::from_millis(random.below(40))).await;
        let victim = random.below(3) as usize;
        match random.below(8) {
            0 => {
                proxies[victim].kill();
                proxies[victim] = Process::start(&world, names[victim], &configs[victim], false);
                channels[victim] = lazy(&proxies[victim]);
            }
            1 | 2 => {
                proxies[victim].signal("STOP");
                tokio::time::sleep(Duration::from_millis(random.below(60))).await;
                proxies[victim].signal("CONT");
            }
            3 => {
                world.etcd.pause(0);
                tokio::time::sleep(Duration::from_millis(random.below(60))).await;
                world.etcd.resume(0);
            }
            _ => {}
        }
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    stop.store(true, Ordering::Relaxed);
    soon("the writers' end", async {
        while let Some(ended) = writers.join_next().await {
            ended.unwrap();
        }
    })
    .await;
    let history = history(&world).await;
    let applied = counts.applied.load(Ordering::Relaxed);
    println!(
        "{} revisions; applied {applied}, stale {}, other {}",
        history.len(),
        counts.stale.load(Ordering::Relaxed),
        counts.other.load(Ordering::Relaxed)
    );
    (history, applied)
}

/// The first two writes whose tokens go back.
fn decrease(history: &[(i64, u64)]) -> Option<&[(i64, u64)]> {
    history.windows(2).find(|pair| pair[0].1 > pair[1].1)
}

async fn tokens_never_decrease(version: Version, seed: u64) {
    let (history, applied) = run(version, seed, JOBS, rounds()).await;
    let wrong = decrease(&history);
    assert_eq!(wrong, None, "seed {seed}: (revision, token) goes back");
    assert!(applied > rounds() && history.len() as u64 >= applied);
    assert_eq!(
        history.last().unwrap().1,
        rounds(),
        "the newest holder writes"
    );
}

fn lazy(proxy: &Process) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", proxy.address)).unwrap();
    endpoint.timeout(Duration::from_secs(5)).connect_lazy()
}

/// Revision and token of every write, as etcd's own history has them.
async fn history(world: &World) -> Vec<(i64, u64)> {
    let mut watch = WatchClient::new(channel(&world.etcd_address()).await);
    let last = world
        .direct()
        .await
        .range(get("orders"))
        .await
        .unwrap()
        .into_inner();
    let last = last.kvs[0].mod_revision;
    let create = WatchCreateRequest {
        key: "orders".into(),
        start_revision: 1,
        ..Default::default()
    };
    let create = WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(create)),
    };
    let requests = futures::stream::iter([create]).chain(futures::stream::pending());
    let mut events = watch.watch(requests).await.unwrap().into_inner();
    let mut found = vec![];
    while found.last().is_none_or(|(revision, _)| *revision < last) {
        let response = soon("history", events.message()).await.unwrap().unwrap();
        for event in response.events {
            let kv = event.kv.unwrap();
            let token = String::from_utf8(kv.value.to_vec())
                .unwrap()
                .parse()
                .unwrap();
            found.push((kv.mod_revision, token));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_never_decrease_on_3_4() {
    tokens_never_decrease(Version::V3_4, 0x5eed_0001).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_never_decrease_on_3_5() {
    tokens_never_decrease(Version::V3_5, 0x5eed_0002).await;
}

/// The check can fail: where nothing is enforced it finds what it looks for.
#[tokio::test(flavor = "multi_thread")]
async fn unfenced_writers_are_found_out() {
    let observe = format!("mode = \"observe\"\n{JOBS}");
    let (history, _) = run(Version::V3_5, 0x5eed_0003, &observe, 6).await;
    assert!(
        decrease(&history).is_some(),
        "{} writes in order",
        history.len()
    );
}
