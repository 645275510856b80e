//! What the session has made its temporary tables of: no catalog that is at hand may tell.
//!
//! Invariant: what is no longer kept is told by every catalog that is used from then on.

use std::sync::Arc;

use tokio::time::Instant;

use super::Session;
use super::effects::Ending;
use crate::protocol::postgres::resolve::{Catalog, Definition};
use crate::protocol::postgres::session::{Run, SpanId};

/// Most bytes of the texts of such definitions that a session keeps.
const DEFINITIONS_BYTES_MAX: usize = 1 << 20;
/// From so many on a catalog is loaded that tells of them.
const DEFINITIONS_BYTES_MANY: usize = DEFINITIONS_BYTES_MAX / 4;

/// The definitions that are kept.
#[derive(Default)]
pub(super) struct Defined {
    definitions: Vec<Definition>,
    /// Of their texts.
    bytes: usize,
    /// Where the last one was forwarded; `None`: no transaction is open that has one.
    span: Option<SpanId>,
    /// When the transaction of the last one had ended.
    ended: Option<Instant>,
    /// Counts what has changed here.
    changes: u64,
}

impl Defined {
    pub(super) fn all(&self) -> &[Definition] {
        &self.definitions
    }

    /// Grows with each change of [`Defined::all`].
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether a catalog should take their place.
    pub(super) fn are_many(&self) -> bool {
        self.bytes > DEFINITIONS_BYTES_MANY
    }

    /// No transaction is open after this span.
    pub(super) fn ended(&mut self, span: SpanId) {
        if self.span.take_if(|last| *last <= span).is_some() {
            self.ended = Some(Instant::now());
        }
    }

    /// Whether the transactions of all have ended.
    pub(super) fn have_ended(&self) -> bool {
        self.span.is_none()
    }

    fn forget(&mut self) {
        self.definitions.clear();
        self.bytes = 0;
        self.changes += 1;
    }

    /// Whether it was made as one that is kept was.
    fn has(&self, definition: &Definition) -> bool {
        let mut kept = self.definitions.iter();
        kept.any(|it| {
            let (uses, others) = (&it.statement.uses, &definition.statement.uses);
            it.search_path == definition.search_path && uses == others
        })
    }
}

impl Ending {
    /// Follows what a run makes of temporary tables: those of its message, and of these names.
    pub(super) fn follow_definition(&mut self, run: &Run, temporary: &[Box<str>]) {
        let is_temporary = |name: &str| {
            let mut names = temporary.iter().chain(&self.temporary);
            names.any(|it| **it == *name)
        };
        if Definition::is_one(&run.statement, is_temporary) {
            self.definitions.push(Definition {
                statement: run.statement.clone(),
                search_path: run.search_path.clone(),
            });
        }
    }
}

impl Session {
    /// Forgets what this catalog tells, by which the session's names are resolved from now on.
    pub(super) fn forget_told(&mut self, catalog: &Arc<Catalog>) {
        if self.defined.definitions.is_empty() || !self.defined.have_ended() {
            return;
        }
        let told = |ended| self.database.is_loaded_since(catalog, ended);
        if self.defined.ended.is_some_and(told) {
            self.resolved.forget();
            self.defined.forget();
        }
    }

    /// Keeps what a message has made that was forwarded in this span. What is made again and again
    /// is kept once.
    pub(super) fn note_definitions(&mut self, definitions: Vec<Definition>, span: SpanId) {
        if definitions.is_empty() {
            return;
        }
        self.defined.span = Some(span);
        for definition in definitions {
            if self.defined.has(&definition) {
                continue;
            }
            self.resolved.forget();
            self.defined.changes += 1;
            self.defined.bytes += definition.statement.span.len();
            self.defined.definitions.push(definition);
            if self.defined.bytes > DEFINITIONS_BYTES_MAX {
                // From now on what fills in any is not known.
                self.defined.forget();
                self.shadow();
            }
        }
    }
}
