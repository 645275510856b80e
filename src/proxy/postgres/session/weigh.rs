//! What a message needs: its tickets, genuine; the locks that rules ask for; and what its end will
//! bring about.

use std::sync::Arc;

use super::effects::Ending;
use super::genuine::Look;
use super::observed::{defines_by_text, unseen_ending};
use super::resolved::{
    GUESSED, MADE_MAX, defines, drops, follow_created, makes_type, names_existing, shifts,
};
use super::{Session, admit::Admitted};
use crate::config::{Mode, Trust};
use crate::lock_name::LockName;
use crate::protocol::Refusal;
use crate::protocol::postgres::classify::{Class, Effect, TransactionControl};
use crate::protocol::postgres::resolve::{Required, follow_made, redefines};
use crate::protocol::postgres::session::{Considered, Run, SpanId};
use crate::protocol::postgres::ticket::Tickets;
use crate::proxy::gates::Claim;
use crate::proxy::postgres::prepared::Known;

/// What becomes of a message.
pub(super) enum Weighed {
    /// It is not known yet.
    Later,
    /// Something of the proxy's own goes before it, with a span of its own: it is to be considered
    /// behind that.
    Again,
    Refused(Refusal),
    Passed(Ending),
}

/// What the gate is asked for.
pub(super) struct Needs {
    /// Every ticket of its runs: sorted by lock.
    pub(super) claims: Arc<[Claim]>,
    /// A rule covers what it writes.
    pub(super) writes: bool,
    pub(super) asks: bool,
    pub(super) span: SpanId,
    pub(super) may_commit: bool,
}

/// Why what a message needs is not told.
pub(super) enum Untold {
    Later,
    /// Observing, nothing is waited for.
    Unobserved,
    Refused(Refusal),
}

impl From<Refusal> for Untold {
    fn from(refusal: Refusal) -> Untold {
        Untold::Refused(refusal)
    }
}

impl Session {
    /// Decides on a message, as far as that can be done now. Passed: its permits are taken.
    pub(super) fn weigh(&mut self, considered: &Arc<Considered>) -> Weighed {
        let enforces = self.listener.config.mode == Mode::Enforce;
        if considered.rolled_back && !considered.only_rolls_back() {
            return Weighed::Refused(self.lost_refusal());
        }
        if !considered.presents.iter().all(Tickets::is_empty)
            && let Some(weighed) = self.present_early(considered)
        {
            return weighed;
        }
        let runs = match considered.runs.is_empty() {
            false => &considered.runs,
            true => match self.analyses_that_act(considered) {
                Ok(analyses) => analyses,
                Err(untold) => return self.untold(untold, considered),
            },
        };
        if runs.is_empty() || !considered.runs.is_empty() && considered.only_rolls_back() {
            return Weighed::Passed(Ending::default());
        }
        if let Some(refusal) = self.admission.take_refused() {
            return self.refused(refusal, considered);
        }
        if let Some(refusal) = self.flights.revoked() {
            return Weighed::Refused(refusal);
        }
        if let Err(refusal) = self.check_held(considered) {
            return Weighed::Refused(refusal);
        }
        let (needs, ending) = match self.needs_again(considered, runs) {
            Ok(told) => told,
            Err(untold) => return self.untold(untold, considered),
        };
        if !enforces {
            self.observe(considered, &needs);
            return Weighed::Passed(ending);
        }
        let has_tickets = !needs.claims.is_empty();
        if let Some(weighed) = self.hold_or_let_go(considered, has_tickets) {
            return weighed;
        }
        match self.admit(&needs) {
            Admitted::Later => Weighed::Later,
            Admitted::Refused(refusal) => Weighed::Refused(refusal),
            Admitted::Passed => Weighed::Passed(ending),
        }
    }

    /// What it reads is fixed before its statement comes: the seal goes before that.
    fn present_early(&mut self, considered: &Considered) -> Option<Weighed> {
        if let Some(refusal) = self.admission.take_refused() {
            return Some(self.refused(refusal, considered));
        }
        // Observing, the statement will tell.
        if self.listener.config.mode == Mode::Observe {
            return None;
        }
        let [tickets, comment] = &considered.presents;
        match self.claims_by(tickets, comment) {
            Ok(claims) if self.are_settled(&claims) => None,
            Ok(claims) => Some(self.settle_first(claims)),
            Err(Untold::Refused(refusal)) => Some(Weighed::Refused(refusal)),
            Err(Untold::Later | Untold::Unobserved) => Some(Weighed::Later),
        }
    }

