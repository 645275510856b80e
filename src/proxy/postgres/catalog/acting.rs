//! What acts, though no name in a statement says so: volatile functions within views, policies,
//! defaults of arguments, aggregates, operators, casts and domains. They are found in the
//! expressions as the server keeps them (pg_node_tree), where functions and types are named by oid.
//!
//! What a table's own defaults, checks and triggers do is the backend's (CONTRACT: not covered),
//! but for what fills in temporary tables, which also comes from others (CREATE TABLE .. LIKE).

use std::collections::{HashMap, HashSet};

use tokio_postgres::Client;

use super::expressions::{self, Named, Of, owners};
use super::load::rows;
use crate::protocol::postgres::resolve::{Oid, is_harmless};
use crate::proxy::postgres::control::{ControlError, column, name};

/// Functions; whether they write, as far as they say so, and are none of extensions that are known
/// to read, in C; those that they call by their defaults or are aggregates of; and the types that
/// their defaults are turned into, or that aggregates keep.
///
/// One that fetches from a cursor, or closes one, counts as one that writes, whatever it says, and
/// so does one whose text has the name of such a function: portals are cursors, and one that was
/// bound and not executed yet is run by a fetch; another one may be opened under a name that was
/// closed. PL/pgSQL's FETCH, MOVE and CLOSE are found where statements begin, in the text with its
/// comments and without, since a text may have in it what looks like one.
const FUNCTIONS: &str = "WITH RECURSIVE code AS (\
     SELECT p.oid, p.proname, l.lanname, p.prosrc || E'\\n' || \
         regexp_replace(p.prosrc, '--[^\n]*|/\\*.*?\\*/', ' ', 'g') AS body \
     FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang \
     WHERE p.oid >= 16384 AND l.lanname NOT IN ('internal', 'c')), \
     h AS (SELECT oid, proname FROM code WHERE lanname <> 'sql' AND body ~* \
         '\\mfetch\\M[^;]*\\minto\\M|spi_fetchrow|spi_cursor_close|\
         (?:^|[;\n]|>>|\\m(?:begin|then|else|loop)\\M)\\s*(?:move|close)\\s+[\\w\"$\\s]+;' \
     UNION SELECT c.oid, c.proname FROM code c JOIN h \
         ON strpos(lower(c.body), lower(h.proname)) > 0 OR EXISTS (SELECT FROM pg_depend d \
         WHERE d.classid = 'pg_proc'::regclass AND d.objid = c.oid \
         AND d.refclassid = 'pg_proc'::regclass AND d.refobjid = h.oid)) \
     SELECT p.oid, n.nspname, p.proname, \
     p.provolatile = 'v' AND k.objid IS NULL OR p.prokind = 'p' OR h.oid IS NOT NULL, \
     p.pronargs - p.pronargdefaults <= 1, \
     ARRAY(SELECT m[1]::oid FROM regexp_matches(p.proargdefaults::text, \
         ':(?:funcid|opfuncid) (\\d+)', 'g') m) || CASE WHEN a.aggfnoid IS NULL THEN '{}' ELSE \
         ARRAY[a.aggtransfn::oid, a.aggfinalfn::oid, a.aggcombinefn::oid, a.aggserialfn::oid, \
         a.aggdeserialfn::oid, a.aggmtransfn::oid, a.aggminvtransfn::oid, a.aggmfinalfn::oid] END, \
     ARRAY(SELECT m[1]::oid FROM regexp_matches(p.proargdefaults::text, \
         ':(?:resulttype|typid) (\\d+)', 'g') m) || CASE WHEN a.aggfnoid IS NULL THEN '{}' ELSE \
         ARRAY[a.aggtranstype, a.aggmtranstype] END \
     FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
     LEFT JOIN pg_aggregate a ON a.aggfnoid = p.oid LEFT JOIN h ON h.oid = p.oid \
     LEFT JOIN (SELECT d.objid FROM pg_depend d JOIN pg_extension x ON x.oid = d.refobjid \
         WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass \
         AND d.deptype = 'e' AND x.extname IN ('pg_buffercache', 'pg_stat_statements', 'pg_trgm', \
         'pgcrypto', 'pgrowlocks', 'pgstattuple', 'tablefunc', 'uuid-ossp')) k \
         ON k.objid = p.oid AND p.prolang = (SELECT oid FROM pg_language WHERE lanname = 'c')";

/// Types whose values have those of another type in them: domains, arrays, rows, ranges, and from
/// PostgreSQL 14 on several ranges, of which 13 has no column.
const TYPES: &str = "SELECT oid, typbasetype FROM pg_type WHERE typtype = 'd' \
     UNION ALL SELECT typarray, oid FROM pg_type WHERE typarray <> 0 \
     UNION ALL SELECT c.reltype, a.atttypid FROM pg_attribute a JOIN pg_class c \
         ON c.oid = a.attrelid WHERE c.reltype >= 16384 AND a.attnum > 0 AND NOT a.attisdropped \
     UNION ALL SELECT rngtypid, rngsubtype FROM pg_range \
     UNION ALL SELECT (to_jsonb(r) ->> 'rngmultitypid')::oid, rngtypid FROM pg_range r \
         WHERE to_jsonb(r) ? 'rngmultitypid'";
