//! One connection of a client: each call is read, classified, and sent on its way.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method as HttpMethod, Request, Response};
use tokio::time::Instant;

use super::body::{ToClient, ToEtcd};
use super::claims::{Admitted, missing};
use super::closing::Closings;
use super::frames::{FrameError, Messages, frame};
use super::upstream::{Backend, Lost};
use super::{Asked, claims, reply};
use crate::audit::{Excerpt, Record};
use crate::clock;
use crate::config::Mode;
use crate::protocol::etcd::Call;
use crate::protocol::etcd::fence::FenceKeys;
use crate::protocol::etcd::method::{self, Method, Recipe};
use crate::protocol::head::TICKET_HEADER;
use crate::protocol::{EtcdRules, Kind, Listener, Refusal};
use crate::proxy::gates::Claim;
use crate::proxy::session::Listening;
use crate::proxy::unread::Unread;
use crate::token::Token;

/// Longest message of a client that is read whole, in bytes: etcd itself takes 1.5 MiB unless
/// `--max-request-bytes` says otherwise.
pub const REQUEST_BYTES_MAX: usize = 16 << 20;
/// Longest time between two pieces of such a message.
const REQUEST_STALL_MAX: Duration = Duration::from_secs(30);
/// When a client may try again after etcd was lost.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// One connection of a client, with its own connection to etcd.
pub struct Door {
    pub(super) listening: Arc<Listening>,
    pub(super) backend: Arc<Backend>,
    pub(super) closings: Arc<Closings>,
    client: SocketAddr,
    /// Of listeners with another protocol there are none here.
    no_rules: EtcdRules,
}

/// How a call ended other than with etcd's response.
pub enum NotServed {
    /// Refused.
    Refused(Refusal),
    /// Its message is compressed.
    Compressed,
}

impl From<Refusal> for NotServed {
    fn from(refusal: Refusal) -> NotServed {
        NotServed::Refused(refusal)
    }
}

/// A call: its head without what ends here, and its message if it was read.
pub struct Heard {
    pub(super) method: Method,
    pub(super) parts: Parts,
    pub(super) body: HeardBody,
}

/// What a call's body is.
pub enum HeardBody {
    /// A stream, not read yet.
    Stream(Unread),
    /// Its one message.
    Message(Bytes),
}

impl Heard {
    pub(super) fn message(&self) -> Bytes {
        match &self.body {
            HeardBody::Stream(_) => Bytes::new(),
            HeardBody::Message(message) => message.clone(),
        }
    }

    /// A call of which nothing is read, where nothing is enforced.
    fn unread(mut parts: Parts, body: Unread) -> Heard {
        parts.headers.remove(TICKET_HEADER);
        Heard {
            method: Method::Unknown,
            parts,
            body: HeardBody::Stream(body),
        }
    }

    fn into_request(self) -> Request<ToEtcd> {
        let body = match self.body {
            HeardBody::Stream(body) => ToEtcd::Stream(body),
            HeardBody::Message(message) => ToEtcd::whole(frame(&message)),
        };
        Request::from_parts(self.parts, body)
    }
}

impl Door {
    /// A client that has just connected.
    pub fn new(listening: Arc<Listening>, closings: Arc<Closings>, client: SocketAddr) -> Door {
        let config = &listening.config;
        let backend = Backend::new(
            config.upstream.clone(),
            config.limits.upstream_connect_timeout,
        );
        Door {
            listening,
            backend: Arc::new(backend),
            closings,
            client,
            no_rules: EtcdRules::default(),
        }
    }

    pub(super) fn rules(&self) -> &EtcdRules {
        match &self.listening.config.rules {
            Listener::Etcd(rules) => rules,
            Listener::Http(_) | Listener::S3(_) => &self.no_rules,
        }
    }

    /// Serves one call.
    pub async fn serve(&self, request: Request<Incoming>) -> Response<ToClient> {
        let (parts, body) = request.into_parts();
        let body = Unread::new(body);
        let mut asked = Asked {
            operation: parts.uri.path().trim_start_matches('/').to_owned(),
            tickets: vec![],
        };
        if !is_grpc(&parts) {
            let refusal = Refusal::unclassified("this listener speaks gRPC alone");
            self.audit(&refusal, &asked);
            // Observing too: etcd itself takes nothing else over HTTP/2.
            return reply::plain(self.listening.config.rules.refusal_reply(&refusal, b"/"));
        }
        match self.serve_grpc(parts, body, &mut asked).await {
            Ok(response) => response,
            Err(NotServed::Compressed) => reply::no_compression(),
            Err(NotServed::Refused(refusal)) => {
                self.audit(&refusal, &asked);
                reply::refusal(&refusal)
            }
        }
    }

