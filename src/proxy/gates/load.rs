//! From a record, or from none, to a gate: what an earlier run may have left at the backends is in
//! doubt until its hold, counted from this start, is over.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::entry::Entry;
use super::{Gates, Inner, NoGate};
use crate::gate::{Gate, Recovered, Status};
use crate::lock_name::LockName;
use crate::proxy::registry::{Registry, Standing};
use crate::proxy::watermarks::{LoadError, Stored};

impl Gates {
    pub(super) async fn load(&self, lock: &LockName, unsigned: bool) -> Result<Arc<Entry>, NoGate> {
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
            (Some(registry), Some(stored))
                if (unconfirmed || stored.doubted) && !stored.unsigned =>
            {
                registry.floor(lock).await
            }
            (None, Some(stored)) if stored.doubted => {
                Err("its record was rolled back, and no lock service is configured".to_owned())
            }
            _ => Ok(1),
        };
        let floor = floor.map_err(NoGate::Floor)?.max(1);
        Ok(inner.start_gate(lock, stored, floor, unsigned, unconfirmed))
    }

    /// When everything that is not known here has ended at the backends.
    pub fn holds_end(&self) -> Instant {
        let holds = self.inner.holds.0.iter().map(|(_, hold)| *hold);
        self.inner.hold_from() + holds.max().unwrap_or_default()
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
        // What was rolled back says nothing of what was admitted since.
        let untold = stored.is_none_or(|stored| unconfirmed && !stored.unsigned);
        if untold && doubtful && Instant::now() < until {
            recovered.in_doubt = vec![recovered.floor - 1];
        }
        let timed = recovered.in_doubt.clone();
        let unproven = self.left.is_pending(lock).then(|| {
            // The session may have carried what was admitted last, and what it drained.
            let left = stored.map(|stored| stored.recover(true).in_doubt);
            left.and_then(|left| left.first().copied())
                .unwrap_or(recovered.floor - 1)
        });
        recovered.in_doubt.extend(unproven);
        let hold = stored.map_or(Duration::ZERO, |stored| stored.hold);
        let gate = Gate::new(lock.clone(), &recovered);
        let unsigned = stored.map_or(unsigned, |stored| stored.unsigned);
        let floors = self.floors.iter().filter(|it| it.guards(lock)).cloned();
        let parts = (
            self.watermarks.clone(),
            self.doubts.clone(),
            floors.collect(),
        );
        let entry = Entry::new(gate, unsigned, hold, self.started, parts);
        for token in timed {
            self.doubts.add(Arc::clone(&entry), token, until);
        }
        if let Some(token) = unproven {
            let doubt = self.doubts.until_proven(Arc::clone(&entry), token);
            self.left.hold(lock, doubt);
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

    /// When everything that earlier runs, and another store's processes, left at the backends has
    /// ended.
    fn hold_end(&self, lock: &LockName, stored: Option<&Stored>) -> Instant {
        let recorded = stored.map_or(Duration::ZERO, |stored| stored.hold);
        self.hold_from() + recorded.max(self.holds.of(lock))
    }

    /// This run's start: the process before had this store open. One with another store may have
    /// run until lockd took this one in its place.
    fn hold_from(&self) -> Instant {
        let lost_at = self.registry.as_ref().and_then(Registry::lost_at);
        lost_at.unwrap_or(self.started)
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
