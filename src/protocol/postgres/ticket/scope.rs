//! For how long a setting counts: the server's rules for parameters, as a stack.
//!
//! Of every setting there are two values: what counts now, and what will count after the
//! transaction. SET changes both, SET LOCAL the first. A savepoint remembers both and ROLLBACK TO
//! brings them back; a transaction that commits leaves the second, one that rolls back what was
//! before it. (PostgreSQL docs, SET, Notes; `AtEOXact_GUC` of the server's guc.c.)

use std::sync::Arc;

use super::Tickets;
use super::change::split_path;
use crate::protocol::postgres::classify::{Isolation, isolation as level_of};

/// Most savepoints of one transaction.
pub const SAVEPOINTS_MAX: usize = 65_536;

/// The settings that the proxy follows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// `ringfence.token`.
    pub tickets: Tickets,
    /// `search_path` as it was written; `None` where it is not known.
    pub search_path: Option<Arc<[Box<str>]>>,
    /// `default_transaction_isolation`.
    pub isolation: Isolation,
    /// SET ROLE or SET SESSION AUTHORIZATION ran: what `$user` in a path means is not known.
    pub role_changed: bool,
    /// Which of them are what a SET made them.
    pub(super) set: SetHere,
}

/// Whether a setting was set since the session began, or is back at its beginning. RESET ALL passes
/// over what is (`ResetAllOptions` of guc.c), so that after `SET LOCAL x TO DEFAULT; RESET ALL` an
/// earlier SET of `x` comes back at the end of the transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SetHere {
    pub(super) tickets: bool,
    pub(super) search_path: bool,
    pub(super) isolation: bool,
}

impl Settings {
    /// The path in which names are resolved, where it is known.
    pub fn known_path(&self) -> Option<Arc<[Box<str>]>> {
        let path = self.search_path.as_ref()?;
        let depends = self.role_changed && path.iter().any(|member| &**member == "$user");
        (!depends).then(|| Arc::clone(path))
    }

    /// Something may have set any of them but the tickets. What a RESET ALL brings back is known
    /// again then.
    pub fn distrust(&mut self) {
        self.search_path = None;
        self.isolation = Isolation::OneSnapshot;
        self.role_changed = true;
        self.set.search_path = true;
        self.set.isolation = true;
    }

    /// What a session begins with.
    pub fn new(
        tickets: Tickets,
        search_path: Option<Arc<[Box<str>]>>,
        isolation: Isolation,
    ) -> Settings {
        Settings {
            tickets,
            search_path,
            isolation,
            role_changed: false,
            set: SetHere::default(),
        }
    }

