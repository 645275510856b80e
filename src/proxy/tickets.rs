//! Which tickets are genuine, and for whom their seal spoke.
//!
//! A signature is verified once (about 60 us) and then found in a bounded cache, which compares the
//! whole text. Invariants:
//! - nothing raises a watermark but a ticket that verified under a key of the current ring, or, on
//!   a listener that says so, a bare integer;
//! - with lockd, a ticket for a lock that this proxy guards is taken only if its seal covered this
//!   proxy, or if its seal did not have to.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::registry::Registry;
use super::ring::RingView;
use crate::lock_name::LockPattern;
use crate::protocol::Refusal;
use crate::ticket::{InvalidTicket, KeyRing, Order, SealScope, TICKET_BYTES_MAX, Ticket};

/// Most verified tickets that are remembered: about 500 bytes each.
pub const CACHED_TICKETS_MAX: usize = 65_536;

const SHARDS: usize = 16;
const GENERATION_TICKETS_MAX: usize = CACHED_TICKETS_MAX / SHARDS / 2;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The verifier of one proxy.
pub struct Tickets {
    ring: RingView,
    registry: Option<Registry>,
    instance: String,
    patterns: Vec<LockPattern>,
    hasher: RandomState,
    shards: Vec<Mutex<Shard>>,
}

/// Two halves: when the young one is full it becomes the old one, and what is in neither was not
/// used for at least half of the capacity.
#[derive(Default)]
struct Shard {
    generation: u64,
    young: HashMap<Box<str>, Arc<Ticket>>,
    old: HashMap<Box<str>, Arc<Ticket>>,
}

/// The last ticket of a connection.
#[derive(Default)]
pub struct LastTicket(Option<Known>);

struct Known {
    text: Box<str>,
    ticket: Arc<Ticket>,
    /// Of the ring that verified it.
    generation: u64,
}

/// What authorises a seal or a close.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Authority {
    /// The ticket of a grant.
    Ticket(Arc<Ticket>),
    /// An order that lockd signed.
    Order(Order),
}

