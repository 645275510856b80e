//! What a statement needs by its names: resolved against the catalog, once for those that come
//! again and again.
//!
//! Until a change of the catalog is committed no catalog tells of it: what the open transaction has
//! made is followed here, and what it may have changed counts as anything.

use std::sync::{Arc, Weak};

use super::Session;
use super::effects::Ending;
use super::settle::Standing;
use super::weigh::{Untold, missing};
use crate::config::Mode;
use crate::lock_name::LockName;
use crate::protocol::Refusal;
use crate::protocol::postgres::classify::{
    Class, Effect, RelationName, SessionControl, Statement, TEXT_BYTES_CACHED_MAX,
};
use crate::protocol::postgres::resolve::{
    Catalog, Definition, ForeignTables, ForeignWrites, Required, Resolution, View, redefines,
    resolve, shadows_temporary,
};
use crate::protocol::postgres::session::{Run, SpanId};
use crate::protocol::postgres::ticket::change::Doubts;

/// Most resolutions that a session keeps at hand.
const RESOLVED_MAX: usize = 64;
/// Most temporary relations of a session that are known by name.
const TEMPORARY_MAX: usize = 10_000;
/// Most tables of a transaction's own that are known by name.
pub(super) const MADE_MAX: usize = 1000;

/// What was found for the statements that come again and again.
#[derive(Default)]
pub(super) struct Resolved {
    /// Against this catalog, with so many temporary relations.
    against: Option<(Weak<Catalog>, usize)>,
    /// A few: looking through them takes less than hashing.
    known: Vec<Kept>,
}

struct Kept {
    /// The addresses of statement and path, which are kept alive beside.
    key: (usize, usize),
    resolution: Arc<Resolution>,
    _statement: Arc<Statement>,
    _path: Option<Arc<[Box<str>]>>,
}

impl Resolved {
    /// Names of the session may do something else by now.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    fn find(&self, key: (usize, usize)) -> Option<Arc<Resolution>> {
        let kept = self.known.iter().find(|it| it.key == key)?;
        Some(Arc::clone(&kept.resolution))
    }
}

fn key(run: &Run) -> (usize, usize) {
    let path = run.search_path.as_ref();
    let path = path.map_or(0, |path| Arc::as_ptr(path).cast::<u8>() as usize);
    (Arc::as_ptr(&run.statement) as usize, path)
}

/// Why a run counts as one that acts while no catalog tells.
pub(super) const GUESSED: &str = "it may do anything";

impl Session {
    /// The locks of a run of which it cannot be told what it does: all that the rules name for this
    /// database, and for those that its text is about.
    pub(super) fn locks_of_anything(&self, run: &Run) -> Result<Vec<LockName>, Untold> {
        let rules = &self.listener.config.rules;
        match rules.everything_of(&self.identity.database, statements(run)) {
            Required::Write(locks) => Ok(locks),
            Required::Unclassified(why) => Err(Refusal::unclassified(why).into()),
            Required::Read | Required::Temporary => Ok(vec![]),
        }
    }

    /// Whether what is written in this database, without a ticket, is nothing that a rule is about.
    pub(super) fn may_be_anybodys(&self) -> bool {
        let rules = &self.listener.config.rules;
        let needed = rules.everything(&self.identity.database);
        matches!(needed, Required::Write(locks) if locks.is_empty())
    }

    /// A catalog that may be used at this instant.
    pub(super) fn known_catalog(&self) -> Option<Arc<Catalog>> {
        let loaded = self.admission.catalog.clone();
        loaded.or_else(|| self.database.current())
    }

    /// What of `set_config` may be something else than it looks like. While no catalog tells, all.
    pub(super) fn doubts(&self) -> Doubts {
        let shifted = self.effects.shifts() || self.effects.redefined();
        let catalog = self.known_catalog().filter(|_| !shifted);
        catalog.map_or(Doubts::ALL, |catalog| catalog.doubts())
    }

