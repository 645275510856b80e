//! Ending backend sessions, and proving it: `CLIENT KILL ID`, then `CLIENT LIST` until the server
//! does not know the session any more (or another server process answers).
//!
//! One task per backend. Invariant: what waits is bounded by the number of connections: each is
//! condemned at most once.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::control::{Control, SessionId};
use crate::proxy::condemned::{Condemned, Ends, NotEnded, Queue, Tries, end_all};
use crate::proxy::doubts::Doubt;
use crate::proxy::left::Left;
use crate::proxy::watermarks::{BackendSession, LeftSession, Watermarks, What};

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
        let Shared { backend, queue, .. } = &*self.shared;
        let mut tries = Tries::new();
        loop {
            let open = queue.next(&mut tries).await;
            let gone = |it| self.shared.gone(it);
            tries.note(end_all(&control, backend, open, gone).await);
        }
    }
}

impl Ends for Control {
    type Session = SessionId;

    fn server(session: &SessionId) -> Arc<str> {
        Arc::clone(&session.run_id)
    }

    async fn end(&self, run_id: &str, sessions: &[&SessionId]) -> Result<Vec<bool>, NotEnded> {
        let ids: Vec<u64> = sessions.iter().map(|it| it.id).collect();
        match self.kill_and_list(run_id, &ids).await {
            Ok(there) => Ok(ids.iter().map(|id| there.contains(id)).collect()),
            Err(error) => Err(NotEnded {
                reason: error.to_string(),
                denied: false,
            }),
        }
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
