//! A session: the lifetime of everything that its client holds or waits for.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::{Instant, boottime};
use crate::lock_name::LockName;
use crate::proto::{CloseSessionRequest, OpenSessionRequest};

use super::endpoints::Endpoints;
use super::guard::{Guard, Lost};
use super::lease::{Lease, SessionState};
use super::sleep::sleep_until;
use super::{ClientError, PATIENCE, acquire, renew};

/// Time to live of a session unless another one is asked for.
pub const TTL_DEFAULT: Duration = Duration::from_secs(15);
/// Shortest time to live that may be asked for: shorter ones leave no time for a second endpoint.
pub const TTL_MIN: Duration = Duration::from_millis(500);
/// Longest time to live that may be asked for.
pub const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What a session is opened with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionOptions {
    /// Time to live that is asked for: the service may end the session when no renewal reaches it
    /// for so long. The store may grant more. From [`TTL_MIN`] to [`TTL_MAX`].
    pub ttl: Duration,
    /// Free text for operators: host, process, job.
    pub holder: String,
    /// How long each call of the session, and its opening, goes on trying when no endpoint answers.
    pub patience: Duration,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            ttl: TTL_DEFAULT,
            holder: String::new(),
            patience: PATIENCE,
        }
    }
}

/// How long to wait for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Not at all: one atomic try.
    Try,
    /// At most so long.
    AtMost(Duration),
    /// For as long as the session lives.
    Forever,
}

/// An open session, renewed in the background. Cheap to clone; it lives until the last clone and
/// the last [`Guard`] are gone or it is closed, and ends at the service then or soon after.
#[derive(Clone)]
pub struct Session {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    renewal: tokio::task::AbortHandle,
}

/// What the session, its renewal and its guards share.
pub(super) struct Core {
    pub(super) endpoints: Arc<Endpoints>,
    pub(super) id: String,
    pub(super) holder: String,
    pub(super) patience: Duration,
    pub(super) lease: watch::Sender<Lease>,
    attempts: AtomicU64,
    places: Mutex<HashMap<LockName, Place>>,
}

/// Who of this session's users may ask for a lock: the service knows one entry per session and
/// lock, so that two grants of one session would be one.
type Place = Arc<tokio::sync::Mutex<()>>;

impl Session {
    pub(super) async fn open(
        endpoints: Arc<Endpoints>,
        options: SessionOptions,
    ) -> Result<Session, ClientError> {
        let ttl = options.ttl.clamp(TTL_MIN, TTL_MAX);
        let request = OpenSessionRequest {
            ttl_ms: ttl.as_millis() as u64,
            holder: options.holder.clone(),
        };
        let mut sent = boottime();
        let reply = endpoints
            .call(options.patience, |mut stub| {
                sent = boottime();
                let request = request.clone();
                async move { stub.open_session(request).await }
            })
            .await?;
        if reply.session.is_empty() || reply.ttl_ms == 0 {
            let reason = format!("session {:?} of {} ms", reply.session, reply.ttl_ms);
            return Err(ClientError::BadReply { reason });
        }
        let lease = Lease::new(sent, Duration::from_millis(reply.ttl_ms));
        let core = Arc::new(Core {
            endpoints,
            id: reply.session,
            holder: options.holder,
            patience: options.patience,
            lease: watch::Sender::new(lease),
            attempts: AtomicU64::new(0),
            places: Mutex::new(HashMap::new()),
        });
        let renewal = tokio::spawn(renew::keep_alive(core.clone())).abort_handle();
        Ok(Session {
            inner: Arc::new(Inner { core, renewal }),
        })
    }

    /// The service's name for the session.
    pub fn id(&self) -> &str {
        &self.inner.core.id
    }

    /// The lease as it stands.
    pub fn lease(&self) -> Lease {
        *self.inner.core.lease.borrow()
    }

    /// The state of the session now.
    pub fn state(&self) -> SessionState {
        self.lease().state(boottime())
    }

    /// The local safety deadline, on CLOCK_BOOTTIME: from then on the session may have ended.
    pub fn deadline(&self) -> Instant {
        self.lease().deadline()
    }

    /// Follows the lease. A deadline that passes is no change of the lease: look at
    /// [`Lease::state`] with the time, or use [`Session::lost`].
    pub fn watch_lease(&self) -> watch::Receiver<Lease> {
        self.inner.core.lease.subscribe()
    }

    /// Ends when the session is lost, or `margin` before the deadline if no renewal is answered
    /// until then. The margin counts as half of the time to live at most. Cancel safe.
    pub async fn lost(&self, margin: Duration) -> Lost {
        self.inner.core.lost(margin).await
    }

    /// Acquires a lock, in the order of asking, and returns once it is granted (and sealed, where
    /// the service was told to seal it).
    ///
    /// Another guard of this session on the same lock is waited for too. Dropping the future takes
    /// the request back.
    pub async fn acquire(&self, lock: &LockName, wait: Wait) -> Result<Guard, ClientError> {
        acquire::acquire(self, lock, wait).await
    }

    /// Ends the session: what it holds is released, what it waits for is given up. Guards that are
    /// still about are lost from this moment.
    pub async fn close(self) -> Result<(), ClientError> {
        self.inner.renewal.abort();
        self.inner.core.lease.send_modify(Lease::end);
        let core = &self.inner.core;
        core.close(core.patience).await
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.inner.core
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id())
            .field("state", &self.state())
            .finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.renewal.abort();
        let gone = self.core.lease.borrow().state(boottime()) == SessionState::Lost;
        self.core.lease.send_modify(Lease::end);
        if gone {
            return;
        }
        // Best effort: a session that is not closed ends by its time to live.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let core = self.core.clone();
            runtime.spawn(async move { core.close(Duration::ZERO).await });
        }
    }
}

impl Core {
    /// A new attempt id: larger than every one before.
    pub(super) fn next_attempt(&self) -> u64 {
        // Relaxed: only uniqueness and growth count, and one atomic gives both.
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The local place in the queue of a lock.
    pub(super) fn place(&self, lock: &LockName) -> Place {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        // What nobody uses is dropped here, so that the map is no larger than what is in use.
        places.retain(|_, place| Arc::strong_count(place) > 1);
        places.entry(lock.clone()).or_default().clone()
    }

    pub(super) async fn lost(&self, margin: Duration) -> Lost {
        let mut changes = self.lease.subscribe();
        loop {
            let lease = *changes.borrow_and_update();
            let now = boottime();
            if lease.state(now) == SessionState::Lost {
                return if now >= lease.deadline() {
                    Lost::Expired
                } else {
                    Lost::Ended
                };
            }
            let margin = margin.min(lease.ttl() / 2).as_millis() as u64;
            let warn = Instant::from_millis(lease.deadline().as_millis().saturating_sub(margin));
            if now >= warn {
                return Lost::Expiring;
            }
            tokio::select! {
                () = sleep_until(warn) => {}
                // The sender lives in `self`.
                _ = changes.changed() => {}
            }
        }
    }

    async fn close(&self, patience: Duration) -> Result<(), ClientError> {
        let request = CloseSessionRequest {
            session: self.id.clone(),
        };
        self.endpoints
            .call(patience, |mut stub| {
                let request = request.clone();
                async move { stub.close_session(request).await }
            })
            .await
            .map(|_| ())
    }
}
