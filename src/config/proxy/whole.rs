//! What concerns all listeners of a proxy together: the locks that it registers for, and what of a
//! valid file its operator should know.

use std::collections::HashSet;

use super::{Mode, ProxyConfig, TicketSource};
use crate::lock_name::{LockPattern, PATTERNS_MAX};

impl ProxyConfig {
    /// The lock patterns that the rules of the listeners in these modes name, each once.
    pub fn lock_patterns(&self, wanted: impl Fn(Mode) -> bool) -> Vec<LockPattern> {
        let listeners = self.listeners.iter();
        let named = listeners.map(|it| (it.mode, it.rules.lock_patterns()));
        let redis = self.redis.iter();
        let named = named.chain(redis.map(|it| (it.mode, it.rules.lock_patterns())));
        #[cfg(feature = "postgres")]
        let named = {
            let postgres = self.postgres.iter();
            named.chain(postgres.map(|it| (it.mode, it.rules.lock_patterns())))
        };
        let mut seen = HashSet::new();
        let mut patterns = vec![];
        for (_, of_listener) in named.filter(|(mode, _)| wanted(*mode)) {
            for pattern in of_listener {
                if seen.insert(pattern.as_str().to_owned()) {
                    patterns.push(pattern);
                }
            }
        }
        patterns
    }

    /// Why the lock service would not register it, if it would not.
    pub(super) fn check_patterns(&self) -> Result<(), String> {
        let count = self.lock_patterns(|_| true).len();
        if matches!(self.tickets, TicketSource::Lockd(_)) && count > PATTERNS_MAX {
            return Err(format!(
                "the rules name {count} different patterns of locks: a proxy registers at most \
                 {PATTERNS_MAX} with its lock service; captures (`tenant/{{id}}`) make one of many"
            ));
        }
        Ok(())
    }

    /// What may surprise whoever runs it, one line each.
    pub fn warnings(&self) -> Vec<String> {
        let observed = self.lock_patterns(|mode| mode == Mode::Observe);
        if observed.is_empty() || !matches!(self.tickets, TicketSource::Lockd(_)) {
            return vec![];
        }
        let names: Vec<&str> = observed.iter().map(LockPattern::as_str).collect();
        vec![format!(
            "mode = \"observe\" enforces nothing, so that no grant of these locks can be sealed \
             here, and none is told unless the lock service seals them with mode = \
             \"best-effort\": {}",
            names.join(" ")
        )]
    }
}
