//! One client and its backend connection, in one task: whatever can go on goes on at each poll.
//!
//! The stages, one file each: `requests` (decode, plan, forward), `admit` (the gate, at once or by
//! waiting), `replies` (whose they are, what ends with them), `revoke` (a newer token has come);
//! `sharing`, for commands that leave over a connection which is shared; and `blind`, for replies
//! that nobody understands where nothing may be ended.
//!
//! Invariants:
//! - while a command waits for the gate, nothing behind it is looked at, and replies go on;
//! - every buffer has a bound; one that is full stops the side that fills it;
//! - where the session ends with fenced commands unanswered, `Flights` has them proven dead; one
//!   whose last byte has not left is told as not applied, the others as unknown.

mod admit;
mod blind;
mod present;
mod replies;
mod requests;
mod revoke;
mod sharing;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use self::admit::Admission;
use self::present::Presented;
use self::sharing::Sharing;
use super::RedisListening;
use super::backend::{OpenError, Opened};
use super::flights::Load;
use super::lane::Lanes;
use super::link::Link;
use super::settle::RETRY_AFTER;
use crate::config::Mode;
use crate::protocol::Refusal;
use crate::protocol::redis::{
    CommandTable, Conversation, ConversationSettings, ReplyScanner, RequestLimits, RequestScanner,
    refusal_reply,
};
use crate::proxy::accept::Visit;
use crate::proxy::polled::{Received, Sent, poll_receive, poll_send};

/// Bytes that wait to be sent, on either side, before the other side is not read any more.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// How long a client that has gone away, or takes nothing, holds what it has in flight; and how
/// long its last replies may take.
const FAREWELL_MAX: Duration = Duration::from_secs(2);

/// Serves one client until either side ends.
pub(super) async fn serve(listening: Arc<RedisListening>, lanes: Arc<Lanes>, visit: Visit) {
    let Visit {
        stream: mut client,
        client: address,
        mut shutdown,
        alive,
    } = visit;
    if let Some(keys) = &listening.fence_keys {
        let connect_max = listening.config.limits.upstream_connect_timeout;
        if tokio::time::timeout(connect_max, keys.begun())
            .await
            .is_err()
        {
            return tell_unreachable(&mut client, &OpenError::TimedOut(connect_max)).await;
        }
    }
    let opened = match listening.open().await {
        Ok(opened) => opened,
        Err(error) => return tell_unreachable(&mut client, &error).await,
    };
    let never = !listening.config.shares_connections;
    let sharing = Sharing::new(lanes, alive, never);
    let mut session = Session::new(listening, (client, address), opened, sharing);
    let ended = tokio::select! {
        () = std::future::poll_fn(|cx| session.poll(cx)) => true,
        // An error means that the sender is gone: the end as well.
        _ = shutdown.wait_for(|down| *down) => false,
    };
    if !ended {
        session.farewell();
        let rest = std::future::poll_fn(|cx| session.poll(cx));
        // What is unanswered after it is in doubt, and its session condemned.
        let _ = tokio::time::timeout(FAREWELL_MAX, rest).await;
    }
}

async fn tell_unreachable(client: &mut TcpStream, error: &OpenError) {
    tracing::warn!(%error, "no connection to the backend");
    let refusal = Refusal::busy("the backend cannot be reached", RETRY_AFTER);
    // As Redis tells a client that it has no room for (networking.c, acceptCommonHandler): at once.
    let _ = client.write_all(&refusal_reply(&refusal)).await;
}

/// How far the end of a session is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Both sides talk.
    Open,
    /// No command is taken any more; what was forwarded is answered, then it ends.
    Ending,
    /// The backend connection is over; the client gets what it is owed.
    Flushing,
    /// The client is gone; what was forwarded is awaited.
    Deserted,
    Over,
}

struct Session {
    listening: Arc<RedisListening>,
    address: SocketAddr,
    client: TcpStream,
    /// The client's own backend connection.
    link: Link,
    from_client: BytesMut,
    to_client: BytesMut,
    table: Arc<CommandTable>,
    requests: RequestScanner,
    conversation: Conversation<Load>,
    replies: ReplyScanner,
    /// A request whose first bytes were dealt with and whose rest is still to come.
    streamed: Option<requests::Streamed>,
    /// What becomes of the reply that is under way.
    delivery: Option<replies::Delivering>,
    /// Nothing further is planned until everything forwarded is answered.
    barrier: bool,
    admission: Admission,
    /// The tickets of the connection.
    bound: Presented,
    phase: Phase,
    /// What the client gets after all its replies.
    last_words: Option<Vec<u8>>,
    /// Counts down in `Deserted` and `Flushing`.
    farewell: Option<Pin<Box<tokio::time::Sleep>>>,
    /// Replies are not understood any more, and pass as they come: see [`blind`].
    blind: bool,
    sharing: Sharing,
}

