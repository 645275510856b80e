//! One lock's record as it is on disk. Plain data and pure functions.
//!
//! Invariant: bytes that this module did not write are never taken for a record: a checksum over
//! the lock's name and the record tells a torn or misplaced one.

use std::time::Duration;

use crate::gate::Recovered;

/// What the store keeps about a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored {
    /// The lowest admissible token.
    pub floor: u64,
    /// The highest token that has been raised to; 0 for none.
    pub watermark: u64,
    /// Nothing below the floor was in flight or in doubt when this was written.
    pub drained: bool,
    /// The run that may have writes in flight under it; `None` once its gate was idle.
    pub dirty_run: Option<u64>,
    /// How long the backends of these writes may take: the longest `in_doubt_hold` of the listeners
    /// that forwarded them.
    pub hold: Duration,
    /// Its tokens come from another lock service.
    pub unsigned: bool,
    /// The run that raised it: its floor was lockd's word then, or above.
    pub run: u64,
    /// The grant whose seal raised it to the watermark, as [`name_hash`]; 0: none, or not known.
    pub sealed_for: u64,
}

/// Bytes that are no record of this lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Torn;

const VERSION: u8 = 3;
const FLAG_DRAINED: u8 = 1;
const FLAG_UNSIGNED: u8 = 2;
const FIELDS_BYTES: usize = 2 + 8 + 8 + 8 + 4 + 8 + 8;
/// Length of a record, in bytes.
pub const RECORD_BYTES: usize = FIELDS_BYTES + 4;

impl Stored {
    /// What a gate starts from. `older_run`: the record's mark belongs to an earlier run and the
    /// hold since this run's start is not over.
    pub fn recover(&self, older_run: bool) -> Recovered {
        let in_doubt = match (older_run, self.drained) {
            (false, _) => vec![],
            // The raise was not drained: what is older than the floor may still be applied, and so
            // may what the new token's holder sent just before the crash. One doubt below the floor
            // keeps the lock closed to everybody.
            (true, false) => vec![self.floor.saturating_sub(1)],
            // A close admits nobody at its watermark, and everything older is drained.
            (true, true) if self.floor > self.watermark => vec![],
            (true, true) => vec![self.watermark],
        };
        Recovered {
            floor: self.floor,
            watermark: self.watermark,
            in_doubt,
        }
    }

    pub(super) fn encode(&self, lock: &str) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let drained = if self.drained { FLAG_DRAINED } else { 0 };
        let unsigned = if self.unsigned { FLAG_UNSIGNED } else { 0 };
        let hold_ms = u32::try_from(self.hold.as_millis()).unwrap_or(u32::MAX);
        bytes[0] = VERSION;
        bytes[1] = drained | unsigned;
        bytes[2..10].copy_from_slice(&self.floor.to_le_bytes());
        bytes[10..18].copy_from_slice(&self.watermark.to_le_bytes());
        // Runs are counted from 1.
        bytes[18..26].copy_from_slice(&self.dirty_run.unwrap_or(0).to_le_bytes());
        bytes[26..30].copy_from_slice(&hold_ms.to_le_bytes());
        bytes[30..38].copy_from_slice(&self.run.to_le_bytes());
        bytes[38..46].copy_from_slice(&self.sealed_for.to_le_bytes());
        let sum = checksum(lock.as_bytes(), &bytes[..FIELDS_BYTES]);
        bytes[FIELDS_BYTES..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(super) fn decode(lock: &str, bytes: &[u8]) -> Result<Stored, Torn> {
        let bytes: &[u8; RECORD_BYTES] = bytes.try_into().map_err(|_| Torn)?;
        let number = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(field)
        };
        let mut hold = [0; 4];
        hold.copy_from_slice(&bytes[26..30]);
        let sum = checksum(lock.as_bytes(), &bytes[..FIELDS_BYTES]);
        let dirty_run = number(18);
        let stored = Stored {
            floor: number(2),
            watermark: number(10),
            drained: bytes[1] & FLAG_DRAINED != 0,
            dirty_run: (dirty_run != 0).then_some(dirty_run),
            hold: Duration::from_millis(u32::from_le_bytes(hold).into()),
            unsigned: bytes[1] & FLAG_UNSIGNED != 0,
            run: number(30),
            sealed_for: number(38),
        };
        let sound = bytes[0] == VERSION
            && bytes[FIELDS_BYTES..] == sum.to_le_bytes()
            && stored.watermark <= stored.floor;
        if sound { Ok(stored) } else { Err(Torn) }
    }
}

/// What stands for a grant's name; never 0. Two names that are given out share it by a chance of
/// 2^-64: they hold session ids, which are random. FNV-1a, 64 bits.
pub fn name_hash(grant: &str) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in grant.as_bytes() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash.max(1)
}

/// FNV-1a: against torn writes and misplaced pages, not against an attacker.
fn checksum(lock: &[u8], fields: &[u8]) -> u32 {
    let mut sum: u32 = 0x811c_9dc5;
    for byte in lock.iter().chain(fields) {
        sum = (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::{RECORD_BYTES, Stored, Torn, name_hash};
    use std::time::Duration;

    fn stored() -> Stored {
        Stored {
            floor: 8,
            watermark: 8,
            drained: true,
            dirty_run: Some(3),
            hold: Duration::from_secs(30),
            unsigned: false,
            run: 3,
            sealed_for: name_hash("s/1"),
        }
    }

    #[test]
    fn a_record_is_read_back_as_it_was_written() {
        let others = Stored {
            drained: false,
            dirty_run: None,
            unsigned: true,
            floor: 9,
            sealed_for: 0,
            ..stored()
        };
        for record in [stored(), others] {
            assert_eq!(
                Stored::decode("orders", &record.encode("orders")),
                Ok(record)
            );
        }
    }

    #[test]
    fn a_changed_cut_or_misplaced_record_is_torn() {
        let bytes = stored().encode("orders");
        for at in 0..RECORD_BYTES {
            let mut changed = bytes;
            changed[at] ^= 1;
            assert_eq!(Stored::decode("orders", &changed), Err(Torn), "byte {at}");
            assert_eq!(
                Stored::decode("orders", &bytes[..at]),
                Err(Torn),
                "cut at {at}"
            );
        }
        assert_eq!(Stored::decode("order", &bytes), Err(Torn));
    }

    #[test]
    fn only_an_older_run_leaves_doubts() {
        assert!(stored().recover(false).in_doubt.is_empty());
        assert_eq!(stored().recover(true).in_doubt, [8]);
        assert_eq!(
            Stored {
                drained: false,
                ..stored()
            }
            .recover(true)
            .in_doubt,
            [7]
        );
        assert!(
            Stored {
                floor: 9,
                ..stored()
            }
            .recover(true)
            .in_doubt
            .is_empty()
        );
        let closing = Stored {
            floor: 9,
            drained: false,
            ..stored()
        };
        assert_eq!(closing.recover(true).in_doubt, [8]);
    }
}
