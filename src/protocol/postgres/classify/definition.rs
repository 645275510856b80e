//! Statements that define: tables, views, functions, rules, schemas and all that has a name.

use pg_raw_parse::list::NodeList;
use pg_raw_parse::{Node, nodes, raw};

use super::analysed::{note_analysed, visit_bounds};
use super::elsewhere;
use super::filling::{Kin, referenced};
use super::statement::{Effect, RelationName, Target};
use super::sweep::{Sweep, TooMany, is_temporary, qualified};
use super::utility::{Found, everything, found, nested, on, on_list};

const ANY: &str = "it may reach any relation";
const PRIVILEGES: &str = "ALTER DEFAULT PRIVILEGES";

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

/// A role or a database: what no other database has either.
fn of_server(operation: &'static str, sweep: &mut Sweep) -> Found {
    sweep.writes = true;
    found(operation)
}

/// Changes of published tables may be refused that were not before.
fn publish(it: &nodes::CreatePublicationStmt, sweep: &mut Sweep) -> Result<Found, TooMany> {
    let operation = "CREATE PUBLICATION";
    if it.for_all_tables {
        return Ok(everything(operation, ANY, sweep));
    }
    sweep.writes = true;
    for part in it.pubobjects().iter() {
        let Node::PublicationObjSpec(part) = part else {
            sweep.everything(ANY);
            continue;
        };
        match part.pubtable() {
            Some(table) => {
                sweep.visit(table.where_clause())?;
                on(operation, table.relation(), Effect::Define, sweep)?;
            }
            // The tables of a schema.
            None => sweep.everything(ANY),
        }
    }
    Ok(found(operation))
}

fn object_of_list(operation: &'static str, name: &NodeList, sweep: &mut Sweep) -> Found {
    let (schema, _) = qualified(name);
    object(operation, schema, sweep)
}