impl Session {
    fn new(
        listening: Arc<RedisListening>,
        (client, address): (TcpStream, SocketAddr),
        opened: Opened,
        sharing: Sharing,
    ) -> Session {
        let limits = RequestLimits {
            bulk_bytes_max: match listening.config.mode {
                Mode::Enforce => listening.config.limits.bulk_bytes_max,
                // The server's own limit holds.
                Mode::Observe => i64::MAX.unsigned_abs(),
            },
            ..RequestLimits::default()
        };
        let settings = ConversationSettings {
            hidden: listening.config.rules.hidden_prefix(),
            observes: listening.config.mode == Mode::Observe,
            ..ConversationSettings::default()
        };
        let link = Link::new(Arc::clone(&listening), opened.stream, opened.session);
        Session {
            address,
            client,
            link,
            from_client: BytesMut::new(),
            to_client: BytesMut::new(),
            table: opened.table,
            requests: RequestScanner::new(limits),
            conversation: Conversation::new(settings),
            replies: ReplyScanner::new(),
            streamed: None,
            delivery: None,
            barrier: false,
            admission: Admission::default(),
            bound: Presented::default(),
            phase: Phase::Open,
            last_words: None,
            farewell: None,
            blind: false,
            sharing,
            listening,
        }
    }

    /// Takes no further command.
    fn farewell(&mut self) {
        if self.phase == Phase::Open {
            self.phase = Phase::Ending;
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut moved = self.poll_admission(cx);
            moved |= self.take_requests();
            moved |= self.poll_send_backend(cx);
            moved |= self.poll_receive_backend(cx);
            moved |= self.poll_shared(cx);
            moved |= self.poll_send_client(cx);
            moved |= self.poll_receive_client(cx);
            moved |= !moved && self.poll_revocation(cx);
            self.settle_phase(cx);
            if self.phase == Phase::Over {
                return Poll::Ready(());
            }
            if !moved {
                return Poll::Pending;
            }
        }
    }

    /// Moves on from a phase that has nothing left to do.
    fn settle_phase(&mut self, cx: &mut Context<'_>) {
        match self.phase {
            Phase::Open | Phase::Over => {}
            Phase::Ending if self.conversation.outstanding() == 0 => {
                let words = self.last_words.take().unwrap_or_default();
                self.to_client.extend_from_slice(&words);
                self.flush();
            }
            Phase::Ending => {}
            Phase::Flushing if self.to_client.is_empty() => self.phase = Phase::Over,
            Phase::Deserted if self.link.flights.is_empty() || self.link.flights.is_blocked() => {
                self.phase = Phase::Over;
            }
            Phase::Flushing | Phase::Deserted => {
                let farewell = self
                    .farewell
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep(FAREWELL_MAX)));
                if farewell.as_mut().poll(cx).is_ready() {
                    self.phase = Phase::Over;
                }
            }
        }
        if self.phase == Phase::Flushing && self.to_client.is_empty() {
            self.phase = Phase::Over;
        }
    }

    /// The backend connection is over. What it has not answered is in doubt from here on, unless it
    /// is finished; the client gets what is ready.
    fn flush(&mut self) {
        self.link.flights.lose();
        if self.phase != Phase::Deserted {
            self.phase = Phase::Flushing;
        } else {
            self.phase = Phase::Over;
        }
    }

    /// The client is gone.
    fn desert(&mut self) {
        self.to_client.clear();
        self.phase = match self.phase {
            Phase::Flushing | Phase::Over => Phase::Over,
            _ => Phase::Deserted,
        };
    }

    fn poll_send_backend(&mut self, cx: &mut Context<'_>) -> bool {
        if matches!(self.phase, Phase::Flushing | Phase::Over) {
            return false;
        }
        self.link.poll_send(cx)
    }

    fn poll_send_client(&mut self, cx: &mut Context<'_>) -> bool {
        match poll_send(&mut self.client, &mut self.to_client, cx) {
            Sent::Nothing => false,
            Sent::Some(_) => true,
            Sent::Failed => {
                self.desert();
                true
            }
        }
    }

    fn poll_receive_client(&mut self, cx: &mut Context<'_>) -> bool {
        // Also while nothing is taken: the client's end must be seen. What it sends waits here.
        let full = self.from_client.len() >= WAITING_BYTES_MAX + requests::UNDECIDED_BYTES_MAX;
        if full || matches!(self.phase, Phase::Deserted | Phase::Flushing | Phase::Over) {
            return false;
        }
        match poll_receive(&mut self.client, &mut self.from_client, cx) {
            Received::Nothing => false,
            Received::Some => true,
            Received::Ended => {
                self.desert();
                true
            }
        }
    }

    fn poll_receive_backend(&mut self, cx: &mut Context<'_>) -> bool {
        let full = self.to_client.len() >= WAITING_BYTES_MAX;
        if full
            || self.sharing.has_lost_own()
            || matches!(self.phase, Phase::Flushing | Phase::Over)
        {
            return false;
        }
        match self.link.poll_receive(cx) {
            Received::Nothing => false,
            Received::Some => {
                self.take_replies();
                true
            }
            Received::Ended => {
                self.backend_ended();
                true
            }
        }
    }
}
