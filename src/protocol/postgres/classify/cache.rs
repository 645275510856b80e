//! What was found about a text, by text.
//!
//! Bounded in entries and bytes; the oldest that was not asked for since goes first (a clock). The
//! whole text is compared, never its hash alone: a text that collides with another must not get its
//! class.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Classified, Lexing, classify_text};

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
    hasher: std::hash::RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    known: HashMap<Arc<str>, Known>,
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
            Err(why) => return Arc::new(Classified::unreadable(why, text.len())),
        };
        if text.len() > TEXT_BYTES_CACHED_MAX {
            return Arc::new(classify_text(text));
        }
        // The high bits: the map within uses the low ones of another hash.
        let shard = (self.hasher.hash_one(text) >> 60) as usize % SHARDS;
        let shard = &self.shards[shard];
        // A panic under this lock leaves a cache that is short of something at worst.
        let lock = || shard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(text) {
            return known;
        }
        let classified = Arc::new(classify_text(text));
        lock().insert(text, &classified);
        classified
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

#[cfg(test)]
mod tests {
    use super::{Classifier, ENTRIES_MAX, SHARDS, TEXT_BYTES_CACHED_MAX};
    use crate::protocol::postgres::classify::Lexing;

    #[test]
    fn a_text_is_found_again_and_a_long_one_is_not_kept() {
        let classifier = Classifier::new();
        let first = classifier.classify(b"SELECT 1", Lexing::CERTAIN);
        let again = classifier.classify(b"SELECT 1", Lexing::CERTAIN);
        assert!(std::sync::Arc::ptr_eq(&first, &again));
        let long = format!("SELECT '{}'", "x".repeat(TEXT_BYTES_CACHED_MAX));
        classifier.classify(long.as_bytes(), Lexing::CERTAIN);
        assert_eq!(classifier.len(), 1);
    }

    #[test]
    fn what_is_not_certain_is_not_taken_from_the_cache() {
        let classifier = Classifier::new();
        let text = br"SELECT '\'; DELETE FROM t --'";
        let certain = classifier.classify(text, Lexing::CERTAIN);
        let lexing = Lexing {
            standard_strings: false,
            utf8: true,
        };
        assert_ne!(classifier.classify(text, lexing), certain);
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
