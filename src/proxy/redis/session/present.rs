//! What presenting tickets is: they are verified, and their locks settled. A future of its own, so
//! that replies go on beside it.

use std::sync::Arc;

use tokio::time::Instant;

use crate::config::{Mode, Trust};
use crate::protocol::Refusal;
use crate::proxy::claims;
use crate::proxy::gates::Claim;
use crate::proxy::redis::RedisListening;
use crate::proxy::redis::control::SessionId;
use crate::proxy::redis::settle::{Settled, settle};
use crate::proxy::tickets::Tickets;
use crate::ticket::Ticket;
use crate::token::Token;

/// Genuine tickets, of a connection or of one command.
#[derive(Clone, Default)]
pub(super) struct Presented {
    /// Sorted by lock, each lock once.
    pub(super) claims: Arc<[Claim]>,
    /// A bare token, for the lock that a command needs.
    pub(super) bare: Option<Token>,
    /// The tickets behind the claims, for the audit.
    pub(super) tickets: Vec<Arc<Ticket>>,
    /// As they came.
    texts: Vec<Box<str>>,
    /// Of the keys that verified all of them.
    generation: u64,
}

impl Presented {
    /// Whether the keys are others than those that verified them: they may not be genuine any more.
    pub(super) fn is_outdated(&self, tickets: &Tickets) -> bool {
        !self.claims.is_empty() && self.generation != tickets.generation()
    }

    /// They were verified again.
    pub(super) fn renew(&mut self, again: &Presented) {
        // Others may have taken their place.
        if Arc::ptr_eq(&self.claims, &again.claims) {
            self.generation = again.generation;
        }
    }

    /// The reply to `FENCE STATUS`: lock and token in turn. A bare token is every lock's: `*`.
    pub(super) fn status(&self) -> Vec<u8> {
        let claims = self.claims.iter();
        let claims = claims.map(|claim| (claim.lock.as_str(), claim.token));
        let rows: Vec<_> = claims.chain(self.bare.map(|token| ("*", token))).collect();
        let mut reply = format!("*{}\r\n", rows.len() * 2);
        for (lock, token) in rows {
            let token = token.to_string();
            for text in [lock, &token] {
                reply += &format!("${}\r\n{text}\r\n", text.len());
            }
        }
        reply.into_bytes()
    }
}

/// Why tickets were not taken, and which of them are genuine: for the audit.
pub(super) struct NotPresented {
    pub(super) refusal: Refusal,
    pub(super) tickets: Vec<Arc<Ticket>>,
}

impl From<Refusal> for NotPresented {
    fn from(refusal: Refusal) -> NotPresented {
        NotPresented {
            refusal,
            tickets: vec![],
        }
    }
}

/// Verifies tickets and settles their locks: what presenting is. Observing only verifies.
pub(super) async fn present(
    listening: Arc<RedisListening>,
    session: SessionId,
    texts: Vec<Box<str>>,
) -> Result<(Presented, Vec<Settled>), NotPresented> {
    let deadline = match listening.config.mode {
        Mode::Enforce => Instant::now() + listening.config.admit_deadline,
        // It has come: observing never waits.
        Mode::Observe => Instant::now(),
    };
    let presented = match listening.config.trust {
        Trust::Signed => verify(&listening, texts, deadline).await?,
        Trust::Unsigned => bare(&texts)?,
    };
    let mut settled = vec![];
    if listening.config.mode == Mode::Enforce {
        for claim in presented.claims.iter() {
            match settle(&listening, &session, claim, deadline).await {
                Ok(claim) => settled.push(claim),
                Err(refusal) => {
                    let tickets = presented.tickets;
                    return Err(NotPresented { refusal, tickets });
                }
            }
        }
    }
    Ok((presented, settled))
}

async fn verify(
    listening: &RedisListening,
    texts: Vec<Box<str>>,
    deadline: Instant,
) -> Result<Presented, Refusal> {
    // Read first: if it changes meanwhile, they are verified again.
    let generation = listening.tickets.generation();
    let mut tickets = vec![];
    for text in &texts {
        tickets.push(listening.tickets.verify(text, deadline).await?);
    }
    Ok(Presented {
        claims: claims::of_tickets(&tickets)?.into(),
        bare: None,
        tickets,
        texts,
        generation,
    })
}

/// Verifies again what a connection has bound: the keys have changed since.
pub(super) async fn verify_bound(
    listening: Arc<RedisListening>,
    mut bound: Presented,
) -> Result<Presented, NotPresented> {
    let deadline = Instant::now() + listening.config.admit_deadline;
    let generation = listening.tickets.generation();
    for text in &bound.texts {
        if let Err(refusal) = listening.tickets.verify(text, deadline).await {
            let tickets = bound.tickets;
            return Err(NotPresented { refusal, tickets });
        }
    }
    bound.generation = generation;
    Ok(bound)
}

/// A bare integer is the token of the one lock that a command needs.
fn bare(texts: &[Box<str>]) -> Result<Presented, Refusal> {
    Ok(Presented {
        bare: Some(claims::bare_token(texts)?),
        ..Presented::default()
    })
}
