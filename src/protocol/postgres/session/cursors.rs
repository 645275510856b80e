//! The cursors that a session has open, as far as it has declared them itself: what one reads was
//! fixed by the snapshot of its DECLARE (`PortalStart`), so a ticket that comes later is late for
//! it. WITH HOLD it outlives its transaction (PostgreSQL docs, DECLARE).

use std::sync::Arc;

use super::state::{Shown, State, shows_more};
use super::{Bound, Session};
use crate::protocol::postgres::classify::{Class, OpenedCursor, Statement, Unreadable};
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

    /// The transaction ends.
    pub(super) fn end(&mut self, committed: bool) {
        self.0
            .retain(|cursor| cursor.outlives || committed && cursor.holds);
        for cursor in &mut self.0 {
            cursor.outlives = true;
        }
    }

    /// Whether a ticket among these came after the DECLARE of the cursor; `None`: there is none of
    /// this name.
    pub(super) fn is_late(&self, name: &str, shown: &Shown) -> Option<bool> {
        let named = self.0.iter().filter(|cursor| *cursor.name == *name);
        let late = |cursor: &Cursor| {
            let texts = shown.iter().flat_map(Tickets::as_slice);
            shows_more(&cursor.shown, texts)
        };
        named.map(late).reduce(|one, other| one || other)
    }
}

impl Session {
    /// A ticket that a cursor was not opened under is late for it.
    pub(super) fn check_fetched(
        &self,
        name: &str,
        state: &State,
        shown: &Shown,
    ) -> Result<(), Refusal> {
        let found = self.portals.candidates(name.as_bytes(), self.open_id());
        let bound: Vec<&Bound> = found.known.iter().copied().flatten().collect();
        let late = match bound.is_empty() {
            true => state.fetches_late(name, shown),
            false => bound.iter().any(|it| it.is_late(shown)),
        };
        // What closes or replaces it may fail.
        let certain = &self.certain.cursors;
        let stays = self.is_behind() && certain.is_late(name, shown) == Some(true);
        match late || stays {
            false => Ok(()),
            true => Err(Refusal::invalid(
                "a ticket is set before the cursor is opened that is read under it: what it reads \
                 was fixed then",
            )),
        }
    }

    /// What SQL's FETCH may run besides cursors, which only read: a portal that Bind has made runs
    /// its statement then. Which one it is does not matter: any that acts counts for all.
    pub(super) fn fetched(&self) -> Option<Arc<Statement>> {
        let acts = |bound: &Vec<Bound>| {
            let mut statements = bound.iter().map(|it| it.prepared.statement.as_ref());
            statements.any(|it| it.is_some_and(|it| it.class != Class::Read))
        };
        let any = self.portals.any_named(acts);
        any.then(|| Arc::new(Statement::unreadable(Unreadable::Failed, 0)))
    }
}
