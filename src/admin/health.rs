//! gRPC health (grpc.health.v1, "GRPC Health Checking Protocol") of a shell, from its readiness: the
//! whole process under the empty name, and each of its services.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{self, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::Readiness;

/// How often a watch looks for a change.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The services of this program begin so.
const OWN_SERVICES: &str = "ringfence.v1.";

/// The service.
pub struct Health {
    readiness: Arc<dyn Readiness>,
}

impl Health {
    /// The service over a shell's readiness.
    pub fn server(readiness: Arc<dyn Readiness>) -> HealthServer<Health> {
        HealthServer::new(Health { readiness })
    }
}

fn answer(readiness: &dyn Readiness) -> HealthCheckResponse {
    let status = match readiness.check() {
        Ok(()) => ServingStatus::Serving,
        Err(_) => ServingStatus::NotServing,
    };
    HealthCheckResponse {
        status: status.into(),
    }
}

/// NOT_FOUND, as the protocol has it, for what is no service of ours.
fn check_name(request: &HealthCheckRequest) -> Result<(), Status> {
    let name = &request.service;
    match name.is_empty() || name.starts_with(OWN_SERVICES) {
        true => Ok(()),
        false => Err(Status::not_found(format!("no service {name:?} is here"))),
    }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        check_name(request.get_ref())?;
        Ok(Response::new(answer(&*self.readiness)))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        check_name(request.get_ref())?;
        let readiness = Arc::clone(&self.readiness);
        let changes = futures::stream::unfold((readiness, None), |(readiness, told)| async move {
            let mut now = answer(&*readiness);
            while told == Some(now.status) {
                tokio::time::sleep(LOOK_EVERY).await;
                now = answer(&*readiness);
            }
            let told = Some(now.status);
            Some((Ok(now), (readiness, told)))
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
