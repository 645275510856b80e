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
//! It also has the names of prepared transactions with their locks (`names`).
//!
//! The proxy's own gates stand before it: they drain what is in flight here, and are durable.

mod install;
mod names;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::control::{Control, ControlError, SessionId, column};
use crate::lock_name::{LockName, LockPattern};
use crate::protocol::{Code, Refusal};
use crate::proxy::floors::NotRaised;
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
    /// Of the listener's rules.
    patterns: Vec<LockPattern>,
    registry: Option<Registry>,
    /// This run of this proxy.
    proxy: String,
    /// How long other proxies may take to give up a lock.
    patience: Duration,
    /// The locks that are being given up.
    draining: Mutex<HashSet<LockName>>,
}

/// What is asked of the server.
struct Ask<'a> {
    lock: &'a LockName,
    token: i64,
    unsigned: bool,
    /// Who is let in; none: only the watermark is raised.
    session: Option<&'a SessionId>,
}

/// What the server says about it.
enum Held {
    Unknown,
    Stale(u64),
    OtherKind,
    In,
    /// The same, and sessions with lower tokens are there.
    Waits,
}

impl FenceStore {
    /// Over a control connection, for a listener whose rules name these locks. `registry`: who
    /// knows what was granted. `proxy`: a name that no other run of any proxy has.
    pub fn new(
        control: Control,
        patterns: Vec<LockPattern>,
        registry: Option<Registry>,
        proxy: String,
        patience: Duration,
    ) -> FenceStore {
        FenceStore {
            shared: Arc::new(Shared {
                control,
                patterns,
                registry,
                proxy,
                patience,
                draining: Mutex::default(),
            }),
        }
    }

    /// Whether the listener's rules name this lock.
    pub fn guards(&self, lock: &LockName) -> bool {
        let mut patterns = self.shared.patterns.iter();
        patterns.any(|pattern| pattern.matches(lock))
    }

    /// Gives up what other proxies have raised, and forgets sessions that have ended. Runs until it
    /// is dropped. `gates`: this proxy's.
    pub async fn run(self, gates: Gates) {
        let mut swept: Option<Instant> = None;
        loop {
            if let Err(error) = self.give_up_all(&gates).await {
                tracing::warn!(%error, "what other proxies have raised is not known");
            }
            if swept.is_none_or(|at| at.elapsed() >= SWEEP_EVERY) {
                // One that stays is found ended by the next raise.
                if let Err(error) = self.shared.control.call(FORGET, &[]).await {
                    tracing::debug!(%error, "ended sessions stay in the schema");
                }
                self.forget_unprepared().await;
                swept = Some(Instant::now());
            }
            let _ = tokio::time::timeout(SWEEP_EVERY, self.shared.control.raised()).await;
        }
    }

    /// Settles the gates of locks that another proxy has raised, and tells it.
    async fn give_up_all(&self, gates: &Gates) -> Result<(), ControlError> {
        let control = &self.shared.control;
        let params: [(&(dyn ToSql + Sync), Type); 1] = [(&self.shared.proxy, Type::TEXT)];
        for row in control.call(BEHIND, &params).await? {
            let Some((claim, mark)) = read_behind(&row)? else {
                continue;
            };
            if !self.shared.draining().insert(claim.lock.clone()) {
                continue;
            }
            let (shared, gates) = (Arc::clone(&self.shared), gates.clone());
            // Each for itself: one that waits for a commit must not keep the others.
            control.spawn(async move {
                let lock = claim.lock.clone();
                if let Err(error) = shared.give_up(&gates, claim, mark).await {
                    tracing::warn!(error, %lock, "older sessions stay for now");
                }
                shared.draining().remove(&lock);
            });
        }
        Ok(())
    }

    /// Raises a lock's watermark, which the proxy's own gate has settled. When it returns, no
    /// session of any proxy with a lower token can be applied any more.
    pub async fn raise(
        &self,
        lock: &LockName,
        floor: u64,
        unsigned: bool,
    ) -> Result<(), NotRaised> {
        let ask = Ask {
            lock,
            token: signed(floor),
            unsigned,
            session: None,
        };
        self.assert(&ask).await
    }

