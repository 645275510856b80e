//! The gates of all locks: found or loaded, raised durably, retired when idle.
//!
//! One gate per lock for the whole proxy, whatever the listener. Invariants:
//! - at most one gate of a lock can admit at a time: a lock has one slot in the map, a slot loads
//!   once, and it leaves the map only with its gate retired, under the map's own lock;
//! - every record that a gate wants durable is handed to the store and answered, whoever was
//!   waiting for it;
//! - no permit is used before the store has marked its lock for the listener's hold.
//!
//! `entry` is one gate with what is kept beside it, `load` makes it, `retire` lets it go, `told` is
//! what a claim hears that no gate answers.
//!
//! It leaves to others: whether the ticket is genuine (`tickets`), what a refusal looks like.

mod entry;
mod holds;
mod last;
mod load;
mod retire;
#[cfg(test)]
mod tests;
mod told;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::{Notify, OnceCell};
use tokio::time::Instant;

use self::told::{NoGate, RETRY_AFTER, not_durable, tell};
use super::doubts::{DOUBTS_MAX, Doubts, InFlight};
use super::floors::{BackendFloors, NotRaised};
use super::left::Left;
use super::redis::fence_keys::FenceKeys;
use super::registry::Registry;
use super::watermarks::{Start, Watermarks, What};
use crate::gate::{Permit, Presented};
use crate::lock_name::LockName;
use crate::protocol::Refusal;
use crate::token::Token;

pub use entry::Entry;
pub use holds::Holds;
pub use last::LastGate;

/// Most gates in memory.
pub const GATES_MAX: usize = 1_000_000;
/// Most times that a request with several locks starts again before it is told busy.
const ROUNDS_MAX: usize = 64;

/// A token that a request presents for a lock; verified.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Claim {
    /// The lock.
    pub lock: LockName,
    /// The token.
    pub token: Token,
    /// It is a bare integer of another lock service.
    pub unsigned: bool,
}

/// The gates. Cheap to clone.
#[derive(Clone)]
pub struct Gates {
    inner: Arc<Inner>,
}

struct Inner {
    slots: DashMap<LockName, Arc<Slot>>,
    watermarks: Watermarks,
    doubts: Doubts,
    /// Who knows the floor of a lock that is not known here. `None`: nobody.
    registry: Option<Registry>,
    /// Backends that check tokens themselves: they learn a lock's floor before it admits.
    floors: Vec<BackendFloors>,
    holds: Holds,
    left: Left,
    start: Start,
    started: Instant,
    /// See [`Gates::set_confirmed`].
    unconfirmed: AtomicBool,
    /// See [`Gates::end`].
    ended: AtomicBool,
    /// Another store was found in the place of ours.
    replaced: AtomicBool,
    /// Wakes the eviction before its time.
    crowded: Notify,
}

type Slot = OnceCell<Arc<Entry>>;

/// What else a claim is settled for.
#[derive(Clone, Copy, Default)]
struct Settling<'a> {
    /// Writes are to follow.
    hold: Option<Duration>,
    /// Fence keys that the caller raises itself.
    own: Option<&'a FenceKeys>,
    /// The grant of a seal.
    grant: Option<&'a str>,
}

impl Gates {
    /// No gates yet.
    pub fn new(
        watermarks: Watermarks,
        start: Start,
        holds: Holds,
        left: Left,
        registry: Option<Registry>,
        floors: Vec<BackendFloors>,
    ) -> Gates {
        let unconfirmed = AtomicBool::new(start.unconfirmed);
        let inner = Arc::new(Inner {
            slots: DashMap::new(),
            watermarks,
            doubts: Doubts::default(),
            registry,
            floors,
            holds,
            left,
            start,
            started: Instant::now(),
            unconfirmed,
            ended: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
            crowded: Notify::new(),
        });
        let gates = Arc::downgrade(&inner);
        let end = move || {
            if let Some(inner) = gates.upgrade() {
                inner.replaced.store(true, Ordering::SeqCst);
                Gates { inner }.end_gates();
            }
        };
        inner.watermarks.on_replaced(Box::new(end));
        Gates { inner }
    }

    /// The doubts; their task must run.
    pub fn doubts(&self) -> &Doubts {
        &self.inner.doubts
    }

    /// From now on what an older store knew is not awaited any more: before, a lock may start in
    /// doubt, and the floor of every lock is asked for.
    pub fn set_confirmed(&self) {
        self.inner.unconfirmed.store(false, Ordering::Release);
        let done = |durable: bool| {
            if !durable {
                tracing::error!("what lockd says about the store could not be made durable");
            }
        };
        self.inner
            .watermarks
            .submit(What::Confirmed, Box::new(done));
    }

    /// The lock service seals past this process from now on: what is not released under its tickets
    /// is revoked, and nothing is admitted under them any more.
    pub fn end(&self) {
        // First: a gate that is not in the map yet finds it (`entry`).
        self.inner.ended.store(true, Ordering::SeqCst);
        self.end_gates();
    }

