//! What the lockds are held against.

use std::collections::BTreeMap;

use ringfence::queue::{Event, Place};
use ringfence::token::Token;

use crate::lock;

/// The store: the queue as it truly is, and its changes in order.
#[derive(Default)]
pub struct Truth {
    pub queue: BTreeMap<Token, Place>,
    pub log: Vec<Event>,
    pub last: u64,
}

impl Truth {
    pub fn create(&mut self, place: Place) -> Token {
        self.last += 1;
        let token = Token::new(self.last).unwrap();
        self.write(token, place);
        token
    }

    pub fn write(&mut self, token: Token, place: Place) {
        self.queue.insert(token, place.clone());
        let lock = lock();
        self.log.push(Event::Put { lock, token, place });
    }

    pub fn remove(&mut self, token: Token) {
        if self.queue.remove(&token).is_some() {
            let lock = lock();
            self.log.push(Event::Gone { lock, token });
        }
    }

    pub fn first(&self) -> Option<Token> {
        self.queue.keys().next().copied()
    }
}
