use proptest::collection::vec;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop_assert_eq, prop_oneof, proptest,
};

use super::super::encode;
use super::{ProtocolError, RequestLimits, RequestProgress, RequestScanner, Streamed};

/// The arguments of each request, or the error that ends them.
type Scanned = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// Scans all requests of a stream that comes in pieces of these sizes, the last one repeated.
fn scan_all(stream: &[u8], pieces: &[usize]) -> Scanned {
    let mut scanner = RequestScanner::new(RequestLimits::default());
    let (mut requests, mut start, mut end) = (vec![], 0, 0);
    let mut pieces = pieces
        .iter()
        .copied()
        .chain(std::iter::repeat(pieces[pieces.len() - 1]));
    while end < stream.len() {
        end = (end + pieces.next().unwrap()).min(stream.len());
        loop {
            let buffer = &stream[start..end];
            match scanner.scan(buffer) {
                Err(error) => return (requests, Some(error)),
                Ok(RequestProgress::Complete { len }) => {
                    let args = scanner.args(buffer);
                    assert!(args.is_complete());
                    requests.push(args.iter().map(<[u8]>::to_vec).collect());
                    scanner.reset();
                    start += len;
                }
                Ok(RequestProgress::More | RequestProgress::Partial) => break,
            }
        }
    }
    (requests, None)
}

fn scan_whole(stream: &[u8]) -> Scanned {
    scan_all(stream, &[stream.len().max(1)])
}

fn requests(stream: &[u8]) -> Vec<String> {
    let (requests, error) = scan_whole(stream);
    assert_eq!(error, None, "{stream:?}");
    let text = |request: &Vec<Vec<u8>>| {
        let args = request
            .iter()
            .map(|arg| String::from_utf8_lossy(arg).into_owned());
        args.collect::<Vec<_>>().join(" ")
    };
    requests.iter().map(text).collect()
}

fn error(stream: &[u8]) -> Option<ProtocolError> {
    scan_whole(stream).1
}

