//! Exchanges: how responses end, come early or not at all, and what becomes of the connections.

use std::time::Duration;

use crate::support::{End, OK, Peer, Setup, World, get, put};

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
async fn an_early_response_to_a_held_write_is_its_outcome() {
    let world = World::new(&Setup::default()).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let long = put("/accounts/7/x", &old, &"x".repeat(8 << 20));
    let mut client = world.client().await;
    let ((), mut backend) = tokio::join!(client.send(long.as_bytes()), async {
        let mut backend = world.backend.accept().await;
        backend.head().await;
        backend
            .send(b"HTTP/1.1 413 Too Long\r\nContent-Length: 4\r\n\r\nlong")
            .await;
        backend
    });
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.body.as_str()), (413, "long"));
    assert_eq!(client.end().await, End::Fin);
    assert_eq!(backend.end().await, End::Reset);
    // Its outcome is known: nobody waits for it.
    let (mut client, _backend) = answered(&world, &get("/accounts/7/x", &new), OK).await;
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_http_1_0_keeps_its_connection_where_it_asks_to() {
    let world = World::new(&Setup::default()).await;
    let old = "GET /free HTTP/1.0\r\nHost: b\r\nConnection: Keep-Alive\r\n\r\n";
    let (mut client, mut backend) = answered(&world, old, OK).await;
    let reply = client.reply().await;
    assert!(
        reply.head.contains("Connection: keep-alive\r\n"),
        "{}",
        reply.head
    );
    client.send(old.as_bytes()).await;
    assert_eq!(backend.request().await, FREE);
    backend.send(OK).await;
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
