//! Watermarks in the protected server itself, so that several proxies before it keep the order of
//! tokens with nothing else shared (`watermarks.store = "backend"`).
//!
//! The schema `ringfence` (schema.sql; `ringfence proxy --install` makes it) has, in the control
//! role's database, the watermark of each lock and the sessions that were let in under it, of all
//! proxies. Before a session's first statement under a token it is put there, in a transaction that
//! refuses a lower token than the watermark, raises it to a higher one, and tells which sessions
//! have lower ones. Their proxies are told (NOTIFY) and give them up when their gates have drained;
//! what is not given up in time is terminated. Only when none is left may the statement pass.
//!
//! Rather than by statements of ours in the clients' sessions: those would be seen, could be undone
//! there (pg_advisory_unlock_all, ROLLBACK TO, COMMIT within DO), and would cost every transaction.
//!
//! Invariants:
//! - a schema that is not there, or not ours, admits nobody;
//! - a lock that is not in it is not at zero: its watermark is what lockd has granted, or what this
//!   proxy has on disk, which its gate has checked before;
//! - a session is in it before the first statement under a token is forwarded on it, and goes only
//!   when nothing of it under that token can be applied any more: its proxy's gate is settled
//!   higher, or the server does not list it any more;
//! - a notification proves nothing and is a hint: anybody may send one.
//!
//! The proxy's own gates stand before it: they drain what is in flight here, and are durable.

mod install;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::control::{Control, ControlError, SessionId, column};
use crate::lock_name::LockName;
use crate::protocol::{Code, Refusal};
use crate::proxy::gates::{Claim, Gates};
use crate::proxy::registry::Registry;
use crate::token::Token;

pub(super) use install::check_installed;
pub use install::{InstallError, install};

/// How long whoever waits for older sessions, or for the server, waits before it looks again.
const AGAIN_AFTER: Duration = Duration::from_millis(5);
/// How long ended sessions stay in the schema at most; and how long a hint may be missed.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// How long giving up a lock may take before it is tried again.
const DRAIN_MAX: Duration = Duration::from_secs(5);
const RETRY_AFTER: Duration = Duration::from_secs(1);

const HOLD: &str = "SELECT outcome, mark FROM ringfence.hold($1, $2, $3, $4, $5, $6, $7)";
const LOWER: &str = "SELECT of_pid, of_start FROM ringfence.lower($1, $2)";
const BEHIND: &str = "SELECT of_lock, mark, is_unsigned FROM ringfence.behind($1)";
const GIVE_UP: &str = "SELECT ringfence.give_up($1, $2, $3)";
const FORGET: &str = "SELECT ringfence.forget_ended(NULL)";

/// The watermarks in one server. Cheap to clone.
#[derive(Clone)]
pub struct FenceStore {
    shared: Arc<Shared>,
}

struct Shared {
    control: Control,
    registry: Option<Registry>,
    gates: Gates,
    /// This run of this proxy.
    proxy: String,
    /// How long other proxies may take to give up a lock.
    patience: Duration,
    /// The locks that are being given up.
    draining: Mutex<HashSet<LockName>>,
}

/// What the server says about a claim.
enum Held {
    Unknown,
    Stale(Option<Token>),
    OtherKind,
    In,
}

impl FenceStore {
    /// Over a control connection. `registry`: who knows what was granted. `proxy`: a name that no
    /// other run of any proxy has.
    pub fn new(
        control: Control,
        registry: Option<Registry>,
        gates: Gates,
        proxy: String,
        patience: Duration,
    ) -> FenceStore {
        FenceStore {
            shared: Arc::new(Shared {
                control,
                registry,
                gates,
                proxy,
                patience,
                draining: Mutex::default(),
            }),
        }
    }

