//! One session: which transaction each message belongs to, which tickets count for it, and what the
//! server's replies end.
//!
//! The shell calls, for every message of the client, [`Session::consider`] (nothing changes), asks
//! the rules and the gate about [`Considered::runs`], then either [`Session::forward`] and forwards
//! the message, or [`Session::refuse`] and sends what that gives instead. Every message of the
//! server goes through [`Session::reply`].
//!
//! # When the gate is asked
//!
//! [`Considered::asks`] is set where a transaction begins, or may begin: after each commit boundary
//! within a span, and at the first statement of a span that is sent before an earlier one ended.
//! The permits are the span's and last until [`Reply::ended`] names it or a later one: the
//! ReadyForQuery that reports no transaction, or the error that ends one without a block.
//!
//! # Refusals keep the server's own state
//!
//! In the place of a refused message goes a text that is no SQL. The server refuses it natively: an
//! open transaction fails, the rest of a pipeline is skipped, ReadyForQuery tells the state. Only
//! the ErrorResponse is replaced. The text cannot do anything, wherever it is parsed, and the
//! unnamed statement survives it. A refused COMMIT ends its transaction: a ROLLBACK follows.
//!
//! # Rolled back under the client
//!
//! When the proxy rolls a block back ([`Session::roll_back`]), the client still believes in it. Its
//! next span is preceded by a BEGIN of the proxy, so that an error leaves the server in the state
//! that the client expects, and its ROLLBACK has something to end. An error alone would not do: it
//! ends no more than the innermost savepoint, and the rest could be committed yet.
//!
//! A pipeline of a failed block, whose Sync may never come, is ended by the proxy first
//! ([`Session::end_pipeline`]). What the client then sends of it is dropped ([`Session::skip`]):
//! the server would have skipped it.
//!
//! What is predicted is checked: an answer that does not fit is [`Unexpected`], and the session
//! ends.

mod carry;
mod consider;
mod cursors;
mod early;
mod lexing;
mod names;
mod recall;
mod reply;
mod span;
mod state;
mod tamper;
mod unknown;

use std::collections::VecDeque;
use std::sync::Arc;

pub use early::only_sets;
pub use names::NAMES_MAX;
pub use reply::{Deliver, Reply, Unexpected};
pub use span::SpanId;
pub use state::Shown;
pub use tamper::may_turn_read_write;

use self::lexing::LexingState;
use self::names::Names;
use self::recall::Recall;
use self::span::{Span, Step};
use self::state::State;
use super::classify::{Class, Classified, Lexing, SessionControl, Statement, TransactionControl};
use super::frame::{Bind, BindHead, ClosedKind, TransactionStatus};
use super::ticket::Tickets;
use super::ticket::change::{Change, Doubts};
use super::ticket::scope::{Scope, Settings};

/// Most spans that are forwarded and not ended. The shell reads no more of the client until one
/// ends.
pub const SPANS_MAX: usize = 1024;

/// Most answers that are awaited, likewise. A server keeps fewer to itself before it sends them
/// (`PQ_SEND_BUFFER_SIZE`, 8 KiB of messages of 5 bytes or more).
pub const STEPS_MAX: usize = 16 * 1024;

/// What the server gets in the place of a refused message. Not SQL, in any version.
pub const REFUSED_TEXT: &[u8] = b"ringfence: refused";

/// The statement's name under which the server refuses it, so that the unnamed one stays.
const REFUSED_NAME: &[u8] = b"ringfence: refused";

/// Under which the proxy runs a statement of its own, so that the client's unnamed ones stay.
const OWN_NAME: &[u8] = b"ringfence: own";

