//! The rules of a Postgres listener: databases, schemas and tables, and the locks that guard them.

mod elsewhere;

use super::catalog::Relation;
use super::relations::Reach;
use super::{Required, View};
use crate::lock_name::{LockName, LockPattern};
use crate::protocol::Unmatched;
use crate::protocol::pattern::{
    Captures, InvalidPattern, LockTemplate, Match, Pattern, Segment, Subject,
};
use crate::protocol::postgres::identifier::NAME_BYTES_MAX;

/// One rule. A name in it is written as in SQL: folded to lower case unless it is quoted; `*`
/// stands for any name, `{name}` for one that the lock is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PostgresRule {
    database: Option<Pattern>,
    covers: Covers,
    lock: LockTemplate,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Covers {
    Database,
    /// One segment.
    Schema(Pattern),
    /// Two segments.
    Table(Pattern),
}

impl PostgresRule {
    /// A rule of which at least one of database, schema and table is given; a table is written with
    /// its schema.
    pub fn new(
        database: Option<&str>,
        schema: Option<&str>,
        table: Option<&str>,
        lock: &str,
    ) -> Result<PostgresRule, InvalidPattern> {
        let database = database
            .map(|text| names("database", text, 1))
            .transpose()?;
        let covers = match (schema, table) {
            (None, None) if database.is_some() => Covers::Database,
            (Some(schema), None) => Covers::Schema(names("schema", schema, 1)?),
            (None, Some(table)) => Covers::Table(names("table", table, 2)?),
            (Some(_), Some(_)) => {
                return Err(invalid(
                    "table",
                    "",
                    "a table is written with its schema, alone",
                ));
            }
            (None, None) => {
                return Err(invalid("rule", "", "it names no database, schema or table"));
            }
        };
        let mut captures: Vec<Box<str>> = vec![];
        let within = match &covers {
            Covers::Database => None,
            Covers::Schema(pattern) | Covers::Table(pattern) => Some(pattern),
        };
        for pattern in database.iter().chain(within) {
            captures.extend_from_slice(pattern.captures());
        }
        let lock = LockTemplate::new(lock, &captures)?;
        Ok(PostgresRule {
            database,
            covers,
            lock,
        })
    }

    fn in_database<'a>(&self, database: &'a str) -> Option<Captures<'a>> {
        match &self.database {
            None => Some(Captures::default()),
            Some(pattern) => captures(pattern, &[database]),
        }
    }

    /// The captures of a relation that it covers.
    fn on_relation<'a>(&self, schema: &'a str, name: &'a str) -> Option<Captures<'a>> {
        match &self.covers {
            Covers::Database => Some(Captures::default()),
            Covers::Schema(pattern) => captures(pattern, &[schema]),
            Covers::Table(pattern) => captures(pattern, &[schema, name]),
        }
    }

    /// The captures of an object that is no relation. `Err`: it may cover one in some schema, and
    /// which lock that is cannot be told.
    fn on_object<'a>(&self, schema: Option<&'a str>) -> Result<Option<Captures<'a>>, ()> {
        match (&self.covers, schema) {
            (Covers::Database, _) => Ok(Some(Captures::default())),
            (Covers::Schema(pattern), Some(schema)) => Ok(captures(pattern, &[schema])),
            (Covers::Schema(_), None) if self.lock.fixed().is_some() => {
                Ok(Some(Captures::default()))
            }
            (Covers::Schema(_), None) => Err(()),
            (Covers::Table(_), _) => Ok(None),
        }
    }
}

fn invalid(what: &'static str, text: &str, reason: &str) -> InvalidPattern {
    InvalidPattern {
        what,
        text: text.to_owned(),
        reason: reason.to_owned(),
    }
}

fn captures<'a>(pattern: &Pattern, texts: &[&'a str]) -> Option<Captures<'a>> {
    let segments = texts.iter().map(|text| Segment {
        text,
        certain: true,
    });
    match pattern.matches(segments) {
        Match::Yes(captures) => Some(captures),
        // No name of the server is empty.
        Match::Maybe | Match::No => None,
    }
}

