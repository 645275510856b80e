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

use super::Session;
use crate::config::{Mode, PostgresListenerConfig};
use crate::protocol::postgres::classify::{Class, SessionControl};
use crate::protocol::postgres::session::{Considered, may_turn_read_write};
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
pub(super) enum Held {
    /// It never does on this listener.
    Never,
    /// It does: transactions begin read-only.
    Now,
    /// It does, but for the transaction that is open.
    ButHere,
    /// It does not, while a ticket counts.
    Not,
    /// The client has reset it to what the session began with.
    Unsure,
}

/// Whether sessions without a ticket begin so.
pub(in crate::proxy::postgres) fn holds(config: &PostgresListenerConfig) -> bool {
    config.rules.unmatched() == Unmatched::Reject && config.mode == Mode::Enforce
}

impl Held {
    /// What a session begins with.
    pub(super) fn begin(config: &PostgresListenerConfig, has_tickets: bool) -> Held {
        match (holds(config), has_tickets) {
            (false, _) => Held::Never,
            (true, false) => Held::Now,
            (true, true) => Held::Not,
        }
    }
}

impl Session {
    /// Changes the setting where tickets have come or gone. Whether it did.
    pub(super) fn settle_held(&mut self) -> bool {
        if self.held == Held::Never || !self.is_between() || !self.phase.has_client() {
            return false;
        }
        let counts = !self.core.settings().tickets.is_empty();
        if self.core.in_transaction() {
            return counts && self.let_go_here();
        }
        match (self.held, counts) {
            (Held::Now, true) => self.hold(Held::Not, LET_GO),
            (Held::Not, false) => self.hold(Held::Now, HOLD),
            (Held::ButHere, _) => {
                self.held = Held::Now;
                true
            }
            (Held::Unsure, true) => self.hold(Held::Not, LET_GO),
            (Held::Unsure, false) => self.hold(Held::Now, HOLD),
            (Held::Never | Held::Now | Held::Not, _) => false,
        }
    }

    /// A message under a ticket is about to be forwarded. Whether something goes before it.
    pub(super) fn let_go(&mut self) -> bool {
        if !matches!(self.held, Held::Now | Held::Unsure) || !self.is_between() {
            return false;
        }
        match self.core.in_transaction() {
            true => self.let_go_here(),
            false => self.hold(Held::Not, LET_GO),
        }
    }

    /// A message is forwarded that may reset the setting.
    pub(super) fn note_reset(&mut self, considered: &Considered) {
        let resets = considered.runs.iter().any(|run| {
            let class = &run.statement.class;
            let all = matches!(
                class,
                Class::Session(SessionControl::ResetAll | SessionControl::DiscardAll)
            );
            all || matches!(class, Class::Unknown(_)) || run.statement.may_commit_inside()
        });
        if resets && self.held != Held::Never {
            self.held = Held::Unsure;
        }
    }

    /// The server has told a setting (PostgreSQL 14 and later tell this one): where nothing that
    /// was looked at let the session go, something else did.
    pub(super) fn note_told(&mut self, name: &[u8], value: &[u8]) {
        let lets_go = (name, value) == (PARAMETER.as_bytes(), b"off");
        if lets_go && matches!(self.held, Held::Now | Held::ButHere) {
            self.held = Held::Unsure;
        }
    }

    /// Whether no span is open: the end of one of ours would be taken for the client's.
    fn is_between(&self) -> bool {
        self.can_speak() && self.core.awaited_span().is_none()
    }

    /// Later the server would refuse it, and fail the transaction.
    fn let_go_here(&mut self) -> bool {
        let early = self.core.in_block() && !self.core.has_snapshot();
        self.held == Held::Now && early && self.hold(Held::ButHere, LET_GO_HERE)
    }

    fn hold(&mut self, held: Held, by: &[u8]) -> bool {
        let bytes = self.core.inject_statement(by);
        self.backend.send(&bytes);
        self.held = held;
        true
    }

    /// Refuses what would let the session go, to who has no ticket.
    pub(super) fn check_held(&self, considered: &Considered) -> Result<(), Refusal> {
        if self.held == Held::Never {
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
