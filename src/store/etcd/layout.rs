//! Which keys of etcd mean what.
//!
//! Under the configured prefix (`""`: the whole keyspace):
//!
//! | key | value | lease |
//! |---|---|---|
//! | `<prefix><lock>/<lease in hex>` | [`Claim`] as JSON, or anything (foreign) | the session |
//! | `<prefix>\0ringfence/attempt/<lock>/<lease in hex>` | last attempt, 16 digits | the session |
//! | `<prefix>\0ringfence/lockd/<id in hex>` | the mark of a lock service (`mark`), empty | none |
//! | `<prefix>\0ringfence/record/<name>` | a record | none |
//! | `<prefix>\0ringfence/token-generation` | [`super::generation::Generations`] | none |
//!
//! The first row is the layout of etcd's own `client/v3/concurrency` mutex. A lock name has no
//! control character, so nothing under `\0ringfence/` is ever read as a lock.
//!
//! **What is an entry.** A key is cut at its last `/`. It is an entry of the lock before the cut
//! exactly if that is a lock name and the text behind the cut is, in lower-case hexadecimal without
//! leading zeros, the id of the lease that the key itself is attached to. So a key without a lease,
//! one attached to another lease than it names, and `a/zz` are no entries; `a/1/<lease>` is an
//! entry of `a/1` and never one of `a`; and `a/1f` is an entry of `a` if its lease is 0x1f,
//! whatever
//! entries the lock `a/1f` has.
//!
//! Foreign clients see more: the mutex of etcd's Go library waits for *every* key below `<lock>/`
//! that is older than its own, entries of nested locks included. It may therefore wait longer than
//! it must while `a/1` is held, but it never holds `a` while an entry of ours does.

use prost::bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::etcd_proto::mvccpb::KeyValue;
use crate::lock_name::LockName;
use crate::store::SessionId;

/// What an entry of ours holds. Any other value is a foreign one.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The version of this layout; its presence tells ours from foreign values.
    pub ringfence: u8,
    /// See [`crate::store::Entry::attempt`].
    pub attempt: u64,
    /// See [`crate::store::Entry::holder`].
    pub holder: String,
}

/// The keys under one prefix.
#[derive(Clone, Debug)]
pub struct Layout {
    prefix: String,
}

/// A half-open range of keys, as etcd takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    pub start: Bytes,
    pub end: Bytes,
}

impl Layout {
    pub fn new(prefix: &str) -> Layout {
        Layout {
            prefix: prefix.to_owned(),
        }
    }

    pub fn entry(&self, lock: &LockName, lease: i64) -> Bytes {
        format!("{}{lock}/{lease:x}", self.prefix).into()
    }

    /// The last attempt of a session on a lock, standing or over.
    pub fn attempt(&self, lock: &LockName, lease: i64) -> Bytes {
        format!("{}\0ringfence/attempt/{lock}/{lease:x}", self.prefix).into()
    }

    /// The mark of one lock service.
    pub fn mark(&self, id: u64) -> Bytes {
        format!("{}\0ringfence/lockd/{id:x}", self.prefix).into()
    }

    /// The marks of all of them.
    pub fn mark_range(&self) -> KeyRange {
        below(format!("{}\0ringfence/lockd/", self.prefix).into_bytes())
    }

    pub fn record(&self, name: &str) -> Bytes {
        format!("{}\0ringfence/record/{name}", self.prefix).into()
    }

    pub fn generation(&self) -> Bytes {
        format!("{}\0ringfence/token-generation", self.prefix).into()
    }

    /// Every key below `<lock>/`: the entries, and what is nested or foreign.
    pub fn lock_range(&self, lock: &LockName) -> KeyRange {
        below(format!("{}{lock}/", self.prefix).into_bytes())
    }

    pub fn record_range(&self, name_prefix: &str) -> KeyRange {
        below(self.record(name_prefix).to_vec())
    }

    /// The name of the record with this key.
    pub fn record_name(&self, key: &[u8]) -> Option<String> {
        let name = key.strip_prefix(&*self.record(""))?;
        String::from_utf8(name.to_vec()).ok()
    }

    /// What a watch needs: the records, the generation and every entry. The attempts and the marks
    /// sort before them, so that their writes do not wake the watch.
    pub fn watch_range(&self) -> KeyRange {
        let end = below(self.prefix.clone().into_bytes()).end;
        KeyRange {
            start: self.record(""),
            end,
        }
    }

    /// The lock and the session, if this key and value is an entry.
    pub fn parse_entry(&self, kv: &KeyValue) -> Option<(LockName, SessionId)> {
        if kv.lease <= 0 {
            return None;
        }
        let key = std::str::from_utf8(&kv.key)
            .ok()?
            .strip_prefix(&self.prefix)?;
        let (lock, lease) = key.rsplit_once('/')?;
        let session: SessionId = lease.parse().ok()?;
        if session.0 != kv.lease.unsigned_abs() {
            return None;
        }
        Some((LockName::new(lock).ok()?, session))
    }
}

