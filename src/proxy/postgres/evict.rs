//! Ending backend sessions, and proving it: `pg_terminate_backend`, again and again, until
//! pg_stat_activity does not list the session any more.
//!
//! One task per listener. Invariant: what waits is bounded by the number of connections: each is
//! condemned at most once, or twice where its connection is lost while it is being ended.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::control::{Control, ControlError, SessionId};
use super::sessions::{Sessions, read_row};
use crate::proxy::condemned::{Condemned, Ends, NotEnded, Queue, Tries, end_all};
use crate::proxy::doubts::Doubt;
use crate::proxy::left::Left;
use crate::proxy::watermarks::LeftSession;

/// A listener's evictor. Cheap to clone.
#[derive(Clone)]
pub struct Evictor {
    shared: Arc<Shared>,
}

struct Shared {
    sessions: Sessions,
    left: Left,
    queue: Queue<SessionId>,
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
                recorded: true,
                left: Some(it),
                ..Condemned::new(session)
            });
        }
        Evictor {
            shared: Arc::new(Shared {
                sessions,
                left,
                queue: Queue::new(condemned),
            }),
        }
    }

    /// Has the session ended, and the doubts resolved once that is proven. `recorded`: it has rows
    /// on disk, which then go.
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

    /// Ends what is condemned, over and over. Runs until it is dropped.
    pub async fn run(self, control: Control) {
        let Shared {
            sessions, queue, ..
        } = &*self.shared;
        let mut tries = Tries::new();
        loop {
            let open = queue.next(&mut tries).await;
            let gone = |it| self.shared.gone(it);
            tries.note(end_all(&control, sessions.backend(), open, gone).await);
        }
    }
}

impl Ends for Control {
    type Session = SessionId;

    fn server(session: &SessionId) -> Arc<str> {
        Arc::clone(&session.system)
    }

    async fn end(&self, system: &str, sessions: &[&SessionId]) -> Result<Vec<bool>, NotEnded> {
        let names = sessions.iter().map(|it| (it.pid, it.started));
        let names: Vec<_> = names.collect();
        match self.end_and_list(system, &names).await {
            Ok(there) => Ok(names.iter().map(|name| there.contains(name)).collect()),
            Err(error) => Err(NotEnded {
                reason: error.to_string(),
                denied: matches!(error, ControlError::Denied(_)),
            }),
        }
    }
}

impl Shared {
    /// The server does not list it any more.
    fn gone(&self, condemned: Condemned<SessionId>) {
        condemned.gone(&self.left, |session| self.sessions.forget(&session));
    }
}
