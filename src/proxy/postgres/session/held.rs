//! Sessions without a ticket on a listener that rejects what no rule covers: Postgres itself holds
//! them read-only, beside the classification.
//!
//! They begin with `default_transaction_read_only = on`, which is set off while a ticket counts,
//! and on again. What can turn it off is refused to who has no ticket. A read-only session still
//! lets some writes through (VACUUM, dblink), which the classification refuses; the firm form is a
//! role without the grants.
//!
//! Where the setting could not be changed in time (a ticket that is set within a pipeline, or after
//! a transaction's first query) the server refuses the write: the safe side.
//!
//! Invariant: no transaction that can write begins without a ticket. What comes behind a ticket, or
//! behind what may have changed the setting, waits until the server is through with that; where
//! nothing can go in between, within a text or a pipeline, it is refused.

use super::Session;
use super::weigh::Weighed;
use crate::config::{Mode, PostgresListenerConfig};
use crate::protocol::postgres::classify::{Class, SessionControl, Statement, TransactionControl};
use crate::protocol::postgres::resolve::runs_own_code;
use crate::protocol::postgres::session::{Considered, Run, SpanId, may_turn_read_write, only_sets};
use crate::protocol::postgres::ticket::change::Doubts;
use crate::protocol::{Refusal, Unmatched};

/// The parameter.
pub(in crate::proxy::postgres) const PARAMETER: &str = "default_transaction_read_only";

const HOLD: &[u8] = b"SET default_transaction_read_only = on";
const LET_GO: &[u8] = b"SET default_transaction_read_only = off";
/// For a transaction that has begun, before its first query.
const LET_GO_HERE: &[u8] = b"SET TRANSACTION READ WRITE";

/// Whether the server holds the session read-only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    /// It never does on this listener.
    Never,
    /// It does: transactions begin read-only.
    Now,
    /// It does, but for the transaction that is open.
    ButHere,
    /// It does not, while a ticket counts.
    Not,
    /// Something may have set it otherwise.
    Unsure,
}

/// How a session is held.
#[derive(Debug)]
pub(super) struct Hold {
    held: Held,
    /// The server tells when the setting changes, before it is ready again (PostgreSQL 14 and
    /// later).
    tells: bool,
    /// Until this span has ended, code of the database's own may have changed the setting untold.
    code: Option<SpanId>,
    /// This span, of several messages, was begun while the session was not held for sure.
    begun: Option<SpanId>,
    /// In this span a transaction has ended while the session was not: the next one may write.
    next: Option<SpanId>,
    /// In this span the proxy has asked the server to hold it.
    asked: Option<SpanId>,
    /// The message at hand waits for what is on its way.
    waits: bool,
    /// The setting was changed for the message at hand, which may wait for something else yet.
    turned: bool,
}

/// What a message does to it.
struct Behind {
    /// Code of the database's own may run.
    code: bool,
    /// A transaction ends, behind which the next one may write.
    next: bool,
    /// Such a one would begin without a ticket.
    begins: bool,
}

/// Whether sessions without a ticket begin so.
pub(in crate::proxy::postgres) fn holds(config: &PostgresListenerConfig) -> bool {
    config.rules.unmatched() == Unmatched::Reject && config.mode == Mode::Enforce
}

impl Hold {
    /// What a session begins with. `told`: what the server has reported as it began.
    pub(super) fn begin<'p>(
        config: &PostgresListenerConfig,
        has_tickets: bool,
        mut told: impl Iterator<Item = &'p [u8]>,
    ) -> Hold {
        let held = match (holds(config), has_tickets) {
            (false, _) => Held::Never,
            (true, false) => Held::Now,
            (true, true) => Held::Not,
        };
        Hold {
            held,
            tells: told.any(|name| name == PARAMETER.as_bytes()),
            code: None,
            begun: None,
            next: None,
            asked: None,
            waits: false,
            turned: false,
        }
    }

    /// The message at hand was dealt with.
    pub(super) fn forget(&mut self) {
        self.turned = false;
    }

    /// The message at hand is looked at: it waits no more.
    pub(super) fn look(&mut self) {
        self.waits = false;
    }

    /// Whether the message at hand waits until the session can be held.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits
    }
}

