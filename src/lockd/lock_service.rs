//! LockService: checks what came, does it by the parts of this module, answers.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use crate::lock_name::LockName;
use crate::lockd::Core;
use crate::lockd::acquire::{self, Attempt, Wanted};
use crate::lockd::dispatch::Subscription;
use crate::lockd::input;
use crate::lockd::seal::{self, Ended};
use crate::lockd::status::Error;
use crate::proto::lock_service_server::LockService;
use crate::proto::{
    AcquireRequest, AcquireResponse, BreakLockRequest, BreakLockResponse, CloseSessionRequest,
    CloseSessionResponse, GetLockRequest, GetLockResponse, Grant, KeepAliveRequest,
    KeepAliveResponse, ListLocksRequest, ListLocksResponse, OpenSessionRequest,
    OpenSessionResponse, ReleaseRequest, ReleaseResponse, Waiter, WatchLockRequest,
    WatchLockResponse,
};
use crate::queue::Held;
use crate::store::{Entry, Remove, SessionId};
use crate::telemetry;
use crate::token::Token;

/// Renewals of one stream that are with the store at the same time.
const RENEWALS_IN_FLIGHT_MAX: usize = 64;
/// Locks in one page of a listing.
const PAGE_LOCKS_MAX: usize = 1000;
/// Waiters told by one GetLock; their number is told whole.
const WAITERS_TOLD_MAX: usize = 1000;
/// How long a watch waits for the service to have read its store.
const SYNC_WAIT: Duration = Duration::from_secs(5);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The service over a lockd's core.
pub(super) struct Locks(pub(super) Arc<Core>);

#[tonic::async_trait]
impl LockService for Locks {
    type KeepAliveStream = Answers<KeepAliveResponse>;
    type WatchLockStream = Answers<WatchLockResponse>;

    async fn open_session(
        &self,
        request: Request<OpenSessionRequest>,
    ) -> Result<Response<OpenSessionResponse>, Status> {
        let request = request.into_inner();
        let ttl = input::ttl(request.ttl_ms, &self.0.settings)?;
        let holder = input::text("holder", request.holder)?;
        // Counted from before it was opened: at the store it ends no sooner than that.
        let now = Instant::now();
        let place = self.0.sessions.place(now)?;
        let (session, ttl) = self.0.store.open_session(ttl).await.map_err(Error::Store)?;
        self.0.sessions.lives(session, ttl, now);
        drop(place);
        tracing::info!(%session, ttl_ms = millis(ttl), holder, "session opened");
        let ttl_ms = millis(ttl);
        Ok(Response::new(OpenSessionResponse {
            session: session.to_string(),
            ttl_ms,
        }))
    }

    async fn keep_alive(
        &self,
        request: Request<Streaming<KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        let core = self.0.clone();
        let stopping = self.0.stopping.clone().cancelled_owned();
        let answers = request
            .into_inner()
            .map(move |request| renew(core.clone(), request))
            .buffered(RENEWALS_IN_FLIGHT_MAX)
            .take_until(stopping);
        Ok(Response::new(Box::pin(answers)))
    }

    async fn close_session(
        &self,
        request: Request<CloseSessionRequest>,
    ) -> Result<Response<CloseSessionResponse>, Status> {
        let session = input::session(&request.into_inner().session)?;
        self.0
            .store
            .close_session(session)
            .await
            .map_err(Error::Store)?;
        self.0.sessions.ended(session);
        tracing::info!(%session, "session closed");
        Ok(Response::new(CloseSessionResponse {}))
    }

