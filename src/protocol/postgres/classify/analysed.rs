//! Definitions are looked at and not run: but the server makes values of the texts in them at once.

use pg_raw_parse::{Node, nodes};

use super::sweep::{Sweep, TooMany};

/// Notes whether a definition has texts in its expressions and queries, of which the server makes
/// values as it looks at it. Nothing else that they name counts: it is not called yet.
pub(super) fn note_texts(node: Node<'_>, sweep: &mut Sweep) -> Result<(), TooMany> {
    let mut looked_at = Sweep::default();
    let is_text = match node {
        Node::ViewStmt(it) => {
            looked_at.visit(it.query())?;
            false
        }
        Node::CreateStmt(it) => {
            of_table(it, &mut looked_at)?;
            false
        }
        Node::IndexStmt(it) => {
            for part in it.index_params().iter() {
                looked_at.visit(part.expr())?;
            }
            looked_at.visit(it.where_clause())?;
            false
        }
        Node::CreatePolicyStmt(it) => {
            looked_at.visit(it.qual())?;
            looked_at.visit(it.with_check())?;
            false
        }
        Node::AlterPolicyStmt(it) => {
            looked_at.visit(it.qual())?;
            looked_at.visit(it.with_check())?;
            false
        }
        Node::CreateDomainStmt(it) => {
            for constraint in it.constraints().iter() {
                looked_at.visit(Node::Constraint(constraint))?;
            }
            false
        }
        Node::CreateFunctionStmt(it) => {
            for parameter in it.parameters().iter() {
                looked_at.visit(parameter.defexpr())?;
            }
            is_in_sql(it)
        }
        // What an aggregate begins with.
        Node::DefineStmt(it) => {
            let begins = |name: &str| matches!(name, "initcond" | "minitcond");
            let mut options = it.definition().iter();
            options.any(|option| option.defname().is_some_and(begins))
        }
        _ => false,
    };
    sweep.uses.texts |= is_text || looked_at.uses.texts;
    Ok(())
}

fn of_table(it: &nodes::CreateStmt, looked_at: &mut Sweep) -> Result<(), TooMany> {
    for element in it.table_elts().iter() {
        if let Node::ColumnDef(_) | Node::Constraint(_) = element {
            looked_at.visit(element)?;
        }
    }
    let by = it.partspec().into_iter();
    for element in by.flat_map(|it| it.part_params().iter()) {
        looked_at.visit(element.expr())?;
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
    for list in [bound.listdatums(), bound.lowerdatums(), bound.upperdatums()] {
        for value in list.iter() {
            sweep.visit(value)?;
        }
    }
    Ok(())
}