/// A message of the client, as far as the session looks.
#[derive(Clone, Copy, Debug)]
pub enum Message<'m> {
    /// `Q`: the text and what it is. A text that streams has none but what is unread of it.
    Query(&'m [u8], &'m Classified),
    /// `P`: the statement's name, the text and what it is, with the types that are given.
    Parse(&'m [u8], &'m [u8], &'m Classified),
    /// `B`, whole.
    Bind(&'m Bind<'m>),
    /// `B` that was not read as a whole.
    BindHead(BindHead<'m>),
    /// `D`: of which kind, and the name.
    Describe(ClosedKind, &'m [u8]),
    /// `E`: the portal.
    Execute(&'m [u8]),
    /// `E` of so many rows: the portal may go on later.
    ExecuteSome(&'m [u8]),
    /// `C`: of which kind, and the name.
    Close(ClosedKind, &'m [u8]),
    /// `S`.
    Sync,
    /// `H`.
    Flush,
    /// `F`.
    FunctionCall,
    /// `d`.
    CopyData,
    /// `c` and `f`.
    CopyEnd,
}

/// One statement that a message runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// The statement.
    pub statement: Arc<Statement>,
    /// Prepared statements that it may execute: all that its name can mean.
    pub executed: Vec<Arc<Statement>>,
    /// The tickets that count for it by the session's settings, after its own changes.
    pub tickets: Tickets,
    /// Tickets in its comment: for a lock of which both have one, this counts.
    pub comment: Tickets,
    /// The path in which its names are resolved.
    pub search_path: Option<Arc<[Box<str>]>>,
}

/// What a message does; nothing is done yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Considered {
    /// The statements that it runs, in order. None: it can be forwarded.
    pub runs: Vec<Run>,
    /// The gate is asked for every ticket of its runs before it is forwarded.
    pub asks: bool,
    /// The proxy rolled this session's transaction back: refuse it with the reason, unless
    /// [`Considered::only_rolls_back`].
    pub rolled_back: bool,
    /// What was written in the transaction may take effect with it: its permits are released
    /// before it is forwarded. Not where a block stays open after it.
    pub may_commit: bool,
    /// Tickets that are presented before it is forwarded, though it runs nothing: it takes the
    /// snapshot of what is read under them. The session's, and those of a comment.
    pub presents: [Tickets; 2],
    /// Statements that it analyses or plans, or whose values it reads. Where a type of the database
    /// runs a function as it is read, they count as if they ran.
    pub analyses: Vec<Run>,
    kind: Kind,
    steps: Vec<Step>,
    names: Vec<Name>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Query,
    Extended,
    Sync,
    Silent,
}

/// A name that the message takes.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Name {
    Statement(Box<[u8]>, Prepared),
    Portal(Box<[u8]>, Arc<[Bound]>),
    /// What this portal reads is read while these are shown.
    Begun(Box<[u8]>, Shown),
    /// The comment of the unnamed statement is used up.
    CommentUsed,
}

/// A schema path; `None` where it is not known.
type Path = Option<Arc<[Box<str>]>>;

/// A prepared statement; `None` for an empty text.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Prepared {
    statement: Option<Arc<Statement>>,
    comment: Tickets,
}

/// A statement with the values of its parameters. A portal has all that its statement's name could
/// mean.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Bound {
    prepared: Prepared,
    changes: Vec<Change>,
    /// The path of its Bind, where the server resolves the names of what it can plan.
    search_path: Path,
    /// What was shown when what it reads was fixed: as it was bound, or began to run.
    shown: Option<Shown>,
    /// How many savepoints were open as it was bound: those that are not released.
    within: usize,
}

impl Considered {
    /// Whether all that it does is to end the transaction by rolling it back.
    pub fn only_rolls_back(&self) -> bool {
        let rolls_back = |run: &Run| {
            let control = &run.statement.class;
            matches!(
                control,
                Class::Transaction(TransactionControl::Rollback { chain: false })
            )
        };
        self.runs.iter().all(rolls_back)
    }

    /// Whether it is a message of the extended protocol, whose first one begins a span that ends
    /// with a Sync.
    pub fn begins_span(&self) -> bool {
        self.kind == Kind::Extended
    }

    /// Whether what is to run later in its span has tickets in a comment.
    pub fn brings_tickets(&self) -> bool {
        self.names.iter().any(|name| match name {
            Name::Statement(_, prepared) => !prepared.comment.is_empty(),
            Name::Portal(_, bound) => bound.iter().any(|it| !it.prepared.comment.is_empty()),
            Name::Begun(..) | Name::CommentUsed => false,
        })
    }

