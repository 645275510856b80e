//! The admin port of a shell, as a part that is started and stopped.

use std::net::SocketAddr;
use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::service::Routes;

use crate::admin::{self, Pages, Readiness};

use super::exit::Failure;

/// Binds a listener, or says which part could not have which address.
pub(super) async fn bind(part: &str, address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address)
        .await
        .map_err(|error| Failure::because(format!("{part}: cannot listen on {address}"), error))
}

/// Makes the recorder that every part counts into. Once per process.
pub(super) fn install_metrics() -> Result<PrometheusHandle, Failure> {
    admin::metrics::install().map_err(|error| Failure::because("metrics", error))
}

/// A running admin port.
#[derive(Debug)]
pub(super) struct AdminPort {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl AdminPort {
    /// Serves the routes and pages.
    pub(super) fn start(
        listener: TcpListener,
        grpc: Routes,
        metrics: PrometheusHandle,
        readiness: Arc<dyn Readiness>,
    ) -> Result<AdminPort, Failure> {
        let address = listener
            .local_addr()
            .map_err(|error| Failure::because("admin port", error))?;
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(admin::serve(
            listener,
            grpc,
            Pages::new(metrics, readiness),
            async {
                // The sender's end is a stop too.
                let _ = stopped.await;
            },
        ));
        Ok(AdminPort {
            address,
            stop,
            server,
        })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it.
    pub(super) async fn stop(self) {
        drop(self.stop);
        if let Ok(Err(error)) = self.server.await {
            tracing::warn!(%error, "the admin port ended badly");
        }
    }
}
