//! One statement of the grammar's tree to its class.
//!
//! What has no line here is a write to everything: a statement that a newer grammar adds is never
//! taken for a read.

use std::sync::Arc;

use pg_raw_parse::list::NodeList;
use pg_raw_parse::{Node, nodes, raw};

use super::definition::data_definition;
use super::elsewhere;
use super::session;
use super::statement::{
    Class, Effect, OpenedCursor, SessionControl, Statement, TransactionControl, Unreadable,
};
use super::sweep::{Sweep, TooMany};

/// ACCESS SHARE, the mode in which every SELECT locks.
const ACCESS_SHARE: i32 = 1;

/// WITH HOLD, among the options of DECLARE.
const CURSOR_OPT_HOLD: i32 = 0x20;

/// Class, name for the audit, and the prepared statement that it executes.
pub(super) struct Found {
    pub(super) class: Option<Class>,
    pub(super) operation: &'static str,
    pub(super) executes: Option<Box<str>>,
    pub(super) opens: Option<OpenedCursor>,
}

pub(super) fn found(operation: &'static str) -> Found {
    Found {
        class: None,
        operation,
        executes: None,
        opens: None,
    }
}

fn control(operation: &'static str, control: SessionControl) -> Found {
    Found {
        class: Some(Class::Session(control)),
        ..found(operation)
    }
}

fn maintenance(operation: &'static str) -> Found {
    Found {
        class: Some(Class::Maintenance),
        ..found(operation)
    }
}

/// Classifies one statement that stands at `span`.
pub(super) fn classify(node: Node<'_>, span: std::ops::Range<usize>) -> Statement {
    let mut sweep = Sweep::default();
    let Ok(found) = statement(node, &mut sweep) else {
        let unreadable = Statement::unreadable(Unreadable::TooMany, span.end);
        return Statement { span, ..unreadable };
    };
    if let Node::SelectStmt(select) = node {
        sweep.is_one_set_config(select);
        sweep.is_one_export(select);
    }
    let sweep = sweep.finish();
    let by_sweep = if sweep.writes {
        Class::Write
    } else {
        Class::Read
    };
    Statement {
        class: found.class.unwrap_or(by_sweep),
        operation: found.operation,
        span,
        uses: sweep.uses,
        executes: found.executes,
        opens: found.opens,
    }
}

fn statement(node: Node<'_>, sweep: &mut Sweep) -> Result<Found, TooMany> {
    Ok(match node {
        Node::SelectStmt(_) => visited("SELECT", node, sweep)?,
        Node::InsertStmt(_) => visited("INSERT", node, sweep)?,
        Node::UpdateStmt(_) => visited("UPDATE", node, sweep)?,
        Node::DeleteStmt(_) => visited("DELETE", node, sweep)?,
        Node::MergeStmt(_) => visited("MERGE", node, sweep)?,
        Node::TransactionStmt(it) => {
            let class = session::transaction(it);
            let operation = transaction_name(&class);
            Found {
                class: Some(class),
                ..found(operation)
            }
        }
        Node::VariableSetStmt(it) => control("SET", session::set(it)),
        Node::VariableShowStmt(it) => {
            let name = it.name().unwrap_or_default().to_ascii_lowercase();
            control("SHOW", SessionControl::Show(name.into()))
        }
        Node::DiscardStmt(it) => match it.target {
            raw::DiscardMode::DISCARD_ALL => control("DISCARD ALL", SessionControl::DiscardAll),
            _ => control("DISCARD", SessionControl::Discard),
        },
        Node::PrepareStmt(it) => prepare(it)?,
        Node::ExecuteStmt(it) => execute(it, sweep)?,
        Node::DeallocateStmt(it) => control(
            "DEALLOCATE",
            SessionControl::Deallocate(it.name().map(Into::into)),
        ),
        Node::DeclareCursorStmt(it) => {
            let found = nested("DECLARE", it.query(), sweep)?;
            if !sweep.uses.set_configs.is_empty() {
                // It would set at some FETCH.
                return Ok(Found {
                    class: Some(Class::Unknown(Unreadable::Failed)),
                    ..everything("DECLARE", "a cursor that sets parameters", sweep)
                });
            }
            Found {
                opens: Some(OpenedCursor {
                    name: it.portalname().unwrap_or_default().into(),
                    holds: it.options & CURSOR_OPT_HOLD != 0,
                }),
                ..found
            }
        }
        Node::FetchStmt(it) => {
            let name = it.portalname().unwrap_or_default();
            control("FETCH", SessionControl::Fetch(name.into()))
        }
        Node::ClosePortalStmt(it) => control(
            "CLOSE",
            SessionControl::CloseCursor(it.portalname().map(Into::into)),
        ),
        Node::ListenStmt(_) => control("LISTEN", SessionControl::Notification),
        Node::UnlistenStmt(_) => control("UNLISTEN", SessionControl::Notification),
        Node::NotifyStmt(_) => control("NOTIFY", SessionControl::Notification),
        Node::ConstraintsSetStmt(_) => control("SET CONSTRAINTS", SessionControl::SetConstraints),
        Node::ExplainStmt(it) => explain(it, sweep)?,
        Node::CopyStmt(it) => copy(it, sweep)?,
        Node::LockStmt(it) if it.mode <= ACCESS_SHARE => found("LOCK"),
        Node::LockStmt(it) => on_list("LOCK", it.relations(), Effect::Lock, sweep)?,
        Node::CreateTableAsStmt(_) | Node::TruncateStmt(_) => data_definition(node, sweep)?,
        Node::VacuumStmt(_)
        | Node::ClusterStmt(_)
        | Node::ReindexStmt(_)
        | Node::CheckPointStmt(_)
        | Node::AlterSystemStmt(_) => maintain(node, sweep)?,
        Node::CallStmt(_) => everything("CALL", "a procedure may write to anything", sweep),
        Node::DoStmt(_) => everything("DO", "a code block may write to anything", sweep),
        Node::LoadStmt(_) => everywhere("LOAD", "a library may do anything", sweep),
        other => data_definition(other, sweep)?,
    })
}

