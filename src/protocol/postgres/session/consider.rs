//! What a message would do: pure, nothing is changed.

use std::sync::Arc;

use super::early::{Looks, cut_head, only_sets};
use super::span::{Span, SpanId, Step};
use super::state::{Act, State};
use super::{Bound, Considered, Kind, Message, Name, Path, Prepared, Run, Session, commits};
use crate::protocol::postgres::classify::{
    Class, Classified, SessionControl, Statement, TransactionControl, Unreadable,
};
use crate::protocol::postgres::frame::{Bind, BindHead};
use crate::protocol::postgres::ticket::Tickets;
use crate::protocol::postgres::ticket::change::{Change, Doubts, Lasts, To, changes};
use crate::protocol::postgres::ticket::comment::{self, CommentTickets};
use crate::protocol::refusal::Refusal;

impl Session {
    /// What a message does. An error is told in the place of the message: pass it to
    /// [`Session::refuse`] with [`Session::unread`].
    pub fn consider(&self, message: Message<'_>) -> Result<Considered, Refusal> {
        if self.copying && !matches!(message, Message::CopyData | Message::CopyEnd) {
            // The server ignores Sync and Flush there, and takes nothing else.
            return match message {
                Message::Sync | Message::Flush => Ok(self.considered(Kind::Silent)),
                _ => Err(Refusal::malformed("a message other than data during COPY")),
            };
        }
        match message.cut() {
            Message::Query(text, classified) => self.consider_query(text, classified),
            Message::Parse(name, text, classified) => self.consider_parse(name, text, classified),
            Message::Bind(bind) => self.consider_bind(bind.head(), Some(bind)),
            Message::BindHead(head) => self.consider_bind(head, None),
            Message::Execute(portal) => self.consider_execute(portal),
            Message::ExecuteSome(portal) => self.consider_beginning(portal),
            Message::FunctionCall => Ok(self.consider_function()),
            Message::Describe(kind, name) => Ok(self.consider_describe(kind, name)),
            Message::Close(kind, name) => Ok(self.one_step(Step::Close(kind, name.into()))),
            Message::Sync => Ok(self.considered(Kind::Sync)),
            Message::CopyEnd => Ok(Considered {
                steps: vec![Step::CopyEnd],
                ..self.considered(Kind::Silent)
            }),
            Message::Flush | Message::CopyData => Ok(self.considered(Kind::Silent)),
        }
    }

    /// A message of this kind that runs nothing, for a refusal before it was read.
    pub fn unread(&self, message: Message<'_>) -> Considered {
        match message {
            Message::Query(..) | Message::FunctionCall => self.considered(Kind::Query),
            _ => self.considered(Kind::Extended),
        }
    }

    pub(super) fn considered(&self, kind: Kind) -> Considered {
        Considered {
            runs: vec![],
            asks: false,
            rolled_back: self.rolled_back,
            may_commit: false,
            presents: Default::default(),
            analyses: vec![],
            kind,
            steps: vec![],
            names: vec![],
        }
    }

    pub(super) fn one_step(&self, step: Step) -> Considered {
        Considered {
            steps: vec![step],
            ..self.considered(Kind::Extended)
        }
    }

    /// The number of the client's span that has no Sync yet.
    pub(super) fn open_id(&self) -> Option<SpanId> {
        self.open_span().map(|span| span.id)
    }

    /// The path in which the server will resolve names in this state. While something on its way
    /// may fail and leave another one, it is not known.
    pub(super) fn path_in(&self, state: &State) -> Path {
        let path = state.scope.now().known_path()?;
        let certain = !self.is_behind()
            || self.path_touched.is_none() && self.certain.scope.has_only_path(&path);
        certain.then_some(path)
    }

    /// The client's span that has no Sync yet.
    pub(super) fn open_span(&self) -> Option<&Span> {
        self.spans.back().filter(|span| !span.ended)
    }

    /// Whether the gate is asked before the next statement is forwarded.
    pub(super) fn asks(&self) -> bool {
        !self.ahead.scope.in_transaction() || self.is_behind()
    }

    /// Whether something that was forwarded may fail yet without what comes next being skipped.
    pub(super) fn is_behind(&self) -> bool {
        self.spans.iter().any(|span| span.ended)
    }

    /// Whether a transaction may end with these runs, after which the state is this one.
    fn may_commit(&self, runs: &[Run], after: &State) -> bool {
        !after.is_explicit() || self.is_behind() || runs.iter().any(|run| commits(&run.statement))
    }

