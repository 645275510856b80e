//! The disk alone: what a write that waits for it takes at the pace of the open loop.

use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use super::stats::quantile;

/// One page, as the stores write at least.
const PAGE: [u8; 4096] = [1; 4096];

/// Writes a page and syncs it, `rate` times a second, each from the time at which it is due. The
/// median and the 99th percentile of the time until it was on the disk, in milliseconds.
pub fn sync_alone(dir: &Path, rate: u32, period: Duration) -> (f64, f64) {
    let mut file = std::fs::File::create(dir.join("synced")).expect("a file beside the servers'");
    let gap = Duration::from_secs(1) / rate;
    let count = (period.as_secs_f64() / gap.as_secs_f64()) as u32;
    let started = Instant::now();
    let mut latencies_ms = Vec::new();
    for n in 0..count {
        let due = started + gap * n;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // Within a file that has grown already, as a log that is written ahead of.
        let page = u64::from(n % 1024) * PAGE.len() as u64;
        file.seek(SeekFrom::Start(page)).expect("a place in a file");
        file.write_all(&PAGE).expect("room on the disk");
        file.sync_data().expect("a disk that syncs");
        latencies_ms.push(due.elapsed().as_secs_f64() * 1e3);
    }
    (quantile(&latencies_ms, 0.5), quantile(&latencies_ms, 0.99))
}
