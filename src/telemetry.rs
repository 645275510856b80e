//! Logging set-up, and the name of every metric in one place.
//!
//! Names follow Prometheus's practice: a prefix, the base unit last, `_total` for counters.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Environment variable that chooses what is logged: `info`, `ringfence=debug`.
pub const LOG_FILTER_ENV: &str = "RINGFENCE_LOG";

/// Logs to stderr, from now on: stdout belongs to the commands' own output. Warnings and errors
/// unless [`LOG_FILTER_ENV`] says otherwise. A second call changes nothing.
pub fn log_to_stderr() {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::WARN.into())
        .with_env_var(LOG_FILTER_ENV)
        .from_env_lossy();
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}
