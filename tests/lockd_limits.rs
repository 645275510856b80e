//! What a lockd bounds beside its queues: connections, how long they may take to begin, sessions.

mod lockd_support;

use std::time::Duration;

use lockd_support::{Client, LONG, Service, eventually, reason, soon, start_with};
use ringfence::lockd::{Limits, Settings};
use ringfence::proto::{CloseSessionRequest, KeepAliveRequest, OpenSessionRequest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

/// How an HTTP/2 client begins (RFC 9113 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn limited(limits: Limits) -> Settings {
    Settings {
        limits,
        ..Settings::default()
    }
}

#[tokio::test]
async fn a_connection_that_does_not_begin_ends_and_one_that_has_begun_stays() {
    let begin_max = Duration::from_millis(300);
    let limits = Limits {
        begin_max,
        ..Limits::default()
    };
    let Service { client, lockd } = start_with(limited(limits)).await;
    // As `ringfence lock` keeps one: a stream on which nothing is sent for a long time.
    let session = client.open().await;
    let (renewals, requests) = tokio::sync::mpsc::channel(1);
    let mut locks = client.locks.clone();
    let stream = locks.keep_alive(ReceiverStream::new(requests)).await;
    let mut answers = stream.unwrap().into_inner();
    for sent in [&b""[..], &PREFACE[..23]] {
        let mut stream = TcpStream::connect(lockd.address()).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let mut told = vec![];
        let ended = soon(
            "the end of a silent connection",
            stream.read_to_end(&mut told),
        )
        .await;
        // It may end with a reset, since what was sent is not read.
        drop(ended);
    }
    tokio::time::sleep(2 * begin_max).await;
    renewals.send(KeepAliveRequest { session }).await.unwrap();
    let answer = soon("an answer to a renewal", answers.message()).await;
    assert!(answer.unwrap().unwrap().ttl_ms > 0);
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_a_place() {
    let limits = Limits {
        connections_max: 2,
        ..Limits::default()
    };
    let Service { client, lockd } = start_with(limited(limits)).await;
    client.open().await;
    let silent = TcpStream::connect(lockd.address()).await.unwrap();
    let address = lockd.address().to_string();
    let waits = tokio::spawn(async move { Client::to(&address).await.open().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waits.is_finished(), "a third one was served");
    // Those that are in go on.
    client.open().await;
    drop(silent);
    soon("the third one's turn", waits).await.unwrap();
}

#[tokio::test]
async fn sessions_beyond_the_limit_are_refused_until_one_ends() {
    let limits = Limits {
        sessions_max: 2,
        ..Limits::default()
    };
    let Service { client, .. } = start_with(limited(limits)).await;
    let open = |ttl: Duration| {
        let request = OpenSessionRequest {
            ttl_ms: ttl.as_millis() as u64,
            holder: "test".to_owned(),
        };
        let mut locks = client.locks.clone();
        async move { locks.open_session(request).await }
    };
    let kept = client.open().await;
    let closed = client.open().await;
    let refused = open(LONG).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(reason(&refused), "limit");
    let words = "too many sessions (sessions_max): the limit is 2";
    assert_eq!(refused.message(), words);
    // Who is in is not touched.
    assert!(client.renew(&kept).await > 0);
    client.acquire(&kept, "a", Duration::ZERO, 1).await.unwrap();
    let close = CloseSessionRequest { session: closed };
    client.locks.clone().close_session(close).await.unwrap();
    open(Duration::from_secs(1)).await.unwrap();
    assert!(open(LONG).await.is_err());
    // That one is not renewed.
    eventually("a place of a session that has expired", || async {
        open(LONG).await.is_ok()
    })
    .await;
    assert!(open(LONG).await.is_err());
    assert!(client.renew(&kept).await > 0);
}
