use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_assert_eq, proptest};
use proptest::sample::select;

use super::super::reply_head::Redirect;
use super::super::value::Value;
use super::{DEPTH_MAX, ReplyEnd, ReplyError, ReplyHead, ReplyProgress, ReplyScanner};

/// Length, head and end of the reply that a stream begins with, which comes in pieces.
fn scan_in(
    stream: &[u8],
    pieces: &[usize],
) -> Result<Option<(usize, ReplyHead, ReplyEnd)>, ReplyError> {
    let mut scanner = ReplyScanner::new();
    let mut sizes = pieces.iter().copied().cycle();
    let mut end = 0;
    while end < stream.len() {
        end = (end + sizes.next().unwrap()).min(stream.len());
        match scanner.scan(&stream[..end])? {
            ReplyProgress::More => {}
            ReplyProgress::Complete { len, head, end } => return Ok(Some((len, head, end))),
            ReplyProgress::Partial(head) => {
                // From here on it is streamed.
                let mut at = end;
                while at < stream.len() {
                    let chunk = &stream[at..(at + sizes.next().unwrap()).min(stream.len())];
                    let streamed = scanner.stream(chunk)?;
                    at += streamed.len;
                    if let Some(end) = streamed.ended {
                        return Ok(Some((at, head, end)));
                    }
                }
                return Ok(None);
            }
        }
    }
    Ok(None)
}

fn scan(stream: &[u8]) -> Result<Option<(usize, ReplyHead, ReplyEnd)>, ReplyError> {
    scan_in(stream, &[stream.len().max(1)])
}

fn head(stream: &[u8]) -> ReplyHead {
    scan(stream).unwrap().expect("a whole reply").1
}

/// Replies of every type, each whole.
const WHOLE: [&str; 34] = [
    "+OK\r\n",
    "+\r\n",
    "-ERR no\r\n",
    ":12\r\n",
    ":-12\r\n",
    "$0\r\n\r\n",
    "$3\r\na\r\n\r\n",
    "$-1\r\n",
    "*-1\r\n",
    "*0\r\n",
    "*1\r\n*0\r\n",
    "*2\r\n$1\r\na\r\n:1\r\n",
    "_\r\n",
    ",3.14\r\n",
    ",-inf\r\n",
    "#t\r\n",
    "#f\r\n",
    "(3492890328409238509324850943850943825024385\r\n",
    "!5\r\nERR a\r\n",
    "=7\r\ntxt:abc\r\n",
    "~2\r\n+a\r\n_\r\n",
    "~0\r\n",
    "%0\r\n",
    "%1\r\n+k\r\n*1\r\n:1\r\n",
    ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n",
    "|1\r\n+ttl\r\n:3600\r\n$1\r\nv\r\n",
    "|0\r\n+OK\r\n",
    "|1\r\n|1\r\n+a\r\n+b\r\n+c\r\n+d\r\n:1\r\n",
    "*2\r\n|1\r\n+a\r\n:7\r\n:1\r\n:2\r\n",
    "*1\r\n|1\r\n+a\r\n*1\r\n:7\r\n:1\r\n",
    "*3\r\n*-1\r\n$-1\r\n*2\r\n*0\r\n%1\r\n#t\r\n,1\r\n",
    "*1\r\n+a\rb\nc\r\n",
    "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
    ">3\r\n+message\r\n+a\r\n+b\r\n",
];

#[test]
fn every_type_ends_where_it_ends() {
    for text in WHOLE {
        let reply = text.as_bytes();
        let next = [reply, b"+NEXT\r\n"].concat();
        let len = scan(&next).unwrap().map(|(len, ..)| len);
        assert_eq!(len, Some(reply.len()), "{text:?}");
        for cut in 0..reply.len() {
            assert_eq!(scan(&reply[..cut]), Ok(None), "{text:?} cut at {cut}");
        }
        assert_eq!(
            Value::parse(&next).map(|(_, len)| len),
            Ok(reply.len()),
            "{text:?}"
        );
    }
}