pub(super) fn data_definition(node: Node<'_>, sweep: &mut Sweep) -> Result<Found, TooMany> {
    elsewhere::note(node, &mut sweep.uses);
    note_analysed(node, sweep)?;
    Ok(match node {
        Node::CreateTableAsStmt(it) => {
            nested("CREATE TABLE AS", it.query(), sweep).and_then(|inner| {
                let name = it.into().and_then(|into| into.rel());
                sweep.uses.if_not_exists = it.if_not_exists;
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
            visit_bounds(it.partbound(), sweep)?;
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
        Node::CreateSeqStmt(it) => {
            sweep.uses.if_not_exists = it.if_not_exists;
            created("CREATE SEQUENCE", it.sequence(), sweep)?
        }
        Node::AlterSeqStmt(it) => {
            // It goes with its new owner, and what depends on it goes too.
            let owned = |option| match option {
                Node::DefElem(option) => option.defname() == Some("owned_by"),
                _ => true,
            };
            let effect = match it.options().iter().any(owned) {
                true => Effect::Move,
                false => Effect::Define,
            };
            on("ALTER SEQUENCE", it.sequence(), effect, sweep)?
        }
        Node::IndexStmt(it) => {
            sweep.uses.concurrently = it.concurrent;
            on("CREATE INDEX", it.relation(), Effect::Define, sweep)?
        }
        Node::RuleStmt(it) => {
            // What it will do counts for whoever makes it.
            sweep.visit(it.where_clause())?;
            for action in it.actions().iter() {
                sweep.visit(action)?;
            }
            let found = on("CREATE RULE", it.relation(), Effect::Define, sweep)?;
            redefining(found, sweep)
        }
        Node::CreateTrigStmt(it) => {
            // The same: from now on others call its function.
            let (schema, name) = qualified(it.funcname());
            sweep.calls(schema, name)?;
            sweep.visit(it.when_clause())?;
            let found = on("CREATE TRIGGER", it.relation(), Effect::Define, sweep)?;
            redefining(found, sweep)
        }
        // From now on those who read the table call its functions.
        Node::CreatePolicyStmt(it) => {
            let found = on("CREATE POLICY", it.table(), Effect::Define, sweep)?;
            redefining(found, sweep)
        }
        Node::AlterPolicyStmt(it) => {
            let found = on("ALTER POLICY", it.table(), Effect::Define, sweep)?;
            redefining(found, sweep)
        }
        Node::RefreshMatViewStmt(it) => {
            // It runs the view's query.
            if let Some(name) = it.relation() {
                sweep.visit(Node::RangeVar(name))?;
            }
            let operation = "REFRESH MATERIALIZED VIEW";
            on(operation, it.relation(), Effect::Define, sweep)?
        }
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
        Node::CreateEnumStmt(_) => object("CREATE ENUM", None, sweep),
        // A label that is there is one of rows; a new one is not.
        Node::AlterEnumStmt(it) if it.old_val().is_none() => object("ALTER ENUM", None, sweep),
        Node::CreateRangeStmt(it) => range(it, sweep)?,
        // Aggregates, operators, types, collations, text search.
        Node::DefineStmt(_) => {
            let found = object("CREATE", None, sweep);
            redefining(found, sweep)
        }
        Node::CompositeTypeStmt(_) => object("CREATE TYPE", None, sweep),
        Node::CommentStmt(_) => object("COMMENT", None, sweep),
        Node::SecLabelStmt(_) => object("SECURITY LABEL", None, sweep),
        Node::GrantStmt(_) => object("GRANT", None, sweep),
        Node::AlterDefaultPrivilegesStmt(_) => object(PRIVILEGES, None, sweep),
        Node::CreatePublicationStmt(it) => publish(it, sweep)?,
        // Of the server: no table is reached but those of the databases that they name.
        Node::CreatedbStmt(_) => of_server("CREATE DATABASE", sweep),
        Node::DropdbStmt(_) => of_server("DROP DATABASE", sweep),
        Node::AlterDatabaseStmt(_)
        | Node::AlterDatabaseSetStmt(_)
        | Node::AlterDatabaseRefreshCollStmt(_) => of_server("ALTER DATABASE", sweep),
        Node::CreateRoleStmt(_) => of_server("CREATE ROLE", sweep),
        Node::AlterRoleStmt(_) => of_server("ALTER ROLE", sweep),
        // One that anything depends on, in whichever database, is not dropped.
        Node::DropRoleStmt(_) => of_server("DROP ROLE", sweep),
        Node::GrantRoleStmt(_) => of_server("GRANT", sweep),
        Node::CreateSchemaStmt(it) if it.schema_elts().is_empty() => {
            object("CREATE SCHEMA", it.schemaname().map(Into::into), sweep)
        }
        // The library has no node for it.
        Node::Invalid(it) if it.type_ == raw::NodeTag::T_CreateForeignTableStmt => {
            everything("CREATE FOREIGN TABLE", ANY, sweep)
        }
        Node::ImportForeignSchemaStmt(_) => everything("IMPORT FOREIGN SCHEMA", ANY, sweep),
        Node::CreateExtensionStmt(it) if it.if_not_exists => {
            sweep.uses.extension = it.extname().map(Into::into);
            redefining(object("CREATE EXTENSION", None, sweep), sweep)
        }
        // It looks at the rows that there are.
        Node::AlterDomainStmt(_) => everything("ALTER DOMAIN", ANY, sweep),
        _ => everything("DDL", ANY, sweep),
    })
}

/// From now on the server calls the functions of a type of ranges, where none is written.
fn range(it: &nodes::CreateRangeStmt, sweep: &mut Sweep) -> Result<Found, TooMany> {
    let is_function = |name: &str| matches!(name, "subtype_diff" | "canonical");
    for option in it.params().iter() {
        // A name stands for a type, to the grammar.
        if let (Some(true), Node::TypeName(named)) =
            (option.defname().map(is_function), option.arg())
        {
            let mut names = named.names().iter().filter_map(|it| it.sval());
            let name = names.next_back().unwrap_or_default();
            let schema = names.next_back().map(Into::into);
            sweep.calls(schema, name.into())?;
            sweep.uses.redefines = true;
        }
    }
    Ok(object("CREATE TYPE", None, sweep))
}

fn alter_table(it: &nodes::AlterTableStmt, sweep: &mut Sweep) -> Result<Found, TooMany> {
    for command in it.cmds().iter() {
        let Node::AlterTableCmd(command) = command else {
            sweep.everything("a part of it is not known");
            continue;
        };
        if command.behavior == raw::DropBehavior::DROP_CASCADE {
            drop_part(it, command.subtype, sweep)?;
        }
        sweep.uses.redefines |= !keeps_names(command);
        let keys = keys_of(command);
        if let Some(name) = it.relation().filter(|_| !keys.is_empty()) {
            sweep.target(name, Effect::Key)?;
            sweep.uses.kin.extend(keys);
        }
        match command.def() {
            // ATTACH and DETACH PARTITION, INHERIT and NO INHERIT.
            Node::PartitionCmd(part) => {
                on("ALTER TABLE", part.name(), Effect::Define, sweep)?;
                visit_bounds(part.bound(), sweep)?;
                sweep.uses.concurrently |= part.concurrent;
            }
            Node::RangeVar(name) => sweep.target(name, Effect::Define)?,
            // USING and DEFAULT of a new column are computed at once, for each row.
            definition => sweep.visit(definition)?,
        }
    }
    on("ALTER TABLE", it.relation(), Effect::Define, sweep)
}

/// A column or a constraint goes with all that depends on it, which is at most what depends on the
/// table. An attribute of a type goes from the tables that are of it, too.
fn drop_part(
    it: &nodes::AlterTableStmt,
    part: raw::AlterTableType::Type,
    sweep: &mut Sweep,
) -> Result<(), TooMany> {
    use raw::AlterTableType as Part;
    let of_table = it.objtype == raw::ObjectType::OBJECT_TABLE;
    match it.relation() {
        Some(name) if of_table && matches!(part, Part::AT_DropColumn | Part::AT_DropConstraint) => {
            sweep.target(name, Effect::Drop)
        }
        _ => {
            sweep.everything("CASCADE may reach any relation");
            Ok(())
        }
    }
}

/// The tables that its new foreign keys reference: what is done there then reaches the table.
fn keys_of(command: &nodes::AlterTableCmd) -> Vec<Kin> {
    match command.def() {
        Node::ColumnDef(column) => column.constraints().iter().filter_map(referenced).collect(),
        definition => referenced(definition).into_iter().collect(),
    }
}

/// Whether a part of ALTER TABLE leaves what statements on the table reach as it is.
fn keeps_names(command: &nodes::AlterTableCmd) -> bool {
    use raw::AlterTableType as Part;
    if let (Part::AT_AddConstraint, Node::Constraint(constraint)) = (command.subtype, command.def())
    {
        return adds_no_reach(constraint);
    }
    matches!(
        command.subtype,
        Part::AT_AddColumn
            | Part::AT_DropColumn
            | Part::AT_ColumnDefault
            | Part::AT_SetNotNull
            | Part::AT_DropNotNull
            | Part::AT_AlterColumnType
            | Part::AT_ValidateConstraint
            | Part::AT_DropConstraint
            | Part::AT_AddIdentity
            | Part::AT_SetIdentity
            | Part::AT_DropIdentity
            | Part::AT_ChangeOwner
            | Part::AT_SetStatistics
            | Part::AT_SetStorage
            | Part::AT_ReplicaIdentity
            | Part::AT_SetRelOptions
            | Part::AT_ResetRelOptions
            | Part::AT_SetOptions
            | Part::AT_ResetOptions
            | Part::AT_SetCompression
            | Part::AT_SetLogged
            | Part::AT_SetUnLogged
            | Part::AT_SetTableSpace
            | Part::AT_ClusterOn
            | Part::AT_DropCluster
            | Part::AT_EnableTrig
            | Part::AT_EnableTrigAll
            | Part::AT_EnableTrigUser
            | Part::AT_DisableTrig
            | Part::AT_DisableTrigAll
            | Part::AT_DisableTrigUser
            | Part::AT_EnableRowSecurity
            | Part::AT_DisableRowSecurity
    )
}

/// Whether a new constraint has writes do no more than is looked at where it is made: what it
/// computes counts as what the definition calls, and what a key reaches as its target. The
/// operators of EXCLUDE are not looked at.
fn adds_no_reach(constraint: &nodes::Constraint) -> bool {
    use raw::ConstrType as Kind;
    matches!(
        constraint.contype,
        Kind::CONSTR_FOREIGN
            | Kind::CONSTR_CHECK
            | Kind::CONSTR_NOTNULL
            | Kind::CONSTR_PRIMARY
            | Kind::CONSTR_UNIQUE
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
    if it.behavior == raw::DropBehavior::DROP_CASCADE {
        // Of an attribute of a type: in the tables that are of it, too.
        sweep.everything("CASCADE may reach any relation");
    }
    let renames_relation = it.subname().is_none();
    if !renames_relation {
        return on("ALTER", Some(name), Effect::Define, sweep);
    }
    sweep.target(name, Effect::Move)?;
    push_moved(name.schemaname(), it.newname().unwrap_or_default(), sweep);
    Ok(found("ALTER"))
}

fn move_to_schema(it: &nodes::AlterObjectSchemaStmt, sweep: &mut Sweep) -> Result<Found, TooMany> {
    let (Some(name), Some(schema)) = (it.relation(), it.newschema()) else {
        return Ok(everything("ALTER", "what it moves is not resolved", sweep));
    };
    sweep.target(name, Effect::Move)?;
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
    sweep.uses.concurrently = it.concurrent;
    if it.remove_type == Kind::OBJECT_EXTENSION {
        // Its tables go with it.
        return Ok(everything("DROP", "an extension has any relations", sweep));
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
    let cascades = it.behavior == raw::DropBehavior::DROP_CASCADE;
    if cascades && !is_relation {
        return Ok(everything("DROP", "CASCADE may reach any relation", sweep));
    }
    let effect = if cascades {
        Effect::Drop
    } else {
        Effect::Define
    };
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
            effect,
            only: false,
        });
    }
    Ok(found("DROP"))
}
