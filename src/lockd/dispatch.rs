//! The one watch of the store, dispatched locally: wakes exactly the calls whose verdict changed
//! and tells holder changes to those who watch a lock.
//!
//! The rules are in [`crate::queue`]; here are the mutex around them, the tasks to wake, and the
//! bounds. The mutex is held for pure calls only, never across an await.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::lock_name::LockName;
use crate::lockd::Limits;
use crate::lockd::status::Error;
use crate::queue::{self, Changes, Held, Mirror, Page, Verdict, WaitId};
use crate::store::{self, Store};
use crate::telemetry;
use crate::token::Token;

/// Changes that are kept for a slow reader of a watch; behind that it gets the newest state only.
const WATCH_BACKLOG: usize = 32;
/// Events taken from the store's watch under one hold of the mutex.
const EVENTS_PER_TURN: usize = 256;
/// Pause before the store's watch, or a read that settles a verdict, is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The mirror and everybody who waits on it.
pub(super) struct Dispatch {
    inner: Mutex<Inner>,
    limits: Limits,
    synced: watch::Sender<bool>,
}

#[derive(Default)]
struct Inner {
    mirror: Mirror,
    /// The tasks of waits that stand.
    sleepers: HashMap<WaitId, Arc<Notify>>,
    watched: HashMap<LockName, broadcast::Sender<Option<Held>>>,
    watches: usize,
}

