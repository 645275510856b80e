//! The state of a session's settings and of its transaction, after a number of statements.

use std::sync::Arc;

use crate::protocol::postgres::classify::{
    Class, Isolation, SessionControl, SetValue, Statement, TransactionControl,
    isolation as level_of,
};
use crate::protocol::postgres::ticket::Tickets;
use crate::protocol::postgres::ticket::change::Change;
use crate::protocol::postgres::ticket::scope::Scope;

/// The tickets that were shown at one time: the session's, and those of a comment.
pub(super) type Shown = [Tickets; 2];

/// What a statement does to a [`State`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Act {
    pub(super) statement: Arc<Statement>,
    pub(super) changes: Vec<Change>,
    pub(super) comment: Tickets,
}

/// Settings and transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) scope: Scope,
    isolation: Isolation,
    /// What was shown when the transaction's snapshot was taken, also by a Parse before its first
    /// statement; `None`: it has taken none.
    snapshot: Option<Shown>,
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
        self.scope.set_for_good(|settings| {
            settings.search_path = None;
            settings.role_changed = true;
        });
    }

    /// Whether the transaction, or the one that comes next, reads as of one snapshot.
    fn has_one_snapshot(&self) -> bool {
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
        let Some(seen) = &self.snapshot else {
            return false;
        };
        let in_time = |ticket| seen.iter().any(|it| it.as_slice().contains(ticket));
        !shown.iter().flat_map(Tickets::as_slice).all(in_time)
    }

    /// Whether the transaction has taken a snapshot.
    pub(super) fn has_snapshot(&self) -> bool {
        self.snapshot.is_some()
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
        if act.statement.takes_snapshot() {
            self.take_snapshot(&match &act.statement.class {
                // It was taken elsewhere, before whatever is shown here.
                Class::Session(SessionControl::ImportSnapshot) => Shown::default(),
                _ => [self.scope.now().tickets.clone(), act.comment.clone()],
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
            TransactionControl::Release(name) => self.scope.release(name),
            TransactionControl::RollbackTo(name) => {
                self.scope.rollback_to(name);
                self.failed = false;
            }
            TransactionControl::CommitPrepared(_) | TransactionControl::RollbackPrepared(_) => {}
        }
    }

    /// The transaction ends.
    pub(super) fn end(&mut self, commit: bool, chain: bool) {
        match commit && !self.failed {
            true => self.scope.commit(),
            false => self.scope.rollback(),
        }
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
