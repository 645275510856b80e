//! Which genuine tickets a call carries, in its metadata, and whether the gates let them pass.

use std::sync::Arc;

use hyper::HeaderMap;
use tokio::time::Instant;

use super::Asked;
use super::door::Door;
use crate::config::Trust;
use crate::lock_name::LockName;
use crate::protocol::etcd::Call;
use crate::protocol::head::{TICKET_HEADER, is_ticket_name};
use crate::protocol::{Kind, Refusal, tickets};
use crate::proxy::claims;
use crate::proxy::gates::Claim;

/// The tickets of the metadata, as they came. Several come as one list or as several values.
pub fn tickets(headers: &HeaderMap) -> Result<Vec<&str>, Refusal> {
    let mut found: Vec<&str> = vec![];
    for (name, value) in headers {
        if name == TICKET_HEADER {
            for ticket in tickets::parse(value.as_bytes())? {
                if !found.contains(&ticket) {
                    found.push(ticket);
                }
            }
        } else if is_ticket_name(name.as_str().as_bytes()) {
            return Err(Refusal::invalid(
                "the ticket's metadata key is `fencing-token`",
            ));
        }
    }
    match found.len() <= tickets::TICKETS_PER_REQUEST_MAX {
        true => Ok(found),
        false => Err(Refusal::invalid("there are too many tickets")),
    }
}

/// What a call was admitted with: nothing is forwarded without one.
pub struct Admitted {
    /// Settled at their gates, and the floors in etcd raised to them; sorted by lock.
    claims: Vec<Claim>,
}

impl Admitted {
    /// On a listener that enforces nothing.
    pub(super) fn observed() -> Admitted {
        Admitted { claims: vec![] }
    }

    /// What was presented and has passed.
    pub(super) fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// The first of these locks that no ticket is there for.
    pub(super) fn missing<'l>(&self, locks: &'l [LockName]) -> Option<&'l LockName> {
        missing(locks, &self.claims)
    }
}

/// The first of these locks that no ticket is there for.
pub fn missing<'l>(locks: &'l [LockName], claims: &[Claim]) -> Option<&'l LockName> {
    let presented = |lock: &LockName| claims.iter().any(|claim| claim.lock == *lock);
    locks.iter().find(|lock| !presented(lock))
}

impl Door {
    /// Lets a call pass with what it presents, or says why not.
    pub(super) async fn admit(
        &self,
        call: &Call<'_>,
        claims: Vec<Claim>,
        deadline: Instant,
    ) -> Result<Admitted, Refusal> {
        if call.kind == Kind::Write
            && let Some(lock) = missing(&call.locks, &claims)
        {
            return Err(Refusal::missing(lock.clone()));
        }
        for claim in &claims {
            self.listening.gates.settle(claim, None, deadline).await?;
        }
        Ok(Admitted { claims })
    }

    /// What the call presents: sorted by lock, each lock once.
    pub(super) async fn claims(
        &self,
        tickets: &[&str],
        locks: &[LockName],
        asked: &mut Asked,
        deadline: Instant,
    ) -> Result<Vec<Claim>, Refusal> {
        match self.listening.config.trust {
            Trust::Signed => self.signed(tickets, asked, deadline).await,
            Trust::Unsigned => claims::of_bare(tickets, locks, "call"),
        }
    }

    async fn signed(
        &self,
        tickets: &[&str],
        asked: &mut Asked,
        deadline: Instant,
    ) -> Result<Vec<Claim>, Refusal> {
        let mut genuine = Vec::with_capacity(tickets.len());
        for text in tickets {
            let ticket = self.listening.tickets.verify(text, deadline).await?;
            genuine.push(Arc::clone(&ticket));
            asked.tickets.push(ticket);
        }
        claims::of_tickets(&genuine)
    }
}
