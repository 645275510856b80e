//! A client's session: accept, then for each request read, classify, gate, forward, reply. One file
//! per stage, in this order; `Session::run` is their sequence.
//!
//! One task carries a client's connection from its first byte to its last, and the backend's
//! connection while a request is on it. Nothing cancels it: a fenced write runs to the end of its
//! response whether the client stays or not. HTTP/2 comes in through `http2`, which turns each of
//! its requests into a session of its own.
//!
//! It leaves to others: the frames (`protocol::http::frame`), what a request is (`protocol`),
//! whether a token passes (`gate`), what is durable (`watermarks`).

pub mod accept;
mod carry;
mod classify;
mod client;
mod forward;
mod gate;
mod http2;
mod read;
mod reply;
mod streamed;
mod streams;
mod upload;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use self::client::{ReadSide, WriteSide};
use self::gate::Admission;
use self::read::{Arrival, BodyLimits};
use super::accept::{Alive, ending};
use super::gates::{Gates, LastGate};
use super::shadows::Shadows;
use super::spool::SpoolRoom;
use super::tickets::{LastTicket, Tickets};
use super::upstream::Pool;
use super::wire::{Patience, Sink, Source};
use crate::audit::{AuditWriter, Excerpt, Record};
use crate::clock;
use crate::config::{Limits, ListenerConfig, Mode};
use crate::protocol::http::frame::{BodyReader, RequestHead, ResponseHead};
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
    pub spool_room: Arc<SpoolRoom>,
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

/// Where a client's requests lead.
#[derive(Clone)]
pub(super) struct Door {
    listening: Arc<Listening>,
    pool: Arc<Pool>,
    client: SocketAddr,
    /// Held by whatever a shutdown waits for.
    _alive: Alive,
    shutdown: watch::Receiver<bool>,
}

/// One connection of a client.
pub(super) struct Session {
    door: Door,
    reader: Source<ReadSide>,
    writer: Sink<WriteSide>,
    /// Of the request at hand. Taken out while it is served.
    head: RequestHead,
    /// What is left of its body.
    body: BodyReader,
    /// The client waits for `100 Continue` before it sends the body.
    awaits_continue: bool,
    response: ResponseHead,
    last_ticket: LastTicket,
    last_gate: LastGate,
    patience: Patience,
    /// Wakes the session when the proxy shuts down.
    ending: Ending,
}

struct Ending {
    shutdown: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    /// The task is woken by it.
    is_set: bool,
}

/// What becomes of the client's connection after a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum After {
    /// It serves the next one.
    Keep,
    /// It ends.
    Close,
    /// It ends at once: the reply is not whole.
    Reset,
}

/// What a refusal says about the request.
struct Asked<'h> {
    /// `None`: it could not be read.
    head: Option<&'h RequestHead>,
    /// The operation's name where it is not the method.
    operation: Option<String>,
    tickets: Vec<Arc<Ticket>>,
}

impl<'h> Asked<'h> {
    fn of(head: Option<&'h RequestHead>) -> Asked<'h> {
        Asked {
            head,
            operation: None,
            tickets: vec![],
        }
    }

    fn target(&self) -> &[u8] {
        self.head.map_or(b"/", RequestHead::origin_form)
    }

    /// For the audit.
    fn operation(&self) -> String {
        let Some(head) = self.head else {
            return "a request that cannot be read".to_owned();
        };
        let path = self.target().split(|&byte| byte == b'?').next();
        let path = String::from_utf8_lossy(path.unwrap_or_default());
        let operation = self.operation.as_deref().unwrap_or(head.method());
        format!("{operation} {path}")
    }
}

impl Session {
    fn new((reader, writer): (Source<ReadSide>, Sink<WriteSide>), door: Door) -> Session {
        let mut shutdown = door.shutdown.clone();
        Session {
            reader,
            writer,
            head: RequestHead::default(),
            body: BodyReader::EMPTY,
            awaits_continue: false,
            response: ResponseHead::default(),
            last_ticket: LastTicket::default(),
            last_gate: LastGate::default(),
            patience: Patience::new(read::HEAD_MAX),
            ending: Ending {
                shutdown: Box::pin(async move { ending(&mut shutdown).await }),
                is_set: false,
            },
            door,
        }
    }

