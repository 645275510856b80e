//! What was seen of etcd's history, against one that was replaced: tokens are revisions, so that an
//! etcd whose data were lost, or restored from a backup, would give out tokens that fall.
//!
//! Every transaction and range here is linearizable: its answer's revision is at or above each that
//! was seen before it was sent. Invariants:
//! - no answer of another cluster, nor of one that went back, is ever used;
//! - once etcd has gone back it stays so: it would reach the revisions of the tokens that are out,
//!   and other lock services may have seen later ones.
//!
//! Where others have written past what was seen, the mark tells (`mark`), and the token generation,
//! which never falls.
//!
//! A lock service that starts knows what one before it has left ([`Seen`]), or nothing.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use tonic::Status;

use super::generation::{self, Generations};
use crate::etcd_proto::etcdserverpb::ResponseHeader;
use crate::token::Token;

/// The history of one cluster.
#[derive(Debug, Default)]
pub struct History {
    cluster_id: OnceLock<u64>,
    latest: AtomicI64,
    /// The highest token generation that was seen.
    generation: AtomicU64,
    mark: Mutex<Option<Mark>>,
    /// Why it is over.
    broken: OnceLock<String>,
}

/// The key that one lock service writes, and the revision at which it last has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    pub(super) id: u64,
    pub(super) revision: i64,
}

/// What was seen of a cluster: kept by who starts again over it. As text: `<cluster> <revision>
/// <token>`, and with a mark `<mark> <its revision>`; the cluster and the mark in hex.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    pub(super) cluster_id: u64,
    pub(super) revision: i64,
    /// At or above every token that was seen.
    pub(super) token: Token,
    pub(super) mark: Option<Mark>,
}

impl Seen {
    /// Above this no token can have been given out by this etcd, unless its generation was raised
    /// since: those of other lock services, and those that were not seen any more, are below it.
    pub fn highest(&self) -> Token {
        generation::highest_of(self.token)
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x} {} {}", self.cluster_id, self.revision, self.token)?;
        match self.mark {
            Some(Mark { id, revision }) => write!(f, " {id:x} {revision}"),
            None => Ok(()),
        }
    }
}

/// A text that is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a cluster's id in hex, a revision, a token, and a mark with its revision")]
pub struct NotSeen;

impl FromStr for Seen {
    type Err = NotSeen;

    fn from_str(text: &str) -> Result<Seen, NotSeen> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let number = |word: &str| word.parse::<i64>().map_err(|_| NotSeen);
        let id = |word: &str| u64::from_str_radix(word, 16).map_err(|_| NotSeen);
        // Two words are what the first versions wrote; their tokens were revisions, or are unknown.
        let (cluster, revision, token, mark) = match words[..] {
            [cluster, revision] => (cluster, revision, revision, None),
            [cluster, revision, token] => (cluster, revision, token, None),
            [cluster, revision, token, mark, at] => {
                let mark = Mark {
                    id: id(mark)?,
                    revision: number(at)?,
                };
                (cluster, revision, token, Some(mark))
            }
            _ => return Err(NotSeen),
        };
        Ok(Seen {
            cluster_id: id(cluster)?,
            revision: number(revision)?,
            token: token.parse().map_err(|_| NotSeen)?,
            mark,
        })
    }
}

/// What had been seen when a call was sent.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    revision: i64,
    generation: u64,
}

impl History {
    /// One that goes on behind what was seen before.
    pub fn after(seen: Option<Seen>) -> History {
        let history = History::default();
        if let Some(seen) = seen {
            let _ = history.cluster_id.set(seen.cluster_id);
            history.latest.store(seen.revision, Ordering::Release);
            *history.lock_mark() = seen.mark;
        }
        history
    }

    /// The cluster and the highest revision that was seen; `None`: nothing yet.
    pub fn seen(&self) -> Option<(u64, i64)> {
        let cluster_id = *self.cluster_id.get()?;
        Some((cluster_id, self.latest.load(Ordering::Acquire)))
    }

    fn lock_mark(&self) -> std::sync::MutexGuard<'_, Option<Mark>> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mark as it was last written; `None`: it never was.
    pub fn mark(&self) -> Option<Mark> {
        *self.lock_mark()
    }

    /// It was written.
    pub fn set_mark(&self, mark: Mark) {
        *self.lock_mark() = Some(mark);
    }

