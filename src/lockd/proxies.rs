//! The set of registered proxies: small durable records of the store, read linearizably.
//!
//! A seal must cover every proxy that was registered when the grant was made, through whichever
//! lockd it registered. So each Acquire reads the set after its grant. Reads that wait at the same
//! time share one, and over a store that no other process can write to
//! ([`Store::is_exclusive`]) the set that was read or written last serves without a read.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _, Shared};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::lock_name::{LockName, LockPattern};
use crate::lockd::seen_proxies::{SeenError, SeenProxies};
use crate::store::{Store, StoreError};

/// The part of the store's records that holds proxies.
pub(super) const PREFIX: &str = "proxy/";

/// How often that is written down which others have registered.
const NOTE_EVERY: Duration = Duration::from_secs(5);

/// A registered proxy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Proxy {
    pub(super) instance: String,
    pub(super) store_id: String,
    /// The process that the store is open in.
    pub(super) process: String,
    /// This store came in the place of another one, or was rolled back, and the proxy has not said
    /// yet that it noted that.
    pub(super) replaced: bool,
    /// It guards locks that the registration before did not, and has not said yet that it noted
    /// that it may have missed their seals.
    pub(super) missed: bool,
    /// No proxy had this name, and this one has not said yet that it noted that.
    pub(super) is_new: bool,
    pub(super) admin: String,
    /// The network of the lockd that it registered with, if its address is a loopback one there.
    pub(super) loopback_of: String,
    pub(super) patterns: Vec<LockPattern>,
}

/// What is kept of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    store_id: String,
    #[serde(default)]
    process: String,
    #[serde(default)]
    replaced: bool,
    #[serde(default)]
    missed: bool,
    #[serde(default)]
    is_new: bool,
    admin: String,
    #[serde(default)]
    loopback_of: String,
    patterns: Vec<String>,
}

impl Record {
    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("records are plain data")
    }

    /// The same of a proxy that may have missed seals.
    pub(super) fn with_missed(&self) -> Record {
        Record {
            missed: true,
            ..self.clone()
        }
    }
}

fn corrupt(name: &str, error: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(format!("record {name}: {error}"))
}

/// What stands in the store under this name.
pub(super) fn from_json(name: &str, value: &[u8]) -> Result<Record, StoreError> {
    serde_json::from_slice(value).map_err(|error| corrupt(name, error))
}

impl Proxy {
    pub(super) fn guards(&self, lock: &LockName) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(lock))
    }

    pub(super) fn to_record(&self) -> Record {
        Record {
            store_id: self.store_id.clone(),
            process: self.process.clone(),
            replaced: self.replaced,
            missed: self.missed,
            is_new: self.is_new,
            admin: self.admin.clone(),
            loopback_of: self.loopback_of.clone(),
            patterns: self
                .patterns
                .iter()
                .map(|pattern| pattern.as_str().to_owned())
                .collect(),
        }
    }

    fn from_record(name: &str, value: &[u8]) -> Result<Proxy, StoreError> {
        let record = from_json(name, value)?;
        let patterns = record
            .patterns
            .iter()
            .map(|text| LockPattern::new(text).map_err(|error| corrupt(name, error)))
            .collect::<Result<_, _>>()?;
        let instance = name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
        Ok(Proxy {
            instance,
            store_id: record.store_id,
            process: record.process,
            replaced: record.replaced,
            missed: record.missed,
            is_new: record.is_new,
            admin: record.admin,
            loopback_of: record.loopback_of,
            patterns,
        })
    }
}

fn unavailable(error: SeenError) -> StoreError {
    match error {
        SeenError::Store(error) => error,
        file => StoreError::Unavailable(file.to_string()),
    }
}

pub(super) type Set = Arc<Vec<Proxy>>;
type Read = Shared<BoxFuture<'static, Result<Set, StoreError>>>;

/// Reads and writes the set.
pub(super) struct Proxies {
    shared: Arc<Reads>,
    seen: SeenProxies,
}

struct Reads {
    store: Arc<dyn Store>,
    /// The read that has not begun yet: whoever asks now may share it.
    next: Mutex<Option<Read>>,
    one_at_a_time: Semaphore,
    known: Mutex<Known>,
}

/// What the last read found.
#[derive(Default)]
struct Known {
    records: Vec<(String, Vec<u8>)>,
    set: Set,
    /// Whether nothing can have changed since: the store is exclusive and nothing was written.
    is_current: bool,
    /// Counts writes: a read that overlaps one proves nothing.
    writes: u64,
}

impl Known {
    fn take_over<'a>(
        &mut self,
        records: impl Iterator<Item = &'a (String, Vec<u8>)> + Clone,
    ) -> Result<(), StoreError> {
        if !self.records.iter().eq(records.clone()) {
            let proxies = records
                .clone()
                .map(|(name, value)| Proxy::from_record(name, value));
            self.set = Arc::new(proxies.collect::<Result<_, _>>()?);
            self.records = records.cloned().collect();
        }
        Ok(())
    }
}

