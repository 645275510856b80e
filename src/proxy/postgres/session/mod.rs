//! One client and its backend connection.

use std::sync::Arc;

use super::Listener;
use crate::proxy::accept::Visit;

/// Serves one client until either side ends.
pub(super) async fn serve(listener: Arc<Listener>, visit: Visit) {
    drop((listener, visit));
}
