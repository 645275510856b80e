//! Cursors of the open transaction: what reading one may do. It is read by what its functions and
//! views are then, which may be others than when it was declared.

use super::Session;
use super::weigh::Untold;
use crate::config::Mode;
use crate::protocol::postgres::classify::{Class, SessionControl, Statement, TransactionControl};
use crate::protocol::postgres::session::{Run, SpanId};

/// Most declarations of one transaction that are remembered.
const DECLARED_MAX: usize = 64;

/// The cursors of the open transaction.
#[derive(Default)]
pub(super) struct Cursors {
    /// The last span in which one may have been opened that may do anything as it is read.
    acting: Option<SpanId>,
    /// The same, read at its transaction's end, too (WITH HOLD).
    acting_held: Option<SpanId>,
    /// What declared the others, and in which span.
    declared: Vec<(SpanId, Run)>,
}

impl Cursors {
    /// A message is forwarded. `acts`: it may do anything, and may open any.
    pub(super) fn note(&mut self, runs: &[Run], span: SpanId, acts: bool) {
        let opens = |run: &&Run| run.statement.opens.is_some();
        let holds = |run: &Run| run.statement.opens.as_ref().is_some_and(|it| it.holds);
        let many = self.declared.len() >= DECLARED_MAX && runs.iter().any(|run| opens(&run));
        if acts || many {
            self.acting = Some(span);
            if runs.iter().any(holds) {
                self.acting_held = Some(span);
            }
        } else {
            let declared = runs.iter().filter(opens);
            self.declared
                .extend(declared.map(|run| (span, run.clone())));
        }
    }

    /// Whether a statement may have one read that may do anything.
    pub(super) fn are_read_by(&self, statement: &Statement) -> bool {
        match statement.class {
            Class::Session(SessionControl::Fetch(_)) => self.acting.is_some(),
            Class::Transaction(TransactionControl::Commit { .. }) => self.acting_held.is_some(),
            _ => false,
        }
    }

    /// What declared the others that a statement may have read.
    fn declared_for(&self, statement: &Statement) -> Vec<Run> {
        let held_only = match statement.class {
            Class::Session(SessionControl::Fetch(_)) => false,
            Class::Transaction(TransactionControl::Commit { .. }) => true,
            _ => return vec![],
        };
        let read = |run: &&Run| {
            let opened = run.statement.opens.as_ref();
            !held_only || opened.is_some_and(|it| it.holds)
        };
        let declared = self.declared.iter().map(|(_, run)| run);
        declared.filter(read).cloned().collect()
    }

    /// No transaction is open after this span. Whether one may have been read as it ended.
    pub(super) fn ended(&mut self, span: SpanId) -> bool {
        self.acting = self.acting.filter(|opened| *opened > span);
        self.declared.retain(|(opened, _)| *opened > span);
        self.acting_held.take_if(|opened| *opened <= span).is_some()
    }
}

impl Session {
    /// Whether a statement may have a cursor read that has come to act since it was declared.
    pub(super) fn reads_what_came_to_act(&mut self, statement: &Statement) -> Result<bool, Untold> {
        let declared = self.cursors.declared_for(statement);
        if declared.is_empty() || self.listener.config.mode == Mode::Observe {
            return Ok(false);
        }
        let catalog = self.loaded_catalog()?;
        let acts = |run: &Run| {
            let resolved = self.resolved_by(&catalog, run, &self.created);
            resolved.everything.is_some()
        };
        Ok(declared.iter().any(acts))
    }
}
