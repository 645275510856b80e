//! The gates of all locks: found or loaded, raised durably, retired when idle.
//!
//! One gate per lock for the whole proxy, whatever the listener. Invariants:
//! - at most one gate of a lock can admit at a time: a lock has one slot in the map, a slot loads
//!   once, and it leaves the map only with its gate retired, under the map's own lock;
//! - every record that a gate wants durable is handed to the store and answered, whoever was waiting
//!   for it;
//! - no permit is used before the store has marked its lock for the listener's hold.
//!
//! It leaves to others: whether the ticket is genuine (`tickets`), what a refusal looks like.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry as MapEntry;
use tokio::sync::{Notify, OnceCell, oneshot};
use tokio::time::Instant;

use super::doubts::{DOUBTS_MAX, Doubts, InFlight};
use super::registry::{Registry, Standing};
use super::watermarks::{LoadError, Start, Stored, Watermarks, What};
use crate::gate::{Gate, Permit, Presented, Recovered, Status};
use crate::lock_name::{LockName, LockPattern};
use crate::protocol::Refusal;
use crate::token::Token;

/// Most gates in memory.
pub const GATES_MAX: usize = 1_000_000;
/// Most times that a request with several locks starts again before it is told busy.
const ROUNDS_MAX: usize = 64;
/// What a client is told to wait where nothing better is known.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A token that a request presents for a lock; verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The lock.
    pub lock: LockName,
    /// The token.
    pub token: Token,
    /// It is a bare integer of another lock service.
    pub unsigned: bool,
}

/// How long writes may stay at the backends, by the locks that listeners guard.
#[derive(Clone, Debug, Default)]
pub struct Holds(Vec<(Vec<LockPattern>, Duration)>);

impl Holds {
    /// The patterns and the `in_doubt_hold` of each listener.
    pub fn new(listeners: Vec<(Vec<LockPattern>, Duration)>) -> Holds {
        Holds(listeners)
    }

    fn of(&self, lock: &LockName) -> Duration {
        let named = |patterns: &[LockPattern]| patterns.iter().any(|it| it.matches(lock));
        let holds = self
            .0
            .iter()
            .filter(|(patterns, _)| named(patterns))
            .map(|(_, hold)| *hold);
        // A lock that no rule names can still be carried through any listener.
        let all = || self.0.iter().map(|(_, hold)| *hold).max();
        holds.max().or_else(all).unwrap_or_default()
    }
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
    holds: Holds,
    start: Start,
    started: Instant,
    /// See [`Gates::set_unconfirmed`].
    unconfirmed: AtomicBool,
    /// Wakes the eviction before its time.
    crowded: Notify,
}

type Slot = OnceCell<Arc<Entry>>;
type Submit = fn(&Watermarks, What, Box<dyn FnOnce(bool) + Send>);

/// A gate in memory with what the shell keeps beside it.
pub struct Entry {
    gate: Arc<Gate>,
    watermarks: Watermarks,
    doubts: Doubts,
    unsigned: bool,
    started: Instant,
    /// Longest hold, in ms, that was asked for and that is on disk.
    hold_wanted_ms: AtomicU64,
    hold_durable_ms: AtomicU64,
    /// In ms since `started`.
    used_ms: AtomicU64,
    doubt_until_ms: AtomicU64,
}