    fn commits(&self) -> bool {
        let commits = |run: &Run| {
            let class = &run.statement.class;
            matches!(
                class,
                Class::Transaction(
                    TransactionControl::Commit { .. } | TransactionControl::Prepare(_)
                )
            )
        };
        self.runs.iter().any(commits)
    }
}

/// One session.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq))]
pub struct Session {
    /// What the server has confirmed.
    certain: State,
    /// What it will be once the server has done what was forwarded.
    ahead: State,
    /// Something has come otherwise: see [`Session::catch_up`].
    surprised: bool,
    spans: VecDeque<Span>,
    next_span: SpanId,
    status: TransactionStatus,
    statements: Names<Prepared>,
    portals: Names<Arc<[Bound]>>,
    /// The server waits for CopyData.
    copying: bool,
    /// A statement was prepared that calls set_config.
    sets_config: bool,
    /// A statement was prepared that is about databases: one that is not known may be that.
    prepares_about_databases: bool,
    /// A cursor was declared.
    declares: bool,
    /// The client believes in a transaction that the proxy rolled back, and was not told yet.
    rolled_back: bool,
    /// The client goes on with a pipeline that the proxy has ended: the server would have skipped
    /// the rest of it.
    skips: bool,
    /// A BEGIN of the proxy goes before the client's next message.
    begins_again: bool,
    /// The tickets that the gate was asked for last.
    asked: Tickets,
    lexing: LexingState,
    /// In spans up to this one something may have done anything to the session.
    distrusted: SpanId,
    /// A snapshot that was exported, and what was shown when it was taken.
    exported: Option<(Box<str>, Shown)>,
    /// A span up to this one may change the path, or what it means.
    path_touched: Option<SpanId>,
    /// The last span with which, or in which, cursors and portals end that were open.
    ends: SpanId,
    doubts: Doubts,
    recall: Recall,
}

impl Session {
    /// A session whose first ReadyForQuery has come, with the settings that it begins with.
    pub fn new(start: Settings) -> Session {
        let state = State::new(Scope::new(start));
        Session {
            certain: state.clone(),
            ahead: state,
            surprised: false,
            spans: VecDeque::new(),
            next_span: 1,
            status: TransactionStatus::Idle,
            statements: Names::new(),
            portals: Names::new(),
            copying: false,
            sets_config: false,
            prepares_about_databases: false,
            declares: false,
            rolled_back: false,
            skips: false,
            begins_again: false,
            asked: Tickets::default(),
            lexing: LexingState::default(),
            distrusted: 0,
            exported: None,
            path_touched: None,
            ends: 0,
            doubts: Doubts::ALL,
            recall: Recall::default(),
        }
    }

    /// Nothing is awaited of the server, and it takes a query: it does not skip to a Sync that the
    /// client has yet to send.
    pub fn is_quiet(&self) -> bool {
        let awaited = |span: &Span| span.steps.iter().any(|step| *step != Step::CopyEnd);
        let quiet = |span: &Span| !span.ended && !span.failed && !awaited(span);
        !self.copying && self.spans.iter().all(quiet)
    }

    /// Whether answers are awaited that the server may keep until a Sync or Flush.
    pub fn may_need_flush(&self) -> bool {
        let open = self.spans.back().filter(|span| !span.ended);
        !self.copying && open.is_some_and(|span| !span.steps.is_empty())
    }

    /// The client has begun a pipeline, and the server answers to it when it likes until the
    /// client sends a Sync or Flush.
    pub fn is_in_pipeline(&self) -> bool {
        self.spans.back().is_some_and(|span| !span.ended)
    }

    /// Whether nothing more comes of the server until the client sends more: the answers have come,
    /// and the server may skip to a Sync.
    pub fn is_stalled(&self) -> bool {
        let awaited = |span: &Span| span.steps.iter().any(|step| *step != Step::CopyEnd);
        let stalled = |span: &Span| !span.ended && (span.failed || !awaited(span));
        self.copying || self.spans.iter().all(stalled)
    }

    /// Whether the server has a transaction open, as far as it has told: a block, or statements
    /// that wait for their Sync.
    pub fn in_transaction(&self) -> bool {
        self.certain.scope.in_transaction()
    }