    /// The statements that a message looks at, where that may run something.
    fn analyses_that_act<'c>(&mut self, considered: &'c Considered) -> Result<&'c [Run], Untold> {
        let none = || Ok(&considered.analyses[..0]);
        if considered.analyses.is_empty() || self.listener.config.mode == Mode::Observe {
            return none();
        }
        let holds = considered
            .analyses
            .iter()
            .any(|run| !run.tickets.is_empty());
        match self.known_catalog() {
            Some(catalog) if !catalog.reading_values_acts() && !self.effects.redefined() => none(),
            // Whoever holds enough need not wait for it.
            None if !holds => {
                self.begin_loading(None);
                Err(Untold::Later)
            }
            _ => Ok(&considered.analyses),
        }
    }

    fn untold(&mut self, untold: Untold, considered: &Considered) -> Weighed {
        match untold {
            Untold::Later => Weighed::Later,
            Untold::Unobserved => Weighed::Passed(unseen_ending(considered, defines_by_text)),
            Untold::Refused(refusal) => self.present_first(refusal, considered),
        }
    }

    /// Whatever else is wrong with a message, its tickets are presented first: who is late learns
    /// that before anything else.
    fn present_first(&mut self, refusal: Refusal, considered: &Considered) -> Weighed {
        if self.listener.config.mode == Mode::Observe {
            return self.refused(refusal, considered);
        }
        let mut claims: Arc<[Claim]> = [].into();
        for run in considered.runs.iter().chain(&considered.analyses) {
            for texts in [&run.tickets, &run.comment] {
                if !texts.is_empty()
                    && let Look::Genuine(of_run) = self.look(texts)
                {
                    join(&mut claims, of_run);
                }
            }
        }
        match self.are_settled(&claims) {
            true => Weighed::Refused(refusal),
            false => self.settle_first(claims),
        }
    }

    fn settle_first(&mut self, claims: Arc<[Claim]>) -> Weighed {
        match self.settle(claims) {
            Admitted::Refused(refusal) => Weighed::Refused(refusal),
            Admitted::Later | Admitted::Passed => Weighed::Later,
        }
    }

    pub(super) fn needs(
        &mut self,
        considered: &Considered,
        runs: &[Run],
    ) -> Result<(Needs, Ending), Untold> {
        let mut ending = Ending::default();
        let mut claims: Arc<[Claim]> = [].into();
        let mut writes = false;
        ending.made.clone_from(&self.made);
        ending.created.clone_from(&self.created);
        for run in runs {
            if self.cursors.are_read_by(&run.statement) {
                ending.distrust();
            }
            let mut needed = self.locks_of(run, &mut ending)?;
            if self.reads_what_came_to_act(&run.statement)? {
                ending.distrust();
                ending.because = Some("a cursor reads by what has come to act");
                needed = self.locks_of_anything(run)?;
            }
            if self.holds_what_changed(run, &mut ending) {
                // It is read at the transaction's end.
                ending.distrust();
                ending.because = Some("what a cursor of its transaction does is not known");
                needed = self.locks_of_anything(run)?;
            }
            let of_run = self.claims_of(run)?;
            if let Some(lock) = missing(&needed, &of_run) {
                return Err(Refusal::missing(lock.clone())
                    .because(ending.because)
                    .into());
            }
            writes |= !needed.is_empty();
            join(&mut claims, of_run);
            self.note_prepare(run, &claims, &mut ending)?;
            ending.later = true;
        }
        let needs = Needs {
            claims,
            writes,
            asks: considered.asks,
            span: self.core.span(),
            may_commit: considered.may_commit,
        };
        match considered.runs.is_empty() {
            // It does not run yet, nor what it calls; values that it reads may do anything.
            true => {
                let mut looked = Ending::default();
                if ending.distrusts {
                    looked.distrust();
                }
                Ok((needs, looked))
            }
            false => Ok((needs, ending)),
        }
    }

    /// Whether a cursor is held over the transaction's end though what it reads by was redefined.
    fn holds_what_changed(&self, run: &Run, ending: &mut Ending) -> bool {
        ending.holds |= run.statement.opens.as_ref().is_some_and(|it| it.holds);
        let redefined = ending.redefines || self.effects.redefined();
        redefined && (ending.holds || self.core.will_hold_cursor())
    }

    /// The locks that a run needs a current ticket for.
    fn locks_of(&mut self, run: &Run, ending: &mut Ending) -> Result<Vec<LockName>, Untold> {
        ending.because = None;
        if let Class::Transaction(control) = &run.statement.class {
            return self.locks_of_control(control, ending);
        }
        let shifted = ending.shifts || self.effects.shifts();
        if shifted && names_existing(&run.statement, &ending.made) {
            self.check_unseen(run, ending, true)?;
            let redefined = ending.redefines || self.effects.redefined();
            let everything = run.statement.uses.everything.is_some();
            let acts = everything || redefined || self.acts_by_catalog(run, ending)?;
            ending.defines |= defines(&run.statement) || acts;
            ending.redefines |= redefines(&run.statement);
            ending.distrusts |= acts && !run.statement.runs_no_code();
            ending.makes_foreign |= acts && !drops(&run.statement);
            ending.shadows |= acts || self.shadows(&run.statement, ending);
            let unseen = self.unseen_behind(run, ending, acts)?;
            ending.unseen = ending.unseen.max(unseen);
            if ending.made.len() < MADE_MAX {
                follow_made(&mut ending.made, &run.statement);
            }
            follow_created(&mut ending.created, &run.statement);
            ending.because =
                Some("an earlier statement of its transaction may have changed what names do");
            return self.locks_of_anything(run);
        }
        let resolution = self.resolution_of(run, ending)?;
        ending.because = resolution.everything;
        self.check_unseen(run, ending, false)?;
        let unseen = self.unseen_behind(run, ending, resolution.everything.is_some())?;
        ending.unseen = ending.unseen.max(unseen);
        self.note_ending(run, ending, resolution.everything.is_some());
        ending.acts |= resolution.everything.is_some_and(|why| why != GUESSED);
        match &resolution.required {
            Required::Read | Required::Temporary => Ok(vec![]),
            Required::Write(locks) => Ok(locks.clone()),
            Required::Unclassified(why) => Err(Refusal::unclassified(*why).into()),
        }
    }

    /// What a run brings about. `acts`: it may write to anything.
    fn note_ending(&self, run: &Run, ending: &mut Ending, acts: bool) {
        let statement = &run.statement;
        let runs_code = acts && !statement.runs_no_code();
        let catalog = self.known_catalog();
        let is_new = catalog.is_some_and(|catalog| makes_type(statement, &catalog))
            || statement.uses.extension.is_some() && !acts;
        ending.distrusts |= runs_code;
        ending.makes_foreign |= acts && !drops(statement);
        ending.shifts |= shifts(statement) && !is_new;
        // What a volatile function defines is not told.
        ending.defines |= acts || defines(statement) && !self.drops_own(statement);
        // Whoever may call such a function holds a ticket for everything to the transaction's end.
        ending.redefines |= redefines(statement) && !is_new;
        ending.shadows |= runs_code || self.shadows(statement, ending);
        if ending.made.len() < MADE_MAX {
            follow_made(&mut ending.made, statement);
        }
        follow_created(&mut ending.created, statement);
        ending.follow_definition(run, &self.temporary);
        ending.defines |= !ending.definitions.is_empty() && self.defined.are_many();
        for statement in run.executed.iter().chain([statement]) {
            let made = statement.uses.targets.iter();
            let made = made.filter(|it| it.effect == Effect::Create { temporary: true });
            let names = made.map(|it| it.relation.name.clone());
            ending.temporary.extend(names);
        }
    }

    fn locks_of_control(
        &mut self,
        control: &TransactionControl,
        ending: &mut Ending,
    ) -> Result<Vec<LockName>, Untold> {
        let (TransactionControl::CommitPrepared(gid) | TransactionControl::RollbackPrepared(gid)) =
            control
        else {
            return Ok(vec![]);
        };
        let known = self.known_prepared(gid)?;
        // What it defines is seen from now on.
        let prepared = &self.listener.prepared;
        let plain = known.as_ref().is_some_and(|it| prepared.is_plain(gid, it));
        if matches!(control, TransactionControl::CommitPrepared(_)) && !plain {
            ending.defines = true;
            ending.makes_foreign = true;
        }
        match known {
            Some(known) => {
                ending.ends_prepared.push((gid.clone(), known.last));
                Ok(known.locks)
            }
            // Nothing, or what somebody has prepared past this proxy.
            None => match self
                .listener
                .config
                .rules
                .everything(&self.identity.database)
            {
                Required::Write(locks) => Ok(locks),
                _ => {
                    let why = "what is prepared under this name is not known here";
                    Err(Refusal::unclassified(why).into())
                }
            },
        }
    }

    fn known_prepared(&mut self, gid: &str) -> Result<Option<Known>, Untold> {
        let prepared = &self.listener.prepared;
        // Observing, nothing is waited for.
        if !prepared.is_shared() || self.listener.config.mode == Mode::Observe {
            return Ok(prepared.look(gid));
        }
        let mut looked = self.admission.looked.iter();
        if let Some((_, known)) = looked.find(|it| *it.0 == *gid) {
            return Ok(known.clone());
        }
        self.begin_looking(gid);
        Err(Untold::Later)
    }

    /// PREPARE TRANSACTION is for those who hold a ticket, and is on disk before it is forwarded.
    fn note_prepare(
        &mut self,
        run: &Run,
        claims: &Arc<[Claim]>,
        ending: &mut Ending,
    ) -> Result<(), Untold> {
        let Class::Transaction(TransactionControl::Prepare(gid)) = &run.statement.class else {
            return Ok(());
        };
        // Whatever the transaction has carried since it began: it is applied with the rest.
        let mut all = Arc::clone(claims);
        let unsigned = self.listener.config.trust == Trust::Unsigned;
        join(&mut all, self.flights.claims(unsigned).collect());
        if all.is_empty() && self.may_be_anybodys() {
            // Whoever ends it needs no ticket either.
            return Ok(());
        }
        if all.is_empty() && self.listener.config.mode == Mode::Enforce {
            let why = "a transaction is prepared under a ticket only: who ends it must hold one";
            return Err(Refusal::unclassified(why).into());
        }
        if self.listener.config.mode == Mode::Observe {
            return Ok(());
        }
        let recorded = &mut self.admission.recorded;
        if let Some(at) = recorded.iter().position(|it| it.gid() == &**gid) {
            ending.prepares.push(recorded.remove(at));
            return Ok(());
        }
        // What was recorded for this message before stays with it until it is forwarded.
        recorded.append(&mut ending.prepares);
        if self.listener.prepared.is_shared() && self.flights.session().is_none() {
            // Until that session is gone it may be prepared yet: it must be known.
            return match self.settle(all) {
                Admitted::Refused(refusal) => Err(refusal.into()),
                Admitted::Later | Admitted::Passed => Err(Untold::Later),
            };
        }
        self.begin_recording(gid, all);
        Err(Untold::Later)
    }

    /// The claims of a run: those in its comment, and those of its session for the other locks.
    pub(super) fn claims_of(&mut self, run: &Run) -> Result<Arc<[Claim]>, Untold> {
        self.claims_by(&run.tickets, &run.comment)
    }

    fn claims_by(&mut self, tickets: &Tickets, comment: &Tickets) -> Result<Arc<[Claim]>, Untold> {
        let of_session = self.claims_in(tickets)?;
        if comment.is_empty() {
            return Ok(of_session);
        }
        let of_comment = self.claims_in(comment)?;
        let mut claims = of_comment.to_vec();
        let others = of_session.iter();
        let others = others.filter(|claim| !of_comment.iter().any(|it| it.lock == claim.lock));
        claims.extend(others.cloned());
        claims.sort_unstable_by(|a, b| a.lock.cmp(&b.lock));
        Ok(claims.into())
    }

    fn claims_in(&mut self, texts: &Tickets) -> Result<Arc<[Claim]>, Untold> {
        if texts.is_empty() {
            return Ok([].into());
        }
        match self.look(texts) {
            Look::Genuine(claims) => Ok(claims),
            Look::Refused(refusal) => Err(refusal.into()),
            Look::Unknown => {
                self.begin_verifying(texts.clone());
                Err(Untold::Later)
            }
        }
    }
}

