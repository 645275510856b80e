//! Clients that ask for nothing, or are gone: they do not keep their places.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::support::{End, Peer, Setup, World};

/// What an idle client gets, as over HTTP/1.1.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// What a loaded machine may take longer.
const SLACK: Duration = Duration::from_secs(15);

/// How an HTTP/2 client begins: the preface and an empty SETTINGS frame (RFC 9113 3.4, 6.5).
const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// A HEADERS frame that ends stream 1: GET, http, /free (RFC 9113 6.2, RFC 7541 6).
const ASK: &[u8] = b"\0\0\x12\x01\x05\0\0\0\x01\x82\x86\x04\x05/free\x01\x07backend";

type Connected<F> = (hyper::client::conn::http2::SendRequest<Empty<Bytes>>, F);

async fn connect(
    world: &World,
) -> Connected<impl Future<Output = hyper::Result<()>> + Send + 'static> {
    let stream = TcpStream::connect(world.address()).await.unwrap();
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    handshake.await.unwrap()
}

fn free() -> hyper::Request<Empty<Bytes>> {
    let request = hyper::Request::get("http://backend.example/free");
    request.body(Empty::new()).unwrap()
}

async fn ends_within(max: Duration, peer: &mut Peer) -> End {
    let mut bytes = vec![0; 4096];
    let ended = async {
        loop {
            match tokio::io::AsyncReadExt::read(&mut peer.stream, &mut bytes).await {
                Ok(0) => return End::Fin,
                Ok(_) => {}
                Err(_) => return End::Reset,
            }
        }
    };
    let ended = timeout(max, ended).await;
    ended.expect("the connection is still open")
}

/// Together, since each lasts as long as the limit.
#[tokio::test(flavor = "multi_thread")]
async fn idle_clients_go_vanished_ones_too_and_long_streams_stay() {
    tokio::join!(
        idle_http_2_connections_give_their_places_back(),
        a_client_that_has_vanished_is_found_while_its_stream_is_open(),
        a_stream_that_runs_long_is_not_cut(),
    );
}

async fn idle_http_2_connections_give_their_places_back() {
    let setup = Setup::listener("[listener.limits]\nconnections_max = 2");
    let world = World::new(&setup).await;
    let begun = Instant::now();
    // One that answers pings, and had a stream once; and one that says nothing after its begin.
    let (mut sender, connection) = connect(&world).await;
    let connection = tokio::spawn(connection);
    let asked = tokio::spawn(sender.send_request(free()));
    let mut backend = world.backend.accept().await;
    backend.request().await;
    backend
        .send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        .await;
    let answer = asked.await.unwrap().unwrap().collect().await.unwrap();
    assert_eq!(answer.to_bytes(), "ok");
    let mut silent = world.client().await;
    silent.send(BEGIN).await;
    silent.at_least(9).await;
    // Both places are taken.
    let mut waiting = world.client().await;
    waiting
        .send(b"PUT /accounts/7/x HTTP/1.1\r\nHost: b\r\ncontent-length: 0\r\n\r\n")
        .await;
    let served = timeout(IDLE_MAX + SLACK, waiting.stream.readable()).await;
    served.expect("nobody else is served").unwrap();
    assert_eq!(waiting.reply().await.status, 428);
    assert!(begun.elapsed() > IDLE_MAX / 2, "{:?}", begun.elapsed());
    ends_within(SLACK, &mut silent).await;
    // With GOAWAY, after which the client sends nothing more there, and nothing is an error.
    let ended = timeout(SLACK, connection).await;
    ended.expect("it ends").unwrap().unwrap();
    assert!(sender.is_closed());
}

async fn a_client_that_has_vanished_is_found_while_its_stream_is_open() {
    let world = World::new(&Setup::default()).await;
    // It takes what comes and says nothing, as a machine that is gone, to the proxy.
    let mut vanished = world.client().await;
    vanished.send(BEGIN).await;
    vanished.send(ASK).await;
    let mut backend = world.backend.accept().await;
    backend.request().await;
    backend
        .send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        .await;
    ends_within(IDLE_MAX + SLACK, &mut vanished).await;
    // What was asked for in its name ends too.
    backend.end().await;
}

async fn a_stream_that_runs_long_is_not_cut() {
    let world = World::new(&Setup::default()).await;
    let (mut sender, connection) = connect(&world).await;
    tokio::spawn(connection);
    let asked = tokio::spawn(sender.send_request(free()));
    let mut backend = world.backend.accept().await;
    backend.request().await;
    backend
        .send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        .await;
    let mut answer = asked.await.unwrap().unwrap();
    let first = answer.frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "one");
    // The time is what is tested: nothing may happen in it.
    tokio::time::sleep(IDLE_MAX + Duration::from_secs(2)).await;
    backend.send(b"3\r\ntwo\r\n0\r\n\r\n").await;
    assert_eq!(answer.collect().await.unwrap().to_bytes(), "two");
    assert!(!sender.is_closed());
}

/// The timer that runs for a connection's end here, and what is left of it, as the kernel tells
/// (Linux, Documentation/networking/proc_net_tcp.rst).
fn timer(local: u16, remote: u16) -> (u64, Duration) {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next().unwrap(), 16);
    let row = table.lines().skip(1).find(|row| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        port(fields[1]) == Ok(local) && port(fields[2]) == Ok(remote)
    });
    let row = row.expect("a row for the connection");
    let timer = row.split_whitespace().nth(5).unwrap();
    let (kind, ticks) = timer.split_once(':').unwrap();
    let (kind, ticks) = (
        u64::from_str_radix(kind, 16).unwrap(),
        u64::from_str_radix(ticks, 16).unwrap(),
    );
    (kind, Duration::from_millis(10 * ticks))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kernel_asks_a_silent_client_for_a_sign_of_life() {
    const KEEPALIVE: u64 = 2;
    let world = World::new(&Setup::default()).await;
    let mut client = world.client().await;
    client.send(b"GET /free HTTP/1.1\r\nHost: b\r\n\r\n").await;
    let mut backend = world.backend.accept().await;
    // While this lasts nothing is sent to the client that could be lost.
    backend.request().await;
    let (here, there) = (
        world.address().port(),
        client.stream.local_addr().unwrap().port(),
    );
    let is_asked = || async {
        let (kind, left) = timer(here, there);
        kind == KEEPALIVE && left <= Duration::from_secs(60)
    };
    crate::support::until("a keep-alive timer", is_asked).await;
}
