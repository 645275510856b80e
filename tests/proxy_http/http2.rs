//! The HTTP/2 door: the same rules hold behind it.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::HeaderMap;
use hyper::body::{Body, Frame};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::support::{Setup, World};

async fn connect<B>(world: &World) -> SendRequest<B>
where
    B: Body<Data = Bytes, Error = std::convert::Infallible> + Send + Unpin + 'static,
{
    let stream = tokio::net::TcpStream::connect(world.address())
        .await
        .unwrap();
    let io = TokioIo::new(stream);
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    sender
}

#[tokio::test(flavor = "multi_thread")]
async fn several_requests_at_a_time_and_their_trailers_pass() {
    let world = World::new(&Setup::default()).await;
    let mut sender = connect(&world).await;
    let ask = |path: &str| {
        let request = hyper::Request::get(format!("http://backend.example{path}"));
        request.body(Empty::<Bytes>::new()).unwrap()
    };
    let first = tokio::spawn(sender.send_request(ask("/free/1")));
    let mut one = world.backend.accept().await;
    let seen = one.request().await;
    assert_eq!(
        seen,
        "GET /free/1 HTTP/1.1\r\nhost: backend.example\r\n\r\n"
    );
    let second = tokio::spawn(sender.send_request(ask("/free/2")));
    let mut two = world.backend.accept().await;
    two.request().await;
    two.send(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\nx-sum: 9\r\n\r\n",
    )
    .await;
    let body = second.await.unwrap().unwrap().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["x-sum"], "9");
    assert_eq!(body.to_bytes(), "two");
    one.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none")
        .await;
    let body = first.await.unwrap().unwrap().collect().await.unwrap();
    assert_eq!(body.to_bytes(), "one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_in_a_trailer_ends_the_request() {
    let world = World::new(&Setup::default()).await;
    let ticket = world.ticket("accounts/7", 1);
    for name in ["fencing-token", "fencing_token"] {
        let mut trailers = HeaderMap::new();
        trailers.insert(name, ticket.parse().unwrap());
        let frames = [
            Ok(Frame::data(Bytes::from("body"))),
            Ok(Frame::trailers(trailers)),
        ];
        let request = hyper::Request::put("http://backend.example/accounts/7/x")
            .header("fencing-token", &ticket)
            .body(StreamBody::new(futures::stream::iter(frames)))
            .unwrap();
        let answer = connect(&world).await.send_request(request).await;
        assert!(answer.is_err_and(|error| !error.is_closed()), "{name}");
    }
    world.backend.is_untouched().await;
}

type Streamed = StreamBody<
    futures::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, std::convert::Infallible>>>,
>;