    pub(super) fn resolution_of(
        &mut self,
        run: &Run,
        ending: &mut Ending,
    ) -> Result<Arc<Resolution>, Untold> {
        let observes = self.listener.config.mode == Mode::Observe;
        let Some(catalog) = self.known_catalog() else {
            if observes {
                self.database.load_aside();
                return Err(Untold::Unobserved);
            }
            if let Some(resolution) = self.whatever_it_is(run, ending, None)? {
                self.database.load_aside();
                return Ok(resolution);
            }
            self.begin_loading(None);
            return Err(Untold::Later);
        };
        self.forget_told(&catalog);
        let against = (Arc::as_ptr(&catalog), self.temporary.len());
        let same = self.resolved.against.as_ref();
        if same.is_none_or(|(known, made)| (Weak::as_ptr(known), *made) != against) {
            self.resolved.known.clear();
            self.resolved.against = Some((Arc::downgrade(&catalog), against.1));
        }
        let redefined = ending.redefines || self.effects.redefined();
        let all: Vec<Definition>;
        let definitions: &[Definition] = match ending.definitions.is_empty() {
            true => self.defined.all(),
            false => {
                all = [self.defined.all(), &*ending.definitions].concat();
                &all
            }
        };
        let both: Vec<Box<str>>;
        let own: &[Box<str>] = match ending.temporary.is_empty() {
            true => &self.temporary,
            // Those that the text has made before.
            false => {
                both = [&*self.temporary, &*ending.temporary].concat();
                &both
            }
        };
        let (temporary, shadowed): (&[Box<str>], &[Box<str>]) =
            match ending.shadows || self.shadowed {
                true => (&[], own),
                false => (own, &[]),
            };
        let plain = !redefined && !ending.shadows;
        let made_none = ending.made.is_empty() && ending.temporary.is_empty();
        let defined_none = made_none && ending.definitions.is_empty();
        let alone = plain && run.executed.is_empty() && defined_none;
        if alone && let Some(resolution) = self.resolved.find(key(run)) {
            return Ok(resolution);
        }
        let view = View {
            catalog: &catalog,
            database: &self.identity.database,
            user: &self.user,
            search_path: run.search_path.as_deref(),
            temporary,
            shadowed,
            definitions,
            made: if redefined { &[] } else { &ending.made },
            redefined,
            sure: plain && self.admission.reloaded && self.has_defined_nothing(ending),
        };
        let rules = &self.listener.config.rules;
        let mut resolution = resolve(&run.statement, &run.executed, &view, rules);
        // A newer catalog tells what has become of those tables.
        resolution.missing |= resolution.by_definition && self.defined.have_ended();
        if resolution.missing && !self.admission.reloaded && !observes {
            if let Some(resolution) = self.whatever_it_is(run, ending, Some(&catalog))? {
                return Ok(resolution);
            }
            self.begin_loading(Some(catalog));
            return Err(Untold::Later);
        }
        let resolution = Arc::new(resolution);
        // A long text is full of data and comes once.
        let short = run.statement.span.len() <= TEXT_BYTES_CACHED_MAX;
        if alone && !resolution.missing && short {
            if self.resolved.known.len() >= RESOLVED_MAX {
                self.resolved.known.clear();
            }
            let kept = Kept {
                key: key(run),
                resolution: Arc::clone(&resolution),
                _statement: Arc::clone(&run.statement),
                _path: run.search_path.clone(),
            };
            self.resolved.known.push(kept);
        }
        Ok(resolution)
    }

    /// Whether the session has made nothing that no catalog tells, and its names are known.
    fn has_defined_nothing(&self, ending: &Ending) -> bool {
        let on_its_way = ending.distrusts || ending.defines || !ending.made.is_empty();
        // What runs before it may take as long as others need to make something of its name; what
        // ran while the catalog was loaded may have, too.
        let waits = ending.later || !self.core.is_quiet() || !self.admission.was_quiet;
        !on_its_way
            && !waits
            && !self.shadowed
            && self.created.is_empty()
            && self.effects.are_none()
    }

