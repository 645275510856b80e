//! Fence keys: what etcd itself knows about tokens, so that the check is part of each write.
//!
//! | key | value |
//! |---|---|
//! | `<prefix>floor/<lock>` | the lock's floor: 19 digits, after `u` for unsigned tokens |
//! | `<prefix>ready` | anything: the fence keys of this etcd were not lost |
//! | `<prefix>lease/<id>/<mark>` | anything: who revokes this lease has begun to |
//!
//! **A write under token t takes effect only while the floor is exactly t.** Not "at most t": a
//! floor below t would mean that an older holder is not shut out yet, because etcd was put back to
//! an older state or because the raise to t was never committed. Presenting t raises the floor to t
//! first, so for the holder the two are the same, and a close (floor t + 1) refuses t itself.
//!
//! Floors only rise, and each rise is a transaction that compares what it replaces. The digits are
//! of a fixed width: as bytes they compare as the numbers do. A key without a value is closed,
//! never zero: in etcd a comparison of the value of a missing key fails, whatever it asks for.
//!
//! Fence keys carry no lease: nothing but a deletion past the proxies ends them, or of a mark the
//! one who made it.
//!
//! **A lease that is being revoked takes no guarded key.** No transaction can hold the end of a
//! lease, so who revokes one marks it first; a guarded key is attached under the comparison that
//! there is no mark. What is attached is then there before the mark, and is found by who made it.

use super::key::{KeyRange, prefix_end};
use super::wire::{self, Malformed};
use crate::lock_name::LockName;
use crate::protocol::pattern::InvalidPattern;
use crate::token::Token;

/// Where fence keys are unless the configuration says otherwise.
pub const FENCE_PREFIX_DEFAULT: &str = "_ringfence/";
/// Longest prefix, in bytes.
const PREFIX_BYTES_MAX: usize = 128;
/// Digits of a floor: enough for every number below 2^63.
const DIGITS: usize = 19;
const UNSIGNED_MARK: u8 = b'u';

/// The place of the fence keys in one etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FenceKeys {
    prefix: Box<str>,
    end: Box<[u8]>,
}

/// A lock's floor as etcd is to have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fence {
    /// The lock.
    pub lock: LockName,
    /// The lowest admissible token.
    pub floor: u64,
    /// Its tokens come from another lock service.
    pub unsigned: bool,
}

/// What a fence key held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Nothing: the lock is closed until its floor is known.
    Missing,
    /// A value that no proxy wrote.
    Damaged,
    /// A floor.
    Floor {
        /// The lowest admissible token.
        floor: u64,
        /// Its tokens come from another lock service.
        unsigned: bool,
    },
}

impl Default for FenceKeys {
    fn default() -> FenceKeys {
        FenceKeys::build(FENCE_PREFIX_DEFAULT)
    }
}

impl FenceKeys {
    /// Fence keys below this prefix, which ends in `/`.
    pub fn new(prefix: &str) -> Result<FenceKeys, InvalidPattern> {
        let reason = match prefix.strip_suffix('/') {
            None | Some("") => "it is no name with a `/` behind it",
            Some(_) if prefix.len() > PREFIX_BYTES_MAX => "it is longer than 128 bytes",
            Some(name) if name.chars().any(char::is_control) => "it has a control character",
            Some(_) => return Ok(FenceKeys::build(prefix)),
        };
        Err(InvalidPattern {
            what: "fence_prefix",
            text: prefix.to_owned(),
            reason: reason.to_owned(),
        })
    }

    fn build(prefix: &str) -> FenceKeys {
        FenceKeys {
            prefix: prefix.into(),
            // It ends in `/`, which has a next byte.
            end: prefix_end(prefix.as_bytes()).unwrap_or_default().into(),
        }
    }

    /// The prefix.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether the range holds a place for a fence key.
    pub fn meets(&self, range: KeyRange<'_>) -> bool {
        range.meets(self.prefix.as_bytes(), Some(&self.end))
    }

    /// Whether this is a key of ours.
    pub fn holds(&self, key: &[u8]) -> bool {
        key.starts_with(self.prefix.as_bytes())
    }

