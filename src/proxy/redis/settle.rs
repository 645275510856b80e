//! Locks settled at the tokens that are claimed for them, and the backend session recorded for
//! them. Futures of their own, so that replies go on beside them.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::RedisListening;
use super::control::SessionId;
use crate::lock_name::LockName;
use crate::protocol::Refusal;
use crate::proxy::gates::{Claim, Entry};
use crate::proxy::watermarks::{BackendSession, What};

/// When a client may try again that was told busy.
pub(super) const RETRY_AFTER: std::time::Duration = std::time::Duration::from_secs(1);

/// A claim whose lock is settled at its token.
pub(super) struct Settled {
    pub(super) claim: Claim,
    pub(super) entry: Arc<Entry>,
    /// The session is on disk for this lock.
    pub(super) recorded: bool,
}

/// Settles claims and, for writes, puts the session on disk for these locks.
pub(super) async fn settle_all(
    listening: Arc<RedisListening>,
    session: SessionId,
    claims: Arc<[Claim]>,
    unrecorded: Vec<LockName>,
) -> Result<Vec<Settled>, Refusal> {
    let deadline = Instant::now() + listening.config.admit_deadline;
    let mut settled = vec![];
    for claim in claims.iter() {
        settled.push(settle(&listening, &session, claim, deadline).await?);
    }
    for lock in unrecorded {
        record(&listening, &session, &lock).await?;
        let of_lock = settled.iter_mut().filter(|it| it.claim.lock == lock);
        of_lock.for_each(|it| it.recorded = true);
    }
    Ok(settled)
}

pub(super) async fn settle(
    listening: &RedisListening,
    session: &SessionId,
    claim: &Claim,
    deadline: Instant,
) -> Result<Settled, Refusal> {
    loop {
        let gates = &listening.gates;
        match &listening.fence_keys {
            None => gates.settle(claim, None, deadline).await?,
            Some(keys) => {
                gates.settle_beside(claim, keys, deadline).await?;
                keys.hold(claim, session, deadline).await?;
            }
        }
        // It may be evicted in between; then it is settled anew.
        if let Some(entry) = listening.gates.loaded(&claim.lock) {
            return Ok(Settled {
                claim: claim.clone(),
                entry,
                recorded: false,
            });
        }
    }
}

async fn record(
    listening: &RedisListening,
    session: &SessionId,
    lock: &LockName,
) -> Result<(), Refusal> {
    let (told, answer) = oneshot::channel();
    let what = What::Carries {
        session: BackendSession {
            backend: listening.backend.clone(),
            server: session.run_id.to_string(),
            id: session.id,
        },
        lock: lock.clone(),
    };
    let done = move |durable: bool| {
        // The session may have ended.
        let _ = told.send(durable);
    };
    listening.watermarks.submit(what, Box::new(done));
    match answer.await {
        Ok(true) => Ok(()),
        _ => {
            let refusal = Refusal::busy("the session cannot be recorded on disk", RETRY_AFTER);
            Err(refusal.for_lock(lock.clone()))
        }
    }
}
