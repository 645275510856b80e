//! `ringfence proxy`: the proxy with its audit and its admin port.

use std::net::SocketAddr;

use metrics_exporter_prometheus::PrometheusHandle;
use tonic::service::Routes;

use crate::admin::{self, Readiness};
use crate::audit::{self, AuditThread, AuditWriter};
use crate::cli::ProxyArgs;
use crate::config::{ProxyConfig, TicketSource, WatermarkStore, read_key_file};
use crate::proxy::{Health, Options, Proxy, start};

use super::admin_port::{AdminPort, bind, install_metrics};
use super::exit::{self, Failure};
use super::print_line;
use super::signals::Signals;

/// The audit's folder in `data_dir`.
const AUDIT_FOLDER: &str = "audit";

/// Checks the configuration, or runs until a signal.
pub async fn run(args: ProxyArgs) -> Result<u8, Failure> {
    let config = ProxyConfig::load(&args.config)
        .map_err(|errors| Failure::new(exit::USAGE, errors.to_string()))?;
    // Before anything is made.
    if let TicketSource::Keys(file) = &config.tickets {
        read_key_file(file).map_err(|errors| Failure::new(exit::USAGE, errors.to_string()))?;
    }
    for path in config.files() {
        std::fs::File::open(path).map_err(|error| {
            Failure::new(exit::USAGE, format!("{path:?} cannot be read: {error}"))
        })?;
    }
    for warning in config.warnings() {
        super::complain(format_args!("warning: {warning}"));
    }
    if args.check {
        print_line(&format!("{}: valid", args.config.display()))?;
        return Ok(exit::OK);
    }
    if args.install {
        return install(&config).await;
    }
    let mut signals =
        Signals::take_over().map_err(|error| Failure::because("cannot handle signals", error))?;
    let service = ProxyService::start(config, args.init, install_metrics()?).await?;
    print_line(&format!("proxy: admin http://{}", service.admin.address()))?;
    for (name, address) in service.proxy.listeners() {
        print_line(&format!("proxy: listener {name} {address}"))?;
    }
    signals.next().await;
    service.stop().await;
    Ok(exit::OK)
}

/// Makes the schema of each Postgres listener.
#[cfg(feature = "postgres")]
async fn install(config: &ProxyConfig) -> Result<u8, Failure> {
    if config.watermarks != WatermarkStore::Backend {
        let message = "the configuration keeps no watermarks in a backend (`watermarks.store`): \
                       there is nothing to install";
        return Err(Failure::new(exit::USAGE, message));
    }
    if config.postgres.is_empty() {
        return nothing_to_install();
    }
    for listener in &config.postgres {
        let name = &listener.name;
        let Some(control) = &listener.control else {
            print_line(&format!(
                "{name}: no control role, so nothing is guarded, and nothing kept"
            ))?;
            continue;
        };
        crate::proxy::postgres::fence_store::install(listener)
            .await
            .map_err(|error| Failure::because(format!("listener {name:?}"), error))?;
        let database = &control.database;
        print_line(&format!("{name}: schema ringfence in database {database}"))?;
    }
    Ok(exit::OK)
}

/// No listener keeps anything in its backend that has to be made first.
#[cfg(not(feature = "postgres"))]
async fn install(_: &ProxyConfig) -> Result<u8, Failure> {
    nothing_to_install()
}

fn nothing_to_install() -> Result<u8, Failure> {
    let message = "no listener has protocol = \"postgres\": there is nothing to install";
    Err(Failure::new(exit::USAGE, message.to_owned()))
}

/// A running proxy.
pub(super) struct ProxyService {
    proxy: Proxy,
    admin: AdminPort,
    audit: AuditThread,
}

impl ProxyService {
    /// Opens the watermarks and serves.
    pub(super) async fn start(
        config: ProxyConfig,
        init: bool,
        metrics: PrometheusHandle,
    ) -> Result<ProxyService, Failure> {
        let admin = bind("proxy admin", config.admin.listen).await?;
        let address = admin
            .local_addr()
            .map_err(|error| Failure::because("proxy admin", error))?;
        let limits = audit::Limits {
            queue_records_max: config.audit.queue_records_max,
            file_bytes_max: config.audit.file_bytes_max,
            files_max: config.audit.files_max,
        };
        let (writer, audit) = AuditWriter::open(&config.data_dir.join(AUDIT_FOLDER), limits)
            .map_err(|error| Failure::because("audit", error))?;
        let options = Options {
            init,
            admin: address,
            audit: writer.clone(),
            threads: None,
        };
        let proxy = start(config, options).map_err(|error| Failure::because("proxy", error))?;
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(crate::proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name("ringfence.v1.FenceService")
            .with_service_name("ringfence.v1.AuditService")
            .with_service_name("grpc.health.v1.Health")
            .build_v1()
            .map_err(|error| Failure::because("reflection", error))?;
        let readiness = std::sync::Arc::new(proxy.health());
        let services = Routes::new(proxy.fence().server())
            .add_service(audit::Service::server(writer))
            .add_service(admin::Health::server(readiness.clone()))
            .add_service(reflection);
        let admin = AdminPort::start(admin, services, metrics, readiness)?;
        Ok(ProxyService {
            proxy,
            admin,
            audit,
        })
    }

    /// The admin port.
    pub(super) fn admin_address(&self) -> SocketAddr {
        self.admin.address()
    }

    /// Where a listener listens.
    pub(super) fn listener(&self, name: &str) -> Option<SocketAddr> {
        let mut listeners = self.proxy.listeners().iter();
        listeners
            .find(|(listener, _)| listener == name)
            .map(|(_, address)| *address)
    }

    /// Whether it can serve, or what is missing.
    pub(super) fn health(&self) -> Health {
        self.proxy.health()
    }

    /// Stops: what is in flight ends first.
    pub(super) async fn stop(self) {
        self.proxy.shutdown().await;
        self.admin.stop().await;
        // Last: what was refused until now is written. It blocks for as long as the disk takes.
        let audit = self.audit;
        let _ = tokio::task::spawn_blocking(move || audit.close()).await;
    }
}

impl Readiness for Health {
    fn check(&self) -> Result<(), String> {
        Health::check(self)
    }
}
