//! Ending backend sessions, and proving it: `CLIENT KILL ID`, then `CLIENT LIST` until the server
//! does not know the session any more (or another server process answers).
//!
//! One task per backend. Invariant: what waits is bounded by the number of connections: each is
//! condemned at most once.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::control::{Control, SessionId};
use crate::proxy::condemned::{Condemned, Queue, Tries};
use crate::proxy::doubts::Doubt;
use crate::proxy::left::Left;
use crate::proxy::watermarks::{BackendSession, LeftSession, Watermarks, What};

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
    queue: Queue<SessionId>,
}

impl Evictor {
    /// For the backend of this address, whose sessions of earlier runs are to be ended first.
    pub fn new(
        backend: String,
        watermarks: Watermarks,
        left: Left,
        sessions: Vec<LeftSession>,
    ) -> Evictor {
        let condemned = sessions.into_iter().map(|left| {
            let session = SessionId {
                run_id: left.session.server.as_str().into(),
                id: left.session.id,
            };
            Condemned {
                recorded: true,
                left: Some(left),
                ..Condemned::new(session)
            }
        });
        Evictor {
            shared: Arc::new(Shared {
                backend,
                watermarks,
                left,
                queue: Queue::new(condemned.collect()),
            }),
        }
    }

    /// Has the session ended, and the doubts resolved once that is proven.
    pub fn condemn(&self, session: SessionId, doubts: Vec<Doubt>, recorded: bool) {
        self.shared.queue.push(Condemned {
            doubts,
            recorded,
            ..Condemned::new(session)
        });
    }

    /// Has the session ended, and tells when it is proven gone. An error of the receiver: this
    /// proxy is ending.
    pub fn end(&self, session: SessionId) -> oneshot::Receiver<()> {
        self.shared.queue.end(session)
    }

    /// The session has ended with nothing unanswered: its rows may go.
    pub fn forget(&self, session: &SessionId) {
        self.shared.forget(session);
    }

    /// Ends what is condemned, over and over. Runs until it is dropped.
    pub async fn run(self, control: Control) {
        let mut tries = Tries::new();
        loop {
            let open = self.shared.queue.next(&mut tries).await;
            tries.note(self.end_all(&control, open).await);
        }
    }

    /// One try for each; returns those that are not proven gone.
    async fn end_all(
        &self,
        control: &Control,
        open: Vec<Condemned<SessionId>>,
    ) -> Vec<Condemned<SessionId>> {
        let mut servers: BTreeMap<Arc<str>, Vec<_>> = BTreeMap::new();
        for condemned in open {
            let server = servers
                .entry(Arc::clone(&condemned.session.run_id))
                .or_default();
            server.push(condemned);
        }
        let mut still = vec![];
        for (run_id, mut condemned) in servers {
            while !condemned.is_empty() {
                let rest = condemned.split_off(condemned.len().min(BATCH_SESSIONS_MAX));
                let batch = std::mem::replace(&mut condemned, rest);
                let ids: Vec<u64> = batch.iter().map(|it| it.session.id).collect();
                match control.kill_and_list(&run_id, &ids).await {
                    Ok(there) => {
                        for condemned in batch {
                            match there.contains(&condemned.session.id) {
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
    /// The server does not know it any more.
    fn gone(&self, condemned: Condemned<SessionId>) {
        condemned.gone(&self.left, |session| self.forget(&session));
    }

    fn forget(&self, session: &SessionId) {
        let session = BackendSession {
            backend: self.backend.clone(),
            server: session.run_id.to_string(),
            id: session.id,
        };
        // A row that stays is proven gone by the next run.
        let ended = What::Ended(session);
        self.watermarks.submit(ended, Box::new(|_| {}));
    }
}