impl Session {
    /// Changes the setting where tickets have come or gone. Whether it did.
    pub(super) fn settle_held(&mut self) -> bool {
        if self.hold.held == Held::Never || !self.is_between() || !self.phase.has_client() {
            return false;
        }
        let counts = !self.core.settings().tickets.is_empty();
        if self.core.in_transaction() {
            return counts && self.let_go_here();
        }
        match (self.hold.held, counts) {
            // It knows better: it may be what clears the ticket.
            (_, true) if self.hold.waits => false,
            (Held::Now | Held::Not | Held::Unsure, _) if self.hold.turned => false,
            (Held::Now, true) => self.set_held(Held::Not, LET_GO),
            (Held::Not, false) => self.set_held(Held::Now, HOLD),
            (Held::ButHere, _) => {
                self.hold.held = Held::Now;
                true
            }
            (Held::Unsure, true) => self.set_held(Held::Not, LET_GO),
            (Held::Unsure, false) => self.set_held(Held::Now, HOLD),
            (Held::Never | Held::Now | Held::Not, _) => false,
        }
    }

    /// What goes before a message under a ticket. `None`: nothing.
    fn let_go(&mut self) -> Option<Weighed> {
        if !matches!(self.hold.held, Held::Now | Held::Unsure) {
            return None;
        }
        if !self.is_between() {
            // In a pipeline, and behind a transaction's first query, it would be too late.
            let late = self.core.in_block() && self.core.has_snapshot();
            let waits = !late && !self.core.is_in_pipeline();
            self.hold.waits = waits;
            return waits.then_some(Weighed::Later);
        }
        let let_go = match self.core.in_transaction() {
            true => self.let_go_here(),
            false => self.set_held(Held::Not, LET_GO),
        };
        self.hold.turned = let_go;
        let_go.then_some(Weighed::Again)
    }

    /// What goes before a message that runs nothing yet, but has the server begin a transaction:
    /// one of no ticket, or of one that comes in a comment. Whether that is genuine is looked at as
    /// it runs; whatever else is in its pipeline needs a ticket too. `None`: nothing.
    pub(super) fn hold_ahead(&mut self, considered: &Considered) -> Option<Weighed> {
        let begins = considered.begins_span() && !self.core.is_in_pipeline();
        let counts = !self.core.settings().tickets.is_empty();
        match begins && !counts && !considered.rolled_back {
            true if considered.brings_tickets() => self.let_go(),
            true => self.hold_first(),
            false => None,
        }
    }

    /// What goes before a message whose tickets are genuine, if it has any. `None`: nothing.
    pub(super) fn hold_or_let_go(
        &mut self,
        considered: &Considered,
        has_tickets: bool,
    ) -> Option<Weighed> {
        if self.hold.held == Held::Never {
            return None;
        }
        let harmless = || considered.runs.iter().all(|run| self.only_controls(run));
        let goes_first = match has_tickets {
            true => self.let_go(),
            false if harmless() => None,
            false if self.core.is_in_pipeline() => self.check_pipeline(),
            false => self.hold_first(),
        };
        if goes_first.is_some() {
            return goes_first;
        }
        self.behind(considered).begins.then(|| {
            Weighed::Refused(Refusal::unclassified(
                "without a ticket a transaction is read-only, and this one begins where it might \
                 not be: send it behind the answer to what comes before",
            ))
        })
    }