impl Proxies {
    pub(super) fn new(store: Arc<dyn Store>, seen: SeenProxies) -> Proxies {
        let reads = Reads {
            store,
            next: Mutex::default(),
            one_at_a_time: Semaphore::new(1),
            known: Mutex::default(),
        };
        Proxies {
            shared: Arc::new(reads),
            seen,
        }
    }

    /// The proxies that were registered at some moment after this call, by name.
    pub(super) async fn read(&self) -> Result<Set, StoreError> {
        if let Some(set) = self.shared.current() {
            return Ok(set);
        }
        let read = {
            let mut next = self.shared.next.lock().expect("no panic while it is held");
            next.get_or_insert_with(|| self.shared.clone().read_once().boxed().shared())
                .clone()
        };
        read.await
    }

    /// As [`Proxies::read`], for a grant that was made when its entry was written with this
    /// version: the store may have read the set together with it.
    pub(super) async fn read_since(&self, version: u64) -> Result<Set, StoreError> {
        match self.shared.store.records_since(version) {
            Some(records) => self.shared.take_over(&records),
            None => self.read().await,
        }
    }

    /// Whether a proxy guarded the lock when the set was last read.
    pub(super) fn last_known_guard(&self, lock: &LockName) -> bool {
        let set = self.shared.known().set.clone();
        set.iter().any(|proxy| proxy.guards(lock))
    }

    /// Registers a proxy if its name still stands as `before`, whichever lockd wrote it; tells
    /// whether it did.
    pub(super) async fn replace(
        &self,
        before: Option<&Proxy>,
        proxy: &Proxy,
    ) -> Result<bool, StoreError> {
        let name = format!("{PREFIX}{}", proxy.instance);
        let store = &self.shared.store;
        // Its bytes, which another version may have written otherwise than this one would.
        let records = store.records(&name).await?;
        let seen = records.iter().find(|(other, _)| *other == name);
        let found = seen.map(|(name, value)| Proxy::from_record(name, value));
        if found.transpose()?.as_ref() != before {
            // Another lockd wrote it: what was read before is not current.
            self.shared.note_write();
            return Ok(false);
        }
        let seen = seen.map(|(_, value)| value.as_slice());
        self.seen.add([proxy]).await.map_err(unavailable)?;
        let write = store.replace_record(&name, seen, proxy.to_record().to_json());
        self.shared.noting(write).await
    }

    pub(super) async fn remove(&self, instance: &str) -> Result<(), StoreError> {
        let name = format!("{PREFIX}{instance}");
        let write = self.shared.store.put_record(&name, None);
        self.shared.noting(write).await?;
        if let Err(error) = self.seen.remove(instance).await {
            // Another store than this would have it put back, and ask for its seals.
            tracing::warn!(%error, instance, "a proxy that was taken out is still written down");
        }
        Ok(())
    }

    /// Keeps what other lockds register in the file of what was seen.
    pub(super) async fn follow(self: Arc<Self>, finished: CancellationToken) {
        if self.shared.store.is_exclusive() || !self.seen.is_kept() {
            return;
        }
        let note = async {
            loop {
                // Who cannot read now reads the next time; health tells.
                if let Ok(set) = self.read().await
                    && let Err(error) = self.seen.add(set.iter()).await
                {
                    tracing::warn!(%error, "registered proxies are not written down");
                }
                tokio::time::sleep(NOTE_EVERY).await;
            }
        };
        finished.run_until_cancelled(note).await;
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        // A read whose callers all went away before it began holds the store.
        if let Ok(mut next) = self.shared.next.lock() {
            next.take();
        }
    }
}

/// A write that ends, or is given up.
struct NotedAtEnd<'a>(&'a Reads);

impl Drop for NotedAtEnd<'_> {
    fn drop(&mut self) {
        self.0.note_write();
    }
}

impl Reads {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no panic while it is held")
    }

    fn current(&self) -> Option<Set> {
        let known = self.known();
        known.is_current.then(|| known.set.clone())
    }

    fn take_over(&self, records: &[(String, Vec<u8>)]) -> Result<Set, StoreError> {
        let mut known = self.known();
        known.take_over(records.iter().filter(|(name, _)| name.starts_with(PREFIX)))?;
        Ok(known.set.clone())
    }

    async fn read_once(self: Arc<Self>) -> Result<Set, StoreError> {
        let _turn = self.one_at_a_time.acquire().await.expect("never closed");
        // The read begins: who asks from now on may have been granted after it, and needs the next.
        self.next.lock().expect("no panic while it is held").take();
        let writes = self.known().writes;
        let records = self.store.records(PREFIX).await?;
        let mut known = self.known();
        known.take_over(records.iter())?;
        known.is_current = self.store.is_exclusive() && known.writes == writes;
        Ok(known.set.clone())
    }

    async fn noting<T>(
        &self,
        write: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.note_write();
        // Again at the end: a read in between may have seen the time before. Also where the caller
        // goes away, since what it sent may still be written.
        let _ended = NotedAtEnd(self);
        write.await
    }

    fn note_write(&self) {
        let mut known = self.known();
        known.writes += 1;
        known.is_current = false;
    }
}
