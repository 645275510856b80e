//! How far a statement writes: which relations, by the server's own resolution of names.

use std::collections::{BTreeSet, HashMap};

use super::calls::{computes, makes_table};
use super::catalog::{Oid, Relation, RelationKind};
use super::{PostgresRules, View};
use crate::protocol::postgres::classify::{
    Class, Effect, RelationName, SessionControl, Statement, Takes, Target, Uses, is_shared,
};

/// Most relations that one statement reaches; more is everything.
const RELATIONS_MAX: usize = 100_000;

const SHADOWED: &str = "a temporary name of its session may stand for something that acts";

/// How far one statement, or two, write.
#[derive(Debug)]
pub(super) struct Reach<'v> {
    pub(super) view: &'v View<'v>,
    /// Relations that it changes.
    pub(super) relations: BTreeSet<Oid>,
    /// Of those, tables of other servers whose rows it changes.
    pub(super) foreign: Vec<Oid>,
    /// Relations that it creates: schema and name.
    pub(super) created: Vec<(Box<str>, Box<str>)>,
    /// Schemas in which it defines something else; `None`: some schema.
    pub(super) schemas: Vec<Option<Box<str>>>,
    /// Databases that it is about, whichever it runs in.
    pub(super) databases: Vec<Box<str>>,
    /// Databases that it makes.
    pub(super) made_databases: Vec<Box<str>>,
    /// It is about databases that are not told.
    pub(super) every_database: bool,
    /// It may write to anything, and why.
    pub(super) everything: Option<&'static str>,
    /// It writes to temporary relations.
    pub(super) temporary: bool,
    /// A name is not in the catalog.
    pub(super) missing: bool,
    /// Some of it by a definition of a temporary table.
    pub(super) by_definition: bool,
}

