//! Acquiring a lock: attempts, repeats after lost replies, and taking back what nobody will use.
//!
//! An attempt id is repeated only while its outcome is unknown, so that the same grant comes back.
//! Where the service answered that nothing was granted, the next try is a new attempt.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout};
use tonic::{Code, Status};

use crate::lock_name::LockName;
use crate::proto::{AcquireRequest, AcquireResponse, GetLockRequest};
use crate::token::Token;

use super::ClientError;
use super::backoff::Backoff;
use super::endpoints::CALL_MAX;
use super::error::{Fault, describe, fault};
use super::guard::Guard;
use super::lease::Lease;
use super::session::{Core, Session, Wait};

/// The longest wait that is asked for in one call. A longer one is asked for again, which keeps
/// the place in the queue only as long as the service is asked; a day is long enough for that.
const WAIT_PER_CALL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) async fn acquire(
    session: &Session,
    lock: &LockName,
    wait: Wait,
) -> Result<Guard, ClientError> {
    let until = match wait {
        Wait::Try => Some(Instant::now()),
        Wait::AtMost(time) => Instant::now().checked_add(time),
        Wait::Forever => None,
    };
    let core = session.core();
    let place = wait_for_place(core, lock, until).await?;
    let mut asking = Asking {
        core: core.clone(),
        lock: lock.clone(),
        place: Some(place),
        open: false,
    };
    let answered = tokio::select! {
        biased;
        lost = core.lost(Duration::ZERO) => {
            Err(ClientError::SessionLost { reason: lost.to_string() })
        }
        answered = ask(&mut asking, until) => answered,
    }?;
    let token = Token::new(answered.token).ok_or_else(|| ClientError::BadReply {
        reason: format!("{} is no token", answered.token),
    })?;
    asking.open = false;
    let place = asking
        .place
        .take()
        .expect("only a grant or a drop takes the place");
    let (ticket, sealed) = (answered.ticket, answered.sealed);
    Ok(Guard::new(
        session.clone(),
        lock.clone(),
        token,
        ticket,
        sealed,
        place,
    ))
}

/// Waits for other users of the same session.
async fn wait_for_place(
    core: &Core,
    lock: &LockName,
    until: Option<Instant>,
) -> Result<OwnedMutexGuard<()>, ClientError> {
    let place = core.place(lock);
    if let Ok(free) = place.clone().try_lock_owned() {
        return Ok(free);
    }
    let not_acquired = || ClientError::NotAcquired { lock: lock.clone() };
    tokio::select! {
        place = place.lock_owned() => Ok(place),
        () = sleep_until(until) => Err(not_acquired()),
        lost = core.lost(Duration::ZERO) => {
            Err(ClientError::SessionLost { reason: lost.to_string() })
        }
    }
}

async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// What an unsuccessful call means for the next one.
enum Next {
    /// The outcome is unknown: the same attempt again, elsewhere.
    SameAttempt,
    /// This attempt is over, and was not granted: a new one after a pause.
    NewAttempt,
    /// Nothing was granted, and time was the reason: a new attempt at once.
    AskOn,
}