    /// Serves one request after the other. Answers with the session where the client turns out to
    /// speak HTTP/2.
    async fn run(mut self) -> Option<Session> {
        let mut is_first = true;
        loop {
            let after = match self.arrive(is_first).await {
                Ok(Arrival::Request) => self.serve_arrived().await,
                Ok(Arrival::Http2) => return Some(self),
                Ok(Arrival::End) => return None,
                Err(refusal) => self.refuse(refusal, &Asked::of(None)).await,
            };
            match after {
                After::Keep => is_first = false,
                After::Close => {
                    self.part().await;
                    return None;
                }
                After::Reset => {
                    self.writer.half.reset();
                    return None;
                }
            }
        }
    }

    async fn serve_arrived(&mut self) -> After {
        let head = std::mem::take(&mut self.head);
        let mut asked = Asked::of(Some(&head));
        let served = match self.door.listening.config.mode {
            Mode::Enforce => self.serve_enforcing(&head, &mut asked).await,
            Mode::Observe => self.serve_observing(&head, &mut asked).await,
        };
        let after = match served {
            Ok(after) => after,
            Err(refusal) => self.refuse(refusal, &asked).await,
        };
        self.head = head;
        after
    }

    async fn serve_enforcing(
        &mut self,
        head: &RequestHead,
        asked: &mut Asked<'_>,
    ) -> Result<After, Refusal> {
        let deadline = Instant::now() + self.door.listening.config.admit_deadline;
        let mut held = None;
        let decided = self.classify(head, &mut held, asked, deadline).await?;
        let admission = self.admit(&decided, deadline).await?;
        self.forward(head, held, decided.kind, admission).await
    }

    /// Forwards whatever comes, and audits what an enforcing listener would refuse.
    async fn serve_observing(
        &mut self,
        head: &RequestHead,
        asked: &mut Asked<'_>,
    ) -> Result<After, Refusal> {
        let mut held = None;
        // A deadline that has come: observing never waits.
        let decided = self.classify(head, &mut held, asked, Instant::now()).await;
        let kind = match decided {
            Ok(decided) => {
                self.door.observe(&decided, asked);
                decided.kind
            }
            Err(refusal) => {
                self.door.audit(&refusal, asked);
                Kind::Write
            }
        };
        self.forward(head, held, kind, Admission::Unfenced).await
    }
}

impl Ending {
    /// Has the task woken when the proxy shuts down; it then asks [`Door::is_ending`].
    fn set(&mut self, cx: &mut std::task::Context<'_>) {
        if !std::mem::replace(&mut self.is_set, true) {
            // Ready: the door says so too.
            let _ = self.shutdown.as_mut().poll(cx);
        }
    }
}

impl Door {
    fn is_ending(&self) -> bool {
        // An error means that the sender is gone: the end as well.
        self.shutdown.has_changed().unwrap_or(true)
    }

    fn audit(&self, refusal: &Refusal, asked: &Asked<'_>) {
        let holder = refusal
            .lock
            .as_ref()
            .and_then(|lock| asked.tickets.iter().find(|ticket| ticket.lock == *lock))
            .map(|ticket| Excerpt::new(&ticket.holder));
        let listening = &self.listening;
        listening.audit.record(Record {
            unix_ms: clock::unix_ms(),
            instance: Excerpt::new(&listening.instance),
            listener: Excerpt::new(&listening.config.name),
            protocol: listening.protocol(),
            client: self.client,
            code: refusal.code.as_str(),
            lock: refusal.lock.clone(),
            token: refusal.token,
            watermark: refusal.watermark,
            holder,
            operation: Excerpt::new(&asked.operation()),
            mode: match listening.config.mode {
                Mode::Enforce => crate::audit::Mode::Enforce,
                Mode::Observe => crate::audit::Mode::Observe,
            },
        });
    }
}
