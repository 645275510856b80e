//! Leases that are being revoked take no guarded keys, by a mark in etcd that whoever attaches one
//! compares ([`crate::protocol::etcd::fence`]).
//!
//! Invariants:
//! - a mark is there, durably, before the last look at the lease's keys;
//! - it is taken away only by who made it, and only if the revocation was not sent, or etcd has
//!   said what became of it: one on its way could still delete what is attached after that.
//!
//! A mark that is left over (the proxy died, or etcd's answer was lost or does not say what
//! came of it) closes the lease to guarded keys as long as it is there: while it lives, should the
//! revocation not have taken place, and for a new lease of the same number.

use std::sync::Arc;
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};
use tokio::runtime::Handle;

use super::floors::TXN;
use super::identity::Identity;
use super::upstream::{Backend, Unary};
use crate::config::ListenerConfig;
use crate::protocol::etcd::fence::FenceKeys;
use crate::protocol::etcd::request::{DELETE_OP, PUT_OP};
use crate::protocol::etcd::wire::put_bytes;

/// Longest time for one call to etcd, and for a connection.
const CALL_MAX: Duration = Duration::from_secs(3);
/// Times that the deletion of a mark is tried, and the first wait between two; each is twice as
/// long as the one before.
const TRIES_MAX: u32 = 6;
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Who marks leases in one etcd.
pub struct Closings {
    listener: String,
    keys: FenceKeys,
    backend: Backend,
    /// Clients may not write fence keys.
    identity: Identity,
}

/// A lease that takes no guarded keys, until this is dropped.
pub struct Closing {
    closings: Arc<Closings>,
    key: Vec<u8>,
    /// The revocation is on its way, for all that is known.
    sent: bool,
}

impl Closings {
    /// For the etcd of this listener. `keys`: of its rules.
    pub fn new(listener: &ListenerConfig, keys: FenceKeys) -> Closings {
        let connect_max = listener.limits.upstream_connect_timeout.min(CALL_MAX);
        Closings {
            listener: listener.name.clone(),
            keys,
            backend: Backend::new(listener.upstream.clone(), connect_max),
            identity: Identity::new(listener.backend_user.clone()),
        }
    }

    /// Marks a lease. An error says why it could not.
    pub async fn close(self: &Arc<Closings>, lease: u64) -> Result<Closing, String> {
        let mut mark = [0; 16];
        // Up to 256 bytes come at once, or not at all (getrandom(2)).
        getrandom(&mut mark[..], GetRandomFlags::empty()).map_err(|error| error.to_string())?;
        let mark = format!("{:032x}", u128::from_be_bytes(mark));
        let key = self.keys.closing_key(lease, &mark);
        // From here on: the call may be cut off after etcd has got it.
        let closing = Closing {
            closings: Arc::clone(self),
            key,
            sent: false,
        };
        let mut put = vec![];
        put_bytes(&mut put, 1, &closing.key);
        put_bytes(&mut put, 2, b"1");
        self.apply(PUT_OP, &put).await?;
        Ok(closing)
    }

    async fn open(&self, key: &[u8]) {
        let mut delete = vec![];
        put_bytes(&mut delete, 1, key);
        let mut wait = RETRY_AFTER;
        for tries_left in (0..TRIES_MAX).rev() {
            let Err(reason) = self.apply(DELETE_OP, &delete).await else {
                return;
            };
            let key = String::from_utf8_lossy(key);
            tracing::warn!(listener = self.listener, %key, tries_left, reason, "a mark is left");
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }

    /// `Txn { Then this }`.
    async fn apply(&self, operation: u32, message: &[u8]) -> Result<(), String> {
        let (mut op, mut txn) = (vec![], vec![]);
        put_bytes(&mut op, operation, message);
        put_bytes(&mut txn, 2, &op);
        // The second time with a new token: etcd's end, and every change of its users ends them.
        for is_last in [false, true] {
            let headers = self.identity.headers(&self.backend, CALL_MAX).await?;
            let called = self.backend.call(TXN, headers, &txn, CALL_MAX);
            let unary: Unary = called.await.map_err(|error| error.to_string())?;
            if unary.status() == Some(0) {
                return Ok(());
            }
            if is_last || !self.identity.forget() {
                return Err(unary.reason());
            }
        }
        Err("etcd does not know the proxy".to_owned())
    }
}

impl Closing {
    /// The revocation may leave from now on.
    pub fn sending(&mut self) {
        self.sent = true;
    }

    /// It has not left, or etcd has said what became of it.
    pub fn ended(&mut self) {
        self.sent = false;
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if self.sent {
            let key = String::from_utf8_lossy(&self.key);
            tracing::warn!(%key, "a revocation's outcome is unknown: its mark stays");
            return;
        }
        // None while the runtime goes down.
        if let Ok(runtime) = Handle::try_current() {
            let (closings, key) = (Arc::clone(&self.closings), std::mem::take(&mut self.key));
            runtime.spawn(async move { closings.open(&key).await });
        }
    }
}
