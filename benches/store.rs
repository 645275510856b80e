//! Acquire and release pairs per second of a store with many callers, each on a lock of its own,
//! and handoffs per second of one hot lock, where each release wakes the next caller.
//!
//! `cargo bench --bench store -- [CALLERS] [SECONDS] [http://ETCD]`: the embedded store on the disk
//! of this folder, or a store on that etcd. Prints figures; asserts nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringfence::lock_name::LockName;
use ringfence::store::embedded::EmbeddedStore;
use ringfence::store::etcd::{EtcdConfig, EtcdStore};
use ringfence::store::{Enqueue, Enqueued, Entry, Remove, SessionId, Store};
use tokio::sync::Notify;

const CALLERS: u64 = 512;
const SECONDS: u64 = 5;

struct Bench {
    store: Arc<dyn Store>,
    wakers: Mutex<HashMap<SessionId, Arc<Notify>>>,
    done: AtomicU64,
    end: Instant,
}

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    let numbers: Vec<u64> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let callers = numbers.first().copied().unwrap_or(CALLERS);
    let seconds = numbers.get(1).copied().unwrap_or(SECONDS);
    let etcd = args.iter().find(|arg| arg.starts_with("http://"));
    let folder = tempfile::tempdir_in(".").expect("a folder on a disk");
    let store: Arc<dyn Store> = match etcd {
        Some(endpoint) => {
            let prefix = format!("bench-{}/", std::process::id());
            let config = EtcdConfig {
                endpoints: vec![endpoint.clone()],
                prefix,
            };
            Arc::new(EtcdStore::open(&config).await.expect("etcd"))
        }
        None => {
            let file = folder.path().join("lockd.redb");
            Arc::new(EmbeddedStore::open(&file).await.expect("a store"))
        }
    };
    // As a lock service does.
    let mut events = store.watch().await.expect("a watch");
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    let kind = etcd.map_or("embedded", |_| "etcd");
    for hot in [false, true] {
        let bench = Arc::new(Bench {
            store: Arc::clone(&store),
            wakers: Mutex::default(),
            done: AtomicU64::new(0),
            end: Instant::now() + Duration::from_secs(seconds),
        });
        let started = Instant::now();
        let lock = |caller| {
            if hot {
                "bench/hot".to_owned()
            } else {
                format!("bench/{caller}")
            }
        };
        let tasks: Vec<_> = (0..callers)
            .map(|caller| tokio::spawn(call(Arc::clone(&bench), lock(caller))))
            .collect();
        for task in tasks {
            task.await.expect("a caller that ends well");
        }
        let rate = bench.done.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
        let what = if hot {
            "handoffs of one lock"
        } else {
            "acquire+release pairs"
        };
        println!("{kind}: {rate:.0} {what} per second, {callers} callers");
    }
}

async fn call(bench: Arc<Bench>, lock: String) {
    let (session, _) = bench
        .store
        .open_session(Duration::from_secs(60))
        .await
        .expect("a session");
    let lock = LockName::new(&lock).expect("a name");
    let waker = Arc::new(Notify::new());
    bench
        .wakers
        .lock()
        .expect("no panic")
        .insert(session, Arc::clone(&waker));
    for attempt in 1.. {
        if Instant::now() >= bench.end {
            return;
        }
        let (lock, holder) = (lock.clone(), "bench".to_owned());
        let enqueue = Enqueue {
            lock: lock.clone(),
            session,
            attempt,
            holder,
            only_if_first: false,
        };
        let (entry, holder): (Entry, Entry) = match bench.store.enqueue(enqueue).await {
            Ok(Enqueued::Standing { entry, holder }) => (entry, holder),
            other => panic!("not standing: {other:?}"),
        };
        if holder.session != session {
            waker.notified().await;
        }
        let remove = Remove {
            lock,
            session,
            token: entry.token,
            only_version: None,
        };
        let removed = bench.store.remove(remove).await.expect("a release");
        bench.done.fetch_add(1, Ordering::Relaxed);
        if let Some(next) = removed.next {
            let woken = bench
                .wakers
                .lock()
                .expect("no panic")
                .get(&next.session)
                .cloned();
            woken.expect("a known session").notify_one();
        }
    }
}
