//! The keys that the proxies keep in the backend itself, so that several proxies in front of one
//! server share their watermarks.
//!
//! Commands of clients neither see nor erase them: a command that names such a key, or a pattern
//! that can lead to one, is refused; what lists keys is filtered; what wipes the database that they
//! are in, or swaps it, is refused. A name under the prefix is refused in every database, or a key
//! could be forged in one and moved to another. What the server tells of them by itself (key space
//! notifications, invalidations) and in its logs is filtered; `MONITOR`, which tells all, is
//! refused, and so is a policy of eviction that would take them. Commands that reach every key past
//! their names are refused even where the operator permits them otherwise.
//!
//! What is left: `DBSIZE`, `INFO keyspace`, `MEMORY STATS` and `SLOWLOG LEN` count them, and a
//! script can compute any name: scripts are refused, unless the operator trusts them.

use super::args::Args;
use super::class::{Class, Reach};
use super::database::Databases;
use super::key_spec::Home;
use super::table::Command;
use super::treatment::{Special, Treatment};
use crate::protocol::{Kind, Refusal};

/// Keys of the proxies in the backend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReservedKeys {
    /// Their names begin so. Not empty.
    pub prefix: Box<[u8]>,
    /// The database that they are in.
    pub database: u32,
    /// What becomes of scripts and functions, which can reach keys that they do not declare.
    pub scripts: Scripts,
}

/// Whether scripts are let through where the backend has keys of the proxies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scripts {
    /// They are refused.
    #[default]
    Refused,
    /// They are trusted to touch no key that they do not declare.
    Trusted,
}

/// Denied commands that would reach the keys were they permitted.
const REACH_EVERY_KEY: &[&str] = &[
    "cluster|getkeysinslot",
    "debug",
    "failover",
    "migrate",
    "module|load",
    "module|loadex",
    "pfdebug",
    "psync",
    "replconf",
    "replicaof",
    "restore-asking",
    "script|debug",
    "slaveof",
    "sync",
];

impl ReservedKeys {
    /// Refuses what would see or change one.
    pub(super) fn check(
        &self,
        command: &Command,
        args: &Args<'_>,
        class: &Class<'_>,
        databases: &Databases,
    ) -> Result<(), Refusal> {
        let refuse = |detail: &'static str| Err(Refusal::unclassified(detail));
        if class.keys.iter().any(|key| self.is(key.key)) {
            return refuse("the key is one of the proxy's own");
        }
        if class
            .patterns
            .iter()
            .any(|pattern| self.may_be_meant(pattern))
        {
            return refuse("the pattern may lead to the proxy's own keys");
        }
        let touched = match class.reach {
            Reach::Keys => false,
            // Settings and libraries are no keys.
            Reach::Server => matches!(&*command.name, "flushall"),
            Reach::Databases(one, other) => [one, other].iter().any(|home| match home {
                Home::Current => databases.may_be(self.database),
                Home::Other(index) => *index == self.database,
                Home::Any => true,
            }),
        };
        if touched {
            return refuse("the database has keys of the proxy's own");
        }
        let script = matches!(
            command.treatment,
            Some(Treatment::Special(Special::Eval { .. }))
        );
        if script && self.scripts == Scripts::Refused {
            return refuse("a script can reach the proxy's own keys without naming them");
        }
        if command.treatment == Some(Treatment::Special(Special::Monitor)) {
            return refuse("it shows the proxy's own keys");
        }
        if REACH_EVERY_KEY.contains(&&*command.name) {
            return refuse("it reaches the proxy's own keys, whatever it is permitted for");
        }
        if &*command.name == "config|set" && sets_eviction(args) {
            return refuse("this policy would evict the proxy's own keys");
        }
        // Of a module, or of nobody: it may do anything.
        if class.kind == Kind::Write && class.reach == Reach::Server && command.treatment.is_none()
        {
            return refuse("it may change the proxy's own keys");
        }
        Ok(())
    }

    /// Whether a key is one of them.
    pub fn is(&self, key: &[u8]) -> bool {
        key.starts_with(&self.prefix)
    }

    /// Whether `BY` or `GET` of `SORT` can lead to one: `*` in the pattern is replaced by an
    /// element, and `->field` may follow.
    fn may_be_meant(&self, pattern: &[u8]) -> bool {
        let star = pattern.iter().position(|&byte| byte == b'*');
        match star {
            None => self.is(pattern),
            Some(star) => {
                let fixed = &pattern[..star];
                fixed.starts_with(&self.prefix) || self.prefix.starts_with(fixed)
            }
        }
    }
}

/// Whether `CONFIG SET name value...` lets the server evict keys that do not expire.
fn sets_eviction(args: &Args<'_>) -> bool {
    let settings: Vec<&[u8]> = args.iter().skip(2).collect();
    let evicts = |pair: &[&[u8]]| {
        let value = pair
            .get(1)
            .copied()
            .unwrap_or_default()
            .to_ascii_lowercase();
        pair[0].eq_ignore_ascii_case(b"maxmemory-policy") && value.starts_with(b"allkeys")
    };
    // Of what has not come yet it cannot be told.
    !args.is_complete() || settings.chunks(2).any(evicts)
}