    /// Before a transaction begins without a ticket: the session is held, as soon as the server is
    /// through with what may have let it go.
    fn hold_first(&mut self) -> Option<Weighed> {
        if self.hold.held == Held::Never || !self.may_be_free() {
            return None;
        }
        if !self.is_between() {
            self.hold.waits = true;
            return Some(Weighed::Later);
        }
        // A block that can write was begun under a ticket, and its permits last as long.
        let begins = matches!(self.hold.held, Held::Not | Held::Unsure);
        let begins = begins && !self.core.in_transaction();
        begins.then(|| {
            self.hold.turned = true;
            self.set_held(Held::Now, HOLD);
            Weighed::Again
        })
    }

    /// In a pipeline that was begun while the session was not held: what has no ticket runs in the
    /// transaction of one, whose permits last to its end, or not at all.
    fn check_pipeline(&mut self) -> Option<Weighed> {
        let span = self.core.span();
        if self.hold.begun != Some(span) || self.flights.last_for(span) {
            return None;
        }
        if self.core.awaited_span() != Some(span) {
            self.hold.waits = true;
            return Some(Weighed::Later);
        }
        (!self.core.in_block()).then(|| {
            Weighed::Refused(Refusal::unclassified(
                "without a ticket a transaction is read-only, and this pipeline has begun one \
                 under a ticket that is gone",
            ))
        })
    }

    /// Whether the next transaction may begin as one that can write.
    fn may_be_free(&self) -> bool {
        let awaited = self.core.awaited_span();
        let pending = |span: SpanId| awaited.is_some_and(|awaited| awaited <= span);
        matches!(self.hold.held, Held::Not | Held::Unsure)
            || self.hold.code.is_some_and(pending)
            || self.hold.asked.is_some_and(pending)
    }

    /// Whether the next message is to be looked at though it runs nothing.
    pub(super) fn is_to_be_held(&self) -> bool {
        let free = self.hold.held != Held::Never && self.may_be_free();
        free && self.core.settings().tickets.is_empty()
    }

    /// This span of several messages begins.
    pub(super) fn note_begun(&mut self, span: SpanId) {
        if self.hold.held != Held::Never && self.may_be_free() {
            self.hold.begun = Some(span);
        }
    }

    /// A message is about to be forwarded.
    pub(super) fn note_held(&mut self, considered: &Considered) {
        if self.hold.held == Held::Never {
            return;
        }
        let span = self.core.span();
        if considered.begins_span() && !self.core.is_in_pipeline() {
            self.note_begun(span);
        }
        let behind = self.behind(considered);
        if behind.next {
            self.hold.next = Some(span);
        }
        let held = matches!(self.hold.held, Held::Now | Held::ButHere);
        if behind.code && held {
            self.hold.code = Some(span);
        }
        let sets = |run: &Run| resets(run) || held && turns_read_write(run);
        if considered.runs.iter().any(sets) || behind.code && held && !self.hold.tells {
            self.hold.held = Held::Unsure;
        }
    }

    fn behind(&self, considered: &Considered) -> Behind {
        let mut free = self.may_be_free();
        let mut behind = Behind {
            code: !free && considered.analyses.iter().any(|it| self.may_run_code(it)),
            next: self.hold.next == Some(self.core.span()),
            begins: false,
        };
        for run in &considered.runs {
            let has_ticket = !run.tickets.is_empty() || !run.comment.is_empty();
            behind.begins |= behind.next && !has_ticket && !self.only_controls(run);
            // Once it may be free, it does not matter what else may let it go.
            behind.code |= !free && self.may_run_code(run);
            free = free || behind.code || resets(run) || turns_read_write(run);
            behind.next |= free && ends(&run.statement);
        }
        behind
    }

    /// Whether a run may call what the database itself has, declared to read only: that may change
    /// the setting. What a cursor that stays reads by is run by its transaction's end.
    fn may_run_code(&self, run: &Run) -> bool {
        let catalog = self.known_catalog();
        let mut statements = run.executed.iter().chain([&run.statement]);
        ends(&run.statement) && self.core.will_hold_cursor()
            || statements.any(|it| runs_own_code(it, catalog.as_deref()))
    }