impl Tickets {
    /// A verifier with these keys. `registry`: the lockd that this proxy is registered with, for
    /// the locks of these patterns.
    pub fn new(
        ring: RingView,
        registry: Option<Registry>,
        instance: String,
        patterns: Vec<LockPattern>,
    ) -> Tickets {
        Tickets {
            ring,
            registry,
            instance,
            patterns,
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Whether tickets can be verified; the error says why not.
    pub fn check(&self) -> Result<(), String> {
        if self.ring.now().keys.is_some() {
            return Ok(());
        }
        let refused = self.registry.as_ref().and_then(Registry::refusal);
        Err(match refused {
            Some(reason) => format!("the lock service does not take this proxy: {reason}"),
            None => "the lock service has not told its keys yet".to_owned(),
        })
    }

    /// Changes with what verifies: a ticket that was verified before is to be verified again. One
    /// atomic load.
    pub fn generation(&self) -> u64 {
        self.ring.generation()
    }

    /// As [`Tickets::verify`], where the ticket may be the one that `last` remembers: clients
    /// present one ticket again and again.
    pub async fn verify_again(
        &self,
        last: &mut LastTicket,
        text: &str,
        deadline: Instant,
    ) -> Result<Arc<Ticket>, Refusal> {
        // Read first: if it changes while the ticket is verified, that is not remembered for long.
        let generation = self.generation();
        if let Some(known) = &last.0
            && known.generation == generation
            && *known.text == *text
        {
            return Ok(Arc::clone(&known.ticket));
        }
        let ticket = self.verify(text, deadline).await?;
        last.0 = Some(Known {
            text: text.into(),
            ticket: Arc::clone(&ticket),
            generation,
        });
        Ok(ticket)
    }

    /// The ticket, if it is genuine and speaks for this proxy.
    pub async fn verify(&self, text: &str, deadline: Instant) -> Result<Arc<Ticket>, Refusal> {
        if let Some(ticket) = self.cached(text) {
            return Ok(ticket);
        }
        let (ticket, generation) = self
            .verify_slowly(text, deadline, KeyRing::verify_ticket)
            .await?;
        self.check_covered(&ticket)?;
        let ticket = Arc::new(ticket);
        self.remember(text, &ticket, generation);
        Ok(ticket)
    }

    /// A ticket or an order, for the fence service. Coverage plays no part: sealing is how it comes
    /// about.
    pub async fn verify_authority(
        &self,
        text: &str,
        deadline: Instant,
    ) -> Result<Authority, Refusal> {
        let verify = |ring: &KeyRing, text: &str| match ring.verify_order(text) {
            Ok(order) => Ok(Authority::Order(order)),
            Err(_) => ring
                .verify_ticket(text)
                .map(|ticket| Authority::Ticket(Arc::new(ticket))),
        };
        self.verify_slowly(text, deadline, verify)
            .await
            .map(|(authority, _)| authority)
    }

    async fn verify_slowly<T>(
        &self,
        text: &str,
        deadline: Instant,
        verify: impl Fn(&KeyRing, &str) -> Result<T, InvalidTicket>,
    ) -> Result<(T, u64), Refusal> {
        let mut refreshed = false;
        loop {
            let ring = self.ring.now();
            let outcome = match &ring.keys {
                Some(keys) => verify(keys, text),
                None => return Err(keys_unknown()),
            };
            match (outcome, &self.registry) {
                (Ok(verified), _) => return Ok((verified, ring.generation)),
                // The key may be newer than our ring.
                (Err(InvalidTicket::UnknownKey { .. }), Some(registry)) if !refreshed => {
                    refreshed = true;
                    // No answer in time: the ring stays, and the ticket is refused by it.
                    let _ = tokio::time::timeout_at(deadline, registry.refresh()).await;
                }
                (Err(error), _) => return Err(Refusal::invalid(error.to_string())),
            }
        }
    }

    fn check_covered(&self, ticket: &Ticket) -> Result<(), Refusal> {
        let guarded = || {
            self.patterns
                .iter()
                .any(|pattern| pattern.matches(&ticket.lock))
        };
        let covered = match &ticket.seal {
            SealScope::BestEffort(_) => true,
            SealScope::Required(instances) => instances.contains(&self.instance),
        };
        if covered || self.registry.is_none() || !guarded() {
            return Ok(());
        }
        let detail = "the ticket's seal did not cover this proxy; acquire the lock again";
        Err(Refusal::invalid(detail)
            .for_lock(ticket.lock.clone())
            .with_token(ticket.token))
    }

    fn shard(&self, text: &str) -> std::sync::MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(text);
        let at = usize::try_from(hash % SHARDS as u64).unwrap_or_default();
        self.shards[at]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn cached(&self, text: &str) -> Option<Arc<Ticket>> {
        let generation = self.generation();
        let mut shard = self.shard(text);
        if shard.generation != generation {
            // Verified under a key that may have been taken out.
            *shard = Shard {
                generation,
                ..Shard::default()
            };
            return None;
        }
        if let Some(ticket) = shard.young.get(text) {
            return Some(Arc::clone(ticket));
        }
        let (text, ticket) = shard.old.remove_entry(text)?;
        shard.insert(text, Arc::clone(&ticket));
        Some(ticket)
    }

    fn remember(&self, text: &str, ticket: &Arc<Ticket>, generation: u64) {
        let mut shard = self.shard(text);
        // Otherwise the ring has changed since the signature was checked.
        if shard.generation == generation && text.len() <= TICKET_BYTES_MAX {
            shard.insert(text.into(), Arc::clone(ticket));
        }
    }
}

impl Shard {
    fn insert(&mut self, text: Box<str>, ticket: Arc<Ticket>) {
        if self.young.len() >= GENERATION_TICKETS_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(text, ticket);
    }
}

/// Busy: the keys are not known yet.
fn keys_unknown() -> Refusal {
    Refusal::busy(
        "the keys that verify tickets are not known yet",
        RETRY_AFTER,
    )
}

#[cfg(test)]
mod tests {
    use super::{LastTicket, Tickets};
    use crate::lock_name::LockName;
    use crate::protocol::refusal::Code;
    use crate::proxy::ring::{RingSource, RingView};
    use crate::ticket::{KeyRing, SealScope, SigningKey, Ticket};
    use crate::token::Token;
    use tokio::time::Instant;

    fn signed(key: &SigningKey) -> String {
        key.sign_ticket(&Ticket {
            lock: LockName::new("orders").unwrap(),
            token: Token::MIN,
            holder: "h".to_owned(),
            session: "s".to_owned(),
            issued_unix_ms: 0,
            seal: SealScope::Required(vec![]),
        })
    }

    fn ring(key: &SigningKey) -> KeyRing {
        KeyRing::new([key.verifying().clone()])
    }

    #[tokio::test]
    async fn a_ticket_verifies_until_its_key_is_taken_out() {
        let (old, new) = (SigningKey::generate(), SigningKey::generate());
        let source = RingSource::default();
        source.set(Some(ring(&old)));
        let tickets = Tickets::new(source.view(), None, "edge".to_owned(), vec![]);
        let text = signed(&old);
        for _ in 0..3 {
            assert!(tickets.verify(&text, Instant::now()).await.is_ok());
        }
        let mut last = LastTicket::default();
        for _ in 0..2 {
            let again = tickets.verify_again(&mut last, &text, Instant::now()).await;
            assert!(again.is_ok());
        }
        source.set(Some(ring(&new)));
        let refused = tickets.verify(&text, Instant::now()).await.unwrap_err();
        assert_eq!(refused.code, Code::Invalid);
        let again = tickets.verify_again(&mut last, &text, Instant::now()).await;
        assert_eq!(again.unwrap_err().code, Code::Invalid);
        assert!(tickets.verify(&signed(&new), Instant::now()).await.is_ok());
    }

    #[tokio::test]
    async fn a_text_that_only_resembles_a_cached_one_is_refused() {
        let key = SigningKey::generate();
        let tickets = Tickets::new(RingView::fixed(ring(&key)), None, "edge".to_owned(), vec![]);
        let text = signed(&key);
        assert!(tickets.verify(&text, Instant::now()).await.is_ok());
        let mut forged = text.clone();
        forged.replace_range(30..31, if &text[30..31] == "A" { "B" } else { "A" });
        assert!(tickets.verify(&forged, Instant::now()).await.is_err());
    }

    #[tokio::test]
    async fn without_keys_everything_is_busy() {
        let tickets = Tickets::new(
            RingSource::default().view(),
            None,
            "edge".to_owned(),
            vec![],
        );
        let refused = tickets
            .verify("v4.public.x", Instant::now())
            .await
            .unwrap_err();
        assert_eq!(refused.code, Code::Busy);
    }
}