fn visited(operation: &'static str, node: Node<'_>, sweep: &mut Sweep) -> Result<Found, TooMany> {
    sweep.visit(node)?;
    Ok(found(operation))
}

/// A statement that runs another one.
pub(super) fn nested(
    operation: &'static str,
    query: Node<'_>,
    sweep: &mut Sweep,
) -> Result<Found, TooMany> {
    let inner = statement(query, sweep)?;
    Ok(Found { operation, ..inner })
}

pub(super) fn everything(operation: &'static str, why: &'static str, sweep: &mut Sweep) -> Found {
    sweep.everything(why);
    found(operation)
}

/// It may write to anything, in any database.
fn everywhere(operation: &'static str, why: &'static str, sweep: &mut Sweep) -> Found {
    elsewhere::every(&mut sweep.uses);
    everything(operation, why, sweep)
}

fn prepare(it: &nodes::PrepareStmt) -> Result<Found, TooMany> {
    let mut statement = classify(it.query(), 0..0);
    // What EXECUTE gives is turned into these.
    let mut types = Sweep::default();
    for parameter in it.argtypes().iter() {
        types.visit(Node::TypeName(parameter))?;
    }
    statement.uses.casts.append(&mut types.uses.casts);
    let prepared = SessionControl::Prepare {
        name: it.name().unwrap_or_default().into(),
        statement: Arc::new(statement),
    };
    Ok(control("PREPARE", prepared))
}

fn execute(it: &nodes::ExecuteStmt, sweep: &mut Sweep) -> Result<Found, TooMany> {
    for parameter in it.params().iter() {
        sweep.visit(parameter)?;
    }
    Ok(Found {
        executes: Some(it.name().unwrap_or_default().into()),
        ..control("EXECUTE", SessionControl::Execute)
    })
}

/// EXPLAIN plans, for which it computes what EXECUTE gives, makes values of texts, and may call
/// what operators are made of; with ANALYZE it executes as well.
fn explain(it: &nodes::ExplainStmt, sweep: &mut Sweep) -> Result<Found, TooMany> {
    let analyzes = it.options().iter().any(|option| {
        option.defname() == Some("analyze") && !matches!(truth(option.arg()), Some(false))
    });
    if analyzes {
        return nested("EXPLAIN ANALYZE", it.query(), sweep);
    }
    let planned = nested("EXPLAIN", it.query(), sweep)?;
    sweep.is_only_planned();
    let executes = planned.executes.is_some();
    let class = executes.then_some(Class::Session(SessionControl::Execute));
    Ok(match sweep.uses.everything {
        Some(_) => planned,
        None => Found {
            class,
            opens: None,
            ..planned
        },
    })
}

