//! How many sessions a lockd lets live: a limit, so that a client that opens one after the other
//! does not use up the store and its memory.
//!
//! Counted are those that this lockd has opened or renewed. Whether a session lives is the store's
//! to say; here it counts for its time to live from when it was last seen, by this process's own
//! clock, on which nothing else depends. A session that is there is never ended by the limit.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::lockd::status::Error;
use crate::store::SessionId;
use crate::telemetry;

/// How often the number is told where nothing changes it.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// The sessions of a lockd.
pub(super) struct Sessions {
    max: usize,
    counted: Mutex<Counted>,
}

#[derive(Default)]
struct Counted {
    /// Being opened.
    opening: usize,
    ends: HashMap<SessionId, Instant>,
    by_end: BTreeSet<(Instant, SessionId)>,
}

impl Counted {
    fn note(&mut self, session: SessionId, end: Instant) {
        if let Some(before) = self.ends.insert(session, end) {
            self.by_end.remove(&(before, session));
        }
        self.by_end.insert((end, session));
    }

    fn forget(&mut self, session: SessionId) {
        if let Some(end) = self.ends.remove(&session) {
            self.by_end.remove(&(end, session));
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some(&(end, session)) = self.by_end.first()
            && end <= now
        {
            self.forget(session);
        }
    }

    /// Those that live, and those that are about to.
    fn len(&self) -> usize {
        self.opening + self.ends.len()
    }
}

impl Sessions {
    /// None yet.
    pub(super) fn new(max: usize) -> Sessions {
        Sessions {
            max,
            counted: Mutex::default(),
        }
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        // Nothing panics while it is held.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one that is to be opened.
    pub(super) fn place(&self, now: Instant) -> Result<Place<'_>, Error> {
        let mut counted = self.counted();
        counted.expire(now);
        if counted.len() >= self.max {
            return Err(Error::TooMany {
                what: "sessions (sessions_max)",
                max: self.max,
            });
        }
        counted.opening += 1;
        Ok(Place(self))
    }

    /// A session was opened or renewed at `now`, for this long.
    pub(super) fn lives(&self, session: SessionId, ttl: Duration, now: Instant) {
        self.counted().note(session, now + ttl);
    }

    /// A session has ended.
    pub(super) fn ended(&self, session: SessionId) {
        self.counted().forget(session);
    }

    fn count(&self, now: Instant) -> usize {
        let mut counted = self.counted();
        counted.expire(now);
        counted.ends.len()
    }

    /// Tells how many there are until `stopping`.
    pub(super) async fn tell(&self, stopping: CancellationToken) {
        let told = metrics::gauge!(telemetry::SESSIONS);
        let run = async {
            loop {
                told.set(self.count(Instant::now()) as f64);
                tokio::time::sleep(TELL_EVERY).await;
            }
        };
        stopping.run_until_cancelled(run).await;
    }
}

/// Kept for a session while it is being opened.
pub(super) struct Place<'s>(&'s Sessions);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.counted().opening -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Instant, SessionId, Sessions};

    #[test]
    fn a_place_is_free_again_when_its_session_has_ended_or_its_time_is_over() {
        let (sessions, begin) = (Sessions::new(2), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let ttl = Duration::from_secs(10);
        let opening = sessions.place(at(0)).ok();
        assert!(opening.is_some());
        sessions.lives(SessionId(1), ttl, at(0));
        assert!(
            sessions.place(at(0)).is_err(),
            "one lives, one is being opened"
        );
        drop(opening);
        sessions.lives(SessionId(2), ttl, at(1));
        assert!(sessions.place(at(1)).is_err());
        sessions.lives(SessionId(1), ttl, at(9));
        assert!(sessions.place(at(10)).is_err());
        assert_eq!(sessions.count(at(10)), 2);
        assert!(sessions.place(at(11)).is_ok(), "the second is over");
        assert_eq!(sessions.count(at(18)), 1, "the first was renewed");
        sessions.ended(SessionId(1));
        sessions.ended(SessionId(1));
        assert_eq!(sessions.count(at(18)), 0);
        // More than the limit, where they were opened elsewhere: none is turned away.
        for id in 3..6 {
            sessions.lives(SessionId(id), ttl, at(20));
        }
        assert_eq!(sessions.count(at(20)), 3);
        assert!(sessions.place(at(20)).is_err());
    }
}
