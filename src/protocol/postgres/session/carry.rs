//! What becomes of a message: forwarded, refused, or something of the proxy's own in between.

use std::sync::Arc;

use super::cursors::ends;
use super::early::begin;
use super::span::{Origin, Span, Step};
use super::{
    Considered, Forward, Kind, Message, Name, OWN_NAME, Prepared, REFUSED_NAME, REFUSED_TEXT, Run,
    Session, lexing,
};
use crate::protocol::postgres::classify::{Class, SessionControl, Statement};
use crate::protocol::postgres::frame::{self, ClosedKind};
use crate::protocol::postgres::identifier::cut_bytes;
use crate::protocol::postgres::ticket::Tickets;
use crate::protocol::postgres::ticket::change::Change;

impl Session {
    /// Whether a Bind may bind a statement that calls set_config.
    pub fn may_set_config(&self, statement: &[u8]) -> bool {
        if !self.sets_config {
            return false;
        }
        let name = cut_bytes(statement);
        let candidates = self.statements.candidates(name, self.open_id());
        let mut known = candidates
            .known
            .iter()
            .filter_map(|it| it.statement.as_ref());
        known.any(|it| !it.uses.set_configs.is_empty())
    }

    /// The statements that a Bind may bind: for the tickets in its values.
    pub fn bound_statements(&self, statement: &[u8]) -> Vec<Arc<Statement>> {
        let candidates = self
            .statements
            .candidates(cut_bytes(statement), self.open_id());
        let known = candidates.known.into_iter();
        known.filter_map(|it| it.statement.clone()).collect()
    }

    /// Has a message forwarded that runs nothing, where nothing else is to be done: as
    /// [`Session::consider`] and [`Session::forward`] would, of which neither is needed then.
    /// `false`: nothing was done.
    pub fn pass(&mut self, message: Message<'_>) -> bool {
        if self.copying || self.rolled_back || self.begins_again || self.skips {
            return false;
        }
        match message {
            Message::Sync => {
                let span = self.span_to_fill();
                if span.rolls_back {
                    return false;
                }
                (span.ended, span.by_sync) = (true, true);
                self.end_ahead();
            }
            // It was planned by its Bind.
            Message::Describe(ClosedKind::Portal, _) => {
                self.span_to_fill().push_extended(Step::Describe(None));
            }
            Message::Close(ClosedKind::Portal, name) => {
                let name = cut_bytes(name);
                if !self.span_to_fill().failed {
                    self.ahead.close_portal(name);
                }
                let step = Step::Close(ClosedKind::Portal, name.into());
                self.span_to_fill().push_extended(step);
            }
            _ => return false,
        }
        true
    }

    /// The message is forwarded: what is to be sent before it.
    pub fn forward(&mut self, considered: &Considered) -> Forward {
        assert!(
            !considered.rolled_back || considered.only_rolls_back(),
            "nothing runs for a client that believes in a transaction that was rolled back"
        );
        let mut forward = Forward::default();
        if considered.kind == Kind::Silent {
            if considered.steps.contains(&Step::CopyEnd) {
                self.end_copy();
            }
            return forward;
        }
        self.begin_again(&mut forward.before);
        let skipped = self.span_to_fill().failed;
        if !skipped {
            for run in &considered.runs {
                self.note_run(run);
            }
            for name in &considered.names {
                self.take_name(name.clone());
            }
        }
        let runs = &considered.runs;
        let distrusts = !skipped && runs.iter().any(|run| run.statement.may_commit_inside());
        for step in &considered.steps {
            if let (Step::Statement(Some(act)), false) = (step, skipped) {
                self.ahead.apply(act);
                if act.changes.iter().any(Change::is_of_path) {
                    self.path_touched = Some(self.next_span);
                }
            }
            if let (Step::Close(ClosedKind::Portal, name), false) = (step, skipped) {
                self.ahead.close_portal(name);
            }
            if let (Some(shown), false) = (step.snapshot(), skipped) {
                self.ahead.take_snapshot(shown);
            }
            let span = self.span_to_fill();
            match considered.kind {
                Kind::Extended => span.push_extended(step.clone()),
                _ => span.push(step.clone()),
            }
        }
        let span = self.span_to_fill();
        match considered.kind {
            // Within a failed pipeline the server skips it.
            Kind::Query if span.failed => {}
            Kind::Query => {
                span.ended = true;
                self.end_ahead();
            }
            Kind::Sync => {
                span.by_sync = true;
                self.end_span(&mut forward.after);
            }
            Kind::Extended | Kind::Silent => {}
        }
        if distrusts {
            self.distrust();
        }
        forward
    }

