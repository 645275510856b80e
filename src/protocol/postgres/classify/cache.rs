//! What was found about a text, by text; where its values do not matter, by its shape ([`shape`]).
//!
//! Bounded in entries and bytes; the oldest that was not asked for since goes first (a clock). The
//! whole text is compared, never its hash alone: a text that collides with another must not get its
//! class.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;

use super::shape::{self, Shape};
use super::{Class, Classified, Lexing, Statement, Unreadable, classify_text};

/// The operations that read or change rows by themselves.
pub const ROWS: [&str; 5] = ["SELECT", "INSERT", "UPDATE", "DELETE", "MERGE"];

/// Longest text that is remembered, in bytes: longer ones are full of data and come once.
pub const TEXT_BYTES_CACHED_MAX: usize = 8 << 10;

/// Most texts that are remembered.
pub const ENTRIES_MAX: usize = 16 << 10;

/// Most bytes of texts that are remembered.
pub const TEXTS_BYTES_MAX: usize = 8 << 20;

/// Parts of the cache, each with a lock of its own.
const SHARDS: usize = 16;

/// Classifies, and remembers. Shared by the sessions of a listener.
#[derive(Debug, Default)]
pub struct Classifier {
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    known: HashMap<Arc<str>, Known, RandomState>,
    /// In the order in which they go.
    queue: VecDeque<Arc<str>>,
    bytes: usize,
}

#[derive(Debug)]
struct Known {
    classified: Arc<Classified>,
    asked_again: bool,
}

impl Classifier {
    /// An empty one.
    pub fn new() -> Classifier {
        Classifier::default()
    }

    /// What the statements of a text are.
    pub fn classify(&self, text: &[u8], lexing: Lexing) -> Arc<Classified> {
        let text = match lexing.read(text) {
            Ok(text) => text,
            Err(Unreadable::Encoding) if lexing.ascii_safe => return self.classify_masked(text),
            Err(why) => return Arc::new(Classified::unread(why, text)),
        };
        // What looks like a shape is no SQL, and must not be taken for one.
        if text.len() > TEXT_BYTES_CACHED_MAX || text.starts_with(shape::MARK) {
            return Arc::new(classify_text(text));
        }
        match shape::of(text) {
            Shape::Of(shape) => self.find(&shape).unwrap_or_else(|| self.read(text, &shape)),
            Shape::Same | Shape::Unclear => self.read(text, text),
        }
    }

    /// A text of which only the bytes of ASCII are certain: where the others are within values that
    /// do nothing, it is as any text of its shape.
    fn classify_masked(&self, text: &[u8]) -> Arc<Classified> {
        let masked = |letter: u8| -> String {
            let bytes = text.iter();
            let mask = |byte: &u8| if byte.is_ascii() { *byte } else { letter };
            bytes.map(|byte| char::from(mask(byte))).collect()
        };
        let (one, other) = (masked(b'x'), masked(b'y'));
        if let (Shape::Of(shape), Shape::Of(same)) = (shape::of(&one), shape::of(&other))
            && shape == same
        {
            let known = self.find(&shape);
            let classified = known.unwrap_or_else(|| self.read(&one, &shape));
            if is_its_shape(&classified) {
                return classified;
            }
        }
        Arc::new(Classified::unread(Unreadable::Encoding, text))
    }

    /// Parses a text, unless it is known as it is. It is remembered by its shape if it can be.
    fn read(&self, text: &str, shape: &str) -> Arc<Classified> {
        if let Some(known) = self.find(text) {
            return known;
        }
        let classified = Arc::new(classify_text(text));
        let key = match is_its_shape(&classified) {
            true => shape,
            false => text,
        };
        self.shard(key).insert(key, &classified);
        classified
    }

    fn find(&self, key: &str) -> Option<Arc<Classified>> {
        self.shard(key).get(key)
    }

    fn shard(&self, key: &str) -> MutexGuard<'_, Shard> {
        // The high bits: the map within uses the low ones of another hash.
        let at = (self.hasher.hash_one(key) >> 60) as usize % SHARDS;
        // A panic under this lock leaves a cache that is short of something at worst.
        self.shards[at]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// How many texts are remembered.
    pub fn len(&self) -> usize {
        let len = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.known.len()
        };
        self.shards.iter().map(len).sum()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Shard {
    fn get(&mut self, text: &str) -> Option<Arc<Classified>> {
        let known = self.known.get_mut(text)?;
        known.asked_again = true;
        Some(Arc::clone(&known.classified))
    }

    fn insert(&mut self, text: &str, classified: &Arc<Classified>) {
        if self.known.contains_key(text) {
            return;
        }
        let text: Arc<str> = text.into();
        self.bytes += text.len();
        self.queue.push_back(Arc::clone(&text));
        let known = Known {
            classified: Arc::clone(classified),
            asked_again: false,
        };
        self.known.insert(text, known);
        while self.known.len() > ENTRIES_MAX / SHARDS || self.bytes > TEXTS_BYTES_MAX / SHARDS {
            self.forget_one();
        }
    }

    fn forget_one(&mut self) {
        while let Some(text) = self.queue.pop_front() {
            match self.known.get_mut(&text) {
                Some(known) if known.asked_again => {
                    known.asked_again = false;
                    self.queue.push_back(text);
                }
                _ => {
                    self.bytes -= text.len();
                    self.known.remove(&text);
                    return;
                }
            }
        }
    }
}

/// Whether any text of the same shape is the same: one statement that reads or changes rows, of
/// which no value was looked at.
pub(super) fn is_its_shape(classified: &Classified) -> bool {
    let [statement] = classified.statements.as_slice() else {
        return false;
    };
    let Statement { class, uses, .. } = &**statement;
    let mut functions = uses.functions.iter();
    matches!(class, Class::Read | Class::Write)
        && ROWS.contains(&statement.operation)
        && uses.set_configs.is_empty()
        && functions.all(|called| called.first_text.is_none())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Class, Classifier, ENTRIES_MAX, SHARDS, TEXT_BYTES_CACHED_MAX};
    use crate::protocol::postgres::classify::Lexing;

