//! What the mirror is held against.

use std::collections::{BTreeMap, BTreeSet};

use ringfence::lock_name::LockName;
use ringfence::queue::Event;
use ringfence::token::Token;

use crate::place;

/// Who stands in line for each lock.
pub type Queues = BTreeMap<LockName, BTreeSet<Token>>;

/// The store as it truly is, with the log that the watch tells with a delay.
#[derive(Default)]
pub struct Truth {
    pub queues: Queues,
    pub log: Vec<Event>,
    pub last_token: u64,
    pub was_first: BTreeSet<(LockName, Token)>,
}

impl Truth {
    pub fn put(&mut self, lock: &LockName, token: Token) {
        self.queues.entry(lock.clone()).or_default().insert(token);
        self.log.push(Event::Put {
            lock: lock.clone(),
            token,
            place: place(token.get()),
        });
        self.note_first(lock);
    }

    pub fn create(&mut self, lock: &LockName) -> Token {
        self.last_token += 1;
        let token = Token::new(self.last_token).unwrap();
        self.put(lock, token);
        token
    }

    pub fn remove(&mut self, lock: &LockName, token: Token) {
        self.queues.entry(lock.clone()).or_default().remove(&token);
        self.log.push(Event::Gone {
            lock: lock.clone(),
            token,
        });
        self.note_first(lock);
    }

    pub fn note_first(&mut self, lock: &LockName) {
        if let Some(first) = self.first(lock) {
            self.was_first.insert((lock.clone(), first));
        }
    }

    pub fn first(&self, lock: &LockName) -> Option<Token> {
        self.queues
            .get(lock)
            .and_then(|queue| queue.first())
            .copied()
    }

    pub fn tokens(&self, lock: &LockName) -> Vec<Token> {
        self.queues
            .get(lock)
            .into_iter()
            .flatten()
            .copied()
            .collect()
    }

    pub fn stands(&self, lock: &LockName, token: Token) -> bool {
        self.queues
            .get(lock)
            .is_some_and(|queue| queue.contains(&token))
    }

    /// The queues when the log had this length.
    pub fn at(&self, length: usize) -> Queues {
        let mut queues = Queues::new();
        for event in &self.log[..length] {
            match event {
                Event::Put { lock, token, .. } => {
                    queues.entry(lock.clone()).or_default().insert(*token);
                }
                Event::Gone { lock, token } => {
                    queues.entry(lock.clone()).or_default().remove(token);
                }
                Event::Reset | Event::Synced => unreachable!("the log has no such event"),
            }
        }
        queues
    }
}
