//! Ending backend sessions, and proving it: `pg_terminate_backend`, again and again, until
//! pg_stat_activity does not list the session any more.
//!
//! One task per listener. Invariant: what waits is bounded by the number of connections: each is
//! condemned at most once, or twice where its connection is lost while it is being ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::control::{Control, ControlError, SessionId};
use super::sessions::{Sessions, read_row};
use crate::proxy::condemned::{Condemned, Queue, Tries};
use crate::proxy::doubts::Doubt;
use crate::proxy::left::Left;
use crate::proxy::watermarks::LeftSession;

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
        let mut systems: BTreeMap<Arc<str>, Vec<_>> = BTreeMap::new();
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
    /// The server does not list it any more.
    fn gone(&self, condemned: Condemned<SessionId>) {
        condemned.gone(&self.left, |session| self.sessions.forget(&session));
    }
}
