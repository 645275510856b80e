//! The HTTP/2 door: each request of such a connection becomes a session of its own, which it
//! reaches in HTTP/1.1 through a pipe. So every rule holds for it as it does for HTTP/1.1.
//!
//! Invariant: a request leaves here whole or is broken off. What comes of it in frames goes on in
//! chunks, whatever its method; trailers pass where a `Trailer` field has announced them, since
//! hyper drops others. A fragment behind its path, which h2 cuts off, is no part of the request.
//!
//! A connection without a stream ends when one in HTTP/1.1 would that begins no request; one whose
//! client has vanished ends when a ping was not answered. Neither cuts a stream that goes on.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{self, COOKIE, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING};
use hyper::http::uri::PathAndQuery;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, Uri, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::client::{self, ReadSide, WriteSide};
use super::read::{CLIENT_STALL_MAX, HEAD_MAX};
use super::streams::{Answer, Stream, Streams};
use super::{Door, Session};
use crate::protocol::head::is_ticket_name;
use crate::proxy::accept::ending;
use crate::proxy::unread::Unread;

/// Requests at a time on one connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 128;
/// How long a client is silent before it is asked by a ping whether it is there, and how long it
/// has for the answer.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_ANSWER_MAX: Duration = Duration::from_secs(10);
/// What waits in a pipe in each direction, in bytes.
const PIPE_BYTES: usize = 64 << 10;

/// Fields that hyper takes for none of a trailer's (RFC 9110 6.5.1).
const NEVER_TRAILERS: [HeaderName; 12] = [
    header::AUTHORIZATION,
    header::CACHE_CONTROL,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::HOST,
    header::MAX_FORWARDS,
    header::SET_COOKIE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::TE,
];

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Serves a connection that began with HTTP/2's preface.
pub async fn serve(session: Session) {
    let Session {
        door,
        reader,
        writer,
        ..
    } = session;
    let (ReadSide::Socket(reading), WriteSide::Socket(writing)) = (reader.half, writer.half) else {
        return;
    };
    let Ok(stream) = reading.reunite(writing) else {
        return;
    };
    let stream = Begun {
        read: reader.input.filled().to_vec(),
        stream,
    };
    let head_bytes_max = door.listening.limits().head_bytes_max;
    let mut shutdown = door.shutdown.clone();
    let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    server
        .timer(TokioTimer::new())
        // The backend's own date passes; a second one would be a lie about the first.
        .auto_date_header(false)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWER_MAX)
        .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX);
    let streams = Streams::new();
    let opened = streams.clone();
    let service = service_fn(move |request| carry(door.clone(), request, opened.open()));
    let connection = server.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = ending(&mut shutdown) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        has_open = streams.idle(HEAD_MAX) => {
            if has_open {
                tracing::debug!("a client took nothing of its answers for too long");
                return;
            }
            // GOAWAY, which may cross a request: that one is served. The end of an answer may
            // still be on its way to a client that is slow.
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection => ended,
                _ = streams.idle(CLIENT_STALL_MAX) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a client's connection ended with an error");
    }
}

/// Carries one request through a session. An error resets its stream.
async fn carry(
    door: Door,
    request: Request<Incoming>,
    stream: Stream,
) -> Result<Response<Answer>, Failure> {
    let request = in_http1(request)?;
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    let session = Session::new(client::of_pipe(far), door);
    tokio::spawn(session.run());
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(near)).await?;
    // It ends with the exchange, since its sender does.
    tokio::spawn(connection);
    let mut response = sender.send_request(request).await?;
    *response.version_mut() = Version::HTTP_2;
    // RFC 9113 8.2.2: these have no meaning here.
    response.headers_mut().remove(header::CONNECTION);
    response.headers_mut().remove(TRANSFER_ENCODING);
    Ok(response.map(|body| Answer::new(body, stream)))
}

/// The same request as HTTP/1.1 has it (RFC 9113 8.3.1).
fn in_http1(request: Request<Incoming>) -> Result<Request<Whole>, Failure> {
    let (mut parts, body) = request.into_parts();
    if let Some(authority) = parts.uri.authority() {
        let host = HeaderValue::from_str(authority.as_str())?;
        parts.headers = match parts.headers.get(HOST) {
            None => with_host_first(host, &parts.headers),
            Some(told) if told.as_bytes().eq_ignore_ascii_case(host.as_bytes()) => parts.headers,
            // Readers differ in which they take: the session refuses two.
            Some(_) => {
                parts.headers.append(HOST, host);
                parts.headers
            }
        };
        // A tunnel has no path; the session refuses it by its method.
        let path = parts.uri.path_and_query().cloned();
        parts.uri = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
    }
    join_cookies(&mut parts.headers);
    parts.version = Version::HTTP_11;
    let announced = announced(&parts.headers);
    let in_chunks = !announced.is_empty() || !parts.headers.contains_key(header::CONTENT_LENGTH);
    if in_chunks && !body.is_end_stream() {
        // Without it hyper takes a GET or a HEAD to have no body; with a length it has no trailers.
        let chunked = HeaderValue::from_static("chunked");
        parts.headers.remove(header::CONTENT_LENGTH);
        parts.headers.insert(TRANSFER_ENCODING, chunked);
    }
    let body = Whole {
        body: Unread::new(body),
        announced,
    };
    Ok(Request::from_parts(parts, body))
}

/// The names of the trailers that are to come, as hyper reads them (RFC 9110 6.6.2).
fn announced(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(header::TRAILER).iter();
    let members = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    members
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect()
}

fn with_host_first(host: HeaderValue, headers: &HeaderMap) -> HeaderMap {
    let mut with_host = HeaderMap::with_capacity(headers.len() + 1);
    with_host.insert(HOST, host);
    for (name, value) in headers {
        with_host.append(name.clone(), value.clone());
    }
    with_host
}

/// RFC 9113 8.2.3: cookies that were split for compression are one field in HTTP/1.1.
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if cookies.len() < 2 {
        return;
    }
    if let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// A body that is passed on with its trailers, or breaks off, and with it the request: where they
/// hold a ticket, which would come after the decision, or could not be carried. What the session
/// has not read when it has answered is left to [`Unread`].
struct Whole {
    body: Unread,
    announced: Vec<HeaderName>,
}

impl Whole {
    fn check_trailer(&self, name: &HeaderName) -> Result<(), &'static str> {
        if is_ticket_name(name.as_str().as_bytes()) {
            return Err("a ticket cannot travel in a trailer");
        }
        match self.announced.contains(name) && !NEVER_TRAILERS.contains(name) {
            true => Ok(()),
            false => Err("a trailer that was not announced cannot be carried"),
        }
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()?;
        let names = frame.iter().filter_map(Frame::trailers_ref);
        for name in names.flat_map(HeaderMap::keys) {
            self.check_trailer(name)?;
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream of which the first bytes were read already.
struct Begun {
    /// In order; taken out as they are read again.
    read: Vec<u8>,
    stream: TcpStream,
}

impl AsyncRead for Begun {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let here = buf.remaining().min(self.read.len());
        buf.put_slice(&self.read[..here]);
        self.read.drain(..here);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Begun {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