async fn ask(asking: &mut Asking, until: Option<Instant>) -> Result<AcquireResponse, ClientError> {
    let core = asking.core.clone();
    let give_up = until.map(|until| until.max(Instant::now() + core.patience));
    let mut backoff = Backoff::new();
    let mut attempt = core.next_attempt();
    let mut repeated = false;
    loop {
        let left = until.map_or(WAIT_PER_CALL_MAX, |until| {
            until.duration_since(Instant::now())
        });
        let left = left.min(WAIT_PER_CALL_MAX);
        let (at, mut stub) = core.endpoints.current();
        // From here on the service may have granted what nobody was told of.
        asking.open = true;
        let call = stub.acquire(AcquireRequest {
            session: core.id.clone(),
            lock: asking.lock.to_string(),
            wait_ms: whole_millis(left),
            attempt,
            holder: core.holder.clone(),
        });
        let (next, failed) = match timeout(left + CALL_MAX, call).await {
            Ok(Ok(response)) => return Ok(response.into_inner()),
            Ok(Err(status)) => {
                if fault(&status) == Fault::Endpoint {
                    core.endpoints.failed(at);
                }
                (judge(&status, &core)?, Some(status))
            }
            Err(_) => {
                core.endpoints.failed(at);
                (Next::SameAttempt, None)
            }
        };
        match next {
            Next::SameAttempt => repeated = true,
            Next::NewAttempt => (attempt, repeated) = (core.next_attempt(), false),
            Next::AskOn => {
                asking.open = repeated;
                (attempt, repeated) = (core.next_attempt(), false);
            }
        }
        let now = Instant::now();
        match next {
            Next::AskOn if until.is_some_and(|until| now >= until) => {
                return Err(ClientError::NotAcquired {
                    lock: asking.lock.clone(),
                });
            }
            Next::AskOn => {}
            Next::SameAttempt | Next::NewAttempt => {
                let unsealed = failed
                    .as_ref()
                    .filter(|it| reason_of(it) == Some(NOT_SEALED));
                // Each grant that is not sealed costs a token: it is tried for as long as asked.
                // Patience is for a service that does not answer.
                let end = unsealed.map_or(give_up, |_| until);
                if end.is_some_and(|end| now >= end) {
                    return Err(match unsealed {
                        Some(status) => ClientError::NotSealed {
                            lock: asking.lock.clone(),
                            reason: describe(status),
                        },
                        None => core.endpoints.unavailable(failed.as_ref()),
                    });
                }
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}

/// Metadata of a refusal: the stable word for its reason.
const REASON_KEY: &str = "ringfence-reason";
/// That word where a grant was taken back since it could not be sealed.
const NOT_SEALED: &str = "not-sealed";

fn reason_of(status: &Status) -> Option<&str> {
    let word = status.metadata().get(REASON_KEY)?;
    word.to_str().ok()
}

/// Reads a refusal.
fn judge(status: &Status, core: &Core) -> Result<Next, ClientError> {
    use std::error::Error as _;
    match (status.code(), reason_of(status)) {
        _ if status.source().is_some() => Ok(Next::SameAttempt),
        // Granted, and taken back since it could not be sealed.
        (Code::Unavailable, Some(NOT_SEALED)) => Ok(Next::NewAttempt),
        // A store or service that cannot serve now: what stands in the queue, if anything, keeps
        // its place for the same attempt.
        (Code::Unavailable | Code::DataLoss, _) => Ok(Next::SameAttempt),
        (Code::DeadlineExceeded, _) => Ok(Next::AskOn),
        // The attempt was taken back after a lost reply, or an operator broke the lock.
        (Code::FailedPrecondition, Some("attempt-over" | "place-gone")) => Ok(Next::NewAttempt),
        (Code::FailedPrecondition, Some("session-gone")) => {
            core.lease.send_modify(Lease::end);
            Err(ClientError::SessionLost {
                reason: describe(status),
            })
        }
        _ => Err(ClientError::refused(status)),
    }
}

/// Rounded up, so that a wait that has not ended is never sent as an atomic try.
fn whole_millis(time: Duration) -> u64 {
    time.as_micros().div_ceil(1000) as u64
}

/// A request that may stand in the queue, or be granted, without anybody having been told.
struct Asking {
    core: Arc<Core>,
    lock: LockName,
    place: Option<OwnedMutexGuard<()>>,
    open: bool,
}

impl Drop for Asking {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let (Some(place), Ok(runtime)) = (self.place.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let (core, lock) = (self.core.clone(), self.lock.clone());
        runtime.spawn(async move {
            tokio::select! {
                () = take_back(&core, &lock) => {}
                _ = core.lost(Duration::ZERO) => {}
            }
            // Held until here: a new request of this session must not find the old entry.
            drop(place);
        });
    }
}

/// Removes whatever entry this session has in the lock's queue.
///
/// The service takes back what a caller who goes away was not told. This covers the case that it
/// died before it did.
async fn take_back(core: &Core, lock: &LockName) {
    let mut backoff = Backoff::new();
    loop {
        let request = GetLockRequest {
            lock: lock.to_string(),
        };
        let view = core
            .endpoints
            .call(Duration::ZERO, |mut stub| {
                let request = request.clone();
                async move { stub.get_lock(request).await }
            })
            .await;
        if let Ok(view) = view {
            let holder = view
                .holder
                .iter()
                .map(|grant| (&grant.session, grant.token));
            let waiters = view
                .waiters
                .iter()
                .map(|waiter| (&waiter.session, waiter.token));
            let own = holder
                .chain(waiters)
                .find(|(session, _)| **session == core.id);
            let Some(token) = own.and_then(|(_, token)| Token::new(token)) else {
                return;
            };
            let _ = core.release(lock, token, Duration::ZERO).await;
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_rounded_up_and_a_try_stays_a_try() {
        assert_eq!(whole_millis(Duration::ZERO), 0);
        assert_eq!(whole_millis(Duration::from_micros(1)), 1);
        assert_eq!(whole_millis(Duration::from_millis(2)), 2);
    }
}
