//! What a database has, as a value: the part of pg_class, pg_inherits, pg_constraint, pg_rewrite,
//! pg_proc, pg_operator and pg_cast that decides which locks a statement needs.

use std::collections::{HashMap, HashSet};

use crate::protocol::postgres::ticket::change::Doubts;

/// An object's id at the server.
pub type Oid = u32;

/// A relation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Relation {
    /// pg_class.oid.
    pub oid: Oid,
    /// The schema's name.
    pub schema: Box<str>,
    /// pg_class.relname.
    pub name: Box<str>,
    /// pg_class.relkind.
    pub kind: RelationKind,
    /// pg_class.relpersistence is `t`: it belongs to one session.
    pub temporary: bool,
    /// The relations that it is a partition or a child of (pg_inherits).
    pub parents: Vec<Oid>,
    /// The table of an index; the table that owns a sequence (pg_depend).
    pub owner: Option<Oid>,
    /// What a view or a materialized view selects from (pg_depend of its rule).
    pub underlying: Vec<Oid>,
    /// Its foreign keys (pg_constraint).
    pub foreign_keys: Vec<ForeignKey>,
    /// What depends on it, or on a part of it (pg_depend).
    pub dependents: Vec<Dependent>,
    /// Reading it may write: a view over volatile functions, or a row security policy with one.
    pub acts_on_read: bool,
    /// It has a column of a domain that a volatile function checks: what is put beside it may be
    /// made a value of that, or of what is made of it.
    pub gives_acting_type: bool,
    /// Writing to it does something else: rules (pg_rewrite) other than a view's own, or INSTEAD OF
    /// triggers.
    pub acts_on_write: bool,
    /// What fills it in may write to anything: its defaults, checks, generated columns, expressions
    /// of its indexes and statistics, and, where it is temporary, its triggers.
    pub acts_on_fill: bool,
    /// It has a column of a domain whose default does.
    pub gives_acting_default: bool,
    /// Sequences that its defaults take from (pg_depend).
    pub takes_from: Vec<Oid>,
}

/// What a relation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RelationKind {
    /// `r`.
    Table,
    /// `p`: what is inserted goes to its partitions.
    PartitionedTable,
    /// `f`: its rows are another server's.
    ForeignTable,
    /// `v`.
    View,
    /// `m`.
    MaterializedView,
    /// `S`.
    Sequence,
    /// `i` and `I`.
    Index,
    /// `t`, `c`.
    Other,
}

/// A foreign key of a relation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForeignKey {
    /// The relation that it references.
    pub references: Oid,
    /// ON DELETE does something.
    pub acts_on_delete: bool,
    /// ON UPDATE does something.
    pub acts_on_update: bool,
}

/// What depends on a relation: where that is dropped with CASCADE, it goes with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dependent {
    /// The relation that it is, or is a part of; `None`: it is something else, such as a function.
    pub relation: Option<Oid>,
    /// It may be all of that relation, or a part that others depend on.
    pub carries: bool,
    /// It has values of the rows' type: what changes a row changes them.
    pub by_type: bool,
}

/// A function, an aggregate, a window function or a procedure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// The schema's name.
    pub schema: Box<str>,
    /// pg_proc.proname.
    pub name: Box<str>,
    /// pg_proc.provolatile is `v`, or it is a procedure.
    pub volatile: bool,
    /// It can be called with one argument, so also in attribute notation.
    pub single_argument: bool,
}

/// Whether a database has tables of other servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForeignTables {
    /// None, and nothing that they could be made with.
    Impossible,
    /// None yet.
    Possible,
    /// Some.
    There,
}

/// What a catalog is made of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CatalogParts {
    /// All relations.
    pub relations: Vec<Relation>,
    /// All functions, pg_catalog's too.
    pub functions: Vec<Function>,
    /// Names of operators whose function is volatile and not pg_catalog's.
    pub acting_operators: Vec<Box<str>>,
    /// Names of domains whose default calls a volatile function, and of types that such are in.
    pub acting_defaults: Vec<Box<str>>,
    /// Names of types that a volatile function casts to, or checks.
    pub acting_casts: Vec<Box<str>>,
    /// A volatile function casts, or compares, where no cast and no operator is written.
    pub acts_unseen: bool,
    /// Types whose values a volatile function checks as they are read.
    pub acting_types: Vec<Oid>,
    /// A volatile function makes JSON of values of some type, wherever JSON is made.
    pub json_acts: bool,
    /// Relations whose rows, as values, have something in them that a volatile function checks.
    pub acting_rows: Vec<Oid>,
    /// Tables of other servers can be made (pg_foreign_data_wrapper).
    pub has_wrappers: bool,
    /// Names of extensions.
    pub extensions: Vec<Box<str>>,
    /// It has a function of its own that may be taken for `set_config`.
    pub own_set_config: bool,
    /// Which of [`TEXT_TYPES`] are names of types of its own, too.
    ///
    /// [`TEXT_TYPES`]: crate::protocol::postgres::classify::TEXT_TYPES
    pub own_text_types: Vec<Box<str>>,
}

