//! What is told of refusals beside the client: the audit, and its counters.

use std::net::SocketAddr;

use super::Listener;
use crate::audit::{self, Excerpt, Record};
use crate::clock;
use crate::config::Mode;
use crate::protocol::Refusal;

/// Records a refusal, or in observe mode what would be one. `holder`: of the ticket that it is
/// about.
pub(super) fn refusal(
    listener: &Listener,
    client: SocketAddr,
    refusal: &Refusal,
    operation: &str,
    holder: Option<&str>,
) {
    listener.audit.record(Record {
        unix_ms: clock::unix_ms(),
        instance: Excerpt::new(&listener.instance),
        listener: Excerpt::new(&listener.config.name),
        protocol: "postgres",
        client,
        code: refusal.code.as_str(),
        lock: refusal.lock.clone(),
        token: refusal.token,
        watermark: refusal.watermark,
        holder: holder.map(Excerpt::new),
        operation: Excerpt::new(operation),
        mode: match listener.config.mode {
            Mode::Enforce => audit::Mode::Enforce,
            Mode::Observe => audit::Mode::Observe,
        },
    });
}
