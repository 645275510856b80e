//! The backend sessions that may carry fenced writes, as they are on disk: so that whoever restarts
//! this proxy can have them ended.
//!
//! Invariant: a session's row for a lock is on disk before the first write under that lock is
//! forwarded on it, and goes only when nothing of it can be applied any more.

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::LoadError;
use crate::lock_name::LockName;

/// Backend, server, id, lock -> the run that wrote it.
type Key = (&'static str, &'static str, u64, &'static str);

pub(super) const SESSIONS: TableDefinition<'_, Key, u64> = TableDefinition::new("sessions");

/// A connection to a backend, as the backend can tell it from all others.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BackendSession {
    /// The address of the backend, `host:port`: a listener may get another one.
    pub backend: String,
    /// One life of the server: its ids mean nothing to another one.
    pub server: String,
    /// The server's own number for it.
    pub id: u64,
}

/// A session that an earlier run left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftSession {
    /// Which.
    pub session: BackendSession,
    /// The locks that it carried writes under.
    pub locks: Vec<LockName>,
}

pub(super) fn insert(
    write: &WriteTransaction,
    session: &BackendSession,
    lock: &LockName,
    run: u64,
) -> Result<(), redb::Error> {
    let mut table = write.open_table(SESSIONS)?;
    let BackendSession {
        backend,
        server,
        id,
    } = session;
    table.insert((&**backend, &**server, *id, lock.as_str()), run)?;
    Ok(())
}

pub(super) fn remove(
    write: &WriteTransaction,
    session: &BackendSession,
) -> Result<(), redb::Error> {
    let mut table = write.open_table(SESSIONS)?;
    let BackendSession {
        backend,
        server,
        id,
    } = session;
    // Every lock's name is longer than the empty one, and ids have a next one.
    let first = (&**backend, &**server, *id, "");
    let end = (&**backend, &**server, id.saturating_add(1), "");
    table.retain_in(first..end, |_, _| false)?;
    Ok(())
}

pub(super) fn list(database: &Database) -> Result<Vec<LeftSession>, LoadError> {
    let read = || -> Result<Vec<LeftSession>, redb::Error> {
        let table = database.begin_read()?.open_table(SESSIONS)?;
        let mut found: Vec<LeftSession> = vec![];
        for row in table.iter()? {
            let (key, _) = row?;
            let (backend, server, id, lock) = key.value();
            let session = BackendSession {
                backend: backend.to_owned(),
                server: server.to_owned(),
                id,
            };
            let lock = LockName::new(lock).map_err(|error| {
                redb::Error::Corrupted(format!("a session's lock is none: {error}"))
            })?;
            match found.last_mut() {
                Some(last) if last.session == session => last.locks.push(lock),
                _ => found.push(LeftSession {
                    session,
                    locks: vec![lock],
                }),
            }
        }
        Ok(found)
    };
    read().map_err(|error| {
        tracing::error!(%error, "the recorded backend sessions cannot be read");
        LoadError::Unavailable
    })
}
