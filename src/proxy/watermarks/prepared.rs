//! The prepared transactions (PREPARE TRANSACTION) that hold fenced writes, as they are on disk.
//!
//! Invariant: a use of a name is on disk before its PREPARE TRANSACTION is forwarded, and goes only
//! when nothing is prepared by it any more.

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::LoadError;
use crate::lock_name::LockName;
use crate::token::Token;

/// Backend, name, number -> its claims: a line each, token, blank, lock. A lock's name holds no
/// control character.
type Key = (&'static str, &'static str, u64);

pub(super) const PREPARED: TableDefinition<'_, Key, &str> = TableDefinition::new("prepared");

/// One use of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PreparedRow {
    /// The address of the backend, `host:port`.
    pub backend: String,
    /// The transaction's name at the server.
    pub gid: String,
    /// Tells uses of one name apart: later ones are greater.
    pub number: u64,
    /// What it was written under.
    pub claims: Vec<(LockName, Token)>,
}

pub(super) fn insert(write: &WriteTransaction, row: &PreparedRow) -> Result<(), redb::Error> {
    let claims = row.claims.iter();
    let lines: Vec<String> = claims
        .map(|(lock, token)| format!("{} {lock}", token.get()))
        .collect();
    let mut table = write.open_table(PREPARED)?;
    table.insert((&*row.backend, &*row.gid, row.number), &*lines.join("\n"))?;
    Ok(())
}

pub(super) fn remove(write: &WriteTransaction, row: &PreparedRow) -> Result<(), redb::Error> {
    let mut table = write.open_table(PREPARED)?;
    table.remove((&*row.backend, &*row.gid, row.number))?;
    Ok(())
}

pub(super) fn list(database: &Database) -> Result<Vec<PreparedRow>, LoadError> {
    let read = || -> Result<Vec<PreparedRow>, redb::Error> {
        let table = database.begin_read()?.open_table(PREPARED)?;
        let mut found = vec![];
        for row in table.iter()? {
            let (key, claims) = row?;
            let (backend, gid, number) = key.value();
            let claims: Option<Vec<_>> = claims.value().lines().map(read_claim).collect();
            found.push(PreparedRow {
                backend: backend.to_owned(),
                gid: gid.to_owned(),
                number,
                claims: claims.ok_or_else(|| {
                    redb::Error::Corrupted(format!("the claims of {gid:?} are none"))
                })?,
            });
        }
        Ok(found)
    };
    read().map_err(|error| {
        tracing::error!(%error, "the recorded prepared transactions cannot be read");
        LoadError::Unavailable
    })
}

fn read_claim(line: &str) -> Option<(LockName, Token)> {
    let (token, lock) = line.split_once(' ')?;
    Some((LockName::new(lock).ok()?, token.parse().ok()?))
}
