//! The bytes on both wires: frames that are refused, and those that travel on.

use std::time::Duration;

use crate::support::{End, OK, Peer, Setup, World, get, put};

/// What stands in a request for a guarded path behind its `Host` line, and what is said of it. The
/// body that follows is `1`.
const REFUSED: [(&str, &str); 28] = [
    ("X: a\n", "does not end with CR LF"),
    (
        "X: a\n\nGET /accounts/7/x HTTP/1.1\r\nHost: b\r\n",
        "does not end with CR LF",
    ),
    ("X: a\r\n b: c\r\n", "folded"),
    ("X: a\r\n\tb\r\n", "folded"),
    ("X : a\r\n", "white space stands before"),
    ("Content-Length : 1\r\n", "white space stands before"),
    (
        "Transfer-Encoding\t: chunked\r\n",
        "white space stands before",
    ),
    ("X: a\0b\r\n", "control character"),
    ("X: a\rTransfer-Encoding: chunked\r\n", "control character"),
    ("X\0Y: a\r\n", "not a token"),
    ("(X): a\r\n", "not a token"),
    ("no colon\r\n", "not a token"),
    ("Host: other\r\n", "host is given more than once"),
    (
        "Content-Length: 1\r\nContent-Length: 2\r\n",
        "content-length is given more than once",
    ),
    (
        "Content-Length: 1\r\ncontent-length: 1\r\n",
        "content-length is given more than once",
    ),
    ("Content-Length: 1,1\r\n", "content-length is not a number"),
    ("Content-Length: 0x1\r\n", "content-length is not a number"),
    ("Content-Length: -1\r\n", "content-length is not a number"),
    ("Content-Length: 1 1\r\n", "content-length is not a number"),
    (
        "Content-Length: 99999999999999999999\r\n",
        "content-length is beyond 2^63",
    ),
    (
        "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "both content-length and transfer",
    ),
    (
        "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n",
        "both content-length and transfer",
    ),
    (
        "Transfer-Encoding: gzip, chunked\r\n",
        "not exactly `chunked`",
    ),
    (
        "Transfer-Encoding: chunked, identity\r\n",
        "not exactly `chunked`",
    ),
    ("Transfer-Encoding: xchunked\r\n", "not exactly `chunked`"),
    ("Transfer-Encoding: chunked \r\n", "not exactly `chunked`"),
    ("Connection: close, Fencing-Token\r\n", "connection names"),
    ("Connection: Transfer-Encoding\r\n", "connection names"),
];

