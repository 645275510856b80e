//! Time as an argument. The pure cores take a `now` and never read a clock; the shells read it
//! here.

use std::time::Duration;

/// A point in time in whole milliseconds since an arbitrary start. Only differences mean anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The point this many milliseconds after the arbitrary start.
    pub const fn from_millis(millis: u64) -> Instant {
        Instant(millis)
    }

    /// Milliseconds since the arbitrary start.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(millis))
    }
}

/// Reads CLOCK_BOOTTIME, which goes on while the machine is suspended (clock_gettime(2)): a lease
/// goes on ending then, so a holder's deadline must be measured on it too.
pub fn boottime() -> Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let millis = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
    Instant(millis)
}

/// Longest duration that is read: more than anybody waits, and room for sums.
const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Reads `250ms`, `15s`, `5m`, `1h`, `2d`, or `0`: whole numbers of one unit, up to a century.
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let unit_at = text.find(|char: char| !char.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        _ => return None,
    };
    let millis = number.parse::<u64>().ok()?.checked_mul(millis)?;
    Some(Duration::from_millis(millis)).filter(|it| *it <= DURATION_MAX)
}

/// Milliseconds since the Unix epoch, for people to read. Nothing is decided by it but where the
/// tokens of a store begin that an operator makes in the place of a lost one.
pub fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
