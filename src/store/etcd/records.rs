//! The records as this store last read them, and until when that is known to be the last word.
//!
//! Each batch that writes entries reads the stamp of all records beside them, in its own
//! transaction. The same stamp: the same records, at the revision of the batch. So who has to know
//! the records at a grant needs no read of his own. What is known is also dropped when the watch
//! tells of a change.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::hints::At;
use super::layout::{KeyRange, Layout};
use crate::etcd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::etcd_proto::etcdserverpb::{RangeRequest, RangeResponse};
use crate::etcd_proto::mvccpb::KeyValue;
use crate::store::RecordList;

/// The latest mod revision among the records, and how many there are. A write makes a revision that
/// was never there; a removal makes them fewer, and leaves no later revision than there was. So no
/// two states of one etcd have the same stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamp {
    latest: i64,
    count: i64,
}

impl Stamp {
    fn of(kvs: &[KeyValue]) -> Stamp {
        Stamp {
            latest: kvs.iter().map(|kv| kv.mod_revision).max().unwrap_or(0),
            count: kvs.len() as i64,
        }
    }

    /// Of an answer to [`stamp_range`].
    pub fn read(answer: &RangeResponse) -> Stamp {
        Stamp {
            latest: answer.kvs.first().map_or(0, |kv| kv.mod_revision),
            count: answer.count,
        }
    }
}

/// What reads the stamp: the key that was written last, and the count of all.
pub fn stamp_range(layout: &Layout) -> RangeRequest {
    let KeyRange { start, end } = layout.record_range("");
    RangeRequest {
        key: start,
        range_end: end,
        limit: 1,
        keys_only: true,
        sort_order: SortOrder::Descend.into(),
        sort_target: SortTarget::Mod.into(),
        ..RangeRequest::default()
    }
}

/// The records of one store, as far as they are known.
#[derive(Default, Debug)]
pub struct Records(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    list: RecordList,
    stamp: Stamp,
    /// The last moment at which they were these.
    at: At,
}

impl Records {
    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them were read at this moment.
    pub fn learn(&self, kvs: &[KeyValue], list: RecordList, at: At) {
        let stamp = Stamp::of(kvs);
        let mut known = self.known();
        if known.as_ref().is_none_or(|known| known.at.precedes(at)) {
            *known = Some(Known { list, stamp, at });
        }
    }

    /// A batch has read the stamp.
    pub fn confirm(&self, stamp: Stamp, at: At) {
        let mut known = self.known();
        let Some(old) = known.as_mut().filter(|old| old.at.precedes(at)) else {
            return;
        };
        if old.stamp == stamp && old.at.timeline == at.timeline {
            old.at = at;
        } else {
            *known = None;
        }
    }

    /// The watch has seen one change.
    pub fn forget(&self) {
        *self.known() = None;
    }

    /// The records at this revision or later; `None`: not known.
    pub fn at(&self, timeline: u64, revision: i64) -> Option<RecordList> {
        let known = self.known();
        let known = known.as_ref()?;
        let holds = known.at.timeline == timeline && known.at.revision >= revision;
        holds.then(|| Arc::clone(&known.list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(revision: i64) -> At {
        At {
            timeline: 1,
            revision,
        }
    }

    fn record(mod_revision: i64) -> KeyValue {
        KeyValue {
            mod_revision,
            ..KeyValue::default()
        }
    }

    #[test]
    fn records_are_known_as_long_as_their_stamp_is_seen() {
        let records = Records::default();
        let list: RecordList = Arc::new(vec![("proxy/a".to_owned(), Vec::new())]);
        assert_eq!(records.at(1, 0), None);
        records.learn(&[record(4)], list.clone(), at(9));
        assert_eq!(records.at(1, 9), Some(list.clone()));
        assert_eq!(records.at(1, 10), None, "a later grant has to ask");
        let stamp = Stamp {
            latest: 4,
            count: 1,
        };
        records.confirm(stamp, at(12));
        records.confirm(Stamp::default(), at(11));
        assert_eq!(
            records.at(1, 12),
            Some(list.clone()),
            "an older answer is no news"
        );
        assert_eq!(records.at(2, 12), None, "another connection");
        records.confirm(
            Stamp {
                latest: 13,
                ..stamp
            },
            at(13),
        );
        assert_eq!(records.at(1, 5), None);
    }
}
