//! Backends that discard truncated bodies: the body streams, and its tail is withheld.

use crate::support::{End, OK, Setup, World, get, put};

const DISCARDED: &str =
    "truncated_body = \"discarded\"\nadmit_deadline = \"300ms\"\nin_doubt_hold = \"1s\"";

/// A client that has sent the head and a part of the body, and the backend that got it.
async fn half_way(world: &World, ticket: &str) -> (crate::support::Peer, crate::support::Peer) {
    let mut client = world.client().await;
    let whole = put("/accounts/7/x", ticket, "0123456789");
    client.send(&whole.as_bytes()[..whole.len() - 10]).await;
    let mut backend = world.backend.accept().await;
    client.send(b"0123").await;
    backend.head().await;
    client.send(b"4567").await;
    // What came before is forwarded while the client still sends.
    assert_eq!(backend.at_least(4).await, "0123");
    (client, backend)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_streams_and_its_tail_comes_with_the_release() {
    let world = World::new(&Setup::listener(DISCARDED)).await;
    let ticket = world.ticket("accounts/7", 1);
    let (mut client, mut backend) = half_way(&world, &ticket).await;
    client.send(b"89").await;
    assert_eq!(backend.at_least(10).await, "0123456789");
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
    assert!(!backend.text().contains("4567"), "the tail left: {}", backend.text());
    client.reply().await.refused(412, "stale");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_half_way_leaves_nothing() {
    let mut world = World::new(&Setup::listener(DISCARDED)).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let (client, mut backend) = half_way(&world, &old).await;
    drop(client);
    assert_eq!(backend.end().await, End::Reset);
    assert_eq!(world.pass(&put("/accounts/7/x", &new, "v")).await.1.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_lost_half_way_has_applied_nothing() {
    let mut world = World::new(&Setup::listener(DISCARDED)).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let (mut client, backend) = half_way(&world, &old).await;
    backend.reset();
    let problem = client.reply().await.refused(503, "busy");
    assert_eq!(problem["outcome"], "not-applied");
    assert_eq!(world.pass(&put("/accounts/7/x", &new, "v")).await.1.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_answer_passes_and_ends_the_write() {
    let mut world = World::new(&Setup::listener(DISCARDED)).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let (mut client, mut backend) = half_way(&world, &old).await;
    backend.send(b"HTTP/1.1 507 Full\r\ncontent-length: 4\r\n\r\nfull").await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.body.as_str()), (507, "full"));
    assert_eq!(backend.end().await, End::Reset);
    assert_eq!(world.pass(&put("/accounts/7/x", &new, "v")).await.1.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_backend_is_lost_after_the_tail_is_unknown() {
    let world = World::new(&Setup::listener(DISCARDED)).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let (mut client, mut backend) = half_way(&world, &old).await;
    client.send(b"89").await;
    backend.at_least(10).await;
    backend.reset();
    client.reply().await.refused(502, "unknown");
    world.ask(&get("/accounts/7/x", &new)).await.refused(503, "busy");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_body_the_head_is_the_release() {
    let world = World::new(&Setup::listener(DISCARDED)).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let delete = format!("DELETE /accounts/7/x HTTP/1.1\r\nHost: b\r\nFencing-Token: {old}\r\n\r\n");
    let mut client = world.client().await;
    client.send(delete.as_bytes()).await;
    let mut backend = world.backend.accept().await;
    backend.request().await;
    world.ask(&get("/accounts/7/x", &new)).await.refused(503, "busy");
    backend.send(OK).await;
    assert_eq!(client.reply().await.status, 200);
}
