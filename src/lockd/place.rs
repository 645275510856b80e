//! A call's place in a queue, as a value: dropped, it is given up.
//!
//! tonic drops the future of a call whose client goes away or times out. Then the call's own entry
//! leaves the queue, by its token and version: an entry that a repeated call has taken over since
//! has another version and stays. Removals run in tasks that the service owns and awaits.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::oneshot;

use crate::lock_name::LockName;
use crate::lockd::Core;
use crate::store::{Enqueue, Enqueued, Entry, Remove, Removed, SessionId, StoreError};
use crate::token::Token;

/// How often a removal is tried while the store is unavailable. After that the entry stays until
/// its session ends.
const REMOVAL_TRIES_MAX: u32 = 30;
/// Pause between two tries.
const REMOVAL_PAUSE: Duration = Duration::from_secs(1);

impl Core {
    /// Removes an entry and wakes the next in line before the watch tells of it.
    pub(super) async fn remove(&self, remove: Remove) -> Result<Removed, StoreError> {
        let lock = remove.lock.clone();
        let removed = self.store.remove(remove).await?;
        if let Some(next) = &removed.next {
            self.dispatch.first_is(&lock, next.token);
        }
        Ok(removed)
    }

    /// Removes the holder's entry at its own wish. Where the next in line waits here and nothing
    /// has to be sealed, it is told at once ([`crate::queue::Mirror::hand_over`]); the removal is
    /// then seen through even if the caller goes away.
    pub(super) async fn release(self: &Arc<Self>, remove: Remove) -> Result<Removed, StoreError> {
        let guarded = self.proxies.last_known_guard(&remove.lock);
        if guarded
            || !self
                .dispatch
                .hand_over(&remove.lock, remove.session, remove.token)
        {
            return self.remove(remove).await;
        }
        let (tell, told) = oneshot::channel();
        let core = self.clone();
        self.run_owned(async move {
            let removed = core.remove(remove.clone()).await;
            let again = matches!(removed, Err(StoreError::Unavailable(_)));
            // A caller that has gone away hears nothing.
            let _ = tell.send(removed);
            if again {
                core.remove_patiently(remove).await;
            }
        });
        told.await
            .unwrap_or_else(|_| Err(StoreError::Unavailable("stopping".to_owned())))
    }

    fn run_owned(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    async fn remove_patiently(&self, remove: Remove) {
        for _ in 0..REMOVAL_TRIES_MAX {
            match self.remove(remove.clone()).await {
                Err(StoreError::Unavailable(_)) => tokio::time::sleep(REMOVAL_PAUSE).await,
                Err(error) => {
                    tracing::warn!(lock = %remove.lock, token = %remove.token, %error,
                        "an abandoned entry stays until its session ends");
                    return;
                }
                Ok(_) => return,
            }
        }
        tracing::warn!(lock = %remove.lock, token = %remove.token,
            "an abandoned entry stays until its session ends: the store is unavailable");
    }
}

/// An entry being written. Dropped before the store has answered, it is written to its end in a
/// task and then removed: a request that left cannot be called back.
pub(super) struct Joining {
    core: Arc<Core>,
    answer: Option<BoxFuture<'static, Result<Enqueued, StoreError>>>,
}

impl Joining {
    pub(super) fn new(core: &Arc<Core>, enqueue: Enqueue) -> Joining {
        let store = core.store.clone();
        let answer = Box::pin(async move { store.enqueue(enqueue).await });
        Joining {
            core: core.clone(),
            answer: Some(answer),
        }
    }

    pub(super) async fn answer(mut self) -> Result<Enqueued, StoreError> {
        let answer = self.answer.as_mut().expect("taken only when dropped").await;
        self.answer = None;
        answer
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else {
            return;
        };
        let core = self.core.clone();
        self.core.run_owned(async move {
            // Where the answer is an error the entry's version is unknown. It stays until its
            // session ends: removing it blindly might remove what a repeated call was told.
            if let Ok(Enqueued::Standing { entry, .. }) = answer.await {
                core.remove_patiently(removal(&entry)).await;
            }
        });
    }
}

/// A place in a queue that this call has written last.
pub(super) struct Place {
    core: Arc<Core>,
    entry: Entry,
    records_when_written: bool,
    first_when_written: bool,
    kept: bool,
}

impl Place {
    pub(super) fn new(core: &Arc<Core>, entry: Entry) -> Place {
        Place {
            core: core.clone(),
            entry,
            records_when_written: false,
            first_when_written: false,
            kept: false,
        }
    }

    /// The set of proxies that its seal has to cover is the one of the moment when the entry was
    /// written, or later: it was granted then, or handed over without a write of its own.
    pub(super) fn covers_since_written(mut self) -> Place {
        self.records_when_written = true;
        self
    }

    /// The store's own answer to that write says that it is the first.
    pub(super) fn first_when_written(mut self) -> Place {
        self.first_when_written = true;
        self.covers_since_written()
    }

    /// Whether it was told to be the first before what it follows was removed, as far as the watch
    /// has told: it was handed over, or taken up by a repeated call since.
    pub(super) fn is_early(&self) -> bool {
        let dispatch = &self.core.dispatch;
        !self.first_when_written && dispatch.is_early(self.lock(), self.token())
    }

    /// The version of that write; `None`: the grant was made later.
    pub(super) fn covers_since(&self) -> Option<u64> {
        self.records_when_written.then_some(self.entry.version)
    }

    pub(super) fn lock(&self) -> &LockName {
        &self.entry.lock
    }

    pub(super) fn session(&self) -> SessionId {
        self.entry.session
    }

    pub(super) fn token(&self) -> Token {
        self.entry.token
    }

    /// Tells the grant from every other one: sessions are random, and an attempt is one grant. It
    /// stays the same when the grant is asked for again, through whichever lockd.
    pub(super) fn grant(&self) -> String {
        format!("{}/{}", self.entry.session, self.entry.attempt)
    }

    /// Leaves the entry in the queue.
    pub(super) fn keep(mut self) -> Entry {
        self.kept = true;
        self.entry.clone()
    }

    /// Removes the entry. Where the store fails, a task goes on trying.
    pub(super) async fn leave(mut self) -> Result<(), StoreError> {
        self.core.remove(removal(&self.entry)).await?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.kept {
            let core = self.core.clone();
            let remove = removal(&self.entry);
            self.core
                .tasks
                .spawn(async move { core.remove_patiently(remove).await });
        }
    }
}

fn removal(entry: &Entry) -> Remove {
    Remove {
        lock: entry.lock.clone(),
        session: entry.session,
        token: entry.token,
        only_version: Some(entry.version),
    }
}