    /// Lets a session in under a claim, which the proxy's own gate has settled, or says why not.
    /// When it returns, no session of any proxy with a lower token can be applied any more.
    pub async fn hold(
        &self,
        claim: &Claim,
        session: &SessionId,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let ask = Ask {
            lock: &claim.lock,
            token: signed(claim.token.get()),
            unsigned: claim.unsigned,
            session: Some(session),
        };
        let refusal = match tokio::time::timeout_at(deadline, self.assert(&ask)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(not_raised)) => {
                return Err(not_raised.refusal(claim.lock.clone(), claim.token));
            }
            Err(_) => Refusal::busy(
                "older sessions at the backend are not gone yet",
                RETRY_AFTER,
            ),
        };
        Err(refusal.for_lock(claim.lock.clone()).with_token(claim.token))
    }

    async fn assert(&self, ask: &Ask<'_>) -> Result<(), NotRaised> {
        let mut known = None;
        loop {
            let (system, held) = match self.ask(ask, known).await {
                Ok(held) => held,
                Err(error) => {
                    tracing::warn!(%error, "the watermarks in the backend cannot be had");
                    tokio::time::sleep(AGAIN_AFTER).await;
                    continue;
                }
            };
            match held {
                Held::Unknown => known = Some(self.floor(ask).await?),
                Held::Stale(watermark) => return Err(NotRaised::Higher(watermark)),
                Held::OtherKind => return Err(NotRaised::OtherKind),
                Held::In => return Ok(()),
                Held::Waits => {
                    self.drain(ask, &system).await;
                    return Ok(());
                }
            }
        }
    }

    /// The answer, and the system that has given it.
    async fn ask(
        &self,
        ask: &Ask<'_>,
        known: Option<i64>,
    ) -> Result<(Arc<str>, Held), ControlError> {
        let control = &self.shared.control;
        let system = match ask.session {
            Some(session) => Arc::clone(&session.system),
            None => control.system().await?,
        };
        let lock = ask.lock.as_str();
        let (pid, started) = (
            ask.session.map(|session| session.pid),
            ask.session.map(|session| session.started),
        );
        let params: [(&(dyn ToSql + Sync), Type); 7] = [
            (&lock, Type::TEXT),
            (&ask.token, Type::INT8),
            (&ask.unsigned, Type::BOOL),
            (&pid, Type::INT4),
            (&started, Type::INT8),
            (&self.shared.proxy, Type::TEXT),
            (&known, Type::INT8),
        ];
        let rows = control.call_on(&system, HOLD, &params).await?;
        let unread = || ControlError::Unfit("its schema ringfence is another's".to_owned());
        let row = rows.first().ok_or_else(unread)?;
        let held = match column::<&str>(row, 0)? {
            "held" => Held::In,
            "waits" => Held::Waits,
            "unknown" => Held::Unknown,
            "other" => Held::OtherKind,
            "stale" => Held::Stale(u64::try_from(column::<i64>(row, 1)?).map_err(|_| unread())?),
            _ => return Err(unread()),
        };
        Ok((system, held))
    }

    /// Where a lock begins that is not there.
    async fn floor(&self, ask: &Ask<'_>) -> Result<i64, NotRaised> {
        match &self.shared.registry {
            Some(registry) if !ask.unsigned => match registry.floor(ask.lock).await {
                Ok(floor) => Ok(signed(floor)),
                Err(reason) => {
                    tracing::warn!(lock = %ask.lock, %reason, "the floor is not told");
                    Err(NotRaised::Lost)
                }
            },
            // Nobody else knows; the gate has passed it by what is on this proxy's disk.
            _ => Ok(0),
        }
    }

    /// Waits until no session has a lower token, and terminates what is not given up in time.
    async fn drain(&self, ask: &Ask<'_>, system: &str) {
        let control = &self.shared.control;
        let terminate_at = Instant::now() + self.shared.patience;
        loop {
            match self.lower(ask, system).await {
                Ok(lower) if lower.is_empty() => return,
                Ok(lower) if Instant::now() >= terminate_at => {
                    if let Err(error) = control.end_and_list(system, &lower).await {
                        tracing::warn!(%error, lock = %ask.lock, "older sessions are not gone");
                    }
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "older sessions are not known"),
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    async fn lower(&self, ask: &Ask<'_>, system: &str) -> Result<Vec<(i32, i64)>, ControlError> {
        let lock = ask.lock.as_str();
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&lock, Type::TEXT), (&ask.token, Type::INT8)];
        let rows = self.shared.control.call_on(system, LOWER, &params).await?;
        let session = |row: &Row| Ok((column(row, 0)?, column(row, 1)?));
        rows.iter().map(session).collect()
    }
}

impl Shared {
    fn draining(&self) -> std::sync::MutexGuard<'_, HashSet<LockName>> {
        self.draining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up what is below `mark` when nothing of it can be applied any more.
    async fn give_up(&self, gates: &Gates, claim: Claim, mark: i64) -> Result<(), String> {
        let deadline = Instant::now() + DRAIN_MAX;
        let settled = match gates.settle(&claim, None, deadline).await {
            // The floor here is higher already, by a newer token or a close. Closing what is below it
            // raises nothing, and waits until that is drained.
            Err(refusal) if refusal.code == Code::Stale => {
                gates.close(&claim, deadline).await.map(|_floor| ())
            }
            settled => settled,
        };
        settled.map_err(|refusal| format!("{refusal:?}"))?;
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
