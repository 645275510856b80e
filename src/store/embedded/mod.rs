//! The embedded store: durable in one redb file, with group commit.
//!
//! One thread owns the data (`committer`); the methods of the trait hand it operations through a
//! bounded queue and wait for the answer, which comes when the change is on disk. Tokens and
//! versions come from one durable sequence for all locks, which nothing lowers.
//!
//! One process at a time: redb locks the file.
//!
//! Invariants: nothing is answered or shown to a watch before it is durable; a session that was
//! reported gone is not renewed again, except that a disk which failed at that moment may bring it
//! back for one more time to live, with its entries, as a restart does.

mod committer;
mod deadlines;
mod disk;
mod state;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use redb::{Database, DatabaseError};
use tokio::sync::{mpsc, oneshot};

use self::committer::{Answer, Committer, Job, Live, Mirror, lock};
use self::deadlines::Deadlines;
use crate::clock;
use crate::lock_name::LockName;
use crate::store::durable_file::sync_folder;
use crate::store::{
    Enqueue, Enqueued, Entry, Event, QueueView, Remove, Removed, SESSION_TTL_MAX, SESSION_TTL_MIN,
    SessionId, Store, StoreError, check_enqueue, check_record, random_session_id,
};
use crate::token::Token;

/// Operations that wait for the committer; the next caller waits to get in.
const JOBS_MAX: usize = 16_384;

/// How often sessions past their deadline are looked for.
const REAP_EVERY: Duration = Duration::from_millis(100);

/// Sessions that one look removes; the rest waits for the next.
const REAP_SESSIONS_MAX: usize = 1024;

/// Events that wait for the reader of a watch.
const WATCH_EVENTS_MAX: usize = 4096;

/// How long a watch waits before it tries a closed store again.
const WATCH_RETRY_EVERY: Duration = Duration::from_millis(100);

/// The store.
pub struct EmbeddedStore {
    jobs: Option<mpsc::Sender<Job>>,
    deadlines: Arc<Mutex<Deadlines>>,
    committer: Option<JoinHandle<()>>,
    stopping: Arc<AtomicBool>,
}

impl EmbeddedStore {
    /// Opens the file, which is created if it is missing. Must be called in a tokio runtime.
    pub async fn open(path: &Path) -> Result<EmbeddedStore, StoreError> {
        let path: PathBuf = path.to_owned();
        let opened = Cell::new(false);
        EmbeddedStore::open_with(move || {
            // A file that vanished while it was in use must not come back as an empty one: its
            // tokens would start again.
            let database = if opened.get() {
                Database::open(&path)?
            } else {
                create(&path)?
            };
            opened.set(true);
            Ok(database)
        })
        .await
    }

    /// Whether the file is a store: it is there, is not empty, and one was made in it. What
    /// [`EmbeddedStore::open`] would make a new store of is none; what is damaged, or in use by
    /// another process, is an error. Must be called in a tokio runtime.
    pub async fn exists(path: &Path) -> Result<bool, StoreError> {
        match std::fs::metadata(path) {
            Ok(file) if file.len() == 0 => return Ok(false),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            _ => {}
        }
        let path = path.to_owned();
        let look = move || {
            let database = Database::open(path).map_err(redb::Error::from)?;
            disk::is_store(&database)
        };
        tokio::task::spawn_blocking(look)
            .await
            .map_err(|error| StoreError::Unavailable(format!("open: {error}")))?
            .map_err(|error| disk::failed("open", error))
    }

    /// At or above every token of this store, below every later one.
    pub async fn latest(&self) -> Result<Token, StoreError> {
        self.submit(|mirror| Ok(mirror.state.latest())).await
    }