    fn end_gates(&self) {
        // The map is let go of first: what is woken may look a lock up.
        let slots = self.inner.slots.iter();
        let entries: Vec<_> = slots.filter_map(|slot| slot.get().cloned()).collect();
        for entry in entries.iter().filter(|it| self.has_ended(it.unsigned)) {
            entry.gate.end();
        }
    }

    /// Whether nothing is admitted any more under tokens of this kind.
    fn has_ended(&self, unsigned: bool) -> bool {
        let is_without_store = self.inner.replaced.load(Ordering::SeqCst);
        is_without_store || !unsigned && self.inner.ended.load(Ordering::SeqCst)
    }

    /// The error says why nothing is admitted any more, of all claims or of some.
    pub fn check_ended(&self) -> Result<(), String> {
        let why = match (self.has_ended(true), self.has_ended(false)) {
            (true, _) => "another watermark store came in the place of this process's",
            (false, true) => "the lock service seals past this process",
            (false, false) => return Ok(()),
        };
        Err(format!("{why}: it has to be started again"))
    }

    /// Whether watermarks can be made durable.
    pub fn is_available(&self) -> bool {
        self.inner.watermarks.is_available()
    }

    /// Permits for all claims (sorted by lock, each lock once), or why not. Waits until `deadline`.
    /// `last` remembers the gate for the next time.
    pub async fn admit(
        &self,
        claims: &[Claim],
        last: &mut LastGate,
        hold: Duration,
        deadline: Instant,
    ) -> Result<InFlight, Refusal> {
        if self.inner.doubts.count() >= DOUBTS_MAX {
            return Err(Refusal::busy("too many writes are in doubt", RETRY_AFTER));
        }
        if let [claim] = claims
            && let Some(permit) = last.permit(claim, hold)
        {
            return Ok(InFlight::new(vec![permit], hold));
        }
        for _ in 0..ROUNDS_MAX {
            if let Some(permits) = self.try_admit(claims, hold) {
                if let [(_, entry)] = permits.as_slice() {
                    last.remember(entry);
                }
                return Ok(InFlight::new(permits, hold));
            }
            // Each is settled while no permit is held, so that nobody waits while holding.
            for claim in claims {
                self.settle(claim, Some(hold), deadline).await?;
            }
        }
        Err(Refusal::busy(
            "newer tokens keep coming for these locks",
            RETRY_AFTER,
        ))
    }

    /// All permits at this instant, or none of them.
    fn try_admit(&self, claims: &[Claim], hold: Duration) -> Option<Vec<(Permit, Arc<Entry>)>> {
        let mut permits = Vec::with_capacity(claims.len());
        for claim in claims {
            let slot = self.inner.slots.get(&claim.lock)?;
            let entry = slot.get()?;
            let floor = claim.token.get();
            let is_marked = entry.has_hold(hold) && entry.has_backend_floor(floor);
            if entry.unsigned != claim.unsigned || !is_marked {
                return None;
            }
            permits.push((entry.gate.permit(claim.token).ok()?, Arc::clone(entry)));
        }
        Some(permits)
    }

    /// Settles what a read presents. `last` remembers the gate for the next time.
    pub async fn settle_all(
        &self,
        claims: &[Claim],
        last: &mut LastGate,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        if let [claim] = claims
            && last.is_settled(claim)
        {
            return Ok(());
        }
        for claim in claims {
            self.settle(claim, None, deadline).await?;
        }
        if let [claim] = claims
            && let Some(entry) = self.loaded(&claim.lock)
        {
            last.remember(&entry);
        }
        Ok(())
    }

    /// Settles one claim and gives nothing: what a read needs. `hold`: writes are to follow.
    pub async fn settle(
        &self,
        claim: &Claim,
        hold: Option<Duration>,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let how = Settling {
            hold,
            ..Settling::default()
        };
        self.settle_in_time(claim, how, deadline).await.map(|_| ())
    }

    /// Settles a claim from outside, for this grant. Whether the watermark was at its token before,
    /// and not by an earlier seal of the same grant.
    pub async fn seal(
        &self,
        claim: &Claim,
        grant: &str,
        deadline: Instant,
    ) -> Result<bool, Refusal> {
        let how = Settling {
            grant: Some(grant).filter(|grant| !grant.is_empty()),
            ..Settling::default()
        };
        let is_its_own = self.settle_in_time(claim, how, deadline).await?;
        Ok(!is_its_own)
    }

    /// The same for a session of a Redis server whose fence keys it is then put into itself: a
    /// raise without it would end it too.
    pub async fn settle_beside(
        &self,
        claim: &Claim,
        own: &FenceKeys,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let how = Settling {
            own: Some(own),
            ..Settling::default()
        };
        self.settle_in_time(claim, how, deadline).await.map(|_| ())
    }

