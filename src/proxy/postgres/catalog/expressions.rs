//! Expressions as the server keeps them (pg_node_tree), and what they name.

use std::collections::HashSet;

use tokio_postgres::Client;

use super::load::rows;
use crate::protocol::postgres::resolve::Oid;
use crate::proxy::postgres::control::{ControlError, column};

/// Expressions of what is not the server's own (oids from 16384 on), by what they belong to: a
/// domain's check or its default, or a relation that is read. What they name, by its oid: a type or
/// a function. What makes ranges of a type canonical is as good as a check.
///
/// A type is one that something is turned into (`resulttype`, JSON's `typid`), or the type of a
/// column that a function makes of a text (XMLTABLE, `json_to_record`), of which there are lists.
const EXPRESSIONS: &str = "WITH x AS (\
     SELECT 'r' AS of, ev_class AS owner, ev_action::text AS tree FROM pg_rewrite \
         WHERE ev_type = '1' AND ev_class >= 16384 \
     UNION ALL SELECT 'r', polrelid, concat(polqual::text, polwithcheck::text) FROM pg_policy \
     UNION ALL SELECT 'c', contypid, conbin::text FROM pg_constraint \
         WHERE conbin IS NOT NULL AND contypid >= 16384 \
     UNION ALL SELECT 'c', rngtypid, ':funcid ' || rngcanonical::oid FROM pg_range \
         WHERE rngcanonical <> 0 AND rngtypid >= 16384 \
     UNION ALL SELECT 'd', oid, typdefaultbin::text FROM pg_type \
         WHERE typtype = 'd' AND typdefaultbin IS NOT NULL AND oid >= 16384) \
     SELECT of, owner, m[1] IN ('resulttype', 'typid'), m[2]::oid \
         FROM x, regexp_matches(tree, \
         ':(funcid|opfuncid|aggfnoid|winfnoid|resulttype|typid) (\\d+)', 'g') m \
     UNION SELECT of, owner, true, named.type::oid FROM x, regexp_matches(tree, \
         ':(?:funccoltypes|coltypes) \\(o ([\\d ]+)\\)', 'g') m, \
         regexp_split_to_table(m[1], ' ') named(type)";
/// What fills in relations that are not the server's own: many, and mostly short. They have no
/// queries in them, nor aggregates. No column holds the expressions of statistics before
/// PostgreSQL 14.
const FILLS: &str = "SELECT owner, tree FROM (\
     SELECT adrelid, adbin::text FROM pg_attrdef WHERE adrelid >= 16384 \
     UNION ALL SELECT conrelid, conbin::text FROM pg_constraint \
         WHERE conbin IS NOT NULL AND conrelid >= 16384 \
     UNION ALL SELECT indrelid, concat(indexprs::text, indpred::text) FROM pg_index \
         WHERE indrelid >= 16384 AND coalesce(indexprs, indpred) IS NOT NULL \
     UNION ALL SELECT stxrelid, to_jsonb(s) ->> 'stxexprs' FROM pg_statistic_ext s \
     UNION ALL SELECT tgrelid, concat(tgqual::text, ' :funcid ', tgfoid::oid) \
         FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid \
         WHERE c.relpersistence = 't' AND NOT tgisinternal) x (owner, tree) \
     WHERE tree LIKE '%:funcid %' OR tree LIKE '%:opfuncid %' OR tree LIKE '%:resulttype %'";
/// Sequences that defaults name, by their tables.
pub(super) const SEQUENCES: &str = "SELECT DISTINCT a.adrelid, d.refobjid FROM pg_attrdef a \
     JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid \
     JOIN pg_class s ON s.oid = d.refobjid AND s.relkind = 'S' \
     WHERE d.refclassid = 'pg_class'::regclass";

/// What an expression of the server's names.
pub(super) struct Named {
    pub(super) of: Of,
    pub(super) owner: Oid,
    pub(super) names_type: bool,
    pub(super) named: Oid,
}

