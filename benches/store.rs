//! Acquire and release pairs per second of the embedded store, durable, with many callers.
//!
//! `cargo bench --bench store [-- CALLERS SECONDS]`. Prints a figure; asserts nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringfence::lock_name::LockName;
use ringfence::store::embedded::EmbeddedStore;
use ringfence::store::{Enqueue, Enqueued, Remove, Store};

const CALLERS: u64 = 512;
const SECONDS: u64 = 5;

#[tokio::main]
async fn main() {
    let numbers: Vec<u64> = std::env::args()
        .filter_map(|arg| arg.parse().ok())
        .collect();
    let callers = numbers.first().copied().unwrap_or(CALLERS);
    let seconds = numbers.get(1).copied().unwrap_or(SECONDS);
    let folder = tempfile::tempdir_in(".").expect("a folder on a disk");
    let store = EmbeddedStore::open(&folder.path().join("lockd.redb"))
        .await
        .expect("a store");
    let store = Arc::new(store);
    let pairs = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let end = started + Duration::from_secs(seconds);
    let tasks: Vec<_> = (0..callers)
        .map(|caller| tokio::spawn(call(Arc::clone(&store), caller, end, Arc::clone(&pairs))))
        .collect();
    for task in tasks {
        task.await.expect("a caller that ends well");
    }
    let rate = pairs.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
    println!("embedded: {rate:.0} acquire+release pairs per second, {callers} callers");
}

async fn call(store: Arc<EmbeddedStore>, caller: u64, end: Instant, pairs: Arc<AtomicU64>) {
    let (session, _) = store
        .open_session(Duration::from_secs(60))
        .await
        .expect("a session");
    let lock = LockName::new(&format!("bench/{caller}")).expect("a name");
    for attempt in 1.. {
        if Instant::now() >= end {
            return;
        }
        let enqueue = Enqueue {
            lock: lock.clone(),
            session,
            attempt,
            holder: "bench".to_owned(),
            only_if_first: false,
        };
        let token = match store.enqueue(enqueue).await {
            Ok(Enqueued::Standing { entry, .. }) => entry.token,
            other => panic!("not standing: {other:?}"),
        };
        let remove = Remove {
            lock: lock.clone(),
            session,
            token,
            only_version: None,
        };
        store.remove(remove).await.expect("a release");
        pairs.fetch_add(1, Ordering::Relaxed);
    }
}
