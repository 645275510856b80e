//! What acts, though no name in a statement says so: volatile functions within views, policies,
//! defaults of arguments, aggregates, operators, casts and domains. They are found in the
//! expressions as the server keeps them (pg_node_tree), where functions and types are named by oid.
//!
//! What a table's own defaults, checks and triggers do is the backend's (CONTRACT: not covered).

use std::collections::{HashMap, HashSet};

use tokio_postgres::Client;

use super::load::rows;
use crate::protocol::postgres::resolve::{Oid, is_harmless};
use crate::proxy::postgres::control::{ControlError, column};

/// Functions, and those that they call by their defaults or are aggregates of.
const FUNCTIONS: &str = "SELECT p.oid, n.nspname, p.proname, \
     p.provolatile = 'v' OR p.prokind = 'p', p.pronargs - p.pronargdefaults <= 1, \
     ARRAY(SELECT m[1]::oid FROM regexp_matches(p.proargdefaults::text, \
         ':(?:funcid|opfuncid) (\\d+)', 'g') m) || CASE WHEN a.aggfnoid IS NULL THEN '{}' ELSE \
         ARRAY[a.aggtransfn::oid, a.aggfinalfn::oid, a.aggcombinefn::oid, a.aggserialfn::oid, \
         a.aggdeserialfn::oid, a.aggmtransfn::oid, a.aggminvtransfn::oid, a.aggmfinalfn::oid] END \
     FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
     LEFT JOIN pg_aggregate a ON a.aggfnoid = p.oid";

/// Expressions of what is not the server's own (oids from 16384 on), by what they belong to: a
/// domain, or a relation that is read. What they name, by its oid: a type or a function.
const EXPRESSIONS: &str = "SELECT DISTINCT x.is_domain, x.owner, m[1] = 'resulttype', m[2]::oid \
     FROM (SELECT false AS is_domain, ev_class AS owner, ev_action::text AS tree FROM pg_rewrite \
         WHERE ev_type = '1' AND ev_class >= 16384 \
     UNION ALL SELECT false, polrelid, concat(polqual::text, polwithcheck::text) FROM pg_policy \
     UNION ALL SELECT true, contypid, conbin::text FROM pg_constraint \
         WHERE conbin IS NOT NULL AND contypid >= 16384 \
     ) x, regexp_matches(x.tree, \
         ':(funcid|opfuncid|aggfnoid|winfnoid|resulttype) (\\d+)', 'g') m";

/// Types whose values have those of another type in them: domains, arrays, rows, ranges.
const TYPES: &str = "SELECT oid, typbasetype FROM pg_type WHERE typtype = 'd' \
     UNION ALL SELECT typarray, oid FROM pg_type WHERE typarray <> 0 \
     UNION ALL SELECT c.reltype, a.atttypid FROM pg_attribute a JOIN pg_class c \
         ON c.oid = a.attrelid WHERE c.reltype >= 16384 AND a.attnum > 0 AND NOT a.attisdropped \
     UNION ALL SELECT rngtypid, rngsubtype FROM pg_range";
/// Functions whose arguments or results are turned into a type.
const OF_TYPES: &str = "SELECT oid, unnest(proargtypes::oid[] || prorettype) FROM pg_proc \
     WHERE oid >= 16384";
const TYPE_NAMES: &str = "SELECT oid, typname FROM pg_type";
/// By the functions that they call. The planner may take an operator's commutator or negator in its
/// place.
const OPERATORS: &str = "SELECT DISTINCT acts.oprcode::oid, o.oprname \
     FROM pg_operator o JOIN pg_operator acts \
     ON o.oid = acts.oid OR o.oprcom = acts.oid OR o.oprnegate = acts.oid";
const CASTS: &str = "SELECT castfunc, casttarget, castcontext <> 'e' FROM pg_cast";

/// Functions that read what their argument names, by running a text: as much as that does. They are
/// declared stable (pg_catalog, and the extensions tablefunc and xml2). Sorted.
const RUNNING: [&str; 12] = [
    "connectby",
    "crosstab",
    "crosstab2",
    "crosstab3",
    "crosstab4",
    "database_to_xml",
    "database_to_xml_and_xmlschema",
    "schema_to_xml",
    "schema_to_xml_and_xmlschema",
    "table_to_xml",
    "table_to_xml_and_xmlschema",
    "xpath_table",
];

