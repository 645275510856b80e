//! One client and its backend connection, in one task: whatever can go on goes on at each poll.
//!
//! The stages, one file each: `requests` (decode, consider, forward), `weigh` (what a message
//! needs: `genuine` tickets, locks by `resolved` names, foreign tables that are `unseen`; found
//! once for what comes `again`), `admit` (the gate, at once or by waiting), `hide` (no ticket
//! leaves), `observed` (what observing does in the place of all that), `replies` (whose they are,
//! what ends with them), `effects` (what a transaction's end brings about), `revoke` (a newer token
//! has come), `held` (read-only without a ticket), `end` (either side is gone).
//!
//! Invariants:
//! - while a message waits for the gate, nothing behind it is looked at, and replies go on;
//! - every buffer has a bound; one that is full stops the side that fills it;
//! - nothing of the proxy's own goes between the parts of a client's message;
//! - where the session ends with permits in flight, `Flights` has its writes proven dead.

mod admit;
mod again;
mod cursors;
mod defined;
mod effects;
mod end;
mod exporting;
mod genuine;
pub(super) mod held;
mod hide;
mod observed;
mod replies;
mod requests;
mod resolved;
mod revoke;
mod settle;
mod unseen;
mod weigh;

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use self::admit::Admission;
use self::again::Again;
use self::cursors::Cursors;
use self::defined::Defined;
use self::effects::Effects;
use self::end::Phase;
use self::exporting::Exporting;
use self::genuine::Sets;
use self::held::Hold;
use self::resolved::Resolved;
use self::revoke::Revocation;
use self::settle::{Identity, Standing};
use super::Listener;
use super::catalog::Database;
use super::door::{self, CancelKey, Manner, Opened, Start};
use super::flights::Flights;
use super::relay::Relay;
use super::wire::{Received, Sent, Side, WAITING_BYTES_MAX};
use crate::protocol::Refusal;
use crate::protocol::postgres::classify::RelationName;
use crate::protocol::postgres::frame::{Decoder, Side as Sender};
use crate::protocol::postgres::session::Session as Core;
use crate::proxy::accept::{Visit, ending, ends_first};
use crate::proxy::slots::Slots;

const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Most bytes of a client's that wait to be dealt with: one whole message, and a read.
const UNREAD_BYTES_MAX: usize = 2 * WAITING_BYTES_MAX;
/// Most messages of a client's that are dealt with before other sessions have their turn.
const TURN_MESSAGES_MAX: usize = 512;
/// Where a read of the server brings so much, more of it may be waiting: that it has committed is
/// heard late. As much as TLS brings at once.
const LAGGING_BYTES: usize = 16 << 10;
/// How many awaited answers are looked at in the time that a message takes.
const STEPS_PER_MESSAGE: usize = 64;
/// Most times that both sides are read before that: each read has at most 64 KiB.
const TURN_ROUNDS_MAX: usize = 4;

/// Serves one client until either side ends.
pub(super) async fn serve(listener: Arc<Listener>, visit: Visit) {
    let Visit {
        stream,
        client,
        mut shutdown,
        alive: _alive,
    } = visit;
    let opened = {
        // On the heap, and gone before the session begins: handshakes take room.
        let opening = Box::pin(door::open(&listener, stream, client));
        let in_time = tokio::time::timeout(listener.config.limits.startup_timeout, opening);
        tokio::select! {
            opened = in_time => opened.ok().flatten(),
            () = ending(&mut shutdown) => None,
        }
    };
    let Some(opened) = opened else {
        return;
    };
    let Opened {
        client: side,
        backend,
        mut key,
        manner,
    } = opened;
    match manner {
        Manner::Relay => {
            if let Some(key) = &mut key {
                key.listen_no_more();
            }
            let mut relay = Relay::new(side, backend);
            tokio::select! {
                () = std::future::poll_fn(|cx| relay.poll(cx)) => {}
                () = ending(&mut shutdown) => {}
            }
            relay.close().await;
            drop(key);
        }
        Manner::Guarded(start) => {
            let session = Session::new(listener, client, (side, backend), key, *start);
            run(session, &mut shutdown).await;
        }
    }
}

