//! What can turn a read-only session into one that writes.

use crate::protocol::postgres::classify::{
    Argument, Class, SessionControl, Statement, TransactionControl, TransactionModes,
};

const READ_ONLY: [&str; 2] = ["transaction_read_only", "default_transaction_read_only"];

/// Whether a statement can make a session that Postgres holds read-only write: by its modes, its
/// settings, or by a transaction that it begins inside (DO, CALL). Whoever relies on the read-only
/// session refuses these.
pub fn may_turn_read_write(statement: &Statement) -> bool {
    let modes = |modes: &TransactionModes| modes.read_only == Some(false);
    let by_class = match &statement.class {
        Class::Transaction(TransactionControl::Begin(it)) => modes(it),
        // The next transaction takes the modes of this one: those may have been changed.
        Class::Transaction(
            TransactionControl::Commit { chain } | TransactionControl::Rollback { chain },
        ) => *chain,
        Class::Transaction(
            TransactionControl::CommitPrepared(_)
            | TransactionControl::RollbackPrepared(_)
            | TransactionControl::Prepare(_),
        ) => true,
        Class::Session(control) => match control {
            SessionControl::Set { name, .. } => READ_ONLY.contains(&&**name),
            SessionControl::Reset(name) => READ_ONLY.contains(&&**name),
            SessionControl::SetTransaction(it) | SessionControl::SetCharacteristics(it) => {
                modes(it)
            }
            // Back to what the session began with: what the proxy made it begin with.
            SessionControl::Prepare { statement, .. } => may_turn_read_write(statement),
            _ => false,
        },
        Class::Read | Class::Write | Class::Maintenance | Class::Transaction(_) => false,
        Class::Unknown(_) => true,
    };
    let by_call = statement
        .uses
        .set_configs
        .iter()
        .any(|call| match &call.name {
            Argument::Text(name, _) => READ_ONLY.contains(&&*name.to_ascii_lowercase()),
            // A name that is not told could be one of them.
            _ => true,
        });
    by_class || by_call || statement.may_commit_inside()
}
