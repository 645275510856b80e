//! The state of a session's settings and of its transaction, after a number of statements.

use std::sync::Arc;

use super::cursors::Cursors;
use crate::protocol::postgres::classify::{
    Class, Isolation, SessionControl, SetValue, Statement, TransactionControl,
    isolation as level_of,
};
use crate::protocol::postgres::ticket::Tickets;
use crate::protocol::postgres::ticket::change::Change;
use crate::protocol::postgres::ticket::scope::{Scope, Settings};

/// The tickets that were shown at one time: the session's, and those of a comment.
pub type Shown = [Tickets; 2];

/// What a statement does to a [`State`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Act {
    pub(super) statement: Arc<Statement>,
    pub(super) changes: Vec<Change>,
    pub(super) comment: Tickets,
    /// What the gate was asked for; `None`: what the state shows. The server may come to it in
    /// another state than was expected, and knows of no seal.
    pub(super) shown: Option<Shown>,
    /// What was shown when the snapshot was taken that it imports, where that is known.
    pub(super) imported: Option<Shown>,
}

/// Whether there is another ticket among these.
pub(super) fn shows_more<'t>(
    seen: &Shown,
    mut tickets: impl Iterator<Item = &'t Box<str>>,
) -> bool {
    tickets.any(|ticket| !seen.iter().any(|it| it.as_slice().contains(ticket)))
}

/// Settings and transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) scope: Scope,
    isolation: Isolation,
    /// What was shown when the transaction's snapshot was taken, also by a Parse before its first
    /// statement; `None`: it has taken none.
    snapshot: Option<Shown>,
    pub(super) cursors: Cursors,
    /// A block that the client began: it does not end with its span.
    explicit: bool,
    /// The block has failed: a COMMIT rolls it back.
    failed: bool,
}

impl State {
    pub(super) fn new(scope: Scope) -> State {
        let isolation = scope.now().isolation;
        State {
            scope,
            isolation,
            snapshot: None,
            cursors: Cursors::default(),
            explicit: false,
            failed: false,
        }
    }

    /// The block has failed, or goes on.
    pub(super) fn is_failed(&mut self, failed: bool) {
        self.failed = failed;
    }

    /// Something has done what nobody saw, for good.
    pub(super) fn distrust(&mut self) {
        self.scope.set_for_good(Settings::distrust);
    }

    /// Whether the transaction, or the one that comes next, reads as of one snapshot.
    pub(super) fn has_one_snapshot(&self) -> bool {
        let isolation = match self.scope.in_transaction() {
            true => self.isolation,
            false => self.scope.now().isolation,
        };
        isolation == Isolation::OneSnapshot
    }

    /// Whether what the transaction reads was fixed before now.
    pub(super) fn snapshot_is_fixed(&self) -> bool {
        self.has_snapshot() && self.has_one_snapshot()
    }

    /// Whether a snapshot that is taken now fixes what the transaction reads.
    pub(super) fn would_fix_snapshot(&self) -> bool {
        !self.has_snapshot() && self.has_one_snapshot()
    }

    /// Whether a ticket among these was not shown yet when the snapshot was taken.
    pub(super) fn shows_late(&self, shown: &Shown) -> bool {
        let texts = || shown.iter().flat_map(Tickets::as_slice);
        let seen = self.snapshot.as_ref();
        seen.is_some_and(|seen| shows_more(seen, texts()))
    }

    /// Whether a ticket among these was not shown yet when a cursor was opened. One that the
    /// session has not declared itself was opened in this transaction, by a function.
    pub(super) fn fetches_late(&self, name: &[u8], shown: &Shown) -> bool {
        let late = self.cursors.is_late(name, shown);
        late.unwrap_or_else(|| self.shows_late(shown))
    }

    /// A message of the protocol closes what has this name: cursors are portals.
    pub(super) fn close_portal(&mut self, name: &[u8]) {
        if let Ok(name) = std::str::from_utf8(name) {
            self.cursors.close(Some(name));
        }
    }

    /// Whether the transaction has taken a snapshot.
    pub(super) fn has_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// What was shown when the transaction's snapshot was taken.
    pub(super) fn snapshot(&self) -> Option<&Shown> {
        self.snapshot.as_ref()
    }

