//! The one thread that writes: group commit.
//!
//! It takes everything that waits, applies it in order in one transaction, syncs once, and only
//! then tells each change's owner. Invariants:
//! - `done(true)` is called only after the change is on disk;
//! - each change's `done` is called exactly once, whatever happens;
//! - after any error the database is closed; it is opened again, and its identity read again,
//!   before another try, since redb stays failed after an I/O error and its memory may differ from
//!   the disk.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use redb::{Database, ReadableTable, WriteTransaction};

use super::database::{self, Identity, LOCKS, Locks, META};
use super::record::Stored;
use super::{Change, Shared, What, prepared, sessions};

/// Most changes of one transaction.
const BATCH_CHANGES_MAX: usize = 4096;
/// How long after a failed reopening the next one is tried.
const REOPEN_AFTER: Duration = Duration::from_millis(100);

pub(super) enum Work {
    Change(Change),
    /// Someone found the database closed.
    Reopen,
    /// The last work: marks the shutdown as clean, or not.
    End {
        clean: bool,
    },
}

pub(super) struct Committer {
    dir: PathBuf,
    /// Keeps other processes from the folder, also while the database is closed.
    _held: File,
    shared: Arc<Shared>,
    identity: Identity,
    reopen_at: Instant,
}

impl Committer {
    /// `dir`: the folder, and what holds it.
    pub(super) fn new(dir: (PathBuf, File), shared: Arc<Shared>, identity: Identity) -> Committer {
        let (dir, held) = dir;
        Committer {
            dir,
            _held: held,
            shared,
            identity,
            reopen_at: Instant::now(),
        }
    }

    pub(super) fn run(mut self, queue: &Receiver<Work>) {
        let mut batch = vec![];
        while let Ok(first) = queue.recv() {
            let mut next = Some(first);
            let mut end = None;
            while let Some(work) = next.take() {
                match work {
                    Work::Change(change) => batch.push(change),
                    Work::Reopen => {}
                    Work::End { clean } => {
                        end = Some(clean);
                        break;
                    }
                }
                if batch.len() < BATCH_CHANGES_MAX {
                    next = queue.try_recv().ok();
                }
            }
            let durable = self.commit(&batch);
            for change in batch.drain(..) {
                (change.done)(durable);
            }
            if let Some(clean) = end {
                self.end(clean, queue);
                return;
            }
        }
    }

    fn commit(&mut self, batch: &[Change]) -> bool {
        if !self.ensure_open() {
            return false;
        }
        if batch.is_empty() {
            return true;
        }
        let run = self.identity.run;
        let guard = self.shared.read_database();
        let Some(database) = guard.as_ref() else {
            return false;
        };
        let commits = self.identity.commits + 1;
        let written = write_batch(database, batch, run, commits);
        drop(guard);
        match written {
            Ok(()) => {
                self.identity.commits = commits;
                if batch
                    .iter()
                    .any(|change| matches!(change.what, What::Doubted { .. }))
                {
                    self.shared.doubt_before(run);
                }
                true
            }
            Err(error) => {
                tracing::error!(%error, "watermarks cannot be made durable: writes are refused");
                self.close();
                false
            }
        }
    }

    fn close(&mut self) {
        // Dropping it frees the file's lock, so that it can be opened again.
        drop(self.shared.write_database().take());
    }

    fn ensure_open(&mut self) -> bool {
        if self.shared.read_database().is_some() {
            return true;
        }
        if Instant::now() < self.reopen_at {
            return false;
        }
        match database::open(&self.dir) {
            Ok((database, found)) if self.goes_on(&found) => {
                tracing::info!("the watermark store is open again");
                // What failed may be there all the same.
                self.identity.commits = found.commits;
                *self.shared.write_database() = Some(database);
                true
            }
            Ok(_) => {
                tracing::error!(
                    "the watermark store was replaced while this proxy ran: nothing is admitted \
                     until it is started again"
                );
                if let Some(act) = self.shared.on_replaced.get() {
                    act();
                }
                self.reopen_at = Instant::now() + REOPEN_AFTER;
                false
            }
            Err(error) => {
                tracing::warn!(%error, "the watermark store does not open yet");
                self.reopen_at = Instant::now() + REOPEN_AFTER;
                false
            }
        }
    }

    /// Whether a store that is found is the one that was open, with all that was told to last.
    fn goes_on(&self, found: &Identity) -> bool {
        let own = &self.identity;
        (&found.store_id, found.run) == (&own.store_id, own.run) && found.commits >= own.commits
    }

    fn end(mut self, clean: bool, queue: &Receiver<Work>) {
        while let Ok(work) = queue.try_recv() {
            if let Work::Change(change) = work {
                (change.done)(false);
            }
        }
        if clean && self.ensure_open() {
            let guard = self.shared.read_database();
            let marked = guard
                .as_ref()
                .map(|database| write_flag(database, "clean", true));
            drop(guard);
            if let Some(Err(error)) = marked {
                tracing::warn!(%error, "the clean end could not be marked");
            }
        }
        self.close();
    }
}

fn write_batch(
    database: &Database,
    batch: &[Change],
    run: u64,
    commits: u64,
) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    database::set_commits(&write, commits)?;
    {
        let mut locks = write.open_table(LOCKS)?;
        for change in batch {
            write_change(&write, &mut locks, &change.what, run)?;
        }
    }
    write.commit()?;
    Ok(())
}