/// A body whose length is not told.
fn streamed(data: &'static str, trailers: &[(&'static str, &str)]) -> Streamed {
    let mut frames = vec![Ok(Frame::data(Bytes::from(data)))];
    if !trailers.is_empty() {
        let pairs = trailers.iter().map(|(name, value)| {
            let value = value.parse().unwrap();
            (hyper::header::HeaderName::from_static(name), value)
        });
        frames.push(Ok(Frame::trailers(pairs.collect())));
    }
    StreamBody::new(futures::stream::iter(frames))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_a_length_passes_under_every_method() {
    let world = World::new(&Setup::default()).await;
    for method in ["GET", "HEAD", "OPTIONS", "DELETE", "POST"] {
        let mut sender = connect(&world).await;
        let request = hyper::Request::builder()
            .method(method)
            .uri("http://backend.example/free")
            .body(streamed("the body", &[]))
            .unwrap();
        let sent = tokio::spawn(async move { sender.send_request(request).await });
        let mut backend = world.backend.accept().await;
        let seen = backend.request().await;
        assert!(
            seen.contains("\r\nTransfer-Encoding: chunked\r\n"),
            "{seen}"
        );
        assert!(
            seen.ends_with("\r\n\r\n8\r\nthe body\r\n0\r\n\r\n"),
            "{seen}"
        );
        backend
            .send(b"HTTP/1.1 204 None\r\nConnection: close\r\n\r\n")
            .await;
        assert_eq!(sent.await.unwrap().unwrap().status(), 204, "{method}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_requests_trailers_pass_where_they_are_announced() {
    let world = World::new(&Setup::default()).await;
    let ticket = world.ticket("accounts/7", 1);
    for length in [None, Some("4")] {
        let mut sender = connect(&world).await;
        let mut request = hyper::Request::put("http://backend.example/accounts/7/x")
            .header("fencing-token", &ticket)
            .header("trailer", "x-a, X-Sum");
        if let Some(length) = length {
            request = request.header("content-length", length);
        }
        let body = streamed("body", &[("x-sum", "9")]);
        let request = request.body(body).unwrap();
        let sent = tokio::spawn(async move { sender.send_request(request).await });
        let mut backend = world.backend.accept().await;
        let head = backend.head().await;
        assert!(!head.contains("content-length"), "{head}");
        let body = backend.head().await;
        assert_eq!(body, "4\r\nbody\r\n0\r\nx-sum: 9\r\n\r\n");
        backend
            .send(b"HTTP/1.1 204 None\r\nConnection: close\r\n\r\n")
            .await;
        assert_eq!(sent.await.unwrap().unwrap().status(), 204);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_that_cannot_be_carried_end_the_request() {
    let world = World::new(&Setup::default()).await;
    let ticket = world.ticket("accounts/7", 1);
    for (announced, name) in [
        ("", "x-sum"),
        ("x-other", "x-sum"),
        ("content-type", "content-type"),
    ] {
        let request = hyper::Request::put("http://backend.example/accounts/7/x")
            .header("fencing-token", &ticket)
            .header("trailer", announced)
            .body(streamed("body", &[(name, "9")]))
            .unwrap();
        let answer = connect(&world).await.send_request(request).await;
        assert!(answer.is_err_and(|error| !error.is_closed()), "{name}");
    }
    world.backend.is_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hosts_and_tunnels_are_refused() {
    let world = World::new(&Setup::default()).await;
    let mut sender = connect(&world).await;
    let request = hyper::Request::get("http://a.example/free")
        .header("host", "b.example")
        .body(Full::new(Bytes::new()))
        .unwrap();
    let refused = sender.send_request(request).await.unwrap();
    assert_eq!(refused.status(), 400);
    let request = hyper::Request::get("http://a.example/free")
        .header("host", "A.example")
        .body(Full::new(Bytes::new()))
        .unwrap();
    let sent = tokio::spawn(sender.send_request(request));
    let mut backend = world.backend.accept().await;
    let seen = backend.request().await;
    assert_eq!(seen, "GET /free HTTP/1.1\r\nhost: A.example\r\n\r\n");
    backend
        .send(b"HTTP/1.1 204 None\r\nConnection: close\r\n\r\n")
        .await;
    let answer = sent.await.unwrap().unwrap();
    assert_eq!(answer.status(), 204);
    assert!(answer.headers().is_empty(), "{:?}", answer.headers());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_before_the_end_of_the_body_resets_nothing() {
    // curl 7.88 takes a reset with NO_ERROR beside the answer for a failure, and hides the answer.
    let world = World::new(&Setup::default()).await;
    let mut sender = connect(&world).await;
    let (body, frames) = tokio::sync::mpsc::channel::<Frame<Bytes>>(1);
    let frames = StreamBody::new(futures::stream::unfold(frames, |mut frames| async {
        let frame = frames.recv().await?;
        Some((Ok(frame), frames))
    }));
    let request = |path: &str, frames| {
        hyper::Request::put(format!("http://backend.example{path}"))
            .body(frames)
            .unwrap()
    };
    body.send(Frame::data(Bytes::from(vec![b'x'; 100_000])))
        .await
        .unwrap();
    let sent = sender.send_request(request("/accounts/7/x", BodyExt::boxed(frames)));
    let refused = sent.await.unwrap();
    assert_eq!(refused.status(), 428);
    refused.into_body().collect().await.unwrap();
    // A reset would be here before the answers to these.
    for _ in 0..20 {
        let whole = BodyExt::boxed(Full::new(Bytes::new()));
        let sent = sender.send_request(request("/accounts/7/x", whole));
        assert_eq!(sent.await.unwrap().status(), 428);
    }
    body.send(Frame::data(Bytes::from("the rest")))
        .await
        .expect("the stream goes on");
    world.backend.is_untouched().await;
}
