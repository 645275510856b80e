//! A gate in memory, and the way of its records to the store.
//!
//! Invariant: every record that the gate wants durable is handed to the store and answered, whoever
//! was waiting for it and whether they still are.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::gate::{Gate, Presented, Status};
use crate::proxy::doubts::Doubts;
use crate::proxy::floors::BackendFloors;
use crate::proxy::watermarks::{Watermarks, What, name_hash};
use crate::token::Token;

/// A gate in memory with what the shell keeps beside it.
pub struct Entry {
    pub(super) gate: Arc<Gate>,
    watermarks: Watermarks,
    doubts: Doubts,
    /// The backends that check this lock's tokens themselves.
    pub(super) floors: Vec<BackendFloors>,
    /// The floor that they are known to have; 0: not known.
    backend_floor: AtomicU64,
    pub(super) unsigned: bool,
    started: Instant,
    /// Longest hold, in ms, that was asked for and that is on disk.
    hold_wanted_ms: AtomicU64,
    hold_durable_ms: AtomicU64,
    /// In ms since `started`.
    used_ms: AtomicU64,
    doubt_until_ms: AtomicU64,
    /// Where a seal has raised the watermark to, and of which grant it was.
    sealed: Mutex<Option<Sealed>>,
}

/// A watermark that a seal has raised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sealed {
    pub watermark: u64,
    /// The grant, as [`name_hash`].
    pub grant: u64,
}

impl Entry {
    /// A gate as the store and the last run left it. `hold`: of what the last run left.
    pub(super) fn new(
        gate: Arc<Gate>,
        unsigned: bool,
        hold: Duration,
        sealed: Option<Sealed>,
        started: Instant,
        parts: (Watermarks, Doubts, Vec<BackendFloors>),
    ) -> Arc<Entry> {
        Arc::new(Entry {
            gate,
            watermarks: parts.0,
            doubts: parts.1,
            floors: parts.2,
            backend_floor: AtomicU64::new(0),
            unsigned,
            started,
            hold_wanted_ms: AtomicU64::new(to_ms(hold)),
            hold_durable_ms: AtomicU64::new(0),
            used_ms: AtomicU64::new(to_ms(started.elapsed())),
            doubt_until_ms: AtomicU64::new(0),
            sealed: Mutex::new(sealed),
        })
    }

    /// The gate.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    pub(in crate::proxy) fn doubts(&self) -> &Doubts {
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
            sealed_for: self.sealed_for(record.watermark),
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

    /// Also whether it was this presentation that raised the watermark to the token. `grant`: whose
    /// seal it is.
    pub(super) async fn present(
        self: &Arc<Entry>,
        token: Token,
        grant: Option<&str>,
    ) -> (Presented, bool) {
        let mut presentation = self.gate.present(token);
        let mut unnoted = grant;
        let outcome = std::future::poll_fn(|cx| {
            let outcome = Pin::new(&mut presentation).poll(cx);
            // At once: a seal that is given up while it waits has raised, too.
            if presentation.has_raised()
                && let Some(grant) = unnoted.take()
            {
                *self.lock_sealed() = Some(Sealed {
                    watermark: token.get(),
                    grant: name_hash(grant),
                });
            }
            self.pump();
            outcome
        })
        .await;
        (outcome, presentation.has_raised())
    }

    /// Whether a seal of this grant raised the watermark to this token, as far as is known here.
    pub(super) fn was_sealed_for(&self, token: Token, grant: Option<&str>) -> bool {
        grant.is_some_and(|grant| self.sealed_for(token.get()) == name_hash(grant))
    }

    /// The grant whose seal raised the watermark to this; 0: none, or not known.
    fn sealed_for(&self, watermark: u64) -> u64 {
        let sealed = *self.lock_sealed();
        let sealed = sealed.filter(|sealed| sealed.watermark == watermark);
        sealed.map_or(0, |sealed| sealed.grant)
    }

    fn lock_sealed(&self) -> MutexGuard<'_, Option<Sealed>> {
        // It is replaced as a whole.
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn close(self: &Arc<Entry>, token: Token) -> Presented {
        let mut closing = self.gate.close(token);
        std::future::poll_fn(|cx| {
            let outcome = Pin::new(&mut closing).poll(cx);
            self.pump();
            outcome
        })
        .await
    }

    pub(super) fn want_hold(&self, hold: Duration) {
        let hold_ms = to_ms(hold);
        if self.hold_wanted_ms.load(Ordering::Relaxed) < hold_ms {
            self.hold_wanted_ms.fetch_max(hold_ms, Ordering::AcqRel);
        }
    }

    pub(super) fn has_hold(&self, hold: Duration) -> bool {
        self.hold_durable_ms.load(Ordering::Acquire) >= to_ms(hold)
    }

    /// Makes the mark for a longer hold durable. False: it could not be.
    pub(super) async fn mark_hold(self: &Arc<Entry>, hold: Duration) -> bool {
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

    /// Whether every backend that checks tokens itself was seen at this floor.
    pub(super) fn has_backend_floor(&self, floor: u64) -> bool {
        self.floors.is_empty() || self.backend_floor.load(Ordering::Acquire) == floor
    }

    /// They were seen at this floor; 0: they are to be asked again. A value that another raise
    /// overtakes only costs a question: what counts is the comparison within each write.
    pub(super) fn note_backend_floor(&self, floor: u64) {
        self.backend_floor.store(floor, Ordering::Release);
    }

    pub(in crate::proxy) fn touch(&self) {
        let now = to_ms(self.started.elapsed());
        if self.used_ms.load(Ordering::Relaxed) < now {
            self.used_ms.store(now, Ordering::Relaxed);
        }
    }

    pub(super) fn idle(&self) -> Duration {
        let used = Duration::from_millis(self.used_ms.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(used)
    }

    pub(in crate::proxy) fn note_doubt_until(&self, at: Instant) {
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
    pub(super) fn nudge(self: &Arc<Entry>, status: Status) {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match Token::new(status.floor.saturating_sub(1)) {
            Some(below) => drop(Pin::new(&mut self.gate.close(below)).poll(&mut cx)),
            None => drop(Pin::new(&mut self.gate.present(Token::MIN)).poll(&mut cx)),
        }
        self.pump();
    }
}

fn to_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
