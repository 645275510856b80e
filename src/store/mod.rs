//! Stores of the lock service behind one trait: native sessions with a time to live, and entries
//! ordered per lock by a number that the store itself issues.
//!
//! A store knows nothing of who may hold what: the lowest entry of a lock is its holder, and that
//! rule lives in [`crate::queue`]. What a store promises is in [`Store`] and is checked by one
//! conformance suite, `tests/store_conformance.rs`, for every store.

pub(crate) mod durable_file;
pub mod embedded;
pub mod etcd;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::lock_name::LockName;
use crate::token::Token;

/// Longest `holder` text of an entry, in bytes.
pub const HOLDER_BYTES_MAX: usize = 1024;

/// Longest name of a record, in bytes.
pub const RECORD_NAME_BYTES_MAX: usize = 255;

/// Largest value of a record, in bytes.
pub const RECORD_BYTES_MAX: usize = 256 * 1024;

/// Shortest time to live that a session gets.
pub const SESSION_TTL_MIN: Duration = Duration::from_secs(1);

/// Longest time to live that a session gets.
pub const SESSION_TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A session of the store: an etcd lease id, or a number that the embedded store issued.
/// Written in lower-case hexadecimal without leading zeros, as etcd's concurrency package does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u64);

impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl std::str::FromStr for SessionId {
    type Err = String;

    fn from_str(text: &str) -> Result<SessionId, String> {
        let canonical = u64::from_str_radix(text, 16)
            .ok()
            .filter(|id| format!("{id:x}") == text);
        canonical
            .map(SessionId)
            .ok_or_else(|| format!("not a session id: {text:?}"))
    }
}

/// One entry in the queue of a lock. The lowest `token` of a lock is its holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The lock.
    pub lock: LockName,
    /// The session whose end removes the entry.
    pub session: SessionId,
    /// The order in the queue and the fencing token of the grant: issued by the store when the
    /// entry was created, larger than every earlier one of this lock, for ever.
    pub token: Token,
    /// Changes with every rewrite of the entry (etcd: mod revision). For conditional removal.
    pub version: u64,
    /// The attempt of the client that wrote it last; 0 for a foreign entry.
    pub attempt: u64,
    /// Free text for operators.
    pub holder: String,
    /// Written by a client of the store that is not ringfence (`etcdctl lock`).
    pub foreign: bool,
}

/// A request to stand in the queue of a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Enqueue {
    /// The lock.
    pub lock: LockName,
    /// The session.
    pub session: SessionId,
    /// Grows with each new attempt of this session on this lock, from 1.
    pub attempt: u64,
    /// Free text for operators.
    pub holder: String,
    /// Only if nobody else stands there (or this attempt already stands first): an atomic try.
    pub only_if_first: bool,
}

/// What became of an [`Enqueue`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Enqueued {
    /// The session stands in the queue, newly, or (the same attempt there) still: then the entry
    /// keeps its token and is rewritten, so that its version changes. What an older attempt left
    /// there is removed first, and its token never told again. `holder` tells whether it was
    /// granted at once.
    Standing {
        /// The session's own entry.
        entry: Entry,
        /// This entry, if it is the lowest; else one that is lower, where it can be the lowest.
        holder: Entry,
    },
    /// `only_if_first` and another one is first. Nothing was written.
    Held {
        /// The lowest entry of the lock.
        holder: Entry,
    },
    /// The session is unknown or has ended. Nothing was written.
    SessionGone,
    /// The attempt is at or below the last one that this session released on this lock, or below
    /// the one that stands in the queue. Nothing was written.
    AttemptOver {
        /// The attempt that was released or stands.
        last: u64,
    },
}

/// Which entry to remove: never by name alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remove {
    /// The lock.
    pub lock: LockName,
    /// The session.
    pub session: SessionId,
    /// The token of the entry.
    pub token: Token,
    /// Only while the entry still has this version (a cancelled call removes nothing that a later
    /// call took over).
    pub only_version: Option<u64>,
}

/// What became of a [`Remove`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removed {
    /// Whether there was such an entry. Its attempt is recorded as released then.
    pub removed: bool,
    /// The lowest entry of the lock after it; `None`: there is none, or the store did not look, and
    /// the watch will tell.
    pub next: Option<Entry>,
}

/// A lock's queue as a linearizable read saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueView {
    /// Ascending by token.
    pub entries: Vec<Entry>,
    /// At or above every token that this lock had at that moment, and below every later one.
    pub latest: Token,
}

/// Records, by name, with their values.
pub type RecordList = Arc<Vec<(String, Vec<u8>)>>;

/// A change in the store, in its own order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The watch starts, or had to start again: what follows up to [`Event::Synced`] is everything
    /// that exists; what is not among it is gone.
    Reset,
    /// The whole state since [`Event::Reset`] has been sent.
    Synced,
    /// An entry was created or rewritten.
    Put(Entry),
    /// An entry is gone: released, cancelled, or its session ended.
    Gone {
        /// The lock.
        lock: LockName,
        /// The session.
        session: SessionId,
        /// The token that it had.
        token: Token,
    },
}