    async fn settle_in_time(
        &self,
        claim: &Claim,
        how: Settling<'_>,
        deadline: Instant,
    ) -> Result<bool, Refusal> {
        let settling = self.settle_unbounded(claim, how);
        match tokio::time::timeout_at(deadline, settling).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.busy(claim)),
        }
    }

    /// Whether it was this claim that raised the watermark to its token, or an earlier seal of its
    /// grant.
    async fn settle_unbounded(&self, claim: &Claim, how: Settling<'_>) -> Result<bool, Refusal> {
        let Settling { hold, own, grant } = how;
        loop {
            let entry = self
                .entry(&claim.lock, claim.unsigned)
                .await
                .map_err(|it| tell(it, claim))?;
            entry.touch();
            if let Some(hold) = hold {
                entry.want_hold(hold);
            }
            let (outcome, has_raised) = match entry.gate.permit(claim.token) {
                Ok(_settled) => (Presented::Settled, false),
                Err(_) => entry.present(claim.token, grant).await,
            };
            match outcome {
                Presented::Settled => {}
                Presented::Retired => continue,
                Presented::NotDurable => return Err(not_durable(claim)),
                Presented::Ended => return Err(self.ended(claim)),
                Presented::Stale { watermark, .. } => {
                    let watermark = Token::new(watermark);
                    return Err(Refusal::stale(claim.lock.clone(), claim.token, watermark));
                }
            }
            match hold {
                Some(hold) if !entry.has_hold(hold) && !entry.mark_hold(hold).await => {
                    return Err(not_durable(claim));
                }
                _ => {}
            }
            let floor = claim.token.get();
            return match self.raise_backends(&entry, floor, own).await {
                Ok(()) => Ok(has_raised || entry.was_sealed_for(claim.token, grant)),
                Err(not_raised) => Err(not_raised.refusal(claim.lock.clone(), claim.token)),
            };
        }
    }

    /// The same for a claim whose lock a backend was found not to be at the floor of.
    pub async fn settle_anew(&self, claim: &Claim, deadline: Instant) -> Result<(), Refusal> {
        if let Some(entry) = self.loaded(&claim.lock) {
            entry.note_backend_floor(0);
        }
        self.settle(claim, None, deadline).await
    }

    /// Has the backends that check tokens themselves refuse what is below this floor.
    /// `own`: fence keys that the caller raises itself.
    async fn raise_backends(
        &self,
        entry: &Entry,
        floor: u64,
        own: Option<&FenceKeys>,
    ) -> Result<(), NotRaised> {
        if entry.has_backend_floor(floor) {
            return Ok(());
        }
        let mut all = true;
        for floors in &entry.floors {
            if own.is_some_and(|own| floors.are(own)) {
                all = false;
                continue;
            }
            floors
                .raise(entry.gate.lock(), floor, entry.unsigned)
                .await?;
        }
        if all {
            entry.note_backend_floor(floor);
        }
        Ok(())
    }

    /// Closes a lock to this token and everything below; answers with the floor.
    pub async fn close(&self, claim: &Claim, deadline: Instant) -> Result<u64, Refusal> {
        let closing = async {
            loop {
                let entry = self
                    .entry(&claim.lock, claim.unsigned)
                    .await
                    .map_err(|it| tell(it, claim))?;
                entry.touch();
                match entry.close(claim.token).await {
                    Presented::Retired => continue,
                    Presented::NotDurable => return Err(not_durable(claim)),
                    Presented::Ended => return Err(self.ended(claim)),
                    // A close is never stale: a higher floor closes the token too.
                    Presented::Settled | Presented::Stale { .. } => {}
                }
                let floor = entry.gate.status().floor;
                return match self.raise_backends(&entry, floor, None).await {
                    Ok(()) => Ok(floor),
                    // A higher floor closes the token too.
                    Err(NotRaised::Higher(higher)) => Ok(higher.max(floor)),
                    Err(not_raised) => Err(not_raised.refusal(claim.lock.clone(), claim.token)),
                };
            }
        };
        match tokio::time::timeout_at(deadline, closing).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.busy(claim)),
        }
    }

    /// The gate of a lock if it is in memory.
    pub fn loaded(&self, lock: &LockName) -> Option<Arc<Entry>> {
        self.inner.slots.get(lock)?.get().cloned()
    }

    async fn entry(&self, lock: &LockName, unsigned: bool) -> Result<Arc<Entry>, NoGate> {
        let found = self.inner.slots.get(lock).map(|slot| Arc::clone(&slot));
        let slot = match found {
            Some(slot) => slot,
            None => self.new_slot(lock)?,
        };
        let entry = slot.get_or_try_init(|| self.load(lock, unsigned)).await?;
        if entry.unsigned != unsigned {
            return Err(NoGate::OtherKind);
        }
        if self.has_ended(unsigned) {
            entry.gate.end();
        }
        Ok(Arc::clone(entry))
    }

    fn new_slot(&self, lock: &LockName) -> Result<Arc<Slot>, NoGate> {
        if self.inner.slots.len() >= GATES_MAX {
            self.inner.crowded.notify_one();
            return Err(NoGate::Crowded);
        }
        let slot = self.inner.slots.entry(lock.clone()).or_default();
        Ok(Arc::clone(&slot))
    }
}
