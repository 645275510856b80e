//! What was forwarded and not yet answered.

use std::collections::VecDeque;

use super::state::{Act, Shown};
use crate::protocol::postgres::frame::ClosedKind;

/// A span's number: they are counted from 1 as they begin. What ends with one ReadyForQuery is a
/// span: a simple Query, a FunctionCall, or the messages up to a Sync.
pub type SpanId = u64;

/// One answer that is awaited.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// CommandComplete, EmptyQueryResponse or PortalSuspended; `None` for an empty text.
    Statement(Option<Act>),
    /// Any number of those: a text that was not read.
    Unread,
    /// FunctionCallResponse.
    Function,
    /// ParseComplete. `Some`: it takes a snapshot while these are shown.
    Parse(Box<[u8]>, Option<Shown>),
    /// BindComplete. The same.
    Bind(Box<[u8]>, Option<Shown>),
    /// RowDescription or NoData. The same.
    Describe(Option<Shown>),
    /// CloseComplete.
    Close(ClosedKind, Box<[u8]>),
    /// CommandComplete of a ROLLBACK of the proxy.
    RollBack,
    /// No answer: the client ended its CopyData. Until then a server in COPY ignores Sync.
    CopyEnd,
    /// ErrorResponse, in the place of which this is told.
    Refused(Vec<u8>),
}

impl Step {
    /// What is shown while it takes a snapshot ahead of a statement.
    pub(super) fn snapshot(&self) -> Option<&Shown> {
        match self {
            Step::Parse(_, shown) | Step::Bind(_, shown) | Step::Describe(shown) => shown.as_ref(),
            _ => None,
        }
    }
}

/// Whose messages a span has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// The client's.
    Client,
    /// The client's, and another span of the proxy has the ReadyForQuery that the client gets.
    ClientContinued,
    /// The proxy's: nothing of it is for the client.
    Proxy,
    /// The proxy's, but its ReadyForQuery is for the client.
    ProxyForClient,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq))]
pub(super) struct Span {
    pub(super) id: SpanId,
    pub(super) origin: Origin,
    pub(super) steps: VecDeque<Step>,
    /// What makes the server say ReadyForQuery has been forwarded.
    pub(super) ended: bool,
    /// That was a Sync.
    pub(super) by_sync: bool,
    /// How many of the first steps are the extended protocol's: after an error in one of those the
    /// server skips to a Sync, after one in a simple Query it does not.
    pub(super) extended: usize,
    /// The server takes data for the first step, or has taken it: the first end of data is that
    /// one's.
    pub(super) copies: bool,
    /// The server told an error: it skips to the end of the span.
    pub(super) failed: bool,
    /// An error is on its way that the proxy has asked for: what comes up to the Sync is skipped.
    pub(super) refused: bool,
    /// The last statement that it refused was a COMMIT: the transaction is rolled back at its end.
    pub(super) rolls_back: bool,
}

impl Span {
    pub(super) fn new(id: SpanId, origin: Origin) -> Span {
        Span {
            id,
            origin,
            steps: VecDeque::new(),
            ended: false,
            by_sync: false,
            extended: 0,
            copies: false,
            failed: false,
            refused: false,
            rolls_back: false,
        }
    }

    /// The next step that has an answer.
    pub(super) fn take(&mut self) -> Option<Step> {
        // The end of a COPY has none.
        while self.steps.front() == Some(&Step::CopyEnd) {
            self.steps.pop_front();
        }
        self.extended = self.extended.saturating_sub(1);
        self.steps.pop_front()
    }

    /// The first step is complete: what comes next may copy, too.
    pub(super) fn end_copy(&mut self) {
        let end = |step: &Step| *step == Step::CopyEnd;
        if std::mem::take(&mut self.copies)
            && let Some(at) = self.steps.iter().position(end)
        {
            self.steps.remove(at);
        }
    }

    pub(super) fn push_extended(&mut self, step: Step) {
        if !self.failed {
            self.extended += 1;
            self.steps.push_back(step);
        }
    }

    pub(super) fn push(&mut self, step: Step) {
        // After an error the server skips what comes up to the Sync.
        if !self.failed {
            self.steps.push_back(step);
        }
    }
}