    /// A snapshot is taken, unless there is one.
    pub(super) fn take_snapshot(&mut self, shown: &Shown) {
        self.snapshot.get_or_insert_with(|| shown.clone());
    }

    /// Whether a transaction is open that does not end with its span.
    pub(super) fn is_explicit(&self) -> bool {
        self.scope.in_transaction() && self.explicit
    }

    fn begin(&mut self) {
        if !self.scope.in_transaction() {
            self.scope.begin();
            self.isolation = self.scope.now().isolation;
            self.explicit = false;
        }
    }

    /// A statement that succeeded, or that is expected to.
    pub(super) fn apply(&mut self, act: &Act) {
        // Outside of a block the server begins a transaction for each statement, or for those up
        // to the next Sync; the end of the span ends it here.
        self.begin();
        match &act.statement.class {
            Class::Transaction(control) => self.control(control),
            Class::Session(SessionControl::SetTransaction(modes)) => {
                self.isolation = modes.isolation.unwrap_or(self.isolation);
            }
            Class::Session(SessionControl::Set { name, value, .. })
                if &**name == "transaction_isolation" =>
            {
                // What is not told counts as the stricter.
                self.isolation = match value {
                    SetValue::Texts(texts) => level_of(texts.first().map_or("", |text| text)),
                    SetValue::Default | SetValue::Other => Isolation::OneSnapshot,
                };
            }
            _ => {}
        }
        for change in &act.changes {
            change.apply(&mut self.scope);
        }
        let now = || [self.scope.now().tickets.clone(), act.comment.clone()];
        let shown = act.shown.clone().unwrap_or_else(now);
        match (&act.statement.opens, &act.statement.class) {
            (Some(opened), _) => {
                let within = self.scope.savepoints();
                self.cursors.declare(opened, shown.clone(), within);
            }
            (None, Class::Session(SessionControl::CloseCursor(name))) => {
                self.cursors.close(name.as_deref());
            }
            (None, Class::Session(SessionControl::DiscardAll)) => self.cursors.close(None),
            _ => {}
        }
        if act.statement.takes_snapshot() {
            self.take_snapshot(&match &act.statement.class {
                // It was taken elsewhere: what is not known of it is late.
                Class::Session(SessionControl::ImportSnapshot(_)) => {
                    act.imported.clone().unwrap_or_default()
                }
                _ => shown,
            });
        }
    }

    fn control(&mut self, control: &TransactionControl) {
        match control {
            TransactionControl::Begin(modes) => {
                self.isolation = modes.isolation.unwrap_or(self.isolation);
                self.explicit = true;
            }
            TransactionControl::Commit { chain } => self.end(true, *chain),
            TransactionControl::Rollback { chain } => self.end(false, *chain),
            TransactionControl::Prepare(_) => self.end(true, false),
            TransactionControl::Savepoint(name) => {
                // The number of savepoints was checked before the statement was forwarded.
                let _ = self.scope.savepoint(name);
            }
            TransactionControl::Release(name) => {
                if let Some(before) = self.scope.savepoints_before(name) {
                    self.cursors.release(before);
                }
                self.scope.release(name);
            }
            TransactionControl::RollbackTo(name) => {
                if let Some(before) = self.scope.savepoints_before(name) {
                    self.cursors.roll_back_to(before);
                }
                self.scope.rollback_to(name);
                self.failed = false;
            }
            TransactionControl::CommitPrepared(_) | TransactionControl::RollbackPrepared(_) => {}
        }
    }

    /// The transaction ends.
    pub(super) fn end(&mut self, commit: bool, chain: bool) {
        let committed = commit && !self.failed;
        match committed {
            true => self.scope.commit(),
            false => self.scope.rollback(),
        }
        self.cursors.end(committed);
        self.failed = false;
        self.snapshot = None;
        if chain {
            // The next one has the same isolation, and its own snapshot.
            self.scope.begin();
            self.explicit = true;
        }
    }

    /// A span ends: so does a transaction that no BEGIN began.
    pub(super) fn end_span(&mut self, failed: bool) {
        if !self.explicit {
            self.end(!failed, false);
        }
    }

    /// The server says that a transaction is open.
    pub(super) fn stays_open(&mut self) {
        self.begin();
        self.explicit = true;
    }
}
