//! What the messages need that come again: found once for what the core remembers, as long as
//! nothing has changed that it depends on.
//!
//! Invariant: it is what [`Session::needs`] finds; debug builds check that each time, where that
//! finds something at once.

use std::sync::{Arc, Weak};

use super::Session;
use super::effects::Ending;
use super::weigh::{Needs, Untold};
use crate::config::Mode;
use crate::protocol::postgres::resolve::Catalog;
use crate::protocol::postgres::session::{Considered, Run};
use crate::proxy::gates::Claim;

/// Most messages whose needs a session remembers.
const AGAIN_MAX: usize = 64;

/// The needs that were found.
#[derive(Default)]
pub(super) struct Again {
    /// Against this.
    against: Option<Against>,
    /// Of messages without effects beyond rows.
    known: Vec<Known>,
    /// Which of them goes next.
    next: usize,
}

struct Known {
    considered: Arc<Considered>,
    claims: Arc<[Claim]>,
    writes: bool,
}

/// What needs depend on, beside the message and what [`Session::is_settled`] looks at.
struct Against {
    catalog: Weak<Catalog>,
    /// How many temporary relations the session had made, and how often it had changed what they
    /// are made of; `None`: what they are is not known.
    temporary: Option<(usize, u64)>,
    /// Of the keys that tickets were verified with.
    keys: u64,
}

impl Again {
    fn find(&self, considered: &Arc<Considered>) -> Option<&Known> {
        let mut known = self.known.iter();
        known.find(|it| Arc::ptr_eq(&it.considered, considered))
    }

    fn keep(&mut self, known: Known) {
        match self.known.get_mut(self.next) {
            Some(oldest) => *oldest = known,
            None => self.known.push(known),
        }
        self.next = (self.next + 1) % AGAIN_MAX;
    }
}

impl Session {
    /// What a message needs: remembered, or found now.
    pub(super) fn needs_again(
        &mut self,
        considered: &Arc<Considered>,
        runs: &[Run],
    ) -> Result<(Needs, Ending), Untold> {
        if considered.runs.is_empty() || !self.is_settled() {
            return self.needs(considered, runs);
        }
        self.forget_outdated();
        if let Some(known) = self.again.find(considered) {
            let needs = Needs {
                claims: Arc::clone(&known.claims),
                writes: known.writes,
                asks: considered.asks,
                span: self.core.span(),
                may_commit: considered.may_commit,
            };
            if cfg!(debug_assertions) {
                self.check_again(&needs, considered, runs);
            }
            return Ok((needs, Ending::default()));
        }
        let (needs, ending) = self.needs(considered, runs)?;
        if ending.is_nothing() && self.core.remembers(considered) {
            self.again.keep(Known {
                considered: Arc::clone(considered),
                claims: Arc::clone(&needs.claims),
                writes: needs.writes,
            });
        }
        Ok((needs, ending))
    }

    /// Whether nothing is on its way, nor found for the message at hand alone, that changes what
    /// messages need.
    fn is_settled(&self) -> bool {
        self.listener.config.mode == Mode::Enforce
            && self.admission.catalog.is_none()
            && self.effects.are_none()
            && self.made.is_empty()
            && self.created.is_empty()
    }

    /// Forgets what was found against something else than what is there now.
    fn forget_outdated(&mut self) {
        let catalog = self.database.current();
        let made = (self.temporary.len(), self.defined.changes());
        let temporary = (!self.shadowed).then_some(made);
        let keys = self.listener.tickets.generation();
        let same = match (&self.again.against, &catalog) {
            (Some(it), Some(catalog)) => {
                Weak::as_ptr(&it.catalog) == Arc::as_ptr(catalog)
                    && (it.temporary, it.keys) == (temporary, keys)
            }
            _ => false,
        };
        if same {
            return;
        }
        self.again.known.clear();
        self.again.next = 0;
        self.again.against = catalog.map(|catalog| Against {
            catalog: Arc::downgrade(&catalog),
            temporary,
            keys,
        });
    }

    fn check_again(&mut self, needs: &Needs, considered: &Arc<Considered>, runs: &[Run]) {
        let Ok((found, ending)) = self.needs(considered, runs) else {
            return;
        };
        // It may have changed between the two.
        self.forget_outdated();
        if self.again.find(considered).is_some() {
            assert!(found.claims == needs.claims && found.writes == needs.writes);
            assert!(ending.is_nothing());
        }
    }
}
