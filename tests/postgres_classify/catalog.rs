//! A catalog out of a server's own tables.

use std::collections::HashMap;

use ringfence::protocol::postgres::resolve::{
    Catalog, CatalogParts, ForeignKey, Function, Oid, Relation, RelationKind,
};

use crate::server::{Answer, Client};

fn rows(client: &mut Client, text: &str) -> Vec<Vec<String>> {
    let (answer, rows) = client.rows(text);
    assert_eq!(answer, Answer::Done, "{text}");
    rows
}

/// Pairs of oids, by the first.
fn pairs(client: &mut Client, text: &str) -> HashMap<Oid, Vec<Oid>> {
    let mut by_first: HashMap<Oid, Vec<Oid>> = HashMap::new();
    for row in rows(client, text) {
        let second = row[1].parse().unwrap();
        by_first
            .entry(row[0].parse().unwrap())
            .or_default()
            .push(second);
    }
    by_first
}

const RELATIONS: &str = "SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence = 't', \
     EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type <> '1') \
     OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgtype & 64 <> 0) \
     FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace";

/// Views whose rule depends on a volatile function.
const ACTING_VIEWS: &str = "SELECT DISTINCT r.ev_class, 0 FROM pg_rewrite r JOIN pg_depend d \
     ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid \
     AND d.refclassid = 'pg_proc'::regclass JOIN pg_proc p ON p.oid = d.refobjid \
     WHERE r.ev_type = '1' AND p.provolatile = 'v' AND p.oid >= 16384";

const PARENTS: &str = "SELECT inhrelid, inhparent FROM pg_inherits";

const OWNERS: &str = "SELECT indexrelid, indrelid FROM pg_index UNION ALL \
     SELECT objid, refobjid FROM pg_depend WHERE classid = 'pg_class'::regclass \
     AND refclassid = 'pg_class'::regclass AND deptype IN ('a', 'i') AND refobjsubid > 0";

const UNDERLYING: &str = "SELECT DISTINCT r.ev_class, d.refobjid FROM pg_rewrite r \
     JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid \
     WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid <> r.ev_class";

const KEYS: &str = "SELECT conrelid, confrelid, confdeltype IN ('c', 'n', 'd'), \
     confupdtype IN ('c', 'n', 'd') FROM pg_constraint WHERE contype = 'f'";

const FUNCTIONS: &str = "SELECT n.nspname, p.proname, p.provolatile = 'v' OR p.prokind = 'p', \
     p.pronargs - p.pronargdefaults <= 1 FROM pg_proc p \
     JOIN pg_namespace n ON n.oid = p.pronamespace";

const OPERATORS: &str = "SELECT DISTINCT o.oprname FROM pg_operator o \
     JOIN pg_proc p ON p.oid = o.oprcode WHERE p.provolatile = 'v' AND p.oid >= 16384";

const CASTS: &str = "SELECT DISTINCT t.typname FROM pg_cast c JOIN pg_proc p ON p.oid = c.castfunc \
     JOIN pg_type t ON t.oid = c.casttarget WHERE p.provolatile = 'v' AND p.oid >= 16384";

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

/// Loads everything.
pub fn load(client: &mut Client) -> Catalog {
    let parents = pairs(client, PARENTS);
    let owners = pairs(client, OWNERS);
    let underlying = pairs(client, UNDERLYING);
    let acting = pairs(client, ACTING_VIEWS);
    let mut keys: HashMap<Oid, Vec<ForeignKey>> = HashMap::new();
    for row in rows(client, KEYS) {
        let key = ForeignKey {
            references: row[1].parse().unwrap(),
            acts_on_delete: row[2] == "t",
            acts_on_update: row[3] == "t",
        };
        keys.entry(row[0].parse().unwrap()).or_default().push(key);
    }
    let of = |map: &HashMap<Oid, Vec<Oid>>, oid| map.get(&oid).cloned().unwrap_or_default();
    let relations = rows(client, RELATIONS).into_iter().map(|row| {
        let oid = row[0].parse().unwrap();
        Relation {
            oid,
            schema: row[1].as_str().into(),
            name: row[2].as_str().into(),
            kind: kind(&row[3]),
            temporary: row[4] == "t",
            parents: of(&parents, oid),
            owner: of(&owners, oid).first().copied(),
            underlying: of(&underlying, oid),
            foreign_keys: keys.get(&oid).cloned().unwrap_or_default(),
            dependents: vec![],
            acts_on_read: acting.contains_key(&oid),
            gives_acting_type: false,
            acts_on_write: row[5] == "t",
            acts_on_fill: false,
            gives_acting_default: false,
            takes_from: vec![],
        }
    });
    let relations = relations.collect();
    let functions = rows(client, FUNCTIONS).into_iter().map(|row| Function {
        schema: row[0].as_str().into(),
        name: row[1].as_str().into(),
        volatile: row[2] == "t",
        single_argument: row[3] == "t",
    });
    let functions = functions.collect();
    let mut names = |text| -> Vec<Box<str>> {
        let rows = rows(client, text).into_iter();
        rows.map(|row| row[0].as_str().into()).collect()
    };
    Catalog::new(CatalogParts {
        relations,
        functions,
        acting_operators: names(OPERATORS),
        acting_casts: names(CASTS),
        ..CatalogParts::default()
    })
}
