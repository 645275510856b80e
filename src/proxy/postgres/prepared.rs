//! What PREPARE TRANSACTION leaves at the server: under which locks, so that COMMIT PREPARED and
//! ROLLBACK PREPARED ask for current tickets of theirs, whoever sends them and whenever.
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

use crate::lock_name::LockName;
use crate::protocol::Refusal;
use crate::proxy::gates::Claim;
use crate::proxy::watermarks::{PreparedRow, Watermarks, What};

/// Most uses of names that are remembered. Postgres itself takes as many as its
/// `max_prepared_transactions` says, 0 as it comes.
pub const PREPARED_MAX: usize = 10_000;

const RETRY_AFTER: Duration = Duration::from_secs(1);

/// One use of a name: later ones are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Use(u64);

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
    known: Mutex<Names>,
}

#[derive(Default)]
struct Names {
    by_name: HashMap<Box<str>, Vec<(Use, PreparedRow)>>,
    count: usize,
    last: u64,
}

impl Prepared {
    /// Those of the backend of this address; `rows`: what is on disk of them.
    pub fn new(backend: String, watermarks: Watermarks, rows: Vec<PreparedRow>) -> Prepared {
        let mut names = Names::default();
        for row in rows {
            names.last = names.last.max(row.number);
            names.add(row);
        }
        Prepared {
            shared: Arc::new(Shared {
                backend,
                watermarks,
                known: Mutex::new(names),
            }),
        }
    }

    /// Puts on disk that a transaction under these claims is about to be prepared under this name.
    pub async fn record(&self, gid: &str, claims: &[Claim]) -> Result<Use, Refusal> {
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
            (Use(names.last), row)
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

    /// What may be prepared under this name; `None`: nothing that this proxy has seen.
    pub fn look(&self, gid: &str) -> Option<Known> {
        let names = self.shared.lock();
        let uses = names.by_name.get(gid)?;
        let claims = uses.iter().flat_map(|(_, row)| &row.claims);
        let mut locks: Vec<LockName> = claims.map(|(lock, _)| lock.clone()).collect();
        locks.sort_unstable();
        locks.dedup();
        let last = uses.iter().map(|(number, _)| *number).max()?;
        Some(Known { locks, last })
    }

    /// COMMIT PREPARED or ROLLBACK PREPARED has succeeded, which was forwarded when `last` was the
    /// last use of the name.
    pub fn ended(&self, gid: &str, last: Use) {
        self.remove(gid, |number| number <= last);
    }

    /// This PREPARE TRANSACTION has been refused by the server, or has not been forwarded.
    pub fn failed(&self, gid: &str, this: Use) {
        self.remove(gid, |number| number == this);
    }

    fn remove(&self, gid: &str, gone: impl Fn(Use) -> bool) {
        for row in self.shared.lock().remove(gid, gone) {
            // A row that stays asks for tickets that nothing needs.
            let watermarks = &self.shared.watermarks;
            watermarks.submit(What::PreparedEnded(row), Box::new(|_| {}));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Names> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Names {
    fn add(&mut self, row: PreparedRow) {
        self.count += 1;
        let uses = self.by_name.entry(row.gid.as_str().into()).or_default();
        uses.push((Use(row.number), row));
    }

    fn remove(&mut self, gid: &str, gone: impl Fn(Use) -> bool) -> Vec<PreparedRow> {
        let Some(uses) = self.by_name.get_mut(gid) else {
            return vec![];
        };
        let (ended, open) = std::mem::take(uses).into_iter().partition(|it| gone(it.0));
        *uses = open;
        if uses.is_empty() {
            self.by_name.remove(gid);
        }
        let ended: Vec<(Use, PreparedRow)> = ended;
        self.count -= ended.len();
        ended.into_iter().map(|(_, row)| row).collect()
    }
}