    /// Whether a run has tickets that the gate was not asked for.
    fn has_new_tickets(&self, runs: &[Run]) -> bool {
        runs.iter()
            .any(|run| !run.comment.is_empty() || run.tickets != self.asked)
    }

    fn consider_query(&self, text: &[u8], classified: &Classified) -> Result<Considered, Refusal> {
        let comment = self.comment(text, classified)?;
        let mut state = self.ahead.clone();
        let mut considered = self.considered(Kind::Query);
        considered.asks = self.asks();
        if classified.statements.is_empty() {
            considered.steps.push(Step::Statement(None));
        }
        for statement in &classified.statements {
            if let Class::Unknown(_) = statement.class {
                considered.steps.push(Step::Unread);
            }
            let changes = changes(statement, None)?;
            self.add_run(&mut considered, &mut state, statement, changes, &comment)?;
        }
        considered.asks |= self.has_new_tickets(&considered.runs);
        considered.may_commit = self.may_commit(&considered.runs, &state);
        Ok(considered)
    }

    fn comment(&self, text: &[u8], classified: &Classified) -> Result<Tickets, Refusal> {
        let unread = classified
            .statements
            .iter()
            .any(|statement| matches!(statement.class, Class::Unknown(_)));
        if unread {
            // What the grammar did not take has no comments that are certain.
            return Ok(Tickets::default());
        }
        let found = comment::find(text)?;
        Ok(found.map_or_else(Tickets::default, |CommentTickets { tickets, .. }| tickets))
    }

    /// Adds a statement to what a message runs, and its effect to the state.
    fn add_run(
        &self,
        considered: &mut Considered,
        state: &mut State,
        statement: &Arc<Statement>,
        changes: Vec<Change>,
        comment: &Tickets,
    ) -> Result<(), Refusal> {
        let mut changes = self.doubts.about(statement, changes);
        let begins = matches!(
            statement.class,
            Class::Transaction(TransactionControl::Begin(_))
        );
        if begins && !comment.is_empty() {
            // On BEGIN a comment counts for the transaction.
            changes.push(Change::Tickets(
                To::Value(comment.clone()),
                Lasts::Transaction,
            ));
        }
        let mut executed = match statement.executes.as_deref() {
            None => vec![],
            Some(name) => {
                let found = self.statements.candidates(name.as_bytes(), self.open_id());
                let known = found
                    .known
                    .into_iter()
                    .filter_map(|it| it.statement.clone());
                let known = known.chain(prepared_before(&considered.runs, name));
                // With what is not known among them, it may be anything: as if none were known.
                match found.unknown {
                    true => vec![],
                    false => known.collect(),
                }
            }
        };
        changes.extend(changes_of_executed(statement, &executed, self.doubts)?);
        let fetched = match &statement.class {
            Class::Session(SessionControl::Fetch(name)) => {
                self.run_by_fetch(name.as_bytes(), state, &considered.runs)
            }
            _ => vec![],
        };
        changes.extend(fetched.iter().flat_map(|it| it.changes.clone()));
        if statement.executes.is_some() && executed.is_empty() {
            let unknown = self.prepares_about_databases.then(|| self.unknown());
            executed.extend(unknown.map(Arc::new));
        }
        let late = state.snapshot_is_fixed();
        if let Class::Transaction(TransactionControl::Savepoint(name)) = &statement.class
            && let Err(error) = state.scope.clone().savepoint(name)
        {
            return Err(Refusal::invalid(error.to_string()));
        }
        let imports = match &statement.class {
            Class::Session(SessionControl::ImportSnapshot(name)) => Some(name),
            _ => None,
        };
        let known = self.exported.as_ref();
        let known = known.filter(|(name, _)| Some(name) == imports);
        let mut act = Act {
            statement: Arc::clone(statement),
            changes,
            comment: comment.clone(),
            shown: None,
            imported: known.map(|(_, shown)| shown.clone()),
        };
        state.apply(&act);
        let now = state.scope.now();
        let shown = [now.tickets.clone(), comment.clone()];
        act.shown = Some(shown.clone());
        let ends = !state.scope.in_transaction();
        // By its own Parse it may have fixed it: what it sets counts in the next transaction.
        let only_sets = considered.kind == Kind::Extended && only_sets(statement);
        if let Class::Session(SessionControl::Fetch(name)) = &statement.class {
            self.check_fetched(name.as_bytes(), state, &shown)?;
            self.begin_portal(considered, name.as_bytes(), &shown)?;
        }
        if statement.opens.is_some() && !state.cursors.has_room() {
            return Err(Refusal::invalid("the session has too many cursors"));
        }
        if imports.is_some() && state.shows_late(&shown) {
            return Err(Refusal::invalid(
                "the snapshot was not exported by pg_catalog.pg_export_snapshot() under this \
                 ticket through this listener: give the session that exports it the same ticket",
            ));
        }
        if late && !ends && !only_sets && state.shows_late(&shown) {
            return Err(Refusal::invalid(
                "a ticket is set before the first query of a REPEATABLE READ or SERIALIZABLE \
                 transaction: what it reads now was fixed before",
            ));
        }
        let search_path = self.path_in(state);
        let run = |statement, executed, search_path| Run {
            statement,
            executed,
            tickets: now.tickets.clone(),
            comment: comment.clone(),
            search_path,
        };
        for it in fetched {
            let path = it.path_in(&search_path);
            considered.runs.push(run(it.statement, vec![], path));
        }
        let last = run(Arc::clone(statement), executed, search_path);
        considered.runs.push(last);
        if !matches!(statement.class, Class::Unknown(_)) {
            considered.steps.push(Step::Statement(Some(act)));
        }
        Ok(())
    }

