//! Transaction control, and the statements that change the session only.

use pg_raw_parse::list::NodeList;
use pg_raw_parse::{ConstValue, Node, nodes, raw};

use super::statement::{
    Class, Isolation, SessionControl, SetValue, TransactionControl, TransactionModes, Unreadable,
};

pub(super) fn transaction(statement: &nodes::TransactionStmt) -> Class {
    use raw::TransactionStmtKind as Kind;
    let savepoint = || statement.savepoint_name().unwrap_or_default().into();
    let gid = || statement.gid().unwrap_or_default().into();
    let chain = statement.chain;
    Class::Transaction(match statement.kind {
        Kind::TRANS_STMT_BEGIN | Kind::TRANS_STMT_START => {
            TransactionControl::Begin(modes(statement.options()))
        }
        Kind::TRANS_STMT_COMMIT => TransactionControl::Commit { chain },
        Kind::TRANS_STMT_ROLLBACK => TransactionControl::Rollback { chain },
        Kind::TRANS_STMT_SAVEPOINT => TransactionControl::Savepoint(savepoint()),
        Kind::TRANS_STMT_RELEASE => TransactionControl::Release(savepoint()),
        Kind::TRANS_STMT_ROLLBACK_TO => TransactionControl::RollbackTo(savepoint()),
        Kind::TRANS_STMT_PREPARE => TransactionControl::Prepare(gid()),
        Kind::TRANS_STMT_COMMIT_PREPARED => TransactionControl::CommitPrepared(gid()),
        Kind::TRANS_STMT_ROLLBACK_PREPARED => TransactionControl::RollbackPrepared(gid()),
        _ => return Class::Unknown(Unreadable::Failed),
    })
}

/// The last mode of a kind counts.
fn modes(options: &NodeList) -> TransactionModes {
    let mut modes = TransactionModes::default();
    for option in options.iter() {
        let Node::DefElem(option) = option else {
            continue;
        };
        match option.defname() {
            Some("transaction_isolation") => {
                modes.isolation = constant(option.arg()).map(|level| isolation(&level));
            }
            Some("transaction_read_only") => {
                modes.read_only = constant(option.arg()).map(|value| &*value != "0");
            }
            _ => {}
        }
    }
    modes
}

/// The level of `transaction_isolation` or `default_transaction_isolation`. One that is not known
/// counts as the stricter.
pub(crate) fn isolation(level: &str) -> Isolation {
    let lower = level.to_ascii_lowercase();
    match lower.as_str() {
        "read committed" | "read uncommitted" => Isolation::PerStatement,
        _ => Isolation::OneSnapshot,
    }
}

fn constant(node: Node<'_>) -> Option<Box<str>> {
    let Node::A_Const(constant) = node else {
        return None;
    };
    Some(match constant.val()? {
        ConstValue::String(text) | ConstValue::Float(text) | ConstValue::BitString(text) => {
            text.into()
        }
        ConstValue::Integer(number) => number.to_string().into(),
        ConstValue::Boolean(true) => "1".into(),
        ConstValue::Boolean(false) => "0".into(),
        _ => return None,
    })
}

pub(super) fn set(statement: &nodes::VariableSetStmt) -> SessionControl {
    use raw::VariableSetKind as Kind;
    let name: Box<str> = statement
        .name()
        .unwrap_or_default()
        .to_ascii_lowercase()
        .into();
    let set = |value| SessionControl::Set {
        name: name.clone(),
        local: statement.is_local,
        value,
    };
    match statement.kind {
        Kind::VAR_SET_VALUE => {
            let texts: Option<Vec<_>> = statement.args().iter().map(constant).collect();
            set(texts.map_or(SetValue::Other, SetValue::Texts))
        }
        Kind::VAR_SET_DEFAULT => set(SetValue::Default),
        Kind::VAR_SET_MULTI => match &*name {
            "transaction" => SessionControl::SetTransaction(modes(statement.args())),
            "session characteristics" => {
                SessionControl::SetCharacteristics(modes(statement.args()))
            }
            _ => {
                let name = statement.args().iter().next().and_then(constant);
                SessionControl::ImportSnapshot(name.unwrap_or_default())
            }
        },
        Kind::VAR_RESET => SessionControl::Reset(name),
        Kind::VAR_RESET_ALL => SessionControl::ResetAll,
        _ => set(SetValue::Other),
    }
}
