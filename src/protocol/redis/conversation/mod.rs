//! One client connection and its backend connection: what has been asked, what replies are due,
//! and what they change.
//!
//! Two times run side by side. Requests are planned in their order, before the replies to those
//! before them are there; replies come in the same order, later. What a request needs to know of
//! its predecessors is either known when they are sent (`MULTI`), or is taken as all that it may
//! be (`SELECT`), or is waited for ([`Plan::barrier`]: `AUTH` with a ticket, `RESET`,
//! `DISCARD`).
//!
//! Invariants: every reply of the server is matched with the command that it answers, or is known
//! to be out of order (a push, a message to a subscriber, a line of `MONITOR`), or the connection
//! is given up ([`Unexpected`]). Answers of the proxy stand in the queue with the server's, so that
//! the client gets them in its own order. `CLIENT REPLY` changes nothing at the server: replies are
//! withheld from the client here, and never cease to be counted.
//!
//! It leaves to the shell: bytes, verifying tickets, the gate, which backend connection is whose.

mod commands;
mod plain;
mod plan;
mod replies;
mod withheld;

use std::collections::VecDeque;
use std::sync::Arc;

use super::database::Databases;
use super::encode;
use super::refusal::refusal_reply;
use crate::lock_name::LockName;
use crate::protocol::{Kind, Refusal};

pub use plain::Plain;
pub use plan::{Action, Plan, Send};
pub use replies::{Change, Delivery, Finished, Unexpected};

use plain::{Run, Usual};
use plan::{Deliver, Effect, Expect};
use replies::Incoming;
use withheld::Withheld;

/// Commands whose replies are outstanding, at most: the shell reads no further then.
pub const OUTSTANDING_MAX: usize = 1024;

/// Locks of one transaction, at most.
pub const TRANSACTION_LOCKS_MAX: usize = 256;

const EXEC_ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";

/// How a conversation is held.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConversationSettings {
    /// The beginning of every name that a connection gets at the server, where the proxy marks its
    /// connections so. What the client calls itself follows it.
    pub name_prefix: Option<Box<[u8]>>,
    /// The beginning of the keys that nothing which the server sends by itself may tell.
    pub hidden: Option<Box<[u8]>>,
}

/// What the replies so far say about the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionState {
    /// The version of RESP: 2 or 3.
    pub resp: u8,
    /// The database that is selected; several where a transaction's `SELECT` may have failed.
    pub databases: Databases,
    /// Subscriptions to channels.
    pub channels: u64,
    /// Subscriptions to patterns.
    pub patterns: u64,
    /// Subscriptions to shard channels.
    pub shards: u64,
    /// `MONITOR` is on.
    pub monitor: bool,
    /// Another user than the default one is authenticated.
    pub authenticated: bool,
    /// Something else of the connection was changed: tracking, eviction, its name.
    pub changed: bool,
}

const FRESH: ConnectionState = ConnectionState {
    resp: 2,
    databases: Databases::only(0),
    channels: 0,
    patterns: 0,
    shards: 0,
    monitor: false,
    authenticated: false,
    changed: false,
};

impl ConnectionState {
    /// Whether the server takes only commands about subscriptions (RESP2).
    fn subscribed(&self) -> bool {
        self.channels + self.patterns + self.shards > 0
    }
}

/// A transaction that is being queued.
#[derive(Debug)]
struct Transaction {
    id: u64,
    /// The locks of all that was queued, sorted.
    locks: Vec<LockName>,
    writes: bool,
    /// A command of it was refused here, which the server does not know.
    refused: bool,
    /// What it selects, where it does.
    databases: Option<Databases>,
    /// It changes the state of the connection otherwise.
    changes: bool,
}

impl Transaction {
    fn new(id: u64) -> Transaction {
        Transaction {
            id,
            locks: vec![],
            writes: false,
            refused: false,
            databases: None,
            changes: false,
        }
    }
}

/// A command whose reply is due.
#[derive(Debug)]
struct Sent<T> {
    operation: Arc<str>,
    kind: Kind,
    effect: Effect,
    expect: Expect,
    deliver: Deliver,
    tickets: Vec<Box<str>>,
    /// The transaction that it began, ends or is queued in.
    transaction: Option<u64>,
    /// What an EXEC may select.
    databases: Option<Databases>,
    /// It, or what an EXEC runs, changes the state of the connection otherwise.
    changes: bool,
    payload: Option<T>,
}

