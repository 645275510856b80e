//! The permits of one backend session's fenced writes, in the order in which they were forwarded.
//!
//! Commands that are forwarded under the same claims while an earlier one of them is unanswered
//! share its permits: they are counted in flight by it, and it is finished with the last of them.
//!
//! Invariants:
//! - a permit is finished when the reply of every command under it was seen, or when the session is
//!   proven gone;
//! - otherwise, also when the session's task is dropped, its write is in doubt and the session is
//!   condemned.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::control::SessionId;
use super::evict::Evictor;
use crate::gate::{Permit, Revoked, Stage};
use crate::lock_name::LockName;
use crate::protocol::Refusal;
use crate::proxy::gates::Entry;
use crate::token::Token;

/// The permits of one command: one in most cases, one per lock in the others.
#[derive(Default)]
#[must_use = "dropped permits are given back"]
pub struct Permits {
    first: Option<(Permit, Arc<Entry>)>,
    more: Vec<(Permit, Arc<Entry>)>,
}

impl Permits {
    /// Adds one for another lock.
    pub fn push(&mut self, permit: Permit, entry: Arc<Entry>) {
        match self.first {
            None => self.first = Some((permit, entry)),
            Some(_) => self.more.push((permit, entry)),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut (Permit, Arc<Entry>)> {
        self.first.iter_mut().chain(&mut self.more)
    }

    fn iter(&self) -> impl Iterator<Item = &(Permit, Arc<Entry>)> {
        self.first.iter().chain(&self.more)
    }

    fn drain(&mut self) -> impl Iterator<Item = (Permit, Arc<Entry>)> {
        self.first.take().into_iter().chain(self.more.drain(..))
    }

    /// Before a byte leaves that cannot make the command take effect.
    pub fn forward(&mut self) -> Result<(), Revoked> {
        self.iter_mut().try_for_each(|(permit, _)| permit.forward())
    }

    /// Before the last byte leaves.
    pub fn release(&mut self) -> Result<(), Revoked> {
        self.iter_mut().try_for_each(|(permit, _)| permit.release())
    }

    /// The command has ended, or none of its bytes has left.
    pub fn finish(mut self) {
        for (permit, entry) in self.drain() {
            permit.finish();
            entry.touch();
        }
    }
}

struct Flight {
    permits: Permits,
    /// Commands under it whose reply was not seen whole.
    unanswered: u32,
}

/// All that is in flight on one session.
pub struct Flights {
    session: SessionId,
    evictor: Evictor,
    flights: VecDeque<Flight>,
    /// Commands that may wait at the server.
    blocking: u32,
    /// The session has rows on disk.
    recorded: bool,
    /// The session is proven gone: nothing of it can be applied any more.
    gone: bool,
    /// It has ended with something in doubt.
    doubtful: bool,
}

/// What a forwarded command has in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// It is under permits.
    pub fenced: bool,
    /// It may wait at the server.
    pub blocking: bool,
    /// Where its last byte stands among all that is sent on the session: before it has left, the
    /// server cannot run it. `u64::MAX`: it has not come yet.
    pub end: u64,
}

impl Flights {
    /// Nothing yet.
    pub fn new(session: SessionId, evictor: Evictor) -> Flights {
        Flights {
            session,
            evictor,
            flights: VecDeque::new(),
            blocking: 0,
            recorded: false,
            gone: false,
            doubtful: false,
        }
    }

    /// The session.
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// The session has rows on disk, or is about to have some.
    pub fn note_recorded(&mut self) {
        self.recorded = true;
    }

    /// Whether another command under the one entry and token can share what is in flight: all of it
    /// is released, and nothing newer has come.
    pub fn is_shared_by(&self, entry: &Arc<Entry>, token: Token) -> bool {
        let Some(last) = self.flights.back() else {
            return false;
        };
        let Some((permit, of)) = &last.permits.first else {
            return false;
        };
        last.permits.more.is_empty()
            && Arc::ptr_eq(of, entry)
            && permit.token() == token
            && permit.stage() == Stage::Released
            && !permit.is_revoked()
    }

    /// Another command under the last permits.
    pub fn share(&mut self) {
        if let Some(last) = self.flights.back_mut() {
            last.unanswered += 1;
        }
    }