    fn consider_parse(
        &self,
        name: &[u8],
        text: &[u8],
        classified: &Classified,
    ) -> Result<Considered, Refusal> {
        if !self.statements.has_room() {
            return Err(Refusal::invalid(
                "the session has too many prepared statements",
            ));
        }
        let statement = match classified.statements.as_slice() {
            [] => None,
            [statement] => Some(Arc::clone(statement)),
            // The server refuses it: one statement at a time.
            _ => Some(Arc::new(Statement::unreadable(
                Unreadable::TooMany,
                text.len(),
            ))),
        };
        let begins = statement.as_ref().is_some_and(|it| it.operation == "BEGIN");
        // A named statement may run again, when the ticket in its text is old.
        let counts = name.is_empty() || begins;
        let comment = match counts {
            true => self.comment(text, classified)?,
            false => Tickets::default(),
        };
        let prepared = Prepared { statement, comment };
        let looks = Looks::at(prepared.statement.as_deref().into_iter());
        let (presents, shown) = self.early(looks, &prepared.comment);
        let analyses = self.analyses(looks, [&prepared].into_iter());
        Ok(Considered {
            names: vec![Name::Statement(name.into(), prepared)],
            presents,
            ..self.analysing(Step::Parse(name.into(), shown), analyses)
        })
    }

    fn consider_bind(
        &self,
        head: BindHead<'_>,
        bind: Option<&Bind<'_>>,
    ) -> Result<Considered, Refusal> {
        let BindHead {
            portal,
            statement,
            has_values,
        } = cut_head(head);
        if !self.portals.has_room() {
            return Err(Refusal::invalid("the session has too many portals"));
        }
        let mut names = vec![];
        let mut bound = vec![];
        let found = self.statements.candidates(statement, self.open_id());
        let search_path = self.path_in(&self.ahead);
        let known = match found.unknown {
            true => vec![],
            false => found.known,
        };
        for prepared in known {
            let changes = match &prepared.statement {
                // A portal that has ended may be executed again, and sets nothing then.
                Some(statement) if !statement.uses.set_configs.is_empty() => {
                    let changes = changes(statement, bind)?.into_iter();
                    changes.map(Change::unsure).collect()
                }
                Some(statement) => changes(statement, bind)?,
                None => vec![],
            };
            let begins = prepared.statement.as_ref();
            let begins = begins.is_some_and(|it| it.operation == "BEGIN");
            if !begins && !prepared.comment.is_empty() {
                names.push(Name::CommentUsed);
            }
            let search_path = search_path.clone();
            bound.push(Bound {
                prepared: prepared.clone(),
                changes,
                search_path,
                shown: None,
                within: 0,
            });
        }
        if bound.is_empty() {
            // A statement that SQL within a function prepared.
            let prepared = Prepared {
                statement: Some(Arc::new(self.unknown())),
                comment: Tickets::default(),
            };
            bound.push(Bound {
                prepared,
                changes: vec![],
                search_path: None,
                shown: None,
                within: 0,
            });
        }
        let statements = bound
            .iter()
            .filter_map(|it| it.prepared.statement.as_deref());
        let looks = match Looks::at(statements) {
            _ if bound.iter().any(Bound::is_fixed) => Looks::ToRead,
            // Its values are read with a snapshot, whatever the statement is.
            Looks::Not if has_values => Looks::Ahead,
            looks => looks,
        };
        let comments = bound.iter().map(|it| &it.prepared.comment);
        let comment = comments.clone().find(|it| !it.is_empty()).cloned();
        let (presents, shown) = self.early(looks, &comment.unwrap_or_default());
        for it in bound.iter_mut().filter(|it| it.is_fixed()) {
            it.shown.clone_from(&shown);
        }
        let analyses = self.analyses(looks, bound.iter().map(|it| &it.prepared));
        names.push(Name::Portal(portal.into(), bound.into()));
        Ok(Considered {
            names,
            presents,
            ..self.analysing(Step::Bind(portal.into(), shown), analyses)
        })
    }

