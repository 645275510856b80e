//! Stage 4, forward: the request on its way to the backend.
//!
//! What needs no permit goes through within the client's own task. A fenced write is carried by a
//! task of its own (`carry`), which the client cannot cancel once it is released.

use std::time::Duration;

use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;
use hyper::{HeaderMap, Method, Request, Response, Uri, Version};
use tokio::sync::oneshot;

use super::carry::Carrier;
use super::gate::Admission;
use super::read::{ClientBody, cannot_hold};
use super::reply::{self, ReplyBody};
use super::{Asked, Door};
use crate::config::TruncatedBody;
use crate::protocol::refusal::{AfterRefusal, Outcome};
use crate::protocol::{Kind, Refusal};
use crate::proxy::doubts::InFlight;
use crate::proxy::spool::HeldBody;
use crate::proxy::upstream::{ConnectError, Connection, RequestBody, SendError};
use crate::proxy::withheld::{Control, Withheld};

/// When a client may try again after the backend could not be reached.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Door {
    /// Forwards the request under what the gate has given.
    pub(super) async fn forward(
        &self,
        parts: Parts,
        body: ClientBody,
        kind: Kind,
        admission: Admission,
    ) -> Result<Response<ReplyBody>, Refusal> {
        let parts = upstream_head(parts)?;
        match (admission, body) {
            (Admission::Unfenced, ClientBody::Incoming(body)) => {
                self.forward_plain(request(parts, RequestBody::streamed(body)), kind)
                    .await
            }
            (Admission::Unfenced, ClientBody::Held(body)) => {
                self.forward_plain(request(parts, RequestBody::held(body)), kind)
                    .await
            }
            (Admission::Fenced(permits), ClientBody::Held(body)) => {
                self.forward_held(parts, body, permits).await
            }
            (Admission::Fenced(permits), ClientBody::Incoming(body)) => {
                let is_empty = hyper::body::Body::is_end_stream(&body);
                match self.listening.config.truncated_body {
                    TruncatedBody::Discarded if !is_empty => {
                        self.forward_streamed(parts, body, permits).await
                    }
                    _ => {
                        let (body, permits) = self.hold_admitted(body, permits).await?;
                        self.forward_held(parts, body, permits).await
                    }
                }
            }
        }
    }

    async fn forward_plain(
        &self,
        request: Request<RequestBody>,
        kind: Kind,
    ) -> Result<Response<ReplyBody>, Refusal> {
        let response_max = self.listening.limits().upstream_response_timeout;
        let mut connection = self.pool.get().await.map_err(unreachable)?;
        let mut sent = connection.send(request, response_max).await;
        if let Err(SendError::Unsent(request)) = sent {
            connection = self.pool.connect().await.map_err(unreachable)?;
            sent = connection.send(*request, response_max).await;
        }
        match sent {
            Ok(response) => Ok(reply::direct(response, connection, &self.pool)),
            Err(error) => Err(lost(&error, kind)),
        }
    }

    /// Reads a fenced body whole, unless a newer token comes first.
    async fn hold_admitted(
        &self,
        body: hyper::body::Incoming,
        mut permits: InFlight,
    ) -> Result<(HeldBody, InFlight), Refusal> {
        let reading = async {
            let spool = self.hold(body, self.listening.body_limits()).await?;
            spool.finish().await.map_err(cannot_hold)
        };
        let held = {
            let revoked = std::future::poll_fn(|cx| permits.poll_revoked(cx));
            tokio::select! {
                held = reading => held,
                // A newer token must not wait for a slow client.
                refusal = revoked => Err(Refusal { after: AfterRefusal::Close, ..refusal }),
            }
        };
        Ok((held?, permits))
    }

    /// Forwards a write whose body is here whole: the head is the release.
    async fn forward_held(
        &self,
        parts: Parts,
        body: HeldBody,
        mut permits: InFlight,
    ) -> Result<Response<ReplyBody>, Refusal> {
        let body = match body.is_empty() {
            true => RequestBody::empty(),
            false => RequestBody::held(body),
        };
        // Had before the release, so that a backend that is away leaves no doubt.
        let connection = self.connect_admitted(&mut permits).await?;
        if let Err(refusal) = permits.release() {
            // No byte has left.
            permits.finish();
            return Err(refusal);
        }
        let (told, answer) = oneshot::channel();
        self.carrier(told)
            .spawn_released(connection, request(parts, body), permits);
        await_reply(answer).await
    }

    /// Forwards a write whose body is still coming, without its tail.
    async fn forward_streamed(
        &self,
        parts: Parts,
        body: hyper::body::Incoming,
        mut permits: InFlight,
    ) -> Result<Response<ReplyBody>, Refusal> {
        let connection = self.connect_admitted(&mut permits).await?;
        if let Err(refusal) = permits.forward() {
            permits.finish();
            return Err(Refusal {
                after: AfterRefusal::Close,
                ..refusal
            });
        }
        let control = Control::new(permits);
        let body = Withheld::new(body, control.clone(), self.listening.body_limits());
        let (told, answer) = oneshot::channel();
        let request = request(parts, RequestBody::withheld(body));
        self.carrier(told)
            .spawn_streamed(connection, request, control);
        await_reply(answer).await
    }

    async fn connect_admitted(&self, permits: &mut InFlight) -> Result<Connection, Refusal> {
        let revoked = std::future::poll_fn(|cx| permits.poll_revoked(cx));
        tokio::select! {
            connection = self.pool.get() => connection.map_err(unreachable),
            refusal = revoked => Err(refusal),
        }
    }

    fn carrier(&self, told: oneshot::Sender<Result<Response<ReplyBody>, Refusal>>) -> Carrier {
        Carrier {
            pool: self.pool.clone(),
            response_max: self.listening.limits().upstream_response_timeout,
            told,
            alive: self.alive.clone(),
        }
    }

    /// Tells a refusal and audits it.
    pub(super) fn refuse(&self, refusal: &Refusal, asked: &Asked) -> Response<ReplyBody> {
        self.audit(refusal, asked);
        let target = asked.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        reply::refusal(
            self.listening
                .rules()
                .refusal_reply(refusal, target.as_bytes()),
        )
    }
}