fn write_change(
    write: &WriteTransaction,
    locks: &mut Locks<'_>,
    what: &What,
    run: u64,
) -> Result<(), redb::Error> {
    let lock = match what {
        What::Confirmed => return database::set_unconfirmed(write, false),
        What::Noted { process } => return database::set_noted(write, process),
        What::Doubted { lost } => {
            if *lost {
                database::set_unconfirmed(write, true)?;
            }
            return database::set_lost_before(write, run);
        }
        What::Carries { session, lock } => return sessions::insert(write, session, lock, run),
        What::Ended(session) => return sessions::remove(write, session),
        What::Prepares(row) => return prepared::insert(write, row),
        What::PreparedEnded(row) => return prepared::remove(write, row),
        What::Raise { lock, .. } | What::Hold { lock, .. } | What::Clean { lock } => lock,
    };
    let old = locks
        .get(lock.as_str())?
        .and_then(|old| Stored::decode(lock.as_str(), old.value()).ok());
    if let Some(new) = applied(what, old, run) {
        locks.insert(lock.as_str(), new.encode(lock.as_str()).as_slice())?;
    }
    Ok(())
}

fn write_flag(database: &Database, key: &str, set: bool) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    let value: &[u8] = if set { b"1" } else { b"0" };
    write.open_table(META)?.insert(key, value)?;
    write.commit()?;
    Ok(())
}

/// The record after a change; `None` leaves it as it is.
fn applied(what: &What, old: Option<Stored>, run: u64) -> Option<Stored> {
    match what {
        What::Raise {
            record,
            sealed_for,
            hold,
            unsigned,
            ..
        } => Some(Stored {
            floor: record.floor.max(old.map_or(0, |old| old.floor)),
            watermark: record.watermark.max(old.map_or(0, |old| old.watermark)),
            drained: record.drained,
            dirty_run: Some(run),
            hold: merged_hold(*hold, old),
            unsigned: *unsigned,
            // Its gate was loaded with lockd's word where there was a doubt.
            run,
            sealed_for: merged_seal(record.watermark, *sealed_for, old),
        }),
        What::Hold { hold, .. } => old.map(|old| Stored {
            dirty_run: Some(run),
            hold: merged_hold(*hold, Some(old)),
            ..old
        }),
        What::Clean { .. } => old.map(|old| Stored {
            dirty_run: None,
            hold: Duration::ZERO,
            drained: true,
            ..old
        }),
        What::Confirmed
        | What::Noted { .. }
        | What::Doubted { .. }
        | What::Carries { .. }
        | What::Ended(_)
        | What::Prepares(_)
        | What::PreparedEnded(_) => None,
    }
}

/// Whose seal raised it, if the record of this watermark and seal is written over the old one.
fn merged_seal(watermark: u64, sealed_for: u64, old: Option<Stored>) -> u64 {
    match old {
        Some(old) if old.watermark > watermark => old.sealed_for,
        Some(old) if old.watermark == watermark && sealed_for == 0 => old.sealed_for,
        _ => sealed_for,
    }
}

/// A dirty record keeps its longest hold until it is clean: an earlier run's writes may need it.
fn merged_hold(hold: Duration, old: Option<Stored>) -> Duration {
    match old {
        Some(old) if old.dirty_run.is_some() => hold.max(old.hold),
        _ => hold,
    }
}

#[cfg(test)]
mod tests {
    use super::applied;
    use crate::gate::Record;
    use crate::lock_name::LockName;
    use crate::proxy::watermarks::What;
    use std::time::Duration;

    fn raise(floor: u64, hold_s: u64) -> What {
        What::Raise {
            lock: LockName::new("a").unwrap(),
            record: Record {
                floor,
                watermark: floor,
                drained: false,
            },
            sealed_for: 0,
            hold: Duration::from_secs(hold_s),
            unsigned: false,
        }
    }

    fn sealed(floor: u64, for_grant: u64) -> What {
        let mut what = raise(floor, 5);
        if let What::Raise { sealed_for, .. } = &mut what {
            *sealed_for = for_grant;
        }
        what
    }

    #[test]
    fn a_seal_is_remembered_for_as_long_as_its_watermark_stands() {
        let first = applied(&sealed(9, 77), None, 1).unwrap();
        assert_eq!(first.sealed_for, 77);
        // Written again by who did not raise it, or late.
        let again = applied(&raise(9, 5), Some(first), 2).unwrap();
        assert_eq!(again.sealed_for, 77);
        let late = applied(&sealed(8, 66), Some(first), 2).unwrap();
        assert_eq!((late.watermark, late.sealed_for), (9, 77));
        let lock = LockName::new("a").unwrap();
        let clean = applied(&What::Clean { lock }, Some(first), 2).unwrap();
        assert_eq!(clean.sealed_for, 77);
        assert_eq!(
            applied(&raise(10, 5), Some(clean), 2).unwrap().sealed_for,
            0
        );
    }

    #[test]
    fn a_record_never_falls_and_keeps_its_longest_hold_until_it_is_clean() {
        let first = applied(&raise(9, 300), None, 1).unwrap();
        let second = applied(&raise(8, 5), Some(first), 2).unwrap();
        assert_eq!(
            (second.floor, second.watermark, second.dirty_run),
            (9, 9, Some(2))
        );
        assert_eq!(second.hold, Duration::from_secs(300));
        let lock = LockName::new("a").unwrap();
        let clean = applied(&What::Clean { lock }, Some(second), 2).unwrap();
        assert_eq!(
            (clean.dirty_run, clean.drained, clean.floor),
            (None, true, 9)
        );
        assert_eq!(
            applied(&raise(10, 5), Some(clean), 2).unwrap().hold,
            Duration::from_secs(5)
        );
    }
}
