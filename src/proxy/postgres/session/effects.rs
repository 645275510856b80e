//! What the end of a span brings about, beside its permits: the catalog may have changed, a
//! prepared transaction is there or is gone.

use std::sync::Arc;

use super::resolved::shifts;
use super::unseen::Unseen;
use crate::protocol::postgres::classify::{
    Class, Effect, RelationName, Statement, TransactionControl,
};
use crate::protocol::postgres::resolve::{Definition, redefines};
use crate::protocol::postgres::session::{Run, SpanId, commits};
use crate::proxy::postgres::catalog::{Database, Unsettled};
use crate::proxy::postgres::prepared::{Prepared, Use};

/// What a message that passes brings about once it has run.
#[derive(Default)]
pub(super) struct Ending {
    /// It may have done anything to the session.
    pub(super) distrusts: bool,
    /// It may change the catalog.
    pub(super) defines: bool,
    /// Not because nothing is known of it: by a catalog, or by its text, it acts.
    pub(super) acts: bool,
    /// It may make tables of other servers.
    pub(super) makes_foreign: bool,
    /// Which names may mean such a table behind it, that no catalog tells.
    pub(super) unseen: Unseen,
    /// It may change what existing names mean or do.
    pub(super) shifts: bool,
    /// It may change what the names of later statements do.
    pub(super) redefines: bool,
    /// A temporary name may stand for something else behind it.
    pub(super) shadows: bool,
    /// It opens a cursor that is read at its transaction's end.
    pub(super) holds: bool,
    /// Temporary relations that it makes.
    pub(super) temporary: Vec<Box<str>>,
    /// What it makes those of, or of earlier ones.
    pub(super) definitions: Vec<Definition>,
    /// Plain tables of its transaction that the catalog does not have yet, behind it.
    pub(super) made: Vec<RelationName>,
    /// All tables that its transaction has created, whatever became of them.
    pub(super) created: Vec<RelationName>,
    /// Why its last statement counts as a write to anything, if it does.
    pub(super) because: Option<&'static str>,
    /// What it needs was told without a catalog.
    pub(super) provisional: bool,
    /// Others of its text run before the next one.
    pub(super) later: bool,
    /// It prepares transactions under these names.
    pub(super) prepares: Vec<Recorded>,
    /// It ends what is prepared under these names.
    pub(super) ends_prepared: Vec<(Box<str>, Use)>,
}

impl Ending {
    /// Whether it brings nothing about.
    pub(super) fn is_nothing(&self) -> bool {
        let may = self.provisional
            || self.distrusts
            || self.defines
            || self.makes_foreign
            || self.shifts
            || self.redefines
            || self.shadows
            || self.holds
            || self.unseen > Unseen::Nothing;
        let made = self.temporary.len() + self.made.len() + self.created.len();
        let made = made + self.definitions.len();
        let prepared = self.prepares.len() + self.ends_prepared.len();
        !may && made + prepared == 0
    }

    /// It may do anything.
    pub(super) fn distrust(&mut self) {
        self.distrusts = true;
        self.defines = true;
        self.makes_foreign = true;
        self.shadows = true;
    }
}

/// A name that is on disk, and is taken back where its PREPARE TRANSACTION is not forwarded.
pub(super) struct Recorded {
    prepared: Prepared,
    gid: Box<str>,
    used: Use,
    forwarded: bool,
}

impl Recorded {
    pub(super) fn new(prepared: Prepared, gid: Box<str>, used: Use) -> Recorded {
        Recorded {
            prepared,
            gid,
            used,
            forwarded: false,
        }
    }

    pub(super) fn gid(&self) -> &str {
        &self.gid
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if !self.forwarded {
            self.prepared.failed(&self.gid, self.used);
        }
    }
}

/// What is awaited of the spans on their way.
#[derive(Default)]
pub(super) struct Effects {
    /// The catalog may have changed when this span has ended, and has with each COMMIT before.
    defined: Option<SpanId>,
    /// Something among that acts.
    acts: bool,
    /// A COMMIT of that was forwarded in this span.
    commits: Option<SpanId>,
    /// It may have been committed long before that is told, at the end of this span.
    late: Option<SpanId>,
    /// Something that commits by itself may change the catalog until this span has ended.
    alone: Option<SpanId>,
    /// What names do may be changed by something that is on its way, until this span has ended.
    unsettled: Option<(SpanId, Unsettled)>,
    /// There may be tables of other servers when this span has ended.
    made_foreign: Option<SpanId>,
    /// Names may mean such a table until this span has ended.
    unseen: Option<(SpanId, Unseen)>,
    /// Existing names may mean something else until this span has ended: the catalog does not tell.
    shifted: Option<SpanId>,
    /// Until this span has ended, what names do is not known.
    redefined: Option<SpanId>,
    /// Names of prepared transactions on their way.
    names: Vec<Named>,
    /// The server has said why it ends the session.
    pub(super) told_fatal: bool,
}

