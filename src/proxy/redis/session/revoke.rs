//! A newer token has come while commands of this session are in flight.
//!
//! Short replies are awaited for the listener's `revoke_patience`. A command that waits at the
//! server, or that is not answered in that time, ends with its session: `CLIENT KILL ID`. What the
//! client gets then: its connection's unanswered commands in order, writes as `-FENCEDOUBT`, and the
//! end of the connection, as Redis ends the one of a killed client. A command whose last byte had
//! not left is not in doubt: `-FENCED`.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::{Phase, RETRY_AFTER, Session};
use crate::protocol::{Kind, Refusal};
use crate::proxy::redis::flights::Load;

/// How far the revocation is.
pub(super) enum Revocation {
    /// Nothing in flight is revoked.
    None,
    /// Replies are awaited until then.
    Patient(Pin<Box<Sleep>>),
    /// The session is being killed.
    Condemned(oneshot::Receiver<()>),
}

impl Session {
    /// Whether something has changed that the other stages must look at.
    pub(super) fn poll_revocation(&mut self, cx: &mut Context<'_>) -> bool {
        if matches!(self.phase, Phase::Flushing | Phase::Over) {
            return false;
        }
        match &mut self.revocation {
            Revocation::None => {
                if self.flights.is_empty() || self.flights.poll_revoked(cx).is_pending() {
                    return false;
                }
                let patience = match self.flights.is_blocked() {
                    true => std::time::Duration::ZERO,
                    false => self.listening.config.revoke_patience,
                };
                self.revocation = Revocation::Patient(Box::pin(tokio::time::sleep(patience)));
                true
            }
            Revocation::Patient(sleep) => {
                if self.flights.poll_revoked(cx).is_pending() {
                    self.revocation = Revocation::None;
                    return true;
                }
                if sleep.as_mut().poll(cx).is_pending() && !self.flights.is_blocked() {
                    return false;
                }
                self.condemn();
                true
            }
            Revocation::Condemned(gone) => match Pin::new(gone).poll(cx) {
                Poll::Pending => false,
                Poll::Ready(Ok(())) => {
                    self.proven_gone(cx);
                    true
                }
                // The evictor has ended: so does this proxy.
                Poll::Ready(Err(_)) => {
                    self.backend_ended();
                    true
                }
            },
        }
    }

    /// Has the session killed. Nothing more is forwarded on it.
    pub(super) fn condemn(&mut self) {
        if !self.is_condemned() {
            self.revocation = Revocation::Condemned(self.flights.condemn());
        }
    }

    pub(super) fn is_condemned(&self) -> bool {
        matches!(self.revocation, Revocation::Condemned(_))
    }

    /// The server knows the session no more: what it has answered before is here.
    fn proven_gone(&mut self, cx: &mut Context<'_>) {
        self.flights.prove_gone();
        while self.poll_receive_backend(cx) {}
        self.backend_ended();
    }

    /// Nothing more comes from the backend.
    pub(super) fn backend_ended(&mut self) {
        if matches!(self.phase, Phase::Flushing | Phase::Over) {
            return;
        }
        self.owe_rest();
        self.flush();
    }

    /// What became of a command whose reply does not come any more.
    pub(super) fn fate(&self, kind: Kind, load: Option<&Load>) -> Refusal {
        if load.is_some_and(|load| load.end > self.sent_bytes) {
            let detail = "the backend connection was lost before the whole command was sent";
            let superseded = self.flights.superseded();
            return superseded.unwrap_or_else(|| Refusal::busy(detail, RETRY_AFTER));
        }
        let detail = "the backend connection was lost before its reply";
        if kind == Kind::Read {
            return Refusal::busy(detail, RETRY_AFTER);
        }
        let doubt = Refusal::unknown(detail);
        match self.flights.about() {
            Some((lock, token)) => doubt.for_lock(lock).with_token(token),
            None => doubt,
        }
    }
}