/// What an expression is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// The check of a type.
    Check,
    /// The default of a domain.
    Default,
    /// What is read of a relation.
    Read,
    /// What fills in a relation.
    Fill,
}

impl Named {
    /// Whether what it names acts.
    fn acts(&self, types: &HashSet<Oid>, functions: &HashSet<Oid>) -> bool {
        let set = if self.names_type { types } else { functions };
        set.contains(&self.named)
    }
}

/// All of them.
pub(super) async fn load(client: &Client) -> Result<Vec<Named>, ControlError> {
    let (named, fills) = tokio::try_join!(
        biased;
        rows(client, EXPRESSIONS),
        rows(client, FILLS),
    )?;
    let named = named.iter().map(|row| {
        Ok(Named {
            of: match column(row, 0)? {
                "c" => Of::Check,
                "d" => Of::Default,
                _ => Of::Read,
            },
            owner: column(row, 1)?,
            names_type: column(row, 2)?,
            named: column(row, 3)?,
        })
    });
    let mut named = named.collect::<Result<Vec<_>, ControlError>>()?;
    for row in &fills {
        let owner = column(row, 0)?;
        named.extend(named_in(column(row, 1)?).map(|(names_type, named)| Named {
            of: Of::Fill,
            owner,
            names_type,
            named,
        }));
    }
    Ok(named)
}

/// What a tree names: types, and functions. Its strings have no blank that is not escaped.
fn named_in(tree: &str) -> impl Iterator<Item = (bool, Oid)> {
    let mut words = tree.split([' ', '}', ')']);
    std::iter::from_fn(move || {
        loop {
            let names_type = match words.next()? {
                ":funcid" | ":opfuncid" => false,
                ":resulttype" => true,
                _ => continue,
            };
            match words.next()?.parse() {
                Ok(NEXTVAL) if takes_constant(words.clone()) => {}
                Ok(named) => return Some((names_type, named)),
                Err(_) => {}
            }
        }
    })
}

/// `nextval(regclass)`: which sequence is told apart, where it is a constant ([`SEQUENCES`]).
const NEXTVAL: Oid = 1574;

/// Whether the first argument of a function is a constant, by what follows its oid.
fn takes_constant<'t>(words: impl Iterator<Item = &'t str>) -> bool {
    let mut arguments = words.skip_while(|word| *word != ":args").skip(1);
    arguments.next() == Some("({CONST")
}

/// What has an expression of this kind that acts.
pub(super) fn owners(
    expressions: &[Named],
    of: Of,
    types: &HashSet<Oid>,
    functions: &HashSet<Oid>,
) -> HashSet<Oid> {
    let expressions = expressions.iter().filter(|it| it.of == of);
    let acting = expressions.filter(|it| it.acts(types, functions));
    acting.map(|it| it.owner).collect()
}

#[cfg(test)]
mod tests {
    use super::named_in;

    #[test]
    fn a_sequence_that_is_named_is_no_call_of_anything() {
        let of = |argument: &str| {
            let tree = format!(
                "{{FUNCEXPR :funcid 480 :funcresulttype 23 :args ({{FUNCEXPR :funcid 1574 \
                 :funcretset false :args ({argument} :location 9}}) :location -1}}) \
                 :location -1}} {{OPEXPR :opno 96 :opfuncid 65 :args ({{COERCETODOMAIN :arg <> \
                 :resulttype 16390}})}}"
            );
            named_in(&tree).collect::<Vec<_>>()
        };
        let others = [(false, 65), (true, 16390)];
        let named = of("{CONST :consttype 2205 :constvalue 4 [ 1 64 0 0 ]}");
        assert_eq!(named, [&[(false, 480)], &others[..]].concat());
        let computed = of("{FUNCEXPR :funcid 1079 :args ({CONST :consttype 25}) :location 1}");
        let called = [(false, 480), (false, 1574), (false, 1079)];
        assert_eq!(computed, [&called, &others[..]].concat());
    }
}
