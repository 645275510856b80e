//! The one thread that changes the embedded store: group commit.
//!
//! It takes whatever operations wait, applies them to the mirror, makes all of them durable by one
//! transaction, and only then answers them and tells the watchers. While the disk works, the next
//! group gathers: the more callers, the larger the group.
//!
//! After an error of the disk nothing is known of the group but that it may or may not be there.
//! Its callers hear "unavailable", the file is closed, opened again and read whole into a new
//! mirror, and every watch starts again. Until that succeeds, each operation is answered
//! "unavailable" at once. A file whose tokens are below those that were answered is an older copy
//! that somebody has put there: it is never gone on with.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::deadlines::Deadlines;
use super::disk::{Disk, Opener};
use super::state::State;
use crate::clock;
use crate::store::{Event, StoreError};
use crate::token::Token;

/// Most operations in one transaction.
const GROUP_OPS_MAX: usize = 4096;

/// Shortest time between two tries to open a failed file again.
const REOPEN_EVERY: Duration = Duration::from_millis(100);

/// Groups of events that a watch may be behind before it has to start again.
const WATCH_GROUPS_MAX: usize = 1024;

/// Told to the caller when its group is durable, or has failed.
pub type Answer = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// One operation: applied to the mirror, it returns the answer to give after the commit. `Err`
/// instead of the mirror: the store is not open, and the operation answers by itself.
pub type Job = Box<dyn FnOnce(Result<&mut Mirror, StoreError>) -> Option<Answer> + Send>;

/// Groups of events, in order. Ends when the reader fell behind or the mirror was replaced.
pub type Live = mpsc::Receiver<Arc<[Event]>>;

/// What an operation may touch.
pub struct Mirror {
    /// Everything durable.
    pub state: State,
    /// Shared with renewals, which do not pass through here.
    pub deadlines: Arc<Mutex<Deadlines>>,
    watches: Vec<Watch>,
}

struct Watch {
    sender: mpsc::Sender<Arc<[Event]>>,
    /// Events of the running group that its reader has seen in what it read at the start.
    skip: usize,
}

impl Mirror {
    /// Gives every session its whole time to live.
    fn new(state: State, deadlines: Arc<Mutex<Deadlines>>) -> Mirror {
        let now = clock::boottime();
        let mut fresh = Deadlines::default();
        for (id, ttl) in state.session_ttls() {
            fresh.start(id, ttl, now);
        }
        *lock(&deadlines) = fresh;
        Mirror {
            state,
            deadlines,
            watches: Vec::new(),
        }
    }

    /// A watch of what follows the operations that were applied so far.
    pub fn subscribe(&mut self) -> Live {
        let (sender, live) = mpsc::channel(WATCH_GROUPS_MAX);
        self.watches.push(Watch {
            sender,
            skip: self.state.event_count(),
        });
        live
    }

    /// Tells the watches. One that is full is dropped: its reader starts again by itself.
    fn publish(&mut self, events: Vec<Event>) {
        let all: Arc<[Event]> = events.into();
        self.watches.retain_mut(|watch| {
            let skip = std::mem::take(&mut watch.skip);
            match all.get(skip..) {
                None | Some([]) => !watch.sender.is_closed(),
                Some(rest) if skip > 0 => watch.sender.try_send(rest.into()).is_ok(),
                Some(_) => watch.sender.try_send(Arc::clone(&all)).is_ok(),
            }
        });
    }
}

/// The deadlines, whatever happened to another holder of their mutex: each change is complete.
pub fn lock(deadlines: &Mutex<Deadlines>) -> MutexGuard<'_, Deadlines> {
    deadlines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's own state.
pub struct Committer {
    opener: Opener,
    deadlines: Arc<Mutex<Deadlines>>,
    open: Result<(Disk, Mirror), StoreError>,
    /// At or above every token that was answered.
    answered: Token,
    tried: Instant,
}

impl Committer {
    /// Opens the file.
    pub fn open(opener: Opener, deadlines: Arc<Mutex<Deadlines>>) -> Result<Committer, StoreError> {
        let (disk, state) = Disk::open(&opener)?;
        let answered = state.latest();
        let mirror = Mirror::new(state, Arc::clone(&deadlines));
        Ok(Committer {
            opener,
            deadlines,
            open: Ok((disk, mirror)),
            answered,
            tried: Instant::now(),
        })
    }

    /// Works until every sender is gone, or `stopping` is set and a last job came; all that was
    /// sent before is answered.
    pub fn run(mut self, mut jobs: mpsc::Receiver<Job>, stopping: &AtomicBool) {
        let mut group = Vec::with_capacity(GROUP_OPS_MAX);
        while jobs.blocking_recv_many(&mut group, GROUP_OPS_MAX) > 0 {
            self.reopen_if_failed();
            self.commit(&mut group);
            if stopping.load(Ordering::Acquire) && jobs.is_empty() {
                return;
            }
        }
    }

    fn commit(&mut self, group: &mut Vec<Job>) {
        let (disk, mirror) = match &mut self.open {
            Ok(open) => open,
            Err(error) => {
                for job in group.drain(..) {
                    job(Err(StoreError::Unavailable(error.to_string())));
                }
                return;
            }
        };
        let answers: Vec<Answer> = group.drain(..).filter_map(|job| job(Ok(mirror))).collect();
        let changes = mirror.state.take_changes();
        let committed = if changes.is_empty() {
            Ok(())
        } else {
            disk.commit(&changes)
        };
        let events = mirror.state.take_events();
        if let Err(error) = &committed {
            tracing::error!(%error, "embedded store: closing the file to read it again");
            // Drops the mirror and with it the watches; the file is closed before it is reopened.
            self.open = Err(error.clone());
        } else {
            self.answered = mirror.state.latest();
            mirror.publish(events);
        }
        let told = committed.map_err(|error| StoreError::Unavailable(error.to_string()));
        for answer in answers {
            answer(told.clone());
        }
    }

    fn reopen_if_failed(&mut self) {
        if self.open.is_ok() || self.tried.elapsed() < REOPEN_EVERY {
            return;
        }
        self.tried = Instant::now();
        self.open = Disk::open(&self.opener).and_then(|(disk, state)| {
            let (found, answered) = (state.latest(), self.answered);
            if found < answered {
                return Err(StoreError::Corrupt(format!(
                    "it has given out tokens up to {found}, and {answered} was given out before: \
                     it is an older copy of the store. Put the store itself back, or start again \
                     with --init"
                )));
            }
            tracing::info!("embedded store: open again");
            Ok((disk, Mirror::new(state, Arc::clone(&self.deadlines))))
        });
        if let Err(error) = &self.open {
            tracing::warn!(%error, "embedded store: still closed");
        }
    }
}
