//! What was forwarded while no catalog told what its names do: looked at when one does, before
//! anything else is resolved. Where it may have done anything to the session, as a view that
//! calls a function can, the session is distrusted then.

use std::sync::Arc;

use super::Session;
use super::effects::Ending;
use crate::protocol::postgres::classify::RelationName;
use crate::protocol::postgres::resolve::{Catalog, View, resolve};
use crate::protocol::postgres::session::{Run, SpanId};

/// Most runs of a session that wait to be looked at; beyond it the session is distrusted at once.
const LATER_MAX: usize = 64;

/// A run to be looked at.
pub(super) struct Later {
    run: Run,
    /// The tables of its transaction that no catalog had.
    made: Vec<RelationName>,
    /// How many temporary relations the session had made.
    temporary: usize,
    /// A catalog that does not tell of it.
    seen: Option<Arc<Catalog>>,
    /// No catalog will tell before its block has ended.
    awaits_end: bool,
    span: SpanId,
    /// Nothing else runs in its span: where that fails, it has done nothing.
    alone: bool,
}

/// What a catalog tells of what has run before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LookedBack {
    /// It did nothing to the session.
    Trusted,
    /// It may have done anything: what the message at hand does is not what it was before.
    Distrusted,
    /// A newer catalog is needed.
    TooOld,
}

impl Session {
    /// A run passes, and what its names do is not known: not by `seen`, if there is one.
    /// `awaits_end`: nor by another catalog before its block has ended.
    pub(super) fn look_later(
        &self,
        run: &Run,
        seen: Option<&Arc<Catalog>>,
        awaits_end: bool,
        ending: &mut Ending,
    ) {
        if self.later.len() + ending.later.len() >= LATER_MAX {
            ending.distrust();
            return;
        }
        ending.later.push(Later {
            run: run.clone(),
            made: ending.made.clone(),
            temporary: self.temporary.len(),
            seen: seen.cloned(),
            awaits_end,
            span: 0,
            alone: false,
        });
    }

    /// A message of so many runs is forwarded in this span.
    pub(super) fn note_later(&mut self, later: Vec<Later>, runs: usize, span: SpanId) {
        let first = std::mem::replace(&mut self.ran_in, span) != span;
        for earlier in self.later.iter_mut().filter(|it| it.span == span) {
            earlier.alone = false;
        }
        self.later.extend(later.into_iter().map(|later| Later {
            span,
            alone: first && runs == 1,
            ..later
        }));
    }

    /// The server told an error in this span: nothing is left of what ran alone in it.
    pub(super) fn note_failed(&mut self, span: Option<SpanId>) {
        self.later.retain(|it| !it.alone || Some(it.span) != span);
    }

    /// Looks at what has run before, where something has without a catalog.
    pub(super) fn look_back(&mut self, catalog: &Arc<Catalog>) -> LookedBack {
        // All that it may have changed needs the tickets that this transaction holds.
        let open = self.core.stays_in_block();
        let by_this = |it: &Later| it.seen.as_ref().is_some_and(|it| Arc::ptr_eq(it, catalog));
        if self
            .later
            .iter()
            .any(|it| by_this(it) && !(open && it.awaits_end))
        {
            return LookedBack::TooOld;
        }
        let mut acts = false;
        for mut later in std::mem::take(&mut self.later) {
            if by_this(&later) {
                self.later.push(later);
                continue;
            }
            let made_then = later.temporary.min(self.temporary.len());
            let view = View {
                catalog,
                database: &self.identity.database,
                user: &self.user,
                search_path: later.run.search_path.as_deref(),
                temporary: &self.temporary[..made_then],
                made: &later.made,
                redefined: false,
            };
            let (run, rules) = (&later.run, &self.listener.config.rules);
            let resolution = resolve(&run.statement, &run.executed, &view, rules);
            match (resolution.everything, resolution.missing) {
                (Some(_), _) => acts = true,
                // Its transaction may have made what is missing.
                (None, true) if open => {
                    later.seen = Some(Arc::clone(catalog));
                    later.awaits_end = true;
                    self.later.push(later);
                }
                // Nobody can tell what it was.
                (None, true) => acts = true,
                (None, false) => {}
            }
        }
        if !acts {
            return LookedBack::Trusted;
        }
        self.core.distrust();
        self.shadow();
        self.database.outdated();
        self.database.note_foreign_tables();
        LookedBack::Distrusted
    }
}