impl Dispatch {
    pub(super) fn new(limits: Limits) -> Dispatch {
        Dispatch {
            inner: Mutex::default(),
            limits,
            synced: watch::Sender::new(false),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A panic in the mirror is a broken invariant that guards fencing: nothing goes on.
        self.inner.lock().expect("the queue's mirror is intact")
    }

    /// Turns true once the whole state of the store was read.
    pub(super) fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    /// Opens a wait, before the entry is written.
    pub(super) fn open_wait(self: &Arc<Self>, lock: &LockName) -> Result<Wait, Error> {
        let mut inner = self.inner();
        if inner.mirror.waits_open() >= self.limits.waits_max {
            return Err(Error::TooMany {
                what: "waiting calls",
                max: self.limits.waits_max,
            });
        }
        if inner.mirror.queue_length(lock) >= self.limits.waiters_per_lock_max {
            let max = self.limits.waiters_per_lock_max;
            return Err(Error::TooMany {
                what: "waiters on this lock",
                max,
            });
        }
        let id = inner.mirror.open_wait(lock);
        Ok(Wait {
            id,
            lock: lock.clone(),
            dispatch: self.clone(),
        })
    }

    /// A reply of the store told who is first: wakes its waiter before the watch does.
    pub(super) fn first_is(&self, lock: &LockName, token: Token) {
        let mut inner = self.inner();
        let changes = inner.mirror.first_is(lock, token);
        wake(inner, changes);
    }

    /// The held locks whose names begin with `prefix`, behind `after`: as fresh as the watch.
    pub(super) fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Page, Error> {
        let inner = self.inner();
        if !inner.mirror.synced() {
            return Err(Error::NotSynced);
        }
        Ok(inner.mirror.list(prefix, after, limit))
    }

    /// Locks with a record and calls that wait.
    pub(super) fn counts(&self) -> (usize, usize) {
        let inner = self.inner();
        (inner.mirror.locks_known(), inner.mirror.waits_open())
    }

    /// The holder now, and its changes from now on.
    pub(super) fn subscribe(
        self: &Arc<Self>,
        lock: &LockName,
    ) -> Result<(Option<Held>, Subscription), Error> {
        let mut inner = self.inner();
        if inner.watches >= self.limits.watches_max {
            return Err(Error::TooMany {
                what: "watches",
                max: self.limits.watches_max,
            });
        }
        inner.watches += 1;
        let sender = inner
            .watched
            .entry(lock.clone())
            .or_insert_with(|| broadcast::Sender::new(WATCH_BACKLOG));
        let changes = sender.subscribe();
        let held = inner.mirror.holder(lock);
        drop(inner);
        let subscription = Subscription {
            lock: lock.clone(),
            changes,
            dispatch: self.clone(),
        };
        Ok((held, subscription))
    }

    /// Follows the store's watch until `stopping`; starts it again when it ends.
    pub(super) async fn follow(&self, store: &dyn Store, stopping: &CancellationToken) {
        let run = async {
            loop {
                match store.watch().await {
                    Ok(mut events) => self.drain(&mut events).await,
                    Err(error) => tracing::warn!(%error, "the store's watch could not start"),
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        };
        stopping.run_until_cancelled(run).await;
    }

    async fn drain(&self, events: &mut mpsc::Receiver<store::Event>) {
        let mut turn = Vec::with_capacity(EVENTS_PER_TURN);
        while events.recv_many(&mut turn, EVENTS_PER_TURN).await > 0 {
            let mut inner = self.inner();
            let mut changes = Changes::default();
            for event in turn.drain(..) {
                if matches!(event, store::Event::Reset) {
                    metrics::counter!(telemetry::WATCH_RESETS).increment(1);
                }
                let of_event = inner.mirror.apply(translate(event));
                // Before the next event: each change is told to those who watch.
                tell_holders(&inner, &of_event.holders);
                changes.woken.extend(of_event.woken);
            }
            let synced = inner.mirror.synced();
            wake(inner, changes);
            self.synced
                .send_if_modified(|known| std::mem::replace(known, synced) != synced);
        }
        tracing::warn!("the store's watch ended");
    }
}

fn translate(event: store::Event) -> queue::Event {
    match event {
        store::Event::Reset => queue::Event::Reset,
        store::Event::Synced => queue::Event::Synced,
        store::Event::Put(entry) => queue::Event::Put {
            lock: entry.lock,
            token: entry.token,
            place: queue::Place {
                session: entry.session.0,
                holder: entry.holder.into(),
                foreign: entry.foreign,
            },
        },
        store::Event::Gone { lock, token, .. } => queue::Event::Gone { lock, token },
    }
}

fn tell_holders(inner: &Inner, locks: &[LockName]) {
    for lock in locks {
        if let Some(watched) = inner.watched.get(lock) {
            // Nobody listens any more: the last one is about to remove the sender.
            let _ = watched.send(inner.mirror.holder(lock));
        }
    }
}

fn wake(inner: MutexGuard<'_, Inner>, changes: Changes) {
    let sleepers: Vec<Arc<Notify>> = changes
        .woken
        .iter()
        .filter_map(|id| inner.sleepers.get(id).cloned())
        .collect();
    drop(inner);
    for sleeper in sleepers {
        sleeper.notify_one();
    }
}

/// An open wait of a call; dropping it ends the wait and leaves the entry.
pub(super) struct Wait {
    id: WaitId,
    lock: LockName,
    dispatch: Arc<Dispatch>,
}

impl Wait {
    /// Waits until the entry with this token is the first (true) or gone (false).
    pub(super) async fn is_first(&self, token: Token, store: &dyn Store) -> bool {
        let sleeper = Arc::new(Notify::new());
        let mut verdict = {
            let mut inner = self.dispatch.inner();
            inner.sleepers.insert(self.id, sleeper.clone());
            inner.mirror.stand(self.id, token)
        };
        loop {
            match verdict {
                Verdict::First => return true,
                Verdict::Gone => return false,
                Verdict::Waiting => sleeper.notified().await,
                Verdict::Unknown => self.read(store).await,
            }
            verdict = self.dispatch.inner().mirror.verdict(self.id);
        }
    }

    async fn read(&self, store: &dyn Store) {
        self.dispatch.inner().mirror.begin_read(self.id);
        match store.queue(&self.lock).await {
            Ok(view) => {
                let tokens: Vec<Token> = view.entries.iter().map(|entry| entry.token).collect();
                let mut inner = self.dispatch.inner();
                let changes = inner.mirror.observe(self.id, &tokens);
                wake(inner, changes);
            }
            Err(error) => {
                tracing::warn!(lock = %self.lock, %error, "a waiter's queue could not be read");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut inner = self.dispatch.inner();
        inner.sleepers.remove(&self.id);
        inner.mirror.close_wait(self.id);
    }
}

/// The holder changes of one lock.
pub(super) struct Subscription {
    lock: LockName,
    changes: broadcast::Receiver<Option<Held>>,
    dispatch: Arc<Dispatch>,
}

impl Subscription {
    /// The next change; for a reader that fell behind, the newest state.
    pub(super) async fn next(&mut self) -> Option<Held> {
        match self.changes.recv().await {
            Ok(held) => held,
            Err(broadcast::error::RecvError::Lagged(_)) => {
                let inner = self.dispatch.inner();
                if let Some(watched) = inner.watched.get(&self.lock) {
                    self.changes = watched.subscribe();
                }
                inner.mirror.holder(&self.lock)
            }
            // The sender lives as long as its subscriptions.
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut inner = self.dispatch.inner();
        inner.watches -= 1;
        // This one is still counted.
        if inner
            .watched
            .get(&self.lock)
            .is_some_and(|sender| sender.receiver_count() <= 1)
        {
            inner.watched.remove(&self.lock);
        }
    }
}
