//! Logging set-up, and the name of every metric in one place.
//!
//! Names follow Prometheus's practice: a prefix, the base unit last, `_total` for counters.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Environment variable that chooses what is logged: `info`, `ringfence=debug`.
pub const LOG_FILTER_ENV: &str = "RINGFENCE_LOG";

/// The object store of `dev` calls each upload that is cut an error, and cutting them is our trade.
const LOG_FILTER_DEFAULT: &str = "warn,s3s=off";

/// Logs to stderr, from now on: stdout belongs to the commands' own output. Warnings and errors
/// unless [`LOG_FILTER_ENV`] says otherwise. A second call changes nothing.
pub fn log_to_stderr() {
    let chosen = std::env::var(LOG_FILTER_ENV);
    let filter = EnvFilter::new(chosen.as_deref().unwrap_or(LOG_FILTER_DEFAULT));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}
