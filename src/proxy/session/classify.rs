//! Stage 2, classify: what the request is, which locks it needs, and which genuine tickets it
//! carries.

use std::sync::Arc;

use bytes::Bytes;
use hyper::http::request::Parts;
use tokio::time::Instant;

use super::read::{self, ClientBody, cannot_hold};
use super::{Asked, Door};
use crate::config::{Mode, Trust};
use crate::lock_name::LockName;
use crate::protocol::{Classified, Kind, PendingBody, Refusal, RequestClass};
use crate::proxy::gates::Claim;
use crate::proxy::withheld::BodyLimits;
use crate::ticket::Ticket;
use crate::token::Token;

/// What a request is.
pub struct Decided {
    /// Read or write.
    pub kind: Kind,
    /// The locks that it needs, if it is a write.
    pub locks: Vec<LockName>,
    /// What it presents: sorted by lock, each lock once.
    pub claims: Vec<Claim>,
}

impl Door {
    /// Classifies a request. The body comes back read if it had to be.
    pub(super) async fn classify(
        &self,
        parts: &Parts,
        body: &mut ClientBody,
        asked: &mut Asked,
        deadline: Instant,
    ) -> Result<Decided, Refusal> {
        let fields = read::fields(&parts.headers);
        let target = read::target(parts);
        let head = read::head(parts, &target, &fields)?;
        let class = match self.listening.rules().classify(&head)? {
            Classified::Ready(class) => class,
            Classified::NeedsBody(pending) => self.classify_body(pending, body).await?,
        };
        if class.operation != parts.method.as_str() {
            asked.operation = Some(class.operation.to_owned());
        }
        let claims = match self.listening.config.trust {
            Trust::Signed => self.signed_claims(&class, asked, deadline).await?,
            Trust::Unsigned => unsigned_claims(&class)?,
        };
        Ok(Decided {
            kind: class.kind,
            locks: class.locks,
            claims,
        })
    }

    async fn classify_body<'h>(
        &self,
        pending: PendingBody<'h>,
        body: &mut ClientBody,
    ) -> Result<RequestClass<'h>, Refusal> {
        let ClientBody::Incoming(incoming) = body else {
            return Err(Refusal::unclassified("the body was read before"));
        };
        let length = hyper::body::Body::size_hint(incoming).exact();
        let bytes_max = PendingBody::BYTES_MAX as u64;
        if self.listening.config.mode == Mode::Observe && length.is_none_or(|it| it > bytes_max) {
            // Observing must not refuse: what cannot be taken back whole is not taken.
            return Err(Refusal::unclassified(
                "the body is too long to be classified",
            ));
        }
        let incoming = match std::mem::replace(body, ClientBody::Held(Bytes::new().into())) {
            ClientBody::Incoming(incoming) => incoming,
            ClientBody::Held(_) => return Err(Refusal::unclassified("the body was read before")),
        };
        let limits = BodyLimits {
            bytes_max,
            ..self.listening.body_limits()
        };
        let spool = self.hold(incoming, limits).await?;
        let bytes = spool.read_whole().await.map_err(cannot_hold)?;
        let class = self.listening.rules().classify_body(pending, &bytes);
        *body = ClientBody::Held(bytes.into());
        class
    }

    async fn signed_claims(
        &self,
        class: &RequestClass<'_>,
        asked: &mut Asked,
        deadline: Instant,
    ) -> Result<Vec<Claim>, Refusal> {
        let mut claims: Vec<Claim> = Vec::with_capacity(class.tickets.len());
        for text in &class.tickets {
            let ticket: Arc<Ticket> = self.listening.tickets.verify(text, deadline).await?;
            let lock = ticket.lock.clone();
            claims.push(Claim {
                lock,
                token: ticket.token,
                unsigned: false,
            });
            asked.tickets.push(ticket);
        }
        claims.sort_unstable_by(|a, b| a.lock.cmp(&b.lock));
        match claims.windows(2).find(|pair| pair[0].lock == pair[1].lock) {
            None => Ok(claims),
            Some(pair) => Err(Refusal::invalid("two tickets are given for one lock")
                .for_lock(pair[0].lock.clone())),
        }
    }
}

/// A bare integer is the token of the one lock that the request needs.
fn unsigned_claims(class: &RequestClass<'_>) -> Result<Vec<Claim>, Refusal> {
    let (text, lock) = match (class.tickets.as_slice(), class.locks.as_slice()) {
        // Where no rule names a lock, an integer says nothing.
        ([], _) | (_, []) => return Ok(vec![]),
        ([text], [lock]) => (*text, lock),
        ([_], _) => {
            return Err(Refusal::invalid(
                "this request needs several locks: a bare token does not say which one it is for",
            ));
        }
        (_, _) => return Err(Refusal::invalid("more than one bare token is given")),
    };
    let token: Token = text.parse().map_err(|_| {
        // The text is not repeated: it may be a signed ticket, which is a credential.
        Refusal::invalid("this listener takes bare tokens: a positive integer below 2^63 is one")
            .for_lock(lock.clone())
    })?;
    Ok(vec![Claim {
        lock: lock.clone(),
        token,
        unsigned: true,
    }])
}
