//! Reading a catalog out of the server's own tables, all of it as of one instant.

use std::collections::HashMap;

use tokio_postgres::{Client, Row};

use super::acting;
use crate::protocol::postgres::classify::TEXT_TYPES;
use crate::protocol::postgres::resolve::{
    Catalog, CatalogParts, Dependent, ForeignKey, Function, Oid, Relation, RelationKind,
};
use crate::proxy::postgres::control::{ControlError, column, name};

const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
/// All of it is read, and joined: as long as nothing has gathered statistics since much was
/// defined, the planner takes thousands of rows for a few, and a nested loop for the best. Where it
/// cannot do without one it takes that for very dear, and would compile.
const PLANS: &str = "SELECT pg_catalog.set_config('enable_nestloop', 'off', true), \
     pg_catalog.set_config('jit', 'off', true)";
const END: &str = "COMMIT";

const RELATIONS: &str = "SELECT c.oid, n.nspname, c.relname, c.relkind::text, \
     c.relpersistence = 't', c.reltype, \
     EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type <> '1') \
     OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgtype & 64 <> 0) \
     FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace";

/// Columns of types that are made of others: what is compared with one is made one.
const COLUMNS: &str = "SELECT DISTINCT a.attrelid, a.atttypid FROM pg_attribute a \
     JOIN pg_type t ON t.oid = a.atttypid WHERE a.atttypid >= 16384 AND t.typtype <> 'd' \
     AND a.attnum > 0 AND NOT a.attisdropped";

/// Columns of domains: what is compared with one is made a value of what the domain is over, but
/// arrays and rows of them, and what functions of any type take with them, are not.
const DOMAINS: &str = "SELECT DISTINCT a.attrelid, a.atttypid FROM pg_attribute a \
     JOIN pg_type t ON t.oid = a.atttypid WHERE t.typtype = 'd' AND a.attnum > 0 \
     AND NOT a.attisdropped";

const WRAPPERS: &str = "SELECT EXISTS (SELECT FROM pg_foreign_data_wrapper WHERE fdwhandler <> 0)";

/// A function that takes three arguments and is called like the server's. A better match than that
/// one is called wherever it stands in the path.
const SET_CONFIG: &str = "SELECT EXISTS (SELECT FROM pg_proc p \
     JOIN pg_namespace n ON n.oid = p.pronamespace \
     WHERE p.proname = 'set_config' AND n.nspname <> 'pg_catalog' \
     AND (p.provariadic <> 0 OR 3 BETWEEN p.pronargs - p.pronargdefaults AND p.pronargs))";

/// Types whose names are those of the server's, too.
const TYPES: &str = "SELECT DISTINCT t.typname FROM pg_type t \
     JOIN pg_namespace n ON n.oid = t.typnamespace WHERE n.nspname <> 'pg_catalog'";

const EXTENSIONS: &str = "SELECT extname FROM pg_extension";

const PARENTS: &str = "SELECT inhrelid, inhparent FROM pg_inherits";

const OWNERS: &str = "SELECT indexrelid, indrelid FROM pg_index UNION ALL \
     SELECT objid, refobjid FROM pg_depend WHERE classid = 'pg_class'::regclass \
     AND refclassid = 'pg_class'::regclass AND deptype IN ('a', 'i') AND refobjsubid > 0";

const UNDERLYING: &str = "SELECT DISTINCT r.ev_class, d.refobjid FROM pg_rewrite r \
     JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid \
     WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid <> r.ev_class";

/// Before PostgreSQL 15 an update that moves a row to another partition deletes it, for its keys.
const KEYS: &str = "SELECT conrelid, confrelid, confdeltype IN ('c', 'n', 'd'), \
     confupdtype IN ('c', 'n', 'd') OR confdeltype IN ('c', 'n', 'd') \
         AND current_setting('server_version_num')::int < 150000 \
         AND (c.relkind = 'p' OR c.relispartition) \
     FROM pg_constraint JOIN pg_class c ON c.oid = confrelid WHERE contype = 'f'";