/// A database's relations and functions by name and by oid.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Catalog {
    relations: HashMap<Oid, Relation>,
    by_name: HashMap<Box<str>, Vec<Oid>>,
    children: HashMap<Oid, Vec<Oid>>,
    /// By the referenced relation: the referencing one, with its key.
    references: HashMap<Oid, Vec<(Oid, ForeignKey)>>,
    functions: HashMap<Box<str>, Vec<Function>>,
    acting_operators: HashSet<Box<str>>,
    acting_defaults: HashSet<Box<str>>,
    acting_casts: HashSet<Box<str>>,
    acts_unseen: bool,
    acting_types: HashSet<Oid>,
    acting_rows: HashSet<Oid>,
    json_acts: bool,
    has_wrappers: bool,
    extensions: HashSet<Box<str>>,
    own_set_config: bool,
    own_text_types: Vec<Box<str>>,
}

impl Catalog {
    /// Orders the parts by what is asked for.
    pub fn new(parts: CatalogParts) -> Catalog {
        let mut catalog = Catalog {
            acting_operators: parts.acting_operators.into_iter().collect(),
            acting_defaults: parts.acting_defaults.into_iter().collect(),
            acting_casts: parts.acting_casts.into_iter().collect(),
            acts_unseen: parts.acts_unseen,
            acting_types: parts.acting_types.into_iter().collect(),
            acting_rows: parts.acting_rows.into_iter().collect(),
            json_acts: parts.json_acts,
            has_wrappers: parts.has_wrappers,
            extensions: parts.extensions.into_iter().collect(),
            own_set_config: parts.own_set_config,
            own_text_types: parts.own_text_types,
            ..Catalog::default()
        };
        for relation in parts.relations {
            let oid = relation.oid;
            let named = catalog.by_name.entry(relation.name.clone()).or_default();
            named.push(oid);
            for parent in &relation.parents {
                catalog.children.entry(*parent).or_default().push(oid);
            }
            for key in &relation.foreign_keys {
                let referencing = catalog.references.entry(key.references).or_default();
                referencing.push((oid, *key));
            }
            catalog.relations.insert(oid, relation);
        }
        for function in parts.functions {
            let named = catalog.functions.entry(function.name.clone()).or_default();
            named.push(function);
        }
        catalog
    }

    /// A relation.
    pub fn relation(&self, oid: Oid) -> Option<&Relation> {
        self.relations.get(&oid)
    }

    /// Whether it has tables of other servers.
    pub fn foreign_tables(&self) -> ForeignTables {
        let mut relations = self.relations.values();
        match relations.any(|it| it.kind == RelationKind::ForeignTable) {
            true => ForeignTables::There,
            false if self.has_wrappers => ForeignTables::Possible,
            false => ForeignTables::Impossible,
        }
    }

    /// The relations of a name, in every schema.
    pub fn named(&self, name: &str) -> impl Iterator<Item = &Relation> {
        let oids = self
            .by_name
            .get(name)
            .map(Vec::as_slice)
            .unwrap_or_default();
        oids.iter().filter_map(|oid| self.relations.get(oid))
    }

    /// Whether it has an extension of this name.
    pub fn has_extension(&self, name: &str) -> bool {
        self.extensions.contains(name)
    }

    /// What may be something else where `set_config` is called.
    pub fn doubts(&self) -> Doubts {
        Doubts {
            function: self.own_set_config,
            types: !self.own_text_types.is_empty(),
        }
    }

    /// Whether a text may be another one once it is cast to one of these.
    pub(super) fn may_turn_texts(&self, casts: &[Box<str>]) -> bool {
        casts.iter().any(|name| self.own_text_types.contains(name))
    }

    pub(super) fn children(&self, oid: Oid) -> &[Oid] {
        self.children
            .get(&oid)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    pub(super) fn references(&self, oid: Oid) -> &[(Oid, ForeignKey)] {
        self.references
            .get(&oid)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    pub(super) fn functions(&self, name: &str) -> &[Function] {
        self.functions
            .get(name)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    pub(super) fn operator_acts(&self, name: &str) -> bool {
        self.acting_operators.contains(name)
    }

    /// Whether a function may run as a value is read, before a statement does.
    pub fn reading_values_acts(&self) -> bool {
        !self.acting_types.is_empty()
    }

    pub(super) fn json_acts(&self) -> bool {
        self.json_acts
    }

    pub(super) fn row_acts(&self, relation: Oid) -> bool {
        self.acting_rows.contains(&relation)
    }

    pub(super) fn type_acts(&self, oid: Oid) -> bool {
        self.acting_types.contains(&oid)
    }

    pub(super) fn acts_unseen(&self) -> bool {
        self.acts_unseen
    }

    /// Whether the default of any domain calls a volatile function.
    pub(super) fn defaults_act(&self) -> bool {
        !self.acting_defaults.is_empty()
    }

    pub(super) fn default_acts(&self, name: &str) -> bool {
        self.acting_defaults.contains(name)
    }

    pub(super) fn cast_acts(&self, name: &str) -> bool {
        self.acting_casts.contains(name)
    }
}
