//! What earlier runs left at backends that can prove it dead: the locks of their recorded sessions
//! start in doubt, each until all of its sessions are proven gone. Where the records were lost, see
//! [`lost`](super::lost).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::doubts::Doubt;
use super::lost::Lost;
use super::watermarks::LeftSession;
use crate::lock_name::LockName;

/// The locks of left sessions. Cheap to clone.
#[derive(Clone, Default)]
pub struct Left {
    recorded: Arc<Mutex<HashMap<LockName, Pending>>>,
    lost: Lost,
}

#[derive(Default)]
struct Pending {
    /// Sessions that are not proven gone.
    sessions: usize,
    /// What waits for it.
    doubts: Vec<Doubt>,
}

impl Left {
    /// All of these may still write.
    pub fn new(sessions: &[LeftSession]) -> Left {
        let mut pending: HashMap<LockName, Pending> = HashMap::new();
        for lock in sessions.iter().flat_map(|left| &left.locks) {
            pending.entry(lock.clone()).or_default().sessions += 1;
        }
        Left {
            recorded: Arc::new(Mutex::new(pending)),
            lost: Lost::default(),
        }
    }

    /// These, and what a lost store would have recorded.
    pub fn with_lost(self, lost: Lost) -> Left {
        Left { lost, ..self }
    }

    /// What a lost store would have recorded.
    pub(super) fn lost(&self) -> &Lost {
        &self.lost
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Pending>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a session that carried writes under this lock may still be there.
    pub fn is_pending(&self, lock: &LockName) -> bool {
        self.is_recorded(lock) || self.lost.holds_back(lock).is_some()
    }

    /// Whether a recorded one may.
    pub(super) fn is_recorded(&self, lock: &LockName) -> bool {
        self.lock().contains_key(lock)
    }

    /// Has the doubt resolved when the lock's sessions are gone; at once if they are.
    pub fn hold(&self, lock: &LockName, doubt: Doubt) {
        if let Some(pending) = self.lock().get_mut(lock) {
            return pending.doubts.push(doubt);
        }
        doubt.resolve();
    }

    /// This session is proven gone.
    pub fn ended(&self, left: &LeftSession) {
        let mut proven = vec![];
        let mut all = self.lock();
        for lock in &left.locks {
            let Some(pending) = all.get_mut(lock) else {
                continue;
            };
            pending.sessions -= 1;
            if pending.sessions == 0 {
                proven.extend(all.remove(lock).map(|pending| pending.doubts));
            }
        }
        drop(all);
        proven.into_iter().flatten().for_each(Doubt::resolve);
    }
}