    /// Makes the file of a store whose tokens begin above this one and that has these records,
    /// whole or not at all: it appears under its name when that is on disk. Must be called in a
    /// tokio runtime.
    pub async fn create_above(
        path: &Path,
        token: Token,
        records: Vec<(String, Vec<u8>)>,
    ) -> Result<(), StoreError> {
        let partial = path.with_extension("new");
        let failed = |error: std::io::Error| StoreError::Unavailable(format!("create: {error}"));
        match std::fs::remove_file(&partial) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(error));
            }
            _ => {}
        }
        let store = EmbeddedStore::open(&partial).await?;
        store.raise_above(token).await?;
        for (name, value) in records {
            store.put_record(&name, Some(value)).await?;
        }
        drop(store);
        std::fs::rename(&partial, path).map_err(failed)?;
        sync_folder(path).map_err(failed)
    }

    /// Opens a database of the caller's making: another storage backend, for tests that make it
    /// fail. `opener` is called again after each error of the disk, when the database that it
    /// returned before has been dropped.
    pub async fn open_with(
        opener: impl Fn() -> Result<Database, DatabaseError> + Send + 'static,
    ) -> Result<EmbeddedStore, StoreError> {
        let deadlines = Arc::new(Mutex::new(Deadlines::default()));
        let shared = Arc::clone(&deadlines);
        let committer =
            tokio::task::spawn_blocking(move || Committer::open(Box::new(opener), shared))
                .await
                .map_err(|error| StoreError::Unavailable(format!("open: {error}")))??;
        let (jobs, waiting) = mpsc::channel(JOBS_MAX);
        let stopping = Arc::new(AtomicBool::new(false));
        let committer = std::thread::Builder::new()
            .name("store-committer".to_owned())
            .spawn({
                let stopping = Arc::clone(&stopping);
                move || committer.run(waiting, &stopping)
            })
            .map_err(|error| StoreError::Unavailable(format!("no thread: {error}")))?;
        tokio::spawn(reap(jobs.downgrade(), Arc::clone(&deadlines)));
        Ok(EmbeddedStore {
            jobs: Some(jobs),
            deadlines,
            committer: Some(committer),
            stopping,
        })
    }

    async fn submit<T: Send + 'static>(
        &self,
        apply: impl FnOnce(&mut Mirror) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        submit(self.jobs.as_ref().ok_or_else(stopped)?, apply).await
    }
}

/// Ends the thread when all that was handed to it is answered, so that the file is closed when the
/// drop returns. It waits for one transaction at most per group that is queued.
impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        // A task of a runtime that is being torn down may still hold a sender and never run again,
        // so the end of the channel alone would be waited for in vain.
        self.stopping.store(true, Ordering::Release);
        if let Some(jobs) = self.jobs.take() {
            // Only wakes the thread. Where the queue is full it is awake.
            let _ = jobs.try_send(Box::new(|_| None));
        }
        if let Some(committer) = self.committer.take() {
            // A panic of the thread has been reported by itself.
            let _ = committer.join();
        }
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn open_session(&self, ttl: Duration) -> Result<(SessionId, Duration), StoreError> {
        let ttl = ttl.clamp(SESSION_TTL_MIN, SESSION_TTL_MAX);
        let id = random_session_id()?;
        self.submit(move |mirror| {
            mirror.state.open_session(id, ttl)?;
            // Here, so that the session ends even if this caller goes away before the answer.
            lock(&mirror.deadlines).start(id, ttl, clock::boottime());
            Ok((SessionId(id), ttl))
        })
        .await
    }

    async fn keep_alive(&self, session: SessionId) -> Result<Option<Duration>, StoreError> {
        Ok(lock(&self.deadlines).renew(session.0, clock::boottime()))
    }

    async fn close_session(&self, session: SessionId) -> Result<(), StoreError> {
        self.submit(move |mirror| {
            lock(&mirror.deadlines).end(session.0);
            mirror.state.close_session(session.0);
            Ok(())
        })
        .await
    }

    async fn enqueue(&self, enqueue: Enqueue) -> Result<Enqueued, StoreError> {
        check_enqueue(&enqueue)?;
        self.submit(move |mirror| mirror.state.enqueue(enqueue))
            .await
    }

    async fn remove(&self, remove: Remove) -> Result<Removed, StoreError> {
        self.submit(move |mirror| Ok(mirror.state.remove(&remove)))
            .await
    }

    async fn queue(&self, lock: &LockName) -> Result<QueueView, StoreError> {
        let lock = lock.clone();
        self.submit(move |mirror| Ok(mirror.state.queue(&lock)))
            .await
    }

    async fn watch(&self) -> Result<mpsc::Receiver<Event>, StoreError> {
        let jobs = self.jobs.as_ref().ok_or_else(stopped)?;
        let (sender, receiver) = mpsc::channel(WATCH_EVENTS_MAX);
        tokio::spawn(feed_watch(jobs.downgrade(), sender));
        Ok(receiver)
    }

    async fn raise_above(&self, token: Token) -> Result<(), StoreError> {
        self.submit(move |mirror| mirror.state.raise_above(token))
            .await
    }

    async fn put_record(&self, name: &str, value: Option<Vec<u8>>) -> Result<(), StoreError> {
        check_record(name, value.as_deref())?;
        let name = name.to_owned();
        self.submit(move |mirror| {
            mirror.state.put_record(name, value);
            Ok(())
        })
        .await
    }

    async fn replace_record(
        &self,
        name: &str,
        seen: Option<&[u8]>,
        value: Vec<u8>,
    ) -> Result<bool, StoreError> {
        check_record(name, Some(&value))?;
        let (name, seen) = (name.to_owned(), seen.map(<[u8]>::to_vec));
        self.submit(move |mirror| {
            let found = mirror.state.records(&name);
            let found = found.iter().find(|(other, _)| *other == name);
            let is_as_seen = found.map(|(_, value)| value) == seen.as_ref();
            if is_as_seen {
                mirror.state.put_record(name, Some(value));
            }
            Ok(is_as_seen)
        })
        .await
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    async fn records(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let prefix = prefix.to_owned();
        self.submit(move |mirror| Ok(mirror.state.records(&prefix)))
            .await
    }
}

