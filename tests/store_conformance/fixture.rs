//! A store of either kind with what belongs to it, and short forms of its operations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ringfence::lock_name::LockName;
use ringfence::store::embedded::EmbeddedStore;
use ringfence::store::etcd::{EtcdConfig, EtcdStore};
use ringfence::store::{Enqueue, Enqueued, Entry, Event, Remove, Removed, SessionId, Store};
use ringfence::token::Token;
use tokio::sync::mpsc;

use crate::support::etcd::{Etcd, Version};

/// Longest wait for anything that must happen.
pub const WAIT_MAX: Duration = Duration::from_secs(20);

/// A time to live that no test outlasts.
pub const LONG: Duration = Duration::from_secs(60);

#[derive(Clone, Copy)]
pub enum Kind {
    Embedded,
    Etcd(Version),
}

pub struct Fixture {
    store: Option<Arc<dyn Store>>,
    etcd: Option<Etcd>,
    folder: tempfile::TempDir,
}

impl Fixture {
    pub async fn start(kind: Kind) -> Fixture {
        let etcd = match kind {
            Kind::Embedded => None,
            Kind::Etcd(version) => Some(Etcd::start(version, 1)),
        };
        let folder = tempfile::tempdir().unwrap();
        let mut fixture = Fixture {
            store: None,
            etcd,
            folder,
        };
        fixture.store = Some(fixture.open().await);
        fixture
    }

    /// Opens the store; over etcd it may be a second one.
    pub async fn open(&self) -> Arc<dyn Store> {
        match &self.etcd {
            None => Arc::new(
                EmbeddedStore::open(&self.folder.path().join("s.redb"))
                    .await
                    .unwrap(),
            ),
            Some(etcd) => {
                let config = EtcdConfig {
                    endpoints: etcd.endpoints(),
                    prefix: String::new(),
                };
                Arc::new(EtcdStore::open(&config).await.unwrap())
            }
        }
    }

    pub fn store(&self) -> Arc<dyn Store> {
        Arc::clone(self.store.as_ref().unwrap())
    }

    pub fn etcd(&self) -> &Etcd {
        self.etcd.as_ref().unwrap()
    }

    /// Ends the store and what it stands on, and starts both again on the same data. The test must
    /// hold no other handle of the store.
    pub async fn restart(&mut self) {
        let store = self.store.take().unwrap();
        assert_eq!(Arc::strong_count(&store), 1, "a test keeps the store");
        drop(store);
        if let Some(etcd) = &mut self.etcd {
            etcd.kill(0);
            etcd.restart(0);
        }
        self.store = Some(self.open().await);
    }
}

pub fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

pub async fn session(store: &Arc<dyn Store>) -> SessionId {
    store.open_session(LONG).await.unwrap().0
}

pub fn request(lock: &str, session: SessionId, attempt: u64) -> Enqueue {
    let holder = format!("holder of {session}");
    Enqueue {
        lock: name(lock),
        session,
        attempt,
        holder,
        only_if_first: false,
    }
}

/// Stands in the queue; the own entry and the holder.
pub async fn stand(
    store: &Arc<dyn Store>,
    lock: &str,
    session: SessionId,
    attempt: u64,
) -> (Entry, Entry) {
    standing(
        store
            .enqueue(request(lock, session, attempt))
            .await
            .unwrap(),
    )
}

pub fn standing(enqueued: Enqueued) -> (Entry, Entry) {
    match enqueued {
        Enqueued::Standing { entry, holder } => (entry, holder),
        other => panic!("not standing: {other:?}"),
    }
}

/// An atomic try.
pub async fn attempt_first(
    store: &Arc<dyn Store>,
    lock: &str,
    session: SessionId,
    attempt: u64,
) -> Enqueued {
    let request = Enqueue {
        only_if_first: true,
        ..request(lock, session, attempt)
    };
    store.enqueue(request).await.unwrap()
}

pub fn removal(entry: &Entry) -> Remove {
    Remove {
        lock: entry.lock.clone(),
        session: entry.session,
        token: entry.token,
        only_version: None,
    }
}

pub async fn remove(store: &Arc<dyn Store>, entry: &Entry) -> Removed {
    store.remove(removal(entry)).await.unwrap()
}

pub async fn queue(store: &Arc<dyn Store>, lock: &str) -> Vec<Entry> {
    store.queue(&name(lock)).await.unwrap().entries
}

/// What a watch has told, as a reader keeps it.
pub struct Mirror {
    events: mpsc::Receiver<Event>,
    pub entries: BTreeMap<(LockName, Token), Entry>,
    pub resets: usize,
    synced: bool,
}

impl Mirror {
    /// Starts a watch and reads all that exists.
    pub async fn start(store: &Arc<dyn Store>) -> Mirror {
        let events = store.watch().await.unwrap();
        let mut mirror = Mirror {
            events,
            entries: BTreeMap::new(),
            resets: 0,
            synced: false,
        };
        assert_eq!(mirror.next().await, Event::Reset);
        while !mirror.synced {
            mirror.next().await;
        }
        mirror
    }

    /// The next event, applied.
    pub async fn next(&mut self) -> Event {
        let event = tokio::time::timeout(WAIT_MAX, self.events.recv()).await;
        let event = event
            .expect("an event in time")
            .expect("a watch that goes on");
        match &event {
            Event::Reset => {
                self.entries.clear();
                self.resets += 1;
                self.synced = false;
            }
            Event::Synced => self.synced = true,
            Event::Put(entry) => {
                let key = (entry.lock.clone(), entry.token);
                let old = self.entries.insert(key, entry.clone());
                assert!(
                    old.is_none_or(|old| old.version < entry.version),
                    "{entry:?} went back"
                );
            }
            Event::Gone { lock, token, .. } => {
                let known = self.entries.remove(&(lock.clone(), *token));
                assert!(
                    known.is_some(),
                    "{lock} {token} is gone and was never there"
                );
            }
        }
        event
    }

    /// Reads on until what was told satisfies the condition.
    pub async fn until(&mut self, met: impl Fn(&Mirror) -> bool) {
        while !(self.synced && met(self)) {
            self.next().await;
        }
    }

    /// The entries of one lock, ascending.
    pub fn of(&self, lock: &str) -> Vec<Entry> {
        let lock = name(lock);
        let own = self.entries.iter().filter(|((of, _), _)| *of == lock);
        own.map(|(_, entry)| entry.clone()).collect()
    }
}
