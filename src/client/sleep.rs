//! Sleeping until a point of CLOCK_BOOTTIME.

use std::time::Duration;

use crate::clock::{Instant, boottime};

/// The longest nap. tokio's timers run on CLOCK_MONOTONIC, which stands still while the machine is
/// suspended (clock_gettime(2)); a deadline that passed meanwhile is noticed this late at most.
const NAP_MAX: Duration = Duration::from_millis(200);

/// Sleeps until CLOCK_BOOTTIME reads `at` or later.
pub async fn sleep_until(at: Instant) {
    loop {
        let left = at.since(boottime());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(NAP_MAX)).await;
    }
}
