//! The server's replies, in order, against what is awaited.

use super::span::{Origin, Span, SpanId, Step};
use super::state::{Act, Shown};
use super::{Session, commits, forgets};
use crate::protocol::postgres::classify::{Class, SessionControl, Statement, TransactionControl};
use crate::protocol::postgres::frame::{BackendMessage, ClosedKind, TransactionStatus};

/// A reply that does not fit what was sent: the session cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the server sent {what}, which nothing asked for")]
pub struct Unexpected {
    /// Which message.
    pub what: &'static str,
}

/// What the client gets of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Deliver {
    /// The message.
    Pass,
    /// Nothing.
    Swallow,
    /// These bytes in its place.
    Replace(Vec<u8>),
}

/// What a message of the server means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// What the client gets.
    pub deliver: Deliver,
    /// No transaction is open after this span, or what was open of it can only be rolled back: its
    /// permits and those of earlier spans end.
    pub ended: Option<SpanId>,
    /// What was done up to here may be committed, though another transaction may be open already.
    pub committed: bool,
}

impl Reply {
    const PASS: Reply = Reply {
        deliver: Deliver::Pass,
        ended: None,
        committed: false,
    };
    const SWALLOW: Reply = Reply {
        deliver: Deliver::Swallow,
        ended: None,
        committed: false,
    };
}

impl Session {
    /// A message of the server. Behind it, or several, [`Session::catch_up`].
    pub fn reply(&mut self, message: &BackendMessage<'_>) -> Result<Reply, Unexpected> {
        let origin = self.spans.front().map(|span| span.origin);
        let hidden = matches!(origin, Some(Origin::Proxy | Origin::ProxyForClient));
        let mut told = match hidden {
            true => Reply::SWALLOW,
            false => Reply::PASS,
        };
        match message {
            // These come at any time; a notice of the proxy's own statement is not the client's.
            BackendMessage::ParameterStatus { name, value } => {
                self.lexing.told(name, value);
                return Ok(Reply::PASS);
            }
            BackendMessage::Notification => return Ok(Reply::PASS),
            BackendMessage::Notice(_) => return Ok(told),
            BackendMessage::Error(fields) => return self.failed(fields.is_fatal(), told),
            BackendMessage::ReadyForQuery(status) => return self.ready(*status),
            BackendMessage::CommandComplete { tag } => {
                told.committed = self.complete(*tag == b"ROLLBACK")?;
            }
            BackendMessage::EmptyQueryResponse | BackendMessage::PortalSuspended => {
                self.complete(false)?;
            }
            BackendMessage::FunctionCallResponse => match self.take_step("a result")? {
                Step::Function => {}
                _ => return unexpected("FunctionCallResponse"),
            },
            BackendMessage::ParseComplete => match self.take_step("ParseComplete")? {
                Step::Parse(name, shown) => {
                    self.statements.confirm(&name);
                    self.looked(shown);
                }
                _ => return unexpected("ParseComplete"),
            },
            BackendMessage::BindComplete => match self.take_step("BindComplete")? {
                Step::Bind(name, shown) => {
                    self.confirm_portal(&name);
                    self.looked(shown);
                }
                _ => return unexpected("BindComplete"),
            },
            BackendMessage::CloseComplete => match self.take_step("CloseComplete")? {
                Step::Close(ClosedKind::Statement, name) => self.statements.remove(&name),
                Step::Close(ClosedKind::Portal, name) => {
                    self.portals.remove(&name);
                    self.certain.close_portal(&name);
                }
                _ => return unexpected("CloseComplete"),
            },
            BackendMessage::RowDescription | BackendMessage::NoData => {
                let span = self.spans.front_mut();
                let described = |span: &Span| matches!(span.steps.front(), Some(Step::Describe(_)));
                let step = span.filter(|it| described(it)).and_then(Span::take);
                if let Some(Step::Describe(shown)) = step {
                    self.looked(shown);
                }
            }
            BackendMessage::CopyIn => self.copy_in()?,
            _ => {}
        }
        Ok(told)
    }

