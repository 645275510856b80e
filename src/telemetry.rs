//! Logging set-up, and the name of every metric in one place.
//!
//! Names follow Prometheus's practice: a prefix, the base unit last, `_total` for counters.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Environment variable that chooses what is logged: `info`, `ringfence=debug`.
pub const LOG_FILTER_ENV: &str = "RINGFENCE_LOG";

/// The object store of `dev` calls each upload that is cut an error, and cutting them is our trade.
const LOG_FILTER_DEFAULT: &str = "warn,s3s=off";

/// Counter: refusals, by `listener`, `protocol`, `code` and `mode`, kept in the audit or not.
pub const REFUSALS: &str = "ringfence_refusals_total";
/// Counter: audit records that are in no file, because the queue or the disk was full.
pub const AUDIT_DROPPED: &str = "ringfence_audit_dropped_total";
/// Gauge: writes of the proxy whose outcome is not known and that keep a lock closed.
pub const IN_DOUBT: &str = "ringfence_in_doubt";
/// Counter: backend sessions that the proxy has ended and that are proven gone.
pub const SESSIONS_ENDED: &str = "ringfence_backend_sessions_ended_total";
/// Histogram: seconds of each Acquire, by `outcome`.
pub const ACQUIRE_SECONDS: &str = "ringfence_lockd_acquire_seconds";
/// Histogram: seconds of each round of seal orders to the proxies of a lock.
pub const SEAL_SECONDS: &str = "ringfence_lockd_seal_seconds";
/// Counter: releases, by whether there was such a grant.
pub const RELEASES: &str = "ringfence_lockd_releases_total";
/// Gauge: sessions that lockd has opened or renewed, and that live.
pub const SESSIONS: &str = "ringfence_lockd_sessions";
/// Counter: how often the store's watch started from its whole state.
pub const WATCH_RESETS: &str = "ringfence_lockd_watch_resets_total";

/// Logs to stderr, from now on: stdout belongs to the commands' own output. Warnings and errors
/// unless [`LOG_FILTER_ENV`] says otherwise. A second call changes nothing.
pub fn log_to_stderr() {
    let chosen = std::env::var(LOG_FILTER_ENV);
    let filter = EnvFilter::new(chosen.as_deref().unwrap_or(LOG_FILTER_DEFAULT));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // It would tell a closed stderr by `eprintln`, which panics then.
        .log_internal_errors(false)
        .try_init();
}
