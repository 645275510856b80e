//! What PREPARE TRANSACTION leaves at the server: under which locks, so that COMMIT PREPARED and
//! ROLLBACK PREPARED ask for current tickets of theirs, whoever sends them and whenever. On disk;
//! where several proxies share the server, there.
//!
//! What an earlier run has recorded is looked for at the server at the start, and a name that the
//! server does not know goes when that is found.
//!
//! Invariants:
//! - a name is on disk with its locks before its PREPARE TRANSACTION is forwarded, and goes only
//!   when the server has said that nothing is prepared under it any more;
//! - a name that is used again keeps the locks of both uses until the earlier is known to have
//!   ended: what the server has under it may be either's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::control::{Control, ControlError, SessionId};
use super::fence_store::FenceStore;
use crate::lock_name::LockName;
use crate::protocol::Refusal;
use crate::proxy::gates::Claim;
use crate::proxy::left::Left;
use crate::proxy::watermarks::{PreparedRow, Watermarks, What};

/// Most uses of names that are remembered. Postgres itself takes as many as its
/// `max_prepared_transactions` says, 0 as it comes.
pub const PREPARED_MAX: usize = 10_000;

const RETRY_AFTER: Duration = Duration::from_secs(1);

/// One use of a name, on disk or at the server: later ones have greater numbers, 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Use {
    disk: u64,
    server: i64,
}

/// What may be prepared under a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// The locks that it may have written under: sorted, each once. A current ticket for each of
    /// them ends it.
    pub locks: Vec<LockName>,
    /// The last use of the name so far: for [`Prepared::ended`].
    pub last: Use,
}

/// The prepared transactions of one backend. Cheap to clone.
#[derive(Clone)]
pub struct Prepared {
    shared: Arc<Shared>,
}

struct Shared {
    backend: String,
    watermarks: Watermarks,
    /// Where all proxies keep them.
    server: Option<FenceStore>,
    known: Mutex<Names>,
    /// Uses of this run that define nothing: their end leaves what names mean as it is.
    plain: Mutex<HashMap<Box<str>, Use>>,
}

#[derive(Default)]
struct Names {
    by_name: HashMap<Box<str>, Vec<PreparedRow>>,
    count: usize,
    last: u64,
}

impl Prepared {
    /// Of this backend, as an earlier run has left them.
    pub fn new(backend: String, watermarks: Watermarks, rows: Vec<PreparedRow>) -> Prepared {
        Prepared::kept_by(None, backend, watermarks, rows)
    }

    /// The same where `server` keeps those of all proxies.
    pub fn kept_by(
        server: Option<FenceStore>,
        backend: String,
        watermarks: Watermarks,
        rows: Vec<PreparedRow>,
    ) -> Prepared {
        let mut names = Names::default();
        for row in rows {
            names.last = names.last.max(row.number);
            names.add(row);
        }
        Prepared {
            shared: Arc::new(Shared {
                backend,
                watermarks,
                server,
                known: Mutex::new(names),
                plain: Mutex::default(),
            }),
        }
    }

    /// Whether the server must be asked ([`Prepared::ask`]): other proxies may know more.
    pub fn is_shared(&self) -> bool {
        self.shared.server.is_some()
    }

    /// Puts on record that the session is about to prepare a transaction under this name and these
    /// claims.
    pub async fn record(
        &self,
        gid: &str,
        claims: &[Claim],
        session: Option<&SessionId>,
    ) -> Result<Use, Refusal> {
        let Some(server) = &self.shared.server else {
            return self.record_on_disk(gid, claims).await;
        };
        let locks: Vec<&str> = claims.iter().map(|it| it.lock.as_str()).collect();
        let recorded = match session {
            Some(session) => server.record_prepared(gid, &locks, session).await,
            None => Err(ControlError::NotNow("the session is not known".to_owned())),
        };
        match recorded {
            Ok(number) => Ok(Use {
                disk: 0,
                server: number,
            }),
            Err(error) => {
                tracing::warn!(%error, "a transaction is not prepared");
                let detail = "the prepared transaction cannot be recorded";
                Err(Refusal::busy(detail, RETRY_AFTER))
            }
        }
    }

    async fn record_on_disk(&self, gid: &str, claims: &[Claim]) -> Result<Use, Refusal> {
        let (told, answer) = oneshot::channel();
        let (number, row) = {
            let mut names = self.shared.lock();
            if names.count >= PREPARED_MAX {
                let detail = "too many prepared transactions are remembered";
                return Err(Refusal::busy(detail, RETRY_AFTER));
            }
            names.last += 1;
            let row = PreparedRow {
                backend: self.shared.backend.clone(),
                gid: gid.to_owned(),
                number: names.last,
                claims: claims
                    .iter()
                    .map(|it| (it.lock.clone(), it.token))
                    .collect(),
            };
            names.add(row.clone());
            let number = Use {
                disk: names.last,
                server: 0,
            };
            (number, row)
        };
        let done = move |durable: bool| {
            // Whoever asked may have gone.
            let _ = told.send(durable);
        };
        self.shared
            .watermarks
            .submit(What::Prepares(row), Box::new(done));
        match answer.await {
            Ok(true) => Ok(number),
            _ => {
                self.failed(gid, number);
                let detail = "the prepared transaction cannot be recorded on disk";
                Err(Refusal::busy(detail, RETRY_AFTER))
            }
        }
    }