/// Compiles a dotted name of this many parts.
fn names(what: &'static str, text: &str, parts: usize) -> Result<Pattern, InvalidPattern> {
    let split = split(text).map_err(|reason| invalid(what, text, reason))?;
    if split.len() != parts {
        let reason = match parts {
            1 => "it is not one name",
            _ => "it is not a schema and a name: `public.orders` is",
        };
        return Err(invalid(what, text, reason));
    }
    let is_plain = |name: &&String| !name.contains(['{', '*']);
    if split
        .iter()
        .filter(is_plain)
        .any(|name| name.len() > NAME_BYTES_MAX)
    {
        let reason = "no name of a server is longer than 63 bytes: longer ones are cut";
        return Err(invalid(what, text, reason));
    }
    let compiled = Pattern::new(Subject::Names, &split.join("/"));
    compiled.map_err(|error| InvalidPattern {
        what,
        text: text.to_owned(),
        ..error
    })
}

/// In a pattern they are no letters.
const NO_PLACE: &str = "a name with `/`, or with a quoted `*`, `{` or `}`, has no place in a rule";

/// Splits at the dots outside of quotes, and folds what is not quoted.
fn split(text: &str) -> Result<Vec<String>, &'static str> {
    let (mut names, mut name, mut chars) = (vec![], String::new(), text.chars().peekable());
    while let Some(char) = chars.next() {
        match char {
            '.' => names.push(std::mem::take(&mut name)),
            '/' => return Err(NO_PLACE),
            '"' => loop {
                match chars.next() {
                    Some('"') if chars.peek() == Some(&'"') => {
                        chars.next();
                        name.push('"');
                    }
                    Some('"') => break,
                    Some('/' | '*' | '{' | '}') => return Err(NO_PLACE),
                    Some(char) => name.push(char),
                    None => return Err("a quote in it is not closed"),
                }
            },
            // The name of a capture keeps its case.
            '{' => {
                name.push('{');
                name.extend(chars.by_ref().take_while(|char| *char != '}'));
                name.push('}');
            }
            char => name.push(char.to_ascii_lowercase()),
        }
    }
    names.push(name);
    Ok(names)
}

/// What becomes of writes that rules cover and that go to tables of other servers. Such a server
/// commits what it was sent also after the session here is gone: that proves nothing there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ForeignWrites {
    /// They are refused.
    #[default]
    Refuse,
    /// They pass under tickets, and may be applied after a newer one.
    Pass,
}

/// The rules of a listener.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PostgresRules {
    rules: Vec<PostgresRule>,
    unmatched: Unmatched,
    foreign_writes: ForeignWrites,
    reading_functions: Vec<(Box<str>, Box<str>)>,
}

impl PostgresRules {
    /// These rules.
    pub fn new(rules: Vec<PostgresRule>, unmatched: Unmatched) -> PostgresRules {
        PostgresRules {
            rules,
            unmatched,
            foreign_writes: ForeignWrites::default(),
            reading_functions: vec![],
        }
    }

    /// The same with this for tables of other servers.
    pub fn with_foreign_writes(self, foreign_writes: ForeignWrites) -> PostgresRules {
        PostgresRules {
            foreign_writes,
            ..self
        }
    }

    /// What becomes of writes to tables of other servers.
    pub fn foreign_writes(&self) -> ForeignWrites {
        self.foreign_writes
    }

    /// Volatile functions that the operator knows to read: schema and name.
    pub fn with_reading_functions(self, functions: Vec<(Box<str>, Box<str>)>) -> PostgresRules {
        PostgresRules {
            reading_functions: functions,
            ..self
        }
    }

    /// Volatile functions that the operator knows to read: schema and name.
    pub fn reading_functions(&self) -> &[(Box<str>, Box<str>)] {
        &self.reading_functions
    }

    /// What is done with writes that no rule covers.
    pub fn unmatched(&self) -> Unmatched {
        self.unmatched
    }

