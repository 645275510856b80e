//! The mirror of the embedded store: everything durable, in memory, with the rules of the trait.
//!
//! Pure: an operation changes the mirror and notes in [`Changes`] what the disk must be told and
//! in a list of [`Event`]s what watchers must be told. The committer writes the first, and only
//! then sends the second. A failed write leaves the mirror ahead of the disk: the committer then
//! throws it away and loads another one.
//!
//! Invariants: `entries` and the sessions' `standing` are two views of one set; an entry's session
//! exists; every token and version is at or below `sequence`.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::time::Duration;

use crate::lock_name::LockName;
use crate::store::{
    Enqueue, Enqueued, Entry, Event, QueueView, Remove, Removed, SessionId, StoreError,
};
use crate::token::Token;

/// Released attempts that are remembered for one session. Past it the longest released one is
/// forgotten: a duplicate of that call would have to arrive this many releases late.
pub const RELEASED_PER_SESSION_MAX: usize = 65_536;

/// Where the sequence of an empty store starts: one below the first token, so that
/// [`QueueView::latest`] of a lock that never had an entry is a token too.
pub const SEQUENCE_START: u64 = Token::MIN.get();

/// What is kept of one entry besides its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredEntry {
    pub session: u64,
    pub version: u64,
    pub attempt: u64,
    pub holder: String,
}

/// The last attempt that a session released on a lock, and the token that it had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Released {
    pub attempt: u64,
    pub token: u64,
}

/// What the next transaction must write: the final value of each key, `None` to remove it. An
/// entry that came and went between two transactions costs the disk one removal.
#[derive(Default, Debug)]
pub struct Changes {
    pub sequence: Option<u64>,
    pub sessions: BTreeMap<u64, Option<u64>>,
    pub entries: BTreeMap<(LockName, u64), Option<StoredEntry>>,
    pub released: BTreeMap<(u64, LockName), Option<Released>>,
    pub records: BTreeMap<String, Option<Vec<u8>>>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.sequence.is_none()
            && self.sessions.is_empty()
            && self.entries.is_empty()
            && self.released.is_empty()
            && self.records.is_empty()
    }
}

#[derive(Debug)]
struct Session {
    ttl: Duration,
    standing: HashMap<LockName, Token>,
    released: HashMap<LockName, Released>,
    /// `released` by token, the longest released first.
    released_order: BTreeMap<u64, LockName>,
}

impl Session {
    fn new(ttl: Duration) -> Session {
        Session {
            ttl,
            standing: HashMap::new(),
            released: HashMap::new(),
            released_order: BTreeMap::new(),
        }
    }

    /// Records a release; returns the lock whose older record had to go.
    fn release(&mut self, lock: &LockName, released: Released) -> Option<LockName> {
        if let Some(old) = self.released.insert(lock.clone(), released) {
            self.released_order.remove(&old.token);
        }
        self.released_order.insert(released.token, lock.clone());
        if self.released.len() <= RELEASED_PER_SESSION_MAX {
            return None;
        }
        let (_, forgotten) = self.released_order.pop_first()?;
        self.released.remove(&forgotten);
        Some(forgotten)
    }
}

/// The mirror.
#[derive(Debug)]
pub struct State {
    sequence: u64,
    sessions: HashMap<u64, Session>,
    locks: HashMap<LockName, BTreeMap<Token, StoredEntry>>,
    records: BTreeMap<String, Vec<u8>>,
    changes: Changes,
    events: Vec<Event>,
}

impl Default for State {
    fn default() -> State {
        State {
            sequence: SEQUENCE_START,
            sessions: HashMap::new(),
            locks: HashMap::new(),
            records: BTreeMap::new(),
            changes: Changes::default(),
            events: Vec::new(),
        }
    }
}

/// Loading from disk: what contradicts itself is named, never repaired in silence.
impl State {
    pub fn load_sequence(&mut self, sequence: u64) -> Result<(), String> {
        if !(SEQUENCE_START..=Token::MAX.get()).contains(&sequence) {
            return Err(format!("sequence {sequence} out of range"));
        }
        self.sequence = sequence;
        Ok(())
    }

    pub fn load_session(&mut self, id: u64, ttl_ms: u64) {
        self.sessions
            .insert(id, Session::new(Duration::from_millis(ttl_ms)));
    }

