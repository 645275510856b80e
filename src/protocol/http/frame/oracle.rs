//! The frames against an oracle: a slow reading of the same rules, line by line, that shares no
//! code with the parser. Both must take the same heads and bodies, and make the same of them.

use proptest::collection::vec;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, proptest,
};
use proptest::sample::select;

use super::{BodyReader, Outgoing, Piece, RequestBody, RequestHead};

fn is_token(text: &[u8]) -> bool {
    let mark = |byte: &u8| b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(|it| it.is_ascii_alphanumeric() || mark(it))
}

fn is_value(text: &[u8]) -> bool {
    text.iter()
        .all(|&byte| byte == b'\t' || byte >= b' ' && byte != 0x7f)
}

fn trim(text: &[u8]) -> &[u8] {
    let space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = text.iter().position(|it| !space(it)).unwrap_or(text.len());
    let end = text
        .iter()
        .rposition(|it| !space(it))
        .map_or(start, |at| at + 1);
    &text[start..end]
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|it| it == wanted)
}

/// The lines of a section that ends with an empty one, and its length.
fn section(input: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let mut lines = vec![];
    let mut at = 0;
    loop {
        let end = find(&input[at..], b"\r\n")?;
        let line = &input[at..at + end];
        at += end + 2;
        match line {
            b"" => return Some((lines, at)),
            line => lines.push(line),
        }
    }
}

fn field(line: &[u8]) -> Option<(String, &[u8])> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let name = String::from_utf8(name.to_vec()).ok()?;
    (is_token(name.as_bytes()) && is_value(value)).then(|| (name.to_ascii_lowercase(), value))
}

fn is_ticket(name: &str) -> bool {
    name.replace('_', "-") == "fencing-token"
}

/// Only one space, or none, around a value that frames.
fn tight(value: &[u8]) -> Option<&[u8]> {
    let inner = trim(value);
    let before = value.len() - value.iter().position(|it| inner.first() == Some(it))?;
    (value.len() - inner.len() <= 1 && before == inner.len()).then_some(inner)
}

/// What the backend gets, how the body is framed, and the length of the head. `None`: refused, or
/// there is more to come.
fn read_head(input: &[u8]) -> Option<(Vec<u8>, RequestBody, usize)> {
    let (lines, used) = section(input)?;
    let (first, rest) = lines.split_first()?;
    let words: Vec<&[u8]> = first.split(|&byte| byte == b' ').collect();
    let [method, target, version] = words[..] else {
        return None;
    };
    let old = version == b"HTTP/1.0";
    let visible = target.iter().all(|&byte| byte > b' ' && byte != 0x7f);
    let sound = is_token(method) && !target.is_empty() && visible;
    if !sound || !(old || version == b"HTTP/1.1") || std::str::from_utf8(target).is_err() {
        return None;
    }
    let fields: Option<Vec<(String, &[u8])>> = rest.iter().map(|line| field(line)).collect();
    let fields = fields.filter(|fields| fields.len() <= 128)?;
    let named = |wanted: &'static str| fields.iter().filter(move |(name, _)| name == wanted);
    let body = match (
        named("content-length").count(),
        named("transfer-encoding").count(),
    ) {
        (0, 0) => RequestBody::None,
        (1, 0) => {
            let digits = tight(named("content-length").next()?.1)?;
            let digits = std::str::from_utf8(digits).ok()?;
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            RequestBody::Length(digits.parse::<i64>().ok().filter(|_| plain)?.unsigned_abs())
        }
        (0, 1) if !old => {
            let coding = tight(named("transfer-encoding").next()?.1)?;
            coding
                .eq_ignore_ascii_case(b"chunked")
                .then_some(RequestBody::Chunked)?
        }
        _ => return None,
    };
    if named("host").count() != 1 {
        return None;
    }
    let options: Vec<String> = named("connection")
        .flat_map(|(_, value)| value.split(|&byte| byte == b','))
        .map(|it| String::from_utf8_lossy(trim(it)).to_ascii_lowercase())
        .collect();
    let framing = [
        "content-length",
        "content-type",
        "expect",
        "host",
        "transfer-encoding",
    ];
    if options
        .iter()
        .any(|it| framing.contains(&it.as_str()) || is_ticket(it))
    {
        return None;
    }
    let here = [
        "connection",
        "expect",
        "http2-settings",
        "keep-alive",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
    ];
    let mut out = [method, b" ", target, b" HTTP/1.1\r\n"].concat();
    for ((name, _), line) in fields.iter().zip(rest) {
        if !(here.contains(&name.as_str()) || is_ticket(name) || options.contains(name)) {
            out.extend_from_slice(line);
            out.extend_from_slice(b"\r\n");
        }
    }
    if body == RequestBody::Chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    out.extend_from_slice(b"\r\n");
    Some((out, body, used))
}

