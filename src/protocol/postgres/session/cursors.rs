//! The cursors that a session has open, as far as it has declared them itself: what one reads was
//! fixed by the snapshot of its DECLARE (`PortalStart`), so a ticket that comes later is late for
//! it. WITH HOLD it outlives its transaction (PostgreSQL docs, DECLARE).

use std::sync::Arc;

use super::names::Candidates;
use super::span::Step;
use super::state::{Shown, State, shows_more};
use super::{Bound, Path, Run, Session};
use crate::protocol::postgres::classify::{
    Class, OpenedCursor, SessionControl, Statement, TransactionControl, Unreadable,
};
use crate::protocol::postgres::ticket::Tickets;
use crate::protocol::postgres::ticket::change::{Change, Doubts};
use crate::protocol::refusal::Refusal;

/// Most cursors of a session that are open at a time.
pub(super) const CURSORS_MAX: usize = 1000;

/// Cursors that may be open. A name may stand for several: a DECLARE that is on its way may fail.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Cursors(Vec<Cursor>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Cursor {
    name: Box<str>,
    /// What was shown at its DECLARE.
    shown: Shown,
    /// WITH HOLD.
    holds: bool,
    /// Its transaction was committed.
    outlives: bool,
    /// How many savepoints were open at its DECLARE: those that are not released.
    within: usize,
    /// One of them was rolled back to.
    gone: bool,
}

impl Cursors {
    /// Whether one more has a place.
    pub(super) fn has_room(&self) -> bool {
        self.0.len() < CURSORS_MAX
    }

    pub(super) fn declare(&mut self, opened: &OpenedCursor, shown: Shown, within: usize) {
        self.0.push(Cursor {
            name: opened.name.clone(),
            shown,
            holds: opened.holds,
            outlives: false,
            within,
            gone: false,
        });
    }

    /// Whether the session has declared what is open by this name, if anything is.
    fn is_sure(&self, name: &[u8]) -> bool {
        let mut named = self.0.iter();
        let last = named.rfind(|cursor| cursor.name.as_bytes() == name);
        last.is_some_and(|cursor| !cursor.gone)
    }

    /// A savepoint is released, before which so many were open.
    pub(super) fn release(&mut self, before: usize) {
        for cursor in &mut self.0 {
            cursor.within = cursor.within.min(before);
        }
    }

    /// The same is rolled back to.
    pub(super) fn roll_back_to(&mut self, before: usize) {
        for cursor in &mut self.0 {
            cursor.gone |= cursor.within > before;
        }
    }

    /// One of a name, or all.
    pub(super) fn close(&mut self, name: Option<&str>) {
        match name {
            Some(name) => self.0.retain(|cursor| *cursor.name != *name),
            None => self.0.clear(),
        }
    }

    /// Whether one is to outlive its transaction.
    fn will_be_held(&self) -> bool {
        self.0.iter().any(|cursor| cursor.holds && !cursor.outlives)
    }

    /// The transaction ends.
    pub(super) fn end(&mut self, committed: bool) {
        self.0
            .retain(|cursor| cursor.outlives || committed && cursor.holds);
        for cursor in &mut self.0 {
            cursor.outlives = true;
            cursor.within = 0;
        }
    }

    /// Whether a ticket among these came after the DECLARE of the cursor; `None`: there is none of
    /// this name. A name that is not UTF-8 may be any of them, in another encoding.
    pub(super) fn is_late(&self, name: &[u8], shown: &Shown) -> Option<bool> {
        let any = std::str::from_utf8(name).is_err();
        let named = self.0.iter();
        let named = named.filter(|cursor| any || cursor.name.as_bytes() == name);
        let late = named.map(|cursor| is_later(&cursor.shown, shown));
        late.reduce(|one, other| one || other)
    }
}

/// Whether a ticket is shown that was not yet shown then.
fn is_later(then: &Shown, shown: &Shown) -> bool {
    shows_more(then, shown.iter().flat_map(Tickets::as_slice))
}