/// The keys that begin so. etcd documentation, "API reference": a range ends before the prefix with
/// its last byte raised; `\0` as the end means every key from the start on.
fn below(prefix: Vec<u8>) -> KeyRange {
    let mut end = prefix.clone();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return KeyRange {
                start: prefix.into(),
                end: end.into(),
            };
        }
    }
    let start = if prefix.is_empty() { vec![0] } else { prefix };
    KeyRange {
        start: start.into(),
        end: vec![0].into(),
    }
}

/// The lease of a session; `None` for an id that etcd can never have given.
pub fn lease_of(session: SessionId) -> Option<i64> {
    i64::try_from(session.0).ok().filter(|lease| *lease > 0)
}

/// An attempt as the text that etcd compares: of fixed width, so that bytes order as numbers do.
pub fn attempt_text(attempt: u64) -> Bytes {
    format!("{attempt:016x}").into()
}

/// The attempt in such a text.
pub fn parse_attempt(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text)
        .ok()
        .filter(|text| text.len() == 16)?;
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(key: &str, lease: i64) -> KeyValue {
        KeyValue {
            key: key.to_owned().into(),
            lease,
            ..KeyValue::default()
        }
    }

    fn parse(prefix: &str, key: &str, lease: i64) -> Option<(String, u64)> {
        let (lock, session) = Layout::new(prefix).parse_entry(&kv(key, lease))?;
        Some((lock.to_string(), session.0))
    }

    #[test]
    fn an_entry_names_the_lease_that_it_is_attached_to() {
        assert_eq!(parse("", "orders/1f", 0x1f), Some(("orders".into(), 0x1f)));
        assert_eq!(parse("", "a/1/2b", 0x2b), Some(("a/1".into(), 0x2b)));
        assert_eq!(parse("p/", "p/a/2b", 0x2b), Some(("a".into(), 0x2b)));
        let max = format!("a/{:x}", i64::MAX);
        assert_eq!(
            parse("", &max, i64::MAX),
            Some(("a".into(), i64::MAX as u64))
        );
    }

    #[test]
    fn what_is_no_entry() {
        let cases = [
            ("orders/1f", 0),
            ("orders/1f", 0x1e),
            ("orders/1F", 0x1f),
            ("orders/01f", 0x1f),
            ("orders/+1f", 0x1f),
            ("orders/zz", 0x1f),
            ("orders/", 0x1f),
            ("orders", 0x1f),
            ("/1f", 0x1f),
            ("a//1f", 0x1f),
            ("a\n/1f", 0x1f),
            ("\0ringfence/attempt/orders/1f", 0x1f),
            ("orders/-1", -1),
            ("orders/ffffffffffffffff", -1),
        ];
        for (key, lease) in cases {
            assert_eq!(parse("", key, lease), None, "{key:?} with lease {lease:x}");
        }
        assert_eq!(parse("p/", "orders/1f", 0x1f), None);
        assert_eq!(
            Layout::new("").parse_entry(&KeyValue {
                key: vec![0xff, b'/', b'1'].into(),
                lease: 1,
                ..KeyValue::default()
            }),
            None
        );
    }

    #[test]
    fn ranges_end_before_the_next_prefix() {
        let lock = LockName::new("a").unwrap();
        let range = Layout::new("p").lock_range(&lock);
        assert_eq!(
            (&range.start[..], &range.end[..]),
            (&b"pa/"[..], &b"pa0"[..])
        );
        let all = Layout::new("").watch_range();
        assert_eq!(
            (&all.start[..], &all.end[..]),
            (&b"\0ringfence/record/"[..], &[0][..])
        );
        assert_eq!(below(vec![b'a', 0xff]).end, vec![b'b']);
        assert_eq!(below(vec![0xff]).end, vec![0]);
        let layout = Layout::new("p/");
        let watched = layout.watch_range();
        assert!(layout.attempt(&lock, 1) < watched.start);
        assert!(layout.mark(u64::MAX) < watched.start && layout.mark_range().end < watched.start);
        for key in [layout.record("x"), layout.generation()] {
            assert!(key >= watched.start && key < layout.entry(&lock, 1));
        }
        assert!(layout.entry(&lock, 1) > watched.start && layout.entry(&lock, 1) < watched.end);
    }

    #[test]
    fn attempts_order_as_numbers() {
        assert!(attempt_text(9) < attempt_text(10));
        assert_eq!(parse_attempt(&attempt_text(u64::MAX)), Some(u64::MAX));
        assert_eq!(parse_attempt(b"12"), None);
    }
}