#[test]
fn a_push_among_the_elements_of_a_reply_is_none_of_them() {
    let exec = b"*2\r\n>3\r\n$7\r\nmessage\r\n$1\r\na\r\n*1\r\n:1\r\n:1\r\n>0\r\n+OK\r\n";
    let (len, head, _) = scan(&[&exec[..], b"+PONG\r\n"].concat()).unwrap().unwrap();
    assert_eq!(len, exec.len());
    assert!(!head.is_push());
    assert_eq!(scan(&exec[..exec.len() - 1]), Ok(None));
}

#[test]
fn a_reply_is_told_by_its_beginning() {
    assert!(head(b"+OK\r\n").is_ok());
    assert!(!head(b"+OKAY\r\n").is_ok());
    assert!(head(b"+QUEUED\r\n").is_queued());
    assert!(head(b"-ERR a\r\n").is_error() && head(b"!5\r\nERR a\r\n").is_error());
    assert_eq!(
        head(b"-WRONGTYPE a b\r\n").error_code(),
        Some(&b"WRONGTYPE"[..])
    );
    assert_eq!(head(b"+WRONGTYPE\r\n").error_code(), None);
    assert!(head(b">1\r\n+a\r\n").is_push() && !head(b"*1\r\n+a\r\n").is_push());
    for null in [
        &b"_\r\n"[..],
        b"$-1\r\n",
        b"*-1\r\n",
        b"|1\r\n+a\r\n+b\r\n_\r\n",
    ] {
        assert!(head(null).is_null(), "{null:?}");
    }
    for other in [
        &b"*1\r\n_\r\n"[..],
        b"*1\r\n$-1\r\n",
        b"*0\r\n",
        b"|1\r\n+a\r\n_\r\n:1\r\n",
    ] {
        assert!(!head(other).is_null(), "{other:?}");
    }
    let first = |reply| head(reply).first_text().map(<[u8]>::to_vec);
    assert_eq!(
        first(b"*2\r\n$7\r\nmessage\r\n:1\r\n"),
        Some(b"message".to_vec())
    );
    assert_eq!(
        first(b">2\r\n+message\r\n:1\r\n"),
        Some(b"message".to_vec())
    );
    assert_eq!(
        first(b"*2\r\n*1\r\n$7\r\nmessage\r\n$1\r\na\r\n"),
        Some(vec![])
    );
    assert_eq!(
        first(b"*2\r\n|1\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n:1\r\n"),
        Some(b"b".to_vec())
    );
    assert_eq!(first(b"$7\r\nmessage\r\n"), None);
    assert!(head(b"+1339518083.1 [0 x] \"get\"\r\n").is_monitor_line());
    assert!(!head(b"+PONG\r\n").is_monitor_line());
}

#[test]
fn redirections_are_told_and_nothing_else_is_one() {
    assert_eq!(
        head(b"-MOVED 3999 127.0.0.1:1\r\n").redirect(),
        Some(Redirect::Moved)
    );
    assert_eq!(
        head(b"-ASK 3999 127.0.0.1:1\r\n").redirect(),
        Some(Redirect::Ask)
    );
    assert_eq!(
        head(b"-REDIRECT 127.0.0.1:1\r\n").redirect(),
        Some(Redirect::Moved)
    );
    for other in [
        &b"-MOVEDX 1\r\n"[..],
        b"+MOVED 1\r\n",
        b"-ERR MOVED\r\n",
        b"$5\r\nMOVED\r\n",
    ] {
        assert_eq!(head(other).redirect(), None, "{other:?}");
    }
}

