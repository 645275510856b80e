//! The file: its tables, its identity, and how it is opened.
//!
//! Invariant: a file that does not open, lacks its identity or holds a torn one is refused, never
//! replaced: replacing it would forget watermarks.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::prepared::PREPARED;
use super::record::{Stored, Torn};
use super::sessions::SESSIONS;
use crate::lock_name::LockName;

pub(super) const LOCKS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("locks");
pub(super) const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");

/// The open table of the locks' records.
pub(super) type Locks<'a> = Table<'a, &'static str, &'static [u8]>;

/// The file's name in `data_dir`.
pub const FILE_NAME: &str = "watermarks.redb";

/// Locked for as long as a process may admit by the store. The store's own lock is not that: it
/// goes whenever the store is closed to be read again.
const HELD_NAME: &str = "watermarks.lock";

/// What redb may keep of the file in memory, in bytes.
const CACHE_BYTES_MAX: usize = 64 << 20;

const FORMAT: &str = "3";

/// Why the store was not opened. The proxy does not serve without it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder cannot be made or written.
    #[error("cannot use the data folder {dir}: {source}", dir = dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no store, and nobody to ask for the floors of its locks.
    #[error(
        "no watermark store in {dir}: this proxy stands alone, so without its watermarks it would \
         admit stale writers; start it once with --init if it has never guarded anything, or if no \
         older holder of any lock can still write",
        dir = dir.display()
    )]
    NotInitialised {
        /// The data folder.
        dir: PathBuf,
    },
    /// `--init` on a store that exists.
    #[error("--init was given, but {path} exists: start without it", path = path.display())]
    AlreadyInitialised {
        /// The file.
        path: PathBuf,
    },
    /// The file is torn, foreign, of another version, or in use.
    #[error(
        "cannot open the watermark store {path}: {reason}; it is not replaced, since that would \
         forget watermarks",
        path = path.display()
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// A record that cannot be had now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The store has failed and is not open again yet.
    #[error("the watermark store is not available")]
    Unavailable,
    /// The record of this lock is damaged.
    #[error("the watermark record of `{0}` is damaged")]
    Torn(String),
}

/// What the file says about itself, and about the run before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    pub(super) store_id: String,
    /// Counts the starts, from 1.
    pub(super) run: u64,
    /// Counts the transactions: an older copy of the present run has fewer.
    pub(super) commits: u64,
    pub(super) clean: bool,
    pub(super) fingerprint: u64,
    /// An older store may have been lost, or this one rolled back: what is not known here may be
    /// at the backends.
    pub(super) unconfirmed: bool,
    /// What earlier runs than this one wrote may be too low: lockd said that the store was lost or
    /// rolled back.
    pub(super) lost_before: u64,
    /// The same for a store that lockd vouches for: its file may be a copy that was made under a
    /// running process, since the last run did not end in order.
    pub(super) unclean_before: u64,
    /// The lock patterns that it registers for.
    pub(super) patterns: Vec<String>,
    /// The processes that lockd may have noted last: the one that is known to be noted, if any, and
    /// then those that have asked since.
    pub(super) lineage: Vec<String>,
}

pub(super) fn create_folder(dir: &Path) -> Result<(), OpenError> {
    let failed = |source| OpenError::Folder {
        dir: dir.into(),
        source,
    };
    std::fs::create_dir_all(dir).map_err(failed)
}

