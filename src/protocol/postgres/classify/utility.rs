//! One statement of the grammar's tree to its class.
//!
//! What has no line here is a write to everything: a statement that a newer grammar adds is never
//! taken for a read.

use std::sync::Arc;

use pg_raw_parse::list::NodeList;
use pg_raw_parse::{Node, nodes, raw};

use super::session;
use super::statement::{
    Class, Effect, RelationName, SessionControl, Statement, Target, TransactionControl, Unreadable,
};
use super::sweep::{Sweep, TooMany, is_temporary, qualified};

/// ACCESS SHARE, the mode in which every SELECT locks.
const ACCESS_SHARE: i32 = 1;

/// Class, name for the audit, and the prepared statement that it executes.
pub(super) struct Found {
    class: Option<Class>,
    operation: &'static str,
    executes: Option<Box<str>>,
}

fn found(operation: &'static str) -> Found {
    Found {
        class: None,
        operation,
        executes: None,
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
        Node::PrepareStmt(it) => control(
            "PREPARE",
            SessionControl::Prepare {
                name: it.name().unwrap_or_default().into(),
                statement: Arc::new(classify(it.query(), 0..0)),
            },
        ),
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
            found
        }
        Node::FetchStmt(_) => control("FETCH", SessionControl::Fetch),
        Node::ClosePortalStmt(_) => control("CLOSE", SessionControl::CloseCursor),
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
        Node::LoadStmt(_) => everything("LOAD", "a library may do anything", sweep),
        other => data_definition(other, sweep)?,
    })
}

fn visited(operation: &'static str, node: Node<'_>, sweep: &mut Sweep) -> Result<Found, TooMany> {
    sweep.visit(node)?;
    Ok(found(operation))
}

/// A statement that runs another one.
fn nested(operation: &'static str, query: Node<'_>, sweep: &mut Sweep) -> Result<Found, TooMany> {
    let inner = statement(query, sweep)?;
    Ok(Found { operation, ..inner })
}

fn everything(operation: &'static str, why: &'static str, sweep: &mut Sweep) -> Found {
    sweep.everything(why);
    found(operation)
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

/// EXPLAIN plans; with ANALYZE it executes as well.
fn explain(it: &nodes::ExplainStmt, sweep: &mut Sweep) -> Result<Found, TooMany> {
    let analyzes = it.options().iter().any(|option| {
        option.defname() == Some("analyze") && !matches!(truth(option.arg()), Some(false))
    });
    if analyzes {
        return nested("EXPLAIN ANALYZE", it.query(), sweep);
    }
    Ok(found("EXPLAIN"))
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
        return Ok(everything(
            "COPY",
            "COPY runs a program at the server",
            sweep,
        ));
    }
    if !it.is_from && it.filename().is_some() {
        return Ok(everything(
            "COPY",
            "COPY writes a file at the server",
            sweep,
        ));
    }
    match (it.relation(), it.is_from) {
        (Some(name), true) => {
            sweep.target(name, Effect::Insert)?;
            sweep.visit(it.where_clause())?;
            Ok(found("COPY FROM"))
        }
        (Some(name), false) => visited("COPY TO", Node::RangeVar(name), sweep),
        (None, _) => nested("COPY TO", it.query(), sweep),
    }
}

fn on_list(
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
fn on(
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
            everything("ALTER SYSTEM", "it changes the server's settings", sweep)
        }
        _ => found("CHECKPOINT"),
    };
    Ok(maintenance(operation))
}

fn create(name: &nodes::RangeVar) -> Effect {
    Effect::Create {
        temporary: is_temporary(name),
    }
}

fn created(
    operation: &'static str,
    name: Option<&nodes::RangeVar>,
    sweep: &mut Sweep,
) -> Result<Found, TooMany> {
    on(operation, name, name.map_or(Effect::Define, create), sweep)
}

/// An object that is no relation, in this schema.
fn object(operation: &'static str, schema: Option<Box<str>>, sweep: &mut Sweep) -> Found {
    sweep.writes = true;
    sweep.uses.defines_in.push(schema);
    found(operation)
}

/// It may change what the names of later statements do.
fn redefining(found: Found, sweep: &mut Sweep) -> Found {
    sweep.uses.redefines = true;
    found
}

fn object_of_list(operation: &'static str, name: &NodeList, sweep: &mut Sweep) -> Found {
    let (schema, _) = qualified(name);
    object(operation, schema, sweep)
}

