//! `ringfence lockd`: the lock service over its store, with its admin port.

mod open;
mod put_back;
mod seen;

use std::net::SocketAddr;
use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;
use tonic::service::Routes;

use crate::admin::Readiness;
use crate::cli::LockdArgs;
use crate::config::LockdConfig;
use crate::lockd::{Health, Lockd, Settings, SigningKeys};

use super::admin_port::{AdminPort, bind, install_metrics};
use super::exit::{self, Failure};
use super::print_line;
use super::signals::Signals;

/// Runs until a signal.
pub async fn run(args: LockdArgs) -> Result<u8, Failure> {
    let mut signals =
        Signals::take_over().map_err(|error| Failure::because("cannot handle signals", error))?;
    let config = match &args.config {
        None => LockdConfig::default(),
        Some(file) => LockdConfig::load(file)
            .map_err(|errors| Failure::new(exit::USAGE, errors.to_string()))?,
    };
    let mut service = tokio::select! {
        service = LockService::start(&config, args.init, install_metrics()?) => service?,
        _ = signals.next() => return Ok(exit::OK),
    };
    print_line(&format!("lockd: gRPC http://{}", service.address()))?;
    print_line(&format!("lockd: admin http://{}", service.admin.address()))?;
    tokio::select! {
        failed = service.lockd.failed() => {
            let error = failed.err().map(|error| error.to_string());
            return Err(Failure::because("lockd", error.unwrap_or("its server has ended".into())));
        }
        _ = signals.next() => {}
    }
    service.stop().await;
    Ok(exit::OK)
}

/// A running lock service.
pub(super) struct LockService {
    lockd: Lockd,
    admin: AdminPort,
    /// Keeps what is seen of the store.
    follower: seen::Follower,
}

impl LockService {
    /// Opens the store and serves, once the store's whole state was read.
    pub(super) async fn start(
        config: &LockdConfig,
        init: bool,
        metrics: PrometheusHandle,
    ) -> Result<LockService, Failure> {
        let listener = bind("lockd", config.listen).await?;
        let admin = bind("lockd admin", config.admin).await?;
        // Before its keys are made: a store that is gone is told by keys that are there.
        let (store, follower) = open::open_store(config, init).await?;
        let keys = SigningKeys::load_or_create(&config.keys_dir())
            .map_err(|error| Failure::because("signing keys", error))?;
        let lockd = Lockd::start(Settings::from(config), store, Arc::new(keys), listener)
            .map_err(|error| Failure::because("lockd", error))?;
        let health = Arc::new(lockd.health());
        let admin = AdminPort::start(admin, Routes::default(), metrics, health)?;
        lockd.synced().await;
        Ok(LockService {
            lockd,
            admin,
            follower,
        })
    }

    /// Where it serves gRPC.
    pub(super) fn address(&self) -> SocketAddr {
        self.lockd.address()
    }

    /// Stops: sessions, grants and places in queues stay in the store.
    pub(super) async fn stop(self) {
        if let Err(error) = self.lockd.shutdown().await {
            tracing::warn!(%error, "lockd ended badly");
        }
        self.admin.stop().await;
        self.follower.stop().await;
    }
}

impl Readiness for Health {
    fn check(&self) -> Result<(), String> {
        Health::check(self)
    }
}
