//! The proxies of the older and of the newer holder: the same one, or two.

use std::thread;
use std::time::Duration;

use crate::stack::Proxy;

/// What becomes of the older holder's proxy while the newer one comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Alive,
    /// kill -9. The one that both have is started again first.
    Killed,
    /// Stopped: the one that both have for some milliseconds, else until the newer holder is there.
    Stopped,
}

pub struct Pair {
    older: Proxy,
    newer: Option<Proxy>,
}

impl Pair {
    pub fn one(proxy: Proxy) -> Pair {
        Pair {
            older: proxy,
            newer: None,
        }
    }

    pub fn two(older: Proxy, newer: Proxy) -> Pair {
        Pair {
            older,
            newer: Some(newer),
        }
    }

    pub fn older(&self) -> &Proxy {
        &self.older
    }

    pub fn newer(&self) -> &Proxy {
        self.newer.as_ref().unwrap_or(&self.older)
    }

    /// Before the newer holder comes.
    pub fn suffer(&mut self, fate: Fate) {
        let alone = self.newer.is_none();
        match fate {
            Fate::Alive => {}
            Fate::Killed => {
                self.older.crash();
                if alone {
                    self.older.start_again();
                }
            }
            Fate::Stopped => {
                self.older.process.signal("STOP");
                if alone {
                    thread::sleep(Duration::from_millis(20));
                    self.older.process.signal("CONT");
                }
            }
        }
    }

    /// Once the newer holder is there.
    pub fn recover(&mut self, fate: Fate) {
        match (fate, self.newer.is_some()) {
            (Fate::Killed, true) => self.older.start_again(),
            (Fate::Stopped, true) => self.older.process.signal("CONT"),
            _ => {}
        }
    }
}
