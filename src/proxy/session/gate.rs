//! Stage 3, gate: may it pass?

use tokio::time::Instant;

use super::classify::Decided;
use super::{Asked, Door, Session};
use crate::lock_name::LockName;
use crate::protocol::{Kind, Refusal};
use crate::proxy::doubts::InFlight;
use crate::token::Token;

/// The gate's answer.
pub enum Admission {
    /// A read, or a write that needs no ticket.
    Unfenced,
    /// A write under permits.
    Fenced(InFlight),
}

impl Session {
    /// Settles every lock that a ticket is presented for, and takes the permits of a write.
    pub(super) async fn admit(
        &mut self,
        decided: &Decided,
        deadline: Instant,
    ) -> Result<Admission, Refusal> {
        let listening = &self.door.listening;
        let gates = &listening.gates;
        let last = &mut self.last_gate;
        match decided.kind {
            Kind::Read => {
                gates.settle_all(&decided.claims, last, deadline).await?;
                Ok(Admission::Unfenced)
            }
            Kind::Write => {
                if let Some(lock) = decided.missing() {
                    return Err(Refusal::missing(lock.clone()));
                }
                if decided.claims.is_empty() {
                    return Ok(Admission::Unfenced);
                }
                let hold = listening.config.in_doubt_hold;
                let admitted = gates.admit(&decided.claims, last, hold, deadline).await;
                admitted.map(Admission::Fenced)
            }
        }
    }
}

impl Door {
    /// What an enforcing listener would refuse is audited.
    pub(super) fn observe(&self, decided: &Decided, asked: &Asked<'_>) {
        if decided.kind == Kind::Write
            && let Some(lock) = decided.missing()
        {
            self.audit(&Refusal::missing(lock.clone()), asked);
        }
        for claim in &decided.claims {
            if let Some(watermark) = self.listening.shadows.observe(&claim.lock, claim.token) {
                let watermark = Token::new(watermark);
                let refusal = Refusal::stale(claim.lock.clone(), claim.token, watermark);
                self.audit(&refusal, asked);
            }
        }
    }
}

impl Decided {
    fn missing(&self) -> Option<&LockName> {
        let presented = |lock: &LockName| self.claims.iter().any(|claim| claim.lock == *lock);
        self.locks.iter().find(|lock| !presented(lock))
    }
}
