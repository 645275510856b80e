//! The scanners beside the `redis-protocol` crate: both must find the same ends and the same
//! arguments, in what is well formed and in what was damaged, in whatever pieces it comes.
//!
//! Runs for two seconds each, or for `RINGFENCE_FUZZ_SECONDS` (by `cargo test`: nextest ends what
//! takes minutes). A failure prints its input, cut to
//! the smallest that fails; it belongs into `CORPUS` then.

use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::{BoxedStrategy, Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, TestCaseError, TestCaseResult, TestRunner};
use redis_protocol::resp2::types::OwnedFrame;
use ringfence::protocol::redis::{
    ReplyProgress, ReplyScanner, RequestLimits, RequestProgress, RequestScanner, encode_command,
};

/// Streams that are hard to read, or were read wrongly once.
const CORPUS: [&[u8]; 24] = [
    b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
    b"*1\r\n$0\r\n\r\n",
    b"*0\r\n+OK\r\n",
    b"*-1\r\n",
    b"$-1\r\n",
    b"*1\r\n*1\r\n*0\r\n",
    b"*2\r\n*-1\r\n$-1\r\n:1\r\n",
    b"+\r\n",
    b"+\r\r\n",
    b"+a\rb\nc\r\n",
    b"-ERR a\r\n-ERR b\r\n",
    b"$2\r\n\r\n\r\n",
    b"$3\r\nabcd\r\n",
    b"$1\r\na\n\r",
    b"*3\r\n$1\r\na\r\n",
    b"*1\r\n$1\r\na\r\n\r\n",
    b":-9223372036854775808\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"!5\r\nERR a\r\n",
    b">2\r\n+a\r\n*1\r\n:1\r\n",
    b"%1\r\n+a\r\n~1\r\n:1\r\n",
];

fn campaign() -> Duration {
    let seconds = std::env::var("RINGFENCE_FUZZ_SECONDS").ok();
    let seconds = seconds.map(|text| text.parse().expect("a number of seconds"));
    Duration::from_secs(seconds.unwrap_or(2))
}

/// Runs cases until the time is over.
fn run(strategy: BoxedStrategy<Case>, check: fn(&Case) -> TestCaseResult) {
    for stream in CORPUS {
        for size in 1..8 {
            let case = Case {
                stream: stream.to_vec(),
                sizes: vec![size],
            };
            check(&case).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        }
    }
    let end = Instant::now() + campaign();
    while Instant::now() < end {
        let config = Config {
            cases: 2_000,
            failure_persistence: None,
            ..Config::default()
        };
        let ran = TestRunner::new(config).run(&strategy, |case| check(&case));
        ran.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A stream and the pieces that it comes in.
#[derive(Clone, Debug)]
struct Case {
    stream: Vec<u8>,
    sizes: Vec<usize>,
}

impl Case {
    /// Where the pieces end.
    fn ends(&self) -> impl Iterator<Item = usize> {
        let (len, mut at) = (self.stream.len(), 0);
        let sizes = self.sizes.iter().copied().cycle();
        let ends = sizes.map(move |size| {
            at = (at + size).min(len);
            at
        });
        // Once more when all is there.
        ends.take_while(move |end| *end < len).chain([len])
    }
}

/// A stream, damaged or not.
fn cases(streams: impl Strategy<Value = Vec<u8>> + 'static) -> BoxedStrategy<Case> {
    let byte = prop_oneof![
        any::<u8>(),
        proptest::sample::select(b"\r\n*$+-:0123456789_#,(!=%~>| ".to_vec()),
    ];
    let damage = vec((any::<u16>(), 0..4u8, byte), 0..3);
    (streams, damage, vec(1usize..24, 1..5))
        .prop_map(|(mut stream, damage, sizes)| {
            for (at, kind, byte) in damage {
                let at = usize::from(at) % (stream.len() + 1);
                match kind {
                    0 => stream.insert(at, byte),
                    1 => stream.truncate(at),
                    _ if at == stream.len() => {}
                    2 => stream[at] = byte,
                    _ => drop(stream.remove(at)),
                }
            }
            Case { stream, sizes }
        })
        .boxed()
}

fn text() -> BoxedStrategy<Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..9),
        Just(b"\r\n$1\r\n".to_vec()),
        Just(vec![])
    ]
    .boxed()
}