    /// What a session begins with, as the server's SHOW tells `search_path` and
    /// `default_transaction_isolation`. What was not told counts as the stricter.
    pub fn of_server(
        tickets: Tickets,
        search_path: Option<&str>,
        isolation: Option<&str>,
    ) -> Settings {
        let search_path = search_path.and_then(split_path);
        let isolation = isolation.map_or(Isolation::OneSnapshot, level_of);
        Settings::new(tickets, search_path, isolation)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Pair {
    now: Settings,
    after: Settings,
}

/// The settings of one session with what is to be taken back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scope {
    start: Settings,
    pair: Arc<Pair>,
    block: Option<Block>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Block {
    before: Arc<Pair>,
    savepoints: Vec<(Box<str>, Arc<Pair>)>,
}

/// A transaction has [`SAVEPOINTS_MAX`] savepoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a transaction has more than {SAVEPOINTS_MAX} savepoints")]
pub struct TooManySavepoints;

impl Scope {
    /// A session that begins with these.
    pub fn new(start: Settings) -> Scope {
        let pair = Pair {
            now: start.clone(),
            after: start.clone(),
        };
        Scope {
            start,
            pair: Arc::new(pair),
            block: None,
        }
    }

    /// What counts now.
    pub fn now(&self) -> &Settings {
        &self.pair.now
    }

    /// Whether this is the path that counts, whatever is rolled back or committed from here.
    pub fn has_only_path(&self, path: &[Box<str>]) -> bool {
        let same = |settings: &Settings| settings.known_path().as_deref() == Some(path);
        let block = self.block.iter();
        let saved = block.flat_map(|block| {
            let savepoints = block.savepoints.iter().map(|(_, pair)| pair);
            savepoints.chain([&block.before])
        });
        saved
            .chain([&self.pair])
            .all(|pair| same(&pair.now) && same(&pair.after))
    }

    /// What RESET returns to.
    pub fn start(&self) -> &Settings {
        &self.start
    }

    /// Whether a transaction is open, explicit or implicit.
    pub fn in_transaction(&self) -> bool {
        self.block.is_some()
    }

    /// SET, or SET LOCAL.
    pub fn set(&mut self, local: bool, change: impl Fn(&mut Settings)) {
        let pair = Arc::make_mut(&mut self.pair);
        change(&mut pair.now);
        if !local {
            change(&mut pair.after);
        }
    }

    /// A change that no rollback takes back: what a statement that commits inside may have done.
    pub fn set_for_good(&mut self, change: impl Fn(&mut Settings)) {
        self.set(false, &change);
        if let Some(block) = &mut self.block {
            let saved = block.savepoints.iter_mut().map(|(_, pair)| pair);
            for pair in saved.chain([&mut block.before]) {
                let pair = Arc::make_mut(pair);
                change(&mut pair.now);
                change(&mut pair.after);
            }
        }
    }

    /// RESET ALL and DISCARD ALL.
    pub fn reset_all(&mut self) {
        let (start, set) = (self.start.clone(), self.pair.now.set);
        self.set(false, |settings| {
            if set.tickets {
                settings.tickets = start.tickets.clone();
                settings.set.tickets = false;
            }
            if set.search_path {
                settings.search_path = start.search_path.clone();
                settings.set.search_path = false;
            }
            if set.isolation {
                settings.isolation = start.isolation;
                settings.set.isolation = false;
            }
        });
    }

    /// A transaction begins, unless one is open.
    pub fn begin(&mut self) {
        self.block.get_or_insert_with(|| Block {
            before: Arc::clone(&self.pair),
            savepoints: vec![],
        });
    }

    /// The transaction commits.
    pub fn commit(&mut self) {
        if self.block.take().is_some() && self.pair.now != self.pair.after {
            let pair = Arc::make_mut(&mut self.pair);
            pair.now = pair.after.clone();
        }
    }

    /// The transaction rolls back.
    pub fn rollback(&mut self) {
        if let Some(block) = self.block.take() {
            self.pair = block.before;
        }
    }

    /// SAVEPOINT.
    pub fn savepoint(&mut self, name: &str) -> Result<(), TooManySavepoints> {
        if let Some(block) = &mut self.block {
            if block.savepoints.len() >= SAVEPOINTS_MAX {
                return Err(TooManySavepoints);
            }
            let saved = (name.into(), Arc::clone(&self.pair));
            block.savepoints.push(saved);
        }
        Ok(())
    }

    /// RELEASE: the savepoint and those after it go, what was set stays.
    pub fn release(&mut self, name: &str) {
        if let Some(block) = &mut self.block
            && let Some(at) = innermost(&block.savepoints, name)
        {
            block.savepoints.truncate(at);
        }
    }

    /// How many savepoints are open.
    pub fn savepoints(&self) -> usize {
        self.block.as_ref().map_or(0, |it| it.savepoints.len())
    }

    /// How many were open before the one that a name means now.
    pub fn savepoints_before(&self, name: &str) -> Option<usize> {
        innermost(&self.block.as_ref()?.savepoints, name)
    }

    /// ROLLBACK TO: what was set after the savepoint goes; the savepoint stays.
    pub fn rollback_to(&mut self, name: &str) {
        if let Some(block) = &mut self.block
            && let Some(at) = innermost(&block.savepoints, name)
        {
            self.pair = Arc::clone(&block.savepoints[at].1);
            block.savepoints.truncate(at + 1);
        }
    }
}

/// A name that is used again hides the older one.
fn innermost(savepoints: &[(Box<str>, Arc<Pair>)], name: &str) -> Option<usize> {
    savepoints.iter().rposition(|(known, _)| **known == *name)
}