    async fn serve_grpc(
        &self,
        parts: Parts,
        body: Unread,
        asked: &mut Asked,
    ) -> Result<Response<ToClient>, NotServed> {
        let deadline = Instant::now() + self.listening.config.admit_deadline;
        let presented = parts.headers.get_all(TICKET_HEADER).iter().cloned();
        let presented: Vec<HeaderValue> = presented.collect();
        let spelled = claims::tickets(&parts.headers).map(drop);
        let heard = self.hear(parts, body, asked).await?;
        let message = heard.message();
        let call = self.rules().classify(heard.method, &message);
        if let Ok(subject) = call.as_ref().map(Call::subject)
            && let Some(subject) = subject
        {
            asked.operation = format!("{} {subject}", asked.operation);
        }
        if !self.enforces() {
            self.observe(call.as_ref(), &presented, asked).await;
            let call = call.ok();
            let observed = Admitted::observed();
            return self
                .forward(heard, call.as_ref(), &observed, asked, deadline)
                .await;
        }
        spelled?;
        let call = call?;
        let claims = self.claims_of(&call, &presented, asked, deadline).await?;
        let admitted = self.admit(&call, claims, deadline).await?;
        self.forward(heard, Some(&call), &admitted, asked, deadline)
            .await
    }

    async fn claims_of(
        &self,
        call: &Call<'_>,
        presented: &[HeaderValue],
        asked: &mut Asked,
        deadline: Instant,
    ) -> Result<Vec<Claim>, Refusal> {
        let mut headers = HeaderMap::new();
        for value in presented {
            headers.append(TICKET_HEADER, value.clone());
        }
        let tickets = claims::tickets(&headers)?;
        self.claims(&tickets, &call.locks, asked, deadline).await
    }

    /// Reads what classification needs, and takes off what ends here.
    async fn hear(
        &self,
        mut parts: Parts,
        body: Unread,
        asked: &Asked,
    ) -> Result<Heard, NotServed> {
        let method = method::find(parts.uri.path_and_query().map_or("", |it| it.as_str()));
        parts.headers.remove(TICKET_HEADER);
        let inspects = self.rules().inspects(method);
        if !inspects && method != Method::Watch {
            let body = HeardBody::Stream(body);
            return Ok(Heard {
                method,
                parts,
                body,
            });
        }
        let encoding = parts.headers.get("grpc-encoding");
        if encoding.is_some_and(|encoding| encoding != "identity") {
            if self.enforces() {
                return Err(NotServed::Compressed);
            }
            self.audit(
                &Refusal::unclassified("a compressed message is not read"),
                asked,
            );
            return Ok(Heard::unread(parts, body));
        }
        // What comes back is read too.
        parts.headers.remove("grpc-accept-encoding");
        let body = match inspects {
            true => HeardBody::Message(read_message(body).await?),
            false => HeardBody::Stream(body),
        };
        Ok(Heard {
            method,
            parts,
            body,
        })
    }

    /// Sends a call on under what it presents. `None`: it could not be classified, and is observed.
    async fn forward(
        &self,
        heard: Heard,
        call: Option<&Call<'_>>,
        admitted: &Admitted,
        asked: &Asked,
        deadline: Instant,
    ) -> Result<Response<ToClient>, NotServed> {
        let kind = call.map_or(Kind::Write, |call| call.kind);
        match call {
            Some(call) if call.carries_fences() => {
                Ok(self.forward_kv(heard, call, admitted, deadline).await?)
            }
            Some(call) if call.revokes.is_some() && self.enforces() => {
                Ok(self.forward_revoke(heard, call, admitted, deadline).await?)
            }
            _ => {
                let headers = &heard.parts.headers;
                let fences = self.fences(admitted.claims());
                let guard = match heard.method {
                    Method::Watch | Method::Recipe(Recipe::Reads) if !fences.is_empty() => {
                        Some(self.guard(headers, fences, asked, deadline).await?)
                    }
                    _ => None,
                };
                self.check_floors(headers, admitted, deadline).await?;
                let response = self.pass(heard, kind).await?;
                Ok(match guard {
                    Some(guard) => response.map(|body| body.guarded(guard)),
                    None => response,
                })
            }
        }
    }

    pub(super) fn enforces(&self) -> bool {
        self.listening.config.mode == Mode::Enforce
    }

    /// Sends a call on as it is.
    pub(super) async fn pass(
        &self,
        heard: Heard,
        kind: Kind,
    ) -> Result<Response<ToClient>, Refusal> {
        if heard.method != Method::Watch {
            let sent = self.backend.send(heard.into_request()).await;
            return match sent {
                Ok(response) => Ok(reply::stream(response, ToClient::Stream)),
                Err(lost) => Err(self.lost(&lost, kind)),
            };
        }
        let fragments = Arc::new(AtomicBool::new(false));
        let body = match heard.body {
            HeardBody::Stream(body) => ToEtcd::watch(body, Arc::clone(&fragments)),
            HeardBody::Message(message) => ToEtcd::whole(frame(&message)),
        };
        let sent = self
            .backend
            .send(Request::from_parts(heard.parts, body))
            .await;
        let keys = self.rules().keys.clone();
        match sent {
            Ok(response) => Ok(reply::stream(response, |body| {
                ToClient::watch(body, keys, fragments)
            })),
            Err(lost) => Err(self.lost(&lost, kind)),
        }
    }

