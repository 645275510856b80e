//! The order checker: writers push their token under stops, kills and reconnects; the list that the
//! server holds never decreases.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use crate::client::{Client, encode, ok};
use crate::stack::{PATIENCE, Proxy, Redis, Setup, sign};

/// So many holders must have pushed.
const HOLDERS_MIN: u64 = 15;

/// `RINGFENCE_ORDER_SECONDS`, or 4.
fn time() -> Duration {
    let given = std::env::var("RINGFENCE_ORDER_SECONDS").ok();
    Duration::from_secs(given.map_or(4, |text| text.parse().expect("a number of seconds")))
}

/// Takes tokens one after the other and pushes each as often as it can, until something ends it.
fn write(connect: impl Fn() -> Option<Client>, ticket: impl Fn(u64) -> String, shared: &Shared) {
    while !shared.over.load(Ordering::SeqCst) {
        let token = shared.next.fetch_add(1, Ordering::SeqCst);
        let Some(mut client) = connect() else {
            continue;
        };
        if !client.try_send_bytes(&encode(&["FENCE", "SET", &ticket(token)])) {
            continue;
        }
        if client.try_read() != Some(ok()) {
            continue;
        }
        let push = encode(&["RPUSH", "job:1:tokens", &token.to_string()]);
        let batch = push.repeat(20);
        let mut has_pushed = false;
        'token: for _ in 0..40 {
            if !client.try_send_bytes(&batch) {
                break;
            }
            for _ in 0..20 {
                match client.try_read() {
                    Some(Value::Int(_)) if has_pushed => {}
                    Some(Value::Int(_)) => {
                        has_pushed = true;
                        shared.pushing.fetch_add(1, Ordering::SeqCst);
                    }
                    _ => break 'token,
                }
            }
        }
    }
}

struct Shared {
    next: AtomicU64,
    /// Tokens that have pushed.
    pushing: AtomicU64,
    over: AtomicBool,
}

/// What writers push under stops, kills and reconnects, in the server's own order.
fn pushed(lines: &str, time: Duration) -> Vec<u64> {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let setup = Setup::new(redis.address).with(lines);
    let mut proxy = Proxy::start(dir.path(), &setup);
    let shared = Shared {
        next: AtomicU64::new(1),
        pushing: AtomicU64::new(0),
        over: AtomicBool::new(false),
    };
    let (address, key, sharing) = (proxy.address, &setup.key, &shared);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let ticket = |token| sign(key, "job/1", token);
            scope.spawn(move || write(|| Client::try_connect(address), ticket, sharing));
        }
        let (until, at_most) = (Instant::now() + time, Instant::now() + time + PATIENCE);
        for round in 0.. {
            // On a busy machine few get that far in the time.
            let enough = shared.pushing.load(Ordering::SeqCst) > HOLDERS_MIN;
            if Instant::now() > until && (enough || Instant::now() > at_most) {
                break;
            }
            std::thread::sleep(Duration::from_millis(150));
            match round % 3 {
                0 => {
                    proxy.process.signal("STOP");
                    std::thread::sleep(Duration::from_millis(100));
                    proxy.process.signal("CONT");
                }
                1 => {
                    redis.process.signal("STOP");
                    std::thread::sleep(Duration::from_millis(100));
                    redis.process.signal("CONT");
                }
                _ => {
                    proxy.crash();
                    proxy.start_again();
                }
            }
        }
        shared.over.store(true, Ordering::SeqCst);
        proxy.crash();
    });
    let Value::Array(tokens) = redis.client().call(&["LRANGE", "job:1:tokens", "0", "-1"]) else {
        panic!("no list");
    };
    let read = |token: &Value| match token {
        Value::BulkString(text) => String::from_utf8_lossy(text).parse().unwrap(),
        other => panic!("no token: {other:?}"),
    };
    tokens.iter().map(read).collect()
}

/// The first push, and its token and the next one's, where that is lower.
fn decrease(tokens: &[u64]) -> Option<(usize, &[u64])> {
    let mut pairs = tokens.windows(2).enumerate();
    pairs.find(|(_, pair)| pair[0] > pair[1])
}

#[test]
fn tokens_in_the_servers_own_order_never_decrease() {
    let tokens = pushed("admit_deadline = \"1s\"", time());
    assert!(tokens.len() > 100, "only {} pushes", tokens.len());
    assert_eq!(decrease(&tokens), None);
    let holders = tokens.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(holders > 10, "only {holders} changes of holder");
}

/// The checker can fail: where nothing is enforced it finds what it looks for.
#[test]
fn unfenced_writers_are_found_out() {
    let tokens = pushed("mode = \"observe\"", Duration::from_secs(1));
    assert!(
        decrease(&tokens).is_some(),
        "{} pushes in order",
        tokens.len()
    );
}
