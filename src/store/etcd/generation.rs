//! From a create revision to a token: `generation << 48 | create revision`.
//!
//! The generation is 0 until the revision of etcd is found behind the tokens that proxies have seen
//! (restored from a backup, another cluster). It is then raised, and what is created later has the
//! higher generation; an entry that exists keeps its token. The record holds every earlier
//! generation with the revision since which it was in force, so that each reader gives an entry the
//! same token whenever it reads.

use prost::bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::message::compare;
use crate::etcd_proto::etcdserverpb::Compare;
use crate::etcd_proto::etcdserverpb::compare::{CompareResult, TargetUnion};
use crate::etcd_proto::mvccpb::KeyValue;
use crate::store::StoreError;
use crate::token::Token;

/// Bits of a token that the create revision has.
const REVISION_BITS: u32 = 48;

/// The highest generation: what is left of 63 bits.
const GENERATION_MAX: u64 = (1 << (63 - REVISION_BITS)) - 1;

/// Earlier generations that the record keeps. An entry would have to outlive this many restores to
/// get a wrong token.
const EARLIER_MAX: usize = 256;

/// The highest token of this token's generation.
pub fn highest_of(token: Token) -> Token {
    let highest = token.get() | ((1 << REVISION_BITS) - 1);
    Token::new(highest).unwrap_or(Token::MAX)
}

/// The record as it is stored; it is in force since its own mod revision.
#[derive(Serialize, Deserialize, Debug)]
struct Stored {
    generation: u64,
    /// Revision and the generation in force after it, ascending.
    earlier: Vec<(i64, u64)>,
}

/// The generations and since when each is in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Generations {
    /// Revision and the generation of what is created after it, ascending.
    since: Vec<(i64, u64)>,
    /// The record as it is stored.
    value: Bytes,
}

impl Generations {
    /// Reads the record; `None`: it was never written.
    pub fn read(kv: Option<&KeyValue>) -> Result<Generations, StoreError> {
        let Some(kv) = kv else {
            return Ok(Generations::default());
        };
        let stored: Stored = serde_json::from_slice(&kv.value)
            .map_err(|error| StoreError::Corrupt(format!("token generation: {error}")))?;
        let mut since = stored.earlier;
        since.push((kv.mod_revision, stored.generation));
        let ascending = since
            .windows(2)
            .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
        if !ascending || stored.generation > GENERATION_MAX {
            return Err(StoreError::Corrupt(format!(
                "token generation: {since:?} not ascending"
            )));
        }
        Ok(Generations {
            since,
            value: kv.value.clone(),
        })
    }

    /// The mod revision of the record, 0 if there is none.
    pub fn revision(&self) -> i64 {
        self.since.last().map_or(0, |(revision, _)| *revision)
    }

    /// The one that is in force.
    pub fn latest_generation(&self) -> u64 {
        self.since.last().map_or(0, |(_, generation)| *generation)
    }

    /// True in etcd exactly while this is the record. The value is compared too: a restored etcd
    /// may write another one at the same revision.
    pub fn unchanged(&self, key: &Bytes) -> Vec<Compare> {
        let revision = TargetUnion::ModRevision(self.revision());
        let mut compares = vec![compare(key, CompareResult::Equal, revision)];
        if !self.since.is_empty() {
            let value = TargetUnion::Value(self.value.clone());
            compares.push(compare(key, CompareResult::Equal, value));
        }
        compares
    }

    /// The token of what was created at this revision.
    pub fn token(&self, create_revision: i64) -> Result<Token, StoreError> {
        let generation = self
            .since
            .iter()
            .rev()
            .find(|(since, _)| *since < create_revision)
            .map_or(0, |(_, generation)| *generation);
        u64::try_from(create_revision)
            .ok()
            .filter(|revision| *revision < 1 << REVISION_BITS)
            .and_then(|revision| Token::new(generation << REVISION_BITS | revision))
            .ok_or_else(|| StoreError::Corrupt(format!("revision {create_revision} out of range")))
    }