/// Adds the claims of a further run. Two tokens for one lock stay both: the gate will tell.
fn join(claims: &mut Arc<[Claim]>, more: Arc<[Claim]>) {
    if claims.is_empty() {
        *claims = more;
        return;
    }
    if more.iter().all(|claim| claims.contains(claim)) {
        return;
    }
    let mut all = claims.to_vec();
    all.extend(more.iter().filter(|it| !claims.contains(it)).cloned());
    all.sort_by(|a, b| (&a.lock, a.token).cmp(&(&b.lock, b.token)));
    *claims = all.into();
}

/// The lock that is needed and not claimed.
pub(super) fn missing<'n>(needed: &'n [LockName], claims: &[Claim]) -> Option<&'n LockName> {
    let claimed = |lock: &LockName| claims.iter().any(|claim| claim.lock == *lock);
    needed.iter().find(|lock| !claimed(lock))
}

/// What is told in the audit of a message: the first statement that is more than control.
pub(super) fn operation_of(considered: &Considered) -> &'static str {
    let mut runs = considered.runs.iter();
    let is_plain = |run: &&Run| matches!(run.statement.class, Class::Transaction(_));
    let first = considered.runs.first();
    let chosen = runs.find(|run| !is_plain(run)).or(first);
    chosen.map_or("message", |run| run.statement.operation)
}
