//! What takes time before a statement may be forwarded: futures of their own, so that replies go on
//! beside them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{RETRY_AFTER, Session};
use crate::lock_name::LockName;
use crate::protocol::Refusal;
use crate::protocol::postgres::resolve::{Catalog, ForeignTables};
use crate::proxy::gates::{Claim, Entry};
use crate::proxy::postgres::Listener;
use crate::proxy::postgres::catalog::{CatalogError, Database};
use crate::proxy::postgres::control::{Claimed, SessionId, Unfit};

/// How long a message waits for a catalog that it could do without: loading one takes tens of
/// milliseconds, and where it takes longer its session is not trusted behind it.
const LOAD_SOON_MAX: Duration = Duration::from_secs(1);

/// A claim whose lock is settled at its token.
pub(super) struct Settled {
    pub(super) claim: Claim,
    pub(super) entry: Arc<Entry>,
    /// The session is on disk for this lock.
    pub(super) recorded: bool,
}

/// Who the backend session is.
#[derive(Clone)]
pub(super) enum Standing {
    /// Not asked yet.
    Unknown,
    /// Vouched for.
    Fit(SessionId),
    /// It could not be ended: it carries no fenced write.
    Unfit(Refusal),
}

/// What a session says of itself.
#[derive(Clone)]
pub(super) struct Identity {
    /// Its process, where the server told one.
    pub(super) pid: Option<i32>,
    pub(super) port: u16,
    pub(super) login: Arc<str>,
    pub(super) database: Arc<str>,
}

/// What is to be settled.
pub(super) struct Wanted {
    pub(super) claims: Arc<[Claim]>,
    pub(super) standing: Standing,
    /// Locks for which the session is to be put on disk.
    pub(super) unrecorded: Vec<LockName>,
}

/// Settles the claims, here and at the server itself where proxies share it, vouches for the
/// session, and puts it on disk.
pub(super) async fn settle_all(
    listener: Arc<Listener>,
    identity: Identity,
    wanted: Wanted,
) -> Result<(Vec<Settled>, Standing), Refusal> {
    let deadline = Instant::now() + listener.config.admit_deadline;
    let mut settled = vec![];
    for claim in wanted.claims.iter() {
        settled.push(settle(&listener, claim, deadline).await?);
    }
    let standing = match wanted.standing {
        Standing::Unknown => vouch(&listener, &identity).await?,
        known => known,
    };
    if let Some(store) = &listener.fence_store {
        let session = match &standing {
            Standing::Fit(session) => session,
            // Without a session to be held by, other proxies would not be told of the token.
            Standing::Unfit(refusal) => return Err(refusal.clone()),
            Standing::Unknown => {
                return Err(Refusal::busy("the session is not known", RETRY_AFTER));
            }
        };
        for claim in wanted.claims.iter() {
            store.hold(claim, session, deadline).await?;
        }
    }
    if let Standing::Fit(session) = &standing
        && !wanted.unrecorded.is_empty()
    {
        let sessions = &listener.sessions;
        sessions.record(session, &wanted.unrecorded).await?;
        for it in &mut settled {
            it.recorded = wanted.unrecorded.contains(&it.claim.lock);
        }
    }
    Ok((settled, standing))
}

async fn settle(listener: &Listener, claim: &Claim, deadline: Instant) -> Result<Settled, Refusal> {
    loop {
        listener.gates.settle(claim, None, deadline).await?;
        // It may be evicted in between; then it is settled anew.
        if let Some(entry) = listener.gates.loaded(&claim.lock) {
            return Ok(Settled {
                claim: claim.clone(),
                entry,
                recorded: false,
            });
        }
    }
}

async fn vouch(listener: &Listener, identity: &Identity) -> Result<Standing, Refusal> {
    let unfit = |detail: &'static str| Standing::Unfit(Refusal::unclassified(detail));
    let Some(pid) = identity.pid else {
        let detail = "the server told no process for this session: it could not be ended, and \
                      carries no fenced write";
        return Ok(unfit(detail));
    };
    let claimed = Claimed {
        pid,
        port: identity.port,
        user: &identity.login,
        database: &identity.database,
    };
    match listener.control.vouch(&claimed).await {
        Ok(session) => Ok(Standing::Fit(session)),
        Err(Unfit::Unasked(error)) => {
            tracing::warn!(%error, "a session is not vouched for");
            let detail = "the control connection does not answer";
            Err(Refusal::busy(detail, RETRY_AFTER))
        }
        Err(error) => {
            // What is wrong is for the operator; the client cannot change it.
            tracing::warn!(%error, user = &*identity.login, "a session carries no fenced write");
            Ok(unfit(match error {
                Unfit::Superuser => {
                    "a superuser's session could not be ended, and carries no fenced write"
                }
                _ => "the proxy could not end this session, so it carries no fenced write",
            }))
        }
    }
}

/// A catalog to resolve names against: any that may be used, or a newer one than `seen`.
pub(super) async fn load(
    database: Arc<Database>,
    seen: Option<Arc<Catalog>>,
) -> Result<Arc<Catalog>, Refusal> {
    let loaded = match &seen {
        None => database.get().await,
        Some(seen) => database.newer_than(seen).await,
    };
    loaded.map_err(|error| not_loaded(&error))
}

/// The same, as long as nobody waits long for it. Where none comes it is loaded aside.
pub(super) async fn load_soon(
    database: Arc<Database>,
    seen: Option<Arc<Catalog>>,
) -> Result<Arc<Catalog>, Refusal> {
    let loading = load(Arc::clone(&database), seen);
    match tokio::time::timeout(LOAD_SOON_MAX, loading).await {
        Ok(loaded) => loaded,
        Err(_) => {
            database.load_aside();
            let detail = "the tables of this database are not known now";
            Err(Refusal::busy(detail, RETRY_AFTER))
        }
    }
}

/// Whether a database has tables of other servers.
pub(super) async fn ask_foreign(database: Arc<Database>) -> Result<ForeignTables, Refusal> {
    let told = database.ask_foreign_tables().await;
    told.map_err(|error| not_loaded(&error))
}

fn not_loaded(error: &CatalogError) -> Refusal {
    tracing::warn!(%error, "no catalog to resolve names against");
    let why = match error {
        CatalogError::Unloaded { source, .. } => source.to_string(),
        CatalogError::TooMany => error.to_string(),
    };
    let detail = format!("the tables of this database are not known now: {why}");
    Refusal::busy(detail, RETRY_AFTER)
}

impl Session {
    /// Keeps what was settled at hand.
    pub(super) fn keep(&mut self, settled: Vec<Settled>, standing: Standing) {
        for it in settled {
            self.slots.keep(it.claim, it.entry, it.recorded);
        }
        if let Standing::Fit(session) = &standing
            && self.flights.session().is_none()
        {
            self.flights.note_session(session.clone());
        }
        self.standing = standing;
    }
}