    /// etcd was lost under a call.
    pub(super) fn lost(&self, lost: &Lost, kind: Kind) -> Refusal {
        tracing::warn!(listener = self.listening.config.name, error = %lost, "etcd was lost");
        if lost.is_unsent() {
            return Refusal::busy("etcd cannot be reached", RETRY_AFTER);
        }
        match kind {
            Kind::Read => Refusal::busy("etcd was lost before its response", RETRY_AFTER),
            Kind::Write => Refusal::unknown("etcd was lost before its response"),
        }
    }

    /// What an enforcing listener would refuse is audited.
    async fn observe(
        &self,
        call: Result<&Call<'_>, &Refusal>,
        presented: &[HeaderValue],
        asked: &mut Asked,
    ) {
        let call = match call {
            Ok(call) => call,
            Err(refusal) => return self.audit(refusal, asked),
        };
        // A deadline that has come: observing never waits.
        let claims = match self.claims_of(call, presented, asked, Instant::now()).await {
            Ok(claims) => claims,
            Err(refusal) => return self.audit(&refusal, asked),
        };
        if call.kind == Kind::Write
            && let Some(lock) = missing(&call.locks, &claims)
        {
            self.audit(&Refusal::missing(lock.clone()), asked);
        }
        for claim in &claims {
            if let Some(watermark) = self.listening.shadows.observe(&claim.lock, claim.token) {
                let watermark = Token::new(watermark);
                let refusal = Refusal::stale(claim.lock.clone(), claim.token, watermark);
                self.audit(&refusal, asked);
            }
        }
    }

    fn audit(&self, refusal: &Refusal, asked: &Asked) {
        record(&self.listening, self.client, refusal, asked);
    }

    pub(super) fn client(&self) -> SocketAddr {
        self.client
    }
}

/// Where the fence keys of a listener are.
pub fn fence_keys(listening: &Listening) -> FenceKeys {
    match &listening.config.rules {
        Listener::Etcd(rules) => rules.keys.clone(),
        Listener::Http(_) | Listener::S3(_) => FenceKeys::default(),
    }
}

/// Records a refusal.
pub(super) fn record(listening: &Listening, client: SocketAddr, refusal: &Refusal, asked: &Asked) {
    let ticket = refusal
        .lock
        .as_ref()
        .and_then(|lock| asked.tickets.iter().find(|ticket| ticket.lock == *lock));
    listening.audit.record(Record {
        unix_ms: clock::unix_ms(),
        instance: Excerpt::new(&listening.instance),
        listener: Excerpt::new(&listening.config.name),
        protocol: "etcd",
        client,
        code: refusal.code.as_str(),
        lock: refusal.lock.clone(),
        token: refusal.token,
        watermark: refusal.watermark,
        holder: ticket.map(|ticket| Excerpt::new(&ticket.holder)),
        operation: Excerpt::new(&asked.operation),
        mode: match listening.config.mode {
            Mode::Enforce => crate::audit::Mode::Enforce,
            Mode::Observe => crate::audit::Mode::Observe,
        },
    });
}

/// gRPC's method and media type; etcd takes HTTP/2 requests of other types for its JSON gateway.
fn is_grpc(parts: &Parts) -> bool {
    let media_type = parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    parts.method == HttpMethod::POST
        && matches!(
            media_type,
            Some(b"application/grpc" | b"application/grpc+proto")
        )
}

async fn read_message(mut body: Unread) -> Result<Bytes, NotServed> {
    let mut messages = Messages::new(REQUEST_BYTES_MAX);
    let refused = |detail: String| NotServed::Refused(Refusal::invalid(detail));
    loop {
        let Ok(read) = tokio::time::timeout(REQUEST_STALL_MAX, body.frame()).await else {
            let waited = REQUEST_STALL_MAX.as_millis();
            return Err(refused(format!("no byte of the call came for {waited} ms")));
        };
        match read {
            None => break,
            Some(Ok(read)) => {
                if let Some(data) = read.data_ref() {
                    messages.push(data);
                }
            }
            // Nobody is left to be told.
            Some(Err(_)) => return Err(refused("the call was cut off".to_owned())),
        }
        if messages.len() > REQUEST_BYTES_MAX {
            return Err(refused(FrameError::TooLong(REQUEST_BYTES_MAX).to_string()));
        }
    }
    messages.only().map_err(|error| match error {
        FrameError::Compressed => NotServed::Compressed,
        error => refused(error.to_string()),
    })
}
