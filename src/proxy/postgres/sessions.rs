//! The durable registry of backend sessions, as this listener writes it: see
//! [`watermarks`](crate::proxy::watermarks).
//!
//! Invariant: [`Sessions::record`] has returned `Ok` for a lock before the first write under it is
//! forwarded on the session.

use std::time::Duration;

use tokio::sync::oneshot;

use super::control::SessionId;
use crate::lock_name::LockName;
use crate::protocol::Refusal;
use crate::proxy::watermarks::{BackendSession, Watermarks, What};

const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The sessions of one backend. Cheap to clone.
#[derive(Clone)]
pub struct Sessions {
    backend: String,
    watermarks: Watermarks,
}

impl Sessions {
    /// Those of the backend of this address.
    pub fn new(backend: String, watermarks: Watermarks) -> Sessions {
        Sessions {
            backend,
            watermarks,
        }
    }

    /// The address, as the sessions are recorded under it.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// Puts on disk that the session may carry writes under these locks.
    pub async fn record(&self, session: &SessionId, locks: &[LockName]) -> Result<(), Refusal> {
        let mut answers = vec![];
        for lock in locks {
            let (told, answer) = oneshot::channel();
            let what = What::Carries {
                session: self.row(session),
                lock: lock.clone(),
            };
            let done = move |durable: bool| {
                // Whoever asked may have gone.
                let _ = told.send(durable);
            };
            self.watermarks.submit(what, Box::new(done));
            answers.push((lock, answer));
        }
        for (lock, answer) in answers {
            if answer.await != Ok(true) {
                let refusal = Refusal::busy("the session cannot be recorded on disk", RETRY_AFTER);
                return Err(refusal.for_lock(lock.clone()));
            }
        }
        Ok(())
    }

    /// Nothing of the session can be applied any more: its rows may go.
    pub fn forget(&self, session: &SessionId) {
        // A row that stays is proven gone by the next run.
        let ended = What::Ended(self.row(session));
        self.watermarks.submit(ended, Box::new(|_| {}));
    }

    fn row(&self, session: &SessionId) -> BackendSession {
        BackendSession {
            backend: self.backend.clone(),
            server: format!("{}/{}", session.system, session.started),
            // Pids are positive.
            id: u64::from(session.pid.unsigned_abs()),
        }
    }
}

/// The session of a row; `None`: it is no row of ours.
pub(super) fn read_row(row: &BackendSession) -> Option<SessionId> {
    let (system, started) = row.server.split_once('/')?;
    Some(SessionId {
        system: system.into(),
        pid: i32::try_from(row.id).ok()?,
        started: started.parse().ok()?,
    })
}