    async fn acquire(
        &self,
        request: Request<AcquireRequest>,
    ) -> Result<Response<AcquireResponse>, Status> {
        let request = request.into_inner();
        let wanted = Wanted {
            session: input::session(&request.session)?,
            lock: input::lock(&request.lock)?,
            wait: input::wait(request.wait_ms)?,
            attempt: Attempt::new(input::attempt(request.attempt)?),
            holder: input::text("holder", request.holder)?,
        };
        let started = Instant::now();
        let outcome = acquire::acquire(&self.0, wanted).await;
        let word = outcome.as_ref().map_or_else(Error::reason, |_| "granted");
        metrics::histogram!(telemetry::ACQUIRE_SECONDS, "outcome" => word)
            .record(started.elapsed().as_secs_f64());
        let granted = outcome?;
        let token = granted.token.get();
        let (ticket, sealed) = (granted.ticket, granted.sealed);
        Ok(Response::new(AcquireResponse {
            token,
            ticket,
            sealed,
        }))
    }

    async fn release(
        &self,
        request: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseResponse>, Status> {
        let request = request.into_inner();
        let session = input::session(&request.session)?;
        let lock = input::lock(&request.lock)?;
        let token = input::token(request.token)?;
        let released = if request.close {
            release_closed(&self.0, lock, session, token).await?
        } else {
            let remove = Remove {
                lock,
                session,
                token,
                only_version: None,
            };
            self.0.release(remove).await.map_err(Error::Store)?.removed
        };
        metrics::counter!(telemetry::RELEASES, "released" => if released { "yes" } else { "no" })
            .increment(1);
        Ok(Response::new(ReleaseResponse { released }))
    }

    async fn get_lock(
        &self,
        request: Request<GetLockRequest>,
    ) -> Result<Response<GetLockResponse>, Status> {
        let lock = input::lock(&request.into_inner().lock)?;
        // Before the read: who was told of its grant by now is not shown behind the one before it.
        let first = self.0.dispatch.first(&lock);
        let view = self.0.store.queue(&lock).await.map_err(Error::Store)?;
        let stands = |entry: &Entry| Some(entry.token) >= first;
        let mut entries = view.entries.into_iter().filter(stands);
        let Some(first) = entries.next() else {
            // Below 2^63, so one more is no overflow.
            let floor = view.latest.get() + 1;
            return Ok(Response::new(GetLockResponse {
                holder: None,
                waiters: vec![],
                floor,
            }));
        };
        let holder = Grant {
            lock: lock.to_string(),
            token: first.token.get(),
            session: first.session.to_string(),
            holder: first.holder,
            foreign: first.foreign,
            waiters: 0,
        };
        let entries: Vec<Entry> = entries.collect();
        let holder = Grant {
            waiters: entries.len() as u32,
            ..holder
        };
        let waiters = entries
            .into_iter()
            .take(WAITERS_TOLD_MAX)
            .map(|entry| Waiter {
                session: entry.session.to_string(),
                holder: entry.holder,
                token: entry.token.get(),
            })
            .collect();
        let floor = first.token.get();
        Ok(Response::new(GetLockResponse {
            holder: Some(holder),
            waiters,
            floor,
        }))
    }

    async fn list_locks(
        &self,
        request: Request<ListLocksRequest>,
    ) -> Result<Response<ListLocksResponse>, Status> {
        let request = request.into_inner();
        if !request.after.is_empty() {
            input::lock(&request.after)?;
        }
        let prefix = input::text("prefix", request.prefix)?;
        let limit = match request.limit as usize {
            0 => PAGE_LOCKS_MAX,
            limit => limit.min(PAGE_LOCKS_MAX),
        };
        // What was known before is no answer to who holds what.
        self.0.health.check().map_err(|_| Error::CannotList)?;
        let page = self.0.dispatch.list(&prefix, &request.after, limit)?;
        let last = page.locks.last().filter(|_| page.more);
        let next = last.map(|held| held.lock.to_string()).unwrap_or_default();
        let locks = page.locks.into_iter().map(to_grant).collect();
        Ok(Response::new(ListLocksResponse { locks, next }))
    }

    async fn watch_lock(
        &self,
        request: Request<WatchLockRequest>,
    ) -> Result<Response<Self::WatchLockStream>, Status> {
        let lock = input::lock(&request.into_inner().lock)?;
        let core = self.0.clone();
        wait_until_synced(&core).await?;
        let (holder, subscription) = core.dispatch.subscribe(&lock)?;
        let stopping = core.stopping.clone().cancelled_owned();
        let changes = futures::stream::unfold(subscription, next_change);
        let answers = futures::stream::once(async { holder })
            .chain(changes)
            .map(|holder| {
                Ok(WatchLockResponse {
                    holder: holder.map(to_grant),
                })
            })
            .take_until(stopping)
            .chain(futures::stream::once(async {
                Err(Error::ShuttingDown.into())
            }));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn break_lock(
        &self,
        request: Request<BreakLockRequest>,
    ) -> Result<Response<BreakLockResponse>, Status> {
        let request = request.into_inner();
        let lock = input::lock(&request.lock)?;
        let token = input::token(request.token)?;
        let reason = input::reason(request.reason)?;
        let ended = seal::close_grant(&self.0, &lock, token, |_| true).await;
        match ended.map_err(Error::Store)? {
            Ended::Closed => {
                tracing::warn!(%lock, %token, reason, "lock broken by an operator");
                Ok(Response::new(BreakLockResponse {}))
            }
            Ended::NotHolder { holder } => {
                let holder = match holder {
                    Some(holder) => format!("its holder has token {holder}"),
                    None => "nobody holds it".to_owned(),
                };
                Err(Error::NotHolder {
                    lock,
                    token,
                    holder,
                }
                .into())
            }
            Ended::NotClosed { causes } => Err(Error::NotClosed { lock, causes }.into()),
        }
    }
}

/// One renewal of a stream. A gone session is an answer; a failing store ends the stream.
async fn renew(
    core: Arc<Core>,
    request: Result<KeepAliveRequest, Status>,
) -> Result<KeepAliveResponse, Status> {
    let session = input::session(&request?.session)?;
    let now = Instant::now();
    let ttl = core.store.keep_alive(session).await.map_err(Error::Store)?;
    match ttl {
        Some(ttl) => core.sessions.lives(session, ttl, now),
        None => core.sessions.ended(session),
    }
    let ttl_ms = ttl.map_or(0, millis);
    Ok(KeepAliveResponse {
        session: session.to_string(),
        ttl_ms,
    })
}

/// Ends the holder's rights at the proxies, then its grant.
async fn release_closed(
    core: &Core,
    lock: LockName,
    session: SessionId,
    token: Token,
) -> Result<bool, Error> {
    match seal::close_grant(core, &lock, token, |entry| entry.session == session).await? {
        Ended::Closed => Ok(true),
        // A waiter has no rights at the proxies yet: its place is given up, and that is all.
        Ended::NotHolder { .. } => {
            let remove = Remove {
                lock,
                session,
                token,
                only_version: None,
            };
            Ok(core.remove(remove).await?.removed)
        }
        Ended::NotClosed { causes } => Err(Error::NotClosed { lock, causes }),
    }
}

async fn wait_until_synced(core: &Core) -> Result<(), Error> {
    let mut synced = core.dispatch.synced();
    tokio::select! {
        waited = tokio::time::timeout(SYNC_WAIT, synced.wait_for(|synced| *synced)) => {
            waited.map_err(|_| Error::NotSynced)?.map_err(|_| Error::ShuttingDown)?;
            Ok(())
        }
        () = core.stopping.cancelled() => Err(Error::ShuttingDown),
    }
}

async fn next_change(mut subscription: Subscription) -> Option<(Option<Held>, Subscription)> {
    let holder = subscription.next().await;
    Some((holder, subscription))
}

fn to_grant(held: Held) -> Grant {
    Grant {
        lock: held.lock.to_string(),
        token: held.token.get(),
        session: SessionId(held.place.session).to_string(),
        holder: held.place.holder.to_string(),
        foreign: held.place.foreign,
        waiters: held.waiters as u32,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
