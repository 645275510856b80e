//! This bench's own program as the ringfence proxy: a process of its own, with one worker.

use std::path::Path;

use ringfence::audit::{AuditWriter, Limits};
use ringfence::config::ProxyConfig;
use ringfence::proxy::{Options, start};

/// The argument before the configuration's path that makes this program the proxy.
pub const ARGUMENT: &str = "--serve-ringfence";

/// Serves until it is killed.
pub fn serve(config: &Path) {
    // Carries the background tasks; requests are served by the proxy's own thread.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let config = ProxyConfig::load(config).expect("a configuration");
        let dir = config.data_dir.join("audit");
        let (audit, _thread) = AuditWriter::open(&dir, Limits::default()).expect("an audit");
        let options = Options {
            init: true,
            admin: config.admin.listen,
            audit,
            threads: Some(1),
        };
        let _proxy = start(config, options).expect("a proxy");
        std::future::pending::<()>().await;
    });
}