/// Functions that make a value of a type that is told by an argument, with its checks (pg_catalog,
/// and hstore). Sorted.
const MAKING_VALUES: [&str; 17] = [
    "array_in",
    "array_recv",
    "domain_in",
    "domain_recv",
    "json_populate_record",
    "json_populate_recordset",
    "jsonb_populate_record",
    "jsonb_populate_record_valid",
    "jsonb_populate_recordset",
    "multirange_in",
    "pg_input_error_info",
    "pg_input_is_valid",
    "populate_record",
    "range_in",
    "range_recv",
    "record_in",
    "record_recv",
];

/// A function, with what decides whether it acts.
pub(super) struct Called {
    pub(super) oid: Oid,
    pub(super) schema: Box<str>,
    pub(super) name: Box<str>,
    pub(super) volatile: bool,
    pub(super) single_argument: bool,
    uses: Vec<Oid>,
}

/// What acts.
pub(super) struct Acting {
    /// Functions that may write to anything, or to a sequence.
    pub(super) functions: HashSet<Oid>,
    /// Relations that act when they are read.
    pub(super) on_read: HashSet<Oid>,
    /// Names of operators.
    pub(super) operators: Vec<Box<str>>,
    /// Names of types to which a cast acts.
    pub(super) casts: Vec<Box<str>>,
    /// One of those casts needs not be written.
    pub(super) casts_act_unseen: bool,
    /// Types whose values are checked by one.
    pub(super) types: Vec<Oid>,
}

/// All functions.
pub(super) async fn functions(client: &Client) -> Result<Vec<Called>, ControlError> {
    let rows = rows(client, FUNCTIONS).await?;
    let called = rows.iter().map(|row| {
        Ok(Called {
            oid: column(row, 0)?,
            schema: column::<&str>(row, 1)?.into(),
            name: column::<&str>(row, 2)?.into(),
            volatile: column(row, 3)?,
            single_argument: column(row, 4)?,
            uses: column(row, 5)?,
        })
    });
    called.collect()
}

/// What has expressions, and names that call functions.
pub(super) struct Naming {
    expressions: Vec<Named>,
    /// Types, and those that their values have in them.
    contained: Vec<(Oid, Oid)>,
    /// Functions, and the types that they take or return.
    of_types: Vec<(Oid, Oid)>,
    type_names: Vec<(Oid, Box<str>)>,
    operators: Vec<(Oid, Box<str>)>,
    casts: Vec<Cast>,
}

/// What an expression of the server's names.
struct Named {
    of_domain: bool,
    owner: Oid,
    names_type: bool,
    named: Oid,
}

struct Cast {
    function: Oid,
    target: Oid,
    /// It needs not be written.
    unseen: bool,
}

/// All of it.
pub(super) async fn naming(client: &Client) -> Result<Naming, ControlError> {
    let (expressions, contained, of_types, type_names, operators, casts) = tokio::try_join!(
        biased;
        rows(client, EXPRESSIONS),
        oid_pairs(client, TYPES),
        oid_pairs(client, OF_TYPES),
        names(client, TYPE_NAMES),
        names(client, OPERATORS),
        rows(client, CASTS),
    )?;
    let expression = |row| {
        Ok::<_, ControlError>(Named {
            of_domain: column(row, 0)?,
            owner: column(row, 1)?,
            names_type: column(row, 2)?,
            named: column(row, 3)?,
        })
    };
    let cast = |row| {
        Ok::<_, ControlError>(Cast {
            function: column(row, 0)?,
            target: column(row, 1)?,
            unseen: column(row, 2)?,
        })
    };
    Ok(Naming {
        expressions: expressions
            .iter()
            .map(expression)
            .collect::<Result<_, _>>()?,
        contained,
        of_types,
        type_names,
        operators,
        casts: casts.iter().map(cast).collect::<Result<_, _>>()?,
    })
}

