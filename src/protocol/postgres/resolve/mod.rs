//! Name resolution: from what a statement names to the locks that rules ask for.
//!
//! A pure function of a [`Catalog`], which the shell loads and refreshes, and of what the session
//! can see ([`View`]). What cannot be resolved counts as a write to everything that a rule covers.
//!
//! What it decides, and how far it can be trusted:
//!
//! - A write to a table asks for the locks of the table, of its children (unless ONLY), of its
//!   ancestors, and, where it updates or deletes, of the tables to which foreign keys cascade.
//! - A write to a view is one to what is below it, and to everything where the view has rules or
//!   triggers of its own.
//! - An unqualified name stands for every relation of that name in the path; in any schema, where
//!   the path is not known. A temporary table of the session hides none of them: more locks may be
//!   asked for than the server's own resolution would need, never fewer.
//! - A name that is nowhere is refused by the server, where that is sure ([`View::sure`]); what it
//!   writes to counts by its name all the same.
//! - A function is a read if the server calls it immutable or stable. A function that is declared
//!   so and calls a volatile one breaks its own promise, and the server does not hold it to it; nor
//!   does this module, but for those that are known to run a text (the shell marks them volatile).
//! - What triggers and defaults do is the backend's (CONTRACT: not covered), but for those of
//!   temporary tables, whose writes nothing else is asked for ([`filling`]).

mod calls;
mod catalog;
mod filling;
mod functions;
mod own;
mod relations;
mod rules;

use std::sync::Arc;

use crate::lock_name::LockName;
use crate::protocol::postgres::classify::{Class, Effect, RelationName, Statement, Target};

pub use catalog::{
    Catalog, CatalogParts, Dependent, ForeignKey, ForeignTables, Function, Oid, Relation,
    RelationKind,
};
pub use filling::Definition;
pub use functions::is_harmless;
pub use own::runs_own_code;
pub use rules::{ForeignWrites, PostgresRule, PostgresRules};

use relations::Reach;

/// What the names of a statement are resolved against.
#[derive(Clone, Copy, Debug)]
pub struct View<'v> {
    /// What the database has.
    pub catalog: &'v Catalog,
    /// The database's name.
    pub database: &'v str,
    /// The current role: what `$user` in a path stands for.
    pub user: &'v str,
    /// The schemas in which the server looks, in order, as they were set; `None`: not known.
    pub search_path: Option<&'v [Box<str>]>,
    /// Temporary relations that the session has made, by name.
    pub temporary: &'v [Box<str>],
    /// The same where they may be something else by now, which acts.
    pub shadowed: &'v [Box<str>],
    /// What has made those what they are, as far as the session has said so itself.
    pub definitions: &'v [Definition],
    /// Tables that its transaction has made and that the catalog cannot have yet: plain ones, that
    /// no rule, no child and no foreign key makes more of.
    pub made: &'v [RelationName],
    /// Something on its way, or in the open transaction, may make names do what the catalog does
    /// not tell.
    pub redefined: bool,
    /// The catalog was loaded when the statement was there, and nothing of the session is on its
    /// way: the server refuses a name that is in no schema.
    pub sure: bool,
}

/// What a statement needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Required {
    /// Nothing: it reads.
    Read,
    /// Nothing: it writes to temporary relations of the session only.
    Temporary,
    /// A current ticket for each of these locks: sorted, each once. None: no rule covers it and the
    /// listener lets such writes pass.
    Write(Vec<LockName>),
    /// It is refused: which locks it needs cannot be told, or no rule covers it and the listener
    /// rejects such writes.
    Unclassified(&'static str),
}

/// What a statement needs, and whether the catalog may be too old to tell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolution {
    /// What it needs.
    pub required: Required,
    /// Names in it are not in the catalog: load it again and resolve once more.
    pub missing: bool,
    /// It may write to anything, and why: what the session's names mean may not be known after it.
    pub everything: Option<&'static str>,
    /// It is refused since it writes to a table of another server.
    pub foreign: bool,
    /// Some of it by what has defined temporary tables ([`View::definitions`]).
    pub by_definition: bool,
}

/// What a statement needs. `executed` are the prepared statements that it may execute, where the
/// session knows them: all count.
pub fn resolve(
    statement: &Statement,
    executed: &[Arc<Statement>],
    view: &View<'_>,
    rules: &PostgresRules,
) -> Resolution {
    let mut reach = Reach::new(view);
    reach.add(statement, rules);
    // None executes another: the grammar has no EXECUTE within PREPARE but CREATE TABLE AS EXECUTE.
    let nested = executed.iter().any(|executed| executed.executes.is_some());
    for executed in executed {
        reach.add(executed, rules);
    }
    if statement.executes.is_some() && executed.is_empty() || nested {
        reach.everything("the prepared statement that it executes is not known");
    }
    let executed_writes = executed.iter().any(|executed| is_write(&executed.class));
    if !is_write(&statement.class) && !executed_writes && reach.is_nothing() {
        return Resolution {
            required: Required::Read,
            missing: reach.missing,
            everything: None,
            foreign: false,
            by_definition: false,
        };
    }
    Resolution {
        foreign: rules.refuses_foreign(&reach, view),
        required: rules.required(&reach, view),
        missing: reach.missing,
        everything: reach.everything,
        by_definition: reach.by_definition,
    }
}

/// Follows the plain tables of a transaction ([`View::made`]) behind one more statement.
pub fn follow_made(made: &mut Vec<RelationName>, statement: &Statement) {
    let targets = &statement.uses.targets;
    let makes = Effect::Create { temporary: false };
    if let [target] = targets.as_slice()
        && !statement.uses.if_not_exists
        && target.effect == makes
        && (statement.operation.starts_with("CREATE TABLE")
            || statement.operation == "CREATE SEQUENCE")
    {
        made.push(target.relation.clone());
        return;
    }
    let is_kept = statement.class == Class::Maintenance;
    let stays_plain = is_kept || matches!(statement.operation, "ALTER TABLE" | "CREATE INDEX");
    if stays_plain && !redefines(statement) {
        return;
    }
    // A rule, a trigger or a child may make more of it than its name tells.
    let defines = |target: &&Target| {
        matches!(
            target.effect,
            Effect::Define | Effect::Drop | Effect::Move | Effect::Create { .. }
        )
    };
    for target in targets.iter().filter(defines) {
        made.retain(|table| table.name != target.relation.name);
    }
    if statement.uses.everything.is_some() {
        made.clear();
    }
}

/// Whether names of later statements may do what the catalog of before this one does not tell.
pub fn redefines(statement: &Statement) -> bool {
    statement.uses.redefines || statement.uses.everything.is_some()
}

/// Whether a name that stood for a plain temporary table may stand for something else behind a
/// statement.
pub fn shadows_temporary(statement: &Statement) -> bool {
    statement.uses.everything.is_some()
        || matches!(
            statement.operation,
            "CREATE VIEW" | "CREATE RULE" | "ALTER" | "CREATE POLICY" | "ALTER POLICY"
        )
}

/// Whether a class is a write by itself, whatever it uses.
fn is_write(class: &Class) -> bool {
    match class {
        // What is prepared counts when it is executed; the gids of prepared transactions are
        // looked up by the shell.
        Class::Read | Class::Transaction(_) | Class::Session(_) => false,
        Class::Write | Class::Maintenance | Class::Unknown(_) => true,
    }
}

#[cfg(test)]
mod tests;
