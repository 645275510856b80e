//! A lost store had recorded which backend sessions carry fenced writes. With it lost, nobody knows
//! them: the locks of listeners whose backends prove what is dead start in doubt, until every
//! client session that such a backend had when the loss was told is proven gone.
//!
//! Invariants:
//! - sessions are listed only after lockd has said that the store was lost: the process that had it
//!   does not run any more then, and opens no further one;
//! - a lock's doubt is resolved only when that is done at every listener that it concerns.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::doubts::Doubt;
use super::registry::Standing;
use crate::lock_name::{LockName, LockPattern};

/// First and longest wait between two tries.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// What is to be ended before the locks open. Cheap to clone.
#[derive(Clone, Default)]
pub struct Lost(Option<Arc<Shared>>);

struct Shared {
    standing: watch::Receiver<Standing>,
    /// The run before was told so, and did not end it.
    unconfirmed: bool,
    state: Mutex<State>,
    /// The locks that rules name, of any listener.
    named: Vec<LockPattern>,
    /// How many listeners are open yet.
    open: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    open: Vec<Open>,
    waiting: Vec<(LockName, Doubt)>,
}

/// A listener at whose backend sessions may be that nobody knows.
struct Open {
    name: String,
    patterns: Vec<LockPattern>,
    /// What the last try has found.
    reason: String,
}

/// How one listener's backend is swept.
pub(super) trait Sweep: Send {
    /// Has the client sessions ended that the backend had at the first call, and asks how many of
    /// them are still there. The error says why that is not known, or not done.
    fn sweep(&mut self) -> impl Future<Output = Result<usize, String>> + Send;
}

impl Lost {
    /// Where lockd tells of a loss. `unconfirmed`: as the store was at the start
    /// ([`Start::unconfirmed`](super::watermarks::Start::unconfirmed)). `named`: the locks that
    /// rules name, of any listener.
    pub fn new(
        standing: watch::Receiver<Standing>,
        unconfirmed: bool,
        named: Vec<LockPattern>,
    ) -> Lost {
        Lost(Some(Arc::new(Shared {
            standing,
            unconfirmed,
            named,
            open: watch::Sender::new(0),
            state: Mutex::default(),
        })))
    }

    /// Has a listener's backend swept if the store was lost. For the start, before anything is
    /// admitted. `patterns`: the locks of its rules.
    pub(super) fn sweep(
        &self,
        name: &str,
        patterns: Vec<LockPattern>,
        sweep: impl Sweep + 'static,
        tasks: &mut JoinSet<()>,
    ) {
        let Some(shared) = &self.0 else {
            return;
        };
        let mut state = shared.lock();
        state.open.push(Open {
            name: name.to_owned(),
            patterns,
            reason: "not looked at yet".to_owned(),
        });
        shared.open.send_replace(state.open.len());
        tasks.spawn(Arc::clone(shared).run(name.to_owned(), sweep));
    }

    /// The listener whose backend may still have something of this lock. While nothing is known of
    /// the store, no signed ticket is either.
    pub(super) fn holds_back(&self, lock: &LockName) -> Option<String> {
        let shared = self.0.as_ref().filter(|it| it.is_lost())?;
        let state = shared.lock();
        shared.find(&state, lock).map(|open| open.name.clone())
    }

    /// Has the doubt resolved when nothing holds the lock back; at once if nothing does.
    pub(super) fn hold(&self, lock: &LockName, doubt: Doubt) {
        if let Some(shared) = self.0.as_ref().filter(|it| it.is_lost()) {
            let mut state = shared.lock();
            if shared.find(&state, lock).is_some() {
                return state.waiting.push((lock.clone(), doubt));
            }
        }
        doubt.resolve();
    }

    /// Whether nothing waits for it; the error says what does.
    pub(super) fn check(&self) -> Result<(), String> {
        let Some(shared) = self.0.as_ref().filter(|it| it.is_lost()) else {
            return Ok(());
        };
        match shared.lock().open.first() {
            None => Ok(()),
            Some(Open { name, reason, .. }) => Err(format!(
                "listener {name:?}: the watermarks were lost, and sessions that may be left at the \
                 backend are not proven gone: {reason}"
            )),
        }
    }

    /// Waits until every listener's backend is swept.
    pub(super) async fn ended(&self) {
        let Some(shared) = &self.0 else {
            return;
        };
        let mut open = shared.open.subscribe();
        // The sender lives as long as we do.
        let _ = open.wait_for(|open| *open == 0).await;
    }
}

