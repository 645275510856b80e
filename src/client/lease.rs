//! The lease of a session as its client may rely on it. Pure: `now` is an argument.
//!
//! Invariant: the deadline never lies after the moment at which the service may end the session.
//! The service counts the time to live from when it handled a renewal, which is no earlier than
//! when the renewal was sent; so counting from the *sending* of a renewal that was answered is
//! safe, whatever the network does, and without any agreement of clocks: both sides measure a
//! duration.

use std::time::Duration;

use crate::clock::Instant;

/// What a client knows about its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionState {
    /// The last renewal was answered. Held until the deadline at least.
    Held,
    /// A renewal is overdue or failed. Held until the deadline at least; nobody knows after it.
    Uncertain,
    /// The service said that the session is gone, or the deadline passed. Never left again.
    Lost,
}

/// The lease of one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    ttl: Duration,
    sent: Instant,
    doubted: bool,
    gone: bool,
}

impl Lease {
    /// A lease that was asked for at `sent` and granted for `ttl`.
    pub fn new(sent: Instant, ttl: Duration) -> Lease {
        Lease {
            ttl,
            sent,
            doubted: false,
            gone: false,
        }
    }

    /// The time to live that the service granted last.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The local safety deadline: from here on the session may have ended.
    pub fn deadline(&self) -> Instant {
        self.sent + self.ttl
    }

    /// The state at `now`.
    pub fn state(&self, now: Instant) -> SessionState {
        if self.gone || now >= self.deadline() {
            SessionState::Lost
        } else if self.doubted {
            SessionState::Uncertain
        } else {
            SessionState::Held
        }
    }

    /// A renewal that was sent at `sent` was answered at `now`. Without effect once lost: what the
    /// holder was told about its loss stays true.
    pub fn renewed(&mut self, sent: Instant, ttl: Duration, now: Instant) {
        if self.state(now) == SessionState::Lost {
            self.gone = true;
            return;
        }
        if sent + ttl > self.deadline() {
            (self.sent, self.ttl) = (sent, ttl);
        }
        self.doubted = false;
    }

    /// A renewal failed or is overdue.
    pub fn doubt(&mut self) {
        self.doubted = true;
    }

    /// The service said that the session is gone.
    pub fn end(&mut self) {
        self.gone = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(15);

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    #[test]
    fn the_deadline_counts_from_the_sending_not_from_the_answer() {
        let mut lease = Lease::new(at(100), TTL);
        assert_eq!(lease.deadline(), at(115));
        lease.renewed(at(105), TTL, at(114));
        assert_eq!(lease.deadline(), at(120));
        assert_eq!(lease.state(at(119)), SessionState::Held);
        assert_eq!(lease.state(at(120)), SessionState::Lost);
    }

    #[test]
    fn doubt_moves_no_deadline_and_an_answer_ends_it() {
        let mut lease = Lease::new(at(100), TTL);
        lease.doubt();
        assert_eq!(lease.state(at(110)), SessionState::Uncertain);
        assert_eq!(lease.deadline(), at(115));
        lease.renewed(at(110), TTL, at(111));
        assert_eq!(lease.state(at(112)), SessionState::Held);
    }

    #[test]
    fn what_is_lost_stays_lost() {
        let mut late = Lease::new(at(100), TTL);
        // The answer was on its way while this process was stopped past the deadline.
        late.renewed(at(105), TTL, at(116));
        assert_eq!(late.state(at(116)), SessionState::Lost);
        let mut told = Lease::new(at(100), TTL);
        told.end();
        told.renewed(at(101), TTL, at(102));
        assert_eq!(told.state(at(102)), SessionState::Lost);
    }

    #[test]
    fn a_shorter_answer_never_reaches_past_what_the_service_said() {
        let mut lease = Lease::new(at(100), TTL);
        lease.renewed(at(101), Duration::from_secs(2), at(101));
        // The first grant already runs to 115: the service cannot take that back.
        assert_eq!(lease.deadline(), at(115));
    }
}
