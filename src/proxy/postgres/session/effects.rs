//! What the end of a span brings about, beside its permits: the catalog may have changed, a prepared
//! transaction is there or is gone.

use std::sync::Arc;

use crate::protocol::postgres::classify::RelationName;
use crate::protocol::postgres::session::SpanId;
use crate::proxy::postgres::catalog::Database;
use crate::proxy::postgres::prepared::{Prepared, Use};

/// What a message that passes brings about once it has run.
#[derive(Default)]
pub(super) struct Ending {
    /// It may have done anything to the session.
    pub(super) distrusts: bool,
    /// It may change the catalog.
    pub(super) defines: bool,
    /// It may change what the names of later statements do.
    pub(super) redefines: bool,
    /// A temporary name may stand for something else behind it.
    pub(super) shadows: bool,
    /// Temporary relations that it makes.
    pub(super) temporary: Vec<Box<str>>,
    /// Tables of its transaction that the catalog does not have yet, behind it.
    pub(super) made: Vec<RelationName>,
    /// It prepares a transaction under this name.
    pub(super) prepares: Option<(Box<str>, Use)>,
    /// It ends what is prepared under this name.
    pub(super) ends_prepared: Option<(Box<str>, Use)>,
}

/// What is awaited of the spans on their way.
#[derive(Default)]
pub(super) struct Effects {
    /// The catalog may have changed when this span has ended.
    defined: Option<SpanId>,
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
    failed: bool,
}

impl Effects {
    /// A message was forwarded in this span.
    pub(super) fn note(&mut self, ending: &mut Ending, span: SpanId) {
        if ending.defines || ending.redefines {
            self.defined = Some(span);
        }
        if ending.redefines {
            self.redefined = Some(span);
        }
        for (prepares, name) in [
            (true, ending.prepares.take()),
            (false, ending.ends_prepared.take()),
        ] {
            self.names.extend(name.map(|(gid, used)| Named {
                gid,
                used,
                span,
                prepares,
                failed: false,
            }));
        }
    }

    /// Whether names may do what the catalog does not tell.
    pub(super) fn redefined(&self) -> bool {
        self.redefined.is_some()
    }

    /// The server told an error in this span.
    pub(super) fn failed(&mut self, span: Option<SpanId>) {
        for name in &mut self.names {
            name.failed |= Some(name.span) == span;
        }
    }

    /// No transaction is open after this span.
    pub(super) fn ended(&mut self, span: SpanId, database: &Arc<Database>, prepared: &Prepared) {
        if self.defined.is_some_and(|defined| defined <= span) {
            self.defined = None;
            database.outdated();
        }
        self.redefined = self.redefined.filter(|redefined| *redefined > span);
        for name in self.names.extract_if(.., |name| name.span <= span) {
            match (name.prepares, name.failed) {
                (true, true) => prepared.failed(&name.gid, name.used),
                (false, false) => prepared.ended(&name.gid, name.used),
                // It is prepared now, or is prepared still.
                (true, false) | (false, true) => {}
            }
        }
    }

    /// The session was lost: what was on its way may have been done.
    pub(super) fn lose(&mut self, database: &Arc<Database>) {
        if self.defined.take().is_some() {
            database.outdated();
        }
        self.names.clear();
    }
}
