//! The permits of one backend session's transactions.
//!
//! A transaction holds one permit for each token that it carries, from its first statement to the
//! answer that ends it (ReadyForQuery; the error of a pipeline without a block): each permit knows
//! the span that it is for, and goes with it. A later span under the same token takes the permit
//! over.
//!
//! Invariants:
//! - a permit is finished when its span is known to have ended with no transaction open, or when
//!   the session is proven gone;
//! - otherwise, also when the session's task is dropped, its writes are in doubt and the session is
//!   condemned;
//! - there is at most one permit for a lock and token, whatever the length of a transaction.

use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::control::SessionId;
use super::evict::Evictor;
use super::sessions::Sessions;
use crate::gate::{Permit, Revoked, Stage};
use crate::lock_name::LockName;
use crate::protocol::Refusal;
use crate::protocol::postgres::session::SpanId;
use crate::proxy::gates::{Claim, Entry};
use crate::token::Token;

struct Flight {
    permit: Permit,
    entry: Arc<Entry>,
    /// It lasts until this span has ended.
    span: SpanId,
}

/// All that is in flight on one session.
pub(super) struct Flights {
    sessions: Sessions,
    evictor: Evictor,
    /// The session, once it is vouched for: without it there are no permits.
    session: Option<SessionId>,
    flights: Vec<Flight>,
    /// The session has rows on disk.
    recorded: bool,
    /// The session is proven gone: nothing of it can be applied any more.
    gone: bool,
}

impl Flights {
    /// Nothing yet.
    pub(super) fn new(sessions: Sessions, evictor: Evictor) -> Flights {
        Flights {
            sessions,
            evictor,
            session: None,
            flights: vec![],
            recorded: false,
            gone: false,
        }
    }

    /// The session, where it is vouched for.
    pub(super) fn session(&self) -> Option<&SessionId> {
        self.session.as_ref()
    }

    /// The session is vouched for, and has rows on disk or is about to have some.
    pub(super) fn note_session(&mut self, session: SessionId) {
        self.session = Some(session);
    }

    /// The session has rows on disk, or is about to have some.
    pub(super) fn note_recorded(&mut self) {
        self.recorded = true;
    }

    /// Whether nothing is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Has a permit that is there last for this span too. `false`: there is none for the token.
    pub(super) fn extend(&mut self, entry: &Arc<Entry>, token: Token, span: SpanId) -> bool {
        let found = self.flights.iter_mut().find(|flight| {
            Arc::ptr_eq(&flight.entry, entry)
                && flight.permit.token() == token
                && !flight.permit.is_revoked()
        });
        match found {
            Some(flight) => {
                flight.span = flight.span.max(span);
                true
            }
            None => false,
        }
    }

    /// Whether there is a permit for every one of these that nothing newer has come for.
    pub(super) fn cover(&self, claims: &[Claim]) -> bool {
        let covered = |claim: &Claim| {
            self.flights.iter().any(|flight| {
                flight.permit.token() == claim.token
                    && *flight.entry.gate().lock() == claim.lock
                    && !flight.permit.is_revoked()
            })
        };
        claims.iter().all(covered)
    }

    /// What the open transaction has carried. `unsigned`: its tokens are bare.
    pub(super) fn claims(&self, unsigned: bool) -> impl Iterator<Item = Claim> {
        self.flights.iter().map(move |flight| Claim {
            lock: flight.entry.gate().lock().clone(),
            token: flight.permit.token(),
            unsigned,
        })
    }

    /// A permit for this span, of which no byte has left.
    pub(super) fn add(&mut self, permit: Permit, entry: Arc<Entry>, span: SpanId) {
        self.flights.push(Flight {
            permit,
            entry,
            span,
        });
    }

    /// Before bytes leave that cannot make a transaction take effect.
    pub(super) fn forward(&mut self) -> Result<(), Revoked> {
        self.flights
            .iter_mut()
            .try_for_each(|flight| flight.permit.forward())
    }

    /// Before bytes leave that can.
    pub(super) fn release(&mut self) -> Result<(), Revoked> {
        self.flights
            .iter_mut()
            .try_for_each(|flight| flight.permit.release())
    }

    /// Gives back those of which no byte has left.
    pub(super) fn give_back(&mut self) {
        self.flights
            .retain(|flight| flight.permit.stage() != Stage::Admitted);
    }

    /// No transaction is open after this span.
    pub(super) fn ended(&mut self, span: SpanId) {
        for flight in self.flights.extract_if(.., |flight| flight.span <= span) {
            flight.permit.finish();
            flight.entry.touch();
        }
    }

    /// Whether a newer token or a close has come for something in flight.
    pub(super) fn is_revoked(&self) -> bool {
        let mut flights = self.flights.iter();
        flights.any(|flight| flight.permit.is_revoked())
    }

    /// The refusal of what a newer token or a close has come for; `None`: for nothing.
    pub(super) fn revoked(&self) -> Option<Refusal> {
        let mut flights = self.flights.iter();
        let flight = flights.find(|flight| flight.permit.is_revoked())?;
        let gate = flight.entry.gate();
        let watermark = Token::new(gate.status().watermark);
        let token = flight.permit.token();
        Some(Refusal::stale(gate.lock().clone(), token, watermark))
    }

    /// Ready when a newer token or a close has come for something in flight.
    pub(super) fn poll_revoked(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for flight in &mut self.flights {
            if flight.permit.poll_revoked(cx).is_ready() {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Whether something in flight may have taken effect.
    pub(super) fn is_released(&self) -> bool {
        let mut flights = self.flights.iter();
        flights.any(|flight| flight.permit.stage() == Stage::Released)
    }

    /// Whether something in flight lasts to the end of this span.
    pub(super) fn last_for(&self, span: SpanId) -> bool {
        self.flights.iter().any(|flight| flight.span >= span)
    }

    /// The first lock and token in flight.
    pub(super) fn about(&self) -> Option<(LockName, Token)> {
        let flight = self.flights.first()?;
        let lock = flight.entry.gate().lock().clone();
        Some((lock, flight.permit.token()))
    }

    /// Has the session ended at the server. What is in flight stays so until that is proven.
    pub(super) fn condemn(&self) -> Option<oneshot::Receiver<()>> {
        let session = self.session.clone()?;
        Some(self.evictor.end(session))
    }

    /// The session is proven gone: what is in flight at its end is finished.
    pub(super) fn prove_gone(&mut self) {
        self.gone = true;
    }

    /// The session is over. What is in flight is finished where it is proven gone; elsewhere it is
    /// in doubt, and the session is condemned.
    pub(super) fn lose(&mut self) {
        let mut doubts = vec![];
        for flight in self.flights.drain(..) {
            let Flight { permit, entry, .. } = flight;
            if self.gone {
                permit.finish();
                entry.touch();
                continue;
            }
            let (token, stage) = (permit.token().get(), permit.stage());
            // The gate counts the doubt from here on.
            drop(permit);
            if stage != Stage::Admitted {
                let all = entry.doubts().clone();
                doubts.push(all.until_proven(entry, token));
            }
        }
        let recorded = std::mem::take(&mut self.recorded);
        let Some(session) = &self.session else {
            return;
        };
        if !doubts.is_empty() {
            self.evictor.condemn(session.clone(), doubts, recorded);
        } else if recorded {
            self.sessions.forget(session);
        }
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        self.lose();
    }
}
