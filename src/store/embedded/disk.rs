//! The file of the embedded store: five redb tables, read whole at the start and written by one
//! transaction for each group of operations.
//!
//! A transaction is durable when `commit` returns (redb's `Durability::Immediate`, one fsync). What
//! the tables mean is the mirror's matter.

use redb::{
    Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, StorageError,
    TableDefinition, TableError,
};

use super::state::{Changes, Released, State, StoredEntry};
use crate::store::StoreError;

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const SEQUENCE: &str = "sequence";
const FORMAT: &str = "format";
/// Raised with every change that an older program would misread.
const FORMAT_VERSION: u64 = 1;

/// Session id to time to live in milliseconds.
const SESSIONS: TableDefinition<'_, u64, u64> = TableDefinition::new("sessions");
/// Lock and token to session, version, attempt, holder.
const ENTRIES: TableDefinition<'_, (&str, u64), (u64, u64, u64, &str)> =
    TableDefinition::new("entries");
/// Session and lock to attempt and token.
const RELEASED: TableDefinition<'_, (u64, &str), (u64, u64)> = TableDefinition::new("released");
const RECORDS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("records");

/// Whether a store was made in this database.
pub fn is_store(database: &Database) -> Result<bool, redb::Error> {
    match database.begin_read()?.open_table(META) {
        Ok(_) => Ok(true),
        Err(TableError::TableDoesNotExist(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Opens the database; called again after each error.
pub type Opener = Box<dyn Fn() -> Result<Database, DatabaseError> + Send>;

/// An open file.
#[derive(Debug)]
pub struct Disk {
    database: Database,
}

impl Disk {
    /// Opens the file, creates its tables if it is new, and reads the whole state.
    pub fn open(opener: &Opener) -> Result<(Disk, State), StoreError> {
        let disk = Disk {
            database: opener().map_err(|error| failed("open", error.into()))?,
        };
        disk.create()
            .map_err(|error| failed("create tables", error))?;
        let state = disk.load()?;
        Ok((disk, state))
    }

    fn create(&self) -> Result<(), redb::Error> {
        if is_store(&self.database)? {
            return Ok(());
        }
        let transaction = self.database.begin_write()?;
        {
            transaction.open_table(SESSIONS)?;
            transaction.open_table(ENTRIES)?;
            transaction.open_table(RELEASED)?;
            transaction.open_table(RECORDS)?;
            transaction
                .open_table(META)?
                .insert(FORMAT, FORMAT_VERSION)?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn load(&self) -> Result<State, StoreError> {
        let mut state = State::default();
        let mut damage = Ok(());
        self.read_into(&mut state, &mut damage)
            .map_err(|error| failed("read", error))?;
        damage.map_err(StoreError::Corrupt)?;
        Ok(state)
    }

    /// Stops at the first damage, which it leaves in `damage`.
    fn read_into(
        &self,
        state: &mut State,
        damage: &mut Result<(), String>,
    ) -> Result<(), redb::Error> {
        let transaction = self.database.begin_read()?;
        let meta = transaction.open_table(META)?;
        let format = meta.get(FORMAT)?.map(|value| value.value());
        if format != Some(FORMAT_VERSION) {
            *damage = Err(format!("format {format:?} instead of {FORMAT_VERSION}"));
            return Ok(());
        }
        if let Some(sequence) = meta.get(SEQUENCE)? {
            *damage = state.load_sequence(sequence.value());
        }
        for row in transaction.open_table(SESSIONS)?.iter()? {
            let (id, ttl_ms) = row?;
            state.load_session(id.value(), ttl_ms.value());
        }
        for row in transaction.open_table(ENTRIES)?.iter()? {
            let (key, value) = row?;
            let ((lock, token), (session, version, attempt, holder)) = (key.value(), value.value());
            let entry = StoredEntry {
                session,
                version,
                attempt,
                holder: holder.to_owned(),
            };
            if damage.is_ok() {
                *damage = state.load_entry(lock, token, entry);
            }
        }
        for row in transaction.open_table(RELEASED)?.iter()? {
            let (key, value) = row?;
            let ((session, lock), (attempt, token)) = (key.value(), value.value());
            if damage.is_ok() {
                *damage = state.load_released(session, lock, Released { attempt, token });
            }
        }
        for row in transaction.open_table(RECORDS)?.iter()? {
            let (name, value) = row?;
            state.load_record(name.value(), value.value());
        }
        Ok(())
    }

    /// Makes the changes durable, all or none. After an error nothing is known but that: the disk
    /// must be dropped and opened again.
    pub fn commit(&self, changes: &Changes) -> Result<(), StoreError> {
        self.write(changes).map_err(|error| failed("write", error))
    }

    fn write(&self, changes: &Changes) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        if let Some(sequence) = changes.sequence {
            transaction.open_table(META)?.insert(SEQUENCE, sequence)?;
        }
        if !changes.sessions.is_empty() {
            let mut table = transaction.open_table(SESSIONS)?;
            for (id, ttl_ms) in &changes.sessions {
                match ttl_ms {
                    Some(ttl_ms) => table.insert(id, ttl_ms)?,
                    None => table.remove(id)?,
                };
            }
        }
        if !changes.entries.is_empty() {
            let mut table = transaction.open_table(ENTRIES)?;
            for ((lock, token), entry) in &changes.entries {
                let key = (lock.as_str(), *token);
                match entry {
                    Some(entry) => {
                        let holder = entry.holder.as_str();
                        table.insert(key, (entry.session, entry.version, entry.attempt, holder))?
                    }
                    None => table.remove(key)?,
                };
            }
        }
        if !changes.released.is_empty() {
            let mut table = transaction.open_table(RELEASED)?;
            for ((session, lock), released) in &changes.released {
                let key = (*session, lock.as_str());
                match released {
                    Some(released) => table.insert(key, (released.attempt, released.token))?,
                    None => table.remove(key)?,
                };
            }
        }
        if !changes.records.is_empty() {
            let mut table = transaction.open_table(RECORDS)?;
            for (name, value) in &changes.records {
                match value {
                    Some(value) => table.insert(name.as_str(), value.as_slice())?,
                    None => table.remove(name.as_str())?,
                };
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

/// Names what was tried. Damage and a foreign format do not go away by themselves; the rest may.
pub fn failed(what: &str, error: redb::Error) -> StoreError {
    let text = format!("{what}: {error}");
    match error {
        redb::Error::Corrupted(_) | redb::Error::RepairAborted => StoreError::Corrupt(text),
        redb::Error::UpgradeRequired(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TypeDefinitionChanged { .. } => StoreError::Refused(text),
        _ => StoreError::Unavailable(text),
    }
}

/// The error of an opener that could not even find its file.
pub fn open_error(error: std::io::Error) -> DatabaseError {
    DatabaseError::Storage(StorageError::Io(error))
}
