//! Gates over a real store, without sockets.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::Instant;

use super::{Claim, Gates, Holds, LastGate};
use crate::lock_name::{LockName, LockPattern};
use crate::protocol::refusal::Code;
use crate::proxy::left::Left;
use crate::proxy::watermarks::{Opening, QUEUE_CHANGES_MAX, Watermarks, WatermarksThread, What};
use crate::token::Token;

const HOLD: Duration = Duration::from_secs(3600);

struct Store {
    dir: tempfile::TempDir,
    thread: Option<WatermarksThread>,
}

impl Store {
    fn new() -> Store {
        Store {
            dir: tempfile::tempdir().unwrap(),
            thread: None,
        }
    }

    /// The next run on the store.
    fn start(&mut self, init: bool) -> Gates {
        let opening = Opening {
            init,
            alone: true,
            registered: false,
            fingerprint: 1,
            patterns: vec![],
        };
        let (watermarks, thread, start) = Watermarks::open(self.dir.path(), opening).unwrap();
        self.thread = Some(thread);
        let holds = Holds::new(vec![(vec![LockPattern::new("**").unwrap()], HOLD)]);
        Gates::new(watermarks, start, holds, Left::default(), None, vec![])
    }

    fn crash(&mut self) {
        self.thread = None;
    }
}