/// Functions whose arguments or results are turned into a type.
const OF_TYPES: &str = "SELECT oid, \
     unnest(coalesce(proallargtypes, proargtypes::oid[]) || prorettype) FROM pg_proc \
     WHERE oid >= 16384";
const TYPE_NAMES: &str = "SELECT oid, typname FROM pg_type";
/// By the functions that they call. The planner may take an operator's commutator or negator in its
/// place.
const OPERATORS: &str = "SELECT DISTINCT acts.oprcode::oid, o.oprname \
     FROM pg_operator o JOIN pg_operator acts \
     ON o.oid = acts.oid OR o.oprcom = acts.oid OR o.oprnegate = acts.oid";
const CASTS: &str = "SELECT castfunc, casttarget, castcontext <> 'e' FROM pg_cast";
/// What sorts, groups, joins and compares where no operator is written (ORDER BY, DISTINCT), and
/// what measures how far the bounds of ranges are apart, to plan and for statistics.
/// Functions of the server's internals are written in C, and run nothing.
const CLASSES: &str = "SELECT amproc::oid FROM pg_amproc JOIN pg_proc p ON p.oid = amproc \
     WHERE 'internal'::regtype <> ALL (p.proargtypes::oid[] || p.prorettype) UNION \
     SELECT o.oprcode::oid FROM pg_amop a JOIN pg_operator o ON o.oid = a.amopopr UNION \
     SELECT rngsubdiff::oid FROM pg_range WHERE rngsubdiff <> 0";
/// Relations whose policies read others.
const POLICIES: &str = "SELECT DISTINCT p.polrelid, d.refobjid FROM pg_policy p \
     JOIN pg_depend d ON d.classid = 'pg_policy'::regclass AND d.objid = p.oid \
     WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid <> p.polrelid";

/// The type `json`. What makes JSON of values, whatever of, uses the casts to it (pg_catalog). By
/// their names, without a `b` that is the other type's.
const JSON: Oid = 114;
const MAKING_JSON: [&str; 11] = [
    "array_to_json",
    "json_agg",
    "json_agg_strict",
    "json_build_array",
    "json_build_object",
    "json_object_agg",
    "json_object_agg_strict",
    "json_object_agg_unique",
    "json_object_agg_unique_strict",
    "row_to_json",
    "to_json",
];

/// Functions that read what their argument names, by running a text: as much as that does. They are
/// declared stable (pg_catalog, and the extensions tablefunc and xml2). One looks at a function's
/// body, and makes values of the texts in it. Sorted.
const RUNNING: [&str; 13] = [
    "connectby",
    "crosstab",
    "crosstab2",
    "crosstab3",
    "crosstab4",
    "database_to_xml",
    "database_to_xml_and_xmlschema",
    "fmgr_sql_validator",
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
    /// Its defaults are turned into these.
    types: Vec<Oid>,
}

/// What acts.
pub(super) struct Acting {
    /// Functions that may write to anything, or to a sequence.
    pub(super) functions: HashSet<Oid>,
    /// Relations that act when they are read.
    pub(super) on_read: HashSet<Oid>,
    /// Relations that act when they are filled in, by more than sequences that are named.
    pub(super) on_fill: HashSet<Oid>,
    /// Sequences that the defaults of relations take from.
    pub(super) takes_from: HashMap<Oid, Vec<Oid>>,
    /// Domains whose default acts, and types that such are in.
    pub(super) default_types: HashSet<Oid>,
    /// Their names.
    pub(super) defaults: Vec<Box<str>>,
    /// Names of operators.
    pub(super) operators: Vec<Box<str>>,
    /// Names of types to which a cast acts.
    pub(super) casts: Vec<Box<str>>,
    /// One of those casts needs not be written, or the operators of a class act.
    pub(super) act_unseen: bool,
    /// Types whose values are checked by one.
    pub(super) types: HashSet<Oid>,
    /// One of those casts is used wherever JSON is made.
    pub(super) json: bool,
}