#[derive(Debug)]
enum Entry<T> {
    Sent(Box<Sent<T>>),
    Plain(Run<T>),
    /// An answer of the proxy. Empty: a request that asks for none.
    Local(Vec<u8>),
}

/// What a client is still owed when its backend connection is lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Owed<T> {
    /// An answer of the proxy; empty where the client wants none.
    Answer(Vec<u8>),
    /// The reply to a command that was forwarded: it may have been run.
    Reply {
        /// `CLIENT REPLY` has not taken it.
        wanted: bool,
        /// The command's name.
        operation: Arc<str>,
        /// Whether it can have changed anything.
        kind: Kind,
        /// What the shell kept with it.
        payload: Option<T>,
    },
}

/// One client connection and its backend connection. `T` is what the shell keeps with each command
/// until its reply has ended: permits.
#[derive(Debug)]
pub struct Conversation<T> {
    settings: ConversationSettings,
    state: ConnectionState,
    // In the order of requests.
    transaction: Option<Transaction>,
    transactions: u64,
    watching: bool,
    usual: Option<Box<Usual>>,
    /// Where the next command may be: `state.databases`, and what is being selected.
    databases_ahead: Databases,
    // In the order of replies.
    queue: VecDeque<Entry<T>>,
    /// How many commands and answers the queue stands for.
    due: usize,
    withheld: Withheld,
    incoming: Option<Incoming>,
}

impl<T> Conversation<T> {
    /// With a fresh backend connection.
    pub fn new(settings: ConversationSettings) -> Conversation<T> {
        Conversation {
            settings,
            state: FRESH,
            transaction: None,
            transactions: 0,
            watching: false,
            usual: None,
            databases_ahead: FRESH.databases,
            queue: VecDeque::new(),
            due: 0,
            withheld: Withheld::default(),
            incoming: None,
        }
    }

    /// The command is on its way to the backend, or queued to go in this order. The payload comes
    /// back with the end of its reply.
    pub fn forward(&mut self, plan: Plan, payload: T) {
        self.send(plan, Some(payload));
    }

    fn send(&mut self, plan: Plan, payload: Option<T>) {
        let (transaction, runs) = self.move_on(&plan);
        if let Some(open) = &mut self.transaction {
            open.writes |= plan.kind == Kind::Write;
            open.changes |= plan.effect == Effect::ClientState;
            for lock in plan.locks {
                if let Err(at) = open.locks.binary_search(&lock) {
                    open.locks.insert(at, lock);
                }
            }
        }
        self.due += 1;
        self.queue.push_back(Entry::Sent(Box::new(Sent {
            operation: plan.operation,
            kind: plan.kind,
            effect: plan.effect,
            expect: plan.expect,
            deliver: plan.deliver,
            tickets: plan.tickets,
            transaction,
            databases: runs.as_ref().and_then(|over| over.databases),
            changes: runs.is_some_and(|over| over.changes) || plan.effect == Effect::ClientState,
            payload,
        })));
    }

    /// Moves what is known of the connection on to the time after a command, before its reply. The
    /// transaction that it is in, and the one that it runs.
    fn move_on(&mut self, plan: &Plan) -> (Option<u64>, Option<Transaction>) {
        let mut runs = None;
        let before = self.transaction.as_ref().map(|open| open.id);
        match plan.effect {
            Effect::Multi => {
                self.transactions += 1;
                self.transaction = Some(Transaction::new(self.transactions));
                return (Some(self.transactions), None);
            }
            // Whatever its reply: the server's transaction is over.
            Effect::Exec => {
                // A `DISCARD` in its place runs nothing.
                let over = self.transaction.take();
                runs = over.filter(|_| plan.deliver == Deliver::AsIs);
                self.watching = false;
            }
            Effect::Watch => self.watching = true,
            Effect::Unwatch => self.watching = false,
            Effect::Select(index) => {
                self.databases_ahead = self.databases_ahead.or(index);
                if let Some(open) = &mut self.transaction {
                    let selected = open.databases.unwrap_or(Databases::only(index));
                    open.databases = Some(selected.or(index));
                }
            }
            _ => {}
        }
        (before, runs)
    }

    /// The command is refused: the client is told so in its order. Bytes that come back are to be
    /// sent to the backend now: a refused `EXEC` becomes a `DISCARD`.
    pub fn refuse(&mut self, plan: Plan, refusal: &Refusal) -> Option<Vec<u8>> {
        let line = refusal_reply(refusal);
        if plan.effect == Effect::Exec {
            let discard = Plan {
                locks: vec![],
                deliver: Deliver::Instead(line),
                ..plan
            };
            self.send(discard, None);
            return Some(encode::command(&["DISCARD"]));
        }
        if let Some(transaction) = &mut self.transaction {
            transaction.refused = true;
        }
        self.push_local(line);
        None
    }