    fn note_run(&mut self, run: &Run) {
        self.rolled_back = false;
        self.asked = run.tickets.clone();
        let statement = &run.statement;
        if ends(&statement.class) {
            self.ends = self.next_span - 1;
        }
        self.declares |= statement.opens.is_some();
        let unknown = statement.executes.is_some() && run.executed.is_empty();
        let mut all = run.executed.iter().chain([statement]);
        let may_set = |it: &Statement| lexing::may_set(it) || self.doubts.of_types(it);
        if unknown || all.any(|it| may_set(it)) {
            self.lexing.hold(self.next_span);
        } else if lexing::may_take_back(statement) {
            self.lexing.touch(self.next_span);
        }
        if let Class::Session(SessionControl::Prepare { name, statement }) = &statement.class {
            self.note_prepared(Some(statement));
            let prepared = Prepared {
                statement: Some(Arc::clone(statement)),
                comment: Tickets::default(),
            };
            self.statements.await_one(name.as_bytes(), prepared, None);
        }
    }

    /// The message is refused with this ErrorResponse: what is to be sent instead of it.
    pub fn refuse(&mut self, considered: &Considered, error: Vec<u8>) -> Vec<u8> {
        let mut send = vec![];
        if self.open_span().is_some_and(|span| span.failed) {
            // The server would skip it up to the Sync, as it would what it is refused for.
            return send;
        }
        let in_transaction = self.ahead.scope.in_transaction() || self.rolled_back;
        let rolls_back = considered.commits() && in_transaction;
        self.rolled_back = false;
        self.begin_again(&mut send);
        let is_query = considered.kind == Kind::Query;
        let span = self.span_to_fill();
        span.rolls_back |= rolls_back;
        if !is_query {
            span.refused = true;
            span.push_extended(Step::Refused(error));
            send.extend(frame::parse(REFUSED_NAME, REFUSED_TEXT));
            return send;
        }
        span.push(Step::Refused(error));
        send.extend(frame::query(REFUSED_TEXT));
        self.end_span(&mut send);
        send
    }

    /// The client ended its CopyData.
    fn end_copy(&mut self) {
        if std::mem::take(&mut self.copying) {
            if let Some(span) = self.spans.front_mut() {
                span.push(Step::CopyEnd);
            }
            return;
        }
        match self.spans.back_mut() {
            // Behind a Sync that a server in COPY ignores.
            Some(span) if span.ended && span.by_sync => {
                self.span_to_fill().push(Step::CopyEnd);
            }
            Some(span) => span.push(Step::CopyEnd),
            // The server is not in COPY and ignores it.
            None => {}
        }
    }

    fn take_name(&mut self, name: Name) {
        match name {
            Name::Statement(name, prepared) => {
                self.note_prepared(prepared.statement.as_deref());
                self.statements.await_one(&name, prepared, self.open_id());
            }
            Name::Portal(name, portal) => self.portals.await_one(&name, portal, self.open_id()),
            Name::Begun(name, shown) => self.portals.change(&name, |it| begin(it, &shown)),
            Name::CommentUsed => {
                let used = |prepared: &mut Prepared| prepared.comment = Tickets::default();
                self.statements.change(b"", used);
            }
        }
    }

    fn note_prepared(&mut self, prepared: Option<&Statement>) {
        self.sets_config |= prepared.is_some_and(|it| !it.uses.set_configs.is_empty());
        self.prepares_about_databases |= prepared.is_some_and(Statement::is_about_databases);
    }

    fn new_span(&mut self, origin: Origin) -> Span {
        let id = self.next_span;
        self.next_span += 1;
        Span::new(id, origin)
    }

    fn span_to_fill(&mut self) -> &mut Span {
        if self.open_span().is_none() {
            let span = self.new_span(Origin::Client);
            self.spans.push_back(span);
        }
        self.spans.back_mut().expect("one was pushed")
    }

    /// The span's end was forwarded. After a refused COMMIT a ROLLBACK follows, whose ReadyForQuery
    /// is the one for the client.
    fn end_span(&mut self, after: &mut Vec<u8>) {
        let span = self.span_to_fill();
        span.ended = true;
        if !span.rolls_back {
            self.end_ahead();
        } else {
            span.origin = Origin::ClientContinued;
            after.extend(frame::query(b"ROLLBACK"));
            let mut rollback = self.new_span(Origin::ProxyForClient);
            rollback.ended = true;
            rollback.steps.push_back(Step::RollBack);
            self.ahead.end(false, false);
            self.spans.push_back(rollback);
        }
    }

    /// The end of a span was forwarded that does not end with a block.
    fn end_ahead(&mut self) {
        if !self.ahead.is_explicit() {
            self.ends = self.next_span - 1;
        }
        self.ahead.end_span(false);
    }

    /// Before the first message after a roll-back by the proxy.
    fn begin_again(&mut self, before: &mut Vec<u8>) {
        if std::mem::take(&mut self.begins_again) {
            before.extend(self.inject(b"BEGIN", Step::Unread));
            self.ahead.stays_open();
        }
    }