/// What acts. `reading`: functions that the operator knows to read. `underlying`: what views select
/// from.
pub(super) fn find(
    called: &[Called],
    naming: &Naming,
    reading: &[(Box<str>, Box<str>)],
    underlying: &HashMap<Oid, Vec<Oid>>,
) -> Acting {
    let (expressions, contained) = (&naming.expressions, &naming.contained);
    let mut functions = acting_functions(called, reading);
    // Types that act as they are checked, what their values are in, and functions that take them.
    let types = loop {
        let types = acting_types(expressions, &functions, contained);
        let count = functions.len();
        let taking = naming.of_types.iter().filter(|it| types.contains(&it.1));
        functions.extend(taking.map(|it| it.0));
        let making = called
            .iter()
            .filter(|it| MAKING_VALUES.contains(&&*it.name));
        functions.extend(making.filter(|_| !types.is_empty()).map(|it| it.oid));
        follow_uses(&mut functions, called);
        if functions.len() == count {
            break types;
        }
    };
    let mut on_read = HashSet::new();
    for it in expressions.iter().filter(|it| !it.of_domain) {
        let acts = match it.names_type {
            true => types.contains(&it.named),
            false => functions.contains(&it.named),
        };
        if acts {
            on_read.insert(it.owner);
        }
    }
    let views = underlying.iter();
    let views: Vec<(Oid, Oid)> = views
        .flat_map(|(view, below)| below.iter().map(|oid| (*view, *oid)))
        .collect();
    follow(&mut on_read, &views);
    let (mut targets, mut casts_act_unseen) = (types.clone(), false);
    let acting = |it: &&Cast| functions.contains(&it.function);
    for cast in naming.casts.iter().filter(acting) {
        targets.insert(cast.target);
        casts_act_unseen |= cast.unseen;
    }
    follow(&mut targets, contained);
    Acting {
        operators: names_of(&naming.operators, &functions),
        casts: names_of(&naming.type_names, &targets),
        casts_act_unseen,
        types: types.into_iter().collect(),
        functions,
        on_read,
    }
}

/// The names of what is in the set.
fn names_of(names: &[(Oid, Box<str>)], set: &HashSet<Oid>) -> Vec<Box<str>> {
    let named = names.iter().filter(|(oid, _)| set.contains(oid));
    named.map(|(_, name)| name.clone()).collect()
}

/// Types into which something is turned by one of these functions.
fn acting_types(
    expressions: &[Named],
    functions: &HashSet<Oid>,
    contained: &[(Oid, Oid)],
) -> HashSet<Oid> {
    let acts = |it: &&Named| it.of_domain && !it.names_type && functions.contains(&it.named);
    let mut types = expressions.iter().filter(acts).map(|it| it.owner).collect();
    let checked = expressions
        .iter()
        .filter(|it| it.of_domain && it.names_type);
    let checked = checked.map(|it| (it.owner, it.named));
    let depends: Vec<(Oid, Oid)> = contained.iter().copied().chain(checked).collect();
    follow(&mut types, &depends);
    types
}

/// Those that are volatile themselves, but for those that are known to read, and those that use
/// them.
fn acting_functions(called: &[Called], reading: &[(Box<str>, Box<str>)]) -> HashSet<Oid> {
    let reads = |it: &Called| {
        let named =
            |(schema, name): &(Box<str>, Box<str>)| (schema, name) == (&it.schema, &it.name);
        &*it.schema == "pg_catalog" && is_harmless(&it.name) || reading.iter().any(named)
    };
    let runs = |it: &Called| RUNNING.contains(&&*it.name);
    let acts = |it: &&Called| (it.volatile || runs(it)) && !reads(it);
    let mut functions: HashSet<Oid> = called.iter().filter(acts).map(|it| it.oid).collect();
    follow_uses(&mut functions, called);
    functions
}

fn follow_uses(functions: &mut HashSet<Oid>, called: &[Called]) {
    let uses = called.iter();
    let uses: Vec<(Oid, Oid)> = uses
        .flat_map(|it| it.uses.iter().map(|used| (it.oid, *used)))
        .collect();
    follow(functions, &uses);
}

/// Adds whatever depends on what is in the set: pairs of one that depends, and what it depends on.
fn follow(set: &mut HashSet<Oid>, depends: &[(Oid, Oid)]) {
    loop {
        let count = set.len();
        for (one, on) in depends {
            if set.contains(on) {
                set.insert(*one);
            }
        }
        if set.len() == count {
            return;
        }
    }
}

async fn oid_pairs(client: &Client, statement: &str) -> Result<Vec<(Oid, Oid)>, ControlError> {
    let rows = rows(client, statement).await?;
    let pair = |row| Ok((column(row, 0)?, column(row, 1)?));
    rows.iter().map(pair).collect()
}

async fn names(client: &Client, statement: &str) -> Result<Vec<(Oid, Box<str>)>, ControlError> {
    let rows = rows(client, statement).await?;
    let named = |row| Ok((column(row, 0)?, column::<&str>(row, 1)?.into()));
    rows.iter().map(named).collect()
}
