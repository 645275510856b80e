//! What the messages need that come again: found once for what the core recalls, as long as nothing
//! has changed that it depends on.
//!
//! Invariant: it is what [`Session::needs`] finds; debug builds check it each time.

use std::sync::Arc;

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
}

struct Known {
    considered: Arc<Considered>,
    claims: Arc<[Claim]>,
    writes: bool,
}

/// What needs depend on, beside the message.
struct Against {
    catalog: Arc<Catalog>,
    /// How many temporary relations the session had made; `None`: what they are is not known.
    temporary: Option<usize>,
    /// Of the keys that tickets were verified with.
    keys: u64,
}

impl Session {
    /// What a message needs: remembered, or found now.
    pub(super) fn needs_again(
        &mut self,
        considered: &Arc<Considered>,
        runs: &[Run],
    ) -> Result<(Needs, Ending), Untold> {
        if !self.may_remember(considered) {
            return self.needs(considered, runs);
        }
        let known = self.again.known.iter();
        let mut known = known.filter(|it| Arc::ptr_eq(&it.considered, considered));
        if let Some(known) = known.next() {
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
        // Another one has it: the core recalls it.
        if Arc::strong_count(considered) > 1 && ending.is_nothing() {
            if self.again.known.len() >= AGAIN_MAX {
                self.again.known.clear();
            }
            self.again.known.push(Known {
                considered: Arc::clone(considered),
                claims: Arc::clone(&needs.claims),
                writes: needs.writes,
            });
        }
        Ok((needs, ending))
    }

    /// Whether what a message needs depends on nothing else. What was found before is forgotten
    /// where it was found against something else.
    fn may_remember(&mut self, considered: &Considered) -> bool {
        let plain = self.listener.config.mode == Mode::Enforce
            && !considered.runs.is_empty()
            && self.admission.catalog.is_none()
            && self.effects.are_none()
            && self.made.is_empty()
            && self.later.is_empty();
        if !plain {
            return false;
        }
        let Some(catalog) = self.database.current() else {
            return false;
        };
        let temporary = (!self.shadowed).then_some(self.temporary.len());
        let keys = self.listener.tickets.generation();
        let same = self.again.against.as_ref().is_some_and(|it| {
            Arc::ptr_eq(&it.catalog, &catalog) && (it.temporary, it.keys) == (temporary, keys)
        });
        if !same {
            self.again.known.clear();
            self.again.against = Some(Against {
                catalog,
                temporary,
                keys,
            });
        }
        true
    }

    fn check_again(&mut self, needs: &Needs, considered: &Considered, runs: &[Run]) {
        // It may have changed between the two.
        if let Ok((found, ending)) = self.needs(considered, runs)
            && self.may_remember(considered)
            && !self.again.known.is_empty()
        {
            assert!(found.claims == needs.claims && found.writes == needs.writes);
            assert!(ending.is_nothing());
        }
    }
}