/// Payload, trailers and length of a body in chunks. `None`: refused, or there is more to come.
fn read_chunks(input: &[u8]) -> Option<(Vec<u8>, Vec<u8>, usize)> {
    let (mut payload, mut at) = (vec![], 0);
    loop {
        let end = at + find(&input[at..], b"\r\n")?;
        let line = &input[at..end];
        let (size, extension) = match line.iter().position(|&byte| byte == b';') {
            Some(semicolon) => (&line[..semicolon], &line[semicolon..]),
            None => (line, &b""[..]),
        };
        let hex = !size.is_empty() && size.len() <= 15 && size.iter().all(u8::is_ascii_hexdigit);
        if !hex || !is_value(extension) || extension.len() > 256 {
            return None;
        }
        let size = usize::from_str_radix(std::str::from_utf8(size).ok()?, 16).ok()?;
        at = end + 2;
        if size == 0 {
            let (lines, used) = section(&input[at..])?;
            for line in &lines {
                let (name, _) = field(line)?;
                let framing = [
                    "connection",
                    "content-length",
                    "host",
                    "trailer",
                    "transfer-encoding",
                ];
                if framing.contains(&name.as_str()) || is_ticket(&name) {
                    return None;
                }
            }
            return Some((payload, input[at..at + used - 2].to_vec(), at + used));
        }
        payload.extend_from_slice(input.get(at..at.checked_add(size)?)?);
        at += size;
        input[at..].starts_with(b"\r\n").then_some(())?;
        at += 2;
    }
}

/// Fragments of heads, sound and crooked.
const LINES: [&str; 44] = [
    "Host: a",
    "HOST:b",
    "Host : a",
    "Host:",
    "X-a: 1",
    "x-b:\t2 ",
    "X-A:",
    "X: \u{e9}",
    "Content-Length: 3",
    "content-length:0",
    "Content-Length: 3 ",
    "Content-Length:  3",
    "Content-Length: +3",
    "Content-Length: 3,3",
    "Content-Length: 9223372036854775808",
    "Content-Length: 9223372036854775807",
    "Content-Length",
    "Content_Length: 4",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: Chunked",
    "Transfer-Encoding:chunked",
    "Transfer-Encoding: chunked ",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding: identity",
    "transfer_encoding: chunked",
    "Connection: close",
    "Connection: keep-alive, X-a",
    "Connection: Content-Length",
    "Connection: fencing_token",
    "connection: ,x-b,",
    "Fencing-Token: t",
    "fencing_token: t",
    "TE: trailers",
    "Upgrade: h2c",
    "Expect: 100-continue",
    "Keep-Alive: 5",
    " folded: 1",
    "\tfolded",
    "X\0: a",
    "X: a\0",
    "X: a\u{b}",
    "no colon",
];
const FIRST: [&str; 12] = [
    "GET / HTTP/1.1",
    "PUT /a%2f?b HTTP/1.1",
    "PUT * HTTP/1.0",
    "GET  / HTTP/1.1",
    "GET / HTTP/1.1 ",
    " GET / HTTP/1.1",
    "GET / HTTP/1.2",
    "GET /",
    "GET /a b HTTP/1.1",
    "G\u{e9}T / HTTP/1.1",
    "GET /\u{e9} HTTP/1.1",
    "GET\t/ HTTP/1.1",
];
const ENDS: [&str; 8] = [
    "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", "\r\n\r\n",
];
const CHUNKS: [&str; 30] = [
    "3\r\nabc\r\n",
    "3\r\nabc\r\n",
    "0a\r\n0123456789\r\n",
    "1;x=\"y;z\"\r\na\r\n",
    "1\r\na\r\n",
    "0\r\n",
    "0\r\n\r\n",
    "00\r\n\r\n",
    "0;last\r\n\r\n",
    "\r\n",
    "3\nabc\r\n",
    "3\r\nabc\n",
    "3\r\nabcd\r\n",
    "3 \r\nabc\r\n",
    " 3\r\nabc\r\n",
    "0x3\r\nabc\r\n",
    "-3\r\n",
    "g\r\n",
    "1;\n\r\na\r\n",
    "1;\0\r\na\r\n",
    "1;\r\r\na\r\n",
    "ffffffffffffffff\r\n",
    "X: a\r\n",
    "X: a\n",
    "Fencing-Token: t\r\n",
    "fencing_token: t\r\n",
    "Host: a\r\n",
    "X : a\r\n",
    " folded\r\n",
    "GET / HTTP/1.1\r\n\r\n",
];

