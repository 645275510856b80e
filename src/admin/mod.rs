//! The admin port: metrics, liveness and readiness over HTTP, on the same port as a shell's gRPC
//! services.
//!
//! A shell hands over its gRPC routes and a [`Readiness`]; HTTP/1.1 and HTTP/2 without TLS are told
//! apart per connection, paths per request. The port is for operators and for ringfence itself:
//! whoever may reach it may read the metrics (network policy decides).
//!
//! Left to others: what the metrics are (`telemetry`), what ready means (each shell).

mod health;
pub mod metrics;
mod pages;

use std::time::Duration;

use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::incoming::{self, BEGIN_MAX, Bounds};

pub use health::Health;
pub use pages::{Pages, Readiness};

/// How long open requests and streams may go on after a shutdown began.
pub const DRAIN_MAX: Duration = Duration::from_secs(5);

/// The connections of an admin port. Operators, monitoring and each lockd that seals here need a
/// few; what is more must leave descriptors to what the process is there for.
const BOUNDS: Bounds = Bounds {
    connections_max: 256,
    begin_max: BEGIN_MAX,
};

/// How long a connection is used. Then its client is told to make another one (GOAWAY), and it ends
/// with what is open on it: one that asks nothing must not keep its place for ever.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(300);

/// The limits on time.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// [`DRAIN_MAX`]
    drain_max: Duration,
    /// [`CONNECTION_AGE_MAX`]
    age_max: Duration,
}

/// Requests and streams at a time on one HTTP/2 connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 1024;

/// How long a silent HTTP/2 connection stays before it is asked for a sign of life, and how long
/// it has for that. A peer that vanished must not hold a stream for ever.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(20);
const KEEPALIVE_WAIT: Duration = Duration::from_secs(10);

/// `grpc` with `/metrics`, `/healthz` and `/readyz` added.
pub fn with_pages(grpc: Routes, pages: Pages) -> Routes {
    let mut router = grpc.into_axum_router();
    for path in pages::PATHS {
        router = router.route_service(path, pages.clone());
    }
    Routes::from(router)
}

/// Serves `grpc` and `pages` on `listener` until `shutdown`, then for at most [`DRAIN_MAX`]: tails
/// and watches never end by themselves.
pub async fn serve(
    listener: TcpListener,
    grpc: Routes,
    pages: Pages,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let times = Times {
        drain_max: DRAIN_MAX,
        age_max: CONNECTION_AGE_MAX,
    };
    serve_within(listener, grpc, pages, shutdown, (BOUNDS, times)).await
}

async fn serve_within(
    listener: TcpListener,
    grpc: Routes,
    pages: Pages,
    shutdown: impl Future<Output = ()>,
    (bounds, times): (Bounds, Times),
) -> Result<(), tonic::transport::Error> {
    let incoming = incoming::stream(listener, bounds);
    let (drain, drained) = tokio::sync::oneshot::channel::<()>();
    let upkeep = metrics::upkeep(pages.metrics().clone());
    let server = Server::builder()
        .accept_http1(true)
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_AFTER))
        .http2_keepalive_timeout(Some(KEEPALIVE_WAIT))
        .max_connection_age(times.age_max)
        .add_routes(with_pages(grpc, pages))
        .serve_with_incoming_shutdown(incoming, async {
            // An error means that the sender is gone, which ends the server just as well.
            let _ = drained.await;
        });
    let deadline = async {
        shutdown.await;
        drop(drain);
        tokio::time::sleep(times.drain_max).await;
    };
    tokio::select! {
        served = server => served,
        () = deadline => Ok(()),
        never = upkeep => match never {},
    }
}

#[cfg(test)]
mod tests;