    #[test]
    fn a_text_is_found_again_and_a_long_one_is_not_kept() {
        let classifier = Classifier::new();
        let first = classifier.classify(b"SELECT 1", Lexing::CERTAIN);
        let again = classifier.classify(b"SELECT 1", Lexing::CERTAIN);
        assert!(Arc::ptr_eq(&first, &again));
        let long = format!("SELECT '{}'", "x".repeat(TEXT_BYTES_CACHED_MAX));
        classifier.classify(long.as_bytes(), Lexing::CERTAIN);
        assert_eq!(classifier.len(), 1);
    }

    #[test]
    fn values_do_not_matter_where_they_do_nothing() {
        let classifier = Classifier::new();
        let classify = |text: &str| classifier.classify(text.as_bytes(), Lexing::CERTAIN);
        let first = classify("UPDATE t SET a = 'x' WHERE id = 1");
        let again = classify("UPDATE t SET a = 'it''s' WHERE id = 23");
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(classifier.len(), 1);
        for [one, other] in [
            ["SELECT nextval('a')", "SELECT nextval('b')"],
            [
                "SELECT set_config('a', 'b', false)",
                "SELECT set_config('c', 'b', false)",
            ],
            ["SET a = 1", "SET a = 2"],
            ["SELECT 1", "\u{1}SELECT \u{2}"],
            ["SELECT 1; SELECT 2", "SELECT 11; SELECT 2"],
        ] {
            assert_ne!(classify(one), classify(other), "{one}");
            assert_eq!(classify(one), classify(one));
        }
    }

    #[test]
    fn what_is_not_certain_is_not_taken_from_the_cache() {
        let classifier = Classifier::new();
        let text = br"SELECT '\'; DELETE FROM t --'";
        let certain = classifier.classify(text, Lexing::CERTAIN);
        let lexing = Lexing {
            standard_strings: false,
            ..Lexing::CERTAIN
        };
        assert_ne!(classifier.classify(text, lexing), certain);
    }

    #[test]
    fn bytes_of_another_encoding_do_nothing_within_values() {
        let classifier = Classifier::new();
        let read = |text: &[u8], ascii_safe: bool| {
            let lexing = Lexing {
                utf8: false,
                ascii_safe,
                ..Lexing::CERTAIN
            };
            let classified = classifier.classify(text, lexing);
            !matches!(classified.statements[0].class, Class::Unknown(_))
        };
        for text in [
            &b"SELECT '\xe9'"[..],
            b"INSERT INTO t VALUES ('caf\xe9', 1), ('x''\xff', 2)",
            b"UPDATE t SET a = '\xe9' WHERE b = '' AND c = 7",
        ] {
            assert!(read(text, true), "{text:?}");
            assert!(!read(text, false), "{text:?}");
        }
        for text in [
            &b"SELECT * FROM \"t\xe9\" WHERE a = 'b'"[..],
            b"SELECT a\xe9 FROM t WHERE a = 'b'",
            b"SELECT '\xe9'; SELECT 1",
            b"SELECT nextval('\xe9')",
            b"SELECT 'a' /* \xe9 */",
            b"SELECT '\xe9', $$b$$",
            b"SET search_path = 'a\xe9'",
            b"DO 'BEGIN END \xe9'",
        ] {
            assert!(!read(text, true), "{text:?}");
        }
        let unsure = Lexing {
            standard_strings: false,
            utf8: false,
            ascii_safe: true,
        };
        let text = b"SELECT '\xe9\\'; DELETE FROM t --'";
        let classified = classifier.classify(text, unsure);
        assert!(matches!(classified.statements[0].class, Class::Unknown(_)));
    }

    #[test]
    fn the_number_of_texts_is_bounded_and_those_in_use_stay() {
        let classifier = Classifier::new();
        for n in 0..ENTRIES_MAX + ENTRIES_MAX / 4 {
            let text = format!("SHOW x{n}");
            classifier.classify(text.as_bytes(), Lexing::CERTAIN);
            classifier.classify(b"SHOW used", Lexing::CERTAIN);
        }
        assert!(classifier.len() <= ENTRIES_MAX);
        assert!(classifier.len() > ENTRIES_MAX - 8 * SHARDS);
        let kept = classifier.shards.iter().any(|shard| {
            let shard = shard.lock().unwrap();
            shard.known.contains_key("SHOW used")
        });
        assert!(kept);
    }
}