fn claim(token: u64) -> Claim {
    Claim {
        lock: LockName::new("a").unwrap(),
        token: Token::new(token).unwrap(),
        unsigned: false,
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(300)
}

/// Evicts until no gate is in memory.
async fn evict(gates: &Gates) {
    let give_up = Instant::now() + Duration::from_secs(10);
    while gates.loaded(&claim(1).lock).is_some() {
        assert!(Instant::now() < give_up, "the gate does not retire");
        gates.evict_all();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn an_idle_gate_leaves_memory_and_comes_back_as_it_was() {
    let mut store = Store::new();
    let gates = store.start(true);
    gates
        .admit(&[claim(5)], &mut LastGate::default(), HOLD, soon())
        .await
        .unwrap()
        .finish();
    evict(&gates).await;
    let stale = gates.settle(&claim(4), None, soon()).await.unwrap_err();
    assert_eq!(stale.code, Code::Stale);
    // A gate that only refused leaves as well, and nothing is raised by it.
    evict(&gates).await;
    gates
        .admit(&[claim(5)], &mut LastGate::default(), HOLD, soon())
        .await
        .unwrap()
        .finish();
    evict(&gates).await;
    // It left clean: a crash leaves no doubt.
    store.crash();
    let gates = store.start(false);
    gates
        .admit(&[claim(6)], &mut LastGate::default(), HOLD, soon())
        .await
        .unwrap()
        .finish();
}

#[tokio::test]
async fn a_gate_with_a_write_in_flight_or_in_doubt_stays() {
    let mut store = Store::new();
    let gates = store.start(true);
    let mut write = gates
        .admit(&[claim(5)], &mut LastGate::default(), HOLD, soon())
        .await
        .unwrap();
    write.release().unwrap();
    gates.evict_all();
    assert!(gates.loaded(&claim(5).lock).is_some());
    drop(write);
    gates.evict_all();
    let entry = gates.loaded(&claim(5).lock).unwrap();
    assert_eq!(entry.gate().status().in_doubt, 1);
    let busy = gates.settle(&claim(6), None, soon()).await.unwrap_err();
    assert_eq!(busy.code, Code::Busy);
    assert!(busy.retry_after.unwrap() > HOLD - Duration::from_secs(60));
}

#[tokio::test]
async fn a_crash_leaves_a_drained_lock_to_its_holder_and_closed_to_the_next() {
    let mut store = Store::new();
    let gates = store.start(true);
    gates
        .admit(&[claim(5)], &mut LastGate::default(), HOLD, soon())
        .await
        .unwrap()
        .finish();
    store.crash();
    let gates = store.start(false);
    gates
        .admit(&[claim(5)], &mut LastGate::default(), HOLD, soon())
        .await
        .unwrap()
        .finish();
    assert_eq!(
        gates
            .settle(&claim(6), None, soon())
            .await
            .unwrap_err()
            .code,
        Code::Busy
    );
    // The second crash: the raise to 6 was never drained, so nobody passes.
    store.crash();
    let gates = store.start(false);
    assert_eq!(
        gates
            .settle(&claim(6), None, soon())
            .await
            .unwrap_err()
            .code,
        Code::Busy
    );
    assert_eq!(
        gates
            .settle(&claim(5), None, soon())
            .await
            .unwrap_err()
            .code,
        Code::Stale
    );
}

#[tokio::test]
async fn a_longer_hold_is_on_disk_before_its_listener_is_admitted() {
    let mut store = Store::new();
    let gates = store.start(true);
    let short = Duration::from_millis(10);
    gates
        .admit(&[claim(5)], &mut LastGate::default(), short, soon())
        .await
        .unwrap()
        .finish();
    let lock = claim(5).lock;
    assert_eq!(
        gates.inner.watermarks.load(&lock).unwrap().unwrap().hold,
        short
    );
    gates
        .admit(&[claim(5)], &mut LastGate::default(), 2 * HOLD, soon())
        .await
        .unwrap()
        .finish();
    assert_eq!(
        gates.inner.watermarks.load(&lock).unwrap().unwrap().hold,
        2 * HOLD
    );
}

#[tokio::test]
async fn a_seal_says_whether_the_watermark_was_there_before() {
    let mut store = Store::new();
    let gates = store.start(true);
    assert!(!gates.seal(&claim(5), "", soon()).await.unwrap());
    assert!(gates.seal(&claim(5), "", soon()).await.unwrap());
    gates.settle(&claim(6), None, soon()).await.unwrap();
    assert!(gates.seal(&claim(6), "b", soon()).await.unwrap());
    assert!(!gates.seal(&claim(7), "c", soon()).await.unwrap());
    // The same grant again, and another one that has its token.
    assert!(!gates.seal(&claim(7), "c", soon()).await.unwrap());
    assert!(gates.seal(&claim(7), "d", soon()).await.unwrap());
    // Out of memory, and in the next run, it is as it was.
    evict(&gates).await;
    assert!(gates.seal(&claim(7), "d", soon()).await.unwrap());
    assert!(!gates.seal(&claim(7), "c", soon()).await.unwrap());
    store.crash();
    let gates = store.start(false);
    assert!(gates.seal(&claim(7), "d", soon()).await.unwrap());
    assert!(!gates.seal(&claim(7), "c", soon()).await.unwrap());
    assert!(gates.seal(&claim(7), "", soon()).await.unwrap());
}

#[tokio::test]
async fn a_seal_that_was_given_up_while_it_waited_is_known_for_its_grants() {
    let mut store = Store::new();
    let gates = store.start(true);
    let mut last = LastGate::default();
    let mut older = gates.admit(&[claim(5)], &mut last, HOLD, soon()).await;
    older.as_mut().unwrap().release().unwrap();
    let at_once = Instant::now() + Duration::from_millis(50);
    gates.seal(&claim(6), "a", at_once).await.unwrap_err();
    older.unwrap().finish();
    assert!(!gates.seal(&claim(6), "a", soon()).await.unwrap());
}

#[tokio::test]
async fn once_the_gates_have_ended_only_what_was_released_goes_on() {
    let mut store = Store::new();
    let gates = store.start(true);
    let other = Claim {
        lock: LockName::new("b").unwrap(),
        ..claim(5)
    };
    let mut last = LastGate::default();
    let mut early = gates.admit(&[claim(5)], &mut last, HOLD, soon()).await;
    let early = early.as_mut().unwrap();
    early.forward().unwrap();
    let mut late = gates.admit(&[claim(5)], &mut last, HOLD, soon()).await;
    let late = late.as_mut().unwrap();
    late.release().unwrap();
    gates.end();
    early.release().unwrap_err();
    // Its permit is closed too, but the write has left.
    assert!(late.is_released());
    // Neither a gate in memory admits, nor one that is loaded later.
    for claim in [claim(5), claim(6), other] {
        let refused = gates.admit(&[claim], &mut last, HOLD, soon()).await;
        assert_eq!(refused.err().unwrap().code, Code::Busy);
    }
}

#[tokio::test]
async fn a_token_of_the_other_kind_makes_no_gate() {
    let mut store = Store::new();
    let gates = store.start(true);
    gates.settle(&claim(5), None, soon()).await.unwrap();
    store.crash();
    let gates = store.start(false);
    let bare = Claim {
        unsigned: true,
        ..claim(9)
    };
    let refused = gates.settle(&bare, None, soon()).await.unwrap_err();
    assert_eq!(refused.code, Code::Invalid);
    assert!(gates.loaded(&bare.lock).is_none());
    let record = gates.inner.watermarks.load(&bare.lock).unwrap().unwrap();
    assert_eq!((record.floor, record.unsigned), (5, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn retiring_while_others_present_never_lets_two_tokens_in() {
    let mut store = Store::new();
    let gates = store.start(true);
    let highest = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..4_u64 {
        let (gates, highest) = (gates.clone(), Arc::clone(&highest));
        tasks.spawn(async move {
            for round in 1..100 {
                let token = round * 4 + worker;
                let deadline = Instant::now() + Duration::from_secs(10);
                match gates
                    .admit(&[claim(token)], &mut LastGate::default(), HOLD, deadline)
                    .await
                {
                    Ok(mut write) => {
                        if write.release().is_ok() {
                            use std::sync::atomic::Ordering::SeqCst;
                            let before = highest.fetch_max(token, SeqCst);
                            assert!(before <= token, "{token} was released after {before}");
                        }
                        write.finish();
                    }
                    Err(refusal) => assert_eq!(refusal.code, Code::Stale, "{refusal:?}"),
                }
                gates.evict_all();
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

/// Keeps the store's thread from writing until what it returns is dropped.
fn stall(gates: &Gates) -> std::sync::mpsc::SyncSender<()> {
    let (go_on, stalled) = std::sync::mpsc::sync_channel::<()>(0);
    let (told, begun) = std::sync::mpsc::sync_channel::<()>(1);
    let done = move |_| {
        told.send(()).unwrap();
        // Ends with an error when the other side is dropped.
        let _ = stalled.recv();
    };
    gates
        .inner
        .watermarks
        .submit(What::Confirmed, Box::new(done));
    begun.recv().unwrap();
    go_on
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_of_many_leaves_room_for_raises() {
    const LOCKS: usize = QUEUE_CHANGES_MAX + 1_000;
    let mut store = Store::new();
    let gates = store.start(true);
    let long = Instant::now() + Duration::from_secs(120);
    let all = futures::stream::iter(0..LOCKS).map(|lock| {
        let lock = LockName::new(&format!("many/{lock}")).unwrap();
        let (gates, claim) = (gates.clone(), Claim { lock, ..claim(1) });
        async move { gates.settle(&claim, None, long).await }
    });
    let settled: Vec<_> = all.buffer_unordered(4096).collect().await;
    assert!(settled.iter().all(Result::is_ok));

    let stalled = stall(&gates);
    let eviction = tokio::spawn(gates.clone().run_eviction(Duration::from_millis(1)));
    let mut left = LOCKS;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = gates.inner.slots.len();
        if now < LOCKS && now == left {
            break;
        }
        left = now;
    }
    let raising = tokio::spawn({
        let gates = gates.clone();
        async move { gates.settle(&claim(1), None, long).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(stalled);
    let raised = raising.await.unwrap();
    assert!(raised.is_ok(), "busy while idle gates leave: {raised:?}");
    eviction.abort();
}
