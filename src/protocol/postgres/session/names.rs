//! Prepared statements and portals by name.
//!
//! A name is taken for certain when the server has said so. Until then both what it was and what it
//! may become count: a Parse of a name that exists fails, and the older statement stays.

use std::collections::HashMap;

/// Most names of one kind in a session.
pub const NAMES_MAX: usize = 100_000;

/// Longest name that is kept, in bytes; SQL's own names are cut to 63.
pub const NAME_BYTES_MAX: usize = 4096;

/// Names, certain and awaited.
#[derive(Debug)]
pub(super) struct Names<T> {
    certain: HashMap<Box<[u8]>, T>,
    /// In the order in which the server will answer.
    awaited: Vec<(Box<[u8]>, T)>,
}

impl<T: Clone> Names<T> {
    pub(super) fn new() -> Names<T> {
        Names {
            certain: HashMap::new(),
            awaited: vec![],
        }
    }

    /// Whether one more has a place.
    pub(super) fn has_room(&self, name: &[u8]) -> bool {
        name.len() <= NAME_BYTES_MAX && self.certain.len() + self.awaited.len() < NAMES_MAX
    }

    /// Everything that a name may mean when the server gets to it.
    pub(super) fn candidates(&self, name: &[u8]) -> Vec<T> {
        let awaited = self
            .awaited
            .iter()
            .rev()
            .filter(|(known, _)| **known == *name);
        // What replaces an unnamed one leaves nothing of it; when it fails, nothing is left at all.
        if name.is_empty()
            && let Some((_, newest)) = awaited.clone().next()
        {
            return vec![newest.clone()];
        }
        let awaited = awaited.map(|(_, value)| value.clone());
        awaited.chain(self.certain.get(name).cloned()).collect()
    }

    pub(super) fn await_one(&mut self, name: &[u8], value: T) {
        self.awaited.push((name.into(), value));
    }

    /// The server made the oldest awaited of this name.
    pub(super) fn confirm(&mut self, name: &[u8]) {
        if let Some(at) = self.awaited.iter().position(|(known, _)| **known == *name) {
            let (name, value) = self.awaited.remove(at);
            self.certain.insert(name, value);
        }
    }

    /// The server will not make the oldest awaited of this name.
    pub(super) fn give_up(&mut self, name: &[u8]) {
        if let Some(at) = self.awaited.iter().position(|(known, _)| **known == *name) {
            self.awaited.remove(at);
        }
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        self.certain.remove(name);
    }

    pub(super) fn clear(&mut self) {
        self.certain.clear();
    }
}