impl Bound {
    /// The cursor that it fetches from.
    fn fetches(&self) -> Option<&[u8]> {
        match &self.prepared.statement.as_deref()?.class {
            Class::Session(SessionControl::Fetch(name)) => Some(name.as_bytes()),
            _ => None,
        }
    }
}

impl Session {
    /// Whether a cursor is open that is read at the end of its transaction (WITH HOLD).
    pub fn will_hold_cursor(&self) -> bool {
        self.ahead.cursors.will_be_held() || self.certain.cursors.will_be_held()
    }

    /// A ticket that a cursor was not opened under is late for it.
    pub(super) fn check_fetched(
        &self,
        name: &[u8],
        state: &State,
        shown: &Shown,
    ) -> Result<(), Refusal> {
        for name in self.fetched_by(name) {
            let bound = self.bound(name);
            let late = match bound.is_empty() {
                true => state.fetches_late(name, shown),
                // A Bind that is on its way may fail.
                false => {
                    let declared = state.cursors.is_late(name, shown) == Some(true);
                    declared || bound.iter().any(|it| it.is_late(shown))
                }
            };
            if late || self.is_behind() && self.may_stay_late(name, shown) {
                return Err(Refusal::invalid(
                    "a ticket is set before the cursor is opened that is read under it: what it \
                     reads was fixed then",
                ));
            }
        }
        Ok(())
    }

    /// A name, and those that portals of it fetch from.
    pub(super) fn fetched_by<'n>(&'n self, name: &'n [u8]) -> Vec<&'n [u8]> {
        let mut names = vec![name];
        let mut at = 0;
        while let Some(name) = names.get(at).copied() {
            for fetched in self.bound(name).iter().filter_map(|it| it.fetches()) {
                if !names.contains(&fetched) {
                    names.push(fetched);
                }
            }
            at += 1;
        }
        names
    }

    /// What the portal of a name may be.
    pub(super) fn bound(&self, name: &[u8]) -> Vec<&Bound> {
        let found = self.portals.candidates(name, self.open_id());
        found.known.into_iter().flat_map(|it| &**it).collect()
    }

    /// What has a portal's name may be a cursor: one of the two is not there any more, or not yet.
    pub(super) fn check_executed(&self, name: &[u8], state: &State) -> Result<(), Refusal> {
        // Nothing is declared without a name.
        if !self.declares || name.is_empty() {
            return Ok(());
        }
        let shown = [self.settings().tickets.clone(), Tickets::default()];
        self.check_fetched(name, state, &shown)
    }

    /// Whether a cursor of this name may be open that a ticket is late for, where what closes or
    /// replaces it fails: one that the server has told of, or one on its way.
    fn may_stay_late(&self, name: &[u8], shown: &Shown) -> bool {
        let mut opened = Cursors::default();
        for step in self.spans.iter().flat_map(|span| &span.steps) {
            if let Step::Statement(Some(act)) = step
                && let (Some(cursor), Some(then)) = (&act.statement.opens, &act.shown)
            {
                opened.declare(cursor, then.clone(), 0);
            }
        }
        let late = |cursors: &Cursors| cursors.is_late(name, shown) == Some(true);
        late(&self.certain.cursors) || late(&opened)
    }

