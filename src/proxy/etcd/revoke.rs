//! The end of a lease deletes its keys, and no transaction can hold it. So the guarded keys among
//! them are deleted first, each under the comparison of the floors and only while it hangs on the
//! lease; that is repeated until none is left. Then the lease is closed to further ones
//! ([`Closing`]), through whichever proxy they come; what was attached before that is looked for
//! once more, and the lease is revoked, which deletes the others.
//!
//! What is left: in a cluster, etcd tells the keys of a lease from its leader's own state, which
//! may be behind by what it has not applied yet (etcd, issue 13915).

use std::sync::Arc;
use std::time::Duration;

use hyper::Response;
use tokio::time::Instant;

use super::body::ToClient;
use super::call::with_own_headers;
use super::claims::Admitted;
use super::closing::Closing;
use super::door::{Door, Heard};
use super::reply;
use super::upstream::own_headers;
use crate::protocol::etcd::answer;
use crate::protocol::etcd::wire::{self, Malformed, Value};
use crate::protocol::etcd::{Call, delete_leased};
use crate::protocol::{Kind, Refusal};

/// Keys that one transaction deletes: etcd takes 128 operations unless `--max-txn-ops` says
/// otherwise, and the comparisons count.
const KEYS_PER_TXN_MAX: usize = 64;
/// Most times that the keys of a lease are looked for.
const LOOKS_MAX: usize = 6;
/// What a client is told to wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Most times that a transaction is sent because etcd said that it compared and did nothing.
const ROUNDS_MAX: usize = 4;

const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";

/// Whether a call that ended with this status has no effect any more that is still to come: done,
/// INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, UNIMPLEMENTED, UNAUTHENTICATED. etcd gives some
/// of the others to what it has given up waiting for.
fn is_final(status: u8) -> bool {
    matches!(status, 0 | 3 | 5 | 7 | 12 | 16)
}

impl Door {
    pub(super) async fn forward_revoke(
        &self,
        heard: Heard,
        call: &Call<'_>,
        admitted: &Admitted,
        deadline: Instant,
    ) -> Result<Response<ToClient>, Refusal> {
        let lease = call.revokes.unwrap_or_default();
        let mut closing = None;
        for _ in 0..LOOKS_MAX {
            let keys = match self.leased_keys(&heard, lease).await? {
                Ok(keys) => keys,
                // What etcd has to say about the lease.
                Err(response) => return Ok(response),
            };
            let (locks, doomed) = self.rules().cover_leased(&keys)?;
            if let Some(lock) = admitted.missing(&locks) {
                return Err(Refusal::missing(lock.clone()));
            }
            self.check_floors(&heard.parts.headers, admitted, deadline)
                .await?;
            if doomed.is_empty() {
                match closing.take() {
                    Some(closing) => return self.revoke(&heard, closing).await,
                    None if !self.rules().has_rules() => {
                        return self.pass(heard, Kind::Write).await;
                    }
                    None => closing = Some(self.close(lease).await?),
                }
            }
            for doomed in doomed.chunks(KEYS_PER_TXN_MAX) {
                if let Some(response) = self
                    .delete(&heard, lease, doomed, admitted, deadline)
                    .await?
                {
                    return Ok(response);
                }
            }
        }
        Err(Refusal::busy(
            "guarded keys keep being attached to this lease",
            RETRY_AFTER,
        ))
    }

    /// Keeps further guarded keys from the lease.
    async fn close(&self, lease: u64) -> Result<Closing, Refusal> {
        self.closings.close(lease).await.map_err(|reason| {
            tracing::warn!(lease, reason, "a lease cannot be closed to guarded keys");
            Refusal::busy("etcd does not take the mark of a revocation", RETRY_AFTER)
        })
    }

    /// Sends the revocation. Whether its client waits for the answer or not, the mark goes with it.
    async fn revoke(
        &self,
        heard: &Heard,
        mut closing: Closing,
    ) -> Result<Response<ToClient>, Refusal> {
        let headers = with_own_headers(&heard.parts.headers);
        let wait_max = self.listening.config.limits.upstream_response_timeout;
        let (backend, message) = (Arc::clone(&self.backend), heard.message());
        let called = tokio::spawn(async move {
            closing.sending();
            let called = backend.call(REVOKE, headers, &message, wait_max).await;
            let over = match &called {
                Err(lost) => lost.is_unsent(),
                Ok(unary) => unary.status().is_some_and(is_final),
            };
            if over {
                closing.ended();
            }
            called
        });
        // It ends early with the runtime alone.
        let called = called.await.map_err(|_| {
            Refusal::unknown("the proxy is shutting down, and etcd has not answered")
        })?;
        let unary = called.map_err(|lost| self.lost(&lost, Kind::Write))?;
        Ok(match &unary.message {
            Some(message) => reply::unary(unary.head, message, unary.trailers),
            None => reply::failed(unary),
        })
    }

    /// The keys that hang on a lease.
    async fn leased_keys(
        &self,
        heard: &Heard,
        lease: u64,
    ) -> Result<Result<Vec<Vec<u8>>, Response<ToClient>>, Refusal> {
        // `LeaseTimeToLiveRequest { ID, keys }`.
        let mut request = vec![];
        wire::put_number(&mut request, 1, lease);
        wire::put_number(&mut request, 2, 1);
        let mut headers = own_headers();
        if let Some(identity) = heard.parts.headers.get("token") {
            headers.insert("token", identity.clone());
        }
        let path = "/etcdserverpb.Lease/LeaseTimeToLive";
        let wait_max = self.listening.config.limits.upstream_response_timeout;
        let called = self.backend.call(path, headers, &request, wait_max).await;
        let unary = called.map_err(|lost| self.lost(&lost, Kind::Read))?;
        let Some(message) = &unary.message else {
            return Ok(Err(reply::failed(unary)));
        };
        let mut keys = vec![];
        for field in wire::fields(message) {
            let field = field.map_err(|Malformed(reason)| {
                tracing::error!(reason, "etcd's answer about a lease cannot be read");
                Refusal::unclassified("the keys of the lease are not known")
            })?;
            if let (5, Value::Bytes(key)) = (field.number, field.value) {
                keys.push(key.to_vec());
            }
        }
        Ok(Ok(keys))
    }

    /// `Some`: etcd refuses it, and says why.
    async fn delete(
        &self,
        heard: &Heard,
        lease: u64,
        doomed: &[&[u8]],
        admitted: &Admitted,
        deadline: Instant,
    ) -> Result<Option<Response<ToClient>>, Refusal> {
        let claims = admitted.claims();
        let txn = delete_leased(&self.rules().keys, &self.fences(claims), lease, doomed);
        for _ in 0..ROUNDS_MAX {
            let unary = self.call_txn(&heard.parts.headers, &txn).await;
            let unary = unary.map_err(|lost| self.lost(&lost, Kind::Write))?;
            let Some(message) = &unary.message else {
                return Ok(Some(reply::failed(unary)));
            };
            match answer::checked(message) {
                Ok(None) => return Ok(None),
                Ok(Some(seen)) => {
                    self.judge(claims, &seen, deadline).await?;
                }
                Err(Malformed(_)) => {
                    return Err(Refusal::unknown("etcd's response cannot be read"));
                }
            }
        }
        let detail = "other proxies keep changing these locks";
        Err(Refusal::busy(detail, RETRY_AFTER))
    }
}
