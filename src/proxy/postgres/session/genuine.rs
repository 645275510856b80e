//! Which of the session's tickets are genuine: verified once, and found again as long as the keys
//! stay the same.

use std::sync::Arc;

use futures::FutureExt as _;
use tokio::time::Instant;

use crate::config::Trust;
use crate::lock_name::LockName;
use crate::protocol::Refusal;
use crate::protocol::postgres::ticket::{self, Tickets};
use crate::proxy::claims;
use crate::proxy::gates::Claim;
use crate::proxy::postgres::Listener;
use crate::ticket::Ticket;
use crate::token::Token;

/// Most sets of tickets that a session keeps at hand; beyond it they are verified anew.
const SETS_MAX: usize = 8;

struct Set {
    texts: Tickets,
    claims: Arc<[Claim]>,
    tickets: Vec<Arc<Ticket>>,
    /// Of the keys that verified all of them.
    generation: Option<u64>,
}

/// The sets that a session has shown.
pub(super) struct Sets {
    /// The one that was shown last goes first.
    sets: Vec<Set>,
    /// The lock of bare tokens: of all that is guarded in the session's database.
    lock: Option<LockName>,
}

/// What is known of a set.
pub(super) enum Look {
    /// It is genuine: sorted by lock, each lock once.
    Genuine(Arc<[Claim]>),
    /// It is not.
    Refused(Refusal),
    /// Keys are to be asked for first: [`verify`].
    Unknown,
}

impl Sets {
    /// None yet, of a session in this database.
    pub(super) fn new(listener: &Listener, database: &str) -> Sets {
        Sets {
            sets: vec![],
            lock: match listener.config.trust {
                Trust::Unsigned => listener.config.rules.only_lock(database),
                Trust::Signed => None,
            },
        }
    }

    /// Verifies a set, as far as that can be done at once.
    pub(super) fn look(&mut self, listener: &Listener, texts: &Tickets) -> Look {
        if listener.config.trust == Trust::Unsigned {
            return match claims::bare_token(texts.as_slice()) {
                Ok(token) => Look::Genuine(self.of_bare(token)),
                Err(refusal) => Look::Refused(refusal),
            };
        }
        let at = match self.sets.iter().position(|set| set.texts == *texts) {
            Some(at) => at,
            None => {
                self.sets.truncate(SETS_MAX - 1);
                self.sets.push(Set {
                    texts: texts.clone(),
                    claims: [].into(),
                    tickets: vec![],
                    generation: None,
                });
                self.sets.len() - 1
            }
        };
        self.sets[..=at].rotate_right(1);
        self.sets[0].verify(listener)
    }

    fn of_bare(&self, token: Token) -> Arc<[Claim]> {
        let claim = |lock: &LockName| Claim {
            lock: lock.clone(),
            token,
            unsigned: true,
        };
        self.lock.iter().map(claim).collect()
    }

    /// The holder of a lock's ticket, for the audit.
    pub(super) fn holder(&self, lock: &LockName) -> Option<&str> {
        let mut tickets = self.sets.iter().flat_map(|set| &set.tickets);
        let ticket = tickets.find(|ticket| ticket.lock == *lock)?;
        Some(&ticket.holder)
    }

    /// What the server is shown of a set that was looked at.
    pub(super) fn shown(&self, texts: &Tickets) -> Option<String> {
        let set = self.sets.iter().find(|set| set.texts == *texts)?;
        let tickets = set.tickets.iter();
        Some(ticket::shown(tickets.map(|it| (&it.lock, it.token))))
    }
}

impl Set {
    fn verify(&mut self, listener: &Listener) -> Look {
        // Read first: if it changes meanwhile, they are looked at again.
        let generation = listener.tickets.generation();
        if self.generation == Some(generation) {
            return Look::Genuine(Arc::clone(&self.claims));
        }
        self.generation = None;
        // Nothing waits here: what is not known at once is asked for in its own time.
        let deadline = Instant::now();
        let mut changed = self.tickets.len() != self.texts.as_slice().len();
        for (at, text) in self.texts.as_slice().iter().enumerate() {
            let verifying = listener.tickets.verify(text, deadline);
            let ticket = match verifying.now_or_never() {
                None => return Look::Unknown,
                Some(Err(refusal)) => return Look::Refused(refusal),
                Some(Ok(ticket)) => ticket,
            };
            match self.tickets.get_mut(at) {
                Some(known) if Arc::ptr_eq(known, &ticket) => {}
                Some(known) => (*known, changed) = (ticket, true),
                None => self.tickets.push(ticket),
            }
        }
        if changed {
            match claims::of_tickets(&self.tickets) {
                Ok(claims) => self.claims = claims.into(),
                Err(refusal) => {
                    self.tickets.clear();
                    return Look::Refused(refusal);
                }
            }
        }
        self.generation = Some(generation);
        Look::Genuine(Arc::clone(&self.claims))
    }
}

/// Verifies what could not be verified at once: keys are asked for, until the listener's deadline.
pub(super) async fn verify(listener: Arc<Listener>, texts: Tickets) -> Result<(), Refusal> {
    let deadline = Instant::now() + listener.config.admit_deadline;
    for text in texts.as_slice() {
        listener.tickets.verify(text, deadline).await?;
    }
    Ok(())
}