    /// The statement that the server answers now, where it was read.
    pub fn awaited_statement(&self) -> Option<&Statement> {
        match self.spans.front()?.steps.front()? {
            Step::Statement(Some(act)) => Some(&act.statement),
            _ => None,
        }
    }

    /// Whether an error that the server tells now may leave something done.
    pub fn may_be_done_in_part(&self) -> bool {
        let awaited = self.spans.front().and_then(|span| span.steps.front());
        match awaited {
            Some(Step::Statement(Some(act))) => act.statement.may_be_done_in_part(),
            Some(Step::Statement(None) | Step::Unread | Step::Function) => true,
            _ => false,
        }
    }

    fn looked(&mut self, shown: Option<Shown>) {
        if let Some(shown) = shown {
            self.certain.take_snapshot(&shown);
        }
    }

    fn take_step(&mut self, what: &'static str) -> Result<Step, Unexpected> {
        let span = self.spans.front_mut().ok_or(Unexpected { what })?;
        span.take().ok_or(Unexpected { what })
    }

    /// A statement is complete; `rolled_back`: its tag is ROLLBACK. Whether it may have committed.
    fn complete(&mut self, rolled_back: bool) -> Result<bool, Unexpected> {
        let step = self.take_step("CommandComplete")?;
        if let Some(span) = self.spans.front_mut() {
            span.end_copy();
        }
        match step {
            Step::Statement(Some(act)) => {
                self.confirm(&act, rolled_back);
                return Ok(commits(&act.statement) && !rolled_back);
            }
            Step::Statement(None) => {}
            Step::RollBack => {
                self.certain.end(false, false);
                self.end_portals();
                self.surprised = true;
                return Ok(false);
            }
            Step::Unread => {
                // There may be more of it.
                if let Some(span) = self.spans.front_mut() {
                    span.steps.push_front(Step::Unread);
                }
            }
            _ => return unexpected("CommandComplete").map(|_| false),
        }
        // It was not read.
        Ok(true)
    }

    /// Whether something that was forwarded with what the server answers now, or behind it, may
    /// have done anything to the session.
    fn is_distrusted(&self) -> bool {
        let answered = self.spans.front().map(|span| span.id);
        answered.is_some_and(|id| id <= self.distrusted)
    }

    fn confirm(&mut self, act: &Act, rolled_back: bool) {
        let statement = &act.statement;
        let commits = matches!(
            statement.class,
            Class::Transaction(TransactionControl::Commit { .. } | TransactionControl::Prepare(_))
        );
        if commits && rolled_back {
            // COMMIT of a failed transaction.
            self.end_portals();
            let chain = matches!(
                statement.class,
                Class::Transaction(TransactionControl::Commit { chain: true })
            );
            self.certain.end(false, chain);
            self.surprised = true;
        } else {
            if let Some(opened) = &statement.opens {
                // It has succeeded: there was none of this name.
                self.certain.cursors.close(Some(&opened.name));
                self.portals.remove(opened.name.as_bytes());
            }
            match closes(&statement.class) {
                Some(Some(name)) => self.portals.remove(name.as_bytes()),
                Some(None) => self.end_portals(),
                None => {}
            }
            if let Class::Transaction(control) = &statement.class {
                self.end_savepoint(control);
            }
            self.certain.apply(act);
        }
        match forgets(statement) {
            Some(Some(name)) => self.statements.remove(name.as_bytes()),
            Some(None) => {
                let distrusted = self.is_distrusted();
                self.statements.clear(distrusted);
            }
            None => {}
        }
        if let Class::Session(SessionControl::Prepare { name, .. }) = &statement.class {
            self.statements.confirm(name.as_bytes());
        }
        if self.is_distrusted() {
            self.certain.distrust();
        }
    }

