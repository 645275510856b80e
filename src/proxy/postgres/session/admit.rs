//! May the message at hand be forwarded? At once where its tokens are settled and its session is
//! recorded; otherwise it waits, and is considered again afterwards.
//!
//! Every ticket that a transaction carries is presented with its first statement, on a read as on a
//! write: it raises, and one that is stale refuses the statement.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::effects::Recorded;
use super::genuine::{self, Look};
use super::settle::{self, Settled, Standing, Wanted};
use super::weigh::Needs;
use super::{RETRY_AFTER, Session, Waiting};
use crate::gate::Revoked;
use crate::lock_name::LockName;
use crate::protocol::Refusal;
use crate::protocol::postgres::resolve::{Catalog, ForeignTables};
use crate::protocol::postgres::session::SpanId;
use crate::protocol::postgres::ticket::Tickets;
use crate::proxy::gates::Claim;
use crate::proxy::postgres::prepared::Known;

/// Most times that a message is settled anew before it is told busy.
const ROUNDS_MAX: usize = 64;

/// What the message at hand waits for, and what has come of it.
#[derive(Default)]
pub(super) struct Admission {
    verifying: Option<(Tickets, Waiting<()>)>,
    loading: Option<Waiting<Arc<Catalog>>>,
    /// It does without that catalog, where none is to be had soon.
    spares: bool,
    asking_foreign: Option<Waiting<ForeignTables>>,
    settling: Option<Waiting<(Vec<Settled>, Standing)>>,
    recording: Option<oneshot::Receiver<Result<Recorded, Refusal>>>,
    looking: Option<(Box<str>, Waiting<Option<Known>>)>,
    /// The client has cancelled it, and the server is told so.
    cancelling: Option<oneshot::Receiver<()>>,
    cancelled: bool,
    /// A catalog that was loaded for this message.
    pub(super) catalog: Option<Arc<Catalog>>,
    /// None was to be had soon enough for this message, which does without.
    pub(super) without_catalog: bool,
    /// Whether the database has tables of other servers, asked for this message.
    pub(super) foreign: Option<ForeignTables>,
    /// It was loaded again for a name that was not in it.
    pub(super) reloaded: bool,
    /// Nothing of the session was on its way when that began.
    pub(super) was_quiet: bool,
    /// Names that this message prepares transactions under, on disk.
    pub(super) recorded: Vec<Recorded>,
    /// What all proxies know to be prepared under names that this message ends.
    pub(super) looked: Vec<(Box<str>, Option<Known>)>,
    /// Tickets that were found not to be genuine, after keys were asked for.
    unverified: Option<(Tickets, Refusal)>,
    refused: Option<Refusal>,
    rounds: usize,
}

impl Admission {
    pub(super) fn is_waiting(&self) -> bool {
        self.verifying.is_some()
            || self.loading.is_some()
            || self.asking_foreign.is_some()
            || self.settling.is_some()
            || self.recording.is_some()
            || self.looking.is_some()
            || self.cancelling.is_some()
    }

    /// The client cancels what waits here, if anything does: it is considered again when `carried`
    /// has ended.
    pub(super) fn cancel(&mut self, carried: oneshot::Receiver<()>) {
        if self.is_waiting() {
            *self = Admission {
                cancelling: Some(carried),
                ..Admission::default()
            };
        }
    }

    pub(super) fn take_cancelled(&mut self) -> bool {
        std::mem::take(&mut self.cancelled)
    }

    /// The message at hand was dealt with, or nobody waits for it any more.
    pub(super) fn forget(&mut self) {
        let used = self.catalog.is_some()
            || self.without_catalog
            || self.foreign.is_some()
            || self.rounds > 0
            || self.refused.is_some()
            || self.unverified.is_some()
            || !self.recorded.is_empty()
            || !self.looked.is_empty()
            || self.cancelled
            || self.is_waiting();
        if used {
            *self = Admission::default();
        }
    }

    pub(super) fn take_refused(&mut self) -> Option<Refusal> {
        self.refused.take()
    }

    fn refuse<T>(&mut self, outcome: Result<T, Refusal>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(refusal) => {
                self.refused = Some(refusal);
                None
            }
        }
    }
}

/// The gate's answer.
pub(super) enum Admitted {
    /// It is not known yet.
    Later,
    Passed,
    Refused(Refusal),
}

/// Why permits are not to be had at once.
enum NotAtOnce {
    /// Something is to be settled first.
    Unsettled,
    /// A newer token has come for what the transaction carries.
    Revoked,
}

