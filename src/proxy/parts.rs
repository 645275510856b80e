//! What the listeners of one proxy share.

use std::sync::Arc;

use super::gates::Gates;
use super::shadows::Shadows;
use super::tickets::Tickets;
use super::watermarks::Watermarks;
use crate::audit::AuditWriter;

/// What every listener is made with. Cheap to clone.
#[derive(Clone)]
pub struct Parts {
    /// The proxy's name.
    pub instance: String,
    /// The gates of all listeners.
    pub gates: Gates,
    /// What verifies tickets.
    pub tickets: Arc<Tickets>,
    /// The store of the watermarks, where sessions are recorded.
    pub watermarks: Watermarks,
    /// Where refusals are recorded.
    pub audit: AuditWriter,
    /// The gates of observe mode.
    pub shadows: Arc<Shadows>,
}