    /// An error: the server skips to the end of the span.
    fn failed(&mut self, fatal: bool, told: Reply) -> Result<Reply, Unexpected> {
        self.copying = false;
        let Some(span) = self.spans.front_mut() else {
            // It may end the session at any time; anything else it says unasked is a fault.
            return if fatal {
                Ok(Reply::PASS)
            } else {
                unexpected("ErrorResponse")
            };
        };
        span.failed = true;
        let id = span.id;
        let in_pipeline = std::mem::take(&mut span.extended) > 0;
        let steps = std::mem::take(&mut span.steps);
        let mut told = told;
        let mut steps = steps.into_iter().filter(|step| *step != Step::CopyEnd);
        match steps.next() {
            Some(Step::Refused(error)) if !fatal => told.deliver = Deliver::Replace(error),
            Some(step) => self.give_up(step),
            None => {}
        }
        steps.for_each(|step| self.give_up(step));
        // Without a block nothing of it is left that could be committed: the server aborts before
        // it takes the next message, and skips what comes up to the Sync, which may never come. A
        // block may live on by its savepoints; whether there is one is not certain behind what was
        // not read.
        if in_pipeline && !self.certain.is_explicit() && !self.is_distrusted() {
            told.ended = Some(id);
        }
        if in_pipeline {
            self.skip_to_sync();
        }
        self.surprised = true;
        Ok(told)
    }

    /// The server will not do it.
    fn give_up(&mut self, step: Step) {
        match step {
            Step::Parse(name, _) => self.statements.give_up(&name),
            Step::Bind(name, _) => self.portals.give_up(&name),
            Step::Statement(Some(act)) => {
                let class = &act.statement.class;
                if let Class::Session(SessionControl::Prepare { name, .. }) = class {
                    self.statements.give_up(name.as_bytes());
                }
            }
            _ => {}
        }
    }

    /// A simple Query behind what failed in a pipeline is skipped like the rest of it.
    fn skip_to_sync(&mut self) {
        let Some(mut span) = self.spans.pop_front() else {
            return;
        };
        while span.ended && !span.by_sync {
            match self.spans.pop_front() {
                Some(next) => {
                    (span.ended, span.by_sync) = (next.ended, next.by_sync);
                    span.id = next.id;
                    // The ReadyForQuery is that one's.
                    span.origin = next.origin;
                    next.steps.into_iter().for_each(|step| self.give_up(step));
                }
                None => span.ended = false,
            }
        }
        self.spans.push_front(span);
    }

    fn ready(&mut self, status: TransactionStatus) -> Result<Reply, Unexpected> {
        let what = "ReadyForQuery";
        if !self.spans.front().is_some_and(|span| span.ended) {
            return Err(Unexpected { what });
        }
        let span = self.spans.pop_front().ok_or(Unexpected { what })?;
        self.copying = false;
        self.lexing
            .settle(span.id, status == TransactionStatus::Idle);
        let open = span.steps.iter().any(|step| {
            // An unread text and the end of a COPY may have no answer of their own.
            !matches!(step, Step::Unread | Step::CopyEnd)
        });
        if open {
            return Err(Unexpected { what });
        }
        self.status = status;
        // A span that went as it was expected to leaves the prediction right: looking at all that
        // is awaited at each of many spans would take long.
        let open = status != TransactionStatus::Idle;
        let expected = !span.failed && self.certain.is_explicit() == open;
        match status {
            TransactionStatus::Idle => self.certain.end(!span.failed, false),
            TransactionStatus::InTransaction | TransactionStatus::Failed => {
                self.certain.stays_open();
                self.certain.is_failed(status == TransactionStatus::Failed);
            }
        }
        self.path_touched = self.path_touched.filter(|touched| *touched > span.id + 1);
        if !expected {
            self.surprised = true;
        }
        let ended = (status == TransactionStatus::Idle).then_some(span.id);
        if ended.is_some() {
            self.end_portals();
            if self.spans.is_empty() {
                self.ahead.cursors.clone_from(&self.certain.cursors);
            }
        }
        let deliver = match span.origin {
            Origin::Client | Origin::ProxyForClient => Deliver::Pass,
            Origin::ClientContinued | Origin::Proxy => Deliver::Swallow,
        };
        Ok(Reply {
            deliver,
            ended,
            committed: false,
        })
    }