/// What depends on a relation, or on the type of its rows: other relations, whole or in a part, and
/// what is no part of one (`NULL`). The server's own triggers go with their keys.
const DEPENDENTS: &str = "WITH part (class, object, relation, carries) AS MATERIALIZED ( \
     SELECT 'pg_class'::regclass, oid, oid, true FROM pg_class WHERE oid >= 16384 UNION ALL \
     SELECT 'pg_type'::regclass, oid, typrelid, true FROM pg_type WHERE typrelid >= 16384 \
     UNION ALL SELECT 'pg_type'::regclass, typarray, typrelid, true FROM pg_type \
         WHERE typrelid >= 16384 AND typarray <> 0 UNION ALL \
     SELECT 'pg_attrdef'::regclass, oid, adrelid, true FROM pg_attrdef UNION ALL \
     SELECT 'pg_constraint'::regclass, oid, conrelid, contype <> 'f' FROM pg_constraint \
         WHERE conrelid >= 16384 UNION ALL \
     SELECT 'pg_rewrite'::regclass, oid, ev_class, true FROM pg_rewrite WHERE ev_class >= 16384 \
     UNION ALL SELECT 'pg_policy'::regclass, oid, polrelid, false FROM pg_policy UNION ALL \
     SELECT 'pg_trigger'::regclass, oid, tgrelid, false FROM pg_trigger WHERE NOT tgisinternal \
     UNION ALL SELECT 'pg_statistic_ext'::regclass, oid, stxrelid, false FROM pg_statistic_ext \
     UNION ALL SELECT 'pg_publication_rel'::regclass, oid, prrelid, false \
         FROM pg_publication_rel) \
     SELECT DISTINCT o.relation, d.relation, coalesce(d.carries, false), \
         o.class = 'pg_type'::regclass \
         AND (d.relation IS NOT NULL OR classid = 'pg_type'::regclass) FROM pg_depend \
     JOIN part o ON (o.object, o.class) = (refobjid, refclassid) \
     LEFT JOIN part d ON (d.object, d.class) = (objid, classid) \
     WHERE refobjid >= 16384 AND d.relation IS DISTINCT FROM o.relation \
     AND (d.relation IS NOT NULL OR classid <> 'pg_trigger'::regclass)";

/// Loads everything. `reading`: volatile functions that the operator knows to read.
///
/// All is asked at once: for as long as the transaction is open, VACUUM keeps what has died since.
pub(super) async fn load(
    client: &Client,
    reading: &[(Box<str>, Box<str>)],
) -> Result<Catalog, ControlError> {
    let own_text_types = format!("{TYPES} AND t.typname IN ('{}')", TEXT_TYPES.join("', '"));
    let loaded = tokio::try_join!(
        biased;
        run(client, BEGIN),
        run(client, PLANS),
        pairs(client, PARENTS),
        pairs(client, OWNERS),
        pairs(client, UNDERLYING),
        foreign_keys(client),
        dependents(client),
        rows(client, RELATIONS),
        pairs(client, COLUMNS),
        pairs(client, DOMAINS),
        rows(client, WRAPPERS),
        rows(client, EXTENSIONS),
        rows(client, SET_CONFIG),
        rows(client, &own_text_types),
        acting::functions(client),
        acting::naming(client),
        run(client, END),
    )?;
    let (_, _, parents, owners, underlying, keys, dependents, ..) = loaded;
    let (_, _, _, _, _, _, _, relations, columns, domains, wrappers, ..) = loaded;
    let (.., extensions, set_config, text_types, _, _, _) = loaded;
    let (.., called, naming, _) = loaded;
    let acting = acting::find(&called, &naming, reading, &underlying);
    let acts = |of_type: &Oid| acting.types.contains(of_type);
    let mut acting_rows = vec![];
    for row in &relations {
        if acts(&column(row, 5)?) {
            acting_rows.push(column(row, 0)?);
        }
    }
    let of = |map: &HashMap<Oid, Vec<Oid>>, oid| map.get(&oid).cloned().unwrap_or_default();
    let defaults = |of_type: &Oid| acting.default_types.contains(of_type);
    let relations = relations.iter().map(|row| {
        let oid = column(row, 0)?;
        Ok(Relation {
            oid,
            schema: name(row, 1)?,
            name: name(row, 2)?,
            kind: kind(column(row, 3)?),
            temporary: column(row, 4)?,
            parents: of(&parents, oid),
            owner: of(&owners, oid).first().copied(),
            underlying: of(&underlying, oid),
            foreign_keys: keys.get(&oid).cloned().unwrap_or_default(),
            dependents: dependents.get(&oid).cloned().unwrap_or_default(),
            acts_on_read: acting.on_read.contains(&oid) || of(&columns, oid).iter().any(acts),
            gives_acting_type: of(&domains, oid).iter().any(acts),
            acts_on_write: column(row, 6)?,
            acts_on_fill: acting.on_fill.contains(&oid),
            gives_acting_default: of(&domains, oid).iter().any(defaults)
                || of(&columns, oid).iter().any(defaults),
            takes_from: of(&acting.takes_from, oid),
        })
    });
    let relations = relations.collect::<Result<_, ControlError>>()?;
    let functions = called.into_iter().map(|it| Function {
        volatile: it.volatile || acting.functions.contains(&it.oid),
        schema: it.schema,
        name: it.name,
        single_argument: it.single_argument,
    });
    Ok(Catalog::new(CatalogParts {
        relations,
        functions: functions.collect(),
        acting_operators: acting.operators,
        acting_defaults: acting.defaults,
        acting_casts: acting.casts,
        acts_unseen: acting.act_unseen,
        acting_types: acting.types.into_iter().collect(),
        json_acts: acting.json,
        acting_rows,
        // A server that does not tell counts as one that has some.
        extensions: extensions
            .iter()
            .map(|row| name(row, 0))
            .collect::<Result<_, _>>()?,
        own_set_config: set_config.first().map_or(Ok(true), |row| column(row, 0))?,
        own_text_types: text_types
            .iter()
            .map(|row| name(row, 0))
            .collect::<Result<_, _>>()?,
        has_wrappers: wrappers.first().map_or(Ok(true), |row| column(row, 0))?,
    }))
}