async fn run(session: Box<Session>, shutdown: &mut tokio::sync::watch::Receiver<bool>) {
    let mut session = session;
    let ended = ends_first(|cx| session.poll(cx), shutdown).await;
    if !ended {
        session.farewell();
        let rest = std::future::poll_fn(|cx| session.poll(cx));
        // What is in flight after it is in doubt, and its session condemned.
        let _ = tokio::time::timeout(end::FAREWELL_MAX, rest).await;
    }
    // The last words, if there is anybody.
    let words = session.client.send_all();
    if let Ok(Ok(())) = tokio::time::timeout(end::FAREWELL_MAX, words).await {
        session.client.close().await;
    }
}

/// Which sides have nothing more to be received, as far as was seen in this poll: their wakers are
/// set.
#[derive(Default)]
struct Silent {
    client: bool,
    backend: bool,
}

/// How much more is done before other sessions have their turn.
struct Turn {
    messages: usize,
    rounds: usize,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn {
            messages: TURN_MESSAGES_MAX,
            rounds: TURN_ROUNDS_MAX,
        }
    }
}

impl Turn {
    /// Another message of the client's. `false`: it waits for the next turn.
    fn take_message(&mut self) -> bool {
        let some = self.messages > 0;
        self.messages = self.messages.saturating_sub(1);
        some
    }

    /// So many awaited answers were looked at.
    fn spend(&mut self, steps: usize) {
        self.messages = self.messages.saturating_sub(steps / STEPS_PER_MESSAGE);
    }

    /// Ends a round.
    fn is_over(&mut self) -> bool {
        self.rounds = self.rounds.saturating_sub(1);
        self.messages == 0 || self.rounds == 0
    }
}

struct Session {
    listener: Arc<Listener>,
    address: SocketAddr,
    client: Side,
    backend: Side,
    requests: Decoder,
    replies: Decoder,
    core: Core,
    /// What becomes of the rest of a client's long message.
    streamed: Option<requests::Streamed>,
    /// Looks for tickets in the rest of a long text.
    watch: Option<hide::Watch>,
    /// What becomes of the rest of a server's long message.
    delivered: Option<replies::Delivered>,
    identity: Identity,
    standing: Standing,
    /// The current role, as far as the session's path names it.
    user: Box<str>,
    database: Arc<Database>,
    /// Temporary relations that the session has made.
    temporary: Vec<Box<str>>,
    /// What it has made them of.
    defined: Defined,
    /// Something may have put something else in the place of a temporary name.
    shadowed: bool,
    /// Tables of the open transaction that are plain, and all that it has created.
    made: Vec<RelationName>,
    created: Vec<RelationName>,
    cursors: Cursors,
    resolved: Resolved,
    again: Again,
    sets: Sets,
    slots: Slots,
    admission: Admission,
    hold: Hold,
    exporting: Exporting,
    flights: Flights,
    effects: Effects,
    revocation: Revocation,
    /// Why the last transaction was rolled back under the client.
    lost_to: Option<Refusal>,
    phase: Phase,
    /// The client has said all that it will say.
    client_ended: bool,
    /// The client still gets what the server answers.
    hears: bool,
    /// The client's key, until the session ends.
    key: Option<CancelKey>,
}

