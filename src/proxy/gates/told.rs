//! What a claim is refused with where no gate answers it, or none in time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Claim, Gates};
use crate::protocol::Refusal;
use crate::proxy::watermarks::LoadError;
use crate::token::Token;

/// What a client is told to wait where nothing better is known.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why a gate could not be had. All of these are told as busy, but the last.
pub(super) enum NoGate {
    Store(LoadError),
    Floor(String),
    Crowded,
    OtherKind,
}

impl Gates {
    /// What follows where nothing is admitted any more.
    pub(super) fn ended(&self, claim: &Claim) -> Refusal {
        let detail = match self.inner.replaced.load(Ordering::SeqCst) {
            true => "another watermark store has taken the place of this proxy's: start it again",
            false => "the lock service has taken this proxy out of its set: start it again",
        };
        Refusal::busy(detail, RETRY_AFTER)
            .for_lock(claim.lock.clone())
            .with_token(claim.token)
    }

    /// What keeps a claim waiting for longer than its deadline.
    pub(super) fn busy(&self, claim: &Claim) -> Refusal {
        let entry = self.loaded(&claim.lock);
        let Some((entry, status)) = entry.map(|it| (Arc::clone(&it), it.gate.status())) else {
            let refusal =
                Refusal::busy("the lock's watermark could not be had in time", RETRY_AFTER);
            return refusal.for_lock(claim.lock.clone()).with_token(claim.token);
        };
        let held = entry.in_doubt_for();
        let refusal = if let Some(listener) = self.inner.left.lost().holds_back(&claim.lock) {
            let detail = format!(
                "the proxy's store was lost: listener {listener:?} waits until no session of before \
                 is left at its backend"
            );
            Refusal::busy(detail, RETRY_AFTER)
        } else if status.in_doubt > 0 && !held.is_zero() {
            let detail = format!(
                "the outcome of an older write is not known: the lock stays closed to newer tokens \
                 for {} ms",
                held.as_millis()
            );
            Refusal::busy(detail, held)
        } else {
            Refusal::busy("an older write is still in flight", RETRY_AFTER)
        };
        let refusal = refusal.for_lock(claim.lock.clone()).with_token(claim.token);
        match Token::new(status.watermark) {
            Some(watermark) => refusal.with_watermark(watermark),
            None => refusal,
        }
    }
}

pub(super) fn not_durable(claim: &Claim) -> Refusal {
    Refusal::busy("the watermark cannot be made durable", RETRY_AFTER)
        .for_lock(claim.lock.clone())
        .with_token(claim.token)
}

pub(super) fn tell(no_gate: NoGate, claim: &Claim) -> Refusal {
    let refusal = match no_gate {
        NoGate::Store(LoadError::Unavailable) => {
            Refusal::busy("the watermark store is not available", RETRY_AFTER)
        }
        NoGate::Store(LoadError::Torn(_)) => {
            Refusal::busy("the watermark of this lock is damaged", RETRY_AFTER)
        }
        NoGate::Floor(reason) => {
            tracing::warn!(lock = %claim.lock, %reason, "the floor of an unknown lock is not told");
            Refusal::busy(
                "the lock service does not tell the floor of this lock",
                RETRY_AFTER,
            )
        }
        NoGate::Crowded => Refusal::busy("too many locks are in use", RETRY_AFTER),
        NoGate::OtherKind => Refusal::invalid(
            "this lock's tokens are of the other kind: signed tickets and bare integers never meet",
        ),
    };
    refusal.for_lock(claim.lock.clone()).with_token(claim.token)
}