    /// What a run needs at most, where its tickets are enough for that: it passes also where no
    /// catalog newer than `seen` is to be had soon. What may act waits a moment for one: behind
    /// what acts little is known of the session, and no catalog is right.
    fn whatever_it_is(
        &mut self,
        run: &Run,
        ending: &mut Ending,
        seen: Option<&Arc<Catalog>>,
    ) -> Result<Option<Arc<Resolution>>, Untold> {
        // What no rule covers may have to be refused all the same.
        let rules = &self.listener.config.rules;
        let rejects = rules.may_reject(&self.identity.database);
        let unfit = matches!(self.standing, Standing::Unfit(_));
        // An outdated catalog does not tell that a view has come to act.
        if rejects || unfit || self.names_matter(run) {
            return Ok(None);
        }
        let Ok(locks) = self.locks_of_anything(run) else {
            return Ok(None);
        };
        let claims = match self.claims_of(run) {
            Ok(claims) => claims,
            // It may still be enough for what the run really needs.
            Err(Untold::Refused(_)) => return Ok(None),
            Err(untold) => return Err(untold),
        };
        if missing(&locks, &claims).is_some() {
            return Ok(None);
        }
        if self.may_be_foreign(run)? {
            return Ok(None);
        }
        let acts = statements(run).find_map(|it| it.uses.everything);
        let may = acts.is_none() && statements(run).any(may_act);
        if may && self.waits_for_catalog() {
            self.begin_loading_soon(seen.cloned());
            return Err(Untold::Later);
        }
        ending.provisional = true;
        Ok(Some(Arc::new(Resolution {
            required: Required::Write(locks),
            missing: false,
            everything: acts.or(may.then_some(GUESSED)),
            foreign: false,
            by_definition: false,
        })))
    }

    /// Whether what may act waits for a catalog, where its tickets are enough for whatever it does:
    /// not behind one that did not come, nor while others act all the time.
    fn waits_for_catalog(&self) -> bool {
        !self.admission.without_catalog && !self.database.is_changing()
    }

    /// Whether what a run's names do is to be known: views may act, and change what later names
    /// mean. Where rules are for the whole database, no name changes what is needed.
    fn names_matter(&self, run: &Run) -> bool {
        let rules = &self.listener.config.rules;
        rules.depend_on_names(&self.identity.database) && names(run)
    }

    /// Whether a run may do anything by what its names did before the open transaction. Where they
    /// do not matter, and no catalog is to be had soon, what may do it counts.
    pub(super) fn acts_by_catalog(&mut self, run: &Run, ending: &Ending) -> Result<bool, Untold> {
        let enforces = self.listener.config.mode == Mode::Enforce;
        let catalog = match self.known_catalog() {
            Some(catalog) => catalog,
            None if enforces && self.names_matter(run) => self.loaded_catalog()?,
            None if !statements(run).any(may_act) => return Ok(false),
            None if !enforces || !self.waits_for_catalog() => return Ok(true),
            None => {
                self.begin_loading_soon(None);
                return Err(Untold::Later);
            }
        };
        let resolution = self.resolved_by(&catalog, run, &ending.created);
        Ok(resolution.everything.is_some())
    }

    /// What a run needs by this catalog, beside these tables.
    pub(super) fn resolved_by(
        &self,
        catalog: &Catalog,
        run: &Run,
        made: &[RelationName],
    ) -> Resolution {
        let view = View {
            catalog,
            database: &self.identity.database,
            user: &self.user,
            search_path: run.search_path.as_deref(),
            temporary: if self.shadowed { &[] } else { &self.temporary },
            shadowed: if self.shadowed { &self.temporary } else { &[] },
            definitions: self.defined.all(),
            made,
            redefined: false,
            sure: false,
        };
        let rules = &self.listener.config.rules;
        resolve(&run.statement, &run.executed, &view, rules)
    }

