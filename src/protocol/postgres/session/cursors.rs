//! The cursors that a session has open, as far as it has declared them itself: what one reads was
//! fixed by the snapshot of its DECLARE (`PortalStart`), so a ticket that comes later is late for
//! it. WITH HOLD it outlives its transaction (PostgreSQL docs, DECLARE).

use std::sync::Arc;

use super::span::Step;
use super::state::{Shown, State, shows_more};
use super::{Bound, Session};
use crate::protocol::postgres::classify::{
    Class, OpenedCursor, SessionControl, Statement, Unreadable,
};
use crate::protocol::postgres::ticket::Tickets;
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
}

impl Cursors {
    /// Whether one more has a place.
    pub(super) fn has_room(&self) -> bool {
        self.0.len() < CURSORS_MAX
    }

    pub(super) fn declare(&mut self, opened: &OpenedCursor, shown: Shown) {
        self.0.push(Cursor {
            name: opened.name.clone(),
            shown,
            holds: opened.holds,
            outlives: false,
        });
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

/// Whether a portal of this statement may do more than read as SQL fetches from it.
fn acts(statement: &Statement) -> bool {
    match &statement.class {
        Class::Read => false,
        // What a cursor does counted when it was opened.
        Class::Session(control) => {
            !matches!(control, SessionControl::Show(_) | SessionControl::Fetch(_))
        }
        _ => true,
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
                opened.declare(cursor, then.clone());
            }
        }
        let late = |cursors: &Cursors| cursors.is_late(name, shown) == Some(true);
        late(&self.certain.cursors) || late(&opened)
    }

    /// What SQL's FETCH may run besides cursors, which only read: a portal that Bind has made runs
    /// its statement then. Which one it is does not matter: any that acts counts for all.
    pub(super) fn fetched(&self) -> Option<Arc<Statement>> {
        let acts = |bound: &Arc<[Bound]>| {
            let mut statements = bound.iter().map(|it| it.prepared.statement.as_ref());
            statements.any(|it| it.is_some_and(|it| acts(it)))
        };
        let any = self.portals.any_named(acts);
        any.then(|| Arc::new(Statement::unreadable(Unreadable::Failed, 0)))
    }
}
