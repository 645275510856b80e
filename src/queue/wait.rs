//! Waiting calls: opened before their entry is written, judged from then on.

use super::{Changes, Lock, Mirror};
use crate::lock_name::LockName;
use crate::token::Token;

/// Names a wait of this mirror. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct WaitId(u64);

/// What the mirror knows of a wait's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Another entry is before it, or the watch has not told of it yet.
    Waiting,
    /// It became the first of its lock: it holds. Its end is reported too, unless a restart of
    /// the watch hid both its beginning and its end.
    First,
    /// It is no longer in the queue: released, cancelled, broken, or its session ended.
    Gone,
    /// The watch restarted and does not tell: [`Mirror::begin_read`], read the queue, then
    /// [`Mirror::observe`], as long as it is so.
    Unknown,
}

/// A call that waits for its entry to become the first.
pub(super) struct Wait {
    pub(super) lock: LockName,
    /// The token of its entry, once the entry is written.
    pub(super) token: Option<Token>,
    /// Whether the watch has run without a restart since the wait was opened or a read was begun.
    pub(super) certain: bool,
    pub(super) verdict: Verdict,
    /// The lock was handed over to it.
    pub(super) handed_over: bool,
}

impl Wait {
    /// Takes over a verdict; true when it is another one. What was first can only become gone, and
    /// what is gone stays so.
    pub(super) fn become_(&mut self, verdict: Verdict) -> bool {
        let allowed = match self.verdict {
            Verdict::Waiting => verdict != Verdict::Waiting,
            Verdict::Unknown => verdict != Verdict::Unknown,
            Verdict::First => verdict == Verdict::Gone,
            Verdict::Gone => false,
        };
        if allowed {
            self.verdict = verdict;
        }
        allowed
    }
}

impl Mirror {
    /// Opens a wait on a lock, before the entry is written: from now on the mirror remembers what
    /// it needs to judge the entry, however early the watch tells of it.
    pub fn open_wait(&mut self, lock: &LockName) -> WaitId {
        self.waits_opened += 1;
        let id = WaitId(self.waits_opened);
        // During a restart of the watch the state that it will tell may be older or newer than the
        // entry.
        let certain = self.incoming.is_none();
        let wait = Wait {
            lock: lock.clone(),
            token: None,
            certain,
            verdict: Verdict::Waiting,
            handed_over: false,
        };
        self.waits.insert(id, wait);
        match self.locks.get_mut(lock) {
            Some(record) => record.open += 1,
            None => {
                self.locks.insert(
                    lock.clone(),
                    Lock {
                        open: 1,
                        ..Lock::default()
                    },
                );
            }
        }
        id
    }

    /// The entry of the wait has been written and has this token. Returns what is known of it; a
    /// later change is reported in [`Changes::woken`].
    pub fn stand(&mut self, id: WaitId, token: Token) -> Verdict {
        let Some(wait) = self.waits.get_mut(&id) else {
            return Verdict::Gone;
        };
        if wait.token.is_some() {
            return wait.verdict;
        }
        wait.token = Some(token);
        let Some(lock) = self.locks.get_mut(&wait.lock) else {
            return Verdict::Gone;
        };
        lock.standing.entry(token).or_default().push(id);
        let seen = lock.entries.contains_key(&token);
        let verdict = match lock.judge(token) {
            Some(verdict) => verdict,
            None if seen || wait.certain => Verdict::Waiting,
            None => Verdict::Unknown,
        };
        wait.become_(verdict);
        wait.verdict
    }

    /// What is known of the wait's entry now. A closed wait's is gone.
    pub fn verdict(&self, id: WaitId) -> Verdict {
        self.waits
            .get(&id)
            .map_or(Verdict::Gone, |wait| wait.verdict)
    }

    /// A linearizable read of the lock's queue is about to start, to settle an unknown verdict.
    pub fn begin_read(&mut self, id: WaitId) {
        if let Some(wait) = self.waits.get_mut(&id) {
            wait.certain = true;
        }
    }

    /// The read saw these tokens (ascending). The verdict stays unknown if the entry waits and the
    /// watch restarted after [`Mirror::begin_read`]: it may have skipped the end of the entry.
    pub fn observe(&mut self, id: WaitId, tokens: &[Token]) -> Changes {
        let mut changes = Changes::default();
        let Some(wait) = self.waits.get_mut(&id) else {
            return changes;
        };
        let Some(token) = wait.token else {
            return changes;
        };
        let verdict = match tokens.iter().position(|seen| *seen == token) {
            None => Verdict::Gone,
            Some(0) => Verdict::First,
            // It stood after the last restart of the watch, which has still to tell of it.
            Some(_) if wait.certain => Verdict::Waiting,
            Some(_) => Verdict::Unknown,
        };
        if wait.become_(verdict) {
            changes.woken.push(id);
        }
        if let Some(first) = tokens.first() {
            let name = wait.lock.clone();
            self.raise_first(&name, *first, &mut changes);
        }
        changes
    }

    /// Ends the wait. Its entry stays where it is.
    pub fn close_wait(&mut self, id: WaitId) {
        let Some(wait) = self.waits.remove(&id) else {
            return;
        };
        let Some(lock) = self.locks.get_mut(&wait.lock) else {
            return;
        };
        lock.open -= 1;
        if let Some(token) = wait.token
            && let Some(ids) = lock.standing.get_mut(&token)
        {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                lock.standing.remove(&token);
            }
        }
        self.forget_if_unused(&wait.lock);
    }

    /// How many waits are open, in all.
    pub fn waits_open(&self) -> usize {
        self.waits.len()
    }
}
