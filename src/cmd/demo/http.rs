//! The HTTP of the demo's clients: one request on one connection, nothing retried.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Body, Frame};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub body: String,
}

/// `PUT`s the content, with the ticket if there is one.
pub async fn put(target: &str, ticket: Option<&str>, content: &str) -> Result<Answer, String> {
    send(
        Method::PUT,
        target,
        ticket,
        Full::new(Bytes::from(content.to_owned())),
    )
    .await
}

/// `GET`s.
pub async fn get(target: &str) -> Result<Answer, String> {
    send(Method::GET, target, None, Full::new(Bytes::new())).await
}

/// `PUT`s what comes through the channel, `length` bytes in all.
pub async fn put_slowly(
    target: &str,
    ticket: &str,
    length: usize,
    parts: mpsc::Receiver<Bytes>,
) -> Result<Answer, String> {
    let frames = ReceiverStream::new(parts).map(|part| Ok::<_, std::io::Error>(Frame::data(part)));
    let body = Sized {
        length: length as u64,
        body: StreamBody::new(frames),
    };
    send(Method::PUT, target, Some(ticket), body).await
}

async fn send<B>(
    method: Method,
    target: &str,
    ticket: Option<&str>,
    body: B,
) -> Result<Answer, String>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let uri: Uri = target
        .parse()
        .map_err(|error| format!("{target:?} is no URL: {error}"))?;
    let authority = uri
        .authority()
        .ok_or_else(|| format!("{target:?} names no host"))?
        .clone();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", authority.as_str());
    if let Some(ticket) = ticket {
        request = request.header("fencing-token", ticket);
    }
    let request = request.body(body).map_err(|error| error.to_string())?;
    let sending = async {
        let stream = TcpStream::connect(authority.as_str())
            .await
            .map_err(|e| e.to_string())?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        let connection = tokio::spawn(connection);
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| error.to_string())?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        connection.abort();
        Ok(Answer {
            status,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    };
    tokio::time::timeout(ANSWER_MAX, sending)
        .await
        .map_err(|_| "no answer".to_owned())?
}

/// A body whose length is known before its bytes are, so that it goes with `Content-Length`.
struct Sized<B> {
    length: u64,
    body: B,
}

impl<B: Body + Unpin> Body for Sized<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(cx)
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.length)
    }
}
