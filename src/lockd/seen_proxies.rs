//! The proxies that a lockd has seen registered, in a file beside its store: what a store that was
//! lost, or restored from a copy, has forgotten.
//!
//! A proxy that runs on and that the store does not know is asked for no seal, and would admit
//! older holders beside a new one. So what was seen is put back into the set of another store than
//! before, before anything is granted by that. Invariants:
//! - a proxy is in the file, durably, before it is told that it is registered here, and until an
//!   operator takes it out through this lockd;
//! - what other lockds registered joins it as it is read; a set that was read takes nothing out of
//!   it, since it may be one that was just restored;
//! - where the store goes on as it was, the file begins with what stands in the store.
//!
//! What is put back and does not come again keeps its locks from being granted until it is taken
//! out, as every registered proxy does.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Mutex;

use crate::lockd::proxies::{PREFIX, Proxy, Record, from_json};
use crate::store::durable_file;
use crate::store::{Store, StoreError};

/// Why what was seen could not be kept, or put back.
#[derive(Debug, thiserror::Error)]
pub enum SeenError {
    /// The file.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Where it is.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The file; without a path nothing is kept.
#[derive(Debug, Default)]
pub struct SeenProxies {
    path: Option<PathBuf>,
    known: Arc<Mutex<Known>>,
}

/// By name.
type Known = BTreeMap<String, Record>;

impl SeenProxies {
    /// What the file says; `None`: there is none. What cannot be read as proxies is
    /// [`io::ErrorKind::InvalidData`].
    pub fn open(path: &Path) -> Result<Option<SeenProxies>, SeenError> {
        let failed = |source| SeenError::File {
            path: path.to_owned(),
            source,
        };
        let bytes = match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(failed)?,
        };
        let odd = |error| failed(io::Error::new(io::ErrorKind::InvalidData, error));
        let known = serde_json::from_slice(&bytes).map_err(odd)?;
        Ok(Some(SeenProxies {
            path: Some(path.to_owned()),
            known: Arc::new(Mutex::new(known)),
        }))
    }

    /// One that has seen nothing yet, to be kept there.
    pub fn new(path: &Path) -> SeenProxies {
        SeenProxies {
            path: Some(path.to_owned()),
            known: Arc::default(),
        }
    }

    /// Begins with what stands in this store, and nothing else.
    pub async fn begin(&self, store: &dyn Store) -> Result<(), SeenError> {
        let mut standing = BTreeMap::new();
        for (name, value) in store.records(PREFIX).await? {
            standing.insert(instance_of(&name).to_owned(), from_json(&name, &value)?);
        }
        self.change(|known| *known = standing).await
    }

    /// What was seen, as the records of another store. They may have missed seals of what stands
    /// there.
    pub async fn records(&self) -> Vec<(String, Vec<u8>)> {
        let known = self.known.lock().await;
        let all = known.iter();
        all.map(|(instance, record)| {
            let name = format!("{PREFIX}{instance}");
            (name, record.with_missed().to_json())
        })
        .collect()
    }

    /// These are registered.
    pub(super) async fn add(
        &self,
        proxies: impl IntoIterator<Item = &Proxy>,
    ) -> Result<(), SeenError> {
        let records = proxies.into_iter();
        let records = records.map(|proxy| (proxy.instance.clone(), proxy.to_record()));
        self.change(|known| known.extend(records)).await
    }

    /// An operator has taken it out.
    pub(super) async fn remove(&self, instance: &str) -> Result<(), SeenError> {
        self.change(|known| drop(known.remove(instance))).await
    }

    /// Whether it is kept in a file at all.
    pub(super) fn is_kept(&self) -> bool {
        self.path.is_some()
    }

    async fn change(&self, change: impl FnOnce(&mut Known)) -> Result<(), SeenError> {
        let Some(path) = self.path.clone() else {
            return Ok(());
        };
        let mut known = Arc::clone(&self.known).lock_owned().await;
        let mut all = known.clone();
        change(&mut all);
        if all == *known && path.exists() {
            return Ok(());
        }
        let at = path.clone();
        // Whoever asked may go away: the next change waits until this one is written.
        let write = move || {
            let text = serde_json::to_string_pretty(&all).expect("records are plain data") + "\n";
            durable_file::write(&at, &text)?;
            *known = all;
            Ok(())
        };
        tokio::task::spawn_blocking(write)
            .await
            .map_err(io::Error::other)
            .and_then(|written| written)
            .map_err(|source| SeenError::File { path, source })
    }
}

fn instance_of(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}