    /// Whether a run does nothing but end a transaction or set parameters.
    fn only_controls(&self, run: &Run) -> bool {
        match &run.statement.class {
            Class::Transaction(
                TransactionControl::Commit { chain } | TransactionControl::Rollback { chain },
            ) => !chain,
            Class::Session(
                SessionControl::Set { .. } | SessionControl::Reset(_) | SessionControl::ResetAll,
            ) => true,
            _ => only_sets(&run.statement) && self.doubts() == Doubts::NONE,
        }
    }

    /// The server has told a setting (PostgreSQL 14 and later tell this one): where nothing that
    /// was looked at let the session go, something else did.
    pub(super) fn note_told(&mut self, name: &[u8], value: &[u8]) {
        let lets_go = (name, value) == (PARAMETER.as_bytes(), b"off");
        if lets_go && matches!(self.hold.held, Held::Now | Held::ButHere) {
            self.hold.held = Held::Unsure;
        }
    }

    /// Whether no span is open: the end of one of ours would be taken for the client's.
    fn is_between(&self) -> bool {
        self.can_speak() && self.core.awaited_span().is_none()
    }

    /// Later the server would refuse it, and fail the transaction.
    fn let_go_here(&mut self) -> bool {
        let early = self.core.in_block() && !self.core.has_snapshot();
        self.hold.held == Held::Now && early && self.set_held(Held::ButHere, LET_GO_HERE)
    }

    fn set_held(&mut self, held: Held, by: &[u8]) -> bool {
        // Until that is answered it may fail yet: whoever cancels may hit it.
        self.hold.asked = (held == Held::Now).then_some(self.core.span());
        let bytes = self.core.inject_statement(by);
        self.backend.send(&bytes);
        self.hold.held = held;
        true
    }

    /// The server has told an error.
    pub(super) fn note_failed(&mut self) {
        let awaited = self.core.awaited_span();
        if awaited.is_some() && awaited == self.hold.asked {
            self.hold.held = Held::Unsure;
        }
    }

    /// Refuses what would let the session go, to who has no ticket.
    pub(super) fn check_held(&self, considered: &Considered) -> Result<(), Refusal> {
        if self.hold.held == Held::Never {
            return Ok(());
        }
        // Where there is no catalog the statement waits for one, and is looked at again.
        let catalog = self.known_catalog();
        let doubts = catalog.map_or(Doubts::NONE, |catalog| catalog.doubts());
        let lets_go = considered.runs.iter().any(|run| {
            let statements = run.executed.iter().chain([&run.statement]);
            let mut statements =
                statements.map(|it| may_turn_read_write(it) || doubts.of_types(it));
            run.tickets.is_empty() && run.comment.is_empty() && statements.any(|lets_go| lets_go)
        });
        match lets_go {
            false => Ok(()),
            true => Err(Refusal::unclassified(
                "without a ticket this session is read-only, and this could change that",
            )),
        }
    }
}

/// Whether a run may set the session back to what it began with.
fn resets(run: &Run) -> bool {
    let class = &run.statement.class;
    let all = matches!(
        class,
        Class::Session(SessionControl::ResetAll | SessionControl::DiscardAll)
    );
    all || run.statement.may_commit_inside()
}

/// Whether a run, of a holder, may set it otherwise.
fn turns_read_write(run: &Run) -> bool {
    let mut statements = run.executed.iter().chain([&run.statement]);
    statements.any(|it| may_turn_read_write(it))
}

/// Whether behind a statement another transaction may begin.
fn ends(statement: &Statement) -> bool {
    let control = matches!(
        statement.class,
        Class::Transaction(
            TransactionControl::Commit { .. }
                | TransactionControl::Rollback { .. }
                | TransactionControl::Prepare(_)
        )
    );
    control || statement.may_commit_inside()
}
