//! Tables of other servers of which no catalog tells yet: what the open transaction has made, or
//! has put in the place of another. Where writes to such tables are refused, these are too, and
//! what cannot be told from them.
//!
//! What a function or a code block writes by itself is not looked into; that it may have made a
//! table is.

use std::sync::Arc;

use super::Session;
use super::effects::Ending;
use super::resolved::{drops, statements};
use super::weigh::Untold;
use crate::config::Mode;
use crate::protocol::Refusal;
use crate::protocol::postgres::classify::{Class, Effect, RelationName, Statement};
use crate::protocol::postgres::resolve::{Catalog, ForeignTables, ForeignWrites, RelationKind};
use crate::protocol::postgres::session::Run;

/// Which names may mean a table of another server though the catalog does not say so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum Unseen {
    /// None.
    #[default]
    Nothing,
    /// Those that the catalog does not know, and views.
    NewNames,
    /// Any.
    AnyName,
}

const UNSEEN: &str = "what this transaction has defined may lead the write to a foreign table, and \
     may be applied there after its session is gone: commit the definition before, or see \
     `foreign_writes`";

impl Session {
    /// Refuses a write that may reach a table of another server by what the transaction has defined
    /// before. `shifted`: its names were not resolved, since they may mean something else.
    pub(super) fn check_unseen(
        &mut self,
        run: &Run,
        ending: &Ending,
        shifted: bool,
    ) -> Result<(), Untold> {
        let unseen = ending.unseen.max(self.effects.unseen());
        let mut targets = statements(run).flat_map(|it| &it.uses.targets);
        let writes = targets.any(|it| it.effect.changes_rows());
        if !self.refuses_foreign() || !writes || !shifted && unseen == Unseen::Nothing {
            return Ok(());
        }
        let makes = ending.makes_foreign || self.effects.makes_foreign();
        let may_be = match self.foreign_tables()? {
            ForeignTables::There => true,
            ForeignTables::Possible => makes,
            ForeignTables::Impossible => false,
        };
        if !may_be {
            return Ok(());
        }
        let catalog = self.loaded_catalog()?;
        // By what its names meant before.
        if shifted && self.resolved_by(&catalog, run, &ending.made).foreign {
            return Err(Refusal::unclassified(UNSEEN).into());
        }
        let targets = statements(run).flat_map(|it| &it.uses.targets);
        let mut written = targets.filter(|it| it.effect.changes_rows());
        let refused = written.any(|target| {
            let named = Named::find(&target.relation, &catalog);
            let own = ending.made.contains(&target.relation)
                || !self.shadowed && self.temporary.contains(&target.relation.name);
            match unseen {
                _ if named == Named::Nothing && own => false,
                Unseen::Nothing => false,
                Unseen::NewNames => named != Named::Tables,
                Unseen::AnyName => true,
            }
        });
        match refused {
            false => Ok(()),
            true => Err(Refusal::unclassified(UNSEEN).into()),
        }
    }

    /// Which names may mean a table of another server behind a run. `acts`: it may do anything.
    pub(super) fn unseen_behind(
        &mut self,
        run: &Run,
        ending: &Ending,
        acts: bool,
    ) -> Result<Unseen, Untold> {
        if !self.refuses_foreign() {
            return Ok(Unseen::Nothing);
        }
        let mut unseen = Unseen::Nothing;
        for statement in statements(run) {
            let uses = &statement.uses;
            unseen = unseen.max(match statement.operation {
                "CREATE FOREIGN TABLE" | "IMPORT FOREIGN SCHEMA" | "DO" => Unseen::AnyName,
                "ALTER" if uses.everything.is_some() => Unseen::AnyName,
                "ALTER" | "ALTER TABLE" if uses.redefines || moves(statement) => {
                    self.moved(statement, ending)?
                }
                "CREATE VIEW" => Unseen::NewNames,
                _ if matches!(statement.class, Class::Unknown(_)) => Unseen::AnyName,
                _ => Unseen::Nothing,
            });
        }
        match acts && !drops(&run.statement) {
            true => Ok(unseen.max(Unseen::NewNames)),
            false => Ok(unseen),
        }
    }

    /// What is attached, renamed or moved may be a table of another server.
    fn moved(&mut self, statement: &Statement, ending: &Ending) -> Result<Unseen, Untold> {
        let makes = ending.makes_foreign || self.effects.makes_foreign();
        match self.foreign_tables()? {
            ForeignTables::There => {}
            ForeignTables::Possible if makes => {}
            ForeignTables::Possible | ForeignTables::Impossible => return Ok(Unseen::Nothing),
        }
        let catalog = self.loaded_catalog()?;
        let targets = &statement.uses.targets;
        let foreign = targets
            .iter()
            .any(|target| match Named::find(&target.relation, &catalog) {
                Named::Foreign => true,
                Named::Nothing => makes && !ending.made.contains(&target.relation),
                Named::Views | Named::Tables => false,
            });
        Ok(match foreign {
            true => Unseen::AnyName,
            false => Unseen::Nothing,
        })
    }

    fn refuses_foreign(&self) -> bool {
        let config = &self.listener.config;
        config.rules.foreign_writes() == ForeignWrites::Refuse && config.mode == Mode::Enforce
    }

    /// Whether the database has tables of other servers.
    pub(super) fn foreign_tables(&mut self) -> Result<ForeignTables, Untold> {
        let told = self.admission.foreign;
        match told.or_else(|| self.database.foreign_tables()) {
            Some(told) => Ok(told),
            None => {
                self.begin_asking_foreign();
                Err(Untold::Later)
            }
        }
    }

    pub(super) fn loaded_catalog(&mut self) -> Result<Arc<Catalog>, Untold> {
        match self.known_catalog() {
            Some(catalog) => Ok(catalog),
            None => {
                self.begin_loading(None);
                Err(Untold::Later)
            }
        }
    }
}

/// What the catalog has under a name: the first that holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Named {
    Nothing,
    Foreign,
    Views,
    Tables,
}

impl Named {
    fn find(name: &RelationName, catalog: &Catalog) -> Named {
        let schema = name.schema.as_deref();
        let mut kinds = catalog
            .named(&name.name)
            .filter(|it| schema.is_none_or(|schema| schema == &*it.schema))
            .map(|it| it.kind)
            .peekable();
        if kinds.peek().is_none() {
            return Named::Nothing;
        }
        kinds.fold(Named::Tables, |found, kind| match (found, kind) {
            (_, RelationKind::ForeignTable) | (Named::Foreign, _) => Named::Foreign,
            (_, RelationKind::View) => Named::Views,
            _ => found,
        })
    }
}

/// Whether a statement gives something another name.
fn moves(statement: &Statement) -> bool {
    let mut targets = statement.uses.targets.iter();
    targets.any(|target| target.effect == Effect::Move)
}
