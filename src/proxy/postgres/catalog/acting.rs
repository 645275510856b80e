//! What acts, though no name in a statement says so: volatile functions within views, policies,
//! defaults of arguments, aggregates, operators, casts and domains. They are found in the
//! expressions as the server keeps them (pg_node_tree), where functions and types are named by oid.
//!
//! What a table's own defaults, checks and triggers do is the backend's (CONTRACT: not covered).

use std::collections::{HashMap, HashSet};

use tokio_postgres::{Client, Row};

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

const DOMAINS: &str = "SELECT oid, typbasetype, typname FROM pg_type WHERE typtype = 'd'";
/// By the functions that they call.
const OPERATORS: &str = "SELECT DISTINCT oprcode::oid, oprname FROM pg_operator";
const CASTS: &str = "SELECT DISTINCT c.castfunc, t.typname FROM pg_cast c \
     JOIN pg_type t ON t.oid = c.casttarget";

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
pub(super) struct Named {
    expressions: Vec<Row>,
    domains: Vec<(Oid, Oid, Box<str>)>,
    operators: Vec<(Oid, Box<str>)>,
    casts: Vec<(Oid, Box<str>)>,
}

/// All of it.
pub(super) async fn named(client: &Client) -> Result<Named, ControlError> {
    let (expressions, domains, operators, casts) = tokio::try_join!(
        biased;
        rows(client, EXPRESSIONS),
        rows(client, DOMAINS),
        names(client, OPERATORS),
        names(client, CASTS),
    )?;
    let domain = |row| {
        Ok((
            column(row, 0)?,
            column(row, 1)?,
            column::<&str>(row, 2)?.into(),
        ))
    };
    Ok(Named {
        expressions,
        domains: domains
            .iter()
            .map(domain)
            .collect::<Result<_, ControlError>>()?,
        operators,
        casts,
    })
}

/// What acts. `reading`: functions that the operator knows to read. `underlying`: what views select
/// from.
pub(super) fn find(
    called: &[Called],
    named: &Named,
    reading: &[(Box<str>, Box<str>)],
    underlying: &HashMap<Oid, Vec<Oid>>,
) -> Result<Acting, ControlError> {
    let functions = acting_functions(called, reading);
    let (mut on_read, mut domains) = (HashSet::new(), HashSet::new());
    let mut of_types = vec![];
    for row in &named.expressions {
        let (owner, used): (Oid, Oid) = (column(row, 1)?, column(row, 3)?);
        let owners = match column(row, 0)? {
            true => &mut domains,
            false => &mut on_read,
        };
        if column(row, 2)? {
            of_types.push((owner, used));
        } else if functions.contains(&used) {
            owners.insert(owner);
        }
    }
    let bases = named.domains.iter();
    let bases: Vec<(Oid, Oid)> = bases.map(|(oid, base, _)| (*oid, *base)).collect();
    follow(&mut domains, &bases);
    // A relation's oid and a type's may be the same number: of domains only their base counts.
    let casts_to = of_types.iter().filter(|it| domains.contains(&it.1));
    on_read.extend(casts_to.map(|it| it.0));
    let views = underlying.iter();
    let views: Vec<(Oid, Oid)> = views
        .flat_map(|(view, below)| below.iter().map(|oid| (*view, *oid)))
        .collect();
    follow(&mut on_read, &views);
    let mut casts = names_that_call(&named.casts, &functions);
    let acting = named.domains.iter();
    let acting = acting.filter(|(oid, ..)| domains.contains(oid));
    casts.extend(acting.map(|(_, _, name)| name.clone()));
    Ok(Acting {
        operators: names_that_call(&named.operators, &functions),
        casts,
        functions,
        on_read,
    })
}

fn names_that_call(names: &[(Oid, Box<str>)], functions: &HashSet<Oid>) -> Vec<Box<str>> {
    let calls = names.iter().filter(|(oid, _)| functions.contains(oid));
    calls.map(|(_, name)| name.clone()).collect()
}

/// Those that are volatile themselves, but for those that are known to read, and those that use
/// them.
fn acting_functions(called: &[Called], reading: &[(Box<str>, Box<str>)]) -> HashSet<Oid> {
    let reads = |it: &Called| {
        let named =
            |(schema, name): &(Box<str>, Box<str>)| (schema, name) == (&it.schema, &it.name);
        &*it.schema == "pg_catalog" && is_harmless(&it.name) || reading.iter().any(named)
    };
    let acts = |it: &&Called| it.volatile && !reads(it);
    let mut functions: HashSet<Oid> = called.iter().filter(acts).map(|it| it.oid).collect();
    let uses = called.iter();
    let uses: Vec<(Oid, Oid)> = uses
        .flat_map(|it| it.uses.iter().map(|used| (it.oid, *used)))
        .collect();
    follow(&mut functions, &uses);
    functions
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

/// Names, by the functions that they call.
async fn names(client: &Client, statement: &str) -> Result<Vec<(Oid, Box<str>)>, ControlError> {
    let rows = rows(client, statement).await?;
    let named = |row| Ok((column(row, 0)?, column::<&str>(row, 1)?.into()));
    rows.iter().map(named).collect()
}