#[test]
fn requests_follow_each_other() {
    let stream =
        b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING x\r\n*1\r\n$4\r\nPING\r\n\r\n*0\r\n*-1\r\nQUIT\n";
    assert_eq!(
        requests(stream),
        ["GET k", "PING x", "PING", "", "", "", "QUIT"]
    );
    assert_eq!(
        requests(b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$2\r\n\r\n\r\n"),
        ["SET  \r\n"]
    );
}

// What Redis 7.0.15 answers to these, word by word.
#[test]
fn what_redis_refuses_is_refused_with_its_words() {
    let long = [b'1'; 70_000];
    let cases: [(&[u8], &str); 14] = [
        (b"*3000000000\r\n", "invalid multibulk length"),
        (b"*2147483648\r\n", "invalid multibulk length"),
        (b"*+1\r\n$4\r\nPING\r\n", "invalid multibulk length"),
        (b"*01\r\n$4\r\nPING\r\n", "invalid multibulk length"),
        (b"*\r\nPING\r\n", "invalid multibulk length"),
        (b"*1\r\nPING\r\n", "expected '$', got 'P'"),
        (b"*1\r\n*0\r\n", "expected '$', got '*'"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$600000000\r\n", "invalid bulk length"),
        (b"*1\r\n$ 4\r\nPING\r\n", "invalid bulk length"),
        (b"*1\r\n$\r\n", "invalid bulk length"),
        (b"PING \"a\r\n", "unbalanced quotes in request"),
        (
            &[b"*".as_slice(), &long].concat(),
            "too big mbulk count string",
        ),
        (
            &[b"*1\r\n$".as_slice(), &long].concat(),
            "too big bulk count string",
        ),
    ];
    for (stream, text) in cases {
        let reply = error(stream).map(ProtocolError::to_reply);
        let expected = format!("-ERR Protocol error: {text}\r\n").into_bytes();
        assert_eq!(
            reply,
            Some(expected),
            "{:?}",
            &stream[..stream.len().min(20)]
        );
    }
    assert_eq!(error(&long), Some(ProtocolError::InlineTooBig));
    assert_eq!(error(&[0; 70_000]), Some(ProtocolError::InlineTooBig));
}

/// Redis takes these, and reads on after two bytes that it does not look at.
#[test]
fn a_request_cannot_hide_where_redis_does_not_look() {
    for stream in [
        b"*1\rX$4\r\nPING\r\n".as_slice(),
        b"*1\r\n$4\r\nPINGXX*1\r\n",
        b"*1\r\n$4\rXPING\r\n",
        b"*1\r\n$4\r\nPING\n\r*1\r\n",
    ] {
        assert_eq!(error(stream), Some(ProtocolError::LineEnd), "{stream:?}");
    }
}

#[test]
fn an_error_is_one_visible_line() {
    let reply = ProtocolError::ExpectedBulk(b'\r').to_reply();
    assert_eq!(reply, b"-ERR Protocol error: expected '$', got '\\x0d'\r\n");
}

#[test]
fn the_count_of_arguments_is_bounded() {
    let limits = RequestLimits {
        args_max: 2,
        ..RequestLimits::default()
    };
    let scan = |stream: &[u8]| RequestScanner::new(limits).scan(stream);
    assert_eq!(scan(b"*2\r\n"), Ok(RequestProgress::More));
    assert_eq!(scan(b"*3\r\n"), Err(ProtocolError::MultibulkLength));
}

/// A scanner that decides at 64 bytes.
fn small() -> RequestScanner {
    RequestScanner::new(RequestLimits {
        decide_bytes: 64,
        ..RequestLimits::default()
    })
}

#[test]
fn a_large_request_is_offered_with_what_is_there() {
    let value = vec![b'v'; 1000];
    let set = encode::command(&[b"SET", b"key".as_slice(), &value, b"NX"]);
    let mut scanner = small();
    // As soon as the length says that it will be large.
    let there = &set[..set.len() - 1000];
    assert_eq!(scanner.scan(there), Ok(RequestProgress::Partial));
    let args = scanner.args(there);
    assert_eq!(
        (args.len(), args.declared(), args.is_complete()),
        (2, 4, false)
    );
    assert_eq!(args.get(1), Some(&b"key"[..]));
    assert_eq!(args.get(2), None);
    let rest = &set[there.len()..];
    let next = [rest, b"PING\r\n"].concat();
    let streamed = scanner.stream(&next);
    assert_eq!(
        streamed,
        Ok(Streamed {
            len: rest.len(),
            ended: true
        })
    );
    scanner.reset();
    assert_eq!(
        scanner.scan(b"PING\r\n"),
        Ok(RequestProgress::Complete { len: 6 })
    );
}

#[test]
fn many_small_arguments_are_offered_in_part() {
    let keys: Vec<String> = (0..100).map(|n| format!("key{n}")).collect();
    let mut args = vec!["DEL"];
    args.extend(keys.iter().map(String::as_str));
    let del = encode::command(&args);
    let mut scanner = small();
    assert_eq!(scanner.scan(&del[..40]), Ok(RequestProgress::More));
    assert_eq!(scanner.scan(&del[..70]), Ok(RequestProgress::Partial));
    assert!(!scanner.args(&del[..70]).is_complete());
    // Held until more of it is there, and in the end all.
    scanner.hold_until(200);
    assert_eq!(scanner.scan(&del[..150]), Ok(RequestProgress::More));
    assert_eq!(scanner.scan(&del[..250]), Ok(RequestProgress::Partial));
    scanner.hold_until(1 << 20);
    let complete = Ok(RequestProgress::Complete { len: del.len() });
    assert_eq!(scanner.scan(&del), complete);
    assert_eq!(scanner.args(&del).len(), 101);
}

#[test]
fn a_stream_that_breaks_is_told_before_its_last_byte() {
    let set = encode::command(&[b"SET".as_slice(), b"k", &[b'v'; 100], b"NX"]);
    let broken = |from: &[u8], to: &[u8]| {
        let at = set
            .windows(from.len())
            .rposition(|bytes| bytes == from)
            .unwrap();
        let bytes = [&set[..at], to, &set[at + from.len()..]].concat();
        let mut scanner = small();
        assert_eq!(scanner.scan(&bytes[..40]), Ok(RequestProgress::Partial));
        scanner.stream(&bytes[40..])
    };
    assert!(broken(b"NX", b"XX").unwrap().ended);
    assert_eq!(broken(b"v\r\n", b"vvv"), Err(ProtocolError::LineEnd));
    assert_eq!(broken(b"$2", b"+2"), Err(ProtocolError::ExpectedBulk(b'+')));
    assert_eq!(broken(b"$2", b"$x"), Err(ProtocolError::BulkLength));
    assert_eq!(broken(b"$2\r\n", b"$2\n\n"), Err(ProtocolError::LineEnd));
    assert_eq!(broken(b"$2", &[b'$'; 30]), Err(ProtocolError::BulkLength));
    assert_eq!(broken(b"NX\r\n", b"NX\rX"), Err(ProtocolError::LineEnd));
}

#[test]
fn a_command_within_a_command_has_its_own_places() {
    let fence = encode::command(&["FENCE", "WITH", "t", "SET", "k", "v"]);
    let mut scanner = RequestScanner::new(RequestLimits::default());
    scanner.scan(&fence).unwrap();
    let args = scanner.args(&fence);
    let inner = args.from(3);
    assert_eq!(
        inner.iter().collect::<Vec<_>>(),
        [b"SET".as_slice(), b"k", b"v"]
    );
    assert_eq!((inner.declared(), inner.is_complete()), (3, true));
    let from = args.offset_of(3).unwrap();
    assert_eq!(
        [b"*3\r\n", &fence[from..]].concat(),
        encode::command(&["SET", "k", "v"])
    );
    assert_eq!(args.from(9).declared(), 0);
}

fn argument() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..12),
        Just(b"\r\n".to_vec()),
        vec(Just(b'x'), 60..200),
    ]
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    vec(1usize..40, 1..6)
}

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(count)
    }
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn what_is_written_is_read(
        commands in vec(vec(argument(), 0..6), 1..5),
        sizes in sizes(),
    ) {
        let stream: Vec<u8> = commands.iter().flat_map(|args| encode::command(args)).collect();
        prop_assert_eq!(scan_all(&stream, &sizes), (commands, None));
    }

    #[test]
    fn pieces_change_nothing(
        stream in "(\\*[0-3]\r\n|\\$[0-9]{1,2}\r\n|[a-d]{1,3}|\r\n|\r|\n|\"|'| |-1|\\*|\\$){0,14}",
        sizes in sizes(),
    ) {
        let stream = stream.as_bytes();
        prop_assert_eq!(scan_all(stream, &sizes), scan_whole(stream));
    }

    #[test]
    fn no_bytes_panic(stream in vec(any::<u8>(), 0..80), sizes in sizes()) {
        prop_assert_eq!(scan_all(&stream, &sizes), scan_whole(&stream));
    }

    #[test]
    fn a_streamed_request_ends_where_a_held_one_does(
        args in vec(argument(), 1..6),
        more in vec(any::<u8>(), 0..20),
        split in any::<u16>(),
        size in 1usize..30,
    ) {
        let request = encode::command(&args);
        let stream = [request.clone(), more].concat();
        let mut scanner = small();
        let mut end = usize::from(split) % (stream.len() + 1);
        let mut progress = scanner.scan(&stream[..end]);
        while progress == Ok(RequestProgress::More) {
            end += 1;
            progress = scanner.scan(&stream[..end]);
        }
        let ends = match progress.unwrap() {
            RequestProgress::Complete { len } => len,
            RequestProgress::More => unreachable!(),
            RequestProgress::Partial => {
                let mut at = end;
                loop {
                    let chunk = &stream[at..(at + size).min(stream.len())];
                    let streamed = scanner.stream(chunk).unwrap();
                    at += streamed.len;
                    if streamed.ended {
                        break at;
                    }
                }
            }
        };
        prop_assert_eq!(ends, request.len());
    }
}
