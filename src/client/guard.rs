//! A lock that is held.

use std::fmt;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use crate::clock::{Instant, boottime};
use crate::lock_name::LockName;
use crate::proto::ReleaseRequest;
use crate::token::Token;

use super::ClientError;
use super::backoff::Backoff;
use super::lease::SessionState;
use super::observe::HolderWatch;
use super::session::{Core, Session};

/// Why a lock is no longer held, or cannot be shown to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// No renewal was answered, and the lease may end within the margin that was asked for.
    Expiring,
    /// The deadline has passed: the lease may have ended already. Seen when the process was paused.
    Expired,
    /// The session is gone: the service said so, or it was closed.
    Ended,
    /// The session lives but the grant was taken away: an operator broke the lock.
    Broken,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lost::Expiring => "no renewal was answered and the lease is about to end",
            Lost::Expired => "the lease may have ended while this process did not run",
            Lost::Ended => "the session is gone",
            Lost::Broken => "the lock was broken or granted to another holder",
        })
    }
}

/// A lock that was granted, with its token. Dropping it releases the lock, as well as that can be
/// done in the background; [`Guard::release`] tells how it went.
pub struct Guard {
    session: Session,
    lock: LockName,
    token: Token,
    ticket: String,
    sealed: Vec<String>,
    /// Taken along by whoever releases, so that the next user of the session waits for that.
    place: Option<OwnedMutexGuard<()>>,
}

impl Guard {
    pub(super) fn new(
        session: Session,
        lock: LockName,
        token: Token,
        ticket: String,
        sealed: Vec<String>,
        place: OwnedMutexGuard<()>,
    ) -> Guard {
        Guard {
            session,
            lock,
            token,
            ticket,
            sealed,
            place: Some(place),
        }
    }

    /// The lock.
    pub fn lock(&self) -> &LockName {
        &self.lock
    }

    /// The token of this grant, larger than that of every grant of this lock before.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The token in its signed envelope: what is sent with each write.
    pub fn ticket(&self) -> &str {
        &self.ticket
    }

    /// The proxies that refuse every older token since before this grant was told.
    pub fn sealed(&self) -> &[String] {
        &self.sealed
    }

    /// The session that holds the lock.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The local safety deadline: from then on the lock may be another's.
    pub fn deadline(&self) -> Instant {
        self.session.deadline()
    }

    /// Whether the lock can be shown to be held now. An answer about the past: the process may be
    /// paused right after it. Only the ticket makes a write safe.
    pub fn is_held(&self) -> bool {
        self.session.state() != SessionState::Lost
    }

    /// Ends when the lock is lost, or `margin` before the deadline if no renewal is answered until
    /// then. Watches the lock at the service for as long as it is awaited. Cancel safe.
    pub async fn lost(&self, margin: Duration) -> Lost {
        tokio::select! {
            biased;
            lost = self.session.lost(margin) => lost,
            () = self.broken() => Lost::Broken,
        }
    }

    /// Ends once the service shows that this grant is gone while its session lives.
    async fn broken(&self) {
        let mut watch = HolderWatch::new(self.session.core().endpoints.clone(), self.lock.clone());
        // An endpoint may answer from a view older than this grant: its absence means something
        // only on a stream that has shown it, a larger token always.
        let mut seen_in = None;
        loop {
            let Ok(holder) = watch.message().await else {
                // The watch is refused. The lease alone has to tell.
                return std::future::pending().await;
            };
            let newest = holder.map_or(0, |grant| grant.token);
            if newest == self.token.get() {
                seen_in = Some(watch.epoch());
            } else if newest > self.token.get() || seen_in == Some(watch.epoch()) {
                return;
            }
        }
    }

    /// Releases the lock and waits for the service's word. `false`: the grant was not there any
    /// more (the lock was lost before, or an earlier reply to this release was).
    ///
    /// After an error the release goes on in the background until the session's deadline.
    pub async fn release(mut self) -> Result<bool, ClientError> {
        let core = self.session.core();
        core.release(&self.lock, self.token, core.patience)
            .await
            .inspect(|_| {
                self.place = None;
            })
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The ticket is a credential: it stays out of logs.
        let mut debug = f.debug_struct("Guard");
        debug
            .field("lock", &self.lock)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (session, lock, token) = (self.session.clone(), self.lock.clone(), self.token);
        runtime.spawn(async move {
            session.core().release_for_long(&lock, token).await;
            drop(place);
        });
    }
}

impl Core {
    pub(super) async fn release(
        &self,
        lock: &LockName,
        token: Token,
        patience: Duration,
    ) -> Result<bool, ClientError> {
        let request = ReleaseRequest {
            session: self.id.clone(),
            lock: lock.to_string(),
            token: token.get(),
            close: false,
        };
        let reply = self
            .endpoints
            .call(patience, |mut stub| {
                let request = request.clone();
                async move { stub.release(request).await }
            })
            .await?;
        Ok(reply.released)
    }

    /// Releases, trying until it is answered or the session is lost.
    pub(super) async fn release_for_long(&self, lock: &LockName, token: Token) {
        let mut backoff = Backoff::new();
        while self.lease.borrow().state(boottime()) != SessionState::Lost {
            match self.release(lock, token, Duration::ZERO).await {
                Err(ClientError::Unavailable { .. } | ClientError::CannotServe { .. }) => {}
                Ok(_) | Err(_) => return,
            }
            tokio::time::sleep(backoff.pause()).await;
        }
    }
}
