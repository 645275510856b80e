//! Stage 3, gate: may it pass?

use tokio::time::Instant;

use super::classify::Decided;
use super::{Asked, Door};
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

impl Door {
    /// Settles every lock that a ticket is presented for, and takes the permits of a write.
    pub(super) async fn admit(
        &self,
        decided: &Decided,
        deadline: Instant,
    ) -> Result<Admission, Refusal> {
        let gates = &self.listening.gates;
        match decided.kind {
            Kind::Read => {
                for claim in &decided.claims {
                    gates.settle(claim, None, deadline).await?;
                }
                Ok(Admission::Unfenced)
            }
            Kind::Write => {
                if let Some(lock) = decided.missing() {
                    return Err(Refusal::missing(lock.clone()));
                }
                if decided.claims.is_empty() {
                    return Ok(Admission::Unfenced);
                }
                let hold = self.listening.config.in_doubt_hold;
                gates
                    .admit(&decided.claims, hold, deadline)
                    .await
                    .map(Admission::Fenced)
            }
        }
    }

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