    pub(super) fn consider_execute(&self, portal: &[u8]) -> Result<Considered, Refusal> {
        let mut considered = self.considered(Kind::Extended);
        considered.asks = self.asks();
        let found = self.portal(portal);
        if found.unknown || found.known.is_empty() {
            // The server may know it: a cursor that SQL declared.
            let why = self.unknown();
            let mut state = self.ahead.clone();
            let none = Tickets::default();
            self.add_run(&mut considered, &mut state, &Arc::new(why), vec![], &none)?;
            let shown = [self.settings().tickets.clone(), none];
            self.check_fetched(portal, &state, &shown)?;
            considered.steps.push(Step::Statement(None));
            considered.may_commit = true;
            return Ok(considered);
        }
        let bound: Vec<&Bound> = found.known.iter().copied().flat_map(|it| &**it).collect();
        check_acts(&bound)?;
        for (at, bound) in bound.into_iter().enumerate() {
            let Some(statement) = &bound.prepared.statement else {
                considered.steps.push(Step::Statement(None));
                continue;
            };
            let mut state = self.ahead.clone();
            let comment = &bound.prepared.comment;
            let changes = bound.changes.clone();
            self.add_run(&mut considered, &mut state, statement, changes, comment)?;
            if let Some(run) = considered.runs.last_mut() {
                if run.search_path != bound.search_path {
                    run.search_path = None;
                }
                bound.check_shown(run)?;
            }
            self.check_executed(portal, &state)?;
            considered.may_commit |= self.may_commit(&considered.runs, &state);
            if let Class::Unknown(_) = statement.class {
                considered.steps.push(Step::Statement(None));
            }
            // One of them runs, the newest as a rule; the server gives one answer.
            if at > 0 {
                considered.steps.truncate(1);
            }
        }
        considered.asks |= self.has_new_tickets(&considered.runs);
        Ok(considered)
    }
}

/// What an EXECUTE changes by what it executes. What may not happen leaves the setting unknown.
fn changes_of_executed(
    statement: &Statement,
    executed: &[Arc<Statement>],
    doubts: Doubts,
) -> Result<Vec<Change>, Refusal> {
    let mut all = vec![];
    let sure = executed.len() == 1 && statement.operation == "EXECUTE";
    for executed in executed {
        let of_executed = doubts.about(executed, changes(executed, None)?).into_iter();
        all.extend(of_executed.map(|change| match sure {
            true => change,
            false => change.unsure(),
        }));
    }
    Ok(all)
}

/// Of a portal that may be several statements one runs, and the server does not say which: where
/// they change the session or the transaction in different ways, what would be is not known. One
/// that exports a snapshot must not pass for another, whose row could name any.
fn check_acts(bound: &[&Bound]) -> Result<(), Refusal> {
    let acts = |bound: &&Bound| {
        let statement = bound.prepared.statement.as_deref();
        statement.is_some_and(|it| {
            matches!(it.class, Class::Transaction(_) | Class::Session(_))
                || it.executes.is_some()
                || it.uses.exports_snapshot
        }) || !bound.changes.is_empty()
    };
    if bound.len() > 1 && bound.iter().any(acts) {
        return Err(Refusal::unclassified(
            "which statement its name means is not certain before the server has answered",
        ));
    }
    Ok(())
}

/// The statements that earlier runs of the same text prepare under a name.
fn prepared_before(runs: &[Run], name: &str) -> Vec<Arc<Statement>> {
    let prepared = |run: &Run| match &run.statement.class {
        Class::Session(SessionControl::Prepare {
            name: known,
            statement,
        }) if **known == *name => Some(Arc::clone(statement)),
        _ => None,
    };
    runs.iter().filter_map(prepared).collect()
}
