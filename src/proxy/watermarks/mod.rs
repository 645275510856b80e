//! The durable watermarks: what survives a crash of the proxy.
//!
//! One redb file, `data_dir/watermarks.redb`, one record per lock, written by one thread with group
//! commit (`committer`). Invariants:
//! - a change is on disk before its owner is told so; a change that failed says so, and the store
//!   serves again as soon as the disk does;
//! - floors and watermarks in the file never fall;
//! - what a run wrote is believed by a later one only if the file is known to be the last that
//!   there was: after an end out of order it may be a copy that was made under a running process,
//!   and after lockd's word that the store was lost it is an older one. So each record tells its
//!   run, and where lockd can be asked, those of earlier runs are doubted until it was;
//! - a mark of a run says that this run may have left writes at a backend; it is cleared only when
//!   the lock's gate was idle.
//!
//! It leaves to others: what to write and when (the gate), how long to wait after a crash
//! (`proxy::gates`), what to do without a record (`proxy::floors`).

mod committer;
mod database;
mod prepared;
mod record;
mod sessions;
#[cfg(test)]
mod tests;

use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use redb::Database;

use self::committer::{Committer, Work};
use self::database::Identity;
use crate::gate::Record;
use crate::lock_name::LockName;

pub use database::{FILE_NAME, LoadError, OpenError};
pub use prepared::PreparedRow;
pub use record::{RECORD_BYTES, Stored, Torn, name_hash};
pub use sessions::{BackendSession, LeftSession};

/// Most changes that wait for the thread. One more is refused at once.
pub const QUEUE_CHANGES_MAX: usize = 16 * 1024;

/// Most processes of a lineage.
const LINEAGE_MAX: usize = 16;

/// What is to be made durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A gate's record, and the mark that this run may forward writes under it.
    Raise {
        /// The lock.
        lock: LockName,
        /// From [`Gate::take_persist`](crate::gate::Gate::take_persist).
        record: Record,
        /// The grant whose seal raised it to the watermark, as [`name_hash`]; 0: none.
        sealed_for: u64,
        /// The longest `in_doubt_hold` of the listeners that forward under it.
        hold: Duration,
        /// Its tokens come from another lock service.
        unsigned: bool,
    },
    /// A listener with a longer hold forwards under the record too.
    Hold {
        /// The lock.
        lock: LockName,
        /// The listener's `in_doubt_hold`.
        hold: Duration,
    },
    /// The lock's gate was idle and has left memory: clears the mark.
    Clean {
        /// The lock.
        lock: LockName,
    },
    /// It is known that no older store was lost, or what it left has ended.
    Confirmed,
    /// lockd has noted this process.
    Noted {
        /// See [`Start::process`].
        process: String,
    },
    /// What was sealed since may not be in this store: lockd is asked for the floor of each lock in
    /// it that was not raised in this run.
    Doubted {
        /// It was rolled back, or came in the place of another one: what is not known in it may be
        /// at the backends.
        lost: bool,
    },
    /// A backend session is about to carry its first write under a lock.
    Carries {
        /// The session.
        session: BackendSession,
        /// The lock.
        lock: LockName,
    },
    /// Nothing of a backend session can be applied any more.
    Ended(BackendSession),
    /// A transaction is about to be prepared, to be committed by whoever has the tickets then.
    Prepares(PreparedRow),
    /// Nothing is prepared by this use of its name any more.
    PreparedEnded(PreparedRow),
}

/// A change with its owner.
pub struct Change {
    /// What.
    pub what: What,
    /// Called once, with whether it is on disk.
    pub done: Box<dyn FnOnce(bool) + Send>,
}

/// How the store is opened.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Make a store that does not exist although nobody can be asked for floors.
    pub init: bool,
    /// There are locks for whose floors nobody can be asked.
    pub alone: bool,
    /// This proxy registers with lockd, which knows whether it had another store.
    pub registered: bool,
    /// Of the rules and modes: another one than the last run's is a change of configuration.
    pub fingerprint: u64,
    /// The lock patterns of the rules.
    pub patterns: Vec<String>,
}

/// What the file told at the start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Start {
    /// Random, made with the file.
    pub store_id: String,
    /// Counts the starts, from 1.
    pub run: u64,
    /// Random, made at this start: no other process has it, not even over a copy of the store.
    pub process: String,
    /// The processes of this store that lockd may have noted last.
    pub after: Vec<String>,
    /// It holds floors of locks whose tokens lockd issues.
    pub has_floors: bool,
    /// The last run did not end in order, as far as this file knows, and lockd can be asked for
    /// what may be missing in it: it may be a copy that was made while a process used it.
    pub unclean: bool,
    /// The last run ended unclean *and* under other rules: writes that it did not track as this run
    /// would may be at the backends.
    pub suspect: bool,
    /// An older store may have been lost, or this one rolled back: what is not known here may be
    /// at the backends.
    pub unconfirmed: bool,
    /// The lock patterns to register for: those of the rules, and after an unclean end those of the
    /// run before, whose writes may still be at the backends.
    pub patterns: Vec<String>,
}