async fn await_reply(
    answer: oneshot::Receiver<Result<Response<ReplyBody>, Refusal>>,
) -> Result<Response<ReplyBody>, Refusal> {
    // Only a panic ends the task without an answer.
    let gone = |_| Err(Refusal::unknown("the write was lost in the proxy"));
    answer.await.unwrap_or_else(gone)
}

fn unreachable(error: ConnectError) -> Refusal {
    tracing::warn!(%error, "no connection to the backend");
    Refusal::busy("the backend cannot be reached", RETRY_AFTER)
}

/// The backend was lost under a request that needed no permit.
fn lost(error: &SendError, kind: Kind) -> Refusal {
    let refusal = Refusal::unknown(lost_detail(error));
    match kind {
        Kind::Read => Refusal {
            outcome: Outcome::NotApplied,
            ..refusal
        },
        Kind::Write => refusal,
    }
}

/// What is said about a lost exchange.
pub(super) fn lost_detail(error: &SendError) -> &'static str {
    match error {
        SendError::Unsent(_) => "the backend closed the connection before the request was sent",
        SendError::Lost(error) => {
            tracing::warn!(%error, "the backend was lost before its response");
            "the connection to the backend was lost before its response"
        }
        SendError::TimedOut => "the backend did not respond in time",
    }
}

fn request(parts: Parts, body: RequestBody) -> Request<RequestBody> {
    Request::from_parts(parts, body)
}

/// The head that the backend gets: without what ends at this hop, in HTTP/1.1, all else as it came.
fn upstream_head(mut parts: Parts) -> Result<Parts, Refusal> {
    if parts.method == Method::CONNECT {
        return Err(Refusal::unclassified("this listener opens no tunnels"));
    }
    let headers = std::mem::take(&mut parts.headers);
    let from_http2 = parts.version == Version::HTTP_2;
    parts.headers = reply::without_hop_by_hop(headers);
    if parts.headers.contains_key(hyper::header::EXPECT) {
        // hyper answers it to the client when the body is read (RFC 9110 10.1.1).
        parts.headers = without(&parts.headers, &hyper::header::EXPECT);
    }
    if let Some(authority) = parts.uri.authority() {
        let host = HeaderValue::from_str(authority.as_str())
            .map_err(|_| Refusal::malformed("the authority is no host"))?;
        if !parts.headers.contains_key(HOST) {
            parts.headers = with_host_first(host, parts.headers);
        }
        let path = parts.uri.path_and_query().cloned();
        // RFC 9112 3.2.1: an empty path is sent as `/`.
        parts.uri = Uri::from(path.unwrap_or(PathAndQuery::from_static("/")));
    }
    if from_http2 {
        join_cookies(&mut parts.headers);
    }
    parts.version = Version::HTTP_11;
    Ok(parts)
}

fn without(headers: &HeaderMap, left_out: &HeaderName) -> HeaderMap {
    let kept = headers.iter().filter(|(name, _)| *name != left_out);
    kept.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn with_host_first(host: HeaderValue, headers: HeaderMap) -> HeaderMap {
    let mut with_host = HeaderMap::with_capacity(headers.len() + 1);
    with_host.insert(HOST, host);
    for (name, value) in &headers {
        with_host.append(name.clone(), value.clone());
    }
    with_host
}

/// RFC 9113 8.2.3: cookies that were split for compression are one field in HTTP/1.1.
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers
        .get_all(hyper::header::COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if cookies.len() < 2 {
        return;
    }
    if let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
        headers.insert(hyper::header::COOKIE, joined);
    }
}
