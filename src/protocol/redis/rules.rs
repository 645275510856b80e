//! The rules of a Redis listener: which keys which locks guard.
//!
//! All rules that cover a key apply. A write to whole databases needs the lock of every rule that
//! is about them; where such a rule takes its lock from the key there is no end of locks, and the
//! write is refused.

use super::class::{Class, Reach};
use super::database::Databases;
use super::key_pattern::{KeyMatch, KeyPattern};
use super::key_spec::{Home, KeyUse};
use super::overrides;
use super::reserved::ReservedKeys;
use super::treatment::Treatment;
use crate::lock_name::{LockName, LockPattern};
use crate::protocol::pattern::{Captures, InvalidPattern, LockTemplate};
use crate::protocol::{Kind, Refusal, Unmatched};

/// One rule: these keys are guarded by this lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisRule {
    key: KeyPattern,
    lock: LockTemplate,
    database: Option<u32>,
}

impl RedisRule {
    /// The keys, the lock that guards them, and the one database that the rule is about; none: all
    /// databases.
    pub fn new(key: &str, lock: &str, database: Option<u32>) -> Result<RedisRule, InvalidPattern> {
        let key = KeyPattern::new(key)?;
        let lock = LockTemplate::new(lock, key.captures())?;
        Ok(RedisRule {
            key,
            lock,
            database,
        })
    }

    fn is_about(&self, databases: &Databases) -> bool {
        self.database.is_none_or(|index| databases.may_be(index))
    }
}

/// The rules of a Redis listener.
#[derive(Clone, Debug, Default)]
pub struct RedisRules {
    rules: Vec<RedisRule>,
    unmatched: Unmatched,
    /// Commands that are let through though they are denied by default.
    permitted: Vec<Box<str>>,
    reserved: Option<ReservedKeys>,
}

impl RedisRules {
    /// These rules.
    pub fn new(rules: Vec<RedisRule>, unmatched: Unmatched) -> RedisRules {
        RedisRules {
            rules,
            unmatched,
            ..RedisRules::default()
        }
    }

    /// Lets commands through that are denied by default, named as `client|kill`.
    pub fn with_permitted(self, names: &[&str]) -> Result<RedisRules, InvalidPattern> {
        let check = |name: &&str| {
            let denied = overrides::all()
                .any(|known| known.name == *name && known.treatment == Treatment::Denied);
            denied
                .then(|| (*name).into())
                .ok_or_else(|| InvalidPattern {
                    what: "command",
                    text: (*name).to_owned(),
                    reason: "it is not one that is denied by default".to_owned(),
                })
        };
        Ok(RedisRules {
            permitted: names.iter().map(check).collect::<Result<_, _>>()?,
            ..self
        })
    }

    /// Hides and protects the keys that the proxies keep in the backend.
    pub fn with_reserved(self, reserved: ReservedKeys) -> RedisRules {
        RedisRules {
            reserved: Some(reserved),
            ..self
        }
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

    /// Whether any write can be refused here for its locks.
    pub fn guards(&self) -> bool {
        !self.rules.is_empty() || self.unmatched == Unmatched::Reject
    }

    /// Whether every key of a database is under the same locks, and none is the proxies' own.
    pub(super) fn are_uniform(&self) -> bool {
        let uniform = |rule: &RedisRule| rule.key.is_every_key() && rule.lock.fixed().is_some();
        self.reserved.is_none() && self.rules.iter().all(uniform)
    }

    /// The beginning of the keys that clients must not see, where there are such.
    pub fn hidden_prefix(&self) -> Option<Box<[u8]>> {
        self.reserved.as_ref().map(|keys| keys.prefix.clone())
    }

    pub(super) fn permits(&self, name: &str) -> bool {
        self.permitted.iter().any(|known| **known == *name)
    }

    pub(super) fn reserved(&self) -> Option<&ReservedKeys> {
        self.reserved.as_ref()
    }

    /// The locks of a command, sorted, each once: for a write those that it needs, for a read
    /// those that its keys are under.
    pub(super) fn locks(
        &self,
        class: &Class<'_>,
        databases: &Databases,
    ) -> Result<Vec<LockName>, Refusal> {
        let mut locks = vec![];
        if !self.guards() {
            return Ok(locks);
        }
        match (class.kind, class.reach) {
            (Kind::Read, _) => {
                for key in &class.keys {
                    // A read needs no lock: what names none is left out.
                    let _ = self.cover(key, databases, &mut locks);
                }
            }
            (Kind::Write, Reach::Keys) => {
                let mut covered = true;
                for key in class.keys.iter().filter(|key| key.written) {
                    covered &= self.cover(key, databases, &mut locks)?;
                }
                covered &= !class.keys.is_empty();
                if !covered && self.unmatched == Unmatched::Reject {
                    return Err(Refusal::unclassified("no rule covers this write"));
                }
            }
            (Kind::Write, Reach::Databases(one, other)) => {
                for home in [one, other] {
                    self.cover_all(&databases_of(home, databases), &mut locks)?;
                }
            }
            (Kind::Write, Reach::Server) => self.cover_all(&Databases::ANY, &mut locks)?,
        }
        if locks.len() > 1 {
            locks.sort_unstable();
            locks.dedup();
        }
        Ok(locks)
    }

    /// Adds the locks of the rules that cover a key. False: there is none.
    fn cover(
        &self,
        key: &KeyUse<'_>,
        databases: &Databases,
        locks: &mut Vec<LockName>,
    ) -> Result<bool, Refusal> {
        let databases = databases_of(key.home, databases);
        let mut covered = false;
        for rule in self.rules.iter().filter(|rule| rule.is_about(&databases)) {
            let captures = match rule.key.matches(key.key) {
                KeyMatch::No => continue,
                KeyMatch::EmptyCapture => {
                    return Err(Refusal::unclassified(
                        "a part of the key that names the lock is empty",
                    ));
                }
                KeyMatch::Yes(captures) => captures,
            };
            covered = true;
            if let Some(lock) = rule.lock.fixed() {
                locks.push(lock.clone());
                continue;
            }
            let texts = captures.as_slice().iter();
            let lock = texts
                .map(|text| std::str::from_utf8(text).ok())
                .collect::<Option<Vec<_>>>()
                .and_then(|texts| rule.lock.build(&Captures::of(&texts)).ok());
            locks.push(
                lock.ok_or_else(|| Refusal::unclassified("the key gives no valid lock name"))?,
            );
        }
        Ok(covered)
    }

    /// Adds the locks of all rules that are about these databases.
    fn cover_all(&self, databases: &Databases, locks: &mut Vec<LockName>) -> Result<(), Refusal> {
        let mut covered = false;
        for rule in self.rules.iter().filter(|rule| rule.is_about(databases)) {
            let lock = rule.lock.fixed().ok_or_else(|| {
                Refusal::unclassified(format!(
                    "it may write to any key, and the locks of the rule `{}` have no end",
                    rule.key
                ))
            })?;
            locks.push(lock.clone());
            covered = true;
        }
        if !covered && self.unmatched == Unmatched::Reject {
            return Err(Refusal::unclassified("no rule covers this write"));
        }
        Ok(())
    }
}

fn databases_of(home: Home, current: &Databases) -> Databases {
    match home {
        Home::Current => *current,
        Home::Other(index) => Databases::only(index),
        Home::Any => Databases::ANY,
    }
}
