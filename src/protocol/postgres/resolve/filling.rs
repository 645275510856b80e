//! What a write to a temporary table does besides: defaults, checks, generated columns, expressions
//! of indexes, triggers. Its rows are the session's own and need no ticket; what fills them in is
//! code of the database's, which may write to anything, or take from a sequence.
//!
//! A catalog tells of a table that is committed. Of one whose transaction is open, or was when the
//! catalog was loaded, the statements tell that have made it ([`View::definitions`]): they are
//! resolved anew, since what they call may act by now. What they take over from others is as it
//! was: their locks keep others from changing it until the transaction ends, and after that any
//! change has the catalog loaded anew, with the table in it.

use std::collections::HashSet;
use std::sync::Arc;

use super::catalog::{Oid, Relation};
use super::relations::Reach;
use super::{PostgresRules, View};
use crate::protocol::postgres::classify::{Effect, Kin, RelationName, Statement, Takes, Target};

const FILLS: &str = "what fills in a temporary table may write to anything";

/// A statement that has made a temporary relation, or changed one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Definition {
    /// The statement.
    pub statement: Arc<Statement>,
    /// The path in which its names were resolved.
    pub search_path: Option<Arc<[Box<str>]>>,
}

impl Definition {
    /// Whether a statement makes a temporary relation, or changes one.
    pub fn is_one(statement: &Statement, is_temporary: impl Fn(&str) -> bool) -> bool {
        let mut targets = statement.uses.targets.iter();
        targets.any(|target| match target.effect {
            Effect::Create { temporary } => temporary,
            Effect::Define | Effect::Key => {
                statement.operation != "DROP" && is_temporary(&target.relation.name)
            }
            _ => false,
        })
    }

    /// What it is about: what is done to one of these may fill in another one.
    fn names(&self) -> impl Iterator<Item = &str> {
        let uses = &self.statement.uses;
        let targets = uses.targets.iter().map(|it| &*it.relation.name);
        targets.chain(uses.kin.iter().map(|it| &*it.relation.name))
    }
}

