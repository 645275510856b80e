//! From a record, or from none, to a gate: what an earlier run may have left at the backends is in
//! doubt until its hold, counted from this start, is over.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::{Entry, Sealed};
use super::{Gates, Inner, NoGate};
use crate::gate::{Gate, Recovered, Status};
use crate::lock_name::LockName;
use crate::proxy::registry::{Registry, Standing};
use crate::proxy::watermarks::{LoadError, Stored};

/// What is known of a lock beside its record.
struct Told {
    /// lockd's word; 1 where it was not asked.
    floor: u64,
    /// An older store may have been lost.
    unconfirmed: bool,
    /// The record may not be the last one.
    doubted: bool,
}

impl Gates {
    pub(super) async fn load(&self, lock: &LockName, unsigned: bool) -> Result<Arc<Entry>, NoGate> {
        let inner = &self.inner;
        let (watermarks, name) = (inner.watermarks.clone(), lock.clone());
        let stored = tokio::task::spawn_blocking(move || watermarks.load(&name))
            .await
            .unwrap_or(Err(LoadError::Unavailable))
            .map_err(NoGate::Store)?;
        // Never a gate from a record of the other kind: it would be one without lockd's word.
        if stored.is_some_and(|stored| stored.unsigned != unsigned) {
            return Err(NoGate::OtherKind);
        }
        let unconfirmed = inner.is_unconfirmed();
        let doubted = stored.is_some_and(|stored| inner.watermarks.is_doubted(&stored));
        let floor = match (&inner.registry, stored) {
            // lockd knows nothing of another service's tokens; `--init` spoke for these.
            (Some(registry), None) if !unsigned => registry.floor(lock).await,
            (Some(registry), Some(stored)) if doubted || unconfirmed && !stored.unsigned => {
                registry.floor(lock).await
            }
            (None, Some(_)) if doubted => {
                Err("its record was rolled back, and no lock service is configured".to_owned())
            }
            _ => Ok(1),
        };
        let floor = floor.map_err(NoGate::Floor)?.max(1);
        let told = Told {
            floor,
            unconfirmed,
            doubted,
        };
        Ok(inner.start_gate(lock, stored, told, unsigned))
    }

    /// When everything that is not known here has ended at the backends.
    pub fn holds_end(&self) -> Instant {
        self.inner.hold_from() + self.inner.holds.longest()
    }

    /// Whether locks of which nothing is known here may still start in doubt: a run that ends
    /// before that leaves it to the next one.
    pub fn is_in_holds(&self) -> bool {
        let inner = &self.inner;
        let taken = |registry: &Registry| registry.taken_at().is_some();
        let is_taken = inner.registry.as_ref().is_none_or(taken);
        (inner.start.unclean && !is_taken)
            || (inner.start.unclean || inner.start.suspect) && Instant::now() < self.holds_end()
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
        told: Told,
        unsigned: bool,
    ) -> Arc<Entry> {
        let (mut recovered, until) = match stored {
            Some(stored) => self.recover(lock, &stored),
            None => (
                Recovered {
                    floor: told.floor,
                    ..Recovered::default()
                },
                self.hold_end(lock, None),
            ),
        };
        recovered.floor = recovered.floor.max(told.floor);
        if Instant::now() < until
            && let Some(in_doubt) = self.untold(stored, &told, recovered.floor, unsigned)
        {
            recovered.in_doubt = in_doubt;
        }
        let timed = recovered.in_doubt.clone();
        let unproven = self.left.is_recorded(lock).then(|| {
            // The session may have carried what was admitted last, and what it drained.
            let left = stored.map(|stored| stored.recover(true).in_doubt);
            left.and_then(|left| left.first().copied())
                .unwrap_or(recovered.floor - 1)
        });
        recovered.in_doubt.extend(unproven);
        // Sessions that nobody knows may have carried whatever was granted.
        let lost = self
            .left
            .lost()
            .holds_back(lock)
            .map(|_| recovered.floor - 1);
        recovered.in_doubt.extend(lost);
        let hold = stored.map_or(Duration::ZERO, |stored| stored.hold);
        let gate = Gate::new(lock.clone(), &recovered);
        let floors = self.floors.iter().filter(|it| it.guards(lock)).cloned();
        let parts = (
            self.watermarks.clone(),
            self.doubts.clone(),
            floors.collect(),
        );
        // The watermark is of its own making, whatever else is not known of the store.
        let sealed = stored.map(|stored| Sealed {
            watermark: stored.watermark,
            grant: stored.sealed_for,
        });
        let entry = Entry::new(gate, unsigned, hold, sealed, self.started, parts);
        for token in timed {
            self.doubts.add(Arc::clone(&entry), token, until);
        }
        if let Some(token) = unproven {
            let doubt = self.doubts.until_proven(Arc::clone(&entry), token);
            self.left.hold(lock, doubt);
        }
        if let Some(token) = lost {
            let doubt = self.doubts.until_proven(Arc::clone(&entry), token);
            self.left.lost().hold(lock, doubt);
        }
        entry
    }

    /// What is in doubt since the store may lack what was admitted last; `None`: it has it all.
    fn untold(
        &self,
        stored: Option<Stored>,
        told: &Told,
        floor: u64,
        unsigned: bool,
    ) -> Option<Vec<u64>> {
        let below = Some(vec![floor - 1]);
        match stored {
            // A copy that was made under a running process may lack the whole record.
            None if told.unconfirmed || self.start.suspect => below,
            None if self.start.unclean && !unsigned => below,
            None => None,
            Some(stored) if stored.unsigned => None,
            // What was rolled back says nothing of what was admitted since.
            Some(_) if told.unconfirmed => below,
            Some(stored) if told.doubted && floor > stored.floor => below,
            // Its holder was admitted later, too, maybe: it goes on, and newer ones wait.
            Some(stored) if told.doubted => Some(stored.recover(true).in_doubt),
            Some(_) => None,
        }
    }

    fn recover(&self, lock: &LockName, stored: &Stored) -> (Recovered, Instant) {
        let older = stored.dirty_run.is_some_and(|run| run != self.start.run);
        let suspect = self.start.suspect && stored.dirty_run != Some(self.start.run);
        let until = self.hold_end(lock, Some(stored));
        let doubtful = (older || suspect) && Instant::now() < until;
        (stored.recover(doubtful), until)
    }

    /// When everything that earlier runs, and another store's processes, left at the backends has
    /// ended.
    fn hold_end(&self, lock: &LockName, stored: Option<&Stored>) -> Instant {
        let recorded = stored.map_or(Duration::ZERO, |stored| stored.hold);
        self.hold_from() + recorded.max(self.holds.of(lock))
    }

    /// This run's start: the process before had this store open. One with another store, or with
    /// the one that this is a copy of, may have run until lockd took this one in its place.
    fn hold_from(&self) -> Instant {
        let taken_at = self.registry.as_ref().and_then(Registry::taken_at);
        taken_at.unwrap_or(self.started)
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
}
