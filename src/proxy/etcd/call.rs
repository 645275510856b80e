//! Calls of the KV service, sent under the comparison of their floors.

use hyper::Response;
use hyper::header::HeaderMap;
use tokio::time::Instant;

use super::body::ToClient;
use super::claims::Admitted;
use super::door::{Door, Heard};
use super::floors::TXN;
use super::reply;
use super::upstream::{Lost, Unary};
use crate::protocol::etcd::Call;
use crate::protocol::etcd::answer::{self, Unwrapped};
use crate::protocol::etcd::fence::{Fence, Seen};
use crate::protocol::etcd::rewrite;
use crate::protocol::etcd::wire::Malformed;
use crate::protocol::{Kind, Refusal};
use crate::proxy::floors::NotRaised;
use crate::proxy::gates::Claim;
use crate::token::Token;

/// Most times that a call is sent because etcd said that it compared and did nothing, although the
/// token is current.
const ROUNDS_MAX: usize = 4;

impl Door {
    pub(super) async fn forward_kv(
        &self,
        heard: Heard,
        call: &Call<'_>,
        admitted: &Admitted,
        deadline: Instant,
    ) -> Result<Response<ToClient>, Refusal> {
        let claims = admitted.claims();
        let fences = self.fences(claims);
        let Some(rewritten) = call.rewrite(self.rules(), &fences)? else {
            return self.pass(heard, call.kind).await;
        };
        for _ in 0..ROUNDS_MAX {
            let unary = self
                .call_txn(&heard.parts.headers, &rewritten.message)
                .await;
            let unary = unary.map_err(|lost| self.lost(&lost, call.kind))?;
            let Some(message) = &unary.message else {
                return Ok(reply::failed(unary));
            };
            match rewritten.answer.unwrap(message) {
                Ok(Unwrapped::Reply(message)) => {
                    return Ok(reply::unary(unary.head, &message, unary.trailers));
                }
                Ok(Unwrapped::Fenced(seen)) => {
                    let amended = self.judge(claims, &seen, deadline).await?;
                    if !amended && call.attaches() {
                        return Err(being_revoked(claims));
                    }
                }
                Err(Malformed(reason)) => return Err(garbled(reason, call.kind)),
            }
        }
        Err(NotRaised::Unavailable.about(claims))
    }

    /// What a call without a transaction presents is compared before it: it changes no guarded key.
    /// `headers`: the call's own, for the client's identity.
    pub(super) async fn check_floors(
        &self,
        headers: &HeaderMap,
        admitted: &Admitted,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let claims = admitted.claims();
        let fences = self.fences(claims);
        if fences.is_empty() {
            return Ok(());
        }
        let check = rewrite::check(&self.rules().keys, &fences);
        for _ in 0..ROUNDS_MAX {
            let unary = self.call_txn(headers, &check).await;
            let unary = unary.map_err(|lost| self.lost(&lost, Kind::Read))?;
            let Some(message) = &unary.message else {
                tracing::warn!(reason = unary.reason(), "etcd does not compare floors");
                return Err(NotRaised::Unavailable.about(claims));
            };
            match answer::checked(message) {
                Ok(None) => return Ok(()),
                Ok(Some(seen)) => {
                    self.judge(claims, &seen, deadline).await?;
                }
                Err(Malformed(reason)) => return Err(garbled(reason, Kind::Read)),
            }
        }
        Err(NotRaised::Unavailable.about(claims))
    }

    /// The floors that etcd is to compare: of the locks that this listener guards.
    pub(super) fn fences(&self, claims: &[Claim]) -> Vec<Fence> {
        let guarded = claims
            .iter()
            .filter(|claim| self.enforces() && self.rules().guards_lock(&claim.lock));
        let fence = |claim: &Claim| Fence {
            lock: claim.lock.clone(),
            floor: claim.token.get(),
            unsigned: claim.unsigned,
        };
        guarded.map(fence).collect()
    }

    /// A transaction with the client's own headers: its identity at etcd, its deadline.
    pub(super) async fn call_txn(
        &self,
        headers: &HeaderMap,
        message: &[u8],
    ) -> Result<Unary, Lost> {
        let wait_max = self.listening.config.limits.upstream_response_timeout;
        let headers = with_own_headers(headers);
        self.backend.call(TXN, headers, message, wait_max).await
    }

    /// etcd has compared, and did nothing. Stale, or floors are brought to where they belong;
    /// false: all were there.
    pub(super) async fn judge(
        &self,
        claims: &[Claim],
        seen: &[Seen],
        deadline: Instant,
    ) -> Result<bool, Refusal> {
        let mut amended = false;
        let guarded = claims
            .iter()
            .filter(|it| self.rules().guards_lock(&it.lock));
        for (claim, seen) in guarded.zip(seen) {
            let token = claim.token.get();
            match seen {
                Seen::Floor { floor, unsigned } if *unsigned == claim.unsigned => {
                    if *floor > token {
                        let watermark = Token::new(*floor);
                        return Err(Refusal::stale(claim.lock.clone(), claim.token, watermark));
                    }
                    if *floor == token {
                        continue;
                    }
                }
                // The raise tells what is wrong with it.
                Seen::Floor { .. } | Seen::Damaged | Seen::Missing => {}
            }
            tracing::warn!(lock = %claim.lock, token, ?seen, "etcd's floor was not the raised one");
            self.listening.gates.settle_anew(claim, deadline).await?;
            amended = true;
        }
        Ok(amended)
    }
}

/// A lease takes no guarded keys any more.
fn being_revoked(claims: &[Claim]) -> Refusal {
    let detail = "the lease of this key is being revoked, by this proxy or another one, or who \
                  began to has not ended it: take another lease";
    let refusal = Refusal::busy(detail, std::time::Duration::from_secs(1));
    match claims.first() {
        Some(claim) => refusal.for_lock(claim.lock.clone()).with_token(claim.token),
        None => refusal,
    }
}

/// The headers of a call of ours on behalf of a client's.
pub(super) fn with_own_headers(headers: &HeaderMap) -> HeaderMap {
    let mut own = super::upstream::own_headers();
    for (name, value) in headers {
        if !own.contains_key(name) {
            own.append(name.clone(), value.clone());
        }
    }
    own
}

impl NotRaised {
    /// About the first of these claims.
    fn about(self, claims: &[Claim]) -> Refusal {
        match claims.first() {
            Some(claim) => self.refusal(claim.lock.clone(), claim.token),
            None => Refusal::busy("etcd was busy", std::time::Duration::from_secs(1)),
        }
    }
}

/// etcd answered, but not as its API says.
fn garbled(reason: &'static str, kind: Kind) -> Refusal {
    tracing::error!(reason, "etcd's response cannot be read");
    match kind {
        Kind::Read => Refusal::busy(
            "etcd's response cannot be read",
            std::time::Duration::from_secs(1),
        ),
        Kind::Write => Refusal::unknown("etcd's response cannot be read"),
    }
}
