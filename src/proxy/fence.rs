//! The fence service: seals and closes from outside, and a look at the watermarks.
//!
//! Authority is a ticket or an order that lockd signed, never a bare integer. A seal answers when
//! nothing older can be applied through this proxy any more.

pub(in crate::proxy) mod status;

use std::time::Duration;

use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::gates::{Claim, Gates};
use super::tickets::{Authority, Tickets};
use super::watermarks::LoadError;
use crate::gate;
use crate::lock_name::{LockName, LockPattern};
use crate::proto::fence_service_server::{FenceService, FenceServiceServer};
use crate::proto::{
    CloseRequest, CloseResponse, IdentityRequest, IdentityResponse, ListWatermarksRequest,
    ListWatermarksResponse, SealRequest, SealResponse, WatermarkRequest, WatermarkResponse,
};
use crate::protocol::Refusal;
use crate::ticket::Action;
use std::sync::Arc;

/// How long a seal waits where the request does not say, and at most.
const WAIT_DEFAULT: Duration = Duration::from_secs(5);
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Most watermarks of one listing, and where the request does not say.
const LIST_MAX: usize = 1000;
const LIST_DEFAULT: usize = 100;

/// The service.
#[derive(Clone)]
pub struct Fence {
    instance: String,
    /// See [`Start::process`](super::watermarks::Start::process).
    process: String,
    gates: Gates,
    tickets: Arc<Tickets>,
    /// Locks that a listener in observe mode names: nothing is enforced there.
    observed: Arc<[LockPattern]>,
}

impl Fence {
    /// A service over these gates, of this instance in this process.
    pub fn new(
        (instance, process): (String, String),
        gates: Gates,
        tickets: Arc<Tickets>,
        observed: Vec<LockPattern>,
    ) -> Fence {
        Fence {
            instance,
            process,
            gates,
            tickets,
            observed: observed.into(),
        }
    }

    /// The service as tonic routes it.
    pub fn server(self) -> FenceServiceServer<Fence> {
        FenceServiceServer::new(self)
    }

    /// What is to be settled, and for which grant.
    async fn claim(
        &self,
        authority: &str,
        action: Action,
        deadline: Instant,
    ) -> Result<(Claim, String), Status> {
        let authority = self.tickets.verify_authority(authority, deadline).await;
        let (lock, token, grant) = match authority.map_err(|refusal| status::of(&refusal))? {
            Authority::Ticket(ticket) => (ticket.lock.clone(), ticket.token, String::new()),
            Authority::Order(order) if order.action == action => {
                (order.lock, order.token, order.grant)
            }
            Authority::Order(order) => {
                let refusal = Refusal::invalid("the order is for another action");
                return Err(status::of(&refusal.for_lock(order.lock)));
            }
        };
        if self.observed.iter().any(|pattern| pattern.matches(&lock)) {
            let detail = "a listener in observe mode guards this lock: it enforces nothing";
            let refusal = Refusal::busy(detail, WAIT_DEFAULT)
                .for_lock(lock)
                .with_token(token);
            return Err(status::of(&refusal));
        }
        let claim = Claim {
            lock,
            token,
            unsigned: false,
        };
        Ok((claim, grant))
    }
}

impl Fence {
    fn answer(&self, lock: &LockName, status: &gate::Status, held: Duration) -> WatermarkResponse {
        let held_ms = u64::try_from(held.as_millis()).unwrap_or(u64::MAX);
        WatermarkResponse {
            lock: lock.to_string(),
            watermark: status.watermark,
            floor: status.floor,
            settled: status.settled,
            in_flight: status.in_flight,
            in_doubt: status.in_doubt,
            in_doubt_for_ms: if status.in_doubt > 0 { held_ms } else { 0 },
            waiting: status.waiting,
            instance: self.instance.clone(),
            process: self.process.clone(),
        }
    }
}

#[tonic::async_trait]
impl FenceService for Fence {
    async fn seal(&self, request: Request<SealRequest>) -> Result<Response<SealResponse>, Status> {
        let SealRequest { authority, wait_ms } = request.into_inner();
        let deadline = deadline(wait_ms);
        let (claim, grant) = self.claim(&authority, Action::Seal, deadline).await?;
        let sealed = self.gates.seal(&claim, &grant, deadline).await;
        let was_there = sealed.map_err(|refusal| status::of(&refusal))?;
        Ok(Response::new(SealResponse {
            instance: self.instance.clone(),
            lock: claim.lock.to_string(),
            token: claim.token.get(),
            process: self.process.clone(),
            was_there,
        }))
    }

    async fn close(
        &self,
        request: Request<CloseRequest>,
    ) -> Result<Response<CloseResponse>, Status> {
        let CloseRequest { authority, wait_ms } = request.into_inner();
        let deadline = deadline(wait_ms);
        let (claim, _) = self.claim(&authority, Action::Close, deadline).await?;
        let floor = self.gates.close(&claim, deadline).await;
        Ok(Response::new(CloseResponse {
            instance: self.instance.clone(),
            lock: claim.lock.to_string(),
            floor: floor.map_err(|refusal| status::of(&refusal))?,
            process: self.process.clone(),
        }))
    }

    async fn identity(
        &self,
        _: Request<IdentityRequest>,
    ) -> Result<Response<IdentityResponse>, Status> {
        Ok(Response::new(IdentityResponse {
            instance: self.instance.clone(),
            process: self.process.clone(),
        }))
    }

    async fn watermark(
        &self,
        request: Request<WatermarkRequest>,
    ) -> Result<Response<WatermarkResponse>, Status> {
        let lock = LockName::new(&request.into_inner().lock)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let (gates, name) = (self.gates.clone(), lock.clone());
        match blocking(move || gates.look(&name)).await? {
            Some((status, held)) => Ok(Response::new(self.answer(&lock, &status, held))),
            None => Err(Status::not_found(format!(
                "no watermark of `{lock}` is known here"
            ))),
        }
    }

    async fn list_watermarks(
        &self,
        request: Request<ListWatermarksRequest>,
    ) -> Result<Response<ListWatermarksResponse>, Status> {
        let ListWatermarksRequest {
            prefix,
            limit,
            after,
        } = request.into_inner();
        let limit = match usize::try_from(limit).unwrap_or(LIST_MAX) {
            0 => LIST_DEFAULT,
            limit => limit.min(LIST_MAX),
        };
        let gates = self.gates.clone();
        let rows = blocking(move || gates.list(&prefix, &after, limit)).await?;
        let next = match rows.last() {
            Some((lock, _, _)) if rows.len() == limit => lock.to_string(),
            _ => String::new(),
        };
        let watermarks = rows
            .iter()
            .map(|(lock, status, held)| self.answer(lock, status, *held));
        Ok(Response::new(ListWatermarksResponse {
            watermarks: watermarks.collect(),
            next,
        }))
    }
}

fn deadline(wait_ms: u64) -> Instant {
    let wait = match wait_ms {
        0 => WAIT_DEFAULT,
        wait_ms => Duration::from_millis(wait_ms).min(WAIT_MAX),
    };
    Instant::now() + wait
}

async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(read).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Status::unavailable(error.to_string())),
        Err(_) => Err(Status::internal("reading watermarks was cut off")),
    }
}
