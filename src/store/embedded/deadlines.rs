//! When each session ends unless it is renewed: in memory only, so that a renewal costs no write.
//! After a restart every session has its whole time to live again.
//!
//! Measured on CLOCK_BOOTTIME, as the holders' own deadlines are: a lease goes on ending while the
//! machine is suspended.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::clock::Instant;

/// The deadlines of all live sessions.
#[derive(Default, Debug)]
pub struct Deadlines {
    sessions: HashMap<u64, (Duration, Instant)>,
    order: BTreeSet<(Instant, u64)>,
}

impl Deadlines {
    /// Gives a session its whole time to live from now.
    pub fn start(&mut self, id: u64, ttl: Duration, now: Instant) {
        self.end(id);
        self.sessions.insert(id, (ttl, now + ttl));
        self.order.insert((now + ttl, id));
    }

    /// Renews. A session past its deadline that nobody has removed yet still counts: its entries
    /// stand.
    pub fn renew(&mut self, id: u64, now: Instant) -> Option<Duration> {
        let (ttl, _) = *self.sessions.get(&id)?;
        self.start(id, ttl, now);
        Some(ttl)
    }

    /// Forgets a session.
    pub fn end(&mut self, id: u64) {
        if let Some((_, deadline)) = self.sessions.remove(&id) {
            self.order.remove(&(deadline, id));
        }
    }

    /// Whether any session is past its deadline.
    pub fn any_overdue(&self, now: Instant) -> bool {
        self.order
            .first()
            .is_some_and(|(deadline, _)| *deadline <= now)
    }

    /// Takes out the sessions past their deadline, at most so many: no renewal finds them any more.
    pub fn take_overdue(&mut self, now: Instant, count_max: usize) -> Vec<u64> {
        let mut overdue = Vec::new();
        while overdue.len() < count_max && self.any_overdue(now) {
            if let Some((_, id)) = self.order.pop_first() {
                self.sessions.remove(&id);
                overdue.push(id);
            }
        }
        overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_gives_the_whole_time_again_and_the_overdue_are_past_renewing() {
        let at = Instant::from_millis;
        let ttl = Duration::from_millis(100);
        let mut deadlines = Deadlines::default();
        deadlines.start(1, ttl, at(0));
        deadlines.start(2, ttl, at(0));
        assert_eq!(deadlines.renew(1, at(90)), Some(ttl));
        assert!(!deadlines.any_overdue(at(99)));
        assert_eq!(deadlines.take_overdue(at(100), 10), [2]);
        assert_eq!(deadlines.renew(2, at(100)), None);
        assert_eq!(deadlines.take_overdue(at(190), 10), [1]);
        assert_eq!(deadlines.renew(3, at(0)), None);
    }
}
