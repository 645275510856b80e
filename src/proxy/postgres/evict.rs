//! Ending backend sessions, and proving it: `pg_terminate_backend`, again and again, until
//! pg_stat_activity does not list the session any more.
//!
//! One task per listener. Invariants:
//! - a doubt is resolved only after the server's own answer that its session is gone;
//! - a condemned session is tried until it is gone, however long the server is away or the process
//!   is stopped: its locks stay closed to newer tokens for so long;
//! - what waits is bounded by the number of connections: each is condemned at most once, or twice
//!   where its connection is lost while it is being ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::control::{Control, ControlError, SessionId};
use super::sessions::{Sessions, read_row};
use crate::proxy::doubts::Doubt;
use crate::proxy::left::Left;
use crate::proxy::watermarks::LeftSession;
use crate::telemetry::SESSIONS_ENDED;

/// First and longest wait before a session that is still there is tried again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(500));
/// Most sessions of one exchange with the server.
const BATCH_SESSIONS_MAX: usize = 256;

/// A listener's evictor. Cheap to clone.
#[derive(Clone)]
pub struct Evictor {
    shared: Arc<Shared>,
}

struct Shared {
    sessions: Sessions,
    left: Left,
    waiting: Mutex<Vec<Condemned>>,
    wanted: Notify,
}

struct Condemned {
    session: SessionId,
    doubts: Vec<Doubt>,
    /// It has rows on disk.
    recorded: bool,
    left: Option<LeftSession>,
    told: Option<oneshot::Sender<()>>,
}

impl Evictor {
    /// For these sessions, of which those that an earlier run has `left` are to be ended first.
    pub fn new(sessions: Sessions, left: Left, earlier: Vec<LeftSession>) -> Evictor {
        let mut condemned = vec![];
        for it in earlier {
            let Some(session) = read_row(&it.session) else {
                let (server, id) = (&it.session.server, it.session.id);
                tracing::error!(server, id, "a recorded session is none of Postgres's");
                continue;
            };
            condemned.push(Condemned {
                session,
                doubts: vec![],
                recorded: true,
                left: Some(it),
                told: None,
            });
        }
        Evictor {
            shared: Arc::new(Shared {
                sessions,
                left,
                waiting: Mutex::new(condemned),
                wanted: Notify::new(),
            }),
        }
    }

    /// Has the session ended, and the doubts resolved once that is proven. `recorded`: it has rows
    /// on disk, which then go.
    pub fn condemn(&self, session: SessionId, doubts: Vec<Doubt>, recorded: bool) {
        self.push(Condemned {
            session,
            doubts,
            recorded,
            left: None,
            told: None,
        });
    }

    /// Has the session ended, and tells when it is proven gone. An error of the receiver: this
    /// proxy is ending.
    pub fn end(&self, session: SessionId) -> oneshot::Receiver<()> {
        let (told, gone) = oneshot::channel();
        self.push(Condemned {
            session,
            doubts: vec![],
            recorded: false,
            left: None,
            told: Some(told),
        });
        gone
    }

    fn push(&self, condemned: Condemned) {
        self.shared.lock().push(condemned);
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
            backoff = match open.len() < count {
                true => BACKOFF.0,
                false => (backoff * 2).min(BACKOFF.1),
            };
            // Whichever comes first, all are tried again.
            let _ = tokio::time::timeout(backoff, self.shared.wanted.notified()).await;
        }
    }

    /// One try for each; returns those that are not proven gone.
    async fn end_all(&self, control: &Control, open: Vec<Condemned>) -> Vec<Condemned> {
        let mut systems: BTreeMap<Arc<str>, Vec<Condemned>> = BTreeMap::new();
        for condemned in open {
            let system = Arc::clone(&condemned.session.system);
            systems.entry(system).or_default().push(condemned);
        }
        let mut still = vec![];
        for (system, mut condemned) in systems {
            let mut batch_max = BATCH_SESSIONS_MAX;
            while !condemned.is_empty() {
                let rest = condemned.split_off(condemned.len().min(batch_max));
                let batch = std::mem::replace(&mut condemned, rest);
                let names: Vec<_> = batch.iter().map(|it| name(&it.session)).collect();
                match control.end_and_list(&system, &names).await {
                    Ok(there) => {
                        for condemned in batch {
                            match there.contains(&name(&condemned.session)) {
                                true => still.push(condemned),
                                false => self.shared.gone(condemned),
                            }
                        }
                    }
                    // One session that may not be ended must not keep the others.
                    Err(ControlError::Denied(_)) if batch.len() > 1 => {
                        batch_max = 1;
                        condemned.splice(0..0, batch);
                    }
                    Err(error) => {
                        let backend = self.shared.sessions.backend();
                        tracing::warn!(%error, backend, "old writes wait");
                        still.extend(batch);
                    }
                }
            }
        }
        still
    }
}

fn name(session: &SessionId) -> (i32, i64) {
    (session.pid, session.started)
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Condemned>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server does not list it any more.
    fn gone(&self, condemned: Condemned) {
        metrics::counter!(SESSIONS_ENDED).increment(1);
        condemned.doubts.into_iter().for_each(Doubt::resolve);
        if let Some(left) = &condemned.left {
            self.left.ended(left);
        }
        if condemned.recorded {
            self.sessions.forget(&condemned.session);
        }
        if let Some(told) = condemned.told {
            // The session may have ended by itself.
            let _ = told.send(());
        }
    }
}
