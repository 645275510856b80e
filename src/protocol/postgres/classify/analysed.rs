//! Definitions are looked at and not run: but the server makes values of the texts in them at once.

use pg_raw_parse::{Node, nodes};

use super::filling::note_filling;
use super::statement::Uses;
use super::sweep::{Sweep, TooMany, is_temporary};

/// Notes what a definition names in its expressions and queries: nothing of it is called yet.
pub(super) fn note_analysed(node: Node<'_>, sweep: &mut Sweep) -> Result<(), TooMany> {
    let mut found = Sweep::default();
    match node {
        Node::ViewStmt(it) => found.visit(it.query())?,
        Node::CreateStmt(it) => {
            of_table(it, &mut found)?;
            if it.relation().is_some_and(is_temporary) {
                note_filling(it, sweep)?;
            }
        }
        Node::IndexStmt(it) => {
            // What stands beside its columns has their types.
            of_relation(it.relation(), &mut found)?;
            for part in it.index_params().iter() {
                found.visit(part.expr())?;
            }
            found.visit(it.where_clause())?;
        }
        Node::CreatePolicyStmt(it) => {
            of_relation(it.table(), &mut found)?;
            found.visit(it.qual())?;
            found.visit(it.with_check())?;
        }
        Node::AlterPolicyStmt(it) => {
            of_relation(it.table(), &mut found)?;
            found.visit(it.qual())?;
            found.visit(it.with_check())?;
        }
        Node::CreateDomainStmt(it) => {
            for constraint in it.constraints().iter() {
                found.visit(Node::Constraint(constraint))?;
            }
        }
        Node::CreateFunctionStmt(it) => {
            for parameter in it.parameters().iter() {
                found.visit(parameter.defexpr())?;
            }
            sweep.uses.unread_texts = is_in_sql(it);
        }
        // What an aggregate begins with.
        Node::DefineStmt(it) => {
            let begins = |name: &str| matches!(name, "initcond" | "minitcond");
            let mut options = it.definition().iter();
            sweep.uses.unread_texts = options.any(|it| it.defname().is_some_and(begins));
        }
        _ => return Ok(()),
    }
    let found = found.finish().uses;
    if found != Uses::default() {
        sweep.uses.analysed = Some(Box::new(found));
    }
    Ok(())
}

fn of_relation(name: Option<&nodes::RangeVar>, found: &mut Sweep) -> Result<(), TooMany> {
    found.visit(name.map_or(Node::None, Node::RangeVar))
}

fn of_table(it: &nodes::CreateStmt, found: &mut Sweep) -> Result<(), TooMany> {
    for element in it.table_elts().iter() {
        match element {
            Node::ColumnDef(_) | Node::Constraint(_) => found.visit(element)?,
            Node::TableLikeClause(like) => of_relation(like.relation(), found)?,
            _ => {}
        }
    }
    for parent in it.inh_relations().iter() {
        found.visit(parent)?;
    }
    found.visit(it.of_typename().map_or(Node::None, Node::TypeName))?;
    let by = it.partspec().into_iter();
    for element in by.flat_map(|it| it.part_params().iter()) {
        found.visit(element.expr())?;
    }
    Ok(())
}

/// Whether a function's body is SQL, which the server analyses as the function is made; the bodies
/// of other languages are texts to it.
fn is_in_sql(it: &nodes::CreateFunctionStmt) -> bool {
    let mut options = it.options().iter();
    let language = options.find(|option| option.defname() == Some("language"));
    let language = language.and_then(|option| option.arg().as_str());
    !matches!(it.sql_body(), Node::None) || language.is_none_or(|name| name == "sql")
}

/// The bounds of a partition are computed as it is made or attached.
pub(super) fn visit_bounds(
    bound: Option<&nodes::PartitionBoundSpec>,
    sweep: &mut Sweep,
) -> Result<(), TooMany> {
    let Some(bound) = bound else {
        return Ok(());
    };
    // Numbers, too, are made values of the key's type.
    sweep.uses.texts = true;
    for list in [bound.listdatums(), bound.lowerdatums(), bound.upperdatums()] {
        for value in list.iter() {
            sweep.visit(value)?;
        }
    }
    Ok(())
}