    /// Whether which locks a write needs depends on what it names in this database: not where all
    /// its rules are for the whole of it.
    pub fn depend_on_names(&self, database: &str) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| rule.covers != Covers::Database && rule.in_database(database).is_some())
    }

    /// Whether a write in this database may be one that no rule covers, and is rejected.
    pub fn may_reject(&self, database: &str) -> bool {
        let covers_all = |rule: &PostgresRule| {
            rule.covers == Covers::Database && rule.in_database(database).is_some()
        };
        self.unmatched == Unmatched::Reject && !self.rules.iter().any(covers_all)
    }

    /// Whether a write may need a ticket, or be refused: otherwise nothing is classified.
    pub fn guards(&self) -> bool {
        !self.rules.is_empty() || self.unmatched == Unmatched::Reject
    }

    /// Every lock that a rule can name.
    pub fn lock_patterns(&self) -> Vec<LockPattern> {
        let mut patterns: Vec<LockPattern> = vec![];
        for rule in &self.rules {
            if !patterns.contains(rule.lock.lock_pattern()) {
                patterns.push(rule.lock.lock_pattern().clone());
            }
        }
        patterns
    }

    /// Two rules, the same perhaps, by which what is guarded in one database has several locks, if
    /// there are such.
    pub fn several_locks(&self) -> Option<[&LockPattern; 2]> {
        let differ = |one: &PostgresRule, other: &PostgresRule| match (
            one.database.as_ref().and_then(Pattern::as_literal),
            other.database.as_ref().and_then(Pattern::as_literal),
        ) {
            (Some(one), Some(other)) => one != other,
            _ => false,
        };
        for (at, rule) in self.rules.iter().enumerate() {
            // A capture of the database is told by the session's.
            let of_database = rule.database.as_ref().map_or(0, |it| it.captures().len());
            if rule.lock.captures_used() > of_database {
                return Some([rule.lock.lock_pattern(); 2]);
            }
            let others = &self.rules[..at];
            let lock = rule.lock.lock_pattern();
            let mut others = others.iter().filter(|it| !differ(it, rule));
            if let Some(other) = others.find(|it| it.lock.lock_pattern() != lock) {
                return Some([other.lock.lock_pattern(), lock]);
            }
        }
        None
    }

    /// The lock of everything that is guarded in a database, where it is one
    /// ([`PostgresRules::several_locks`] finds none). Where nothing is, what a statement there can
    /// be about is another database: the lock of all of them, where that is one.
    pub fn only_lock(&self, database: &str) -> Option<LockName> {
        let mut rules = self.rules.iter();
        let here = rules.find_map(|rule| {
            let captures = rule.in_database(database)?;
            rule.lock.build(&captures).ok()
        });
        here.or_else(|| {
            let mut locks = self.rules.iter().map(|rule| rule.lock.fixed());
            let first = locks.next()??;
            locks.all(|lock| lock == Some(first)).then(|| first.clone())
        })
    }

    pub(super) fn is_named_read(&self, schema: Option<&str>, name: &str) -> bool {
        // Only as it is written: an unqualified name can mean another function.
        let named = |(known_schema, known): &(Box<str>, Box<str>)| {
            **known == *name && schema == Some(&**known_schema)
        };
        self.reading_functions.iter().any(named)
    }

    /// What a write asks for of which nothing is known but its database, such as the end of a
    /// prepared transaction that somebody else has prepared.
    pub fn everything(&self, database: &str) -> Required {
        let mut locks = vec![];
        if let Err(why) = self.add_all(database, &mut locks) {
            return Required::Unclassified(why);
        }
        if locks.is_empty() && self.unmatched == Unmatched::Reject {
            return Required::Unclassified(NO_RULE);
        }
        locks.sort_unstable();
        locks.dedup();
        Required::Write(locks)
    }

    /// Adds every lock that guards something in a database.
    fn add_all(&self, database: &str, locks: &mut Vec<LockName>) -> Result<(), &'static str> {
        self.add(database, |_| true, locks)
    }

    fn add(
        &self,
        database: &str,
        counts: impl Fn(&PostgresRule) -> bool,
        locks: &mut Vec<LockName>,
    ) -> Result<(), &'static str> {
        for rule in self.rules.iter().filter(|rule| counts(rule)) {
            let Some(captures) = rule.in_database(database) else {
                continue;
            };
            if rule.covers != Covers::Database && rule.lock.fixed().is_none() {
                return Err(UNTOLD);
            }
            locks.push(rule.lock.build(&captures).map_err(|_| NO_LOCK)?);
        }
        Ok(())
    }

    /// Whether a write that reaches so far is refused for the tables of other servers that it
    /// reaches.
    pub(super) fn refuses_foreign(&self, reach: &Reach<'_>, view: &View<'_>) -> bool {
        let mut rules = self.rules.iter();
        self.foreign_writes == ForeignWrites::Refuse
            && rules.any(|rule| {
                rule.in_database(view.database).is_some() && covers_foreign(rule, reach, view)
            })
    }

    /// The locks of a write that reaches so far.
    pub(super) fn required(&self, reach: &Reach<'_>, view: &View<'_>) -> Required {
        if reach.temporary && reach.is_nothing_lasting() {
            return Required::Temporary;
        }
        if self.refuses_foreign(reach, view) {
            return Required::Unclassified(FOREIGN);
        }
        let mut locks = vec![];
        for rule in &self.rules {
            let Some(of_database) = rule.in_database(view.database) else {
                continue;
            };
            if let Err(why) = add_locks(rule, of_database, reach, view, &mut locks) {
                return Required::Unclassified(why);
            }
        }
        let (databases, made) = (&reach.databases, &reach.made_databases);
        let elsewhere = self.add_elsewhere(databases, made, reach.every_database, &mut locks);
        if let Err(why) = elsewhere {
            return Required::Unclassified(why);
        }
        if locks.is_empty() && self.unmatched == Unmatched::Reject {
            return Required::Unclassified(NO_RULE);
        }
        locks.sort_unstable();
        locks.dedup();
        Required::Write(locks)
    }
}