fn create(path: &Path) -> Result<Database, DatabaseError> {
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        std::fs::create_dir_all(folder).map_err(disk::open_error)?;
    }
    let is_new = !path.exists();
    let database = Database::create(path)?;
    if is_new {
        sync_folder(path).map_err(disk::open_error)?;
    }
    Ok(database)
}

fn stopped() -> StoreError {
    StoreError::Unavailable("the store has stopped".to_owned())
}

async fn submit<T: Send + 'static>(
    jobs: &mpsc::Sender<Job>,
    apply: impl FnOnce(&mut Mirror) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let (sender, receiver) = oneshot::channel();
    let job: Job = Box::new(move |mirror| match mirror.and_then(apply) {
        Ok(value) => {
            let answer: Answer = Box::new(move |committed| {
                // A caller that has gone away hears nothing; the change stands.
                let _ = sender.send(committed.map(|()| value));
            });
            Some(answer)
        }
        Err(error) => {
            let _ = sender.send(Err(error));
            None
        }
    });
    jobs.send(job).await.map_err(|_| stopped())?;
    receiver.await.map_err(|_| stopped())?
}

/// Ends sessions past their deadline until the store is dropped.
async fn reap(jobs: mpsc::WeakSender<Job>, deadlines: Arc<Mutex<Deadlines>>) {
    let mut ticks = tokio::time::interval(REAP_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(jobs) = jobs.upgrade() else { return };
        if !lock(&deadlines).any_overdue(clock::boottime()) {
            continue;
        }
        let ended = submit(&jobs, |mirror| {
            // Taken out here and not before: a store that is closed must not lose a deadline.
            let overdue =
                lock(&mirror.deadlines).take_overdue(clock::boottime(), REAP_SESSIONS_MAX);
            for id in &overdue {
                mirror.state.close_session(*id);
            }
            Ok(overdue.len())
        });
        match ended.await {
            Ok(count) => tracing::debug!(count, "embedded store: sessions ended"),
            Err(error) => tracing::warn!(%error, "embedded store: sessions not ended yet"),
        }
    }
}

/// Feeds one watch until its reader or the store is gone.
async fn feed_watch(jobs: mpsc::WeakSender<Job>, reader: mpsc::Sender<Event>) {
    while !reader.is_closed() {
        let Some(started) = start_watch(&jobs).await else {
            return;
        };
        let Ok((entries, mut live)) = started else {
            tokio::time::sleep(WATCH_RETRY_EVERY).await;
            continue;
        };
        let puts = entries.into_iter().map(Event::Put);
        for event in std::iter::once(Event::Reset)
            .chain(puts)
            .chain([Event::Synced])
        {
            if reader.send(event).await.is_err() {
                return;
            }
        }
        loop {
            let group = tokio::select! {
                group = live.recv() => group,
                () = reader.closed() => return,
            };
            let Some(group) = group else { break };
            for event in group.iter() {
                if reader.send(event.clone()).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Everything that exists, and what follows it. `None`: the store is gone.
async fn start_watch(
    jobs: &mpsc::WeakSender<Job>,
) -> Option<Result<(Vec<Entry>, Live), StoreError>> {
    let jobs = jobs.upgrade()?;
    Some(
        submit(&jobs, |mirror| {
            Ok((mirror.state.entries(), mirror.subscribe()))
        })
        .await,
    )
}