fn kind(relkind: &str) -> RelationKind {
    match relkind {
        "r" => RelationKind::Table,
        "p" => RelationKind::PartitionedTable,
        "f" => RelationKind::ForeignTable,
        "v" => RelationKind::View,
        "m" => RelationKind::MaterializedView,
        "S" => RelationKind::Sequence,
        "i" | "I" => RelationKind::Index,
        _ => RelationKind::Other,
    }
}

async fn run(client: &Client, statement: &str) -> Result<(), ControlError> {
    Ok(client.batch_execute(statement).await?)
}

pub(super) async fn rows(client: &Client, statement: &str) -> Result<Vec<Row>, ControlError> {
    Ok(client.query_typed(statement, &[]).await?)
}

/// Pairs of oids, by the first.
async fn pairs(client: &Client, statement: &str) -> Result<HashMap<Oid, Vec<Oid>>, ControlError> {
    let mut by_first: HashMap<Oid, Vec<Oid>> = HashMap::new();
    for row in rows(client, statement).await? {
        let second = column(&row, 1)?;
        by_first.entry(column(&row, 0)?).or_default().push(second);
    }
    Ok(by_first)
}

async fn foreign_keys(client: &Client) -> Result<HashMap<Oid, Vec<ForeignKey>>, ControlError> {
    let mut keys: HashMap<Oid, Vec<ForeignKey>> = HashMap::new();
    for row in rows(client, KEYS).await? {
        let key = ForeignKey {
            references: column(&row, 1)?,
            acts_on_delete: column(&row, 2)?,
            acts_on_update: column(&row, 3)?,
        };
        keys.entry(column(&row, 0)?).or_default().push(key);
    }
    Ok(keys)
}

async fn dependents(client: &Client) -> Result<HashMap<Oid, Vec<Dependent>>, ControlError> {
    let mut dependents: HashMap<Oid, Vec<Dependent>> = HashMap::new();
    for row in rows(client, DEPENDENTS).await? {
        let dependent = Dependent {
            relation: column(&row, 1)?,
            carries: column(&row, 2)?,
            by_type: column(&row, 3)?,
        };
        dependents
            .entry(column(&row, 0)?)
            .or_default()
            .push(dependent);
    }
    Ok(dependents)
}