    /// Portals end with their transaction. Those on their way are awaited yet.
    fn end_portals(&mut self) {
        let distrusted = self.is_distrusted();
        self.portals.clear(distrusted);
    }

    /// The server takes CopyData: it ignores every Sync before the end of the data, so the spans
    /// that those would have ended are one.
    fn copy_in(&mut self) -> Result<(), Unexpected> {
        let Some(mut span) = self.spans.pop_front() else {
            return unexpected("CopyInResponse").map(|_| ());
        };
        // A Query has a ReadyForQuery of its own.
        let by_query = span.ended && !span.by_sync;
        while !span.steps.contains(&Step::CopyEnd) {
            let Some(mut next) = self.spans.pop_front() else {
                break;
            };
            let begins_with_end = next.steps.front() == Some(&Step::CopyEnd);
            if !next.steps.is_empty() && !begins_with_end {
                // The server takes the next message for a breach of the protocol.
                return unexpected("CopyInResponse").map(|_| ());
            }
            if by_query {
                span.steps.extend(next.steps.pop_front());
                if begins_with_end && (next.ended || !next.steps.is_empty()) {
                    // Only the end of the data is the Query's.
                    self.spans.push_front(next);
                }
                continue;
            }
            span.steps.extend(next.steps);
            span.extended += next.extended;
            span.refused |= next.refused;
            span.rolls_back |= next.rolls_back;
            (span.ended, span.by_sync) = (next.ended, next.by_sync);
            // The ReadyForQuery is that one's, and ends what was noted for it.
            (span.id, span.origin) = (next.id, next.origin);
        }
        span.copies = true;
        self.copying = !span.steps.contains(&Step::CopyEnd);
        if self.copying && span.by_sync {
            (span.ended, span.by_sync) = (false, false);
        }
        self.spans.push_front(span);
        Ok(())
    }

    /// Looks ahead anew where answers were others than expected, before the next message of the
    /// client: once for all answers that have come, since all that is awaited is looked at. How
    /// many steps that are.
    pub fn catch_up(&mut self) -> usize {
        match std::mem::take(&mut self.surprised) {
            true => self.predict(),
            false => 0,
        }
    }

    /// What the state will be: what is certain, and what is still awaited.
    fn predict(&mut self) -> usize {
        let mut state = self.certain.clone();
        let mut looked_at = 0;
        for span in &self.spans {
            looked_at += span.steps.len();
            for step in &span.steps {
                match step {
                    Step::Statement(Some(act)) => {
                        state.apply(act);
                        if span.id <= self.distrusted {
                            state.distrust();
                        }
                    }
                    Step::RollBack => state.end(false, false),
                    Step::Close(ClosedKind::Portal, name) => state.close_portal(name),
                    other => {
                        if let Some(shown) = other.snapshot() {
                            state.take_snapshot(shown);
                        }
                    }
                }
            }
            if span.failed || span.ended {
                state.end_span(span.failed);
            }
        }
        self.ahead = state;
        looked_at
    }
}

/// Whether a statement, once done, has closed portals: one by name, or all. Whoever ends a
/// transaction has, whether or not another one follows.
fn closes(class: &Class) -> Option<Option<&str>> {
    match class {
        Class::Transaction(
            TransactionControl::Commit { .. }
            | TransactionControl::Rollback { .. }
            | TransactionControl::Prepare(_),
        )
        | Class::Session(SessionControl::DiscardAll) => Some(None),
        Class::Session(SessionControl::CloseCursor(name)) => Some(name.as_deref()),
        _ => None,
    }
}

fn unexpected(what: &'static str) -> Result<Reply, Unexpected> {
    Err(Unexpected { what })
}