#[test]
fn the_last_outer_integer_is_told() {
    let integer = |reply: &[u8]| scan(reply).unwrap().unwrap().2.integer;
    assert_eq!(integer(b":5\r\n"), Some(5));
    assert_eq!(
        integer(b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:2\r\n"),
        Some(2)
    );
    assert_eq!(integer(b"*2\r\n:1\r\n*1\r\n:9\r\n"), Some(1));
    assert_eq!(integer(b"|1\r\n+a\r\n:9\r\n+b\r\n"), None);
}

#[test]
fn a_large_reply_is_told_before_it_is_there() {
    let mut scanner = ReplyScanner::new();
    let progress = scanner.scan(b"$1000000\r\nabc");
    assert!(
        matches!(progress, Ok(ReplyProgress::Partial(_))),
        "{progress:?}"
    );
    let mut scanner = ReplyScanner::new();
    assert_eq!(scanner.scan(b"*2\r\n$7\r\nmess"), Ok(ReplyProgress::More));
    let progress = scanner.scan(b"*2\r\n$7\r\nmessage\r\n");
    let Ok(ReplyProgress::Partial(head)) = progress else {
        panic!("{progress:?}");
    };
    assert_eq!(head.first_text(), Some(&b"message"[..]));
}

#[test]
fn depth_is_bounded_where_it_takes_memory() {
    // Each is the last element of the one before: a script can return this.
    let chain = [b"*1\r\n".repeat(20_000), b":1\r\n".to_vec()].concat();
    assert_eq!(scan(&chain).unwrap().unwrap().0, chain.len());
    let deep = |depth: usize| b"*2\r\n".repeat(depth);
    assert_eq!(scan(&deep(DEPTH_MAX)), Ok(None));
    assert_eq!(scan(&deep(DEPTH_MAX + 2)), Err(ReplyError::Depth));
}

#[test]
fn what_is_no_reply_is_refused() {
    for (reply, error) in [
        (&b"x"[..], ReplyError::Marker(b'x')),
        (b"\r\n", ReplyError::Marker(b'\r')),
        (b";4\r\n", ReplyError::Marker(b';')),
        (b"$?\r\n", ReplyError::Length),
        (b"*?\r\n", ReplyError::Length),
        (b"$-2\r\n", ReplyError::Length),
        (b"%-1\r\n", ReplyError::Length),
        (b"=3\r\ntxt\r\n", ReplyError::Length),
        (b"*\r\n", ReplyError::Length),
        (b":1.5\r\n", ReplyError::Length),
        (b"_x\r\n", ReplyError::Length),
        (b":1\n", ReplyError::LineEnd),
        (b"$1\r\nabc", ReplyError::LineEnd),
        (b"$1\r\na\r\r", ReplyError::LineEnd),
        (
            b":111111111111111111111111111111111111111111\r\n",
            ReplyError::Length,
        ),
    ] {
        assert_eq!(scan(reply), Err(error), "{reply:?}");
    }
}

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(count)
    }
}

/// Pieces of replies in any order: most are no replies, some are long ones.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let pieces = [
        "*1\r\n",
        "*2\r\n",
        "*0\r\n",
        "*-1\r\n",
        "%1\r\n",
        "~1\r\n",
        "|1\r\n",
        ">2\r\n",
        "$1\r\na\r\n",
        "$0\r\n\r\n",
        "$-1\r\n",
        "+a\r\n",
        "-b\r\n",
        ":7\r\n",
        "_\r\n",
        "#t\r\n",
        ",1\r\n",
        "(1\r\n",
        "!1\r\ne\r\n",
        "=5\r\ntxt:a\r\n",
        "\r\n",
        "\r",
        "$5\r\nab\r\nc\r\n",
        "+\r\r\n",
        "x",
    ];
    vec(select(pieces.to_vec()), 0..16).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #![proptest_config(cases(4_000))]

    #[test]
    fn pieces_change_nothing(stream in stream(), sizes in vec(1usize..20, 1..6)) {
        let whole = scan(&stream);
        let pieces = scan_in(&stream, &sizes);
        match (&whole, &pieces) {
            // What is wrong behind the beginning is found when it is looked at.
            (Err(_), _) | (_, Err(_)) => prop_assert_eq!(whole.err(), pieces.err()),
            _ => prop_assert_eq!(whole, pieces),
        }
    }

    #[test]
    fn no_bytes_panic(stream in vec(any::<u8>(), 0..60), sizes in vec(1usize..20, 1..6)) {
        let _ = scan_in(&stream, &sizes);
        let _ = Value::parse(&stream);
    }

    #[test]
    fn a_tree_and_a_scan_agree(stream in stream()) {
        if let Ok(Some((len, head, _))) = scan(&stream) {
            let (value, parsed) = Value::parse(&stream).unwrap();
            prop_assert_eq!(parsed, len);
            prop_assert_eq!(head.is_null(), value == Value::Null);
            prop_assert_eq!(head.is_error(), matches!(value, Value::Error(_)));
        }
    }
}