    /// Gives up what other proxies have raised, and forgets sessions that have ended. Runs until it
    /// is dropped.
    pub async fn run(self) {
        let mut swept: Option<Instant> = None;
        loop {
            if let Err(error) = self.give_up_all().await {
                tracing::warn!(%error, "what other proxies have raised is not known");
            }
            if swept.is_none_or(|at| at.elapsed() >= SWEEP_EVERY) {
                // One that stays is found ended by the next raise.
                if let Err(error) = self.shared.control.call(FORGET, &[]).await {
                    tracing::debug!(%error, "ended sessions stay in the schema");
                }
                swept = Some(Instant::now());
            }
            let _ = tokio::time::timeout(SWEEP_EVERY, self.shared.control.raised()).await;
        }
    }

    /// Settles the gates of locks that another proxy has raised, and tells it.
    async fn give_up_all(&self) -> Result<(), ControlError> {
        let control = &self.shared.control;
        let params: [(&(dyn ToSql + Sync), Type); 1] = [(&self.shared.proxy, Type::TEXT)];
        for row in control.call(BEHIND, &params).await? {
            let Some((claim, mark)) = read_behind(&row)? else {
                continue;
            };
            if !self.shared.draining().insert(claim.lock.clone()) {
                continue;
            }
            let shared = Arc::clone(&self.shared);
            // Each for itself: one that waits for a commit must not keep the others.
            control.spawn(async move {
                let lock = claim.lock.clone();
                if let Err(error) = shared.give_up(claim, mark).await {
                    tracing::warn!(error, %lock, "older sessions stay for now");
                }
                shared.draining().remove(&lock);
            });
        }
        Ok(())
    }

    /// Lets a session in under a claim, which the proxy's own gate has settled, or says why not.
    /// When it returns, no session of any proxy with a lower token can be applied any more.
    pub async fn hold(
        &self,
        claim: &Claim,
        session: &SessionId,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        match tokio::time::timeout_at(deadline, self.hold_unbounded(claim, session)).await {
            Ok(held) => held,
            Err(_) => {
                let detail = "older sessions at the backend are not gone yet";
                Err(about(claim, Refusal::busy(detail, RETRY_AFTER)))
            }
        }
    }

    async fn hold_unbounded(&self, claim: &Claim, session: &SessionId) -> Result<(), Refusal> {
        let mut known = None;
        loop {
            let held = match self.ask(claim, session, known).await {
                Ok(held) => held,
                Err(error) => {
                    tracing::warn!(%error, "the watermarks in the backend cannot be had");
                    tokio::time::sleep(AGAIN_AFTER).await;
                    continue;
                }
            };
            match held {
                Held::Unknown => known = Some(self.floor(claim).await?),
                Held::Stale(watermark) => {
                    let refusal = Refusal::stale(claim.lock.clone(), claim.token, watermark);
                    return Err(refusal);
                }
                Held::OtherKind => {
                    let detail = "this lock's tokens are of the other kind: signed tickets and \
                                  bare integers never meet";
                    return Err(about(claim, Refusal::invalid(detail)));
                }
                Held::In => {
                    self.drain(claim, session).await;
                    return Ok(());
                }
            }
        }
    }

    async fn ask(
        &self,
        claim: &Claim,
        session: &SessionId,
        known: Option<i64>,
    ) -> Result<Held, ControlError> {
        let (lock, token) = (claim.lock.as_str(), signed(claim.token.get()));
        let params: [(&(dyn ToSql + Sync), Type); 7] = [
            (&lock, Type::TEXT),
            (&token, Type::INT8),
            (&claim.unsigned, Type::BOOL),
            (&session.pid, Type::INT4),
            (&session.started, Type::INT8),
            (&self.shared.proxy, Type::TEXT),
            (&known, Type::INT8),
        ];
        let rows = self.shared.control.call_on(&session.system, HOLD, &params);
        let rows = rows.await?;
        let unread = || ControlError::Unfit("its schema ringfence is another's".to_owned());
        let row = rows.first().ok_or_else(unread)?;
        match column::<&str>(row, 0)? {
            "held" => Ok(Held::In),
            "unknown" => Ok(Held::Unknown),
            "other" => Ok(Held::OtherKind),
            "stale" => {
                let mark: i64 = column(row, 1)?;
                let mark = u64::try_from(mark).ok().and_then(Token::new);
                Ok(Held::Stale(mark))
            }
            _ => Err(unread()),
        }
    }