    /// The range without ours: what lies below and above.
    pub fn around<'a>(
        &'a self,
        range: KeyRange<'a>,
    ) -> (Option<KeyRange<'a>>, Option<KeyRange<'a>>) {
        range.around(self.prefix.as_bytes(), &self.end)
    }

    /// A range in which no key can be: where a request asks for nothing but fence keys.
    pub fn nowhere(&self) -> (&[u8], &[u8]) {
        (self.prefix.as_bytes(), self.prefix.as_bytes())
    }

    /// The key of a lock's floor.
    pub fn floor_key(&self, lock: &LockName) -> Vec<u8> {
        format!("{}floor/{lock}", self.prefix).into_bytes()
    }

    /// The key that says that fence keys were not lost.
    pub fn ready_key(&self) -> Vec<u8> {
        format!("{}ready", self.prefix).into_bytes()
    }

    /// A key of one who revokes a lease. `mark`: nobody else's.
    pub fn closing_key(&self, lease: u64, mark: &str) -> Vec<u8> {
        format!("{}lease/{lease:016x}/{mark}", self.prefix).into_bytes()
    }

    /// The comparison that holds only while nobody revokes the lease.
    pub(super) fn compare_lease(&self, lease: u64) -> Vec<u8> {
        let below = self.closing_key(lease, "");
        // `EQUAL` and the revision 0 are what is left out: no key of the range was created.
        let mut compare = vec![];
        wire::put_number(&mut compare, 2, TARGET_CREATE);
        wire::put_bytes(&mut compare, 3, &below);
        let end = prefix_end(&below).unwrap_or_default();
        wire::put_bytes(&mut compare, RANGE_END, &end);
        compare
    }

    /// The comparison that holds only while the floor is this one.
    pub(super) fn compare(&self, fence: &Fence) -> Vec<u8> {
        // `EQUAL` is 0, as what is left out.
        let mut compare = vec![];
        wire::put_number(&mut compare, 2, TARGET_VALUE);
        wire::put_bytes(&mut compare, 3, &self.floor_key(&fence.lock));
        wire::put_bytes(&mut compare, 7, &value(fence));
        compare
    }

    /// The request that reads a lock's floor.
    pub(super) fn read(&self, lock: &LockName) -> Vec<u8> {
        let mut range = vec![];
        wire::put_bytes(&mut range, 1, &self.floor_key(lock));
        range
    }
}

/// `Compare.CompareTarget.CREATE`.
const TARGET_CREATE: u64 = 1;
/// `Compare.CompareTarget.VALUE`.
const TARGET_VALUE: u64 = 3;
/// `Compare.range_end`.
const RANGE_END: u32 = 64;

/// What a floor is written as.
pub fn value(fence: &Fence) -> Vec<u8> {
    let mark = if fence.unsigned { "u" } else { "" };
    format!("{mark}{:0DIGITS$}", fence.floor).into_bytes()
}

impl Seen {
    /// What a value says.
    pub fn of_value(value: &[u8]) -> Seen {
        let (unsigned, digits) = match value {
            [UNSIGNED_MARK, digits @ ..] => (true, digits),
            digits => (false, digits),
        };
        let plain = digits.len() == DIGITS && digits.iter().all(u8::is_ascii_digit);
        let floor = std::str::from_utf8(digits)
            .ok()
            .and_then(|text| text.parse().ok());
        match floor {
            // A floor of 2^63 is that of a lock whose last token was closed.
            Some(floor) if plain && (1..=Token::MAX.get() + 1).contains(&floor) => {
                Seen::Floor { floor, unsigned }
            }
            _ => Seen::Damaged,
        }
    }

    /// What a `RangeResponse` of one fence key says.
    pub fn of_range(response: &[u8]) -> Result<Seen, Malformed> {
        let mut seen = Seen::Missing;
        for field in wire::fields(response) {
            let field = field?;
            if field.number == 2 {
                seen = Seen::of_value(wire::bytes_of(field.value.bytes(), 5)?);
            }
        }
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::{Fence, FenceKeys, Seen, value};
    use crate::lock_name::LockName;
    use crate::token::Token;

    fn fence(floor: u64, unsigned: bool) -> Fence {
        Fence {
            lock: LockName::new("a/b").unwrap(),
            floor,
            unsigned,
        }
    }

    #[test]
    fn floors_are_read_back_and_compare_as_numbers() {
        let floors = [
            1,
            9,
            10,
            99,
            1 << 40,
            Token::MAX.get(),
            Token::MAX.get() + 1,
        ];
        for unsigned in [false, true] {
            let values: Vec<_> = floors
                .iter()
                .map(|it| value(&fence(*it, unsigned)))
                .collect();
            assert!(values.is_sorted());
            for (floor, value) in floors.into_iter().zip(values) {
                assert_eq!(Seen::of_value(&value), Seen::Floor { floor, unsigned });
            }
        }
    }

    #[test]
    fn what_no_proxy_wrote_is_damaged_never_zero() {
        for bad in [
            "",
            "0",
            "7",
            "u7",
            "0000000000000000000",
            "x000000000000000001",
            "+000000000000000001",
        ] {
            assert_eq!(Seen::of_value(bad.as_bytes()), Seen::Damaged, "{bad:?}");
        }
        assert_eq!(Seen::of_range(&[]), Ok(Seen::Missing));
    }

    #[test]
    fn a_prefix_is_a_name_with_a_slash() {
        for bad in ["", "/", "a", "a\n/", &format!("{}/", "x".repeat(128))] {
            assert!(FenceKeys::new(bad).is_err(), "{bad:?} was taken");
        }
        let keys = FenceKeys::new("x/y/").unwrap();
        assert!(keys.holds(&keys.floor_key(&fence(1, false).lock)));
        assert!(keys.holds(&keys.ready_key()));
    }
}
