use super::{BodyReader, Encoding, Outgoing, Piece, RequestBody, RequestHead, ResponseHead};
use super::{ResponseBody, ToClient, Version};

fn request(text: &[u8]) -> Result<(RequestHead, usize), &'static str> {
    let mut head = RequestHead::default();
    match head.read(text) {
        Ok(Some(used)) => Ok((head, used)),
        Ok(None) => Err("more"),
        Err(broken) => Err(broken.0),
    }
}

fn forwarded(text: &str) -> String {
    let (head, _) = request(text.as_bytes()).unwrap();
    let mut out = vec![];
    head.write(Outgoing::AsItCame, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_head_travels_on_byte_for_byte_without_what_ends_here() {
    assert_eq!(
        forwarded(
            "PUT /a%2Fb?q HTTP/1.1\r\nHOST:x\r\nX-a:  1 \r\nConnection: Keep-Alive, X-Hop\r\n\
             x-A:2\r\nx-hop: 1\r\nFencing-Token: t\r\nfencing_token: t\r\nTE: trailers\r\n\
             Expect: 100-continue\r\nX-Empty:\r\nContent-Length: 3\r\n\r\nabc"
        ),
        "PUT /a%2Fb?q HTTP/1.1\r\nHOST:x\r\nX-a:  1 \r\nx-A:2\r\nX-Empty:\r\n\
         Content-Length: 3\r\n\r\n"
    );
    assert_eq!(
        forwarded("GET http://A.b:81?q HTTP/1.1\r\nhost: a.B:81\r\n\r\n"),
        "GET /?q HTTP/1.1\r\nhost: a.B:81\r\n\r\n"
    );
    assert_eq!(
        forwarded("OPTIONS * HTTP/1.0\r\nhost: a\r\n\r\n"),
        "OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n"
    );
}

#[test]
fn the_end_of_a_head_is_found_and_its_body_framed() {
    let text = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\nrest";
    for cut in 0..text.len() - 4 {
        assert_eq!(request(&text[..cut]).err(), Some("more"), "{cut}");
    }
    let (head, used) = request(text).unwrap();
    assert_eq!((head.body(), used), (RequestBody::Chunked, text.len() - 4));
    let mut out = vec![];
    head.write(Outgoing::Length(7), &mut out);
    assert!(out.ends_with(b"Host: a\r\nContent-Length: 7\r\n\r\n"));
    let (head, _) = request(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 05\r\n\r\n").unwrap();
    assert_eq!(head.body(), RequestBody::Length(5));
}

/// Each line stands in a request; what it is refused for.
const CROOKED: [(&str, &str); 25] = [
    ("X: a\n", "a line of the head does not end with CR LF"),
    ("X: a\r", "a header's value has a control character"),
    ("X: a\rb\r\n", "a header's value has a control character"),
    ("X:\n", "a line of the head does not end with CR LF"),
    ("X: a\r\n b\r\n", "a header is folded over several lines"),
    (" X: a\r\n", "a header is folded over several lines"),
    ("X : a\r\n", "white space stands before a header's colon"),
    ("X\t: a\r\n", "white space stands before a header's colon"),
    ("X\0: a\r\n", "a header's name is not a token"),
    (": a\r\n", "a header's name is not a token"),
    ("X\r\n", "a header's name is not a token"),
    ("X: a\0b\r\n", "a header's value has a control character"),
    ("X: a\x0bb\r\n", "a header's value has a control character"),
    ("Host: b\r\n", "host is given more than once"),
    (
        "Content-Length: 1\r\ncontent-length: 1\r\n",
        "content-length is given more than once",
    ),
    ("Content-Length: 1, 1\r\n", "content-length is not a number"),
    ("Content-Length: +1\r\n", "content-length is not a number"),
    ("Content-Length:\t1\r\n", ""),
    ("Content-Length: 1 \r\n", "content-length is not a number"),
    (
        "Content-Length: 9223372036854775808\r\n",
        "content-length is beyond 2^63",
    ),
    (
        "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "both content-length and transfer-encoding are given",
    ),
    (
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "transfer-encoding is given more than once",
    ),
    (
        "Transfer-Encoding: chunked, gzip\r\n",
        "transfer-encoding is not exactly `chunked`",
    ),
    (
        "Transfer-Encoding:  chunked\r\n",
        "transfer-encoding is not exactly `chunked`",
    ),
    (
        "Connection: Fencing_Token\r\n",
        "connection names a header that must travel on",
    ),
];

#[test]
fn what_two_readers_could_frame_differently_is_refused_in_clear_words() {
    for (lines, why) in CROOKED {
        let text = format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        match request(text.as_bytes()) {
            Err(told) if told == why => {}
            // A single tab for the space is one reading.
            Ok(_) if why.is_empty() => {}
            other => panic!("{lines:?}: {:?}", other.map(|_| ())),
        }
    }
    for (text, why) in [
        ("GET /\n\n", "the first line is not `method target version`"),
        (
            "GET / HTTP/1.1\nHost: a\n\n",
            "a line of the head does not end with CR LF",
        ),
        (
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            "the first line is not `method target version`",
        ),
        (
            "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
            "a line of the head does not end with CR LF",
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "a line of the head does not end with CR LF",
        ),
        (
            "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
            "the version is not HTTP/1.0 or HTTP/1.1",
        ),
        ("GET / HTTP/1.1\r\n\r\n", "host is missing"),
        (
            "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "empty lines stand before the request",
        ),
        (
            "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "the target's authority and host differ",
        ),
        (
            "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            "transfer-encoding is given in HTTP/1.0",
        ),
    ] {
        assert_eq!(request(text.as_bytes()).err(), Some(why), "{text:?}");
    }
    let many = format!(
        "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
        "a: b\r\n".repeat(128)
    );
    assert_eq!(
        request(many.as_bytes()).err(),
        Some("the head has more than 128 fields")
    );
}

#[test]
fn a_connection_is_kept_as_its_version_and_its_options_say() {
    let keeps = |version: &str, line: &str| {
        let text = format!("GET / {version}\r\nHost: a\r\n{line}\r\n");
        request(text.as_bytes()).unwrap().0.keeps_alive()
    };
    assert!(keeps("HTTP/1.1", ""));
    assert!(!keeps("HTTP/1.1", "Connection: x, Close\r\n"));
    assert!(!keeps("HTTP/1.0", ""));
    assert!(keeps("HTTP/1.0", "Connection: keep-alive\r\n"));
}

/// The payload and the trailers of a body that comes in pieces of this size.
fn read(mut reader: BodyReader, body: &[u8], step: usize) -> Result<(Vec<u8>, Vec<u8>), String> {
    let (mut payload, mut input, mut rest) = (vec![], vec![], body);
    loop {
        match reader.next(&input).map_err(|broken| broken.0)? {
            Piece::Data(range) => {
                payload.extend_from_slice(&input[range.clone()]);
                input.drain(..range.end);
            }
            Piece::End { used, trailers } => {
                let trailers = input[trailers].to_vec();
                input.drain(..used);
                input.extend_from_slice(rest);
                assert_eq!(input, b"GET", "the end was missed");
                return Ok((payload, trailers));
            }
            Piece::More(used) => {
                input.drain(..used);
                if rest.is_empty() {
                    return Err("more".to_owned());
                }
                let here = step.min(rest.len());
                input.extend_from_slice(&rest[..here]);
                rest = &rest[here..];
            }
        }
    }
}

#[test]
fn bodies_are_read_whole_however_they_come() {
    let chunks = b"4\r\nWiki\r\n00a;x=\"y z\"\r\n0123456789\r\n0\r\nA: b\r\nc:d\r\n\r\nGET";
    for step in 1..chunks.len() {
        let (payload, trailers) = read(BodyReader::chunked(), chunks, step).unwrap();
        assert_eq!(payload, b"Wiki0123456789");
        assert_eq!(trailers, b"A: b\r\nc:d\r\n");
        let (payload, trailers) = read(BodyReader::Length(3), b"abcGET", step).unwrap();
        assert_eq!(
            (payload.as_slice(), trailers.as_slice()),
            (&b"abc"[..], &b""[..])
        );
    }
}

#[test]
fn crooked_chunks_are_refused() {
    for (body, why) in [
        ("", "more"),
        ("g\r\n", "a chunk's size is not a number"),
        ("\r\n", "a chunk's size is not a number"),
        ("-1\r\n", "a chunk's size is not a number"),
        (" 1\r\n", "a chunk's size is not a number"),
        ("1 \r\n", "a chunk's size is not a number"),
        ("0x1\r\n", "a chunk's size is not a number"),
        ("1\n", "a chunk's size is not a number"),
        ("1;a\nb\r\n", "a chunk's extension has a control character"),
        ("1;a\rb\r\n", "a chunk's extension has a control character"),
        ("1;\0\r\n", "a chunk's extension has a control character"),
        ("1000000000000000\r\n", "a chunk's size is too large"),
        ("1\r\nab\r\n", "a chunk is longer than its size"),
        ("1\r\na\n0\r\n\r\n", "a chunk is longer than its size"),
        (
            "0\r\nX: a\n\r\n",
            "a line of the head does not end with CR LF",
        ),
        ("0\r\n\n", "a line of the head does not end with CR LF"),
        ("0\r\nX : a\r\n\r\n", "a header's name is not a token"),
        (
            "0\r\nFencing_Token: a\r\n\r\n",
            "a ticket cannot travel in a trailer",
        ),
        (
            "0\r\nHost: a\r\n\r\n",
            "a trailer has a field that frames the message",
        ),
    ] {
        let told = read(BodyReader::chunked(), body.as_bytes(), 1).unwrap_err();
        assert_eq!(told, why, "{body:?}");
    }
    let long = format!("1;{}\r\n", "x".repeat(300));
    assert!(read(BodyReader::chunked(), long.as_bytes(), 7).is_err());
    let long = format!("0\r\nX: {}\r\n\r\n", "x".repeat(super::TRAILER_BYTES_MAX));
    assert_eq!(
        read(BodyReader::chunked(), long.as_bytes(), 4096).unwrap_err(),
        "the trailers are too long"
    );
}

#[test]
fn what_is_framed_is_read_again() {
    for sizes in [&[1, 15, 16, 17, 0][..], &[4096, 255, 256], &[]] {
        let (mut framed, mut whole) = (vec![], vec![]);
        for (at, size) in sizes.iter().enumerate() {
            let piece = vec![b'a' + at as u8; *size];
            Encoding::Chunked.put(&piece, &mut framed);
            whole.extend_from_slice(&piece);
        }
        Encoding::Chunked.put_end(b"x: y\r\n", &mut framed);
        framed.extend_from_slice(b"GET");
        let (payload, trailers) = read(BodyReader::chunked(), &framed, 1000).unwrap();
        assert_eq!((payload, trailers.as_slice()), (whole, &b"x: y\r\n"[..]));
    }
}

fn response(method: &str, text: &str) -> Result<ResponseHead, &'static str> {
    let asked = format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (asked, _) = request(asked.as_bytes()).unwrap();
    let mut head = ResponseHead::default();
    match head.read(text.as_bytes(), &asked) {
        Ok(Some(_)) => Ok(head),
        Ok(None) => Err("more"),
        Err(broken) => Err(broken.0),
    }
}

#[test]
fn the_end_of_a_response_is_found() {
    let body = |method: &str, lines: &str| {
        response(method, &format!("HTTP/1.1 {lines}\r\n")).map(|head| head.body())
    };
    let length = "200 OK\r\nContent-Length: 5\r\n";
    assert_eq!(body("GET", length), Ok(ResponseBody::Length(5)));
    assert_eq!(body("HEAD", length), Ok(ResponseBody::None));
    let chunked = "200 OK\r\nTransfer-Encoding: chunked\r\n";
    assert_eq!(body("GET", chunked), Ok(ResponseBody::Chunked));
    assert_eq!(body("GET", "200 OK\r\n"), Ok(ResponseBody::UntilClose));
    for bodiless in [
        "204 No Content\r\n",
        "304 Not Modified\r\n",
        "103 Early Hints\r\n",
    ] {
        let lines = format!("{bodiless}Content-Length: 5\r\n");
        assert_eq!(body("GET", &lines), Ok(ResponseBody::None), "{bodiless}");
    }
    for crooked in [
        "200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n",
        "200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "200 OK\r\nTransfer-Encoding: gzip, chunked\r\n",
        "200 OK\r\nX: a\n",
        "2000 OK\r\n",
    ] {
        assert!(body("GET", crooked).is_err(), "{crooked:?}");
    }
}

#[test]
fn a_response_goes_on_as_it_came_and_as_its_client_reads_it() {
    let to = |version, keeps_alive, lines: &str| {
        let head = response("GET", &format!("HTTP/1.0 {lines}\r\n")).unwrap();
        let mut out = vec![];
        let to = ToClient {
            version,
            keeps_alive,
        };
        head.write(to, &mut out);
        String::from_utf8(out).unwrap()
    };
    let lines =
        "200 Fine by me\r\nX-a:1\r\nKeep-Alive: 5\r\nConnection: keep-alive, x-B\r\nX-b: 1\r\n";
    assert_eq!(
        to(Version::Http11, true, lines),
        "HTTP/1.1 200 Fine by me\r\nX-a:1\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    assert_eq!(
        to(Version::Http10, false, lines),
        "HTTP/1.1 200 Fine by me\r\nX-a:1\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(
        to(Version::Http10, true, "204 Gone\r\nContent-Length: 0\r\n"),
        "HTTP/1.1 204 Gone\r\nConnection: keep-alive\r\n\r\n"
    );
}