const UNTOLD: &str = "which locks it needs cannot be told";
const NO_LOCK: &str = "a name gives no valid lock name";
const FOREIGN: &str = "what is written to a foreign table may be applied there after its session \
     is gone; `foreign_writes` says whether that passes";
const NO_RULE: &str = "no rule covers this write";

fn covers_foreign(rule: &PostgresRule, reach: &Reach<'_>, view: &View<'_>) -> bool {
    let mut foreign = reach.foreign.iter();
    foreign.any(|oid| {
        let relation = view.catalog.relation(*oid);
        relation.is_some_and(|it| rule.on_relation(&it.schema, &it.name).is_some())
    })
}

fn add_locks(
    rule: &PostgresRule,
    of_database: Captures<'_>,
    reach: &Reach<'_>,
    view: &View<'_>,
    locks: &mut Vec<LockName>,
) -> Result<(), &'static str> {
    let mut add = |captures: Captures<'_>| -> Result<(), &'static str> {
        let lock = rule.lock.build(&of_database.then(captures));
        locks.push(lock.map_err(|_| NO_LOCK)?);
        Ok(())
    };
    if let Some(why) = reach.everything {
        return match (&rule.covers, rule.lock.fixed()) {
            (Covers::Database, _) | (_, Some(_)) => add(Captures::default()),
            // Which locks it makes depends on names that may not exist yet.
            (Covers::Schema(_) | Covers::Table(_), None) => Err(why),
        };
    }
    for relation in reach
        .relations
        .iter()
        .filter_map(|oid| view.catalog.relation(*oid))
    {
        let Relation { schema, name, .. } = relation;
        if let Some(captures) = rule.on_relation(schema, name) {
            add(captures)?;
        }
    }
    for (schema, name) in &reach.created {
        if let Some(captures) = rule.on_relation(schema, name) {
            add(captures)?;
        }
    }
    for schema in &reach.schemas {
        let covered = rule.on_object(schema.as_deref());
        match covered.map_err(|()| "the schema in which it defines something is not known")? {
            Some(captures) => add(captures)?,
            None => continue,
        }
    }
    // A database's rule covers also what names nothing: CHECKPOINT.
    if rule.covers == Covers::Database {
        add(Captures::default())?;
    }
    Ok(())
}