    /// What may be prepared under this name; `None`: nothing that is on disk.
    pub fn look(&self, gid: &str) -> Option<Known> {
        let names = self.shared.lock();
        let uses = names.by_name.get(gid)?;
        let claims = uses.iter().flat_map(|row| &row.claims);
        let disk = uses.iter().map(|row| row.number).max()?;
        let locks = claims.map(|(lock, _)| lock.clone()).collect();
        Some(Known::new(locks, Use { disk, server: 0 }))
    }

    /// The same with what all proxies know.
    pub async fn ask(&self, gid: &str) -> Result<Option<Known>, Refusal> {
        let on_disk = self.look(gid);
        let Some(server) = &self.shared.server else {
            return Ok(on_disk);
        };
        let at_server = server.prepared(gid).await.map_err(|error| {
            tracing::warn!(%error, "what is prepared is not known");
            let detail = "what is prepared under this name is not known now";
            Refusal::busy(detail, RETRY_AFTER)
        })?;
        let last = Use {
            disk: on_disk.as_ref().map_or(0, |it| it.last.disk),
            server: at_server.iter().map(|it| it.0).max().unwrap_or(0),
        };
        if on_disk.is_none() && at_server.is_empty() {
            return Ok(None);
        }
        let on_disk = on_disk.into_iter().flat_map(|it| it.locks);
        let locks = at_server.into_iter().flat_map(|it| it.1).chain(on_disk);
        Ok(Some(Known::new(locks.collect(), last)))
    }

    /// What this use has prepared defines nothing.
    pub fn note_plain(&self, gid: &str, this: Use) {
        let mut plain = self.shared.plain();
        if plain.len() < PREPARED_MAX || plain.contains_key(gid) {
            plain.insert(gid.into(), this);
        }
    }

    /// Whether what is prepared under a name is known to define nothing.
    pub fn is_plain(&self, gid: &str, known: &Known) -> bool {
        self.shared.plain().get(gid) == Some(&known.last)
    }

    /// COMMIT PREPARED or ROLLBACK PREPARED has succeeded, or has found nothing, which was
    /// forwarded when `last` was the last use of the name.
    pub fn ended(&self, gid: &str, last: Use) {
        self.shared.plain().remove(gid);
        self.remove(gid, |number| number <= last.disk);
        if let (Some(server), 1..) = (&self.shared.server, last.server) {
            server.forget_prepared(gid, 1, last.server);
        }
    }

    /// This PREPARE TRANSACTION has been refused by the server, or has not been forwarded.
    pub fn failed(&self, gid: &str, this: Use) {
        self.remove(gid, |number| number == this.disk);
        if let (Some(server), 1..) = (&self.shared.server, this.server) {
            server.forget_prepared(gid, this.server, this.server);
        }
    }

    /// Forgets what an earlier run has recorded and the server does not have. Runs until all of it
    /// was looked for: not before the sessions of that run are gone, which may prepare it yet.
    pub async fn reconcile(self, control: Control, left: Left) {
        let mut rows: Vec<PreparedRow> = {
            let names = self.shared.lock();
            names.by_name.values().flatten().cloned().collect()
        };
        while !rows.is_empty() {
            let may_come = |row: &PreparedRow| row.claims.iter().any(|it| left.is_pending(&it.0));
            let (waiting, settled): (Vec<_>, Vec<_>) = rows.into_iter().partition(may_come);
            rows = waiting;
            match control.prepared().await {
                Ok(there) => {
                    for row in settled.iter().filter(|row| !there.contains(&row.gid)) {
                        self.remove(&row.gid, |number| number == row.number);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "what is prepared is not listed");
                    rows.extend(settled);
                }
            }
            if !rows.is_empty() {
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }

    fn remove(&self, gid: &str, gone: impl Fn(u64) -> bool) {
        for row in self.shared.lock().remove(gid, gone) {
            // A row that stays asks for tickets that nothing needs.
            let watermarks = &self.shared.watermarks;
            watermarks.submit(What::PreparedEnded(row), Box::new(|_| {}));
        }
    }
}

impl Known {
    fn new(mut locks: Vec<LockName>, last: Use) -> Known {
        locks.sort_unstable();
        locks.dedup();
        Known { locks, last }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Names> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plain(&self) -> MutexGuard<'_, HashMap<Box<str>, Use>> {
        self.plain.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Names {
    fn add(&mut self, row: PreparedRow) {
        self.count += 1;
        let uses = self.by_name.entry(row.gid.as_str().into()).or_default();
        uses.push(row);
    }

    fn remove(&mut self, gid: &str, gone: impl Fn(u64) -> bool) -> Vec<PreparedRow> {
        let Some(uses) = self.by_name.get_mut(gid) else {
            return vec![];
        };
        let ended: Vec<PreparedRow> = uses.extract_if(.., |row| gone(row.number)).collect();
        if uses.is_empty() {
            self.by_name.remove(gid);
        }
        self.count -= ended.len();
        ended
    }
}