impl Session {
    fn new(
        listener: Arc<Listener>,
        address: SocketAddr,
        (client, backend): (Side, Side),
        key: Option<CancelKey>,
        start: Start,
    ) -> Box<Session> {
        let has_tickets = !start.settings.tickets.is_empty();
        let mut core = Core::new(start.settings);
        for (name, value) in &start.parameters {
            core.parameter(name, value);
        }
        let told = start.parameters.iter().map(|(name, _)| &**name);
        let hold = Hold::begin(&listener.config, has_tickets, told);
        let sets = Sets::new(&listener, &start.database);
        let flights = Flights::new(listener.sessions.clone(), listener.evictor.clone());
        Box::new(Session {
            address,
            client,
            backend,
            requests: Decoder::new(Sender::Client),
            replies: Decoder::new(Sender::Server),
            core,
            streamed: None,
            watch: None,
            delivered: None,
            identity: Identity {
                pid: start.pid,
                port: start.port,
                login: start.login.into(),
                database: start.database.into(),
            },
            standing: Standing::Unknown,
            user: start.user.into(),
            database: start.catalog,
            temporary: vec![],
            defined: Defined::default(),
            shadowed: false,
            made: vec![],
            created: vec![],
            cursors: Cursors::default(),
            resolved: Resolved::default(),
            again: Again::default(),
            sets,
            slots: Slots::default(),
            admission: Admission::default(),
            hold,
            exporting: Exporting::default(),
            flights,
            effects: Effects::default(),
            revocation: Revocation::default(),
            lost_to: None,
            phase: Phase::Open,
            client_ended: false,
            hears: true,
            key,
            listener,
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_cancelled(cx);
        let mut silent = Silent::default();
        let mut turn = Turn::default();
        loop {
            let mut moved = self.poll_receive_backend(&mut silent, &mut turn, cx);
            moved |= self.poll_receive_client(&mut silent, cx);
            moved |= self.poll_admission(cx);
            // Before the next message: a transaction of an older token ends first.
            moved |= self.is_revoked() && self.poll_revocation(cx);
            moved |= self.settle_held();
            moved |= self.take_requests(&mut turn);
            moved |= self.poll_send_backend(cx);
            moved |= self.poll_send_client(cx);
            moved |= self.poll_phase(cx);
            moved |= !moved && self.poll_revocation(cx);
            moved |= !moved && self.client_ended && self.is_done() && self.desert();
            if self.phase == Phase::Over {
                return Poll::Ready(());
            }
            if !moved {
                return Poll::Pending;
            }
            if turn.is_over() {
                // Behind the others, and behind what has come for them: a task that only wakes
                // itself keeps its worker from looking for that.
                return pin!(tokio::task::yield_now()).poll(cx);
            }
        }
    }

    /// Whether nothing of what the client has sent waits to be dealt with.
    fn is_done(&self) -> bool {
        self.takes_requests() && !self.hold.is_waiting()
    }

    fn poll_send_backend(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.phase.has_backend() {
            return false;
        }
        match self.backend.poll_send(cx) {
            Sent::Nothing => false,
            Sent::Some => true,
            // What it has sent before is still read: reading tells the end.
            Sent::Failed => {
                self.backend.waiting.clear();
                false
            }
        }
    }

    fn poll_send_client(&mut self, cx: &mut Context<'_>) -> bool {
        match self.client.poll_send(cx) {
            Sent::Nothing => false,
            Sent::Some => {
                self.phase.note_taken();
                true
            }
            Sent::Failed => {
                self.client.waiting.clear();
                self.hears = false;
                self.desert()
            }
        }
    }

    fn poll_receive_client(&mut self, silent: &mut Silent, cx: &mut Context<'_>) -> bool {
        // Also while nothing is taken: the client's end must be seen. What it sends waits here.
        let full = self.client.received.len() >= UNREAD_BYTES_MAX;
        if full || silent.client || self.client_ended || !self.phase.has_client() {
            return false;
        }
        match self.client.poll_receive(cx) {
            Received::Nothing => {
                silent.client = true;
                false
            }
            Received::Some => true,
            Received::Ended => {
                // What it sent before is still dealt with.
                self.client_ended = true;
                true
            }
        }
    }

    fn poll_receive_backend(
        &mut self,
        silent: &mut Silent,
        turn: &mut Turn,
        cx: &mut Context<'_>,
    ) -> bool {
        let full = self.client.is_full() && self.hears;
        if full {
            self.effects.unheard(&self.database);
        }
        if full || silent.backend || !self.phase.has_backend() {
            return false;
        }
        match self.backend.poll_receive(cx) {
            Received::Nothing => {
                silent.backend = true;
                false
            }
            Received::Some => {
                if self.backend.received.len() >= LAGGING_BYTES {
                    self.effects.unheard(&self.database);
                }
                self.take_replies(turn);
                true
            }
            Received::Ended => {
                self.backend_ended();
                true
            }
        }
    }
}

type Waiting<T> = Pin<Box<dyn Future<Output = Result<T, Refusal>> + Send>>;
