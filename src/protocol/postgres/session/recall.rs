//! What a message does that came before in the same circumstances: it is remembered and not worked
//! out again. Statements that read or change rows and nothing else, bound, executed or queried
//! again and again, as an application does.
//!
//! Invariant: what is recalled is what [`Session::consider`] finds; debug builds check that each
//! time.

use std::sync::Arc;

use super::early::cut_head;
use super::span::Span;
use super::{Bound, Considered, Message, Path, Prepared, Session};
use crate::protocol::postgres::classify::{Class, ROWS, Statement};
use crate::protocol::postgres::ticket::{Tickets, comment};

/// Most messages that a session remembers.
const RECALLED_MAX: usize = 64;

/// The messages that were remembered.
#[derive(Debug, Default, Clone)]
pub(super) struct Recall(Vec<Remembered>);

/// A session is the same whether it remembers or not.
#[cfg(test)]
impl PartialEq for Recall {
    fn eq(&self, _: &Recall) -> bool {
        true
    }
}

#[derive(Debug, Clone)]
struct Remembered {
    what: What,
    circumstances: Circumstances,
    considered: Arc<Considered>,
}

/// A message, by what it names.
#[derive(Debug, Clone)]
enum What {
    Query(Arc<Statement>),
    /// Of the unnamed portal.
    Bind(Arc<Statement>),
    /// The same.
    Execute(Arc<[Bound]>),
}

impl What {
    /// By address: two that are alike are remembered twice.
    fn is(&self, other: &What) -> bool {
        match (self, other) {
            (What::Query(one), What::Query(other)) | (What::Bind(one), What::Bind(other)) => {
                Arc::ptr_eq(one, other)
            }
            (What::Execute(one), What::Execute(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Whether what such a message does depends on [`Circumstances`] only.
    fn is_plain(&self) -> bool {
        match self {
            What::Query(statement) | What::Bind(statement) => is_plain(statement),
            What::Execute(bound) => match &**bound {
                [bound] => bound.changes.is_empty() && bound.prepared.is_plain(),
                _ => false,
            },
        }
    }
}

impl Prepared {
    fn is_plain(&self) -> bool {
        self.comment.is_empty() && self.statement.as_deref().is_some_and(is_plain)
    }
}

/// Whether a statement reads or changes rows, and nothing else of the session's.
fn is_plain(statement: &Statement) -> bool {
    let uses = &statement.uses;
    matches!(statement.class, Class::Read | Class::Write)
        && ROWS.contains(&statement.operation)
        && statement.takes_snapshot()
        && statement.executes.is_none()
        && statement.opens.is_none()
        && uses.set_configs.is_empty()
        && !uses.exports_snapshot
}

/// What else it depends on.
#[derive(Debug, Clone)]
struct Circumstances {
    tickets: Tickets,
    path: Path,
    /// A block is open; otherwise no transaction is.
    in_block: bool,
    /// The gate was asked for these tickets last.
    asked: bool,
}

impl Circumstances {
    fn are(&self, other: &Circumstances) -> bool {
        let same_path = match (&self.path, &other.path) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        (self.in_block, self.asked) == (other.in_block, other.asked)
            && same_path
            && self.tickets == other.tickets
    }
}

impl Session {
    /// What a message does, where that is remembered.
    pub fn recall(&self, message: Message<'_>) -> Option<Arc<Considered>> {
        if self.recall.0.is_empty() {
            return None;
        }
        let what = self.what(message)?;
        let mut remembered = self.recall.0.iter().filter(|it| it.what.is(&what));
        let first = remembered.next()?;
        let now = self.circumstances(message)?;
        let mut all = std::iter::once(first).chain(remembered);
        let found = all.find(|it| it.circumstances.are(&now))?;
        if let Message::Query(text, _) = message
            && !matches!(comment::find(text), Ok(None))
        {
            return None;
        }
        debug_assert_eq!(self.consider(message).as_ref(), Ok(&*found.considered));
        Some(Arc::clone(&found.considered))
    }

    /// Remembers what [`Session::consider`] has just found about a message, where that may serve
    /// again.
    pub fn remember(&mut self, message: Message<'_>, considered: &Arc<Considered>) {
        let what = self.what(message).filter(What::is_plain);
        let no_comment = considered.runs.iter().all(|run| run.comment.is_empty());
        if let Some(what) = what.filter(|_| no_comment)
            && let Some(circumstances) = self.circumstances(message)
        {
            if self.recall.0.len() >= RECALLED_MAX {
                self.recall.0.clear();
            }
            self.recall.0.push(Remembered {
                what,
                circumstances,
                considered: Arc::clone(considered),
            });
        }
    }

    /// What a message names, where that is certain.
    fn what(&self, message: Message<'_>) -> Option<What> {
        match message {
            Message::Query(_, classified) => match classified.statements.as_slice() {
                [statement] => Some(What::Query(Arc::clone(statement))),
                _ => None,
            },
            Message::BindHead(head) if head.portal.is_empty() => {
                let name = cut_head(head).statement;
                let prepared = self.statements.only(name, self.open_id())?;
                let statement = prepared.statement.as_ref()?;
                prepared
                    .comment
                    .is_empty()
                    .then(|| What::Bind(Arc::clone(statement)))
            }
            Message::Execute(b"") => {
                let bound = self.portals.only(b"", self.open_id())?;
                Some(What::Execute(Arc::clone(bound)))
            }
            _ => None,
        }
    }

    /// What the message comes in; `None`: in something else as well.
    fn circumstances(&self, message: Message<'_>) -> Option<Circumstances> {
        let may_join = !matches!(message, Message::Query(..));
        let goes_on = |span: &Span| !span.ended && !span.failed && !span.refused;
        let mut spans = self.spans.iter();
        let alone = match (spans.next(), spans.next()) {
            (None, _) => true,
            (Some(span), None) => may_join && goes_on(span),
            (Some(_), Some(_)) => false,
        };
        let in_block = self.ahead.is_explicit();
        let between = !self.ahead.scope.in_transaction();
        let quiet = !self.copying && !self.rolled_back && !self.begins_again && !self.skips;
        if !alone || !quiet || !(in_block || between) || self.ahead.has_one_snapshot() {
            return None;
        }
        if matches!(message, Message::BindHead(_)) && !self.portals.has_room() {
            return None;
        }
        let tickets = self.settings().tickets.clone();
        Some(Circumstances {
            asked: tickets == self.asked,
            tickets,
            path: self.path_in(&self.ahead),
            in_block,
        })
    }
}