    /// A command under permits of its own.
    pub fn add(&mut self, permits: Permits) {
        self.flights.push_back(Flight {
            permits,
            unanswered: 1,
        });
    }

    /// Releases the command that was added last.
    pub fn release_last(&mut self) -> Result<(), Revoked> {
        match self.flights.back_mut() {
            Some(last) => last.permits.release(),
            None => Ok(()),
        }
    }

    /// A command that may wait at the server is on its way.
    pub fn note(&mut self, load: Load) {
        self.blocking += u32::from(load.blocking);
    }

    /// The oldest command with this load is answered.
    pub fn answered(&mut self, load: Load) {
        self.blocking -= u32::from(load.blocking);
        if !load.fenced {
            return;
        }
        let Some(first) = self.flights.front_mut() else {
            return;
        };
        first.unanswered -= 1;
        if first.unanswered == 0
            && let Some(flight) = self.flights.pop_front()
        {
            flight.permits.finish();
        }
    }

    /// Whether nothing fenced is unanswered.
    pub fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Whether a command waits at the server, for as long as it likes.
    pub fn is_blocked(&self) -> bool {
        self.blocking > 0
    }

    /// Whether a newer token or a close has come for what is in flight.
    pub fn poll_revoked(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Of one lock the oldest permit is revoked first: one look per lock is enough. The first
        // lock needs no list.
        let (mut first, mut others) = (None, vec![]);
        for flight in &mut self.flights {
            for (permit, entry) in flight.permits.iter_mut() {
                let of = Arc::as_ptr(entry);
                match first {
                    None => first = Some(of),
                    Some(first) if first == of => continue,
                    Some(_) if others.contains(&of) => continue,
                    Some(_) => others.push(of),
                }
                if permit.poll_revoked(cx).is_ready() {
                    return Poll::Ready(());
                }
            }
        }
        Poll::Pending
    }

    /// Has the session killed. What was in flight stays so until it is answered or proven dead.
    pub fn condemn(&self) -> tokio::sync::oneshot::Receiver<()> {
        self.evictor.end(self.session.clone())
    }

    /// Whether nothing of it can be applied any more, as far as is known here.
    pub fn is_over(&self) -> bool {
        self.flights.is_empty() && !self.doubtful
    }

    /// The session is proven gone: what is unanswered at its end is finished all the same.
    pub fn prove_gone(&mut self) {
        self.gone = true;
    }

    /// The session is over. What is unanswered is finished where it is proven gone; elsewhere it is
    /// in doubt, and the session is condemned.
    pub fn lose(&mut self) {
        let mut doubts = vec![];
        for mut flight in self.flights.drain(..) {
            if self.gone {
                flight.permits.finish();
                continue;
            }
            for (permit, entry) in flight.permits.drain() {
                let (token, stage) = (permit.token().get(), permit.stage());
                // The gate counts the doubt from here on.
                drop(permit);
                if stage != Stage::Admitted {
                    let all = entry.doubts().clone();
                    doubts.push(all.until_proven(entry, token));
                }
            }
        }
        let recorded = std::mem::take(&mut self.recorded);
        self.doubtful |= !doubts.is_empty();
        if !doubts.is_empty() {
            self.evictor.condemn(self.session.clone(), doubts, recorded);
        } else if recorded {
            self.evictor.forget(&self.session);
        }
    }

    /// What is told about a command that a newer token has stopped before it left: nothing of it
    /// was applied.
    pub fn superseded(&self) -> Option<Refusal> {
        let newest_first = self.flights.iter().rev();
        let mut permits = newest_first.flat_map(|flight| flight.permits.iter());
        let (permit, entry) = permits.find(|(permit, _)| permit.is_revoked())?;
        let gate = entry.gate();
        let watermark = Token::new(gate.status().watermark);
        Some(Refusal::stale(
            gate.lock().clone(),
            permit.token(),
            watermark,
        ))
    }

    /// The first lock and token in flight.
    pub fn about(&self) -> Option<(LockName, Token)> {
        let (permit, entry) = self.flights.front()?.permits.iter().next()?;
        Some((entry.gate().lock().clone(), permit.token()))
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        self.lose();
    }
}