/// The handle. Cheap to clone.
#[derive(Clone)]
pub struct Watermarks {
    shared: Arc<Shared>,
    queue: SyncSender<Work>,
}

/// The thread. [`WatermarksThread::close`] ends it; dropped, it ends without the clean mark.
pub struct WatermarksThread {
    queue: SyncSender<Work>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// `None` while it has failed.
    database: RwLock<Option<Database>>,
    /// What earlier runs than this one wrote may be too low.
    doubted_before: AtomicU64,
    /// See [`Watermarks::on_replaced`].
    on_replaced: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Shared {
    // A panic inside redb leaves no state of ours half changed: the database is closed on errors.
    fn read_database(&self) -> RwLockReadGuard<'_, Option<Database>> {
        self.database.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn doubt_before(&self, run: u64) {
        self.doubted_before.fetch_max(run, Ordering::AcqRel);
    }

    fn write_database(&self) -> RwLockWriteGuard<'_, Option<Database>> {
        self.database
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watermarks {
    /// Opens or makes the store in `data_dir`, begins a run in it, and starts the thread.
    pub fn open(
        data_dir: &Path,
        opening: Opening,
    ) -> Result<(Watermarks, WatermarksThread, Start), OpenError> {
        let path = data_dir.join(FILE_NAME);
        let failed = |source| OpenError::Folder {
            dir: data_dir.into(),
            source,
        };
        match (path.try_exists().map_err(failed)?, opening.init) {
            (true, true) => return Err(OpenError::AlreadyInitialised { path: path.clone() }),
            (false, false) if opening.alone => {
                return Err(OpenError::NotInitialised {
                    dir: data_dir.into(),
                });
            }
            (false, _) => database::create_folder(data_dir)?,
            (true, false) => {}
        }
        let held = database::hold(data_dir)?;
        if !path.try_exists().map_err(failed)? {
            database::create(data_dir, &new_identity(&opening).map_err(failed)?)?;
        }
        let unusable = |reason| OpenError::Unusable {
            path: path.clone(),
            reason,
        };
        let process = random_id().map_err(failed)?;
        let registered = opening.registered;
        let begun = unpanicked(|| begin_run(data_dir, opening, &process));
        let (database, last, identity, has_floors) = match begun {
            Ok(begun) => begun?,
            Err(Damaged) => return Err(unusable("it is damaged".to_owned())),
        };
        let unclean = registered && !last.clean;
        let start = Start {
            store_id: identity.store_id.clone(),
            run: identity.run,
            process,
            after: last.lineage,
            unclean,
            has_floors,
            suspect: !last.clean && last.fingerprint != identity.fingerprint,
            unconfirmed: identity.unconfirmed,
            patterns: identity.patterns.clone(),
        };
        let unclean_before = registered.then_some(identity.unclean_before);
        let doubted_before = identity.lost_before.max(unclean_before.unwrap_or(0));
        let shared = Arc::new(Shared {
            database: RwLock::new(Some(database)),
            doubted_before: AtomicU64::new(doubted_before),
            on_replaced: OnceLock::new(),
        });
        let committer = Committer::new((data_dir.into(), held), Arc::clone(&shared), identity);
        let (watermarks, thread) = spawn(shared, committer).map_err(failed)?;
        Ok((watermarks, thread, start))
    }

    /// The record of a lock. Blocks on the disk.
    pub fn load(&self, lock: &LockName) -> Result<Option<Stored>, LoadError> {
        self.with_database(|database| database::load(database, lock))
    }

    /// Whether the record's floor may have been higher: lockd is to be asked for it.
    pub fn is_doubted(&self, stored: &Stored) -> bool {
        let before = self.shared.doubted_before.load(Ordering::Acquire);
        // lockd knows nothing of another service's tokens.
        !stored.unsigned && stored.run < before
    }

    /// Records in the order of their names. Blocks on the disk.
    pub fn list(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(LockName, Stored)>, LoadError> {
        self.with_database(|database| database::list(database, prefix, after, limit))
    }

    /// The sessions that may still be at the backends. Blocks on the disk.
    pub fn sessions(&self) -> Result<Vec<LeftSession>, LoadError> {
        self.with_database(sessions::list)
    }

    /// The transactions that may be prepared at the backends. Blocks on the disk.
    pub fn prepared(&self) -> Result<Vec<PreparedRow>, LoadError> {
        self.with_database(prepared::list)
    }

    fn with_database<T>(
        &self,
        read: impl FnOnce(&Database) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        let guard = self.shared.read_database();
        match guard.as_ref() {
            Some(database) => unpanicked(|| read(database)).unwrap_or_else(|Damaged| {
                tracing::error!("the watermark store is damaged");
                Err(LoadError::Unavailable)
            }),
            None => {
                drop(guard);
                // A full queue has its own reasons to reopen.
                let _ = self.queue.try_send(Work::Reopen);
                Err(LoadError::Unavailable)
            }
        }
    }

    /// What is done where another store is found in the place of this one when it is opened again:
    /// somebody has put it there, and what this process knows is not its any more. Set once.
    pub fn on_replaced(&self, act: Box<dyn Fn() + Send + Sync>) {
        // A second one would belong to other gates over the same store.
        let is_first = self.shared.on_replaced.set(act).is_ok();
        debug_assert!(is_first, "set once");
    }

    /// Whether the store is open.
    pub fn is_available(&self) -> bool {
        self.shared.read_database().is_some()
    }

    /// Hands a change to the thread. Never blocks: with a full queue the change fails at once.
    pub fn submit(&self, what: What, done: Box<dyn FnOnce(bool) + Send>) {
        let change = Work::Change(Change { what, done });
        match self.queue.try_send(change) {
            Ok(()) => {}
            Err(TrySendError::Full(work) | TrySendError::Disconnected(work)) => {
                if let Work::Change(change) = work {
                    (change.done)(false);
                }
            }
        }
    }
}

impl Watermarks {
    /// Hands a change to the thread, and waits for room in its queue. Blocks.
    pub fn submit_waiting(&self, what: What, done: Box<dyn FnOnce(bool) + Send>) {
        if let Err(unsent) = self.queue.send(Work::Change(Change { what, done }))
            && let Work::Change(change) = unsent.0
        {
            (change.done)(false);
        }
    }
}

impl WatermarksThread {
    /// Writes what waits and ends the run. `clean`: nothing that was admitted in it is still at a
    /// backend. Blocks for as long as the disk takes.
    pub fn close(mut self, clean: bool) {
        self.end(clean);
    }

    fn end(&mut self, clean: bool) {
        let _ = self.queue.send(Work::End { clean });
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the watermark thread panicked");
        }
    }
}

impl Drop for WatermarksThread {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end(false);
        }
    }
}