fn bulk(marker: char, text: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{marker}{}\r\n", text.len()).into_bytes();
    bytes.extend(text);
    bytes.extend(b"\r\n");
    bytes
}

fn aggregate(marker: char, count: usize, values: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("{marker}{count}\r\n").into_bytes();
    values.iter().for_each(|value| bytes.extend(value));
    bytes
}

/// A value of RESP2.
fn value2() -> BoxedStrategy<Vec<u8>> {
    let leaf = prop_oneof![
        text().prop_map(|text| bulk('$', &text)),
        "[+-][a-zA-Z ]{0,30}\r\n".prop_map(String::into_bytes),
        any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
        Just(b"$-1\r\n".to_vec()),
        Just(b"*-1\r\n".to_vec()),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        vec(inner, 0..4).prop_map(|values| aggregate('*', values.len(), &values))
    })
    .boxed()
}

/// A value of RESP3.
fn value3() -> BoxedStrategy<Vec<u8>> {
    let leaf = prop_oneof![
        text().prop_map(|text| bulk('$', &text)),
        "[+-][a-zA-Z ]{0,30}\r\n".prop_map(String::into_bytes),
        "!4\r\nE [a-z]b\r\n".prop_map(String::into_bytes),
        "=6\r\ntxt:[a-z]{2}\r\n".prop_map(String::into_bytes),
        any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
        "\\([1-9][0-9]{0,30}\r\n".prop_map(String::into_bytes),
        ",-?[1-9][0-9]{0,3}\\.[0-9]{1,3}\r\n".prop_map(String::into_bytes),
        "#[tf]\r\n".prop_map(String::into_bytes),
        Just(b"_\r\n".to_vec()),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let entry = ("\\+[a-z]{1,8}\r\n", inner.clone());
        let map = vec(entry, 0..3).prop_map(|entries| {
            let flat = entries
                .iter()
                .map(|(key, value)| [key.as_bytes(), value].concat());
            aggregate('%', entries.len(), &flat.collect::<Vec<_>>())
        });
        let set = vec(any::<i64>(), 0..3).prop_map(|numbers| {
            let values = numbers
                .iter()
                .map(|number| format!(":{number}\r\n").into_bytes());
            aggregate('~', numbers.len(), &values.collect::<Vec<_>>())
        });
        let array = vec(inner, 0..4).prop_map(|values| aggregate('*', values.len(), &values));
        prop_oneof![array, map, set]
    })
    .boxed()
}

/// Where our scanner finds the end of a stream's first reply; an error as text.
fn reply_end(case: &Case) -> Result<Option<usize>, String> {
    let mut scanner = ReplyScanner::new();
    let mut streamed = None;
    for end in case.ends() {
        if let Some(at) = streamed {
            let more = scanner
                .stream(&case.stream[at..end])
                .map_err(|error| error.to_string())?;
            if more.ended.is_some() {
                return Ok(Some(at + more.len));
            }
            streamed = Some(end);
            continue;
        }
        match scanner
            .scan(&case.stream[..end])
            .map_err(|error| error.to_string())?
        {
            ReplyProgress::More => {}
            ReplyProgress::Partial(_) => streamed = Some(end),
            ReplyProgress::Complete { len, .. } => return Ok(Some(len)),
        }
    }
    Ok(None)
}

/// Both find the same end, or one of them finds it malformed: the crate takes numbers that Redis
/// does not send (`+1`, `01`) and checks what a scanner need not (UTF-8, what a key of a map is).
fn agree(
    ours: &Result<Option<usize>, String>,
    theirs: &Result<Option<usize>, String>,
) -> TestCaseResult {
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) if ours != theirs => Err(TestCaseError::fail(format!(
            "the end is at {ours:?}, and at {theirs:?} for the other"
        ))),
        _ => Ok(()),
    }
}

fn resp2_end(stream: &[u8]) -> Result<Option<usize>, String> {
    let decoded = redis_protocol::resp2::decode::decode(stream);
    let decoded = decoded.map_err(|error| error.to_string())?;
    Ok(decoded.map(|(_, len)| len))
}

fn resp3_end(stream: &[u8]) -> Result<Option<usize>, String> {
    let decoded = redis_protocol::resp3::decode::complete::decode(stream);
    let decoded = decoded.map_err(|error| error.to_string())?;
    Ok(decoded.map(|(_, len)| len))
}