    /// Judges the revision at which the mark was found, 0 where it was not, against the one at
    /// which it had been written before that.
    pub fn check_mark(&self, written: Mark, found: i64) -> Result<(), Status> {
        if found >= written.revision {
            return Ok(());
        }
        Err(self.end(format!(
            "it has forgotten what was written at revision {}: it was restored from a backup, or \
             its keys were removed, and tokens would fall; this lock service serves no more until \
             it is started again with --init",
            written.revision
        )))
    }

    /// It is over, for this reason or an earlier one.
    fn end(&self, why: String) -> Status {
        let why = self.broken.get_or_init(|| {
            tracing::error!(%why, "etcd: store lost");
            why
        });
        Status::data_loss(why.clone())
    }

    /// An event of this revision has come: it is in every later answer, too.
    pub fn note(&self, revision: i64) {
        self.latest.fetch_max(revision, Ordering::AcqRel);
    }

    /// Such generations have come: they, or later ones, are in every later answer.
    pub fn note_generations(&self, seen: &Generations) {
        self.generation
            .fetch_max(seen.latest_generation(), Ordering::AcqRel);
    }

    /// Judges the generations of an answer to a call that was sent after `before`.
    pub fn check_generations(&self, before: Before, found: &Generations) -> Result<(), Status> {
        let found_generation = found.latest_generation();
        if found_generation < before.generation {
            return Err(self.end(format!(
                "its token generation went back from {} to {found_generation}: it was restored \
                 from a backup, or its keys were removed, and tokens would fall; this lock service \
                 serves no more until it is started again with --init",
                before.generation
            )));
        }
        self.note_generations(found);
        Ok(())
    }

    /// To be called before a linearizable call is sent. The error is the answer where etcd has gone
    /// back already.
    pub fn before(&self) -> Result<Before, Status> {
        match self.broken.get() {
            Some(why) => Err(Status::data_loss(why.clone())),
            // Acquire, with the release below: a call that follows an answer is sent knowing it.
            None => Ok(Before {
                revision: self.latest.load(Ordering::Acquire),
                generation: self.generation.load(Ordering::Acquire),
            }),
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
        if header.revision < before.revision {
            return Err(self.end(format!(
                "it went back from revision {} to {}: its data were lost, or restored from a \
                 backup, and tokens would fall; this lock service serves no more until it is \
                 started again with --init",
                before.revision, header.revision
            )));
        }
        self.latest.fetch_max(header.revision, Ordering::AcqRel);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{History, Mark, NotSeen, Seen};
    use crate::etcd_proto::etcdserverpb::ResponseHeader;
    use crate::token::Token;
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
        assert_eq!(history.seen(), Some((0xcafe, 12)));
        let mut seen = Seen {
            cluster_id: 0xcafe,
            revision: 12,
            token: Token::new(1 << 48 | 12).unwrap(),
            mark: None,
        };
        assert_eq!(seen.to_string(), "cafe 12 281474976710668");
        assert_eq!(seen.to_string().parse(), Ok(seen));
        let (id, revision) = (0xbeef, 11);
        seen.mark = Some(Mark { id, revision });
        assert_eq!(seen.to_string(), "cafe 12 281474976710668 beef 11");
        assert_eq!(seen.to_string().parse(), Ok(seen));
        assert_eq!(seen.highest().get(), (2 << 48) - 1);
        assert_eq!("cafe 12".parse::<Seen>().unwrap().token.get(), 12);
        for none in [
            "",
            "cafe",
            "x 1",
            "cafe 1 0",
            "cafe 1 1 beef",
            "cafe 1 1 x 1",
        ] {
            assert_eq!(none.parse::<Seen>(), Err(NotSeen), "{none}");
        }
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
    fn a_mark_that_is_older_than_it_was_written_ends_it() {
        let history = History::default();
        let (id, revision) = (7, 20);
        let mark = Mark { id, revision };
        history.set_mark(mark);
        assert_eq!(history.mark(), Some(mark));
        assert!(history.check_mark(mark, 20).is_ok() && history.check_mark(mark, 21).is_ok());
        assert!(history.before().is_ok());
        let refused = history.check_mark(mark, 19).unwrap_err();
        assert_eq!(refused.code(), Code::DataLoss);
        assert!(refused.message().contains("backup"), "{refused}");
        assert_eq!(history.before().unwrap_err().code(), Code::DataLoss);
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
