//! One backend connection and what is in flight on it, whoever sends its commands: one client, or
//! all that share it.
//!
//! A newer token may come while commands are in flight. Short replies are awaited for the
//! listener's `revoke_patience`. A command that waits at the server, or that is not answered in
//! that time, ends with its session: `CLIENT KILL ID`.
//!
//! Invariants:
//! - a command is under permits of settled claims whose locks have this session on disk, or under
//!   none;
//! - nothing more is forwarded on a session that is condemned.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::RedisListening;
use super::control::SessionId;
use super::flights::{Flights, Load, Permits};
use super::settle::{RETRY_AFTER, Settled, settle_all};
use crate::lock_name::LockName;
use crate::protocol::{Kind, Refusal};
use crate::proxy::gates::Claim;
use crate::proxy::polled::{Received, Sent, poll_receive, poll_send};
use crate::proxy::slots::Slots;

/// How a command passes.
pub(super) enum Passage {
    /// It needs no permit.
    Free,
    /// Under these.
    Permits(Permits),
    /// Under the last ones in flight.
    Shared,
}

impl Passage {
    /// The command is not forwarded after all. Not for [`Passage::Shared`], which holds nothing.
    pub(super) fn give_back(self) {
        if let Passage::Permits(permits) = self {
            permits.finish();
        }
    }
}

/// Whether a command's last byte is at hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extent {
    Whole,
    Beginning,
}

/// How far a revocation is.
enum Revocation {
    /// Nothing in flight is revoked.
    None,
    /// Replies are awaited until then.
    Patient(Pin<Box<Sleep>>),
    /// The session is being killed.
    Condemned(oneshot::Receiver<()>),
}

/// What has come of a revocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Revoked {
    Nothing,
    /// The other stages must look.
    Moved,
    /// The server knows the session no more: what it has answered before is here.
    Gone,
    /// It will not be told: this proxy is ending.
    Unknown,
}

pub(super) struct Link {
    listening: Arc<RedisListening>,
    stream: TcpStream,
    pub(super) to_backend: BytesMut,
    pub(super) from_backend: BytesMut,
    pub(super) slots: Slots,
    pub(super) flights: Flights,
    revocation: Revocation,
    /// Bytes that the socket has taken.
    sent_bytes: u64,
}

impl Link {
    pub(super) fn new(
        listening: Arc<RedisListening>,
        stream: TcpStream,
        session: SessionId,
    ) -> Link {
        Link {
            stream,
            to_backend: BytesMut::new(),
            from_backend: BytesMut::new(),
            slots: Slots::default(),
            flights: Flights::new(session, listening.evictor.clone()),
            revocation: Revocation::None,
            sent_bytes: 0,
            listening,
        }
    }

    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> bool {
        match poll_send(&mut self.stream, &mut self.to_backend, cx) {
            Sent::Nothing => false,
            Sent::Some(bytes) => {
                self.sent_bytes += bytes;
                true
            }
            // What it has sent before is still read: reading tells the end.
            Sent::Failed => {
                self.to_backend.clear();
                false
            }
        }
    }

    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Received {
        poll_receive(&mut self.stream, &mut self.from_backend, cx)
    }

    /// Bytes that are sent on the session, or wait to be.
    pub(super) fn queued_bytes(&self) -> u64 {
        self.sent_bytes + self.to_backend.len() as u64
    }

    /// Whether a command passes at once, and how.
    pub(super) fn pass(&mut self, kind: Kind, claims: &[Claim], extent: Extent) -> Option<Passage> {
        if kind == Kind::Read {
            let mut all = claims.iter();
            let settled = |claim| self.slots.find(claim).is_some_and(|slot| slot.passes());
            return all.all(settled).then_some(Passage::Free);
        }
        if let ([claim], Extent::Whole) = (claims, extent) {
            let slot = self.slots.find(claim)?;
            if slot.is_recorded() && self.flights.is_shared_by(slot.entry(), claim.token) {
                return Some(Passage::Shared);
            }
        }
        let mut permits = Permits::default();
        for claim in claims {
            let slot = self.slots.find(claim).filter(|slot| slot.is_recorded())?;
            permits.push(slot.permit().ok()?, slot.entry().clone());
        }
        let stepped = match extent {
            Extent::Whole => permits.release(),
            Extent::Beginning => permits.forward(),
        };
        if stepped.is_err() {
            // No byte has left.
            permits.finish();
            return None;
        }
        Some(Passage::Permits(permits))
    }

    /// Counts what is under permits. Whether it is.
    pub(super) fn board(&mut self, passage: Passage) -> bool {
        match passage {
            Passage::Free => return false,
            Passage::Permits(permits) => self.flights.add(permits),
            Passage::Shared => self.flights.share(),
        }
        true
    }

    /// Settles claims for commands of this kind on this session; what comes of it is to be kept.
    pub(super) fn settling(
        &mut self,
        kind: Kind,
        claims: Arc<[Claim]>,
    ) -> impl Future<Output = Result<Vec<Settled>, Refusal>> + Send + use<> {
        let unrecorded: Vec<LockName> = claims
            .iter()
            .filter(|claim| kind == Kind::Write && !self.slots.is_recorded(&claim.lock))
            .map(|claim| claim.lock.clone())
            .collect();
        if !unrecorded.is_empty() {
            self.flights.note_recorded();
        }
        let session = self.flights.session().clone();
        settle_all(Arc::clone(&self.listening), session, claims, unrecorded)
    }

    pub(super) fn keep(&mut self, settled: Vec<Settled>) {
        for Settled {
            claim,
            entry,
            recorded,
        } in settled
        {
            self.slots.keep(claim, entry, recorded);
        }
    }

    /// Goes on with the revocation of what is in flight.
    pub(super) fn poll_revocation(&mut self, cx: &mut Context<'_>) -> Revoked {
        match &mut self.revocation {
            Revocation::None => {
                if self.flights.is_empty() || self.flights.poll_revoked(cx).is_pending() {
                    return Revoked::Nothing;
                }
                let patience = match self.flights.is_blocked() {
                    true => Duration::ZERO,
                    false => self.listening.config.revoke_patience,
                };
                self.revocation = Revocation::Patient(Box::pin(tokio::time::sleep(patience)));
                Revoked::Moved
            }
            Revocation::Patient(sleep) => {
                if self.flights.poll_revoked(cx).is_pending() {
                    self.revocation = Revocation::None;
                    return Revoked::Moved;
                }
                if sleep.as_mut().poll(cx).is_pending() && !self.flights.is_blocked() {
                    return Revoked::Nothing;
                }
                self.condemn();
                Revoked::Moved
            }
            Revocation::Condemned(gone) => match Pin::new(gone).poll(cx) {
                Poll::Pending => Revoked::Nothing,
                Poll::Ready(Ok(())) => {
                    self.flights.prove_gone();
                    Revoked::Gone
                }
                Poll::Ready(Err(_)) => Revoked::Unknown,
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

    /// What became of a command whose reply does not come any more. One whose last byte had not
    /// left is not in doubt.
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

impl Drop for Link {
    fn drop(&mut self) {
        // A session that may still be applied stays listed: the next raise ends it.
        if let Some(keys) = &self.listening.fence_keys
            && self.flights.is_over()
        {
            keys.release(self.slots.take_held(), self.flights.session());
        }
    }
}