/// Opens the file and begins a run in it: the run before, this one, and whether it holds floors.
fn begin_run(
    data_dir: &Path,
    opening: Opening,
    process: &str,
) -> Result<(Database, Identity, Identity, bool), OpenError> {
    let (database, last) = database::open(data_dir)?;
    let mut patterns = opening.patterns;
    if !last.clean {
        let dropped = last.patterns.iter().filter(|it| !patterns.contains(it));
        patterns.extend(dropped.cloned().collect::<Vec<_>>());
    }
    let run = last.run + 1;
    let unclean = opening.registered && !last.clean;
    let identity = Identity {
        run,
        unclean_before: if unclean { run } else { last.unclean_before },
        clean: false,
        fingerprint: opening.fingerprint,
        patterns,
        lineage: longer(&last.lineage, process),
        ..last.clone()
    };
    let unusable = |error: redb::Error| OpenError::Unusable {
        path: data_dir.join(FILE_NAME),
        reason: error.to_string(),
    };
    database::write_identity(&database, &identity).map_err(unusable)?;
    let has_floors = database::has_floors(&database).map_err(unusable)?;
    Ok((database, last, identity, has_floors))
}

/// The lineage with a process that is going to ask. Where many in a row were never answered, the
/// oldest of those that asked are forgotten; had lockd noted one of them, this store would be taken
/// for a lost one, which is safe.
fn longer(lineage: &[String], process: &str) -> Vec<String> {
    let mut lineage = lineage.to_vec();
    if lineage.len() >= LINEAGE_MAX {
        lineage.remove(1);
    }
    lineage.push(process.to_owned());
    lineage
}

/// The file is not what redb wrote.
struct Damaged;

/// redb checks what it reads, and panics where it finds a page that it cannot have written.
fn unpanicked<T>(work: impl FnOnce() -> T) -> Result<T, Damaged> {
    // Nothing of ours is half changed: the file is refused, or the read was all there was to do.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Damaged)
}

fn new_identity(opening: &Opening) -> std::io::Result<Identity> {
    Ok(Identity {
        store_id: random_id()?,
        run: 0,
        commits: 0,
        // Nothing was ever forwarded under it.
        clean: true,
        fingerprint: opening.fingerprint,
        unconfirmed: opening.registered,
        lost_before: 0,
        unclean_before: 0,
        patterns: vec![],
        lineage: vec![],
    })
}

/// 128 random bits in hex: an id against mix-ups.
fn random_id() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

fn spawn(
    shared: Arc<Shared>,
    committer: Committer,
) -> std::io::Result<(Watermarks, WatermarksThread)> {
    let (queue, work) = sync_channel(QUEUE_CHANGES_MAX);
    let thread = std::thread::Builder::new()
        .name("watermarks".into())
        .spawn(move || committer.run(&work))?;
    let watermarks = Watermarks {
        shared,
        queue: queue.clone(),
    };
    Ok((
        watermarks,
        WatermarksThread {
            queue,
            thread: Some(thread),
        },
    ))
}
