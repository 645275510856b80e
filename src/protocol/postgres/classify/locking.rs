//! Whose rows a clause locks (FOR UPDATE, FOR SHARE): by the server's `transformLockingClause`, the
//! relations of its own FROM, all of them or those that it names; within a subquery there, whatever
//! that reads.

use pg_raw_parse::{Node, nodes};

/// One relation of a FROM, or something else that has a name there.
struct Item<'s> {
    name: Option<&'s str>,
    /// `None`: a subquery.
    relation: Option<&'s nodes::RangeVar>,
}

/// The relations whose rows the clauses of a SELECT lock. `None`: they may be any that the
/// statement reads.
pub(super) fn locked(select: &nodes::SelectStmt) -> Option<Vec<&nodes::RangeVar>> {
    let items = items(select);
    let mut locked = vec![];
    for clause in select.locking_clause().iter() {
        if clause.locked_rels().is_empty() {
            for item in &items {
                locked.push(item.relation?);
            }
            continue;
        }
        for named in clause.locked_rels().iter() {
            let Node::RangeVar(named) = named else {
                return None;
            };
            let before = locked.len();
            for item in items.iter().filter(|item| item.name == named.relname()) {
                locked.push(item.relation?);
            }
            if locked.len() == before {
                return None;
            }
        }
    }
    Some(locked)
}

fn items(select: &nodes::SelectStmt) -> Vec<Item<'_>> {
    let mut items = vec![];
    let mut left: Vec<Node<'_>> = select.from_clause().iter().collect();
    while let Some(node) = left.pop() {
        match node {
            Node::RangeVar(relation) => {
                let alias = relation.alias().and_then(|alias| alias.aliasname());
                items.push(Item {
                    name: alias.or(relation.relname()),
                    relation: Some(relation),
                });
            }
            Node::JoinExpr(join) => left.extend([join.larg(), join.rarg()]),
            Node::RangeTableSample(sample) => left.push(sample.relation()),
            Node::RangeSubselect(query) => items.push(Item {
                name: query.alias().and_then(|alias| alias.aliasname()),
                relation: None,
            }),
            // Rows of functions are not locked.
            _ => {}
        }
    }
    items
}