    pub fn load_entry(&mut self, lock: &str, token: u64, entry: StoredEntry) -> Result<(), String> {
        let name = LockName::new(lock).map_err(|error| error.to_string())?;
        let token = Token::new(token).ok_or_else(|| format!("entry of {lock:?}: token {token}"))?;
        if token.get().max(entry.version) > self.sequence {
            return Err(format!(
                "entry of {lock:?}: token {token} above the sequence"
            ));
        }
        let session = self
            .sessions
            .get_mut(&entry.session)
            .ok_or_else(|| format!("entry of {lock:?}: no session {:x}", entry.session))?;
        if session.standing.insert(name.clone(), token).is_some() {
            return Err(format!(
                "session {:x} stands twice in {lock:?}",
                entry.session
            ));
        }
        self.locks.entry(name).or_default().insert(token, entry);
        Ok(())
    }

    pub fn load_released(&mut self, id: u64, lock: &str, released: Released) -> Result<(), String> {
        let name = LockName::new(lock).map_err(|error| error.to_string())?;
        let session = self
            .sessions
            .get_mut(&id)
            .ok_or_else(|| format!("release of {lock:?}: no session {id:x}"))?;
        session.release(&name, released);
        Ok(())
    }

    pub fn load_record(&mut self, name: &str, value: &[u8]) {
        self.records.insert(name.to_owned(), value.to_vec());
    }
}

/// What the committer asks for.
impl State {
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Events since they were last taken.
    pub fn event_count(&self) -> usize {
        self.events.len()
    }

    /// Ids and times to live of all sessions.
    pub fn session_ttls(&self) -> impl Iterator<Item = (u64, Duration)> {
        self.sessions.iter().map(|(id, session)| (*id, session.ttl))
    }

    /// Every entry, lock by lock.
    pub fn entries(&self) -> Vec<Entry> {
        self.locks
            .iter()
            .flat_map(|(lock, queue)| {
                queue
                    .iter()
                    .map(|(token, stored)| entry(lock, *token, stored))
            })
            .collect()
    }
}

/// The operations of the trait.
impl State {
    pub fn open_session(&mut self, id: u64, ttl: Duration) -> Result<(), StoreError> {
        if self.sessions.contains_key(&id) {
            return Err(StoreError::Unavailable(
                "session id taken: try again".to_owned(),
            ));
        }
        self.sessions.insert(id, Session::new(ttl));
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.changes.sessions.insert(id, Some(ttl_ms));
        Ok(())
    }

    pub fn close_session(&mut self, id: u64) {
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        self.changes.sessions.insert(id, None);
        // In the order of the tokens, so that one closing always gives the same events.
        let standing: BTreeMap<Token, LockName> = session
            .standing
            .into_iter()
            .map(|(lock, token)| (token, lock))
            .collect();
        for (token, lock) in standing {
            self.take_entry(&lock, token);
        }
        for lock in session.released.into_keys() {
            self.changes.released.insert((id, lock), None);
        }
    }

    pub fn enqueue(&mut self, enqueue: Enqueue) -> Result<Enqueued, StoreError> {
        let Enqueue {
            lock,
            session: id,
            attempt,
            holder,
            only_if_first,
        } = enqueue;
        let Some(session) = self.sessions.get(&id.0) else {
            return Ok(Enqueued::SessionGone);
        };
        let own = session.standing.get(&lock).copied();
        let released = session
            .released
            .get(&lock)
            .map_or(0, |released| released.attempt);
        if attempt <= released {
            return Ok(Enqueued::AttemptOver { last: released });
        }
        let first = self.first(&lock);
        let last = own.map(|token| self.locks[&lock][&token].attempt);
        if let Some(last) = last.filter(|last| attempt < *last) {
            return Ok(Enqueued::AttemptOver { last });
        }
        if let (true, Some(first)) = (only_if_first, &first)
            && first.session != id
        {
            return Ok(Enqueued::Held {
                holder: first.clone(),
            });
        }
        let mut own = own;
        if let Some(token) = own.filter(|_| last != Some(attempt)) {
            // The earlier attempt is given up with its token.
            self.remove(&Remove {
                lock: lock.clone(),
                session: id,
                token,
                only_version: None,
            });
            own = None;
            if let (true, Some(first)) = (only_if_first, self.first(&lock)) {
                return Ok(Enqueued::Held { holder: first });
            }
        }
        let first = self.first(&lock);
        let version = self.next()?;
        let token = own.unwrap_or(version);
        let stored = StoredEntry {
            session: id.0,
            version: version.get(),
            attempt,
            holder,
        };
        let entry = entry(&lock, token, &stored);
        self.put_entry(lock, token, stored);
        let holder = first
            .filter(|first| first.token < token)
            .unwrap_or_else(|| entry.clone());
        Ok(Enqueued::Standing { entry, holder })
    }