impl Session {
    /// Goes on with what the message at hand waits for.
    pub(super) fn poll_admission(&mut self, cx: &mut Context<'_>) -> bool {
        let admission = &mut self.admission;
        if let Some(carried) = &mut admission.cancelling {
            let Poll::Ready(_) = Pin::new(carried).poll(cx) else {
                return false;
            };
            admission.cancelling = None;
            admission.cancelled = true;
            return true;
        }
        if let Some((texts, verifying)) = &mut admission.verifying {
            let Poll::Ready(outcome) = verifying.as_mut().poll(cx) else {
                return false;
            };
            let texts = std::mem::take(texts);
            admission.verifying = None;
            admission.unverified = outcome.err().map(|refusal| (texts, refusal));
            return true;
        }
        if let Some(loading) = &mut admission.loading {
            let Poll::Ready(outcome) = loading.as_mut().poll(cx) else {
                return false;
            };
            admission.loading = None;
            match (outcome, std::mem::take(&mut admission.spares)) {
                (Err(_), true) => admission.without_catalog = true,
                (outcome, _) => admission.catalog = admission.refuse(outcome),
            }
            return true;
        }
        if let Some(asking) = &mut admission.asking_foreign {
            let Poll::Ready(outcome) = asking.as_mut().poll(cx) else {
                return false;
            };
            admission.asking_foreign = None;
            admission.foreign = admission.refuse(outcome);
            return true;
        }
        if let Some(recording) = &mut admission.recording {
            let Poll::Ready(outcome) = Pin::new(recording).poll(cx) else {
                return false;
            };
            admission.recording = None;
            let ended = |_| Err(Refusal::busy("the proxy is shutting down", RETRY_AFTER));
            let recorded = admission.refuse(outcome.unwrap_or_else(ended));
            admission.recorded.extend(recorded);
            return true;
        }
        if let Some((gid, looking)) = &mut admission.looking {
            let Poll::Ready(outcome) = looking.as_mut().poll(cx) else {
                return false;
            };
            let gid = std::mem::take(gid);
            admission.looking = None;
            if let Some(known) = admission.refuse(outcome) {
                admission.looked.push((gid, known));
            }
            return true;
        }
        let Some(settling) = &mut admission.settling else {
            return false;
        };
        let Poll::Ready(outcome) = settling.as_mut().poll(cx) else {
            return false;
        };
        admission.settling = None;
        if let Some((settled, standing)) = admission.refuse(outcome) {
            self.keep(settled, standing);
        }
        true
    }

    /// Stops what waits, where the client has asked for that.
    pub(super) fn poll_cancelled(&mut self, cx: &mut Context<'_>) {
        let Some(key) = &mut self.key else {
            return;
        };
        while let Some(request) = key.poll_request(cx) {
            self.admission.cancel(request.carried);
            let _ = request.noted.send(());
        }
    }

    /// Has keys asked for that verify these tickets.
    pub(super) fn begin_verifying(&mut self, texts: Tickets) {
        let verifying = genuine::verify(Arc::clone(&self.listener), texts.clone());
        self.admission.verifying = Some((texts, Box::pin(verifying)));
    }

    /// Whether these tickets are genuine.
    pub(super) fn look(&mut self, texts: &Tickets) -> Look {
        match &self.admission.unverified {
            Some((of, refusal)) if of == texts => Look::Refused(refusal.clone()),
            _ => self.sets.look(&self.listener, texts),
        }
    }

    /// Has a catalog loaded: a newer one than `seen`, in which a name is missing.
    pub(super) fn begin_loading(&mut self, seen: Option<Arc<Catalog>>) {
        self.admission.reloaded |= seen.is_some();
        self.admission.was_quiet = self.core.is_quiet();
        let loading = settle::load(Arc::clone(&self.database), seen);
        self.admission.loading = Some(Box::pin(loading));
    }

    /// The same where the message passes without, too, and its session is not trusted then.
    pub(super) fn begin_loading_soon(&mut self, seen: Option<Arc<Catalog>>) {
        self.admission.reloaded |= seen.is_some();
        self.admission.was_quiet = self.core.is_quiet();
        self.admission.spares = true;
        let loading = settle::load_soon(Arc::clone(&self.database), seen);
        self.admission.loading = Some(Box::pin(loading));
    }

    /// Has the server asked whether the database has tables of other servers.
    pub(super) fn begin_asking_foreign(&mut self) {
        let asking = settle::ask_foreign(Arc::clone(&self.database));
        self.admission.asking_foreign = Some(Box::pin(asking));
    }

    /// Has a name put on disk under which a transaction is to be prepared.
    pub(super) fn begin_recording(&mut self, gid: &str, claims: Arc<[Claim]>) {
        let (prepared, gid) = (self.listener.prepared.clone(), gid.to_owned());
        let session = self.flights.session().cloned();
        let (told, recording) = oneshot::channel();
        // Apart, so that a client that goes away leaves no row that nobody takes back.
        self.listener.control.spawn(async move {
            let recorded = prepared.record(&gid, &claims, session.as_ref()).await;
            let recorded = recorded.map(|used| Recorded::new(prepared, gid.into(), used));
            let _ = told.send(recorded);
        });
        self.admission.recording = Some(recording);
    }