/// What went wrong, and whether a retry is safe.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store did not answer or refused service. Whether the change was made is unknown; every
    /// operation of the trait may be repeated.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// The store answered what it must never answer, or its data are damaged. No retry helps.
    #[error("store corrupt: {0}")]
    Corrupt(String),
    /// The store refuses this for good (permission, size).
    #[error("store refused: {0}")]
    Refused(String),
}

/// What [`StoreError::Unavailable`] says where the store has used up its space: then nothing was
/// done.
pub const NO_SPACE: &str = "the store has used up its space (etcd's NOSPACE alarm)";

/// A lock store. Every method may be repeated after an error.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Opens a session. Returns its id and the time to live granted (at least a store's minimum).
    async fn open_session(&self, ttl: Duration) -> Result<(SessionId, Duration), StoreError>;

    /// Renews: the session has its whole time to live again from now. `None`: it is gone.
    async fn keep_alive(&self, session: SessionId) -> Result<Option<Duration>, StoreError>;

    /// Ends a session and removes its entries. Unknown: nothing to do.
    async fn close_session(&self, session: SessionId) -> Result<(), StoreError>;

    /// Stands the session in the lock's queue, durably before it returns.
    async fn enqueue(&self, enqueue: Enqueue) -> Result<Enqueued, StoreError>;

    /// Removes exactly one entry, durably before it returns.
    async fn remove(&self, remove: Remove) -> Result<Removed, StoreError>;

    /// A linearizable read of one lock's queue.
    async fn queue(&self, lock: &LockName) -> Result<QueueView, StoreError>;

    /// Everything, then every change in the store's order. One watch for each lockd. The channel is
    /// bounded; a store whose reader falls behind too far sends [`Event::Reset`] and starts again.
    /// The receiver ends when the store is dropped.
    async fn watch(&self) -> Result<mpsc::Receiver<Event>, StoreError>;

    /// Lifts every later token above this one: the store's own counter was found behind what
    /// proxies have seen (restored from a backup, or another store before it). Durable.
    async fn raise_above(&self, token: Token) -> Result<(), StoreError>;

    /// Writes a small durable record (proxies, configuration) under a name of its own space.
    /// `None` removes it.
    async fn put_record(&self, name: &str, value: Option<Vec<u8>>) -> Result<(), StoreError>;

    /// Writes a record only while it is as the caller saw it (`None`: not there), durably before it
    /// returns. `false`: it was not, and nothing was written; after an error a repetition may find
    /// its own write and say so too.
    async fn replace_record(
        &self,
        name: &str,
        seen: Option<&[u8]>,
        value: Vec<u8>,
    ) -> Result<bool, StoreError>;

    /// Whether no other process can write to it while this one has it open. Then what this process
    /// wrote last is what it would read.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// A linearizable read of the records whose names begin so, by name.
    async fn records(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError>;

    /// All records as they were at some moment when the enqueue that returned this version, and its
    /// own entry as the holder, had found it so: known without a read to a store that reads them
    /// beside what it writes.
    fn records_since(&self, _version: u64) -> Option<RecordList> {
        None
    }
}

/// A session id that nobody can guess from another one: 63 random bits, not zero.
fn random_session_id() -> Result<u64, StoreError> {
    let mut bytes = [0u8; 8];
    loop {
        let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
            .map_err(|error| StoreError::Unavailable(format!("no random bytes: {error}")))?;
        let id = u64::from_ne_bytes(bytes) & (i64::MAX as u64);
        if filled == bytes.len() && id != 0 {
            return Ok(id);
        }
    }
}

/// Checks the bounds of what a caller wants to have stored.
fn check_enqueue(enqueue: &Enqueue) -> Result<(), StoreError> {
    if enqueue.attempt == 0 {
        return Err(StoreError::Refused(
            "attempt 0: attempts count from 1".to_owned(),
        ));
    }
    if enqueue.holder.len() > HOLDER_BYTES_MAX {
        return Err(StoreError::Refused(format!(
            "holder text of {} bytes: at most {HOLDER_BYTES_MAX} are kept",
            enqueue.holder.len()
        )));
    }
    Ok(())
}

/// Checks the bounds of a record.
fn check_record(name: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
    if name.is_empty() || name.len() > RECORD_NAME_BYTES_MAX {
        return Err(StoreError::Refused(format!(
            "record name of {} bytes: 1 to {RECORD_NAME_BYTES_MAX} are allowed",
            name.len()
        )));
    }
    match value {
        Some(value) if value.len() > RECORD_BYTES_MAX => Err(StoreError::Refused(format!(
            "record {name:?} of {} bytes: at most {RECORD_BYTES_MAX} are kept",
            value.len()
        ))),
        _ => Ok(()),
    }
}