/// All functions.
pub(super) async fn functions(client: &Client) -> Result<Vec<Called>, ControlError> {
    let rows = rows(client, FUNCTIONS).await?;
    let called = rows.iter().map(|row| {
        Ok(Called {
            oid: column(row, 0)?,
            schema: name(row, 1)?,
            name: name(row, 2)?,
            volatile: column(row, 3)?,
            single_argument: column(row, 4)?,
            uses: column(row, 5)?,
            types: column(row, 6)?,
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
    /// Functions of operator classes.
    classes: Vec<Oid>,
    /// Relations, and sequences that their defaults take from.
    sequences: Vec<(Oid, Oid)>,
    /// Relations, and those that their policies read.
    policies: Vec<(Oid, Oid)>,
}

struct Cast {
    function: Oid,
    target: Oid,
    /// It needs not be written.
    unseen: bool,
}

/// All of it.
pub(super) async fn naming(client: &Client) -> Result<Naming, ControlError> {
    let found = tokio::try_join!(
        biased;
        expressions::load(client),
        oid_pairs(client, TYPES),
        oid_pairs(client, OF_TYPES),
        names(client, TYPE_NAMES),
        names(client, OPERATORS),
        rows(client, CASTS),
        rows(client, CLASSES),
        oid_pairs(client, expressions::SEQUENCES),
        oid_pairs(client, POLICIES),
    )?;
    let (expressions, contained, of_types, type_names, operators, casts, ..) = found;
    let (.., classes, sequences, policies) = found;
    let cast = |row| {
        Ok::<_, ControlError>(Cast {
            function: column(row, 0)?,
            target: column(row, 1)?,
            unseen: column(row, 2)?,
        })
    };
    Ok(Naming {
        expressions,
        contained,
        of_types,
        type_names,
        operators,
        casts: casts.iter().map(cast).collect::<Result<_, _>>()?,
        classes: classes
            .iter()
            .map(|row| column(row, 0))
            .collect::<Result<_, _>>()?,
        sequences,
        policies,
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
    let mut functions = acting_functions(called, reading);
    // Types that act as they are checked, what their values are in, and functions that take them.
    let (types, json) = loop {
        let types = acting_types(&naming.expressions, &functions, &naming.contained);
        let json = json_acts(naming, &functions);
        let count = functions.len();
        let taking = naming.of_types.iter().filter(|it| types.contains(&it.1));
        functions.extend(taking.map(|it| it.0));
        let acts = |it: &&Called| {
            let turned = it.types.iter().any(|it| types.contains(it));
            let made = !types.is_empty() && MAKING_VALUES.contains(&&*it.name);
            turned || made || json && makes_json(it)
        };
        functions.extend(called.iter().filter(acts).map(|it| it.oid));
        follow_uses(&mut functions, called);
        if functions.len() == count {
            break (types, json);
        }
    };
    let mut act_unseen = naming.classes.iter().any(|it| functions.contains(it));
    let mut targets = types.clone();
    let acting = |it: &&Cast| functions.contains(&it.function);
    for cast in naming.casts.iter().filter(acting) {
        targets.insert(cast.target);
        act_unseen |= cast.unseen;
    }
    follow(&mut targets, &naming.contained);
    let mut default_types = owners(&naming.expressions, Of::Default, &types, &functions);
    follow(&mut default_types, &naming.contained);
    let mut takes_from: HashMap<Oid, Vec<Oid>> = HashMap::new();
    for (relation, sequence) in &naming.sequences {
        takes_from.entry(*relation).or_default().push(*sequence);
    }
    Acting {
        on_fill: owners(&naming.expressions, Of::Fill, &types, &functions),
        takes_from,
        on_read: acting_on_read(naming, &types, &functions, underlying),
        operators: names_of(&naming.operators, &functions),
        defaults: names_of(&naming.type_names, &default_types),
        default_types,
        casts: names_of(&naming.type_names, &targets),
        act_unseen,
        types,
        json,
        functions,
    }
}

/// Relations that act when they are read: by their own expressions, or by what those read.
fn acting_on_read(
    naming: &Naming,
    types: &HashSet<Oid>,
    functions: &HashSet<Oid>,
    underlying: &HashMap<Oid, Vec<Oid>>,
) -> HashSet<Oid> {
    let mut on_read = owners(&naming.expressions, Of::Read, types, functions);
    let views = underlying.iter();
    let views = views.flat_map(|(view, below)| below.iter().map(|oid| (*view, *oid)));
    let reads: Vec<(Oid, Oid)> = views.chain(naming.policies.iter().copied()).collect();
    follow(&mut on_read, &reads);
    on_read
}

/// Whether something is made JSON by one of these functions.
fn json_acts(naming: &Naming, functions: &HashSet<Oid>) -> bool {
    let mut casts = naming.casts.iter();
    casts.any(|it| it.target == JSON && functions.contains(&it.function))
}

fn makes_json(called: &Called) -> bool {
    let name = called.name.replace("jsonb", "json");
    &*called.schema == "pg_catalog" && MAKING_JSON.contains(&&*name)
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
    let checks = || expressions.iter().filter(|it| it.of == Of::Check);
    let acting = checks().filter(|it| !it.names_type && functions.contains(&it.named));
    let mut types = acting.map(|it| it.owner).collect();
    let checked = checks().filter(|it| it.names_type);
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
        // What a statement sets by its own text is followed; what it sets by something that is
        // stored is not.
        let followed = is_harmless(&it.name) && &*it.name != "set_config";
        &*it.schema == "pg_catalog" && followed || reading.iter().any(named)
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
    let named = |row| Ok((column(row, 0)?, name(row, 1)?));
    rows.iter().map(named).collect()
}