    /// Whether the server waits for CopyData.
    pub fn is_copying(&self) -> bool {
        self.copying
    }

    /// Whether the server has a block open, as far as it has told: a transaction that a ROLLBACK
    /// can end at once.
    pub fn in_block(&self) -> bool {
        self.certain.is_explicit()
    }

    /// The same behind all that was forwarded.
    pub fn will_be_in_block(&self) -> bool {
        self.ahead.is_explicit()
    }

    /// Whether the open transaction has taken a snapshot, as far as the server has told.
    pub fn has_snapshot(&self) -> bool {
        self.certain.has_snapshot()
    }

    /// The span that the next message joins, or begins: whose permits are asked for.
    pub fn span(&self) -> SpanId {
        self.open_id().unwrap_or(self.next_span)
    }

    /// The first span that has not ended.
    pub fn awaited_span(&self) -> Option<SpanId> {
        self.spans.front().map(|span| span.id)
    }

    /// What is certain about the bytes of the next text.
    pub fn lexing(&self) -> Lexing {
        self.lexing.certain()
    }

    /// A parameter of the server's, before the session began; later ones come by
    /// [`Session::reply`].
    pub fn parameter(&mut self, name: &[u8], value: &[u8]) {
        self.lexing.begins_with(name, value);
    }

    /// A snapshot of this name was taken while these were shown, and they were settled before.
    pub fn knows_snapshot(&mut self, name: &str, shown: Shown) {
        self.exported = Some((name.into(), shown));
    }

    /// What was shown when the snapshot was taken whose name the server's next row tells; `None`:
    /// that row tells none.
    pub fn exports(&self) -> Option<Shown> {
        let step = self.spans.front()?.steps.front()?;
        let Step::Statement(Some(act)) = step else {
            return None;
        };
        if !act.statement.uses.exports_snapshot {
            return None;
        }
        let mut state = self.certain.clone();
        state.apply(act);
        state.snapshot().cloned()
    }

    /// A statement of the message that was forwarded last may have done anything to the session, as
    /// a volatile function can: what its prepared statements and its path are is not known any
    /// more. It may have committed that, whatever becomes of the message.
    pub fn distrust(&mut self) {
        self.statements.distrust();
        self.portals.distrust();
        self.lexing.hold(self.next_span);
        self.distrusted = self.next_span - 1;
        self.certain.distrust();
        self.ahead.distrust();
    }

    /// What of `set_config` in the next message may be something else than it looks like.
    pub fn doubt(&mut self, doubts: Doubts) {
        self.doubts = doubts;
    }

    /// What the last ReadyForQuery told.
    pub fn status(&self) -> TransactionStatus {
        self.status
    }

    /// Whether another message of the client can be taken now.
    pub fn has_room(&self) -> bool {
        let steps = self.spans.iter().map(|span| span.steps.len());
        self.spans.len() < SPANS_MAX && steps.sum::<usize>() < STEPS_MAX
    }

    /// The settings that count for what the client sends next.
    pub fn settings(&self) -> &Settings {
        self.ahead.scope.now()
    }
}

/// What is sent with a message that is forwarded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Forward {
    /// Before it.
    pub before: Vec<u8>,
    /// After it.
    pub after: Vec<u8>,
}

/// Whether a statement may make effective what was written, or writes outside of its transaction.
pub fn commits(statement: &Statement) -> bool {
    let control = matches!(
        &statement.class,
        Class::Transaction(
            TransactionControl::Commit { .. }
                | TransactionControl::Prepare(_)
                | TransactionControl::CommitPrepared(_)
                | TransactionControl::RollbackPrepared(_)
        )
    );
    control || statement.class == Class::Maintenance || statement.may_commit_inside()
}

/// Whether a statement forgets prepared statements: one by name, or all.
fn forgets(statement: &Statement) -> Option<Option<&str>> {
    match &statement.class {
        Class::Session(SessionControl::Deallocate(name)) => Some(name.as_deref()),
        Class::Session(SessionControl::DiscardAll) => Some(None),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