impl Entry {
    /// The gate.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    pub(super) fn doubts(&self) -> &Doubts {
        &self.doubts
    }

    /// Hands the record that the gate wants durable, if any, to the store.
    pub fn pump(self: &Arc<Entry>) {
        let Some(record) = self.gate.take_persist() else {
            return;
        };
        let hold_ms = self.hold_wanted_ms.load(Ordering::Acquire);
        let what = What::Raise {
            lock: self.gate.lock().clone(),
            record,
            hold: Duration::from_millis(hold_ms),
            unsigned: self.unsigned,
        };
        let me = Arc::clone(self);
        let done = move |durable: bool| {
            if durable {
                // Before the gate may settle: whoever is admitted by it finds the mark on disk.
                me.hold_durable_ms.fetch_max(hold_ms, Ordering::AcqRel);
            }
            me.gate.persisted(record, durable);
            me.pump();
        };
        self.watermarks.submit(what, Box::new(done));
    }

    async fn present(self: &Arc<Entry>, token: Token) -> Presented {
        let mut presentation = self.gate.present(token);
        std::future::poll_fn(|cx| {
            let outcome = Pin::new(&mut presentation).poll(cx);
            self.pump();
            outcome
        })
        .await
    }

    async fn close(self: &Arc<Entry>, token: Token) -> Presented {
        let mut closing = self.gate.close(token);
        std::future::poll_fn(|cx| {
            let outcome = Pin::new(&mut closing).poll(cx);
            self.pump();
            outcome
        })
        .await
    }

    fn want_hold(&self, hold: Duration) {
        let hold_ms = to_ms(hold);
        if self.hold_wanted_ms.load(Ordering::Relaxed) < hold_ms {
            self.hold_wanted_ms.fetch_max(hold_ms, Ordering::AcqRel);
        }
    }

    fn has_hold(&self, hold: Duration) -> bool {
        self.hold_durable_ms.load(Ordering::Acquire) >= to_ms(hold)
    }

    /// Makes the mark for a longer hold durable. False: it could not be.
    async fn mark_hold(self: &Arc<Entry>, hold: Duration) -> bool {
        let (told, answer) = oneshot::channel();
        let what = What::Hold {
            lock: self.gate.lock().clone(),
            hold,
        };
        let me = Arc::clone(self);
        let done = move |durable: bool| {
            if durable {
                me.hold_durable_ms.fetch_max(to_ms(hold), Ordering::AcqRel);
            }
            // The request may have gone away.
            let _ = told.send(durable);
        };
        self.watermarks.submit(what, Box::new(done));
        answer.await.unwrap_or(false)
    }

    pub(super) fn touch(&self) {
        let now = to_ms(self.started.elapsed());
        if self.used_ms.load(Ordering::Relaxed) < now {
            self.used_ms.store(now, Ordering::Relaxed);
        }
    }

    fn idle(&self) -> Duration {
        let used = Duration::from_millis(self.used_ms.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(used)
    }

    pub(super) fn note_doubt_until(&self, at: Instant) {
        let until = to_ms(at.saturating_duration_since(self.started));
        self.doubt_until_ms.fetch_max(until, Ordering::AcqRel);
    }

    /// Longest time until what is in doubt now is given up on.
    pub fn in_doubt_for(&self) -> Duration {
        let until = Duration::from_millis(self.doubt_until_ms.load(Ordering::Acquire));
        until.saturating_sub(self.started.elapsed())
    }

    /// Brings a gate that was looked at but never raised to where it can be retired, by making
    /// durable what it knows already. The floor and the watermark stay as they are.
    fn nudge(self: &Arc<Entry>, status: Status) {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match Token::new(status.floor.saturating_sub(1)) {
            Some(below) => drop(Pin::new(&mut self.gate.close(below)).poll(&mut cx)),
            None => drop(Pin::new(&mut self.gate.present(Token::MIN)).poll(&mut cx)),
        }
        self.pump();
    }
}

/// Why a gate could not be had. All of these are told as busy, but the last.
enum NoGate {
    Store(LoadError),
    Floor(String),
    Crowded,
    OtherKind,
}

impl Gates {
    /// No gates yet.
    pub fn new(
        watermarks: Watermarks,
        start: Start,
        holds: Holds,
        registry: Option<Registry>,
    ) -> Gates {
        let unconfirmed = AtomicBool::new(start.unconfirmed);
        Gates {
            inner: Arc::new(Inner {
                slots: DashMap::new(),
                watermarks,
                doubts: Doubts::default(),
                registry,
                holds,
                start,
                started: Instant::now(),
                unconfirmed,
                crowded: Notify::new(),
            }),
        }
    }