#[test]
fn replies_of_resp2_end_where_the_other_finds_their_end() {
    run(cases(value2()), |case| {
        // Types of RESP3 are no types there.
        agree(&reply_end(case), &resp2_end(&case.stream))
    });
}

#[test]
fn replies_of_resp3_end_where_the_other_finds_their_end() {
    run(cases(value3()), |case| {
        // There RESP2's nulls, and streams of unknown length, have another meaning.
        let odd = |window: &[u8]| window == b"-1\r" || window.contains(&b'?');
        // The crate counts a push among elements as one of them.
        let aside = |window: &[u8]| window == b"\n>";
        if case.stream.windows(3).any(odd) || case.stream.windows(2).any(aside) {
            return Ok(());
        }
        agree(&reply_end(case), &resp3_end(&case.stream))
    });
}

#[test]
fn what_is_well_formed_is_taken_by_both() {
    let whole = |values: BoxedStrategy<Vec<u8>>| {
        (values, vec(1usize..24, 1..5)).prop_map(|(stream, sizes)| Case { stream, sizes })
    };
    let config = || Config {
        cases: 5_000,
        failure_persistence: None,
        ..Config::default()
    };
    let check = |end: fn(&[u8]) -> Result<Option<usize>, String>| {
        move |case: Case| {
            let len = Ok(Some(case.stream.len()));
            if reply_end(&case) == len && end(&case.stream) == len {
                return Ok(());
            }
            Err(TestCaseError::fail(format!(
                "{:?}, and {:?} for the other",
                reply_end(&case),
                end(&case.stream)
            )))
        }
    };
    TestRunner::new(config())
        .run(&whole(value2()), check(resp2_end))
        .unwrap();
    TestRunner::new(config())
        .run(&whole(value3()), check(resp3_end))
        .unwrap();
}

/// The length of a request, and its arguments.
type Request = (usize, Vec<Vec<u8>>);

/// The first request of a stream, where it is an array of bulk strings.
fn request(case: &Case) -> Result<Option<Request>, String> {
    let mut scanner = RequestScanner::new(RequestLimits::default());
    for end in case.ends() {
        let buffer = &case.stream[..end];
        match scanner.scan(buffer).map_err(|error| error.to_string())? {
            RequestProgress::Complete { len } => {
                let args = scanner.args(buffer).iter().map(<[u8]>::to_vec).collect();
                return Ok(Some((len, args)));
            }
            RequestProgress::More => {}
            RequestProgress::Partial => return Err("no request is so large here".to_owned()),
        }
    }
    Ok(None)
}

#[test]
fn requests_have_the_arguments_that_the_other_finds() {
    let requests = vec(text(), 0..6).prop_map(|args| encode_command(&args));
    run(cases(requests), |case| {
        if case.stream.first() != Some(&b'*') {
            return Ok(());
        }
        let (ours, theirs) = (
            request(case),
            redis_protocol::resp2::decode::decode(&case.stream),
        );
        match (ours, theirs) {
            (Ok(Some((len, args))), Ok(Some((frame, end)))) => {
                let same = match frame {
                    OwnedFrame::Null => args.is_empty(),
                    OwnedFrame::Array(frames) => frames
                        .iter()
                        .map(|frame| match frame {
                            OwnedFrame::BulkString(text) => Some(text.clone()),
                            _ => None,
                        })
                        .eq(args.iter().map(|arg| Some(arg.clone()))),
                    _ => false,
                };
                if len == end && same {
                    return Ok(());
                }
                Err(TestCaseError::fail(format!(
                    "{args:?} up to {len}, another up to {end}"
                )))
            }
            // A negative count, other than -1, is no request for Redis and an error for the crate.
            (Ok(Some((_, args))), Err(_)) if args.is_empty() => Ok(()),
            (Ok(Some((len, args))), other) => Err(TestCaseError::fail(format!(
                "{args:?} up to {len}, {other:?}"
            ))),
            (Ok(None), Ok(Some((frame, end)))) => Err(TestCaseError::fail(format!(
                "nothing yet, {frame:?} up to {end}"
            ))),
            // What only the crate takes: other types, numbers that Redis refuses.
            _ => Ok(()),
        }
    });
}
