//! How a session ends: either side is gone, the proxy goes down, or what came is not the protocol.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::Session;
use crate::protocol::Refusal;
use crate::protocol::postgres::frame::{flush, terminate};
use crate::protocol::postgres::refusal::{Severity, plain_error, refusal_error};

/// How long the other side is waited for once nothing more is to be said.
pub(super) const FAREWELL_MAX: Duration = Duration::from_secs(2);
/// SQLSTATE `protocol_violation`.
const PROTOCOL_VIOLATION: &str = "08P01";
/// SQLSTATE `connection_failure`.
const CONNECTION_FAILURE: &str = "08006";
/// SQLSTATE `admin_shutdown`.
pub(super) const ADMIN_SHUTDOWN: &str = "57P01";

/// How far the end of a session is.
#[derive(Debug)]
pub(super) enum Phase {
    /// Both sides talk.
    Open,
    /// No message is taken any more once the client is between two transactions; then it ends with
    /// these last words.
    Ending(Vec<u8>),
    /// The client says nothing more; what was forwarded is awaited, and an open transaction rolled
    /// back.
    Deserted,
    /// The server was told goodbye, and is awaited: for so long where nobody listens any more.
    Leaving(Pin<Box<Sleep>>),
    /// The backend connection is over; the client gets what it is owed, as long as it takes some of
    /// it in this time.
    Flushing(Pin<Box<Sleep>>),
    /// Nothing is left to do.
    Over,
}

impl PartialEq for Phase {
    fn eq(&self, other: &Phase) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl Phase {
    /// Whether the backend connection is still used.
    pub(super) fn has_backend(&self) -> bool {
        !matches!(self, Phase::Flushing(_) | Phase::Over)
    }

    /// The client took some of what it is owed.
    pub(super) fn note_taken(&mut self) {
        if let Phase::Flushing(until) = self {
            until.as_mut().reset(Instant::now() + FAREWELL_MAX);
        }
    }

    /// Whether the client is still read.
    pub(super) fn has_client(&self) -> bool {
        matches!(self, Phase::Open | Phase::Ending(_))
    }
}

impl Session {
    /// The proxy goes down: no transaction is begun any more.
    pub(super) fn farewell(&mut self) {
        if self.phase == Phase::Open {
            let text = "the proxy is shutting down";
            self.phase = Phase::Ending(plain_error(Severity::Fatal, ADMIN_SHUTDOWN, text));
        }
    }

    /// What the client sent is not the protocol: it is told so, and nothing more of it is taken.
    pub(super) fn breach(&mut self, reason: &str) {
        let words = plain_error(Severity::Fatal, PROTOCOL_VIOLATION, reason);
        self.end_client(words);
    }

    /// These are the last words for the client; the server goes on to the end of what it was sent.
    pub(super) fn end_client(&mut self, words: Vec<u8>) {
        if self.delivered.is_none() {
            self.client.send(&words);
        }
        self.hears = false;
        self.desert();
    }

    /// A ticket stands in a text of which the server has a part: it must not get the rest, and
    /// without its end it neither runs nor logs it.
    pub(super) fn cut(&mut self) {
        let refusal = Refusal::malformed(
            "a ticket is not taken out of a text that is too long to be looked at",
        );
        self.report(&refusal, "message");
        self.client.send(&refusal_error(&refusal, Severity::Fatal));
        self.hears = false;
        self.effects.lose(&self.database, self.identity.pid);
        self.flights.lose();
        self.phase = Phase::Flushing(Box::pin(tokio::time::sleep(FAREWELL_MAX)));
    }

    /// The client says nothing more. Whether that changes anything.
    pub(super) fn desert(&mut self) -> bool {
        match self.phase {
            Phase::Open | Phase::Ending(_) => {
                self.client.received.clear();
                self.admission.forget();
                // The server keeps the answers to a pipeline whose Sync will never come.
                if self.core.is_in_pipeline() && self.streamed.is_none() {
                    self.backend.send(&flush());
                }
                self.phase = Phase::Deserted;
            }
            Phase::Flushing(_) => self.phase = Phase::Over,
            Phase::Deserted | Phase::Leaving(_) | Phase::Over => return false,
        }
        true
    }

    /// Moves on from a phase that has nothing left to do. Whether it moved.
    pub(super) fn poll_phase(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.phase {
            Phase::Open | Phase::Over => false,
            Phase::Ending(words) => {
                let between = self.core.is_quiet() && !self.core.in_transaction();
                if !between || self.streamed.is_some() {
                    return false;
                }
                let words = std::mem::take(words);
                self.end_client(words);
                true
            }
            Phase::Deserted => self.settle_deserted(),
            Phase::Leaving(until) | Phase::Flushing(until) => {
                let late = until.as_mut().poll(cx) == Poll::Ready(());
                let over = match self.phase {
                    Phase::Leaving(_) => late && !self.hears,
                    _ => late || self.client.is_sent(),
                };
                if over {
                    // Nobody hears what the server goes on with.
                    self.effects.lose(&self.database, self.identity.pid);
                    self.phase = Phase::Over;
                }
                over
            }
        }
    }

    fn settle_deserted(&mut self) -> bool {
        if self.flights.is_empty() {
            // As a client that goes away: what it sent before is still carried out.
            if self.streamed.is_none() {
                self.backend.send(&terminate());
            }
            self.phase = Phase::Leaving(Box::pin(tokio::time::sleep(FAREWELL_MAX)));
            return true;
        }
        if !self.core.is_stalled() && self.streamed.is_none() {
            // Its permits go with the reply; a newer token may cancel it meanwhile.
            return false;
        }
        if self.can_speak() && self.core.in_block() {
            self.roll_back(&Refusal::unknown("the client is gone"));
            return true;
        }
        // Data or a Sync that will never come is awaited: the server rolls back when its connection
        // ends, and is made to if it does not.
        self.effects.lose(&self.database, self.identity.pid);
        self.flights.lose();
        self.phase = Phase::Over;
        true
    }

    /// Nothing more comes from the backend.
    pub(super) fn backend_ended(&mut self) {
        if !self.phase.has_backend() {
            return;
        }
        self.effects.lose(&self.database, self.identity.pid);
        let unfinished = !matches!(self.phase, Phase::Leaving(_));
        if self.hears && unfinished && self.delivered.is_none() {
            let words = self.words_of_loss();
            self.client.send(&words);
        }
        self.flights.lose();
        self.phase = Phase::Flushing(Box::pin(tokio::time::sleep(FAREWELL_MAX)));
    }

    fn words_of_loss(&self) -> Vec<u8> {
        if self.effects.told_fatal {
            // The server has said why.
            return vec![];
        }
        match (self.flights.about(), self.revoked_for()) {
            // What may have taken effect is not known, whatever the reason.
            (Some((lock, token)), _) if self.flights.is_released() && !self.core.is_quiet() => {
                let doubt = Refusal::unknown("the backend connection was lost before its reply");
                let doubt = doubt.for_lock(lock).with_token(token);
                refusal_error(&doubt, Severity::Fatal)
            }
            (_, Some(refusal)) => refusal_error(refusal, Severity::Fatal),
            _ => plain_error(
                Severity::Fatal,
                CONNECTION_FAILURE,
                "the backend connection was lost",
            ),
        }
    }
}
