//! Lanes: backend connections that the clients of one holder share for short write commands.
//!
//! Where many clients write with the same tickets, one command each, their commands leave in one
//! write and their replies come in one read, which spares the proxy and Redis most system calls.
//! Everything else goes over a client's own connection.
//!
//! A lane is of one core, one user, one version of RESP, one database and one set of claims: a
//! newer token ends the lane of the older one and nobody else's. It carries only commands that do
//! not depend on their connection and leave nothing on it (`conversation::plain`), whose replies
//! are short (`protocol::redis::brief`), of clients that have nothing else on its way: so that
//! a client's commands are run in its order.
//!
//! Invariants:
//! - a lane is a session as any other: recorded before it carries a write, its permits finished
//!   when the reply is whole, condemned when it is lost;
//! - a command that is handed over has an outcome, whatever becomes of the lane.

mod mailbox;
mod run;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

pub(super) use self::mailbox::{Mailbox, Outcome};

use super::RedisListening;
use super::flights::Load;
use super::link::{Extent, Link};
use crate::protocol::Kind;
use crate::protocol::redis::{ReplyHead, ReplyScanner};
use crate::proxy::accept::Alive;
use crate::proxy::gates::Claim;

/// So many clients make a lane worth its connection.
const MEMBERS_MIN: usize = 4;
/// Locks of one lane, at most.
pub(super) const CLAIMS_MAX: usize = 8;
/// Commands on their way, at most, and bytes of theirs that wait to be sent.
const WAITING_MAX: usize = 1024;
const WAITING_BYTES_MAX: usize = 256 << 10;
/// Before another lane takes the place of one that has ended.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What a lane's commands have in common.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// The command that logs in, as Redis gets it; none: the user that a fresh connection has. It
    /// holds a password.
    pub(super) login: Option<Arc<[u8]>>,
    /// The version of RESP.
    pub(super) resp: u8,
    pub(super) database: u32,
    /// Sorted by lock.
    pub(super) claims: Arc<[Claim]>,
}

/// The lanes of one listener on one core.
pub(super) struct Lanes {
    lanes: Mutex<HashMap<Key, Weak<Lane>>>,
}

impl Lanes {
    /// None yet.
    pub(super) fn new() -> Lanes {
        Lanes {
            lanes: Mutex::default(),
        }
    }

    /// Makes a session a member of the lane with this key. The lane opens when it is worth it.
    pub(super) fn join(&self, key: Key, listening: &Arc<RedisListening>, alive: &Alive) -> Member {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if lanes.len() == lanes.capacity() {
            lanes.retain(|_, lane| lane.strong_count() > 0);
        }
        let known = lanes.get(&key).and_then(Weak::upgrade);
        let lane = known.filter(|lane| !lane.has_ended()).unwrap_or_else(|| {
            let lane = Arc::new(Lane::new(key.clone()));
            lanes.insert(key, Arc::downgrade(&lane));
            lane
        });
        let members = lane.members.fetch_add(1, Ordering::Relaxed) + 1;
        if members >= MEMBERS_MIN && lane.begin() {
            let carried = run::carry(Arc::clone(&lane), Arc::clone(listening), alive.clone());
            tokio::spawn(carried);
        }
        Member { lane }
    }
}

/// A session's membership of a lane.
pub(super) struct Member {
    lane: Arc<Lane>,
}

impl Member {
    /// The lane.
    pub(super) fn lane(&self) -> &Lane {
        &self.lane
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.lane.members.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.lane.state().wake();
        }
    }
}

/// How far a lane is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It has too few members to be opened.
    Closed,
    Opening,
    /// It takes commands.
    Open,
    /// A gate did not let a command pass: it takes none until its claims are settled anew.
    Unsettled,
    /// It belongs to the clients that wait for their writes, and ends after that.
    TakenOver,
    /// Since then.
    Ended(Instant),
}

pub(super) struct Lane {
    key: Key,
    members: AtomicUsize,
    state: Mutex<State>,
}

/// What a lane and those who hand commands over share.
struct State {
    stage: Stage,
    link: Option<Link>,
    replies: ReplyScanner,
    /// The reply that is under way.
    head: Option<ReplyHead>,
    /// Whose replies are due, in order.
    waiting: VecDeque<Waiting>,
    waker: Option<Waker>,
    /// How often it was settled since a command passed.
    rounds: usize,
}

struct Waiting {
    mailbox: Arc<Mailbox>,
    load: Load,
}

impl State {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Lane {
    fn new(key: Key) -> Lane {
        Lane {
            key,
            members: AtomicUsize::new(0),
            state: Mutex::new(State {
                stage: Stage::Closed,
                link: None,
                replies: ReplyScanner::new(),
                head: None,
                waiting: VecDeque::new(),
                waker: None,
                rounds: 0,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its opening begins now.
    fn begin(&self) -> bool {
        let mut state = self.state();
        let begins = state.stage == Stage::Closed;
        if begins {
            state.stage = Stage::Opening;
        }
        begins
    }

    /// Whether it takes no command any more, and never will.
    fn has_ended(&self) -> bool {
        matches!(self.state().stage, Stage::TakenOver | Stage::Ended(_))
    }

    /// Whether another lane may take its place by now.
    pub(super) fn is_replaceable(&self, now: Instant) -> bool {
        match self.state().stage {
            Stage::TakenOver => true,
            Stage::Ended(since) => now.duration_since(since) >= AGAIN_AFTER,
            _ => false,
        }
    }

    /// Hands a write command over, if it may leave at once. Its outcome comes to the mailbox.
    pub(super) fn submit(&self, request: &[u8], mailbox: &Arc<Mailbox>) -> bool {
        let mut state = self.state();
        if state.stage != Stage::Open || state.waiting.len() >= WAITING_MAX {
            return false;
        }
        let Some(link) = &mut state.link else {
            return false;
        };
        if link.is_condemned() || link.to_backend.len() >= WAITING_BYTES_MAX {
            return false;
        }
        let Some(passage) = link.pass(Kind::Write, &self.key.claims, Extent::Whole) else {
            state.stage = Stage::Unsettled;
            state.wake();
            return false;
        };
        let fenced = link.board(passage);
        link.to_backend.extend_from_slice(request);
        let load = Load {
            fenced,
            blocking: false,
            end: link.queued_bytes(),
        };
        state.rounds = 0;
        state.waiting.push_back(Waiting {
            mailbox: Arc::clone(mailbox),
            load,
        });
        state.wake();
        true
    }

    /// Hands over a command that waits for the writes of its connection; from then on the lane
    /// takes none but such, and ends when its members have left. It needs no permit: it changes
    /// nothing.
    pub(super) fn take_over(&self, request: &[u8], mailbox: &Arc<Mailbox>) -> bool {
        let mut state = self.state();
        if !matches!(
            state.stage,
            Stage::Open | Stage::Unsettled | Stage::TakenOver
        ) || state.waiting.len() >= WAITING_MAX
        {
            return false;
        }
        let Some(link) = state.link.as_mut().filter(|link| !link.is_condemned()) else {
            return false;
        };
        link.to_backend.extend_from_slice(request);
        let load = Load {
            fenced: false,
            blocking: true,
            end: link.queued_bytes(),
        };
        link.flights.note(load);
        state.stage = Stage::TakenOver;
        state.waiting.push_back(Waiting {
            mailbox: Arc::clone(mailbox),
            load,
        });
        state.wake();
        true
    }
}