    /// What the portal of a name may be, as the server gets to it. Something that is on its way may
    /// end it, and something else may have its name then: a function opens a cursor by any name but
    /// the empty one.
    pub(super) fn portal(&self, name: &[u8]) -> Candidates<'_, Arc<[Bound]>> {
        let open = self.open_id();
        let mut found = self.portals.candidates(name, open);
        let here = self.portals.is_made_in(name, open) && Some(self.ends) < open;
        if !name.is_empty() && !found.known.is_empty() && !here {
            found.unknown |= self.may_have_ended();
        }
        found
    }

    /// Whether something that is on its way ends what was open, and is not answered.
    fn may_have_ended(&self) -> bool {
        self.spans.front().is_some_and(|span| span.id <= self.ends)
    }

    /// What SQL's FETCH or MOVE of a name runs, behind these runs of its text, with what that
    /// changes: the statements of portals, as their Execute would. What a cursor does that the
    /// session has declared itself counted at its DECLARE; what a function has opened may do
    /// anything.
    pub(super) fn run_by_fetch(&self, name: &[u8], state: &State, earlier: &[Run]) -> Vec<Fetched> {
        let ended = earlier.iter().any(|run| ends(&run.statement.class));
        let mut fetched = vec![];
        for name in self.fetched_by(name) {
            if state.cursors.is_sure(name) && !self.may_have_ended() {
                continue;
            }
            let found = self.portal(name);
            if found.unknown || found.known.is_empty() || ended {
                fetched.push(Fetched::anything(self.unknown()));
            }
            let bound = found.known.into_iter().flat_map(|it| &**it);
            fetched.extend(bound.filter_map(|it| it.fetched(self.doubts)));
        }
        fetched
    }

    /// A savepoint is released, or rolled back to: what is open within it has become its parent's,
    /// or is gone.
    pub(super) fn end_savepoint(&mut self, control: &TransactionControl) {
        let before = |name: &str| self.certain.scope.savepoints_before(name);
        match control {
            TransactionControl::Release(name) => {
                let Some(before) = before(name) else {
                    return;
                };
                let within = |it: &&mut Arc<[Bound]>| it.iter().any(|it| it.within > before);
                for portal in self.portals.all_made().filter(within) {
                    let bound = Arc::make_mut(portal).iter_mut();
                    bound.for_each(|it| it.within = it.within.min(before));
                }
            }
            TransactionControl::RollbackTo(name) => {
                if let Some(before) = before(name) {
                    let within = |it: &Arc<[Bound]>| it.iter().any(|it| it.within > before);
                    self.portals.forget(within);
                }
            }
            _ => {}
        }
    }

    /// The server has bound the portal of a name: within the savepoints that are open.
    pub(super) fn confirm_portal(&mut self, name: &[u8]) {
        self.portals.confirm(name);
        let within = self.certain.scope.savepoints();
        if within > 0
            && let Some(portal) = self.portals.made(name)
        {
            let bound = Arc::make_mut(portal).iter_mut();
            bound.for_each(|it| it.within = within);
        }
    }
}

/// What a FETCH runs beside cursors.
pub(super) struct Fetched {
    pub(super) statement: Arc<Statement>,
    /// It may come to none of them.
    pub(super) changes: Vec<Change>,
    /// The path in which its names were resolved.
    pub(super) search_path: Path,
}

impl Fetched {
    /// The path in which its names are resolved, where this is the one that counts now.
    pub(super) fn path_in(&self, now: &Path) -> Path {
        now.clone().filter(|_| *now == self.search_path)
    }

    fn anything(mut statement: Statement) -> Fetched {
        statement.uses.everything = Some("what it fetches from is not known here");
        Fetched {
            statement: Arc::new(statement),
            changes: vec![],
            search_path: None,
        }
    }
}

impl Bound {
    /// What is run as SQL fetches from it.
    fn fetched(&self, doubts: Doubts) -> Option<Fetched> {
        let statement = self.prepared.statement.as_ref()?;
        let changes = doubts.about(statement, self.changes.clone());
        match &statement.class {
            Class::Read | Class::Write => Some(Fetched {
                statement: Arc::clone(statement),
                changes: changes.into_iter().map(Change::unsure).collect(),
                search_path: self.search_path.clone(),
            }),
            // It reads by a name that is looked at beside its own.
            Class::Session(SessionControl::Show(_) | SessionControl::Fetch(_)) => None,
            _ => Some(Fetched::anything(Statement::unreadable(
                Unreadable::Failed,
                0,
            ))),
        }
    }
}

/// Whether a statement ends cursors and portals that are open: all of them, or those within a
/// savepoint.
pub(super) fn ends(class: &Class) -> bool {
    use TransactionControl::{Begin, Release, Savepoint};
    match class {
        Class::Transaction(Begin(_) | Savepoint(_) | Release(_)) => false,
        Class::Transaction(_) => true,
        _ => false,
    }
}
