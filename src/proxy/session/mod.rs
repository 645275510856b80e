//! A client's session: accept, then for each request read, classify, gate, forward, reply. One file
//! per stage, in this order; `Door::serve` is their sequence.
//!
//! It leaves to others: what a request is (`protocol`), whether a token passes (`gate`), what is
//! durable (`watermarks`).

pub mod accept;
mod carry;
mod classify;
mod forward;
mod gate;
mod read;
mod reply;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, Uri};
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::gate::Admission;
use self::read::ClientBody;
use self::reply::ReplyBody;
use super::gates::Gates;
use super::shadows::Shadows;
use super::tickets::Tickets;
use super::upstream::Pool;
use super::withheld::BodyLimits;
use crate::audit::{AuditWriter, Excerpt, Record};
use crate::config::{Limits, ListenerConfig, Mode};
use crate::protocol::{Kind, Listener, Refusal};
use crate::ticket::Ticket;

/// Longest time between two pieces of a client's body that is held or withheld.
const BODY_STALL_MAX: Duration = Duration::from_secs(60);

/// One listener with what it shares with the others.
pub struct Listening {
    /// Its configuration.
    pub config: ListenerConfig,
    /// The proxy's name.
    pub instance: String,
    /// The gates of all listeners.
    pub gates: Gates,
    /// What verifies tickets.
    pub tickets: Arc<Tickets>,
    /// Where refusals are recorded.
    pub audit: AuditWriter,
    /// The gates of observe mode.
    pub shadows: Arc<Shadows>,
    /// Where long bodies are held.
    pub spool_dir: PathBuf,
}

impl Listening {
    fn rules(&self) -> &Listener {
        &self.config.rules
    }

    fn limits(&self) -> &Limits {
        &self.config.limits
    }

    fn body_limits(&self) -> BodyLimits {
        BodyLimits {
            bytes_max: self.limits().body_bytes_max,
            stall_max: BODY_STALL_MAX,
        }
    }

    fn protocol(&self) -> &'static str {
        match self.rules() {
            Listener::Http(_) => "http",
            Listener::S3(_) => "s3",
            Listener::Etcd(_) => "etcd",
        }
    }
}

/// One connection of a client.
pub(super) struct Door {
    listening: Arc<Listening>,
    pool: Arc<Pool>,
    client: SocketAddr,
    /// Held by whatever a shutdown waits for.
    alive: mpsc::Sender<()>,
}

/// What a refusal says about the request.
struct Asked {
    method: Method,
    uri: Uri,
    /// The operation's name where it is not the method.
    operation: Option<String>,
    tickets: Vec<Arc<Ticket>>,
}

impl Asked {
    fn of(parts: &Parts) -> Asked {
        Asked {
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            operation: None,
            tickets: vec![],
        }
    }
}

impl Door {
    /// Serves one request.
    async fn serve(&self, request: Request<Incoming>) -> Response<ReplyBody> {
        let (parts, body) = request.into_parts();
        let mut asked = Asked::of(&parts);
        let served = match self.listening.config.mode {
            Mode::Enforce => self.serve_enforcing(parts, body, &mut asked).await,
            Mode::Observe => self.serve_observing(parts, body, &mut asked).await,
        };
        served.unwrap_or_else(|refusal| self.refuse(&refusal, &asked))
    }

    async fn serve_enforcing(
        &self,
        parts: Parts,
        body: Incoming,
        asked: &mut Asked,
    ) -> Result<Response<ReplyBody>, Refusal> {
        let deadline = Instant::now() + self.listening.config.admit_deadline;
        let mut body = ClientBody::Incoming(body);
        let decided = self.classify(&parts, &mut body, asked, deadline).await?;
        let admission = self.admit(&decided, deadline).await?;
        self.forward(parts, body, decided.kind, admission).await
    }

    /// Forwards whatever comes, and audits what an enforcing listener would refuse.
    async fn serve_observing(
        &self,
        parts: Parts,
        body: Incoming,
        asked: &mut Asked,
    ) -> Result<Response<ReplyBody>, Refusal> {
        let mut body = ClientBody::Incoming(body);
        // A deadline that has come: observing never waits.
        let kind = match self
            .classify(&parts, &mut body, asked, Instant::now())
            .await
        {
            Ok(decided) => {
                self.observe(&decided, asked);
                decided.kind
            }
            Err(refusal) => {
                self.audit(&refusal, asked);
                Kind::Write
            }
        };
        self.forward(parts, body, kind, Admission::Unfenced).await
    }

    fn audit(&self, refusal: &Refusal, asked: &Asked) {
        let holder = refusal
            .lock
            .as_ref()
            .and_then(|lock| asked.tickets.iter().find(|ticket| ticket.lock == *lock))
            .map(|ticket| Excerpt::new(&ticket.holder));
        let operation = asked.operation.as_deref().unwrap_or(asked.method.as_str());
        let listening = &self.listening;
        listening.audit.record(Record {
            unix_ms: unix_ms_now(),
            instance: Excerpt::new(&listening.instance),
            listener: Excerpt::new(&listening.config.name),
            protocol: listening.protocol(),
            client: self.client,
            code: refusal.code.as_str(),
            lock: refusal.lock.clone(),
            token: refusal.token,
            watermark: refusal.watermark,
            holder,
            operation: Excerpt::new(&format!("{operation} {}", asked.uri.path())),
            mode: match listening.config.mode {
                Mode::Enforce => crate::audit::Mode::Enforce,
                Mode::Observe => crate::audit::Mode::Observe,
            },
        });
    }
}

fn unix_ms_now() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
