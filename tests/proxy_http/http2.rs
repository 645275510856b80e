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
