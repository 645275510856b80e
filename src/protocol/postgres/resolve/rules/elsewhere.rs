//! What statements are about beside the database that they run in.

use super::{Covers, PostgresRules, Required, UNTOLD};
use crate::lock_name::LockName;
use crate::protocol::postgres::classify::Statement;

impl PostgresRules {
    /// What a run of these statements asks for of which nothing is known but their text and their
    /// database ([`PostgresRules::everything`]): the locks of all databases that they are about.
    pub fn everything_of<'s>(
        &self,
        database: &str,
        statements: impl Iterator<Item = &'s Statement>,
    ) -> Required {
        let mut needed = self.everything(database);
        for statement in statements {
            let Required::Write(locks) = &mut needed else {
                return needed;
            };
            let uses = &statement.uses;
            let made = uses.makes_database.as_slice();
            let added = self.add_elsewhere(&uses.databases, made, uses.every_database, locks);
            if let Err(why) = added {
                return Required::Unclassified(why);
            }
            locks.sort_unstable();
            locks.dedup();
        }
        needed
    }

    /// Adds the locks of what a write is about that runs in whichever database.
    pub(super) fn add_elsewhere(
        &self,
        databases: &[Box<str>],
        made: &[Box<str>],
        every_database: bool,
        locks: &mut Vec<LockName>,
    ) -> Result<(), &'static str> {
        for database in databases {
            self.add_all(database, locks)?;
        }
        for database in made {
            self.add(database, |rule| rule.covers == Covers::Database, locks)?;
        }
        for rule in self.rules.iter().filter(|_| every_database) {
            locks.push(rule.lock.fixed().ok_or(UNTOLD)?.clone());
        }
        Ok(())
    }
}