    /// At or above every token up to this revision, below every later one.
    pub fn latest(&self, revision: i64) -> Result<Token, StoreError> {
        let next = self.token(revision + 1)?;
        Ok(Token::new(next.get() - 1).unwrap_or(Token::MIN))
    }

    /// The create revision that has this token; `None` if none can have it.
    pub fn create_revision(&self, token: Token) -> Option<i64> {
        let revision = (token.get() & ((1 << REVISION_BITS) - 1)) as i64;
        (self.token(revision).ok()? == token).then_some(revision)
    }

    /// What to store so that everything created later is above `token`, if etcd is at `revision`
    /// now. `None`: it is already so.
    pub fn raised_above(&self, token: Token, revision: i64) -> Result<Option<Vec<u8>>, StoreError> {
        if self.token(revision + 1)? > token {
            return Ok(None);
        }
        let generation = (token.get() >> REVISION_BITS) + 1;
        if generation > GENERATION_MAX {
            return Err(StoreError::Refused(format!(
                "no generation is above that of {token}"
            )));
        }
        let earlier = self.since[self.since.len().saturating_sub(EARLIER_MAX)..].to_vec();
        serde_json::to_vec(&Stored {
            generation,
            earlier,
        })
        .map(Some)
        .map_err(|error| StoreError::Corrupt(format!("token generation: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(value: Vec<u8>, mod_revision: i64) -> KeyValue {
        KeyValue {
            value: value.into(),
            mod_revision,
            ..KeyValue::default()
        }
    }

    #[test]
    fn later_entries_get_the_raised_generation_and_earlier_ones_keep_their_token() {
        let none = Generations::read(None).unwrap();
        assert_eq!(none.token(7).unwrap().get(), 7);
        let above = Token::new(1_000).unwrap();
        let first = none.raised_above(above, 20).unwrap().unwrap();
        let one = Generations::read(Some(&record(first, 21))).unwrap();
        assert_eq!(one.token(21).unwrap().get(), 21);
        assert_eq!(one.token(22).unwrap().get(), 1 << 48 | 22);
        let above = Token::new(5 << 48).unwrap();
        let second = one.raised_above(above, 30).unwrap().unwrap();
        let six = Generations::read(Some(&record(second, 31))).unwrap();
        assert_eq!(six.token(21).unwrap().get(), 21);
        assert_eq!(six.token(31).unwrap().get(), 1 << 48 | 31);
        assert_eq!(six.token(32).unwrap().get(), 6 << 48 | 32);
        assert_eq!(six.create_revision(six.token(32).unwrap()), Some(32));
        assert_eq!(six.create_revision(Token::new(32).unwrap()), None);
        assert_eq!(six.revision(), 31);
    }

    #[test]
    fn what_needs_no_raise_and_what_cannot_be_raised() {
        let none = Generations::default();
        assert_eq!(
            none.raised_above(Token::new(20).unwrap(), 20).unwrap(),
            None
        );
        assert!(
            none.raised_above(Token::new(21).unwrap(), 20)
                .unwrap()
                .is_some()
        );
        assert!(matches!(
            none.raised_above(Token::MAX, 20),
            Err(StoreError::Refused(_))
        ));
    }

    #[test]
    fn a_damaged_record_is_corrupt() {
        for bad in [
            "",
            "{}",
            r#"{"generation":1,"earlier":[[9,1]]}"#,
            r#"{"generation":99999,"earlier":[]}"#,
        ] {
            let read = Generations::read(Some(&record(bad.into(), 21)));
            assert!(
                matches!(read, Err(StoreError::Corrupt(_))),
                "{bad}: {read:?}"
            );
        }
        assert!(matches!(
            Generations::default().token(1 << 48),
            Err(StoreError::Corrupt(_))
        ));
        assert!(matches!(
            Generations::default().token(0),
            Err(StoreError::Corrupt(_))
        ));
    }
}
