//! Backend sessions that are to be ended, tried again and again until each is proven gone.
//!
//! Invariants:
//! - a doubt is resolved only after the server's own answer that its session is gone;
//! - a session is tried until it is gone, however long the server is away: its locks stay closed to
//!   newer tokens for so long.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::doubts::Doubt;
use super::left::Left;
use super::watermarks::LeftSession;
use crate::telemetry::SESSIONS_ENDED;

/// First and longest wait before a session that is still there is tried again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(500));

/// Most sessions of one exchange with a server.
const BATCH_SESSIONS_MAX: usize = 256;

/// A session that is to be ended.
pub(super) struct Condemned<S> {
    /// Which.
    pub(super) session: S,
    /// What is not known to have ended with it.
    pub(super) doubts: Vec<Doubt>,
    /// It has rows on disk, which then go.
    pub(super) recorded: bool,
    /// An earlier run has left it.
    pub(super) left: Option<LeftSession>,
    /// Who waits for its end.
    pub(super) told: Option<oneshot::Sender<()>>,
}

impl<S> Condemned<S> {
    /// One that has an end, and nothing else with it.
    pub(super) fn new(session: S) -> Condemned<S> {
        Condemned {
            session,
            doubts: vec![],
            recorded: false,
            left: None,
            told: None,
        }
    }

    /// The server does not know it any more. `forget` has its rows taken from the disk.
    pub(super) fn gone(self, all: &Left, forget: impl FnOnce(S)) {
        metrics::counter!(SESSIONS_ENDED).increment(1);
        self.doubts.into_iter().for_each(Doubt::resolve);
        if let Some(left) = &self.left {
            all.ended(left);
        }
        if self.recorded {
            forget(self.session);
        }
        if let Some(told) = self.told {
            // The session may have ended by itself.
            let _ = told.send(());
        }
    }
}

/// What waits to be ended at one backend.
pub(super) struct Queue<S> {
    waiting: Mutex<Vec<Condemned<S>>>,
    wanted: Notify,
}

impl<S> Queue<S> {
    /// These first.
    pub(super) fn new(first: Vec<Condemned<S>>) -> Queue<S> {
        Queue {
            waiting: Mutex::new(first),
            wanted: Notify::new(),
        }
    }

    pub(super) fn push(&self, condemned: Condemned<S>) {
        self.lock().push(condemned);
        self.wanted.notify_one();
    }

    /// Has the session ended, and tells when it is proven gone. An error of the receiver: this
    /// proxy is ending.
    pub(super) fn end(&self, session: S) -> oneshot::Receiver<()> {
        let (told, gone) = oneshot::channel();
        self.push(Condemned {
            told: Some(told),
            ..Condemned::new(session)
        });
        gone
    }

    /// Waits until there is something to be tried: those that are still open when they have
    /// rested, and whatever has come.
    pub(super) async fn next(&self, tries: &mut Tries<S>) -> Vec<Condemned<S>> {
        if !tries.open.is_empty() {
            // Whichever comes first, all are tried again.
            let _ = tokio::time::timeout(tries.backoff, self.wanted.notified()).await;
        }
        loop {
            let mut all = std::mem::take(&mut tries.open);
            all.append(&mut self.lock());
            if !all.is_empty() {
                tries.tried = all.len();
                return all;
            }
            self.wanted.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Condemned<S>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was tried at one backend, and is to be tried again.
pub(super) struct Tries<S> {
    open: Vec<Condemned<S>>,
    tried: usize,
    backoff: Duration,
}

impl<S> Tries<S> {
    /// Nothing yet.
    pub(super) fn new() -> Tries<S> {
        Tries {
            open: vec![],
            tried: 0,
            backoff: BACKOFF.0,
        }
    }

    /// These are not proven gone.
    pub(super) fn note(&mut self, open: Vec<Condemned<S>>) {
        self.backoff = match open.len() < self.tried {
            true => BACKOFF.0,
            false => (self.backoff * 2).min(BACKOFF.1),
        };
        self.open = open;
    }
}

/// How sessions are ended at one kind of server.
pub(super) trait Ends: Sync {
    /// What names one.
    type Session: Send + Sync;

    /// The server process, or the cluster, that a session is of: those of one are ended together.
    fn server(session: &Self::Session) -> Arc<str>;

    /// Has the server end these, and asks it which of them are still there, in their order.
    fn end(
        &self,
        server: &str,
        sessions: &[&Self::Session],
    ) -> impl Future<Output = Result<Vec<bool>, NotEnded>> + Send;
}

/// The server did not end them, or did not say.
pub(super) struct NotEnded {
    /// Why.
    pub(super) reason: String,
    /// One of them may not be ended: the others may be, alone.
    pub(super) denied: bool,
}

/// One try for each; returns those that are not proven gone. `backend`: what the log calls the
/// server.
pub(super) async fn end_all<E: Ends>(
    ends: &E,
    backend: &str,
    open: Vec<Condemned<E::Session>>,
    gone: impl Fn(Condemned<E::Session>) + Send + Sync,
) -> Vec<Condemned<E::Session>> {
    let mut servers: BTreeMap<Arc<str>, Vec<_>> = BTreeMap::new();
    for condemned in open {
        let server = E::server(&condemned.session);
        servers.entry(server).or_default().push(condemned);
    }
    let mut still = vec![];
    for (server, mut condemned) in servers {
        let mut batch_max = BATCH_SESSIONS_MAX;
        while !condemned.is_empty() {
            let rest = condemned.split_off(condemned.len().min(batch_max));
            let batch = std::mem::replace(&mut condemned, rest);
            let sessions: Vec<_> = batch.iter().map(|it| &it.session).collect();
            match ends.end(&server, &sessions).await {
                Ok(there) => {
                    // One of which nothing is told counts as there.
                    let there = there.into_iter().chain(std::iter::repeat(true));
                    for (condemned, is_there) in batch.into_iter().zip(there) {
                        match is_there {
                            true => still.push(condemned),
                            false => gone(condemned),
                        }
                    }
                }
                // One session that may not be ended must not keep the others.
                Err(NotEnded { denied: true, .. }) if batch.len() > 1 => {
                    batch_max = 1;
                    condemned.splice(0..0, batch);
                }
                Err(NotEnded { reason, .. }) => {
                    tracing::warn!(error = reason, backend, "old writes wait");
                    still.extend(batch);
                }
            }
        }
    }
    still
}