    /// Rolls the open transaction back: what is to be sent. Only while [`Session::is_quiet`] and
    /// [`Session::in_transaction`]. `error` is the ErrorResponse that tells why.
    pub fn roll_back(&mut self, error: Vec<u8>) -> Vec<u8> {
        assert!(self.is_quiet(), "a statement runs");
        if !self.certain.is_explicit() {
            // Up to its Sync: there a ROLLBACK would commit what came before it. An error does not,
            // and the server skips the rest.
            let span = self.span_to_fill();
            span.refused = true;
            span.push_extended(Step::Refused(error));
            return frame::parse(REFUSED_NAME, REFUSED_TEXT);
        }
        self.ahead.end(false, false);
        self.rolled_back = true;
        self.begins_again = true;
        self.inject(b"ROLLBACK", Step::RollBack)
    }

    /// Whether the server skips to a Sync that the client has yet to send, and nothing else is on
    /// its way.
    pub fn awaits_sync_only(&self) -> bool {
        let mut spans = self.spans.iter();
        let only = (spans.next(), spans.next());
        !self.copying && matches!(only, (Some(span), None) if span.failed && !span.ended)
    }

    /// Ends the client's pipeline: what is to be sent. Only while [`Session::awaits_sync_only`].
    pub fn end_pipeline(&mut self) -> Vec<u8> {
        assert!(self.awaits_sync_only(), "the server takes the client's own");
        let span = self.span_to_fill();
        (span.ended, span.by_sync) = (true, true);
        // ReadyForQuery is told when the client asks for it.
        span.origin = Origin::ClientContinued;
        self.ahead.end_span(true);
        self.skips = true;
        frame::sync()
    }

    /// What is sent in the place of a message that the server would skip, in a pipeline that the
    /// proxy has ended or has refused a message of; `None`: it is none. It must not wait for the
    /// gate.
    pub fn skip(&mut self, message: Message<'_>) -> Option<Vec<u8>> {
        if !self.skips {
            let refused = self.open_span().is_some_and(|span| span.refused);
            return (refused && !matches!(message, Message::Sync)).then(Vec::new);
        }
        let mut send = vec![];
        if matches!(message, Message::Sync) {
            self.skips = false;
            let rolled_back = std::mem::take(&mut self.rolled_back);
            self.begin_again(&mut send);
            if rolled_back {
                // Its block has failed, as it was told: an error of which it is told nothing.
                self.span_to_fill().push_extended(Step::Refused(vec![]));
                send.extend(frame::parse(REFUSED_NAME, REFUSED_TEXT));
            }
            let span = self.span_to_fill();
            (span.ended, span.by_sync) = (true, true);
            self.ahead.end_span(false);
            send.extend(frame::sync());
        }
        Some(send)
    }

    /// Runs a statement of the proxy, of which the client sees nothing. Only while
    /// [`Session::is_quiet`], and not between a statement and its Sync, which it would commit.
    /// Not by a Query, which would drop the client's unnamed statement and portal.
    pub fn inject_statement(&mut self, text: &[u8]) -> Vec<u8> {
        let commits = self.in_transaction() && !self.certain.is_explicit();
        assert!(
            self.is_quiet() && !commits,
            "a statement would commit the client's statements"
        );
        let mut span = self.new_span(Origin::Proxy);
        let name = || Box::from(OWN_NAME);
        for step in [
            // The client's, if it has taken the name.
            Step::Close(ClosedKind::Statement, name()),
            Step::Parse(name(), None),
            Step::Bind(name(), None),
            Step::Statement(None),
            Step::Close(ClosedKind::Portal, name()),
            Step::Close(ClosedKind::Statement, name()),
        ] {
            span.push_extended(step);
        }
        (span.ended, span.by_sync) = (true, true);
        self.insert(span);
        [
            frame::close_statement(OWN_NAME),
            frame::parse(OWN_NAME, text),
            frame::bind(OWN_NAME, OWN_NAME),
            frame::execute(OWN_NAME),
            frame::close_portal(OWN_NAME),
            frame::close_statement(OWN_NAME),
            frame::sync(),
        ]
        .concat()
    }

    fn inject(&mut self, text: &[u8], step: Step) -> Vec<u8> {
        let mut span = self.new_span(Origin::Proxy);
        span.ended = true;
        span.steps.push_back(step);
        self.insert(span);
        frame::query(text)
    }

    /// The client's span that waits for its Sync ends after this one.
    fn insert(&mut self, span: Span) {
        let at = match self.spans.back() {
            Some(open) if !open.ended => self.spans.len() - 1,
            _ => self.spans.len(),
        };
        self.spans.insert(at, span);
    }
}
