//! What was seen of etcd's history, against one that was replaced: tokens are revisions, so that an
//! etcd whose data were lost, or restored from a backup, would give out tokens that fall.
//!
//! Every transaction and range here is linearizable: its answer's revision is at or above each that
//! was seen before it was sent. Invariants:
//! - no answer of another cluster, nor of one that went back, is ever used;
//! - once etcd has gone back it stays so: it would reach the revisions of the tokens that are out,
//!   and other lock services may have seen later ones.
//!
//! A lock service that starts knows what one before it has left ([`Seen`]), or nothing.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use tonic::Status;

use crate::etcd_proto::etcdserverpb::ResponseHeader;

/// The history of one cluster.
#[derive(Debug, Default)]
pub struct History {
    cluster_id: OnceLock<u64>,
    latest: AtomicI64,
    /// Why it is over.
    broken: OnceLock<String>,
}

/// What was seen of a cluster: kept by who starts again over it. As text: `<cluster> <revision>`,
/// in hex and decimal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    cluster_id: u64,
    revision: i64,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x} {}", self.cluster_id, self.revision)
    }
}

/// A text that is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a cluster's id in hex and a revision")]
pub struct NotSeen;

impl FromStr for Seen {
    type Err = NotSeen;

    fn from_str(text: &str) -> Result<Seen, NotSeen> {
        let (cluster, revision) = text.trim().split_once(' ').ok_or(NotSeen)?;
        Ok(Seen {
            cluster_id: u64::from_str_radix(cluster, 16).map_err(|_| NotSeen)?,
            revision: revision.parse().map_err(|_| NotSeen)?,
        })
    }
}

/// What had been seen when a call was sent.
#[derive(Clone, Copy, Debug)]
pub struct Before(i64);

impl History {
    /// One that goes on behind what was seen before.
    pub fn after(seen: Option<Seen>) -> History {
        let history = History::default();
        if let Some(seen) = seen {
            let _ = history.cluster_id.set(seen.cluster_id);
            history.latest.store(seen.revision, Ordering::Release);
        }
        history
    }

    /// What was seen; `None`: nothing yet.
    pub fn seen(&self) -> Option<Seen> {
        Some(Seen {
            cluster_id: *self.cluster_id.get()?,
            revision: self.latest.load(Ordering::Acquire),
        })
    }

    /// An event of this revision has come: it is in every later answer, too.
    pub fn note(&self, revision: i64) {
        self.latest.fetch_max(revision, Ordering::AcqRel);
    }

    /// To be called before a linearizable call is sent. The error is the answer where etcd has gone
    /// back already.
    pub fn before(&self) -> Result<Before, Status> {
        match self.broken.get() {
            Some(why) => Err(Status::data_loss(why.clone())),
            // Acquire, with the release below: a call that follows an answer is sent knowing it.
            None => Ok(Before(self.latest.load(Ordering::Acquire))),
        }
    }

    /// Judges the answer by its header.
    pub fn check(&self, before: Before, header: Option<&ResponseHeader>) -> Result<(), Status> {
        let Some(header) = header else {
            return Err(Status::data_loss("an answer without a header"));
        };
        let known = *self.cluster_id.get_or_init(|| header.cluster_id);
        if header.cluster_id != known {
            return Err(Status::data_loss(format!(
                "another cluster ({:x}) answers than before ({known:x}): its tokens have nothing \
                 to do with those that were given out",
                header.cluster_id
            )));
        }
        if header.revision < before.0 {
            let why = self.broken.get_or_init(|| {
                format!(
                    "it went back from revision {} to {}: its data were lost, or restored from a \
                     backup, and tokens would fall; this lock service serves no more until it is \
                     started again with --init",
                    before.0, header.revision
                )
            });
            tracing::error!(%why, "etcd: store lost");
            return Err(Status::data_loss(why.clone()));
        }
        self.latest.fetch_max(header.revision, Ordering::AcqRel);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{History, Seen};
    use crate::etcd_proto::etcdserverpb::ResponseHeader;
    use tonic::Code;

    fn header(cluster_id: u64, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id,
            revision,
            ..ResponseHeader::default()
        }
    }

    #[test]
    fn answers_may_overtake_each_other_and_history_goes_on() {
        let history = History::default();
        let (first, second) = (history.before().unwrap(), history.before().unwrap());
        assert!(history.check(second, Some(&header(7, 5))).is_ok());
        assert!(history.check(first, Some(&header(7, 4))).is_ok());
        let third = history.before().unwrap();
        assert!(history.check(third, Some(&header(7, 5))).is_ok());
    }

    #[test]
    fn what_goes_back_is_over_for_good() {
        let history = History::default();
        let before = history.before().unwrap();
        assert!(history.check(before, Some(&header(7, 1111))).is_ok());
        let before = history.before().unwrap();
        let refused = history.check(before, Some(&header(7, 5))).unwrap_err();
        assert_eq!(refused.code(), Code::DataLoss);
        assert!(refused.message().contains("1111"), "{refused}");
        assert_eq!(history.before().unwrap_err().code(), Code::DataLoss);
    }

    #[test]
    fn what_was_seen_is_kept_as_text_and_bounds_what_follows() {
        let history = History::default();
        assert_eq!(history.seen(), None);
        let before = history.before().unwrap();
        assert!(history.check(before, Some(&header(0xcafe, 10))).is_ok());
        history.note(12);
        let seen = history.seen().unwrap();
        assert_eq!(seen.to_string(), "cafe 12");
        assert_eq!(seen.to_string().parse(), Ok(seen));
        assert!("cafe".parse::<Seen>().is_err() && "x 1".parse::<Seen>().is_err());
        let again = || History::after(Some(seen));
        let refuses = |history: History, answer| {
            let before = history.before().unwrap();
            history.check(before, Some(&answer)).is_err()
        };
        assert!(!refuses(again(), header(0xcafe, 12)));
        assert!(refuses(again(), header(0xcafe, 11)));
        assert!(refuses(again(), header(0xbeef, 100)));
    }

    #[test]
    fn another_cluster_is_refused_and_the_first_one_goes_on() {
        let history = History::default();
        let before = history.before().unwrap();
        assert!(history.check(before, Some(&header(7, 10))).is_ok());
        let before = history.before().unwrap();
        let other = history.check(before, Some(&header(8, 2000))).unwrap_err();
        assert_eq!(other.code(), Code::DataLoss);
        assert!(history.check(before, Some(&header(7, 11))).is_ok());
        assert!(history.check(before, None).is_err());
    }
}