    pub fn remove(&mut self, remove: &Remove) -> Removed {
        let stands = self
            .locks
            .get(&remove.lock)
            .and_then(|queue| queue.get(&remove.token))
            .filter(|entry| entry.session == remove.session.0)
            .filter(|entry| {
                remove
                    .only_version
                    .is_none_or(|version| version == entry.version)
            })
            .map(|entry| Released {
                attempt: entry.attempt,
                token: remove.token.get(),
            });
        if let Some(released) = stands {
            self.take_entry(&remove.lock, remove.token);
            let key = (remove.session.0, remove.lock.clone());
            if let Some(session) = self.sessions.get_mut(&key.0) {
                session.standing.remove(&remove.lock);
                if let Some(forgotten) = session.release(&remove.lock, released) {
                    self.changes.released.insert((key.0, forgotten), None);
                }
                self.changes.released.insert(key, Some(released));
            }
        }
        Removed {
            removed: stands.is_some(),
            next: self.first(&remove.lock),
        }
    }

    pub fn queue(&self, lock: &LockName) -> QueueView {
        let entries = self.locks.get(lock).map_or_else(Vec::new, |queue| {
            queue
                .iter()
                .map(|(token, stored)| entry(lock, *token, stored))
                .collect()
        });
        QueueView {
            entries,
            latest: self.latest(),
        }
    }

    /// At or above every token that was given out, below every later one.
    pub fn latest(&self) -> Token {
        Token::new(self.sequence).unwrap_or(Token::MAX)
    }

    pub fn raise_above(&mut self, token: Token) -> Result<(), StoreError> {
        if token == Token::MAX {
            return Err(StoreError::Refused("no token is above 2^63 - 1".to_owned()));
        }
        if token.get() > self.sequence {
            self.sequence = token.get();
            self.changes.sequence = Some(self.sequence);
        }
        Ok(())
    }

    pub fn put_record(&mut self, name: String, value: Option<Vec<u8>>) {
        match &value {
            Some(value) => self.records.insert(name.clone(), value.clone()),
            None => self.records.remove(&name),
        };
        self.changes.records.insert(name, value);
    }

    pub fn records(&self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        self.records
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(|(name, _)| name.starts_with(prefix))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }

    fn first(&self, lock: &LockName) -> Option<Entry> {
        let (token, stored) = self.locks.get(lock)?.first_key_value()?;
        Some(entry(lock, *token, stored))
    }

    fn next(&mut self) -> Result<Token, StoreError> {
        let next = Token::new(self.sequence + 1)
            .ok_or_else(|| StoreError::Refused("the tokens are used up".to_owned()))?;
        self.sequence = next.get();
        self.changes.sequence = Some(next.get());
        Ok(next)
    }

    fn put_entry(&mut self, lock: LockName, token: Token, stored: StoredEntry) {
        if let Some(session) = self.sessions.get_mut(&stored.session) {
            session.standing.insert(lock.clone(), token);
        }
        self.events.push(Event::Put(entry(&lock, token, &stored)));
        self.changes
            .entries
            .insert((lock.clone(), token.get()), Some(stored.clone()));
        self.locks.entry(lock).or_default().insert(token, stored);
    }

    fn take_entry(&mut self, lock: &LockName, token: Token) {
        let Some(queue) = self.locks.get_mut(lock) else {
            return;
        };
        let Some(stored) = queue.remove(&token) else {
            return;
        };
        if queue.is_empty() {
            self.locks.remove(lock);
        }
        self.changes
            .entries
            .insert((lock.clone(), token.get()), None);
        let session = SessionId(stored.session);
        self.events.push(Event::Gone {
            lock: lock.clone(),
            session,
            token,
        });
    }
}

fn entry(lock: &LockName, token: Token, stored: &StoredEntry) -> Entry {
    Entry {
        lock: lock.clone(),
        session: SessionId(stored.session),
        token,
        version: stored.version,
        attempt: stored.attempt,
        holder: stored.holder.clone(),
        foreign: false,
    }
}