    /// The proxy answers the command itself. Nothing goes to the backend.
    pub fn answer(&mut self, _plan: Plan, reply: Vec<u8>) {
        self.push_local(reply);
    }

    /// A request without arguments came: no reply is due, but it is one that can be skipped.
    pub fn empty_request(&mut self) {
        self.push_local(vec![]);
    }

    fn push_local(&mut self, reply: Vec<u8>) {
        self.due += 1;
        self.queue.push_back(Entry::Local(reply));
    }

    /// The next answer of the proxy itself, once all before it are delivered; empty where the
    /// client wants none. To be called until there is none after each command and each reply.
    pub fn next_local(&mut self) -> Option<Vec<u8>> {
        let next = self.queue.front();
        if self.incoming.is_some() || !matches!(next, Some(Entry::Local(_))) {
            return None;
        }
        let Some(Entry::Local(reply)) = self.queue.pop_front() else {
            return None;
        };
        self.due -= 1;
        let withheld = self.withheld.takes(Effect::None, false);
        self.withheld.pass(Effect::None, false);
        Some(if withheld { vec![] } else { reply })
    }

    /// Commands that wait for their replies, and answers that wait for their turn.
    pub fn outstanding(&self) -> usize {
        self.due
    }

    /// Whether another command may be planned.
    pub fn has_room(&self) -> bool {
        self.due < OUTSTANDING_MAX
    }

    /// What the shell keeps with the command that was forwarded last, if that is unanswered and was
    /// planned.
    pub fn newest_mut(&mut self) -> Option<&mut T> {
        match self.queue.back_mut()? {
            Entry::Sent(sent) => sent.payload.as_mut(),
            Entry::Plain(_) | Entry::Local(_) => None,
        }
    }

    /// What the replies so far say.
    pub fn state(&self) -> &ConnectionState {
        &self.state
    }

    /// The databases that the next command may meet.
    pub fn databases(&self) -> Databases {
        self.databases_ahead
    }

    /// Whether commands are being queued by `MULTI`.
    pub fn in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// Whether keys are being watched for the next `EXEC`.
    pub fn watching(&self) -> bool {
        self.watching
    }

    /// Whether nothing binds the next command to this backend connection but its RESP version, its
    /// user and its database.
    pub fn is_plain(&self) -> bool {
        !(self.in_transaction()
            || self.watching
            || self.state.subscribed()
            || self.state.monitor
            || self.state.changed)
    }
}

impl<T: Clone> Conversation<T> {
    /// The connection is lost: what the client is still owed, in its order.
    pub fn into_owed(self) -> impl Iterator<Item = Owed<T>> {
        // As if all of it succeeded.
        let mut withheld = self.withheld;
        self.queue.into_iter().flat_map(move |entry| {
            let (effect, count) = match &entry {
                Entry::Local(_) => (Effect::None, 1),
                Entry::Sent(sent) => (sent.effect, 1),
                Entry::Plain(run) => (Effect::None, run.count),
            };
            let wanted = !withheld.takes(effect, false);
            withheld.pass(effect, false);
            // What is withheld of the first of a run is only a skip: the others are as it was not.
            let wanted_after = !withheld.takes(Effect::None, false);
            let owed = move |nth| owed(&entry, if nth == 0 { wanted } else { wanted_after });
            (0..count).map(owed)
        })
    }
}

fn owed<T: Clone>(entry: &Entry<T>, wanted: bool) -> Owed<T> {
    let answer = |reply: &Vec<u8>| Owed::Answer(if wanted { reply.clone() } else { vec![] });
    let (operation, kind, payload) = match entry {
        Entry::Local(reply) => return answer(reply),
        Entry::Sent(sent) => match &sent.deliver {
            // Known whatever the server answers: a `DISCARD` that took the place of an `EXEC`.
            Deliver::Instead(reply) => return answer(reply),
            _ => (&sent.operation, sent.kind, sent.payload.clone()),
        },
        Entry::Plain(run) => (&run.operation, run.kind, Some(run.payload.clone())),
    };
    Owed::Reply {
        wanted,
        operation: Arc::clone(operation),
        kind,
        payload,
    }
}

#[cfg(test)]
mod tests;