fn data_definition(node: Node<'_>, sweep: &mut Sweep) -> Result<Found, TooMany> {
    Ok(match node {
        Node::CreateTableAsStmt(it) => {
            nested("CREATE TABLE AS", it.query(), sweep).and_then(|inner| {
                let name = it.into().and_then(|into| into.rel());
                created("CREATE TABLE AS", name, sweep)?;
                Ok(Found {
                    class: None,
                    executes: inner.executes,
                    ..found("CREATE TABLE AS")
                })
            })?
        }
        Node::TruncateStmt(it) => {
            let cascade = it.behavior == raw::DropBehavior::DROP_CASCADE;
            on_list(
                "TRUNCATE",
                it.relations(),
                Effect::Truncate { cascade },
                sweep,
            )?
        }
        Node::CreateStmt(it) => {
            // A partition or a child gives its parent new rows.
            on_list("CREATE TABLE", it.inh_relations(), Effect::Define, sweep)?;
            sweep.uses.if_not_exists = it.if_not_exists;
            created("CREATE TABLE", it.relation(), sweep)?
        }
        Node::ViewStmt(it) => {
            // A view of the session's own is in no catalog that is looked at: its name stays one
            // that is not known, whose use is a write to everything.
            let temporary = it.view().is_some_and(is_temporary);
            let found = match temporary {
                true => everything("CREATE VIEW", "a temporary view", sweep),
                false => created("CREATE VIEW", it.view(), sweep)?,
            };
            redefining(found, sweep)
        }
        Node::CreateSeqStmt(it) => created("CREATE SEQUENCE", it.sequence(), sweep)?,
        Node::AlterSeqStmt(it) => on("ALTER SEQUENCE", it.sequence(), Effect::Define, sweep)?,
        Node::IndexStmt(it) => on("CREATE INDEX", it.relation(), Effect::Define, sweep)?,
        Node::RuleStmt(it) => {
            let found = on("CREATE RULE", it.relation(), Effect::Define, sweep)?;
            redefining(found, sweep)
        }
        Node::CreateTrigStmt(it) => {
            let found = on("CREATE TRIGGER", it.relation(), Effect::Define, sweep)?;
            redefining(found, sweep)
        }
        Node::CreatePolicyStmt(it) => on("CREATE POLICY", it.table(), Effect::Define, sweep)?,
        Node::AlterPolicyStmt(it) => on("ALTER POLICY", it.table(), Effect::Define, sweep)?,
        Node::RefreshMatViewStmt(it) => on(
            "REFRESH MATERIALIZED VIEW",
            it.relation(),
            Effect::Define,
            sweep,
        )?,
        Node::AlterTableStmt(it) => alter_table(it, sweep)?,
        Node::RenameStmt(it) => rename(it, sweep)?,
        Node::AlterObjectSchemaStmt(it) => move_to_schema(it, sweep)?,
        Node::DropStmt(it) => drop_objects(it, sweep)?,
        Node::CreateFunctionStmt(it) => {
            let found = object_of_list("CREATE FUNCTION", it.funcname(), sweep);
            redefining(found, sweep)
        }
        Node::CreateDomainStmt(_) => {
            let found = object("CREATE DOMAIN", None, sweep);
            redefining(found, sweep)
        }
        Node::CreateEnumStmt(_) | Node::CreateRangeStmt(_) => object("CREATE TYPE", None, sweep),
        // Aggregates, operators, types, collations, text search.
        Node::DefineStmt(_) => {
            let found = object("CREATE", None, sweep);
            redefining(found, sweep)
        }
        Node::CompositeTypeStmt(_) => object("CREATE TYPE", None, sweep),
        Node::CommentStmt(_) => object("COMMENT", None, sweep),
        Node::SecLabelStmt(_) => object("SECURITY LABEL", None, sweep),
        Node::GrantStmt(_) => object("GRANT", None, sweep),
        Node::CreateSchemaStmt(it) if it.schema_elts().is_empty() => {
            object("CREATE SCHEMA", it.schemaname().map(Into::into), sweep)
        }
        _ => everything("DDL", "it may reach any relation", sweep),
    })
}