    /// Has the server asked what all proxies know of a name.
    pub(super) fn begin_looking(&mut self, gid: &str) {
        let (prepared, name) = (self.listener.prepared.clone(), gid.to_owned());
        let looking = async move { prepared.ask(&name).await };
        self.admission.looking = Some((gid.into(), Box::pin(looking)));
    }

    /// May it pass?
    pub(super) fn admit(&mut self, needs: &Needs) -> Admitted {
        if let Standing::Unfit(refusal) = &self.standing
            && needs.writes
            && !needs.claims.is_empty()
        {
            return Admitted::Refused(refusal.clone());
        }
        // What was given back must be asked for anew, though its text is the same.
        let asks = needs.asks || !self.flights.cover(&needs.claims);
        let passed = match asks {
            true => self.pass(&needs.claims, needs.span, needs.may_commit),
            false => self.step(needs.may_commit),
        };
        match passed {
            Ok(()) => Admitted::Passed,
            Err(NotAtOnce::Unsettled) => self.settle(Arc::clone(&needs.claims)),
            Err(NotAtOnce::Revoked) => Admitted::Refused(self.revoked_now()),
        }
    }

    /// Takes a permit for every claim, or none.
    fn pass(&mut self, claims: &[Claim], span: SpanId, may_commit: bool) -> Result<(), NotAtOnce> {
        if claims.is_empty() {
            return self.step(may_commit);
        }
        if let Standing::Unfit(_) = self.standing {
            // It writes nothing under them; they are presented all the same.
            return match self.are_settled(claims) {
                true => Ok(()),
                false => Err(NotAtOnce::Unsettled),
            };
        }
        if self.flights.session().is_none() {
            return Err(NotAtOnce::Unsettled);
        }
        for claim in claims {
            if !self.slots.is_recorded(&claim.lock) || !self.take_permit(claim, span) {
                self.flights.give_back();
                return Err(NotAtOnce::Unsettled);
            }
        }
        self.step(may_commit)
    }

    /// Whether all of these pass at this instant.
    pub(super) fn are_settled(&mut self, claims: &[Claim]) -> bool {
        let mut all = claims.iter();
        all.all(|claim| self.slots.find(claim).is_some_and(|slot| slot.passes()))
    }

    fn take_permit(&mut self, claim: &Claim, span: SpanId) -> bool {
        let Some(slot) = self.slots.find(claim) else {
            return false;
        };
        if self.flights.extend(slot.entry(), claim.token, span) {
            return true;
        }
        let entry = Arc::clone(slot.entry());
        match slot.permit() {
            Ok(permit) => {
                self.flights.add(permit, entry, span);
                true
            }
            Err(_) => false,
        }
    }

    /// Moves the transaction's permits on, before a byte leaves.
    fn step(&mut self, may_commit: bool) -> Result<(), NotAtOnce> {
        let stepped = match may_commit {
            true => self.flights.release(),
            false => self.flights.forward(),
        };
        match stepped {
            Ok(()) => Ok(()),
            Err(Revoked) => {
                self.flights.give_back();
                // Those that are left have carried something already.
                match self.flights.revoked() {
                    Some(_) => Err(NotAtOnce::Revoked),
                    None => Err(NotAtOnce::Unsettled),
                }
            }
        }
    }

    /// Has the claims settled, and the session recorded for them.
    pub(super) fn settle(&mut self, claims: Arc<[Claim]>) -> Admitted {
        self.admission.rounds += 1;
        if self.admission.rounds > ROUNDS_MAX {
            let detail = "newer tokens keep coming for these locks";
            return Admitted::Refused(Refusal::busy(detail, RETRY_AFTER));
        }
        let unrecorded: Vec<LockName> = claims
            .iter()
            .filter(|claim| !self.slots.is_recorded(&claim.lock))
            .map(|claim| claim.lock.clone())
            .collect();
        if !unrecorded.is_empty() {
            self.flights.note_recorded();
        }
        let wanted = Wanted {
            claims,
            standing: self.standing.clone(),
            unrecorded,
        };
        let listener = Arc::clone(&self.listener);
        let settling = settle::settle_all(listener, self.identity.clone(), wanted);
        self.admission.settling = Some(Box::pin(settling));
        Admitted::Later
    }

    /// The refusal of a transaction under an older token.
    pub(super) fn revoked_now(&mut self) -> Refusal {
        let refusal = self.flights.revoked();
        refusal.unwrap_or_else(|| Refusal::busy("the lock is being sealed", RETRY_AFTER))
    }
}