impl<'v> Reach<'v> {
    pub(super) fn new(view: &'v View<'v>) -> Reach<'v> {
        Reach {
            view,
            relations: BTreeSet::new(),
            foreign: vec![],
            created: vec![],
            schemas: vec![],
            databases: vec![],
            made_databases: vec![],
            every_database: false,
            everything: None,
            temporary: false,
            missing: false,
            by_definition: false,
        }
    }

    pub(super) fn is_nothing(&self) -> bool {
        !self.temporary && self.is_nothing_lasting()
    }

    /// Nothing but what ends with the session.
    pub(super) fn is_nothing_lasting(&self) -> bool {
        self.everything.is_none()
            && self.relations.is_empty()
            && self.created.is_empty()
            && self.schemas.is_empty()
            && self.databases.is_empty()
            && self.made_databases.is_empty()
            && !self.every_database
    }

    pub(super) fn everything(&mut self, why: &'static str) {
        self.everything.get_or_insert(why);
    }

    pub(super) fn not_found(&mut self, why: &'static str) {
        self.missing = true;
        self.everything(why);
    }

    pub(super) fn add(&mut self, statement: &Statement, rules: &PostgresRules) {
        let uses = &statement.uses;
        if let Some(why) = uses.everything {
            self.everything(why);
        }
        if let Some(extension) = &uses.extension
            && (self.view.redefined || !self.view.catalog.has_extension(extension))
        {
            self.everything("an extension may reach any relation");
        }
        if statement.operation == "CREATE VIEW" && self.makes_temporary_view(uses) {
            self.everything("a temporary view");
        }
        if self.view.redefined && self.names_anything(statement) {
            self.everything("what its names do may have been changed since the catalog was read");
        }
        self.add_looked_at(statement, rules);
        let mut types = uses.casts.iter();
        if statement.operation == "ALTER TABLE"
            && types.any(|name| self.view.catalog.default_acts(name))
        {
            self.everything("a volatile function may fill a new column");
        }
        self.schemas.extend(uses.defines_in.iter().cloned());
        self.databases.extend(uses.databases.iter().cloned());
        self.made_databases.extend(uses.makes_database.clone());
        self.every_database |= uses.every_database;
        for target in &uses.targets {
            let name = &target.relation;
            let may_be_cte = name.schema.is_none() && uses.ctes.contains(&name.name);
            // Whose rows are locked may be a common table expression's: it has none of its own.
            let locks = target.effect == Effect::Lock;
            if !(locks && may_be_cte && self.candidates(name).is_empty()) {
                let drops = statement.operation == "DROP";
                self.add_target(target, drops);
                if !drops {
                    self.add_filled(target, rules);
                }
            }
        }
        self.add_made(statement, rules);
        // Its columns are what it is made of.
        let makes = makes_table(uses);
        self.add_given_types(uses, makes);
        for read in &uses.reads {
            let is_cte = read.schema.is_none() && uses.ctes.contains(&read.name);
            self.add_read(read, is_cte);
        }
        self.add_calls(uses, rules);
        if self.view.catalog.acts_unseen() && computes(statement) {
            self.everything("the server may call a volatile function where none is written");
        }
    }

    /// Whether it names anything that a definition may have changed.
    fn names_anything(&self, statement: &Statement) -> bool {
        let uses = &statement.uses;
        let builtin = |schema: &str| matches!(schema, "pg_catalog" | "information_schema");
        let reads = uses.reads.iter().any(|name| match &name.schema {
            Some(schema) => !builtin(schema),
            None => !uses.ctes.contains(&name.name),
        });
        let changes = |effect: Effect| !matches!(effect, Effect::Create { .. });
        let targets = uses.targets.iter().any(|target| changes(target.effect));
        let calls = uses.functions.iter().any(|call| match &call.schema {
            Some(schema) => !builtin(schema),
            None => !call.by_syntax,
        });
        // What a cursor reads, it may read by something else than when it was declared.
        let fetches = matches!(statement.class, Class::Session(SessionControl::Fetch(_)));
        let typed = !uses.casts.is_empty() || !uses.types.is_empty();
        let other = !uses.operators.is_empty() || !uses.attributes.is_empty();
        reads || targets || calls || fetches || typed || other
    }

    /// Whether a name that is written so can mean what is in this schema.
    pub(super) fn can_see(&self, written: Option<&str>, schema: &str) -> bool {
        match (written, self.view.search_path) {
            (Some(written), _) => written == schema,
            (None, None) => true,
            (None, Some(path)) => {
                schema == "pg_catalog"
                    || path.iter().any(|member| match &**member {
                        "$user" => schema == self.view.user,
                        member => schema == member,
                    })
            }
        }
    }

    /// The permanent relations that a name can mean.
    pub(super) fn candidates(&self, name: &RelationName) -> Vec<&'v Relation> {
        let relations = self.view.catalog.named(&name.name);
        relations
            .filter(|relation| !relation.temporary)
            .filter(|relation| self.can_see(name.schema.as_deref(), &relation.schema))
            .collect()
    }

    /// The temporary relations that a name can mean, of whichever session: a view may have become
    /// one without saying so, and what a session is known to have made may be another thing by now.
    pub(super) fn temporaries(&self, name: &RelationName) -> Vec<&'v Relation> {
        let in_any = |schema: &str| schema.starts_with("pg_temp");
        if !name.schema.as_deref().is_none_or(in_any) {
            return vec![];
        }
        let relations = self.view.catalog.named(&name.name);
        relations.filter(|relation| relation.temporary).collect()
    }

    pub(super) fn is_own_temporary(&self, name: &RelationName) -> bool {
        match name.schema.as_deref() {
            Some(schema) => {
                let own = schema == "pg_temp" || schema.starts_with("pg_temp_");
                own && self.view.temporary.contains(&name.name)
            }
            None => self.view.temporary.contains(&name.name),
        }
    }

    /// The table of the open transaction that a name means, where the catalog has none.
    pub(super) fn made(&self, name: &RelationName) -> Option<&'v RelationName> {
        let same = |made: &&RelationName| {
            let schemas = (made.schema.as_deref(), name.schema.as_deref());
            let other = matches!(schemas, (Some(one), Some(other)) if one != other);
            made.name == name.name && !other
        };
        self.view.made.iter().find(same)
    }

    fn add_read(&mut self, name: &RelationName, is_cte: bool) {
        let candidates = self.candidates(name);
        if candidates.iter().any(|relation| relation.acts_on_read) {
            self.everything("reading one of its relations may write");
        }
        if name.schema.is_none() && self.view.shadowed.contains(&name.name) {
            self.everything(SHADOWED);
        }
        if self
            .temporaries(name)
            .iter()
            .any(|it| self.acts_by_name(it))
        {
            self.everything(SHADOWED);
        }
        let own = self.is_own_temporary(name) || self.made(name).is_some();
        if candidates.is_empty() && !is_cte && !own {
            match self.is_nowhere(name) {
                true => self.missing = true,
                false => self.not_found("it reads a relation that is not known"),
            }
        }
    }

    /// A text that stands where such a row could is made one (`COALESCE(t, '(1)')`).
    pub(super) fn add_rows(&mut self, name: &RelationName) {
        let candidates = self.candidates(name).into_iter();
        let mut all = candidates.chain(self.temporaries(name));
        if all.any(|relation| self.view.catalog.row_acts(relation.oid)) {
            self.everything("it may make a row that a volatile function checks");
        }
    }

    /// `drops`: what is not there is not touched (DROP IF EXISTS).
    pub(super) fn add_target(&mut self, target: &Target, drops: bool) {
        let name = &target.relation;
        if let Effect::Create { temporary } = target.effect {
            return self.add_created(name, temporary);
        }
        if name.schema.is_none() && self.view.shadowed.contains(&name.name) {
            self.everything(SHADOWED);
        }
        let acts = |relation: &Relation| {
            let is_view = relation.kind == RelationKind::View;
            is_view || relation.acts_on_write || self.acts_by_name(relation)
        };
        if self.temporaries(name).into_iter().any(acts) {
            self.everything(SHADOWED);
        }
        let candidates = self.candidates(name);
        let own = self.is_own_temporary(name);
        self.temporary |= own;
        match self.made(name) {
            Some(made) => self.add_created(made, false),
            None if candidates.is_empty() && !own && (drops || self.is_nowhere(name)) => {
                self.add_absent(name);
            }
            None if candidates.is_empty() && !own => {
                self.not_found("it writes to a relation that is not known");
            }
            None => {}
        }
        for relation in candidates {
            self.add_relation(relation, target.effect, target.only);
        }
    }

    /// Whether a view becomes one of the session's own though it does not say so: it reads such, or
    /// is made where they are. No catalog that is looked at tells of it.
    fn makes_temporary_view(&self, uses: &Uses) -> bool {
        let of_session = |schema: &str| schema.starts_with("pg_temp");
        let is_own = |name: &RelationName| match &name.schema {
            Some(schema) => of_session(schema),
            None => {
                let own = [self.view.temporary, self.view.shadowed];
                own.iter().any(|names| names.contains(&name.name))
            }
        };
        let path = self.view.search_path.unwrap_or_default();
        let reads = uses.analysed.iter().flat_map(|it| &it.reads);
        path.iter().any(|member| of_session(member)) || reads.into_iter().any(is_own)
    }

    /// Whether naming it may call a volatile function.
    fn acts_by_name(&self, relation: &Relation) -> bool {
        relation.acts_on_read
            || relation.gives_acting_type
            || self.view.catalog.row_acts(relation.oid)
    }

    /// Whether the server has no relation of this name, whatever its search path is.
    fn is_nowhere(&self, name: &RelationName) -> bool {
        let mut named = self.view.catalog.named(&name.name);
        self.view.sure && named.next().is_none()
    }

    /// A name that the catalog does not have: it is asked anew, and rules that would cover it do.
    fn add_absent(&mut self, name: &RelationName) {
        self.missing = true;
        let schemas = match (name.schema.as_deref(), self.view.search_path) {
            (Some(schema), _) => vec![schema],
            (None, Some(path)) => path.iter().map(|member| &**member).collect(),
            (None, None) => return self.everything("the schema of its target is not known"),
        };
        for schema in schemas {
            let schema = if schema == "$user" {
                self.view.user
            } else {
                schema
            };
            self.created.push((schema.into(), name.name.clone()));
        }
    }

    fn add_created(&mut self, name: &RelationName, temporary: bool) {
        let in_temporary = name.schema.as_deref() == Some("pg_temp");
        if temporary || in_temporary || self.is_own_temporary(name) && name.schema.is_some() {
            self.temporary = true;
            return;
        }
        match (name.schema.as_deref(), self.view.search_path) {
            (Some(schema), _) => self.created.push((schema.into(), name.name.clone())),
            (None, None) => {
                return self.everything("the schema in which it creates is not known");
            }
            // The first one that is there and may be used, which is not told here. A table that is
            // renamed stays where it is.
            (None, Some(path)) => {
                for member in path {
                    let schema = match &**member {
                        "$user" => self.view.user,
                        member => member,
                    };
                    self.created.push((schema.into(), name.name.clone()));
                }
            }
        }
        // OR REPLACE and IF NOT EXISTS meet what is there.
        for relation in self.candidates(name) {
            self.add_relation(relation, Effect::Define, false);
        }
    }

    pub(super) fn add_relation(&mut self, relation: &'v Relation, effect: Effect, only: bool) {
        let catalog = self.view.catalog;
        // By another name any later statement may do what it likes with it.
        let moves = effect == Effect::Move;
        // Of a definition ONLY keeps less from its children than it says: keys, and columns that
        // they have inherited, go.
        let only = only && (effect.changes_rows() || effect == Effect::Lock);
        let start = Step {
            descend: !only,
            rows: effect.changes_rows(),
            by_key: false,
            drops: moves || effect == Effect::Drop,
            shapes: moves || effect == Effect::Define,
        };
        let mut left = vec![(relation.oid, start)];
        // Of this effect: what another one reaches from the same relation may be less.
        let mut seen: HashMap<Oid, Step> = HashMap::new();
        while let Some((oid, step)) = left.pop() {
            let known = seen.get(&oid).copied().unwrap_or_default();
            let step = step.with(known);
            if seen.insert(oid, step) == Some(step) {
                continue;
            }
            self.relations.insert(oid);
            if self.relations.len() > RELATIONS_MAX {
                return self.everything("it reaches too many relations");
            }
            let Some(relation) = catalog.relation(oid) else {
                self.not_found("a relation that it reaches is not known");
                continue;
            };
            if relation.kind == RelationKind::ForeignTable && step.rows {
                self.foreign.push(oid);
            }
            if step.rows && &*relation.schema == "pg_catalog" {
                self.every_database |= is_shared(&relation.name);
                self.everything("it writes to the server's own tables");
            }
            // By another name, or by a key, rows may be written behind it.
            if relation.acts_on_write && (step.rows || moves || effect == Effect::Key) {
                self.everything("a rule or a trigger of its target writes elsewhere");
            }
            let defines = matches!(effect, Effect::Define | Effect::Drop | Effect::Key);
            // A child of the session's own.
            if relation.temporary && (step.rows || effect == Effect::Define) {
                self.add_fill(relation, Takes::Defaults);
            }
            if moves && self.acts_by_name(relation) {
                self.everything("what is renamed acts, and may do so by another's name");
            }
            if relation.kind == RelationKind::View && !defines {
                let below = Step {
                    descend: true,
                    ..step
                };
                left.extend(relation.underlying.iter().map(|oid| (*oid, below)));
            }
            // The rows of a partition are rows of its parent; an index is its table's.
            let above = relation.parents.iter().chain(&relation.owner);
            left.extend(above.map(|oid| (*oid, Step::default())));
            if step.descend {
                // A row goes to a partition, and to no other child.
                let routes = relation.kind == RelationKind::PartitionedTable;
                let below = Step {
                    rows: step.rows && (routes || effect != Effect::Insert),
                    ..step
                };
                left.extend(catalog.children(oid).iter().map(|child| (*child, below)));
            }
            for dependent in &relation.dependents {
                let below = Step {
                    descend: true,
                    drops: step.drops && dependent.carries,
                    shapes: (step.drops || step.shapes) && dependent.by_type,
                    ..Step::default()
                };
                match dependent.relation {
                    _ if !step.drops && !below.shapes => {}
                    Some(oid) => left.push((oid, below)),
                    None => self.everything("what depends on it is not known"),
                }
            }
            for (referencing, key) in catalog.references(oid) {
                let acts = match effect {
                    Effect::Update => key.acts_on_update,
                    // A cascade may delete, or set: what it sets another one may hand on.
                    Effect::Delete => key.acts_on_delete || step.by_key && key.acts_on_update,
                    // TRUNCATE .. CASCADE follows any key.
                    Effect::Key | Effect::Move => true,
                    Effect::Truncate { cascade } => cascade,
                    Effect::Insert
                    | Effect::Create { .. }
                    | Effect::Define
                    | Effect::Drop
                    | Effect::Lock => false,
                };
                if acts {
                    let whole = Step {
                        descend: true,
                        rows: true,
                        by_key: true,
                        ..Step::default()
                    };
                    left.push((*referencing, whole));
                }
            }
        }
    }
}

/// How a relation is reached.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Step {
    /// With its children.
    descend: bool,
    /// Rows of its own may be changed.
    rows: bool,
    /// By a foreign key's action.
    by_key: bool,
    /// It goes, with what depends on it.
    drops: bool,
    /// Its rows may become others.
    shapes: bool,
}

impl Step {
    fn with(self, other: Step) -> Step {
        Step {
            descend: self.descend || other.descend,
            rows: self.rows || other.rows,
            by_key: self.by_key || other.by_key,
            drops: self.drops || other.drops,
            shapes: self.shapes || other.shapes,
        }
    }
}
