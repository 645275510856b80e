//! The way to etcd: one HTTP/2 connection, opened when it is needed and again when it was lost.
//!
//! Each connection of a client has its own, so that a client that takes nothing of a stream holds
//! up nobody else. A request is sent again only where the connection ended before it was sent at
//! all.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use hyper::http::response::Parts;
use hyper::{Method, Request, Response, Uri, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::body::ToEtcd;
use super::frames::{FrameError, Messages, frame};
use crate::config::Upstream;

/// How often a ping looks for a dead etcd while calls are open. etcd closes connections that ping
/// more often than every 5 s (`--grpc-keepalive-min-time`).
const PING_EVERY: Duration = Duration::from_secs(10);
/// How long an answer to it may take.
const PING_ANSWER_MAX: Duration = Duration::from_secs(10);
/// What etcd may send on one stream, and in all, before it is taken, in bytes. The second is a
/// large multiple of the first, so that some streams that nobody reads do not stop the others.
pub const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// See [`STREAM_WINDOW_BYTES`].
pub const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// Longest response that is read whole, in bytes.
pub const RESPONSE_BYTES_MAX: usize = 256 << 20;

/// The connection.
pub struct Backend {
    upstream: Upstream,
    connect_max: Duration,
    sender: Mutex<Option<SendRequest<ToEtcd>>>,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// Nothing was sent.
    #[error("etcd cannot be reached: {0}")]
    Unreachable(std::io::Error),
    /// It was sent, in part at least.
    #[error("the connection to etcd was lost: {0}")]
    Cut(hyper::Error),
    /// It was sent.
    #[error("etcd did not answer in {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// What came is no response.
    #[error("etcd's response cannot be read: {0}")]
    Garbled(#[from] FrameError),
}

impl Lost {
    /// Whether it is certain that etcd has got nothing of it.
    pub fn is_unsent(&self) -> bool {
        matches!(self, Lost::Unreachable(_))
    }
}

/// The response to a call with one message each way.
pub struct Unary {
    /// Status and headers.
    pub head: Parts,
    /// The message; `None`: the call failed, which trailers, or headers, tell.
    pub message: Option<Bytes>,
    /// The trailers.
    pub trailers: Option<HeaderMap>,
}

impl Unary {
    /// gRPC's status; `None`: there is none, or it is no number.
    pub fn status(&self) -> Option<u8> {
        let trailers = self.trailers.as_ref();
        let status = trailers.and_then(|it| it.get("grpc-status"));
        let status = status.or_else(|| self.head.headers.get("grpc-status"))?;
        status.to_str().ok()?.parse().ok()
    }

    /// gRPC's message, as it came.
    pub fn reason(&self) -> String {
        let trailers = self.trailers.as_ref();
        let message = trailers.and_then(|it| it.get("grpc-message"));
        let message = message.or_else(|| self.head.headers.get("grpc-message"));
        let text = message.map(HeaderValue::as_bytes).unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }
}

impl Backend {
    /// A connection that is opened when it is needed.
    pub fn new(upstream: Upstream, connect_max: Duration) -> Backend {
        Backend {
            upstream,
            connect_max,
            sender: Mutex::new(None),
        }
    }

    /// Sends a request; the response's body comes as it comes.
    pub async fn send(&self, request: Request<ToEtcd>) -> Result<Response<Incoming>, Lost> {
        let mut sender = self.sender().await?;
        let request = match sender.try_send_request(request).await {
            Ok(response) => return Ok(response),
            Err(mut error) => match error.take_message() {
                // Not a byte of it has left.
                Some(request) => request,
                None => return Err(Lost::Cut(error.into_error())),
            },
        };
        self.forget(&sender).await;
        let mut sender = self.sender().await?;
        sender
            .try_send_request(request)
            .await
            .map_err(|mut error| match error.take_message() {
                Some(_) => Lost::Unreachable(std::io::Error::other(error.into_error())),
                None => Lost::Cut(error.into_error()),
            })
    }

    /// A call with one message each way.
    pub async fn call(
        &self,
        path: &str,
        headers: HeaderMap,
        message: &[u8],
        wait_max: Duration,
    ) -> Result<Unary, Lost> {
        let request = self.request(path, headers, ToEtcd::whole(frame(message)));
        let exchange = async {
            let response = self.send(request).await?;
            read_unary(response).await
        };
        tokio::time::timeout(wait_max, exchange)
            .await
            .map_err(|_| Lost::TimedOut(wait_max))?
    }

    /// A call of ours.
    pub fn request(&self, path: &str, headers: HeaderMap, body: ToEtcd) -> Request<ToEtcd> {
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        let host = match self.upstream.host.contains(':') {
            true => format!("[{}]", self.upstream.host),
            false => self.upstream.host.clone(),
        };
        let uri = format!("http://{host}:{}{path}", self.upstream.port);
        // The host was checked with the configuration, and the paths are ours or were matched.
        *request.uri_mut() = uri.parse().unwrap_or(Uri::from_static("/"));
        *request.headers_mut() = headers;
        request
    }

    async fn sender(&self) -> Result<SendRequest<ToEtcd>, Lost> {
        let mut slot = self.sender.lock().await;
        if let Some(sender) = slot.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let connecting = tokio::time::timeout(self.connect_max, self.connect());
        let timed_out = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
        let connected = connecting.await.map_err(timed_out);
        let sender = connected.and_then(|it| it).map_err(Lost::Unreachable)?;
        *slot = Some(sender.clone());
        Ok(sender)
    }

    /// The connection has ended, if it is still this one.
    async fn forget(&self, ended: &SendRequest<ToEtcd>) {
        let mut slot = self.sender.lock().await;
        if ended.is_closed() || slot.as_ref().is_some_and(SendRequest::is_closed) {
            *slot = None;
        }
    }

    async fn connect(&self) -> std::io::Result<SendRequest<ToEtcd>> {
        let backend = (self.upstream.host.as_str(), self.upstream.port);
        let addresses: Vec<SocketAddr> = tokio::net::lookup_host(backend).await?.collect();
        let stream = TcpStream::connect(&addresses[..]).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_ANSWER_MAX)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(std::io::Error::other)?;
        // It ends when the sender and the streams are gone, or with the connection.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to etcd ended with an error");
            }
        });
        Ok(sender)
    }
}

/// The headers of a call of ours.
pub fn own_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers
}

async fn read_unary(response: Response<Incoming>) -> Result<Unary, Lost> {
    let (head, mut body) = response.into_parts();
    let mut messages = Messages::new(RESPONSE_BYTES_MAX);
    let (mut trailers, mut any) = (None, false);
    while !body.is_end_stream() {
        let Some(read) = body.frame().await else {
            break;
        };
        match read.map_err(Lost::Cut)?.into_data() {
            Ok(data) => {
                any |= !data.is_empty();
                messages.push(&data);
                if messages.len() > RESPONSE_BYTES_MAX {
                    return Err(FrameError::TooLong(RESPONSE_BYTES_MAX).into());
                }
            }
            Err(other) => trailers = other.into_trailers().ok(),
        }
    }
    let message = match any {
        true => Some(messages.only()?),
        false => None,
    };
    Ok(Unary {
        head,
        message,
        trailers,
    })
}