/// The value of an option as `defGetBoolean` takes it; absent is true.
fn truth(node: Node<'_>) -> Option<bool> {
    match node {
        Node::None => Some(true),
        Node::Integer(number) => Some(number.ival != 0),
        Node::Boolean(value) => Some(value.boolval),
        Node::String(text) => match text.sval()?.to_ascii_lowercase().as_str() {
            "true" | "on" => Some(true),
            "false" | "off" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

fn copy(it: &nodes::CopyStmt, sweep: &mut Sweep) -> Result<Found, TooMany> {
    if it.is_program {
        return Ok(everywhere(
            "COPY",
            "COPY runs a program at the server",
            sweep,
        ));
    }
    if !it.is_from && it.filename().is_some() {
        return Ok(everywhere(
            "COPY",
            "COPY writes a file at the server",
            sweep,
        ));
    }
    match (it.relation(), it.is_from) {
        (Some(name), true) => {
            sweep.target(name, Effect::Insert)?;
            // What comes is made values of its columns' types, as the texts of an INSERT are.
            sweep.visit(Node::RangeVar(name))?;
            sweep.uses.texts = true;
            sweep.visit(it.where_clause())?;
            Ok(found("COPY FROM"))
        }
        (Some(name), false) => visited("COPY TO", Node::RangeVar(name), sweep),
        (None, _) => nested("COPY TO", it.query(), sweep),
    }
}

pub(super) fn on_list(
    operation: &'static str,
    relations: &NodeList,
    effect: Effect,
    sweep: &mut Sweep,
) -> Result<Found, TooMany> {
    for name in relations.iter() {
        match name {
            Node::RangeVar(name) => sweep.target(name, effect)?,
            _ => sweep.everything("it names something that is no relation"),
        }
    }
    Ok(found(operation))
}

/// A statement on one relation; everything where it is not named.
pub(super) fn on(
    operation: &'static str,
    name: Option<&nodes::RangeVar>,
    effect: Effect,
    sweep: &mut Sweep,
) -> Result<Found, TooMany> {
    match name {
        Some(name) => sweep.target(name, effect)?,
        None => sweep.everything("it names no relation"),
    }
    Ok(found(operation))
}

fn maintain(node: Node<'_>, sweep: &mut Sweep) -> Result<Found, TooMany> {
    let Found { operation, .. } = match node {
        Node::VacuumStmt(it) => {
            for rel in it.rels().iter() {
                on("VACUUM", rel.relation(), Effect::Define, sweep)?;
            }
            if it.rels().is_empty() {
                sweep.everything("it maintains every relation");
            }
            found(if it.is_vacuumcmd { "VACUUM" } else { "ANALYZE" })
        }
        Node::ClusterStmt(it) => on("CLUSTER", it.relation(), Effect::Define, sweep)?,
        Node::ReindexStmt(it) => on("REINDEX", it.relation(), Effect::Define, sweep)?,
        Node::AlterSystemStmt(_) => {
            everywhere("ALTER SYSTEM", "it changes the server's settings", sweep)
        }
        _ => found("CHECKPOINT"),
    };
    Ok(maintenance(operation))
}

fn transaction_name(class: &Class) -> &'static str {
    let Class::Transaction(control) = class else {
        return "TRANSACTION";
    };
    match control {
        TransactionControl::Begin(_) => "BEGIN",
        TransactionControl::Commit { .. } => "COMMIT",
        TransactionControl::Rollback { .. } => "ROLLBACK",
        TransactionControl::Savepoint(_) => "SAVEPOINT",
        TransactionControl::Release(_) => "RELEASE",
        TransactionControl::RollbackTo(_) => "ROLLBACK TO",
        TransactionControl::Prepare(_) => "PREPARE TRANSACTION",
        TransactionControl::CommitPrepared(_) => "COMMIT PREPARED",
        TransactionControl::RollbackPrepared(_) => "ROLLBACK PREPARED",
    }
}
