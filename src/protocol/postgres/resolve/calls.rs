//! What a statement calls, also by no name: functions, operators, casts, and what the server makes
//! of texts.

use super::PostgresRules;
use super::catalog::{Relation, RelationKind};
use super::functions::{CallEffect, effect, is_harmless};
use super::relations::Reach;
use crate::protocol::postgres::classify::{
    Class, Effect, RelationName, SessionControl, Statement, Target, Uses,
};
use crate::protocol::postgres::identifier;

const TEXTS: &str = "a volatile function may check what the server makes of its texts";

impl Reach<'_> {
    /// What it looks at and does not run: the server makes values of texts at once.
    pub(super) fn add_looked_at(&mut self, statement: &Statement, rules: &PostgresRules) {
        let uses = &statement.uses;
        let looked_at = match &statement.class {
            Class::Session(SessionControl::Prepare { statement, .. }) => Some(&statement.uses),
            _ => uses.analysed.as_deref(),
        };
        let acts = self.view.catalog.reading_values_acts();
        if uses.unread_texts && (acts || self.view.redefined) {
            self.everything(TEXTS);
        }
        let Some(looked_at) = looked_at else {
            return;
        };
        if looked_at.texts && self.view.redefined {
            self.everything(TEXTS);
        }
        if acts {
            let makes = statement.operation == "CREATE TABLE";
            self.add_given_types(looked_at, makes);
            self.add_calls(looked_at, rules);
        }
    }

    /// What stands beside a column may be given its type, or that of a row; a table that is made of
    /// others has theirs.
    pub(super) fn add_given_types(&mut self, uses: &Uses, makes: bool) {
        // A table's own columns, as its parts are defined.
        let defined = uses.targets.iter().filter(|it| it.effect == Effect::Define);
        let defined = defined.map(|target| &target.relation);
        let values = uses.texts || uses.nulls || makes;
        for name in uses.reads.iter().chain(defined) {
            let candidates = self.candidates(name);
            let gives = |it: &&Relation| it.gives_acting_type;
            if values && candidates.iter().any(gives) {
                self.everything("a volatile function may check what stands beside a column");
            }
            if uses.whole_rows || makes {
                self.add_rows(name);
            }
        }
    }

    pub(super) fn add_calls(&mut self, uses: &Uses, rules: &PostgresRules) {
        let catalog = self.view.catalog;
        for call in &uses.functions {
            if catalog.cast_acts(&call.name) {
                // A type may be called like a function, and is (`FuncNameAsType`).
                self.everything("it may call a type that a volatile function checks");
            }
            if rules.is_named_read(call.schema.as_deref(), &call.name) {
                continue;
            }
            let schema = call.schema.as_deref();
            let known = match &*call.name {
                // PostgreSQL 13 has it under this name.
                "extract"
                    if schema == Some("pg_catalog") && catalog.functions("extract").is_empty() =>
                {
                    catalog.functions("date_part")
                }
                name => catalog.functions(name),
            };
            let mut candidates = known
                .iter()
                .filter(|function| self.can_see(schema, &function.schema))
                .peekable();
            if candidates.peek().is_none() {
                let nowhere = self.view.sure && known.is_empty();
                match call.by_syntax {
                    true => {}
                    false if nowhere => self.missing = true,
                    false => self.not_found("it calls a function that is not known"),
                }
                continue;
            }
            match effect(candidates) {
                CallEffect::Reads => {}
                CallEffect::Everything => self.everything("it calls a volatile function"),
                CallEffect::Sequence if catalog.may_turn_texts(&uses.casts) => {
                    self.everything("what its sequence's name is cast to is not the server's type");
                }
                CallEffect::Sequence => match call.first_text.as_deref().and_then(named) {
                    Some(table) if call.of_table && self.only_builtin(SERIAL) => {
                        self.add_sequences_of(&table);
                    }
                    Some(_) if call.of_table => self.everything("it may call another function"),
                    Some(relation) => {
                        let target = Target {
                            relation,
                            effect: Effect::Insert,
                            only: true,
                        };
                        self.add_target(&target, false);
                    }
                    None => self.everything("it changes a sequence that is not named"),
                },
            }
        }
        if catalog.json_acts() && uses.functions.iter().any(|call| call.by_syntax) {
            self.everything("a volatile function may be called where JSON is made");
        }
        let acts = |name: &str| {
            catalog.functions(name).iter().any(|function| {
                let harmless = &*function.schema == "pg_catalog" && is_harmless(name);
                function.volatile && function.single_argument && !harmless
            })
        };
        let acts = |name: &str| acts(name) || catalog.cast_acts(name);
        if uses.attributes.iter().any(|name| acts(name)) {
            self.everything("it may call a volatile function in attribute notation");
        }
        if uses.operators.iter().any(|it| catalog.operator_acts(it)) {
            self.everything("it uses an operator with a volatile function");
        }
        if uses.casts.iter().any(|name| catalog.cast_acts(name)) {
            self.everything("it uses a cast with a volatile function");
        }
        if uses.types.iter().any(|oid| catalog.type_acts(*oid)) {
            self.everything("a parameter of it has a type that a volatile function checks");
        }
    }
}

/// What gives the name of a column's sequence.
const SERIAL: &str = "pg_get_serial_sequence";

impl Reach<'_> {
    /// Whether a name is that of functions of the server's own, and of no other.
    fn only_builtin(&self, name: &str) -> bool {
        let mut functions = self.view.catalog.functions(name).iter();
        functions.all(|function| &*function.schema == "pg_catalog")
    }

    /// The sequences of a table's columns, and the table with them.
    fn add_sequences_of(&mut self, table: &RelationName) {
        let catalog = self.view.catalog;
        let insert = |relation| Target {
            relation,
            effect: Effect::Insert,
            only: true,
        };
        self.add_target(&insert(table.clone()), false);
        let tables = self.candidates(table);
        let parts = tables.iter().flat_map(|table| &table.dependents);
        let sequences = parts.filter_map(|part| catalog.relation(part.relation?));
        for sequence in sequences.filter(|it| it.kind == RelationKind::Sequence) {
            self.add_target(
                &insert(RelationName {
                    schema: Some(sequence.schema.clone()),
                    name: sequence.name.clone(),
                }),
                false,
            );
        }
    }
}

/// CREATE TABLE AS and SELECT INTO, among others: something is created.
pub(super) fn makes_table(uses: &Uses) -> bool {
    let creates = |target: &Target| matches!(target.effect, Effect::Create { .. });
    uses.targets.iter().any(creates)
}

/// Whether a statement has values of other types than its literals.
pub(super) fn computes(statement: &Statement) -> bool {
    let uses = &statement.uses;
    !(uses.reads.is_empty()
        && uses.targets.is_empty()
        && uses.functions.is_empty()
        && uses.operators.is_empty()
        && uses.casts.is_empty())
        || statement.executes.is_some()
}

/// The relation of a text such as `nextval` takes.
fn named(text: &str) -> Option<RelationName> {
    // A number is an oid, a dash none.
    if text.starts_with(|char: char| char.is_ascii_digit() || char == '-') {
        return None;
    }
    let mut names = identifier::split(text, '.')?.into_iter();
    match (names.next()?, names.next(), names.next()) {
        (name, None, None) => Some(RelationName { schema: None, name }),
        (schema, Some(name), None) => Some(RelationName {
            schema: Some(schema),
            name,
        }),
        // With its database, which is this one or none.
        (_, Some(schema), Some(name)) if names.next().is_none() => Some(RelationName {
            schema: Some(schema),
            name,
        }),
        _ => None,
    }
}