    /// The doubts; their task must run.
    pub fn doubts(&self) -> &Doubts {
        &self.inner.doubts
    }

    /// The longest hold of any listener.
    pub fn hold_max(&self) -> Duration {
        self.inner
            .holds
            .0
            .iter()
            .map(|(_, hold)| *hold)
            .max()
            .unwrap_or_default()
    }

    /// Whether an older store may have been lost: then a lock without a record starts in doubt, and
    /// the floor of every lock is asked for.
    pub fn set_unconfirmed(&self, unconfirmed: bool) {
        self.inner.unconfirmed.store(unconfirmed, Ordering::Release);
        let done = |durable: bool| {
            if !durable {
                tracing::error!("what lockd says about the store could not be made durable");
            }
        };
        self.inner
            .watermarks
            .submit(What::Confirmed(!unconfirmed), Box::new(done));
    }

    /// When this run began: the holds of what earlier runs left count from here.
    pub fn started(&self) -> Instant {
        self.inner.started
    }

    /// Whether watermarks can be made durable.
    pub fn is_available(&self) -> bool {
        self.inner.watermarks.is_available()
    }

    /// Permits for all claims (sorted by lock, each lock once), or why not. Waits until `deadline`.
    pub async fn admit(
        &self,
        claims: &[Claim],
        hold: Duration,
        deadline: Instant,
    ) -> Result<InFlight, Refusal> {
        if self.inner.doubts.count() >= DOUBTS_MAX {
            return Err(Refusal::busy("too many writes are in doubt", RETRY_AFTER));
        }
        for _ in 0..ROUNDS_MAX {
            if let Some(permits) = self.try_admit(claims, hold) {
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
            if entry.unsigned != claim.unsigned || !entry.has_hold(hold) {
                return None;
            }
            permits.push((entry.gate.permit(claim.token).ok()?, Arc::clone(entry)));
        }
        Some(permits)
    }

    /// Settles one claim and gives nothing: what a read needs. `hold`: writes are to follow.
    pub async fn settle(
        &self,
        claim: &Claim,
        hold: Option<Duration>,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let settled = tokio::time::timeout_at(deadline, self.settle_unbounded(claim, hold)).await;
        match settled {
            Ok(outcome) => outcome,
            Err(_) => Err(self.busy(claim)),
        }
    }

    async fn settle_unbounded(&self, claim: &Claim, hold: Option<Duration>) -> Result<(), Refusal> {
        loop {
            let entry = self
                .entry(&claim.lock, claim.unsigned)
                .await
                .map_err(|it| tell(it, claim))?;
            entry.touch();
            if let Some(hold) = hold {
                entry.want_hold(hold);
            }
            let outcome = match entry.gate.permit(claim.token) {
                Ok(_settled) => Presented::Settled,
                Err(_) => entry.present(claim.token).await,
            };
            match outcome {
                Presented::Settled => {}
                Presented::Retired => continue,
                Presented::NotDurable => return Err(not_durable(claim)),
                Presented::Stale { watermark, .. } => {
                    let watermark = Token::new(watermark);
                    return Err(Refusal::stale(claim.lock.clone(), claim.token, watermark));
                }
            }
            match hold {
                Some(hold) if !entry.has_hold(hold) && !entry.mark_hold(hold).await => {
                    return Err(not_durable(claim));
                }
                _ => return Ok(()),
            }
        }
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
                    // A close is never stale: a higher floor closes the token too.
                    Presented::Settled | Presented::Stale { .. } => {
                        return Ok(entry.gate.status().floor);
                    }
                }
            }
        };
        match tokio::time::timeout_at(deadline, closing).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.busy(claim)),
        }
    }

    fn busy(&self, claim: &Claim) -> Refusal {
        let entry = self.loaded(&claim.lock);
        let Some((entry, status)) = entry.map(|it| (Arc::clone(&it), it.gate.status())) else {
            let refusal =
                Refusal::busy("the lock's watermark could not be had in time", RETRY_AFTER);
            return refusal.for_lock(claim.lock.clone()).with_token(claim.token);
        };
        let held = entry.in_doubt_for();
        let refusal = if status.in_doubt > 0 && !held.is_zero() {
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

    async fn load(&self, lock: &LockName, unsigned: bool) -> Result<Arc<Entry>, NoGate> {
        let inner = &self.inner;
        let (watermarks, name) = (inner.watermarks.clone(), lock.clone());
        let stored = tokio::task::spawn_blocking(move || watermarks.load(&name))
            .await
            .unwrap_or(Err(LoadError::Unavailable))
            .map_err(NoGate::Store)?;
        let unconfirmed = inner.is_unconfirmed();
        let floor = match (&inner.registry, stored) {
            // lockd knows nothing of another service's tokens; `--init` spoke for these.
            (Some(registry), None) if !unsigned => registry.floor(lock).await,
            (Some(registry), Some(stored)) if unconfirmed && !stored.unsigned => {
                registry.floor(lock).await
            }
            _ => Ok(1),
        };
        let floor = floor.map_err(NoGate::Floor)?.max(1);
        Ok(inner.start_gate(lock, stored, floor, unsigned, unconfirmed))
    }

    /// Floor, watermark and doubts of a lock that is known here, loaded or not. Blocks on the disk.
    pub fn look(&self, lock: &LockName) -> Result<Option<(Status, Duration)>, LoadError> {
        if let Some(entry) = self.loaded(lock) {
            return Ok(Some((entry.gate.status(), entry.in_doubt_for())));
        }
        Ok(self
            .inner
            .watermarks
            .load(lock)?
            .map(|stored| self.inner.look_stored(lock, &stored)))
    }

    /// The same for the locks that begin with `prefix`, after `after`. Blocks on the disk.
    pub fn list(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(LockName, Status, Duration)>, LoadError> {
        let rows = self.inner.watermarks.list(prefix, after, limit)?;
        let look = |(lock, stored): (LockName, Stored)| {
            let (status, held) = match self.loaded(&lock) {
                Some(entry) => (entry.gate.status(), entry.in_doubt_for()),
                None => self.inner.look_stored(&lock, &stored),
            };
            (lock, status, held)
        };
        Ok(rows.into_iter().map(look).collect())
    }

    /// Retires gates that were not used for `idle`, over and over. Runs until it is dropped.
    pub async fn run_eviction(self, idle: Duration) {
        loop {
            // Whichever comes first, idle gates are looked for.
            let _ = tokio::time::timeout(idle, self.inner.crowded.notified()).await;
            self.evict(idle, Watermarks::submit);
        }
    }

    /// Retires all quiet gates, at the end of the run. Blocks for as long as the disk takes.
    pub fn evict_all(&self) {
        self.evict(Duration::ZERO, Watermarks::submit_waiting);
    }

    fn evict(&self, idle: Duration, submit: Submit) {
        let resting = |slot: &Arc<Slot>| slot.get().is_none_or(|entry| entry.idle() >= idle);
        let slots = self.inner.slots.iter();
        let names: Vec<LockName> = slots
            .filter(|it| resting(it.value()))
            .map(|it| it.key().clone())
            .collect();
        for name in names {
            let MapEntry::Occupied(occupied) = self.inner.slots.entry(name) else {
                continue;
            };
            // The map's lock is held: nobody finds the slot between the retirement and its removal.
            match occupied.get().get().cloned() {
                Some(entry) if resting(occupied.get()) => {
                    if self.inner.retire(&entry, submit) {
                        occupied.remove();
                    }
                }
                // Nobody is loading it.
                None if Arc::strong_count(occupied.get()) == 1 => drop(occupied.remove()),
                _ => {}
            }
        }
    }
}

impl Inner {
    fn is_unconfirmed(&self) -> bool {
        // lockd's word counts from the moment at which it came.
        let lost = |registry: &Registry| *registry.standing().borrow() == Standing::StoreLost;
        self.unconfirmed.load(Ordering::Acquire) || self.registry.as_ref().is_some_and(lost)
    }

    fn start_gate(
        &self,
        lock: &LockName,
        stored: Option<Stored>,
        floor: u64,
        unsigned: bool,
        unconfirmed: bool,
    ) -> Arc<Entry> {
        let (mut recovered, until) = match stored {
            Some(stored) => self.recover(lock, &stored),
            None => (
                Recovered {
                    floor,
                    ..Recovered::default()
                },
                self.hold_end(lock, None),
            ),
        };
        recovered.floor = recovered.floor.max(floor);
        let doubtful = unconfirmed || self.start.suspect;
        if stored.is_none() && doubtful && Instant::now() < until {
            recovered.in_doubt = vec![recovered.floor - 1];
        }
        let hold = stored.map_or(Duration::ZERO, |stored| stored.hold);
        let entry = Arc::new(Entry {
            gate: Gate::new(lock.clone(), &recovered),
            watermarks: self.watermarks.clone(),
            doubts: self.doubts.clone(),
            unsigned: stored.map_or(unsigned, |stored| stored.unsigned),
            started: self.started,
            hold_wanted_ms: AtomicU64::new(to_ms(hold)),
            hold_durable_ms: AtomicU64::new(0),
            used_ms: AtomicU64::new(to_ms(self.started.elapsed())),
            doubt_until_ms: AtomicU64::new(0),
        });
        for token in recovered.in_doubt {
            self.doubts.add(Arc::clone(&entry), token, until);
        }
        entry
    }

    fn recover(&self, lock: &LockName, stored: &Stored) -> (Recovered, Instant) {
        let older = stored.dirty_run.is_some_and(|run| run != self.start.run);
        let suspect = self.start.suspect && stored.dirty_run != Some(self.start.run);
        let until = self.hold_end(lock, Some(stored));
        let doubtful = (older || suspect) && Instant::now() < until;
        (stored.recover(doubtful), until)
    }

    /// When everything that an earlier run left at the backends has ended: counted from this start.
    fn hold_end(&self, lock: &LockName, stored: Option<&Stored>) -> Instant {
        let recorded = stored.map_or(Duration::ZERO, |stored| stored.hold);
        self.started + recorded.max(self.holds.of(lock))
    }

    fn look_stored(&self, lock: &LockName, stored: &Stored) -> (Status, Duration) {
        let (recovered, until) = self.recover(lock, stored);
        let in_doubt = recovered.in_doubt.len() as u64;
        let status = Status {
            floor: recovered.floor,
            watermark: recovered.watermark,
            settled: in_doubt == 0,
            in_flight: 0,
            in_doubt,
            waiting: 0,
        };
        let held = until.saturating_duration_since(Instant::now());
        (status, if in_doubt > 0 { held } else { Duration::ZERO })
    }

    fn retire(&self, entry: &Arc<Entry>, submit: Submit) -> bool {
        entry.pump();
        if entry.gate.try_retire() {
            let lock = entry.gate.lock().clone();
            // A mark that stays only makes the next run wait.
            submit(&self.watermarks, What::Clean { lock }, Box::new(|_| {}));
            return true;
        }
        let status = entry.gate.status();
        if !status.settled && status.in_doubt == 0 && status.waiting == 0 {
            entry.nudge(status);
        }
        false
    }
}

fn to_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn not_durable(claim: &Claim) -> Refusal {
    Refusal::busy("the watermark cannot be made durable", RETRY_AFTER)
        .for_lock(claim.lock.clone())
        .with_token(claim.token)
}

fn tell(no_gate: NoGate, claim: &Claim) -> Refusal {
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