impl Reach<'_> {
    /// What fills in the temporary table that a name may stand for, and those behind it.
    pub(super) fn add_filled(&mut self, target: &Target, rules: &PostgresRules) {
        if matches!(target.effect, Effect::Create { .. } | Effect::Lock) {
            return;
        }
        let name = &target.relation;
        if self.is_own_temporary(name) {
            self.add_definitions(name, rules);
        }
        for relation in self.filled_with(self.temporaries(name)) {
            self.add_fill(relation, Takes::Defaults);
        }
    }

    /// What a table that it makes takes over counts as it is made, as what it says itself does.
    pub(super) fn add_made(&mut self, statement: &Statement, rules: &PostgresRules) {
        let makes = Effect::Create { temporary: true };
        let mut targets = statement.uses.targets.iter();
        if targets.any(|it| it.effect == makes) {
            self.add_taken_over(statement);
            for kin in &statement.uses.kin {
                self.add_definitions(&kin.relation, rules);
            }
        }
    }

    fn add_definitions(&mut self, name: &RelationName, rules: &PostgresRules) {
        let view = self.view;
        if view.definitions.is_empty() {
            return;
        }
        let own: HashSet<&str> = view.temporary.iter().map(|name| &**name).collect();
        let mut names = HashSet::from([&*name.name]);
        let mut left: Vec<&Definition> = view.definitions.iter().collect();
        loop {
            let is_about = |it: &mut &Definition| it.names().any(|name| names.contains(name));
            let about: Vec<&Definition> = left.extract_if(.., is_about).collect();
            if about.is_empty() {
                return;
            }
            let more = about.iter().flat_map(|it| it.names());
            names.extend(more.filter(|name| own.contains(name)));
            for definition in about {
                // By the path of then.
                let view = View {
                    search_path: definition.search_path.as_deref(),
                    definitions: &[],
                    ..*view
                };
                let mut reach = Reach::new(&view);
                reach.add_definition(&definition.statement, rules);
                self.by_definition |= !reach.is_nothing_lasting();
                self.join(reach);
            }
        }
    }

    fn add_definition(&mut self, statement: &Statement, rules: &PostgresRules) {
        let uses = &statement.uses;
        let analysed = uses.analysed.as_deref();
        let acts = self.view.catalog.reading_values_acts();
        if !is_of_query(statement) {
            self.add_calls(uses, rules);
        }
        if let Some(looked_at) = analysed
            && (acts || statement.operation == "CREATE INDEX")
        {
            self.add_calls(looked_at, rules);
        }
        if acts {
            self.add_given_types(analysed.unwrap_or(uses), true);
        }
        self.add_taken_over(statement);
    }

    /// What a temporary table has from others, and from the types of its columns.
    fn add_taken_over(&mut self, statement: &Statement) {
        let (uses, catalog) = (&statement.uses, self.view.catalog);
        for kin in &uses.kin {
            self.add_kin(kin);
        }
        if !catalog.defaults_act() {
            return;
        }
        let analysed = uses.analysed.iter().flat_map(|it| &it.casts);
        let mut types = analysed.chain(&uses.casts);
        if types.any(|name| catalog.default_acts(name)) {
            self.everything(FILLS);
        }
        if !is_of_query(statement) {
            return;
        }
        for name in &uses.reads {
            let permanent = self.candidates(name).into_iter();
            let mut all = permanent.chain(self.temporaries(name));
            if all.any(|it| it.gives_acting_default) {
                self.everything(FILLS);
            }
        }
        // What a function of the database's own returns may be of such a type, and so may a
        // parameter whose type the client gives.
        let called = uses.functions.iter().map(|call| &*call.name);
        let mut called = called.chain(uses.attributes.iter().map(|name| &**name));
        let is_own = |name: &str| {
            let mut functions = catalog.functions(name).iter();
            functions.any(|it| &*it.schema != "pg_catalog")
        };
        let given = !uses.types.is_empty();
        if statement.executes.is_some() || given || called.any(is_own) {
            self.everything(FILLS);
        }
    }

    fn add_kin(&mut self, kin: &Kin) {
        if kin.takes == Takes::Nothing {
            return;
        }
        let name = &kin.relation;
        if name.schema.is_none() && self.view.shadowed.contains(&name.name) {
            self.everything(FILLS);
        }
        let mut relations = self.candidates(name);
        if relations.is_empty() && !self.is_own_temporary(name) {
            // One that this transaction has made: its definition is not kept.
            match self.made(name).is_some() {
                true if kin.takes > Takes::Types => self.everything(FILLS),
                true => {}
                false => self.not_found("it takes over from a relation that is not known"),
            }
        }
        relations.extend(self.temporaries(name));
        for relation in relations {
            self.add_fill(relation, kin.takes);
        }
    }

    /// What one that is in the catalog is filled in by.
    pub(super) fn add_fill(&mut self, relation: &Relation, takes: Takes) {
        let computes = takes >= Takes::Expressions && relation.acts_on_fill;
        if computes || relation.gives_acting_default {
            self.everything(FILLS);
        }
        if takes < Takes::Defaults {
            return;
        }
        let catalog = self.view.catalog;
        for oid in &relation.takes_from {
            match catalog.relation(*oid) {
                Some(sequence) if sequence.temporary => {}
                Some(sequence) => self.add_relation(sequence, Effect::Insert, true),
                None => self.not_found("a sequence that it takes from is not known"),
            }
        }
    }

    /// These, with what their rows go to: partitions, children, and where keys hand them on.
    fn filled_with<'r>(&self, relations: Vec<&'r Relation>) -> Vec<&'r Relation>
    where
        Self: 'r,
    {
        let catalog = self.view.catalog;
        let mut seen: HashSet<Oid> = relations.iter().map(|it| it.oid).collect();
        let mut found = relations;
        let mut at = 0;
        while let Some(relation) = found.get(at) {
            at += 1;
            let children = catalog.children(relation.oid).iter();
            let keys = catalog.references(relation.oid).iter().map(|(oid, _)| oid);
            let more = children.chain(keys).filter(|oid| seen.insert(**oid));
            let more: Vec<_> = more.filter_map(|oid| catalog.relation(*oid)).collect();
            found.extend(more);
        }
        found
    }

    /// Adds how far another one writes.
    fn join(&mut self, other: Reach<'_>) {
        self.relations.extend(other.relations);
        self.foreign.extend(other.foreign);
        self.created.extend(other.created);
        self.schemas.extend(other.schemas);
        self.every_database |= other.every_database;
        self.temporary |= other.temporary;
        self.missing |= other.missing;
        if let Some(why) = other.everything {
            self.everything(why);
        }
    }
}

/// Whether what a statement makes is made of a query: that has run, and no more than the types of
/// its columns stay.
fn is_of_query(statement: &Statement) -> bool {
    // EXPLAIN ANALYZE carries it out, too.
    matches!(
        statement.operation,
        "CREATE TABLE AS" | "SELECT" | "EXPLAIN ANALYZE"
    )
}
