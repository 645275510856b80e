//! What Parse, Bind and Describe read ahead of their statement: the server analyses and plans with
//! a snapshot (`exec_parse_message`, `exec_bind_message`). In a REPEATABLE READ or SERIALIZABLE
//! transaction that one fixes what every later statement reads, and Parse begins a transaction
//! where none is open. In any transaction a SELECT reads by the snapshot of its Bind, and a cursor
//! by that of its DECLARE (`PortalStart`). So what is shown then is presented before they are
//! forwarded, and a ticket that comes later is late.
//!
//! Other statements that return rows are carried out by the first Execute or FETCH of their portal,
//! and the rows are kept (`FillPortalStore`): for what is left of them a later ticket is late, too.
//!
//! Looking can also act: a domain's check runs as a value is read, by Bind or within a literal of
//! Parse. Where the database has such types the shell takes these messages for runs of their
//! statements.
//!
//! No transaction begins here: the gate is asked with its first statement.

use std::sync::Arc;

use super::span::Step;
use super::state::{Shown, shows_more};
use super::{Bound, Considered, Message, Name, Prepared, Run, Session};
use crate::protocol::postgres::classify::{Argument, Class, Statement};
use crate::protocol::postgres::frame::{BindHead, ClosedKind};
use crate::protocol::postgres::identifier::cut_bytes;
use crate::protocol::postgres::ticket::{Tickets, is_parameter};
use crate::protocol::refusal::Refusal;

/// What a message does with a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Looks {
    /// It takes none.
    Not,
    /// It sets parameters, a ticket among them, and reads nothing.
    ToSet,
    /// It analyses or plans what will read by another one, if there is more than one.
    Ahead,
    /// Its statement reads by it.
    ToRead,
}

impl Looks {
    /// Of one that looks at these.
    pub(super) fn at<'s>(mut statements: impl Iterator<Item = &'s Statement> + Clone) -> Looks {
        match statements.clone().any(looks) {
            false => Looks::Not,
            true if statements.all(|it| only_sets(it) && may_set_ticket(it)) => Looks::ToSet,
            true => Looks::Ahead,
        }
    }
}

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

/// Whether a statement does nothing but set parameters: it reads nothing.
pub fn only_sets(statement: &Statement) -> bool {
    let uses = &statement.uses;
    let builtin = |schema: Option<&str>| schema.is_none_or(|schema| schema == "pg_catalog");
    let mut called = uses.functions.iter();
    let sets = called.all(|it| &*it.name == "set_config" && builtin(it.schema.as_deref()));
    let reads = !uses.reads.is_empty() || !uses.targets.is_empty() || !uses.operators.is_empty();
    !uses.set_configs.is_empty() && sets && !reads
}

fn may_set_ticket(statement: &Statement) -> bool {
    let mut calls = statement.uses.set_configs.iter();
    calls.any(|call| match &call.name {
        Argument::Text(name, _) => is_parameter(name),
        _ => true,
    })
}

/// Whether a portal of a statement reads by the snapshot that its Bind takes (`PORTAL_ONE_SELECT`).
fn reads_as_of_bind(statement: &Statement) -> bool {
    statement.operation == "SELECT" || matches!(statement.class, Class::Unknown(_))
}

impl Bound {
    /// Whether what it reads is fixed when it is bound.
    pub(super) fn is_fixed(&self) -> bool {
        let statement = self.prepared.statement.as_deref();
        statement.is_some_and(|it| reads_as_of_bind(it) && !only_sets(it))
    }

    /// Whether what it reads was fixed before a ticket among these came.
    pub(super) fn is_late(&self, shown: &Shown) -> bool {
        let texts = || shown.iter().flat_map(Tickets::as_slice);
        let seen = self.shown.as_ref();
        seen.is_some_and(|seen| shows_more(seen, texts()))
    }

    /// Whether what it reads is fixed when it begins to run.
    fn begins(&self) -> bool {
        let statement = self.prepared.statement.as_deref();
        self.shown.is_none() && statement.is_some_and(|it| !only_sets(it))
    }

