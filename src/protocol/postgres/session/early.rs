//! What Parse, Bind and Describe read ahead of their statement: the server analyses and plans with a
//! snapshot (`exec_parse_message`, `exec_bind_message`). In a REPEATABLE READ or SERIALIZABLE
//! transaction that one fixes what every later statement reads, and Parse begins a transaction where
//! none is open. So what is shown then is presented before they are forwarded, and a ticket that
//! comes later is late.
//!
//! Looking can also act: a domain's check runs as a value is read, by Bind or within a literal of
//! Parse. Where the database has such types the shell takes these messages for runs of their
//! statements.
//!
//! No transaction begins here: the gate is asked with its first statement.

use std::sync::Arc;

use super::span::Step;
use super::state::Shown;
use super::{Bound, Considered, Message, Prepared, Run, Session};
use crate::protocol::postgres::classify::{Class, Statement};
use crate::protocol::postgres::frame::{BindHead, ClosedKind};
use crate::protocol::postgres::identifier::cut_bytes;
use crate::protocol::postgres::ticket::Tickets;

/// Whether a statement is analysed with a snapshot, which utility statements are not
/// (`analyze_requires_snapshot`).
pub(super) fn looks(statement: &Statement) -> bool {
    match &statement.class {
        Class::Read | Class::Write | Class::Maintenance | Class::Unknown(_) => {
            statement.takes_snapshot()
        }
        Class::Transaction(_) | Class::Session(_) => false,
    }
}

/// Whether a statement is nothing but a call that sets a parameter.
pub(super) fn only_sets(statement: &Statement) -> bool {
    matches!(statement.uses.set_configs.as_slice(), [call] if call.sure)
}

impl Bound {
    /// Whether it is planned with a snapshot.
    pub(super) fn looks(&self) -> bool {
        self.prepared.statement.as_deref().is_some_and(looks)
    }
}

impl Session {
    /// What is presented before a message that takes a snapshot, and what its snapshot is taken
    /// under.
    pub(super) fn early(&self, looks: bool, comment: &Tickets) -> (Shown, Option<Shown>) {
        if !looks {
            return (Shown::default(), None);
        }
        let shown = [self.settings().tickets.clone(), comment.clone()];
        // While something on its way may fail, the next transaction may be another than expected.
        let presents = match self.is_behind() || self.ahead.would_fix_snapshot() {
            true => shown.clone(),
            false => Shown::default(),
        };
        (presents, Some(shown))
    }

    /// What these statements are where looking at them may run something.
    pub(super) fn analyses<'p>(
        &self,
        looks: bool,
        prepared: impl Iterator<Item = &'p Prepared>,
    ) -> Vec<Run> {
        if !looks {
            return vec![];
        }
        let run = |it: &Prepared| {
            Some(Run {
                statement: Arc::clone(it.statement.as_ref()?),
                executed: vec![],
                tickets: self.settings().tickets.clone(),
                comment: it.comment.clone(),
                search_path: self.path_in(&self.ahead),
            })
        };
        prepared.filter_map(run).collect()
    }

    pub(super) fn analysing(&self, step: Step, analyses: Vec<Run>) -> Considered {
        let any = !analyses.is_empty();
        Considered {
            analyses,
            asks: any && self.asks(),
            may_commit: any && (!self.ahead.is_explicit() || self.is_behind()),
            ..self.one_step(step)
        }
    }

    pub(super) fn consider_describe(&self, kind: ClosedKind, name: &[u8]) -> Considered {
        // A portal has been planned. A statement may be analysed again.
        let found = self.statements.candidates(name, self.open_id());
        let mut known = found.known.iter();
        let looks = kind == ClosedKind::Statement
            && (found.unknown || known.any(|it| it.statement.as_deref().is_some_and(looks)));
        let (presents, shown) = self.early(looks, &Tickets::default());
        let analyses = self.analyses(looks, found.known.iter());
        Considered {
            presents,
            ..self.analysing(Step::Describe(shown), analyses)
        }
    }
}

impl<'m> Message<'m> {
    /// With names as the server keeps them.
    pub(super) fn cut(self) -> Message<'m> {
        match self {
            Message::Parse(name, text, classified) => {
                Message::Parse(cut_bytes(name), text, classified)
            }
            Message::Describe(kind, name) => Message::Describe(kind, cut_bytes(name)),
            Message::Execute(portal) => Message::Execute(cut_bytes(portal)),
            Message::Close(kind, name) => Message::Close(kind, cut_bytes(name)),
            other => other,
        }
    }
}

/// With names as the server keeps them.
pub(super) fn cut_head(head: BindHead<'_>) -> BindHead<'_> {
    BindHead {
        portal: cut_bytes(head.portal),
        statement: cut_bytes(head.statement),
        ..head
    }
}
