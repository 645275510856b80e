//! What a message does that came before in the same circumstances: it is remembered and not worked
//! out again. Statements that read or change rows and nothing else, bound, executed or queried
//! again and again, as an application does.
//!
//! Invariant: what is recalled is what [`Session::consider`] finds; debug builds check that each
//! time.

use std::sync::Arc;

use super::early::cut_head;
use super::span::Span;
use super::{Bound, Considered, Message, Path, Prepared, Session, Shown};
use crate::protocol::postgres::classify::{Class, ROWS, Statement, TEXT_BYTES_CACHED_MAX};
use crate::protocol::postgres::ticket::{Tickets, comment};

/// Most messages that a session remembers.
const RECALLED_MAX: usize = 64;

/// The messages that were remembered.
#[derive(Debug, Default, Clone)]
pub(super) struct Recall {
    known: Vec<Remembered>,
    /// Which goes next.
    next: usize,
}

impl Recall {
    fn keep(&mut self, remembered: Remembered) {
        match self.known.get_mut(self.next) {
            Some(oldest) => *oldest = remembered,
            None => self.known.push(remembered),
        }
        self.next = (self.next + 1) % RECALLED_MAX;
    }
}

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
    /// Of the unnamed portal.
    Execute(Arc<[Bound]>),
    /// The same of so many rows.
    ExecuteSome(Arc<[Bound]>),
}

impl What {
    /// By address: two that are alike are remembered twice.
    fn is(&self, other: &What) -> bool {
        match (self, other) {
            (What::Query(one), What::Query(other)) | (What::Bind(one), What::Bind(other)) => {
                Arc::ptr_eq(one, other)
            }
            (What::Execute(one), What::Execute(other))
            | (What::ExecuteSome(one), What::ExecuteSome(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Whether what such a message does depends on [`Circumstances`] only.
    fn is_plain(&self) -> bool {
        match self {
            What::Query(statement) | What::Bind(statement) => is_plain(statement),
            What::Execute(bound) | What::ExecuteSome(bound) => match &**bound {
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

/// Whether a statement reads or changes rows, and nothing else of the session's. A long text is
/// full of data and comes once.
fn is_plain(statement: &Statement) -> bool {
    let uses = &statement.uses;
    matches!(statement.class, Class::Read | Class::Write)
        && ROWS.contains(&statement.operation)
        && statement.takes_snapshot()
        && statement.span.len() <= TEXT_BYTES_CACHED_MAX
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
    /// A transaction is open, and one that does not end with its span.
    open: (bool, bool),
    /// The gate was asked for these tickets last.
    asked: bool,
    /// What was shown when the snapshot was taken that all is read by, where there is only one.
    fixed: Option<Option<Shown>>,
}

impl Circumstances {
    fn are(&self, other: &Circumstances) -> bool {
        let same_path = match (&self.path, &other.path) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
            (one, other) => one.is_none() && other.is_none(),
        };
        (self.open, self.asked) == (other.open, other.asked)
            && same_path
            && self.tickets == other.tickets
            && self.fixed == other.fixed
    }
}

/// Whether a text may have tickets in a comment.
fn has_comment(message: Message<'_>) -> bool {
    match message {
        Message::Query(text, _) => !matches!(comment::find(text), Ok(None)),
        _ => false,
    }
}

impl Session {
    /// What a message does, where that is remembered.
    pub fn recall(&self, message: Message<'_>) -> Option<Arc<Considered>> {
        if self.recall.known.is_empty() {
            return None;
        }
        let what = self.what(message)?;
        let mut remembered = self.recall.known.iter().filter(|it| it.what.is(&what));
        let first = remembered.next()?;
        let now = self.circumstances(message)?;
        let mut all = std::iter::once(first).chain(remembered);
        let found = all.find(|it| it.circumstances.are(&now))?;
        if has_comment(message) {
            return None;
        }
        debug_assert_eq!(self.consider(message).as_ref(), Ok(&*found.considered));
        Some(Arc::clone(&found.considered))
    }

    /// Remembers what [`Session::consider`] has just found about a message, where that may serve
    /// again.
    pub fn remember(&mut self, message: Message<'_>, considered: &Arc<Considered>) {
        let what = self.what(message).filter(What::is_plain);
        if let Some(what) = what.filter(|_| !has_comment(message))
            && let Some(circumstances) = self.circumstances(message)
        {
            self.recall.keep(Remembered {
                what,
                circumstances,
                considered: Arc::clone(considered),
            });
        }
    }

    /// Whether this is remembered.
    pub fn remembers(&self, considered: &Arc<Considered>) -> bool {
        let mut known = self.recall.known.iter();
        known.any(|it| Arc::ptr_eq(&it.considered, considered))
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
            Message::ExecuteSome(b"") => {
                let bound = self.portals.only(b"", self.open_id())?;
                Some(What::ExecuteSome(Arc::clone(bound)))
            }
            _ => None,
        }
    }

    /// What the message comes in; `None`: what it does depends on more.
    fn circumstances(&self, message: Message<'_>) -> Option<Circumstances> {
        let may_join = !matches!(message, Message::Query(..));
        let goes_on = |span: &Span| !span.ended && !span.failed && !span.refused;
        let mut spans = self.spans.iter();
        let alone = match (spans.next(), spans.next()) {
            (None, _) => true,
            (Some(span), None) => may_join && goes_on(span),
            (Some(_), Some(_)) => false,
        };
        let plain = !self.copying && !self.rolled_back && !self.begins_again && !self.skips;
        if !alone || !plain {
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
            open: (self.ahead.scope.in_transaction(), self.ahead.is_explicit()),
            fixed: self
                .ahead
                .has_one_snapshot()
                .then(|| self.ahead.snapshot().cloned()),
        })
    }
}