    /// Whether a run may change rows of another server, which is to be refused.
    fn may_be_foreign(&mut self, run: &Run) -> Result<bool, Untold> {
        let refuses = self.listener.config.rules.foreign_writes() == ForeignWrites::Refuse;
        let mut targets = statements(run).flat_map(|it| &it.uses.targets);
        if !refuses || !targets.any(|it| it.effect.changes_rows()) {
            return Ok(false);
        }
        Ok(self.foreign_tables()? == ForeignTables::There)
    }

    /// Whether a temporary name of the session's may stand for something else behind a statement.
    pub(super) fn shadows(&self, statement: &Statement, ending: &Ending) -> bool {
        let mut temporary = self.temporary.iter().chain(&ending.temporary);
        let targets = &statement.uses.targets;
        let named = temporary.any(|name| targets.iter().any(|it| it.relation.name == *name));
        shadows_temporary(statement) && (named || statement.uses.everything.is_some())
    }

    /// Whether a statement drops temporary tables of the session, and nothing that is another's.
    pub(super) fn drops_own(&self, statement: &Statement) -> bool {
        let Some(catalog) = self.known_catalog().filter(|_| !self.shadowed) else {
            return false;
        };
        let is_own = |name: &RelationName| {
            let known = self.temporary.contains(&name.name) && name.schema.is_none();
            known && catalog.named(&name.name).all(|it| it.temporary)
        };
        let targets = &statement.uses.targets;
        drops(statement) && !targets.is_empty() && targets.iter().all(|it| is_own(&it.relation))
    }

    /// Something may have put something else in the place of temporary names.
    pub(super) fn shadow(&mut self) {
        if !std::mem::replace(&mut self.shadowed, true) {
            self.resolved.forget();
        }
    }

    /// Notes the relations that a forwarded message makes.
    pub(super) fn note_made(&mut self, ending: Ending, span: SpanId) {
        self.note_definitions(ending.definitions, span);
        self.made = ending.made;
        self.created = ending.created;
        if ending.shadows {
            self.shadow();
        }
        for name in ending.temporary {
            // Beyond the bound their writes ask for more than they need.
            if self.temporary.len() < TEMPORARY_MAX && !self.temporary.contains(&name) {
                self.temporary.push(name);
            }
        }
    }
}

/// Follows all tables that a transaction creates, behind one more statement: whatever becomes of
/// them, no name that the catalog does not have means anything else.
pub(super) fn follow_created(created: &mut Vec<RelationName>, statement: &Statement) {
    let [target] = statement.uses.targets.as_slice() else {
        return;
    };
    let creates = target.effect == Effect::Create { temporary: false };
    let plain = statement.operation == "CREATE TABLE" && !statement.uses.if_not_exists;
    if creates && plain && created.len() < MADE_MAX {
        created.push(target.relation.clone());
    }
}

/// Whether a run names relations.
fn names(run: &Run) -> bool {
    let mut uses = statements(run).map(|it| &it.uses);
    uses.any(|it| !it.targets.is_empty() || !it.reads.is_empty())
}

/// What a run is, with what it executes.
pub(super) fn statements(run: &Run) -> impl Iterator<Item = &Statement> {
    run.executed.iter().chain([&run.statement]).map(|it| &**it)
}