struct Named {
    gid: Box<str>,
    used: Use,
    span: SpanId,
    /// It is prepared; otherwise it is ended.
    prepares: bool,
    outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Awaited,
    Done,
    Failed,
    /// The server has found nothing of this name.
    NotFound,
}

/// Whether a statement makes writes by names that are there reach what they did not reach before.
fn reaches_further(statement: &Statement) -> bool {
    let mut targets = statement.uses.targets.iter();
    targets.any(|target| matches!(target.effect, Effect::Move | Effect::Key))
}

/// SQLSTATE `undefined_object`.
const UNDEFINED: &[u8] = b"42704";

impl Effects {
    /// A message was forwarded in this span.
    pub(super) fn note(&mut self, ending: &mut Ending, span: SpanId) {
        if ending.defines || ending.redefines {
            self.defined = Some(span);
            self.acts |= ending.acts;
        }
        if ending.makes_foreign {
            self.made_foreign = Some(span);
        }
        if ending.unseen > Unseen::Nothing {
            self.unseen = Some((span, ending.unseen.max(self.unseen())));
        }
        if ending.shifts {
            self.shifted = Some(span);
        }
        if ending.redefines {
            self.redefined = Some(span);
        }
        let named = |prepares: bool, gid: Box<str>, used: Use| Named {
            gid,
            used,
            span,
            prepares,
            outcome: Outcome::Awaited,
        };
        for mut recorded in ending.prepares.drain(..) {
            recorded.forwarded = true;
            let gid = std::mem::take(&mut recorded.gid);
            self.names.push(named(true, gid, recorded.used));
        }
        let ends = ending.ends_prepared.drain(..);
        self.names
            .extend(ends.map(|(gid, used)| named(false, gid, used)));
    }

    /// What a message runs may commit what was defined. Where more of its span follows, or goes on
    /// in the same statement, the server tells late: it may keep its answers until it is through.
    pub(super) fn note_commits(&mut self, runs: &[Run], span: SpanId, database: &Database) {
        if self.defined.is_none() && self.made_foreign.is_none() {
            return;
        }
        for run in runs {
            let mut all = run.executed.iter().chain([&run.statement]);
            if self.commits == Some(span) || all.any(|it| it.may_commit_inside()) {
                self.late = Some(span);
            }
            if commits(&run.statement) {
                self.commits = Some(span);
            }
        }
        if self.late == Some(span) && !runs.is_empty() {
            self.committed(database);
        }
    }

    /// What a message runs may commit what changes names: when, nobody is told before the span has
    /// ended, and the client may leave that unread. `place`: its span, and the first that has not
    /// ended. `in_block`: a block that it began is open behind the message.
    pub(super) fn note_unsettled(
        &mut self,
        (runs, ending): (&[Run], &Ending),
        place: (SpanId, Option<SpanId>),
        in_block: bool,
        database: &Arc<Database>,
    ) {
        let (span, awaited) = place;
        let commits_block = runs.iter().any(|run| commits(&run.statement));
        // How long what runs on behind a COMMIT of its own takes is not known either: there the
        // catalog is outdated at its beginning and at its end.
        let alone = |run: &Run| {
            let statement = &run.statement;
            let changes = shifts(statement) || redefines(statement) || reaches_further(statement);
            changes && !statement.may_commit_inside()
        };
        if (ending.defines || ending.redefines) && !in_block {
            self.alone = Some(span);
            if awaited.is_some_and(|awaited| awaited < span) {
                // What it answers comes behind what others answer.
                self.unheard(database);
            }
        }
        let pending = self.defined.is_some();
        let by_itself = !in_block && runs.iter().any(alone);
        if by_itself || pending && commits_block {
            let unsettled = self.unsettled.take().map(|(_, unsettled)| unsettled);
            self.unsettled = Some((span, unsettled.unwrap_or_else(|| database.unsettle())));
        }
    }

    /// The server is not listened to for now, or tells much: that it has committed is heard late.
    pub(super) fn unheard(&mut self, database: &Arc<Database>) {
        if let (Some(span), None) = (self.alone, &self.unsettled) {
            self.unsettled = Some((span, database.unsettle()));
        }
    }

    /// What was defined may have been committed, though its session is not idle.
    pub(super) fn committed(&self, database: &Database) {
        if self.defined.is_some() {
            database.outdated();
        }
        if self.made_foreign.is_some() {
            database.note_foreign_tables();
        }
    }

