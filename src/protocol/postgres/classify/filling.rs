//! What fills in a temporary table: its own expressions, and what it takes over from other tables.
//! Of a lasting one this is the backend's.

use pg_raw_parse::{Node, nodes, raw};

use super::statement::RelationName;
use super::sweep::{Sweep, TooMany, relation};

/// Another table that one has to do with as it is filled in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kin {
    /// Which.
    pub relation: RelationName,
    /// What is taken over from it.
    pub takes: Takes,
}

/// What a table takes over from another one: each has what is before it, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Takes {
    /// Nothing: a key references it, and acts where its rows go.
    Nothing,
    /// The types of its columns.
    Types,
    /// Checks, generated columns, indexes, statistics.
    Expressions,
    /// Defaults.
    Defaults,
}

/// Notes what fills in a temporary table that is made. Nobody else sees it: what it computes counts
/// for the session, as it is made.
pub(super) fn note_filling(it: &nodes::CreateStmt, sweep: &mut Sweep) -> Result<(), TooMany> {
    let mut computed = Sweep::default();
    for element in it.table_elts().iter() {
        match element {
            Node::ColumnDef(column) => {
                for constraint in column.constraints().iter() {
                    note_constraint(constraint, &mut computed)?;
                }
            }
            Node::TableLikeClause(like) => {
                computed.uses.kin.extend(like.relation().map(|name| Kin {
                    relation: relation(name),
                    takes: taken(like.options),
                }));
            }
            other => note_constraint(other, &mut computed)?,
        }
    }
    for parent in it.inh_relations().iter() {
        if let Node::RangeVar(name) = parent {
            computed.uses.kin.push(Kin {
                relation: relation(name),
                takes: Takes::Defaults,
            });
        }
    }
    let by = it.partspec().into_iter();
    for element in by.flat_map(|it| it.part_params().iter()) {
        computed.visit(element.expr())?;
    }
    let found = computed.finish().uses;
    let uses = &mut sweep.uses;
    uses.functions = found.functions;
    uses.operators = found.operators;
    uses.casts = found.casts;
    uses.attributes = found.attributes;
    uses.kin = found.kin;
    Ok(())
}

fn note_constraint(constraint: Node<'_>, computed: &mut Sweep) -> Result<(), TooMany> {
    computed.visit(constraint)?;
    computed.uses.kin.extend(referenced(constraint));
    let Node::Constraint(constraint) = constraint else {
        return Ok(());
    };
    // EXCLUDE: pairs of what is compared, and an operator, which is one of a class.
    for pair in constraint.exclusions().iter() {
        let Node::NodeList(pair) = pair else {
            continue;
        };
        for part in pair.iter() {
            if let Node::IndexElem(part) = part {
                computed.visit(part.expr())?;
            }
        }
    }
    Ok(())
}

/// The table that a foreign key references.
pub(super) fn referenced(constraint: Node<'_>) -> Option<Kin> {
    let Node::Constraint(constraint) = constraint else {
        return None;
    };
    constraint.pktable().map(|name| Kin {
        relation: relation(name),
        takes: Takes::Nothing,
    })
}

/// What LIKE with these options takes over. An identity is made anew.
fn taken(options: raw::TableLikeOption::Type) -> Takes {
    use raw::TableLikeOption as Option;
    let expressions = Option::CREATE_TABLE_LIKE_CONSTRAINTS
        | Option::CREATE_TABLE_LIKE_GENERATED
        | Option::CREATE_TABLE_LIKE_INDEXES
        | Option::CREATE_TABLE_LIKE_STATISTICS;
    match options {
        it if it & Option::CREATE_TABLE_LIKE_DEFAULTS != 0 => Takes::Defaults,
        it if it & expressions != 0 => Takes::Expressions,
        _ => Takes::Types,
    }
}
