//! Ending backend sessions, and proving it: `CLIENT KILL ID`, then `CLIENT LIST` until the server
//! does not know the session any more (or another server process answers).
//!
//! One task per backend. Invariants:
//! - a doubt is resolved only after the server's own answer that its session is gone;
//! - a condemned session is tried until it is gone, however long the backend is away or busy: its
//!   locks stay closed to newer tokens for so long;
//! - what waits is bounded by the number of connections: each is condemned at most once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::control::Control;
use crate::proxy::doubts::Doubt;
use crate::proxy::left::Left;
use crate::proxy::watermarks::{BackendSession, LeftSession, Watermarks, What};
use crate::telemetry::SESSIONS_ENDED;

/// First and longest wait before a session that is still there is tried again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(500));
/// Most sessions of one exchange with the server.
const BATCH_SESSIONS_MAX: usize = 256;

/// A backend's evictor. Cheap to clone.
#[derive(Clone)]
pub struct Evictor {
    shared: Arc<Shared>,
}

struct Shared {
    backend: String,
    watermarks: Watermarks,
    left: Left,
    waiting: Mutex<Vec<Condemned>>,
    wanted: Notify,
}

struct Condemned {
    run_id: Arc<str>,
    id: u64,
    doubts: Vec<Doubt>,
    /// It has rows on disk.
    recorded: bool,
    left: Option<LeftSession>,
    told: Option<oneshot::Sender<()>>,
}

impl Evictor {
    /// For the backend of this address, whose sessions of earlier runs are to be ended first.
    pub fn new(
        backend: String,
        watermarks: Watermarks,
        left: Left,
        sessions: Vec<LeftSession>,
    ) -> Evictor {
        let condemned = sessions.into_iter().map(|left| Condemned {
            run_id: left.session.server.as_str().into(),
            id: left.session.id,
            doubts: vec![],
            recorded: true,
            left: Some(left),
            told: None,
        });
        Evictor {
            shared: Arc::new(Shared {
                backend,
                watermarks,
                left,
                waiting: Mutex::new(condemned.collect()),
                wanted: Notify::new(),
            }),
        }
    }

    /// Has the session ended, and the doubts resolved once that is proven.
    pub fn condemn(&self, run_id: Arc<str>, id: u64, doubts: Vec<Doubt>, recorded: bool) {
        self.push(Condemned {
            run_id,
            id,
            doubts,
            recorded,
            left: None,
            told: None,
        });
    }

    /// The same, and tells when it is proven. An error of the receiver: this proxy is ending.
    pub fn end(&self, run_id: Arc<str>, id: u64) -> oneshot::Receiver<()> {
        let (told, gone) = oneshot::channel();
        self.push(Condemned {
            run_id,
            id,
            doubts: vec![],
            recorded: false,
            left: None,
            told: Some(told),
        });
        gone
    }

    /// The session has ended with nothing unanswered: its rows may go.
    pub fn forget(&self, run_id: &str, id: u64) {
        let session = self.shared.session(run_id, id);
        // A row that stays is proven gone by the next run.
        let ended = What::Ended(session);
        self.shared.watermarks.submit(ended, Box::new(|_| {}));
    }

    fn push(&self, condemned: Condemned) {
        let mut waiting = self.shared.lock();
        waiting.push(condemned);
        drop(waiting);
        self.shared.wanted.notify_one();
    }

    /// Ends what is condemned, over and over. Runs until it is dropped.
    pub async fn run(self, control: Control) {
        let mut backoff = BACKOFF.0;
        let mut open: Vec<Condemned> = vec![];
        loop {
            open.append(&mut self.shared.lock());
            if open.is_empty() {
                self.shared.wanted.notified().await;
                continue;
            }
            let count = open.len();
            open = self.end_all(&control, open).await;
            if open.is_empty() {
                backoff = BACKOFF.0;
                continue;
            }
            backoff = if open.len() < count {
                BACKOFF.0
            } else {
                (backoff * 2).min(BACKOFF.1)
            };
            // Whichever comes first, all are tried again.
            let _ = tokio::time::timeout(backoff, self.shared.wanted.notified()).await;
        }
    }

    /// One try for each; returns those that are not proven gone.
    async fn end_all(&self, control: &Control, open: Vec<Condemned>) -> Vec<Condemned> {
        let mut servers: BTreeMap<Arc<str>, Vec<Condemned>> = BTreeMap::new();
        for condemned in open {
            let server = servers.entry(Arc::clone(&condemned.run_id)).or_default();
            server.push(condemned);
        }
        let mut still = vec![];
        for (run_id, mut condemned) in servers {
            while !condemned.is_empty() {
                let rest = condemned.split_off(condemned.len().min(BATCH_SESSIONS_MAX));
                let batch = std::mem::replace(&mut condemned, rest);
                let ids: Vec<u64> = batch.iter().map(|it| it.id).collect();
                match control.kill_and_list(&run_id, &ids).await {
                    Ok(there) => {
                        for condemned in batch {
                            match there.contains(&condemned.id) {
                                true => still.push(condemned),
                                false => self.shared.gone(condemned),
                            }
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, backend = self.shared.backend, "old writes wait");
                        still.extend(batch);
                    }
                }
            }
        }
        still
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Condemned>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self, run_id: &str, id: u64) -> BackendSession {
        BackendSession {
            backend: self.backend.clone(),
            server: run_id.to_owned(),
            id,
        }
    }

    /// The server does not know it any more.
    fn gone(&self, condemned: Condemned) {
        metrics::counter!(SESSIONS_ENDED).increment(1);
        condemned.doubts.into_iter().for_each(Doubt::resolve);
        if let Some(left) = &condemned.left {
            self.left.ended(left);
        }
        if condemned.recorded {
            let session = self.session(&condemned.run_id, condemned.id);
            // A row that stays is proven gone by the next run.
            self.watermarks
                .submit(What::Ended(session), Box::new(|_| {}));
        }
        if let Some(told) = condemned.told {
            // The session may have ended by itself.
            let _ = told.send(());
        }
    }
}
