//! Backends that discard truncated bodies: the body streams, and its tail is withheld.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinHandle;

use crate::support::{End, OK, Peer, Setup, World, get, put};

const DISCARDED: &str =
    "truncated_body = \"discarded\"\nadmit_deadline = \"300ms\"\nin_doubt_hold = \"1s\"";

/// A client that has sent the head and a part of the body, and the backend that got it. Chunks, so
/// that the proxy sees the same pieces however the kernel joins them.
async fn half_way(world: &World, ticket: &str) -> (Peer, Peer) {
    let mut client = world.client().await;
    let head = format!(
        "PUT /accounts/7/x HTTP/1.1\r\nHost: b\r\nFencing-Token: {ticket}\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    );
    client.send(head.as_bytes()).await;
    let mut backend = world.backend.accept().await;
    client.send(b"4\r\n0123\r\n4\r\n4567\r\n").await;
    backend.head().await;
    // What came before the last piece is forwarded while the client still sends.
    assert_eq!(backend.at_least(9).await, "4\r\n0123\r\n");
    (client, backend)
}

const TAIL: &[u8] = b"2\r\n89\r\n0\r\n\r\n";
const WHOLE: &str = "4\r\n0123\r\n4\r\n4567\r\n2\r\n89\r\n0\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_body_streams_and_its_tail_comes_with_the_release() {
    let world = World::new(&Setup::listener(DISCARDED)).await;
    let ticket = world.ticket("accounts/7", 1);
    let (mut client, mut backend) = half_way(&world, &ticket).await;
    client.send(TAIL).await;
    assert_eq!(backend.at_least(WHOLE.len()).await, WHOLE);
    backend.send(OK).await;
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_declared_length_keeps_it_and_lacks_its_last_bytes_until_then() {
    let world = World::new(&Setup::listener(DISCARDED)).await;
    let ticket = world.ticket("accounts/7", 1);
    let mut client = world.client().await;
    let whole = put("/accounts/7/x", &ticket, &"0123456789".repeat(20_000));
    client.send(&whole.as_bytes()[..whole.len() - 1]).await;
    let mut backend = world.backend.accept().await;
    assert!(backend.head().await.contains("Content-Length: 200000\r\n"));
    backend.at_least(1).await;
    client.send(&whole.as_bytes()[whole.len() - 1..]).await;
    assert!(whole.ends_with(&backend.at_least(200_000).await));
    backend.send(OK).await;
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_stream_is_reset_without_its_tail() {
    let world = World::new(&Setup::listener(DISCARDED)).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let (mut client, mut backend) = half_way(&world, &old).await;
    let mut reader = world.client().await;
    reader.send(get("/accounts/7/x", &new).as_bytes()).await;
    // The new holder's read goes on at once, although the old writer is still sending.
    let mut fresh = world.backend.accept().await;
    fresh.request().await;
    fresh.send(OK).await;
    assert_eq!(reader.reply().await.status, 200);
    assert_eq!(backend.end().await, End::Reset);
    assert!(
        !backend.text().contains("4567"),
        "the tail left: {}",
        backend.text()
    );
    client.reply().await.refused(412, "stale");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_half_way_leaves_nothing() {
    let mut world = World::new(&Setup::listener(DISCARDED)).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let (client, mut backend) = half_way(&world, &old).await;
    drop(client);
    assert_eq!(backend.end().await, End::Reset);
    assert_eq!(
        world.pass(&put("/accounts/7/x", &new, "v")).await.1.status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_lost_half_way_has_applied_nothing() {
    let mut world = World::new(&Setup::listener(DISCARDED)).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let (mut client, backend) = half_way(&world, &old).await;
    backend.reset();
    let problem = client.reply().await.refused(503, "busy");
    assert_eq!(problem["outcome"], "not-applied");
    assert_eq!(
        world.pass(&put("/accounts/7/x", &new, "v")).await.1.status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_answer_passes_and_ends_the_write() {
    let mut world = World::new(&Setup::listener(DISCARDED)).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let (mut client, mut backend) = half_way(&world, &old).await;
    backend
        .send(b"HTTP/1.1 507 Full\r\ncontent-length: 4\r\n\r\nfull")
        .await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.body.as_str()), (507, "full"));
    assert_eq!(backend.end().await, End::Reset);
    assert_eq!(
        world.pass(&put("/accounts/7/x", &new, "v")).await.1.status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_backend_is_lost_after_the_tail_is_unknown() {
    let world = World::new(&Setup::listener(DISCARDED)).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let (mut client, mut backend) = half_way(&world, &old).await;
    client.send(TAIL).await;
    backend.at_least(WHOLE.len()).await;
    backend.reset();
    client.reply().await.refused(502, "unknown");
    world
        .ask(&get("/accounts/7/x", &new))
        .await
        .refused(503, "busy");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_body_the_head_is_the_release() {
    let world = World::new(&Setup::listener(DISCARDED)).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let delete =
        format!("DELETE /accounts/7/x HTTP/1.1\r\nHost: b\r\nFencing-Token: {old}\r\n\r\n");
    let mut client = world.client().await;
    client.send(delete.as_bytes()).await;
    let mut backend = world.backend.accept().await;
    backend.request().await;
    world
        .ask(&get("/accounts/7/x", &new))
        .await
        .refused(503, "busy");
    backend.send(OK).await;
    assert_eq!(client.reply().await.status, 200);
}

/// More than the sockets of both sides take.
const LONG: usize = 24 << 20;

/// A client that sends a long write to a backend that reads the head and then nothing more. What
/// comes back keeps the connections open.
async fn stalled(
    world: &World,
    ticket: &str,
) -> (
    OwnedReadHalf,
    Peer,
    JoinHandle<std::io::Result<OwnedWriteHalf>>,
) {
    let (reading, mut sending) = world.client().await.stream.into_split();
    let whole = put("/accounts/7/x", ticket, &"x".repeat(LONG));
    // Ends when the proxy gives the write up.
    let task = tokio::spawn(async move {
        let sent = sending.write_all(whole.as_bytes()).await;
        // Dropped, it would end the client's side of the connection.
        sent.map(|()| sending)
    });
    let mut backend = world.backend.accept().await;
    backend.head().await;
    (reading, backend, task)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_backend_stops_reading_is_revoked_all_the_same() {
    let world = World::new(&Setup::listener(DISCARDED)).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let _stalled = stalled(&world, &old).await;
    // Until the buffers on the way are full, the body is still asked for.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let mut reader = world.client().await;
    reader.send(get("/accounts/7/x", &new).as_bytes()).await;
    let mut fresh = world.backend.accept().await;
    fresh.request().await;
    fresh.send(OK).await;
    assert_eq!(reader.reply().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_write_whose_backend_stops_reading_ends_unknown() {
    let listener = "in_doubt_hold = \"1s\"\n[listener.limits]\n\
                    upstream_response_timeout = \"400ms\"";
    let world = World::new(&Setup::listener(listener)).await;
    let ticket = world.ticket("accounts/7", 1);
    let (mut reading, _backend, _task) = stalled(&world, &ticket).await;
    let mut answer = vec![];
    let come = tokio::time::timeout(std::time::Duration::from_secs(20), async {
        while !String::from_utf8_lossy(&answer).contains("unknown") {
            assert_ne!(reading.read_buf(&mut answer).await.unwrap(), 0);
        }
    });
    come.await
        .expect("a write that the backend does not read never ends");
    assert!(
        answer.starts_with(b"HTTP/1.1 502 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}
