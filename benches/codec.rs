//! What the Redis listener pays per command before and after it does anything: finding a request's
//! end and arguments, planning it under a rule, finding its reply's end. Beside it the general
//! parser of the `redis-protocol` crate.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringfence::protocol::Unmatched;
use ringfence::protocol::redis::{
    CommandTable, Conversation, ConversationSettings, RedisRule, RedisRules, ReplyEnd,
    ReplyProgress, ReplyScanner, RequestLimits, RequestProgress, RequestScanner, encode_command,
};

/// Sizes of values, in bytes.
const VALUES: [usize; 2] = [64, 16 << 10];

fn set(value: usize) -> Vec<u8> {
    encode_command(&[b"SET".as_slice(), b"job:1234:state", &vec![b'v'; value]])
}

/// A table of `SET` alone, as a server tells it.
fn table() -> CommandTable {
    let spec = "*6\r\n+flags\r\n*2\r\n+RW\r\n+update\r\n\
        +begin_search\r\n*4\r\n+type\r\n+index\r\n+spec\r\n*2\r\n+index\r\n:1\r\n\
        +find_keys\r\n*4\r\n+type\r\n+range\r\n+spec\r\n\
        *6\r\n+lastkey\r\n:0\r\n+keystep\r\n:1\r\n+limit\r\n:0\r\n";
    let reply = format!(
        "*1\r\n*10\r\n+set\r\n:-3\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*1\r\n{spec}*0\r\n"
    );
    CommandTable::parse(reply.as_bytes()).expect("a table")
}

fn scan_requests(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("request");
    for value in VALUES {
        let bytes = set(value);
        group.throughput(Throughput::Elements(1));
        group.bench_with_input(BenchmarkId::new("scan", value), &bytes, |bench, bytes| {
            let mut scanner = RequestScanner::new(RequestLimits::default());
            bench.iter(|| {
                let progress = scanner.scan(black_box(bytes));
                assert_eq!(progress, Ok(RequestProgress::Complete { len: bytes.len() }));
                black_box(scanner.args(bytes).get(1));
                scanner.reset();
            });
        });
        group.bench_with_input(BenchmarkId::new("crate", value), &bytes, |bench, bytes| {
            bench.iter(|| {
                black_box(redis_protocol::resp2::decode::decode_range(black_box(bytes)).is_ok())
            });
        });
    }
    group.finish();
}

fn plan(criterion: &mut Criterion) {
    let table = table();
    let mut group = criterion.benchmark_group("plan");
    let bytes = set(64);
    let mut scanner = RequestScanner::new(RequestLimits::default());
    scanner.scan(&bytes).expect("a request");
    let args = scanner.args(&bytes);
    let rule = |lock| RedisRule::new("job:{id}:*", lock, None).expect("a rule");
    for (name, rules) in [
        ("without rules", vec![]),
        ("one lock", vec![rule("jobs")]),
        ("a lock by its key", vec![rule("jobs/{id}")]),
    ] {
        let rules = RedisRules::new(rules, Unmatched::Pass);
        group.bench_function(name, |bench| {
            let mut conversation = Conversation::new(ConversationSettings::default());
            let mut replies = ReplyScanner::new();
            let head = match replies.scan(b"+OK\r\n") {
                Ok(ReplyProgress::Complete { head, .. }) => head,
                other => panic!("{other:?}"),
            };
            bench.iter(|| {
                let plan = conversation.plan(black_box(&args), &table, &rules);
                conversation.forward(plan.expect("a plan"), ());
                black_box(conversation.reply_begins(&head).is_ok());
                black_box(conversation.reply_ended(&ReplyEnd::default()).is_some());
            });
        });
    }
    group.finish();
}

fn scan_replies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reply");
    let bulk = |value: usize| format!("${value}\r\n{}\r\n", "v".repeat(value)).into_bytes();
    let replies = [
        ("ok", b"+OK\r\n".to_vec()),
        ("64", bulk(64)),
        ("16384", bulk(16 << 10)),
    ];
    for (name, bytes) in replies {
        group.bench_with_input(BenchmarkId::new("scan", name), &bytes, |bench, bytes| {
            let mut scanner = ReplyScanner::new();
            bench.iter(|| {
                let progress = scanner.scan(black_box(bytes));
                assert!(matches!(progress, Ok(ReplyProgress::Complete { .. })));
                scanner.reset();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, scan_requests, plan, scan_replies);
criterion_main!(benches);