    /// The server is through with the spans before this one.
    pub(super) fn through(&mut self, awaited: Option<SpanId>, database: &Database) {
        let through = |late: &mut SpanId| awaited.is_none_or(|awaited| awaited > *late);
        if self.late.take_if(through).is_some() {
            self.committed(database);
        }
    }

    /// Whether nothing is on its way that changes what statements need.
    pub(super) fn are_none(&self) -> bool {
        let defines = self.defined.is_some() || self.made_foreign.is_some();
        let changes = self.unseen.is_some() || self.shifted.is_some() || self.redefined.is_some();
        !defines && !changes
    }

    /// Whether a change of the catalog is on its way, or not committed.
    pub(super) fn shifts(&self) -> bool {
        self.shifted.is_some()
    }

    /// Whether tables of other servers may be on their way, or not committed.
    pub(super) fn makes_foreign(&self) -> bool {
        self.made_foreign.is_some()
    }

    /// Which names may mean such a table, that no catalog tells.
    pub(super) fn unseen(&self) -> Unseen {
        self.unseen.map_or(Unseen::Nothing, |(_, unseen)| unseen)
    }

    /// Whether names may do what the catalog does not tell.
    pub(super) fn redefined(&self) -> bool {
        self.redefined.is_some()
    }

    /// The server told an error in this span, of this statement where that is known.
    pub(super) fn failed(
        &mut self,
        span: Option<SpanId>,
        statement: Option<&Statement>,
        sqlstate: Option<&[u8]>,
    ) {
        // What another statement lacks is no sign of what is prepared.
        let missing = match statement.map(|it| &it.class) {
            Some(Class::Transaction(
                TransactionControl::CommitPrepared(gid) | TransactionControl::RollbackPrepared(gid),
            )) if sqlstate == Some(UNDEFINED) => Some(gid),
            _ => None,
        };
        let awaited = |it: &&mut Named| Some(it.span) == span && it.outcome == Outcome::Awaited;
        for name in self.names.iter_mut().filter(awaited) {
            name.outcome = match !name.prepares && missing == Some(&name.gid) {
                true => Outcome::NotFound,
                false => Outcome::Failed,
            };
        }
    }

    /// The server has completed a statement of this span.
    pub(super) fn completed(&mut self, span: Option<SpanId>, tag: &[u8]) {
        let prepares = match tag {
            b"PREPARE TRANSACTION" => true,
            b"COMMIT PREPARED" | b"ROLLBACK PREPARED" => false,
            _ => return,
        };
        let mut awaited = self.names.iter_mut().filter(|it| Some(it.span) == span);
        let done = awaited.find(|it| it.prepares == prepares && it.outcome == Outcome::Awaited);
        if let Some(done) = done {
            done.outcome = Outcome::Done;
        }
    }

    /// No transaction is open after this span.
    pub(super) fn ended(&mut self, span: SpanId, database: &Arc<Database>, prepared: &Prepared) {
        self.unsettled.take_if(|(until, _)| *until <= span);
        self.alone.take_if(|alone| *alone <= span);
        // A later one has taken its place where there were several.
        let defines_nothing = self.defined.is_none();
        if self.defined.is_some_and(|defined| defined <= span) {
            self.defined = None;
            if std::mem::take(&mut self.acts) {
                database.note_acted();
            }
            database.outdated();
        }
        if self.made_foreign.is_some_and(|made| made <= span) {
            self.made_foreign = None;
            database.note_foreign_tables();
        }
        self.unseen = self.unseen.filter(|(until, _)| *until > span);
        self.shifted = self.shifted.filter(|shifted| *shifted > span);
        self.redefined = self.redefined.filter(|redefined| *redefined > span);
        for name in self.names.extract_if(.., |name| name.span <= span) {
            match (name.prepares, name.outcome) {
                // One that was skipped, or a COMMIT in the place of it, has prepared nothing
                // either.
                (true, Outcome::Failed | Outcome::Awaited) => {
                    prepared.failed(&name.gid, name.used);
                }
                (false, Outcome::Done | Outcome::NotFound) => {
                    prepared.ended(&name.gid, name.used);
                }
                (true, Outcome::Done) if defines_nothing => {
                    prepared.note_plain(&name.gid, name.used);
                }
                // It is prepared now, or is prepared still.
                (true, _) | (false, _) => {}
            }
        }
    }

    /// The session was lost: what was on its way may have been done, or will be by its process.
    pub(super) fn lose(&mut self, database: &Arc<Database>, pid: Option<i32>) {
        self.unheard(database);
        self.alone = None;
        if let (Some((_, unsettled)), Some(pid)) = (self.unsettled.take(), pid) {
            unsettled.until_gone(pid);
        }
        if self.defined.take().is_some() {
            database.outdated();
        }
        if self.made_foreign.take().is_some() {
            database.note_foreign_tables();
        }
        self.names.clear();
    }
}
