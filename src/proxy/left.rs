//! What earlier runs left at backends that can prove it dead: the locks of their recorded sessions
//! start in doubt, each until all of its sessions are proven gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::doubts::Doubt;
use super::watermarks::LeftSession;
use crate::lock_name::LockName;

/// The locks of left sessions. Cheap to clone.
#[derive(Clone, Default)]
pub struct Left(Arc<Mutex<HashMap<LockName, Pending>>>);

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
        Left(Arc::new(Mutex::new(pending)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Pending>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a session that carried writes under this lock may still be there.
    pub fn is_pending(&self, lock: &LockName) -> bool {
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
