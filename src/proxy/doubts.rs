//! Writes whose outcome is not known: how long their locks stay closed to newer tokens.
//!
//! A backend that cannot prove that a write is dead gets `in_doubt_hold`, the time in which the
//! operator says that it finishes or drops whatever it took. One task resolves each doubt at its
//! time. Invariant: each doubt that a gate counts is resolved exactly once, never before its time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::gates::Entry;
use crate::gate::{Permit, Revoked, Stage};
use crate::protocol::Refusal;
use crate::telemetry;
use crate::token::Token;

/// Most doubts at a time. Beyond it no write is admitted: the backend keeps losing them.
pub const DOUBTS_MAX: usize = 1_000_000;

/// The doubts of all gates.
#[derive(Clone, Default)]
pub struct Doubts {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    due: Mutex<BinaryHeap<Reverse<Due>>>,
    earlier: Notify,
}

struct Due {
    at: Instant,
    token: u64,
    entry: Arc<Entry>,
}

impl Doubts {
    /// Has the doubt resolved at this time.
    pub fn add(&self, entry: Arc<Entry>, token: u64, at: Instant) {
        entry.note_doubt_until(at);
        metrics::gauge!(telemetry::IN_DOUBT).increment(1);
        let mut due = self.lock();
        let is_first = due.peek().is_none_or(|first| at < first.0.at);
        due.push(Reverse(Due { at, token, entry }));
        drop(due);
        if is_first {
            self.shared.earlier.notify_one();
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BinaryHeap<Reverse<Due>>> {
        self.shared
            .due
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves doubts when their time comes. Runs until it is dropped.
    pub async fn run(self) {
        loop {
            let next = self.lock().peek().map(|first| first.0.at);
            match next {
                None => self.shared.earlier.notified().await,
                Some(at) => {
                    // Whichever comes first, the loop looks again.
                    let _ = tokio::time::timeout_at(at, self.shared.earlier.notified()).await;
                }
            }
            while let Some(due) = self.take_due(Instant::now()) {
                due.entry.gate().resolve_doubt(due.token);
                due.entry.pump();
                metrics::gauge!(telemetry::IN_DOUBT).decrement(1);
            }
        }
    }

    fn take_due(&self, now: Instant) -> Option<Due> {
        let mut due = self.lock();
        match due.peek() {
            Some(first) if first.0.at <= now => due.pop().map(|first| first.0),
            _ => None,
        }
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

/// The permits of one write, all or none of which go on. Dropped before [`InFlight::finish`], what
/// was forwarded is in doubt, for the listener's hold.
#[must_use = "dropping it puts what was forwarded in doubt"]
pub struct InFlight {
    permits: Vec<(Permit, Arc<Entry>)>,
    hold: Duration,
}

impl InFlight {
    /// Permits in the order of their locks' names.
    pub fn new(permits: Vec<(Permit, Arc<Entry>)>, hold: Duration) -> InFlight {
        InFlight { permits, hold }
    }

    /// Before the first byte leaves. On an error nothing may leave.
    pub fn forward(&mut self) -> Result<(), Refusal> {
        self.advance(Permit::forward)
    }

    /// Before the bytes leave that can make the write take effect. On an error they must not, and
    /// what left before is to be aborted.
    pub fn release(&mut self) -> Result<(), Refusal> {
        self.advance(Permit::release)
    }

    fn advance(&mut self, step: fn(&mut Permit) -> Result<(), Revoked>) -> Result<(), Refusal> {
        for (permit, entry) in &mut self.permits {
            step(permit).map_err(|Revoked| stale(entry, permit.token()))?;
        }
        Ok(())
    }

    /// Ready with the refusal once a newer token or a close has come for one of the locks.
    pub fn poll_revoked(&mut self, cx: &mut Context<'_>) -> Poll<Refusal> {
        for (permit, entry) in &mut self.permits {
            if permit.poll_revoked(cx).is_ready() {
                return Poll::Ready(stale(entry, permit.token()));
            }
        }
        Poll::Pending
    }

    /// Whether all may have taken effect.
    pub fn is_released(&self) -> bool {
        self.permits
            .iter()
            .all(|(permit, _)| permit.stage() == Stage::Released)
    }

    /// The first lock and token, to tell what is lost.
    pub fn about(&self, refusal: Refusal) -> Refusal {
        match self.permits.first() {
            Some((permit, entry)) => refusal
                .for_lock(entry.gate().lock().clone())
                .with_token(permit.token()),
            None => refusal,
        }
    }

    /// The write has ended: its outcome was seen, or it is proven that it can never be applied.
    pub fn finish(mut self) {
        for (permit, entry) in self.permits.drain(..) {
            permit.finish();
            entry.touch();
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        for (permit, entry) in self.permits.drain(..) {
            let (token, stage) = (permit.token(), permit.stage());
            drop(permit);
            if stage != Stage::Admitted {
                let doubts = entry.doubts().clone();
                doubts.add(entry, token.get(), Instant::now() + self.hold);
            }
        }
    }
}

/// The refusal of a permit that was revoked.
fn stale(entry: &Entry, token: Token) -> Refusal {
    let status = entry.gate().status();
    Refusal::stale(
        entry.gate().lock().clone(),
        token,
        Token::new(status.watermark),
    )
}
