//! A newer token has come while commands of this session are in flight.
//!
//! Short replies are awaited for the listener's `revoke_patience`. A command that waits at the
//! server, or that is not answered in that time, ends with its session: `CLIENT KILL ID`. What the
//! client gets then: its connection's unanswered commands as `-FENCEDOUBT`, in order, and the end
//! of the connection, as Redis ends the one of a killed client.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::{Phase, Session};
use crate::protocol::Refusal;
use crate::protocol::redis::refusal_reply;

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
        let doubt = Refusal::unknown("the backend connection was lost before its reply");
        let doubt = match self.flights.about() {
            Some((lock, token)) => doubt.for_lock(lock).with_token(token),
            None => doubt,
        };
        self.owe_rest(&refusal_reply(&doubt));
        self.flush();
    }
}