    /// Where a lock begins that is not there.
    async fn floor(&self, claim: &Claim) -> Result<i64, Refusal> {
        match &self.shared.registry {
            Some(registry) if !claim.unsigned => match registry.floor(&claim.lock).await {
                Ok(floor) => Ok(signed(floor)),
                Err(error) => {
                    tracing::warn!(error, "the floor of a lock is not told");
                    let detail = "the lock service does not tell the floor of this lock";
                    Err(about(claim, Refusal::busy(detail, RETRY_AFTER)))
                }
            },
            // Nobody else knows; the gate has passed it by what is on this proxy's disk.
            _ => Ok(0),
        }
    }

    /// Waits until no session has a lower token, and terminates what is not given up in time.
    async fn drain(&self, claim: &Claim, session: &SessionId) {
        let control = &self.shared.control;
        let terminate_at = Instant::now() + self.shared.patience;
        loop {
            match self.lower(claim, session).await {
                Ok(lower) if lower.is_empty() => return,
                Ok(lower) if Instant::now() >= terminate_at => {
                    if let Err(error) = control.end_and_list(&session.system, &lower).await {
                        tracing::warn!(%error, lock = %claim.lock, "older sessions are not gone");
                    }
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "older sessions are not known"),
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    async fn lower(
        &self,
        claim: &Claim,
        session: &SessionId,
    ) -> Result<Vec<(i32, i64)>, ControlError> {
        let (lock, token) = (claim.lock.as_str(), signed(claim.token.get()));
        let params: [(&(dyn ToSql + Sync), Type); 2] = [(&lock, Type::TEXT), (&token, Type::INT8)];
        let rows = self.shared.control.call_on(&session.system, LOWER, &params);
        let rows = rows.await?;
        let session = |row: &Row| Ok((column(row, 0)?, column(row, 1)?));
        rows.iter().map(session).collect()
    }
}

impl Shared {
    fn draining(&self) -> std::sync::MutexGuard<'_, HashSet<LockName>> {
        self.draining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up what is below `mark` when nothing of it can be applied any more.
    async fn give_up(&self, mut claim: Claim, mark: i64) -> Result<(), String> {
        let deadline = Instant::now() + DRAIN_MAX;
        if let Err(refusal) = self.gates.settle(&claim, None, deadline).await {
            // A still higher token has come here: when it is settled, all below it is drained.
            match (refusal.code, refusal.watermark) {
                (Code::Stale, Some(higher)) => claim.token = higher,
                _ => return Err(format!("{refusal:?}")),
            }
            let settled = self.gates.settle(&claim, None, deadline).await;
            settled.map_err(|refusal| format!("{refusal:?}"))?;
        }
        let lock = claim.lock.as_str();
        let params: [(&(dyn ToSql + Sync), Type); 3] = [
            (&lock, Type::TEXT),
            (&mark, Type::INT8),
            (&self.proxy, Type::TEXT),
        ];
        let given_up = self.control.call(GIVE_UP, &params).await;
        given_up.map(|_| ()).map_err(|error| error.to_string())
    }
}

fn read_behind(row: &Row) -> Result<Option<(Claim, i64)>, ControlError> {
    let (lock, mark): (&str, i64) = (column(row, 0)?, column(row, 1)?);
    let token = u64::try_from(mark).ok().and_then(Token::new);
    let (Ok(lock), Some(token)) = (LockName::new(lock), token) else {
        tracing::error!(lock, mark, "the schema ringfence has what no proxy writes");
        return Ok(None);
    };
    let unsigned = column(row, 2)?;
    Ok(Some((
        Claim {
            lock,
            token,
            unsigned,
        },
        mark,
    )))
}

/// Tokens are below 2^63.
fn signed(token: u64) -> i64 {
    i64::try_from(token).unwrap_or(i64::MAX)
}

fn about(claim: &Claim, refusal: Refusal) -> Refusal {
    refusal.for_lock(claim.lock.clone()).with_token(claim.token)
}