impl Shared {
    /// Sweeps a listener's backend if the store was lost. Ends when that is done.
    async fn run(self: Arc<Shared>, name: String, mut sweep: impl Sweep) {
        let mut standing = self.standing.clone();
        let told = standing.wait_for(|standing| *standing != Standing::Pending);
        // An error: the proxy is ending.
        if told.await.is_err() || !self.is_lost() {
            return;
        }
        tracing::warn!(
            listener = name,
            "the watermarks were lost: every client session at the backend is being ended"
        );
        let mut backoff = BACKOFF.0;
        loop {
            let reason = match sweep.sweep().await {
                Ok(0) => return self.swept(&name),
                Ok(count) => format!("{count} of them are still there"),
                Err(reason) => reason,
            };
            self.note(&name, reason);
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF.1);
        }
    }

    fn is_lost(&self) -> bool {
        match *self.standing.borrow() {
            Standing::StoreLost => true,
            Standing::Same | Standing::SealsMissed => self.unconfirmed,
            Standing::New | Standing::Pending => false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, name: &str, reason: String) {
        let mut state = self.lock();
        let Some(open) = state.open.iter_mut().find(|open| open.name == name) else {
            return;
        };
        if open.reason != reason {
            tracing::warn!(
                listener = name,
                reason,
                "old sessions wait: its locks stay closed"
            );
            open.reason = reason;
        }
    }

    fn swept(&self, name: &str) {
        let mut state = self.lock();
        state.open.retain(|open| open.name != name);
        let waiting = std::mem::take(&mut state.waiting);
        let (waiting, proven): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|(lock, _)| self.find(&state, lock).is_some());
        state.waiting = waiting;
        let open = state.open.len();
        drop(state);
        proven.into_iter().for_each(|(_, doubt)| doubt.resolve());
        tracing::warn!(listener = name, "no session of the lost store is left");
        self.open.send_replace(open);
    }

    /// An open listener that this lock concerns. A lock that no rule names can still be carried
    /// through any listener.
    fn find<'s>(&self, state: &'s State, lock: &LockName) -> Option<&'s Open> {
        let names = |patterns: &[LockPattern]| patterns.iter().any(|it| it.matches(lock));
        let is_named = names(&self.named);
        let mut open = state.open.iter();
        open.find(|open| !is_named || names(&open.patterns))
    }
}

#[cfg(test)]
mod tests {
    use super::{Lost, Standing, Sweep};
    use crate::lock_name::{LockName, LockPattern};
    use tokio::sync::{mpsc, watch};
    use tokio::task::JoinSet;

    /// Answers as it is told.
    struct Told(mpsc::Receiver<Result<usize, String>>);

    impl Sweep for Told {
        async fn sweep(&mut self) -> Result<usize, String> {
            self.0.recv().await.unwrap()
        }
    }

    fn lock(name: &str) -> LockName {
        LockName::new(name).unwrap()
    }

    fn pattern(text: &str) -> LockPattern {
        LockPattern::new(text).unwrap()
    }

    /// With the sweep of one listener.
    fn add(
        lost: &Lost,
        name: &str,
        tasks: &mut JoinSet<()>,
    ) -> mpsc::Sender<Result<usize, String>> {
        let (answers, told) = mpsc::channel(8);
        lost.sweep(name, vec![pattern(name)], Told(told), tasks);
        answers
    }

    fn lost(standing: Standing, unconfirmed: bool) -> (Lost, watch::Sender<Standing>) {
        let standing = watch::Sender::new(standing);
        let named = ["a", "b", "c"].map(pattern);
        let lost = Lost::new(standing.subscribe(), unconfirmed, named.into());
        (lost, standing)
    }

    #[tokio::test]
    async fn the_locks_of_a_listener_open_when_its_backend_is_swept() {
        let (lost, standing) = lost(Standing::Pending, true);
        assert_eq!(lost.holds_back(&lock("a")), None);
        let mut tasks = JoinSet::new();
        let answers = add(&lost, "a", &mut tasks);
        let _never = add(&lost, "b", &mut JoinSet::new());
        answers.send(Err("denied".to_owned())).await.unwrap();
        standing.send_replace(Standing::StoreLost);
        while !lost.check().unwrap_err().contains("denied") {
            tokio::task::yield_now().await;
        }
        assert_eq!(lost.holds_back(&lock("a")), Some("a".to_owned()));
        answers.send(Ok(1)).await.unwrap();
        answers.send(Ok(0)).await.unwrap();
        tasks.join_next().await.unwrap().unwrap();
        assert_eq!(lost.holds_back(&lock("a")), None);
        assert_eq!(lost.holds_back(&lock("b")), Some("b".to_owned()));
        // Another listener's, and one that may be carried through any.
        assert_eq!(lost.holds_back(&lock("c")), None);
        assert_eq!(lost.holds_back(&lock("d")), Some("b".to_owned()));
        assert!(lost.check().is_err());
    }

    #[tokio::test]
    async fn a_store_that_is_there_holds_nothing_back() {
        for (standing, unconfirmed) in [(Standing::New, true), (Standing::Same, false)] {
            let (lost, _standing) = lost(standing, unconfirmed);
            let mut tasks = JoinSet::new();
            let _never = add(&lost, "a", &mut tasks);
            tasks.join_next().await.unwrap().unwrap();
            assert_eq!(lost.holds_back(&lock("a")), None);
            assert_eq!(lost.check(), Ok(()));
        }
        // The run before has not ended it.
        let (lost, _standing) = lost(Standing::Same, true);
        let _never = add(&lost, "a", &mut JoinSet::new());
        assert_eq!(lost.holds_back(&lock("a")), Some("a".to_owned()));
    }
}