fn heads() -> impl Strategy<Value = Vec<u8>> {
    let line = (select(&LINES[..]), select(&ENDS[..])).prop_map(|(line, end)| [line, end].concat());
    let first =
        (select(&FIRST[..]), select(&ENDS[..6])).prop_map(|(line, end)| [line, end].concat());
    let sound = Just("GET / HTTP/1.1\r\nHost: a\r\n".to_owned());
    let begin = proptest::prop_oneof![sound, first];
    let flip = proptest::option::weighted(0.3, (any::<proptest::sample::Index>(), any::<u8>()));
    (begin, vec(line, 0..6), flip).prop_map(|(first, lines, flip)| {
        let mut head = [first, lines.concat(), "\r\nrest".to_owned()]
            .concat()
            .into_bytes();
        if let Some((at, byte)) = flip {
            let at = at.index(head.len());
            head[at] = byte;
        }
        head
    })
}

fn chunks() -> impl Strategy<Value = Vec<u8>> {
    let flip = proptest::option::weighted(0.3, (any::<proptest::sample::Index>(), any::<u8>()));
    (vec(select(&CHUNKS[..]), 1..6), flip).prop_map(|(chunks, flip)| {
        let mut body = (chunks.concat() + "0\r\n\r\nrest").into_bytes();
        if let Some((at, byte)) = flip {
            let at = at.index(body.len());
            body[at] = byte;
        }
        body
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn heads_are_read_as_the_oracle_reads_them(input in heads()) {
        let mut head = RequestHead::default();
        let read = match head.read(&input) {
            Ok(Some(used)) => {
                let mut out = vec![];
                head.write(Outgoing::AsItCame, &mut out);
                Some((out, head.body(), used))
            }
            Ok(None) | Err(_) => None,
        };
        let wanted = read_head(&input);
        prop_assert_eq!(&read, &wanted, "{:?}", String::from_utf8_lossy(&input));
        if let Some((_, _, used)) = wanted {
            for cut in 0..used {
                prop_assert!(matches!(head.read(&input[..cut]), Ok(None)), "cut at {}", cut);
            }
        }
    }

    #[test]
    fn chunks_are_read_as_the_oracle_reads_them(body in chunks(), step in 1_usize..40) {
        let mut reader = BodyReader::chunked();
        let (mut payload, mut input, mut come, mut used_up) = (vec![], vec![], 0, 0);
        let read = loop {
            match reader.next(&input) {
                Err(_) => break None,
                Ok(Piece::Data(range)) => {
                    payload.extend_from_slice(&input[range.clone()]);
                    used_up += range.end;
                    input.drain(..range.end);
                }
                Ok(Piece::End { used, trailers }) => {
                    break Some((payload, input[trailers].to_vec(), used_up + used));
                }
                Ok(Piece::More(_)) if come == body.len() => break None,
                Ok(Piece::More(used)) => {
                    used_up += used;
                    input.drain(..used);
                    let here = step.min(body.len() - come);
                    input.extend_from_slice(&body[come..come + here]);
                    come += here;
                }
            }
        };
        prop_assert_eq!(read, read_chunks(&body), "{:?}", String::from_utf8_lossy(&body));
    }
}