#[tokio::test(flavor = "multi_thread")]
async fn what_two_readers_could_frame_differently_is_refused_and_nothing_else_of_it_is_read() {
    let mut world = World::new(&Setup::default()).await;
    let ticket = world.ticket("accounts/7", 1);
    for (lines, why) in REFUSED {
        let smuggled = "GET /accounts/7/smuggled HTTP/1.1\r\nHost: b\r\n\r\n";
        let mut client = world.client().await;
        let request = format!(
            "PUT /accounts/7/x HTTP/1.1\r\nHost: b\r\nFencing-Token: {ticket}\r\n{lines}\r\n1{smuggled}"
        );
        client.send(request.as_bytes()).await;
        let problem = client.reply().await.refused(400, "invalid");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(why), "{lines:?}: {detail}");
        assert_eq!(client.end().await, End::Fin, "{lines:?}");
        assert_eq!(client.text(), "", "{lines:?}: something else was answered");
    }
    world.backend.is_untouched().await;
    world.audited(&[("code", "invalid")]).await;
    // The proxy goes on.
    assert_eq!(
        world
            .pass(&put("/accounts/7/x", &ticket, "v"))
            .await
            .1
            .status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn first_lines_and_long_heads_are_refused_in_clear_words() {
    let listener = "[listener.limits]\nhead_bytes_max = 8192";
    let world = World::new(&Setup::listener(listener)).await;
    let long = format!(
        "GET / HTTP/1.1\r\nHost: b\r\nX: {}\r\n\r\n",
        "y".repeat(9000)
    );
    let many = format!("GET / HTTP/1.1\r\nHost: b\r\n{}\r\n", "a:b\r\n".repeat(200));
    for (request, why) in [
        ("GET /\r\n\r\n", "not `method target version`"),
        (
            "GET  / HTTP/1.1\r\nHost: b\r\n\r\n",
            "not `method target version`",
        ),
        ("GET / HTTP/1.2\r\nHost: b\r\n\r\n", "version"),
        ("GET / HTTP/1.1\r\n\r\n", "host is missing"),
        ("\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n", "empty lines"),
        (
            "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n",
            "authority and host differ",
        ),
        (&long, "longer than 8192 bytes"),
        (&many, "more than 128 fields"),
    ] {
        let problem = world.ask(request).await.refused(400, "invalid");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(why), "{request:?}: {detail}");
    }
    world.backend.is_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_comes_byte_by_byte_after_an_empty_line_is_read() {
    let world = World::new(&Setup::default()).await;
    let mut client = world.client().await;
    for byte in b"\r\nGET /free HTTP/1.1\r\nHost: b\r\n\r\n" {
        client.send(&[*byte]).await;
        tokio::task::yield_now().await;
    }
    let mut backend = world.backend.accept().await;
    assert_eq!(
        backend.request().await,
        "GET /free HTTP/1.1\r\nHost: b\r\n\r\n"
    );
    backend.send(OK).await;
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn crooked_chunks_end_the_request_at_the_backend_too() {
    for listener in ["", "truncated_body = \"discarded\""] {
        let world = World::new(&Setup::listener(listener)).await;
        let ticket = world.ticket("accounts/7", 1);
        for (chunks, why) in [
            ("z\r\n", "size is not a number"),
            ("1 \r\na\r\n0\r\n\r\n", "size is not a number"),
            ("0x1\r\na\r\n0\r\n\r\n", "size is not a number"),
            ("1\na\r\n0\r\n\r\n", "size is not a number"),
            ("1\r\nab\r\n0\r\n\r\n", "longer than its size"),
            ("1;x\ny\r\na\r\n0\r\n\r\n", "control character"),
            ("ffffffffffffffff\r\n", "too large"),
            (
                "1\r\na\r\n0\r\nfencing_token: x\r\n\r\n",
                "a ticket cannot travel in a trailer",
            ),
            (
                "1\r\na\r\n0\r\nContent-Length: 1\r\n\r\n",
                "frames the message",
            ),
            ("1\r\na\r\n0\r\nX: a\n\r\n", "CR LF"),
        ] {
            let mut client = world.client().await;
            let head = format!(
                "PUT /accounts/7/x HTTP/1.1\r\nHost: b\r\nFencing-Token: {ticket}\r\n\
                 Transfer-Encoding: chunked\r\n\r\n{chunks}"
            );
            client.send(head.as_bytes()).await;
            let problem = client.reply().await.refused(400, "invalid");
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains(why), "{chunks:?}: {detail}");
            if !listener.is_empty() {
                let mut backend = world.backend.accept().await;
                assert_eq!(backend.end().await, End::Reset, "{chunks:?}");
                assert!(!backend.text().contains("0\r\n\r\n"), "{}", backend.text());
            }
        }
        if listener.is_empty() {
            world.backend.is_untouched().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_travel_on_and_bodies_are_framed_anew() {
    for (listener, path) in [
        ("", "/free"),
        ("", "/accounts/7/x"),
        ("truncated_body = \"discarded\"", "/accounts/7/x"),
    ] {
        let mut world = World::new(&Setup::listener(listener)).await;
        let ticket = world.ticket("accounts/7", 1);
        let request = format!(
            "PUT {path} HTTP/1.1\r\nHost: b\r\nFencing-Token: {ticket}\r\nTrailer: X-Sum\r\n\
             Transfer-Encoding: chunked\r\n\r\n3;ext=1\r\nabc\r\n0\r\nX-SUM:  9 \r\n\r\n"
        );
        let mut client = world.client().await;
        client.send(request.as_bytes()).await;
        let mut backend = world.backend.accept().await;
        let head = backend.head().await;
        assert!(head.contains("Transfer-Encoding: chunked\r\n"), "{head}");
        assert!(head.contains("Trailer: X-Sum\r\n"), "{head}");
        let body = "3\r\nabc\r\n0\r\nX-SUM:  9 \r\n\r\n";
        assert_eq!(backend.at_least(body.len()).await, body);
        backend
            .send(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                  2\r\nok\r\n0\r\nX-After: 1\r\n\r\n",
            )
            .await;
        let reply = client.head().await;
        assert!(reply.contains("Transfer-Encoding: chunked\r\n"), "{reply}");
        let body = "2\r\nok\r\n0\r\nX-After: 1\r\n\r\n";
        assert_eq!(client.at_least(body.len()).await, body);
        world.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_were_sent_ahead_are_answered_in_their_order() {
    let world = World::new(&Setup::default()).await;
    let ticket = world.ticket("accounts/7", 1);
    let mut client = world.client().await;
    let ahead = [
        get("/free/1", &ticket),
        "PUT /accounts/7/x HTTP/1.1\r\nHost: b\r\nContent-Length: 3\r\n\r\nabc".to_owned(),
        put("/accounts/7/x", &ticket, "0123456789"),
        get("/free/2", &ticket),
    ];
    client.send(ahead.concat().as_bytes()).await;
    let mut backend = world.backend.accept().await;
    assert!(backend.request().await.starts_with("GET /free/1 "));
    backend.send(OK).await;
    assert_eq!(client.reply().await.status, 200);
    client.reply().await.refused(428, "missing");
    let seen = backend.request().await;
    assert!(
        seen.starts_with("PUT /accounts/7/x ") && seen.ends_with("0123456789"),
        "{seen}"
    );
    backend.send(OK).await;
    assert_eq!(client.reply().await.status, 200);
    assert!(backend.request().await.starts_with("GET /free/2 "));
    backend.send(OK).await;
    assert_eq!(client.reply().await.status, 200);
}

/// Sends a request, and what the backend answers; comes back with both ends.
async fn answered(world: &World, request: &str, answer: &[u8]) -> (Peer, Peer) {
    let mut client = world.client().await;
    client.send(request.as_bytes()).await;
    let mut backend = world.backend.accept().await;
    backend.request().await;
    backend.send(answer).await;
    (client, backend)
}

const FREE: &str = "GET /free HTTP/1.1\r\nHost: b\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_response_without_a_length_ends_with_its_connection() {
    let world = World::new(&Setup::default()).await;
    let answer = b"HTTP/1.0 200 OK\r\nX-a: 1\r\n\r\nuntil the end";
    let (mut client, backend) = answered(&world, FREE, answer).await;
    let head = client.head().await;
    assert_eq!(
        head,
        "HTTP/1.1 200 OK\r\nX-a: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    assert_eq!(client.at_least(18).await, "d\r\nuntil the end\r\n");
    drop(backend);
    assert_eq!(client.at_least(23).await, "d\r\nuntil the end\r\n0\r\n\r\n");
    // A client of HTTP/1.0 reads no chunks.
    let old = "GET /free HTTP/1.0\r\nHost: b\r\n\r\n";
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    let (mut client, _backend) = answered(&world, old, chunked).await;
    assert_eq!(client.end().await, End::Fin);
    assert_eq!(
        client.text(),
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_without_a_body_and_interim_ones_pass() {
    let world = World::new(&Setup::default()).await;
    let mut client = world.client().await;
    client.send(b"HEAD /free HTTP/1.1\r\nHost: b\r\n\r\n").await;
    let mut backend = world.backend.accept().await;
    for (request, answer, seen) in [
        (
            FREE,
            "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
        ),
        (
            FREE,
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n",
        ),
        (
            FREE,
            "HTTP/1.1 204 None\r\n\r\n",
            "HTTP/1.1 204 None\r\n\r\n",
        ),
        (
            FREE,
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: a\r\n\r\n\
             HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ),
    ] {
        backend.request().await;
        backend.send(answer.as_bytes()).await;
        assert_eq!(client.at_least(seen.len()).await, seen);
        client.read.clear();
        // The backend's connection carries the next one.
        client.send(request.as_bytes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_response_is_an_unknown_outcome() {
    let world = World::new(&Setup::default()).await;
    for answer in [
        &b"nonsense\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\n\r\n",
    ] {
        let (mut client, mut backend) = answered(&world, FREE, answer).await;
        client.reply().await.refused(502, "unknown");
        assert_eq!(backend.end().await, End::Reset);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_of_an_early_response_is_used_no_more_and_the_rest_is_sent() {
    let world = World::new(&Setup::default()).await;
    let mut client = world.client().await;
    client
        .send(b"POST /free HTTP/1.1\r\nHost: b\r\nContent-Length: 10\r\n\r\n01234")
        .await;
    let mut backend = world.backend.accept().await;
    backend.head().await;
    assert_eq!(backend.at_least(5).await, "01234");
    backend
        .send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nea")
        .await;
    let head = client.head().await;
    assert!(head.contains("Connection: close\r\n"), "{head}");
    assert_eq!(client.at_least(2).await, "ea");
    // Both directions go on.
    client.send(b"56789").await;
    assert_eq!(backend.at_least(10).await, "0123456789");
    backend.send(b"rl").await;
    assert_eq!(client.at_least(4).await, "earl");
    assert_eq!(client.end().await, End::Fin);
    backend.end().await;
    let (mut client, _backend) = answered(&world, FREE, OK).await;
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_is_sent_again_on_a_fresh_connection_and_a_write_is_not() {
    let world = World::new(&Setup::default()).await;
    let post = "POST /free HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\n\r\nx";
    for (request, passes) in [(FREE, true), (post, false)] {
        let (mut client, mut kept) = answered(&world, FREE, OK).await;
        assert_eq!(client.reply().await.status, 200);
        client.send(request.as_bytes()).await;
        kept.request().await;
        kept.reset();
        if passes {
            let mut fresh = world.backend.accept().await;
            assert_eq!(fresh.request().await, FREE);
            fresh.send(OK).await;
            assert_eq!(client.reply().await.status, 200);
            fresh.reset();
        } else {
            client.reply().await.refused(502, "unknown");
            world.backend.is_untouched().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_ends_what_is_unfenced() {
    let world = World::new(&Setup::default()).await;
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234";
    let (mut client, mut backend) = answered(&world, FREE, answer).await;
    client.head().await;
    drop(client);
    assert_eq!(backend.end().await, End::Reset);
    let mut client = world.client().await;
    client.send(FREE.as_bytes()).await;
    let mut backend = world.backend.accept().await;
    backend.request().await;
    drop(client);
    assert_eq!(backend.end().await, End::Reset);
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_are_refused_where_there_are_rules_and_left_out_where_not() {
    let world = World::new(&Setup::default()).await;
    let upgrade =
        "GET /free HTTP/1.1\r\nHost: b\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    world.ask(upgrade).await.refused(403, "unclassified");
    let connect = "CONNECT b:1 HTTP/1.1\r\nHost: b:1\r\n\r\n";
    world.ask(connect).await.refused(403, "unclassified");
    world.backend.is_untouched().await;
    let mut open = World::new(&Setup::rules("")).await;
    let (seen, _) = open.pass(upgrade).await;
    assert_eq!(seen, "GET /free HTTP/1.1\r\nHost: b\r\n\r\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_body_is_skipped_or_ends_the_connection() {
    let world = World::new(&Setup::default()).await;
    let mut client = world.client().await;
    // Short, and still on its way.
    client
        .send(b"PUT /accounts/7/x HTTP/1.1\r\nHost: b\r\nContent-Length: 5\r\n\r\nab")
        .await;
    client.reply().await.refused(428, "missing");
    client
        .send(b"cdePUT /accounts/8/x HTTP/1.1\r\nHost: b\r\n\r\n")
        .await;
    let problem = client.reply().await.refused(428, "missing");
    assert_eq!(problem["lock"], "accounts/8");
    // One that waits to be told to go on may or may not come.
    client
        .send(
            b"PUT /accounts/7/x HTTP/1.1\r\nHost: b\r\nExpect: 100-continue\r\n\
              Content-Length: 5\r\n\r\n",
        )
        .await;
    let reply = client.reply().await;
    reply.refused(428, "missing");
    assert!(
        reply.head.contains("connection: close\r\n"),
        "{}",
        reply.head
    );
    assert_eq!(client.end().await, End::Fin);
    // A long one.
    let mut client = world.client().await;
    client
        .send(b"PUT /accounts/7/x HTTP/1.1\r\nHost: b\r\nContent-Length: 1000000\r\n\r\n")
        .await;
    let reply = client.reply().await;
    reply.refused(428, "missing");
    assert!(
        reply.head.contains("connection: close\r\n"),
        "{}",
        reply.head
    );
    assert_eq!(client.end().await, End::Fin);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_ends_with_the_proxy_and_a_busy_one_after_its_reply() {
    let mut world = World::new(&Setup::default()).await;
    let mut idle = world.client().await;
    idle.send(b"PUT /accounts/7/x HTTP/1.1\r\nHost: b\r\n\r\n")
        .await;
    idle.reply().await.refused(428, "missing");
    let mut busy = world.client().await;
    busy.send(FREE.as_bytes()).await;
    let mut backend = world.backend.accept().await;
    backend.request().await;
    let answering = async {
        assert_eq!(idle.end().await, End::Fin);
        backend.send(OK).await;
        let reply = busy.reply().await;
        assert!(
            reply.head.contains("Connection: close\r\n"),
            "{}",
            reply.head
        );
        assert_eq!(busy.end().await, End::Fin);
    };
    let ((), ()) = tokio::join!(world.shutdown(), answering);
}

#[tokio::test(flavor = "multi_thread")]
async fn long_bodies_stream_both_ways() {
    let world = World::new(&Setup::default()).await;
    let mut client = world.client().await;
    let long = "0123456789abcdef".repeat(1 << 16);
    let head = format!(
        "POST /free HTTP/1.1\r\nHost: b\r\nContent-Length: {}\r\n\r\n",
        long.len()
    );
    let whole = head.clone() + &long;
    let mut backend = None;
    let ((), ()) = tokio::join!(client.send(whole.as_bytes()), async {
        let mut connection = world.backend.accept().await;
        assert_eq!(connection.request().await, whole);
        backend = Some(connection);
    });
    let mut backend = backend.unwrap();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{long}",
        long.len()
    );
    let ((), reply) = tokio::join!(backend.send(answer.as_bytes()), client.reply());
    assert!(reply.body == long, "the body is another one");
    // Nobody waits for the other: the first bytes are there before the last are sent.
    client.send(head.as_bytes()).await;
    client.send(b"first").await;
    backend.head().await;
    assert_eq!(
        tokio::time::timeout(Duration::from_secs(10), backend.at_least(5))
            .await
            .unwrap(),
        "first"
    );
}