fn alter_table(it: &nodes::AlterTableStmt, sweep: &mut Sweep) -> Result<Found, TooMany> {
    for command in it.cmds().iter() {
        let Node::AlterTableCmd(command) = command else {
            sweep.everything("a part of it is not known");
            continue;
        };
        if command.behavior == raw::DropBehavior::DROP_CASCADE {
            sweep.everything("CASCADE may reach any relation");
        }
        sweep.uses.redefines |= !keeps_names(command.subtype);
        match command.def() {
            // ATTACH and DETACH PARTITION, INHERIT and NO INHERIT.
            Node::PartitionCmd(part) => {
                on("ALTER TABLE", part.name(), Effect::Define, sweep)?;
            }
            Node::RangeVar(name) => sweep.target(name, Effect::Define)?,
            _ => {}
        }
    }
    on("ALTER TABLE", it.relation(), Effect::Define, sweep)
}

/// Whether a part of ALTER TABLE leaves what statements on the table reach as it is.
fn keeps_names(part: raw::AlterTableType::Type) -> bool {
    use raw::AlterTableType as Part;
    matches!(
        part,
        Part::AT_AddColumn
            | Part::AT_DropColumn
            | Part::AT_ColumnDefault
            | Part::AT_SetNotNull
            | Part::AT_DropNotNull
            | Part::AT_AlterColumnType
            | Part::AT_DropConstraint
            | Part::AT_ChangeOwner
            | Part::AT_SetStatistics
            | Part::AT_SetStorage
            | Part::AT_ReplicaIdentity
    )
}

/// The old name and, for a relation, the new one: it must not slip under a rule.
fn rename(it: &nodes::RenameStmt, sweep: &mut Sweep) -> Result<Found, TooMany> {
    let Some(name) = it.relation() else {
        return Ok(everything(
            "ALTER",
            "what it renames is not resolved",
            sweep,
        ));
    };
    sweep.uses.redefines = true;
    sweep.target(name, Effect::Define)?;
    let renames_relation = it.subname().is_none();
    if renames_relation {
        push_moved(name.schemaname(), it.newname().unwrap_or_default(), sweep);
    }
    Ok(found("ALTER"))
}

fn move_to_schema(it: &nodes::AlterObjectSchemaStmt, sweep: &mut Sweep) -> Result<Found, TooMany> {
    let (Some(name), Some(schema)) = (it.relation(), it.newschema()) else {
        return Ok(everything("ALTER", "what it moves is not resolved", sweep));
    };
    sweep.uses.redefines = true;
    sweep.target(name, Effect::Define)?;
    push_moved(Some(schema), name.relname().unwrap_or_default(), sweep);
    Ok(found("ALTER"))
}

fn push_moved(schema: Option<&str>, name: &str, sweep: &mut Sweep) {
    sweep.uses.targets.push(Target {
        relation: RelationName {
            schema: schema.map(Into::into),
            name: name.into(),
        },
        effect: Effect::Create { temporary: false },
        only: false,
    });
}

fn drop_objects(it: &nodes::DropStmt, sweep: &mut Sweep) -> Result<Found, TooMany> {
    use raw::ObjectType as Kind;
    if it.behavior == raw::DropBehavior::DROP_CASCADE {
        return Ok(everything("DROP", "CASCADE may reach any relation", sweep));
    }
    let is_relation = matches!(
        it.remove_type,
        Kind::OBJECT_TABLE
            | Kind::OBJECT_VIEW
            | Kind::OBJECT_MATVIEW
            | Kind::OBJECT_SEQUENCE
            | Kind::OBJECT_FOREIGN_TABLE
            | Kind::OBJECT_INDEX
    );
    let on_relation = matches!(
        it.remove_type,
        Kind::OBJECT_TRIGGER | Kind::OBJECT_RULE | Kind::OBJECT_POLICY
    );
    for name in it.objects().iter() {
        let Node::NodeList(parts) = name else {
            object("DROP", None, sweep);
            continue;
        };
        let mut parts: Vec<&str> = parts.iter().filter_map(Node::as_str).collect();
        if on_relation {
            // The last part is the trigger's own name.
            parts.pop();
        }
        let (Some(name), true) = (parts.pop(), is_relation || on_relation) else {
            object("DROP", None, sweep);
            continue;
        };
        sweep.writes = true;
        sweep.uses.targets.push(Target {
            relation: RelationName {
                schema: parts.pop().map(Into::into),
                name: name.into(),
            },
            effect: Effect::Define,
            only: false,
        });
    }
    Ok(found("DROP"))
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