/// Whether a statement may call a function, by its names or where none is written. A definition
/// that only names things calls none; one that has texts has the server make values of them.
fn may_act(statement: &Statement) -> bool {
    // In what they compute, ALTER TABLE and CREATE INDEX look at the rows that there are.
    const COMPUTE: [&str; 2] = ["ALTER TABLE", "CREATE INDEX"];
    let uses = &statement.uses;
    let analysed = uses.analysed.as_deref();
    let prepared = match &statement.class {
        Class::Session(SessionControl::Prepare { statement, .. }) => Some(&statement.uses),
        _ => None,
    };
    let mut looked_at = analysed.into_iter().chain(prepared).chain([uses]);
    let makes_values = uses.unread_texts || looked_at.any(|it| it.texts || it.nulls);
    let changes = uses.targets.iter().any(|it| it.effect.changes_rows());
    let named = !uses.reads.is_empty() || !uses.functions.is_empty();
    let typed = !uses.casts.is_empty() || !uses.types.is_empty() || !uses.attributes.is_empty();
    let runs = named || typed || changes || !uses.operators.is_empty() || makes_values;
    let computes = COMPUTE.contains(&statement.operation);
    !statement.runs_no_code() && (runs || computes || statement.executes.is_some())
}

/// Whether a statement only drops, however far that reaches.
pub(super) fn drops(statement: &Statement) -> bool {
    statement.operation == "DROP"
}

/// Whether a statement changes the catalog by itself. A function or a procedure may do so, too.
pub(super) fn defines(statement: &Statement) -> bool {
    const TEMPORARY: Effect = Effect::Create { temporary: true };
    const LASTING: Effect = Effect::Create { temporary: false };
    let targets = &statement.uses.targets;
    if !targets.is_empty() && targets.iter().all(|target| target.effect == TEMPORARY) {
        return false;
    }
    const NAMED: [&str; 6] = ["CREATE", "ALTER", "DROP", "IMPORT", "DDL", "DO"];
    if statement.is_of_server() {
        return false;
    }
    let word = |word: &str| {
        let rest = statement.operation.strip_prefix(word);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    NAMED.into_iter().any(word)
        || targets.iter().any(|target| target.effect == LASTING)
        || matches!(statement.class, Class::Unknown(_))
}

/// Whether a statement makes a type, and nothing else: no name that is there means anything else.
/// Where values of some type act, a row of theirs may do so by any name.
pub(super) fn makes_type(statement: &Statement, catalog: &Catalog) -> bool {
    let only = statement.uses.everything.is_none() && statement.uses.targets.is_empty();
    let only = only && !redefines(statement);
    statement.operation == "CREATE TYPE" && only && !catalog.reading_values_acts()
}

/// Whether a statement may change what existing names mean or do: a rule, a view, a function. Until
/// it is committed no catalog tells of it.
pub(super) fn shifts(statement: &Statement) -> bool {
    const PLAIN: [&str; 10] = [
        "CREATE TABLE",
        "CREATE TABLE AS",
        "CREATE INDEX",
        "CREATE SEQUENCE",
        "CREATE SCHEMA",
        "CREATE PUBLICATION",
        "ALTER DEFAULT PRIVILEGES",
        "DROP",
        "SELECT",
        "COMMENT",
    ];
    // Parts that leave what the names of others reach as it is.
    const KEEPING: [&str; 5] = [
        "ALTER TABLE",
        "ALTER",
        "ALTER SEQUENCE",
        "CREATE ENUM",
        "ALTER ENUM",
    ];
    let keeps = KEEPING.contains(&statement.operation);
    if keeps && !redefines(statement) {
        return false;
    }
    let alone = statement.uses.targets.len() == 1 || statement.operation != "CREATE TABLE";
    defines(statement) && !(alone && PLAIN.contains(&statement.operation))
}

/// Whether a statement names anything but tables that its transaction has made.
pub(super) fn names_existing(statement: &Statement, made: &[RelationName]) -> bool {
    let uses = &statement.uses;
    let is_made = |name: &RelationName| made.contains(name);
    let relations = uses.targets.iter().map(|target| &target.relation);
    let mut relations = relations.chain(&uses.reads);
    !relations.all(is_made)
        || !uses.functions.is_empty()
        || !uses.operators.is_empty()
        || !uses.casts.is_empty()
        || !uses.types.is_empty()
        || !uses.attributes.is_empty()
        || uses.everything.is_some()
        || statement.executes.is_some()
}