    /// A ticket that it was not bound under is late for it.
    pub(super) fn check_shown(&self, run: &Run) -> Result<(), Refusal> {
        let late = self.is_late(&[run.tickets.clone(), run.comment.clone()]);
        match late && !only_sets(&run.statement) {
            false => Ok(()),
            true => Err(Refusal::invalid(
                "a ticket is set before the portal is bound, or begun, that reads under it: what it \
                 reads was fixed then",
            )),
        }
    }
}

/// What a portal may be begins to run while these are shown.
pub(super) fn begin(bound: &mut Arc<[Bound]>, shown: &Shown) {
    if bound.iter().any(Bound::begins) {
        let begins = Arc::make_mut(bound).iter_mut().filter(|it| it.begins());
        begins.for_each(|it| it.shown = Some(shown.clone()));
    }
}

impl Session {
    /// An Execute behind which the rest of the rows may be asked for.
    pub(super) fn consider_beginning(&self, portal: &[u8]) -> Result<Considered, Refusal> {
        let mut considered = self.consider_execute(portal)?;
        let shown = match considered.runs.as_slice() {
            [] => return Ok(considered),
            [run] => [run.tickets.clone(), run.comment.clone()],
            // Which of them runs is not certain.
            [run, ..] => [run.tickets.clone(), Tickets::default()],
        };
        self.begin_portal(&mut considered, portal, &shown)?;
        Ok(considered)
    }

    /// A portal runs, maybe not to its end, while these are shown, and what it fetches from.
    pub(super) fn begin_portal(
        &self,
        considered: &mut Considered,
        portal: &[u8],
        shown: &Shown,
    ) -> Result<(), Refusal> {
        let texts = || shown.iter().flat_map(Tickets::as_slice);
        for portal in self.fetched_by(portal) {
            if !self.bound(portal).into_iter().any(Bound::begins) {
                continue;
            }
            // In the same text.
            let earlier = |name: &Name| match name {
                Name::Begun(name, seen) => **name == *portal && shows_more(seen, texts()),
                _ => false,
            };
            if considered.names.iter().any(earlier) {
                return Err(Refusal::invalid(
                    "a ticket is set behind the statement that begins the portal that is read \
                     under it",
                ));
            }
            let begun = Name::Begun(portal.into(), shown.clone());
            considered.names.push(begun);
        }
        Ok(())
    }

    /// What is presented before a message that takes a snapshot, and what its snapshot is taken
    /// under.
    pub(super) fn early(&self, looks: Looks, comment: &Tickets) -> (Shown, Option<Shown>) {
        let fixes = match looks {
            Looks::Not => return (Shown::default(), None),
            // With it a ticket that is stale is replaced. In a block that was presented before.
            Looks::ToSet if self.asks() => return (Shown::default(), Some(Shown::default())),
            Looks::ToSet | Looks::Ahead => false,
            Looks::ToRead => true,
        };
        let shown = [self.settings().tickets.clone(), comment.clone()];
        // While something on its way may fail, the next transaction may be another than expected.
        let presents = match fixes || self.is_behind() || self.ahead.would_fix_snapshot() {
            true => shown.clone(),
            false => Shown::default(),
        };
        (presents, Some(shown))
    }

    /// What these statements are where looking at them may run something.
    pub(super) fn analyses<'p>(
        &self,
        looks: Looks,
        prepared: impl Iterator<Item = &'p Prepared>,
    ) -> Vec<Run> {
        if looks == Looks::Not {
            return vec![];
        }
        let run = |it: &Prepared| {
            let statement = it.statement.as_ref()?;
            let types = !statement.uses.casts.is_empty() || !statement.uses.types.is_empty();
            if only_sets(statement) && !types {
                return None;
            }
            Some(Run {
                statement: Arc::clone(statement),
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
        let known = found.known.iter().filter_map(|it| it.statement.as_deref());
        let looks = match kind {
            ClosedKind::Portal => Looks::Not,
            ClosedKind::Statement if found.unknown => Looks::Ahead,
            ClosedKind::Statement => Looks::at(known),
        };
        let (presents, shown) = self.early(looks, &Tickets::default());
        let analyses = self.analyses(looks, found.known.iter().copied());
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
            Message::ExecuteSome(portal) => Message::ExecuteSome(cut_bytes(portal)),
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