/// Takes the folder for this process; for as long as the file is open it is nobody else's.
pub(super) fn hold(dir: &Path) -> Result<File, OpenError> {
    let failed = |source| OpenError::Folder {
        dir: dir.into(),
        source,
    };
    let held = File::create(dir.join(HELD_NAME)).map_err(failed)?;
    match held.try_lock() {
        Ok(()) => Ok(held),
        Err(TryLockError::WouldBlock) => Err(OpenError::Unusable {
            path: dir.join(FILE_NAME),
            reason: "another process uses it".to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// Makes a new file with its identity, whole or not at all: it appears under its name once it is
/// complete and on disk.
pub(super) fn create(dir: &Path, identity: &Identity) -> Result<(), OpenError> {
    let failed = |source| OpenError::Folder {
        dir: dir.into(),
        source,
    };
    let (path, partial) = (dir.join(FILE_NAME), dir.join(format!("{FILE_NAME}.new")));
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let unusable = |reason: String| OpenError::Unusable {
        path: partial.clone(),
        reason,
    };
    let database = Database::builder()
        .set_cache_size(CACHE_BYTES_MAX)
        .create(&partial)
        .map_err(|error| unusable(error.to_string()))?;
    write_identity(&database, identity).map_err(|error| unusable(error.to_string()))?;
    drop(database);
    std::fs::rename(&partial, &path).map_err(failed)?;
    // The name must be durable too: fsync(2) on a file says nothing about its directory entry.
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(failed)
}

pub(super) fn open(dir: &Path) -> Result<(Database, Identity), OpenError> {
    let path = dir.join(FILE_NAME);
    let unusable = |reason: String| OpenError::Unusable {
        path: path.clone(),
        reason,
    };
    let database = Database::builder()
        .set_cache_size(CACHE_BYTES_MAX)
        .open(&path)
        .map_err(|error| unusable(error.to_string()))?;
    let identity = read_identity(&database).map_err(unusable)?;
    Ok((database, identity))
}

fn read_identity(database: &Database) -> Result<Identity, String> {
    let read = database.begin_read().map_err(|error| error.to_string())?;
    let meta = read.open_table(META).map_err(|error| error.to_string())?;
    read.open_table(LOCKS).map_err(|error| error.to_string())?;
    let text = |key: &str| -> Result<String, String> {
        let value = meta.get(key).map_err(|error| error.to_string())?;
        let value = value.ok_or_else(|| format!("it has no {key}"))?;
        let text = std::str::from_utf8(value.value()).map_err(|_| format!("its {key} is torn"))?;
        Ok(text.to_owned())
    };
    let number = |key: &str| -> Result<u64, String> {
        text(key)?.parse().map_err(|_| format!("its {key} is torn"))
    };
    let format = text("format")?;
    if format != FORMAT {
        return Err(format!(
            "it has format {format:?}, this version knows {FORMAT:?}"
        ));
    }
    Ok(Identity {
        store_id: text("store_id")?,
        run: number("run")?,
        // A store of an earlier version has not counted.
        commits: number("commits").unwrap_or(0),
        clean: number("clean")? == 1,
        fingerprint: number("fingerprint")?,
        unconfirmed: number("unconfirmed")? == 1,
        lost_before: number("lost_before")?,
        unclean_before: number("unclean_before")?,
        patterns: text("patterns")?.lines().map(str::to_owned).collect(),
        lineage: text("lineage")?.lines().map(str::to_owned).collect(),
    })
}

pub(super) fn write_identity(database: &Database, identity: &Identity) -> Result<(), redb::Error> {
    let write = database.begin_write()?;
    {
        write.open_table(LOCKS)?;
        write.open_table(SESSIONS)?;
        write.open_table(PREPARED)?;
        let mut meta = write.open_table(META)?;
        let flag = |set: bool| u64::from(set).to_string();
        for (key, value) in [
            ("format", FORMAT.to_owned()),
            ("store_id", identity.store_id.clone()),
            ("run", identity.run.to_string()),
            ("commits", identity.commits.to_string()),
            ("clean", flag(identity.clean)),
            ("fingerprint", identity.fingerprint.to_string()),
            ("unconfirmed", flag(identity.unconfirmed)),
            ("lost_before", identity.lost_before.to_string()),
            ("unclean_before", identity.unclean_before.to_string()),
            // A lock name holds no control character, so a line holds a pattern.
            ("patterns", identity.patterns.join("\n")),
            ("lineage", identity.lineage.join("\n")),
        ] {
            meta.insert(key, value.as_bytes())?;
        }
    }
    // redb's default durability: on disk when it returns.
    write.commit()?;
    Ok(())
}

pub(super) fn load(database: &Database, lock: &LockName) -> Result<Option<Stored>, LoadError> {
    let read = || -> Result<Option<Result<Stored, Torn>>, redb::Error> {
        let table = database.begin_read()?.open_table(LOCKS)?;
        let value = table.get(lock.as_str())?;
        Ok(value.map(|value| Stored::decode(lock.as_str(), value.value())))
    };
    match read() {
        Ok(None) => Ok(None),
        Ok(Some(Ok(stored))) => Ok(Some(stored)),
        Ok(Some(Err(Torn))) => Err(LoadError::Torn(lock.to_string())),
        Err(error) => {
            tracing::error!(%error, %lock, "watermark record cannot be read");
            Err(LoadError::Unavailable)
        }
    }
}

/// Whether there is a record whose floor lockd knows.
pub(super) fn has_floors(database: &Database) -> Result<bool, redb::Error> {
    let table = database.begin_read()?.open_table(LOCKS)?;
    for row in table.iter()? {
        let (name, value) = row?;
        let stored = Stored::decode(name.value(), value.value());
        if stored.is_ok_and(|stored| !stored.unsigned) {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn set_unconfirmed(
    write: &WriteTransaction,
    unconfirmed: bool,
) -> Result<(), redb::Error> {
    let value: &[u8] = if unconfirmed { b"1" } else { b"0" };
    write.open_table(META)?.insert("unconfirmed", value)?;
    Ok(())
}

/// So many transactions have been written.
pub(super) fn set_commits(write: &WriteTransaction, commits: u64) -> Result<(), redb::Error> {
    let value = commits.to_string();
    write
        .open_table(META)?
        .insert("commits", value.as_bytes())?;
    Ok(())
}

/// lockd is known to have noted this process: whatever came before it never counts again.
pub(super) fn set_noted(write: &WriteTransaction, process: &str) -> Result<(), redb::Error> {
    write
        .open_table(META)?
        .insert("lineage", process.as_bytes())?;
    Ok(())
}

/// What earlier runs than this one wrote may be too low.
pub(super) fn set_lost_before(write: &WriteTransaction, run: u64) -> Result<(), redb::Error> {
    let value = run.to_string();
    write
        .open_table(META)?
        .insert("lost_before", value.as_bytes())?;
    Ok(())
}

/// Names that begin with `prefix`, after `after`, in order.
pub(super) fn list(
    database: &Database,
    prefix: &str,
    after: &str,
    limit: usize,
) -> Result<Vec<(LockName, Stored)>, LoadError> {
    let read = || -> Result<Vec<(LockName, Stored)>, redb::Error> {
        let table = database.begin_read()?.open_table(LOCKS)?;
        let mut found = vec![];
        for row in table.range(prefix.max(after)..)? {
            let (name, value) = row?;
            let name = name.value();
            if !name.starts_with(prefix) && name > prefix || found.len() == limit {
                break;
            }
            if name == after {
                continue;
            }
            // A torn record is told when its lock is used; a listing goes on.
            if let (Ok(lock), Ok(stored)) =
                (LockName::new(name), Stored::decode(name, value.value()))
            {
                found.push((lock, stored));
            }
        }
        Ok(found)
    };
    read().map_err(|error| {
        tracing::error!(%error, "watermark records cannot be listed");
        LoadError::Unavailable
    })
}
