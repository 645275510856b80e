//! Stage 2, classify: what the request is, which locks it needs, and which genuine tickets it
//! carries.

use std::sync::Arc;

use tokio::time::Instant;

use super::read::{BodyLimits, cannot_hold};
use super::{Asked, Session};
use crate::config::{Mode, Trust};
use crate::lock_name::LockName;
use crate::protocol::http::frame::RequestHead;
use crate::protocol::{Classified, Kind, PendingBody, Refusal, RequestClass};
use crate::proxy::claims;
use crate::proxy::gates::Claim;
use crate::proxy::spool::HeldBody;

/// What a request is.
pub struct Decided {
    /// Read or write.
    pub kind: Kind,
    /// The locks that it needs, if it is a write.
    pub locks: Vec<LockName>,
    /// What it presents: sorted by lock, each lock once.
    pub claims: Vec<Claim>,
}

impl Session {
    /// Classifies a request. The body comes back held if it had to be read.
    pub(super) async fn classify(
        &mut self,
        head: &RequestHead,
        held: &mut Option<HeldBody>,
        asked: &mut Asked<'_>,
        deadline: Instant,
    ) -> Result<Decided, Refusal> {
        let listening = Arc::clone(&self.door.listening);
        let class = match listening.rules().classify(&head.head())? {
            Classified::Ready(class) => class,
            Classified::NeedsBody(pending) => self.classify_body(pending, held).await?,
        };
        if class.operation != head.method() {
            asked.operation = Some(class.operation.to_owned());
        }
        let claims = match listening.config.trust {
            Trust::Signed => self.signed_claims(&class, asked, deadline).await?,
            Trust::Unsigned => claims::of_bare(&class.tickets, &class.locks, "request")?,
        };
        Ok(Decided {
            kind: class.kind,
            locks: class.locks,
            claims,
        })
    }

    async fn classify_body<'h>(
        &mut self,
        pending: PendingBody<'h>,
        held: &mut Option<HeldBody>,
    ) -> Result<RequestClass<'h>, Refusal> {
        let bytes_max = PendingBody::BYTES_MAX as u64;
        let listening = Arc::clone(&self.door.listening);
        let is_short = self.body.left().is_some_and(|left| left <= bytes_max);
        if listening.config.mode == Mode::Observe && !is_short {
            // Observing must not refuse: what cannot be taken back whole is not taken.
            return Err(Refusal::unclassified(
                "the body is too long to be classified",
            ));
        }
        let limits = BodyLimits {
            bytes_max,
            ..listening.body_limits()
        };
        let body = self.hold(limits).await?;
        let trailers = body.trailers().to_vec();
        let bytes = body.read_whole().await.map_err(cannot_hold)?;
        let class = listening.rules().classify_body(pending, &bytes);
        *held = Some(HeldBody::from(bytes).with_trailers(trailers));
        class
    }

    async fn signed_claims(
        &mut self,
        class: &RequestClass<'_>,
        asked: &mut Asked<'_>,
        deadline: Instant,
    ) -> Result<Vec<Claim>, Refusal> {
        asked.tickets.reserve_exact(class.tickets.len());
        let tickets = &self.door.listening.tickets;
        for text in &class.tickets {
            let last = &mut self.last_ticket;
            let ticket = tickets.verify_again(last, text, deadline).await?;
            asked.tickets.push(ticket);
        }
        claims::of_tickets(&asked.tickets)
    }
}
