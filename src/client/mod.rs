//! The Rust client of the lock service: sessions, locks that carry fencing tokens, and watching.
//!
//! ```no_run
//! use std::time::Duration;
//! use ringfence::client::{Client, SessionOptions, Wait};
//! use ringfence::lock_name::LockName;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(["http://lockd-1:7420", "http://lockd-2:7420"])?;
//! let session = client.open_session(SessionOptions::default()).await?;
//! let lock = LockName::new("orders")?;
//! let guard = session.acquire(&lock, Wait::AtMost(Duration::from_secs(30))).await?;
//!
//! tokio::select! {
//!     // Send `guard.ticket()` with every request, as the header `Fencing-Token` for example.
//!     () = write_orders(guard.ticket()) => {
//!         guard.release().await?;
//!     }
//!     lost = guard.lost(Duration::from_secs(3)) => eprintln!("stop now: {lost}"),
//! }
//! session.close().await?;
//! # Ok(()) }
//! # async fn write_orders(_: &str) {}
//! ```
//!
//! **A lock alone protects nothing.** Any process may be paused between the look at its lock and
//! its write. What protects is the *ticket*, sent with every write through a ringfence proxy,
//! which refuses it once a newer grant exists. The local deadline of a session only spares a holder
//! the work that would be refused.
//!
//! Rules that the client keeps:
//! - The safety deadline of a session counts from the *sending* of the last renewal that was
//!   answered, on CLOCK_BOOTTIME ([`Lease`]).
//! - A call whose reply was lost is repeated, at another endpoint if there is one, only where
//!   repeating is safe: an acquire carries an attempt id, a release names a token.
//! - An acquire that is dropped, or that ends without a grant after a lost reply, takes back what
//!   the service may have granted.
//!
//! It leaves to others: what a ticket says ([`crate::ticket`]), and refusing stale writers.

mod acquire;
mod backoff;
mod endpoints;
mod error;
mod guard;
mod lease;
mod observe;
mod renew;
mod session;
mod sleep;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

pub use error::ClientError;
pub use guard::{Guard, Lost};
pub use lease::{Lease, SessionState};
pub use observe::HolderWatch;
pub use session::{Session, SessionOptions, TTL_DEFAULT, TTL_MAX, TTL_MIN, Wait};
pub use sleep::sleep_until;

use crate::lock_name::LockName;
use crate::proto::{GetLockRequest, GetLockResponse, ListLocksRequest, ListLocksResponse};

use endpoints::Endpoints;

/// How long calls that do not wait by design go on trying when no endpoint answers.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A client of one lock service, which may have several endpoints. Cheap to clone; connections are
/// set up when first needed and again when they break.
#[derive(Clone, Debug)]
pub struct Client {
    endpoints: Arc<Endpoints>,
}

impl Client {
    /// A client of these endpoints, each `http://host:port`. Must be called within a tokio runtime;
    /// sends nothing yet.
    pub fn new<T: Into<String>>(
        endpoints: impl IntoIterator<Item = T>,
    ) -> Result<Client, ClientError> {
        let addresses: Vec<String> = endpoints.into_iter().map(Into::into).collect();
        Ok(Client {
            endpoints: Arc::new(Endpoints::new(&addresses)?),
        })
    }

    /// Opens a session and keeps it alive until it is closed or dropped.
    pub async fn open_session(&self, options: SessionOptions) -> Result<Session, ClientError> {
        Session::open(self.endpoints.clone(), options).await
    }

    /// Who holds a lock and who waits for it.
    pub async fn get_lock(&self, lock: &LockName) -> Result<GetLockResponse, ClientError> {
        get_lock(&self.endpoints, lock).await
    }

    /// One page of the locks that are held, in the order of their names: those that begin with
    /// `prefix` and come after the lock `after`. `limit = 0` is the service's own limit.
    pub async fn list_locks(
        &self,
        prefix: &str,
        after: &str,
        limit: u32,
    ) -> Result<ListLocksResponse, ClientError> {
        let (prefix, after) = (prefix.to_owned(), after.to_owned());
        let request = ListLocksRequest {
            prefix,
            limit,
            after,
        };
        self.endpoints
            .call(PATIENCE, |mut stub| {
                let request = request.clone();
                async move { stub.list_locks(request).await }
            })
            .await
    }

    /// Watches who holds a lock: the present holder first, then each change. Goes on through other
    /// endpoints by itself; changes that came and went while it was away are not seen.
    pub fn watch(&self, lock: &LockName) -> HolderWatch {
        HolderWatch::new(self.endpoints.clone(), lock.clone())
    }
}

async fn get_lock(endpoints: &Endpoints, lock: &LockName) -> Result<GetLockResponse, ClientError> {
    let request = GetLockRequest {
        lock: lock.to_string(),
    };
    endpoints
        .call(PATIENCE, |mut stub| {
            let request = request.clone();
            async move { stub.get_lock(request).await }
        })
        .await
}
