//! Replies: which command each of them answers, what the client gets of it, what it changes.

use std::sync::Arc;

use super::super::filter::Filter;
use super::super::refusal::refusal_reply;
use super::super::reply_head::{ReplyEnd, ReplyHead};
use super::super::treatment::Channels;
use super::plan::{Deliver, Effect, Expect};
use super::{Conversation, Databases, Entry, FRESH, Sent};
use crate::protocol::Refusal;

/// What to do with a reply's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// They go to the client.
    Forward,
    /// They do not.
    Swallow,
    /// The client gets these instead.
    Instead(Vec<u8>),
    /// They are held until the reply is whole, then filtered.
    Hold(Filter),
}

/// A reply that answers nothing: the connection is out of step, or the server says good-bye. Its
/// bytes may go to the client; then both connections end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the server sent a reply that no command waits for")]
pub struct Unexpected;

/// A command whose replies have all come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finished<T> {
    /// What the shell kept with it; none with what the conversation sent by itself.
    pub payload: Option<T>,
    /// Its name.
    pub operation: Arc<str>,
    /// It was not answered with an error.
    pub succeeded: bool,
    /// It was only queued, for `EXEC`.
    pub queued: bool,
    /// What the shell has to do now.
    pub change: Change,
}

/// What a command changed that is the shell's to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Nothing.
    None,
    /// `AUTH` or `HELLO` succeeded: these tickets are now the connection's.
    Tickets(Vec<Box<str>>),
    /// `RESET`: the connection has no name, no user and no ticket any more.
    Reset,
    /// `QUIT`: the server closes.
    Close,
}

/// The reply that is coming in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Incoming {
    /// It answers nothing.
    OutOfOrder,
    /// One of the confirmations of the first command in the queue.
    Confirmation(Channels),
    /// The last, or only, reply to it.
    Answer {
        error: bool,
        queued: bool,
        null: bool,
    },
}

impl<T: Clone> Conversation<T> {
    /// A reply begins.
    pub fn reply_begins(&mut self, head: &ReplyHead) -> Result<Delivery, Unexpected> {
        let first = match self.queue.front_mut() {
            Some(Entry::Sent(sent)) => Some(&mut **sent),
            Some(Entry::Plain(_)) if !is_out_of_order(&self.state, head) => {
                return Ok(self.plain_begins(head));
            }
            // Only what is out of order can come before the proxy's own answer.
            Some(Entry::Plain(_) | Entry::Local(_)) | None => None,
        };
        let confirmed = first.as_ref().and_then(|sent| confirms(sent, head));
        if confirmed.is_none() && is_out_of_order(&self.state, head) {
            self.incoming = Some(Incoming::OutOfOrder);
            return Ok(match &self.settings.hidden {
                Some(prefix) if may_tell_keys(head) => {
                    Delivery::Hold(Filter::Pushed(prefix.clone()))
                }
                _ => Delivery::Forward,
            });
        }
        let sent = first.ok_or(Unexpected)?;
        if let Some(channels) = confirmed {
            // Confirmations are messages: `CLIENT REPLY` does not withhold them.
            self.incoming = Some(Incoming::Confirmation(channels));
            return Ok(Delivery::Forward);
        }
        self.incoming = Some(Incoming::Answer {
            error: head.is_error(),
            queued: head.is_queued() && sent.transaction.is_some(),
            null: head.is_null(),
        });
        if self.withheld.takes(sent.effect, head.is_error()) {
            return Ok(Delivery::Swallow);
        }
        if head.redirect().is_some() {
            return Ok(Delivery::Instead(redirected()));
        }
        Ok(match std::mem::replace(&mut sent.deliver, Deliver::AsIs) {
            Deliver::AsIs => Delivery::Forward,
            Deliver::Filtered(filter) => Delivery::Hold(filter),
            Deliver::Instead(reply) => Delivery::Instead(reply),
        })
    }

    /// The reply to a plain command begins.
    fn plain_begins(&mut self, head: &ReplyHead) -> Delivery {
        let error = head.is_error();
        self.incoming = Some(Incoming::Answer {
            error,
            queued: false,
            null: head.is_null(),
        });
        if self.withheld.takes(Effect::None, error) {
            return Delivery::Swallow;
        }
        match head.redirect() {
            Some(_) => Delivery::Instead(redirected()),
            None => Delivery::Forward,
        }
    }

    /// The reply has ended. None: more replies of its command are due, or it was out of order.
    pub fn reply_ended(&mut self, end: &ReplyEnd) -> Option<Finished<T>> {
        let (error, queued, null) = match self.incoming.take()? {
            Incoming::OutOfOrder => return None,
            Incoming::Confirmation(channels) => {
                if !self.confirmed(channels, end) {
                    return None;
                }
                (false, false, false)
            }
            Incoming::Answer {
                error,
                queued,
                null,
            } => (error, queued, null),
        };
        if let Some(Entry::Plain(_)) = self.queue.front() {
            return self.plain_ended(error);
        }
        let Some(Entry::Sent(sent)) = self.queue.pop_front() else {
            return None;
        };
        self.due -= 1;
        let sent = *sent;
        self.withheld.pass(sent.effect, error);
        let change = match (error, queued) {
            (false, false) => self.succeeded(&sent, null),
            (true, _) => {
                self.failed(&sent);
                Change::None
            }
            (false, true) => Change::None,
        };
        Some(Finished {
            payload: sent.payload,
            operation: sent.operation,
            succeeded: !error,
            queued,
            change,
        })
    }

    /// A plain command is answered.
    fn plain_ended(&mut self, error: bool) -> Option<Finished<T>> {
        let Some(Entry::Plain(run)) = self.queue.front_mut() else {
            return None;
        };
        let finished = Finished {
            payload: Some(run.payload.clone()),
            operation: Arc::clone(&run.operation),
            succeeded: !error,
            queued: false,
            change: Change::None,
        };
        run.count -= 1;
        if run.count == 0 {
            self.queue.pop_front();
        }
        self.due -= 1;
        self.withheld.pass(Effect::None, error);
        Some(finished)
    }

    /// Counts a confirmation. True: it was the last that its command is owed.
    fn confirmed(&mut self, channels: Channels, end: &ReplyEnd) -> bool {
        let state = &mut self.state;
        let before = match channels {
            Channels::Plain => state.channels,
            Channels::Patterns => state.patterns,
            Channels::Shards => state.shards,
        };
        // The server tells the sum of channels and patterns, and shard channels by themselves.
        let told = end.integer.and_then(|told| u64::try_from(told).ok());
        if let Some(told) = told {
            match channels {
                Channels::Plain => state.channels = told.saturating_sub(state.patterns),
                Channels::Patterns => state.patterns = told.saturating_sub(state.channels),
                Channels::Shards => state.shards = told,
            }
        }
        let Some(Entry::Sent(sent)) = self.queue.front_mut() else {
            return false;
        };
        let Expect::Confirmations { left, .. } = &mut sent.expect else {
            return false;
        };
        // All of them: as many as there were when the first is confirmed, one if none was.
        let due = left.unwrap_or(before).max(1);
        *left = Some(due - 1);
        due == 1
    }

    fn succeeded(&mut self, sent: &Sent<T>, null: bool) -> Change {
        self.state.changed |= sent.changes;
        match sent.effect {
            Effect::Select(index) => {
                self.state.databases = Databases::only(index);
                self.settle_databases();
            }
            Effect::Auth => {
                self.state.authenticated = true;
                return bound(sent);
            }
            Effect::Hello { version, auth } => {
                self.state.resp = version.unwrap_or(self.state.resp);
                self.state.authenticated |= auth;
                return bound(sent);
            }
            Effect::Reset => {
                self.state = FRESH;
                self.transaction = None;
                self.watching = false;
                self.settle_databases();
                return Change::Reset;
            }
            Effect::Quit => return Change::Close,
            Effect::Discard => {
                self.transaction = None;
                self.watching = false;
                self.settle_databases();
            }
            Effect::Exec => {
                // Each `SELECT` of it may have failed; all of it did not happen where it is null.
                if let (Some(selected), false) = (sent.databases, null) {
                    self.state.databases = self.state.databases.or_any_of(selected);
                }
                self.settle_databases();
            }
            Effect::Monitor => self.state.monitor = true,
            Effect::None
            | Effect::ClientState
            | Effect::Multi
            | Effect::Watch
            | Effect::Unwatch
            | Effect::ReplyMode(_) => {}
        }
        Change::None
    }

    fn failed(&mut self, sent: &Sent<T>) {
        match sent.effect {
            // What followed it was not queued, and had its own permits.
            Effect::Multi => {
                let open = self.transaction.as_ref().map(|open| open.id);
                if open == sent.transaction {
                    self.transaction = None;
                }
                self.settle_databases();
            }
            Effect::Select(_) | Effect::Exec => self.settle_databases(),
            _ => {}
        }
    }

    /// Takes back what may be selected to what still is outstanding.
    fn settle_databases(&mut self) {
        let mut ahead = self.state.databases;
        let mut add = |selected: Option<Databases>| {
            if let Some(selected) = selected {
                ahead = ahead.or_any_of(selected);
            }
        };
        for entry in &self.queue {
            if let Entry::Sent(sent) = entry {
                add(sent.databases);
                if let Effect::Select(index) = sent.effect {
                    add(Some(Databases::only(index)));
                }
            }
        }
        add(self.transaction.as_ref().and_then(|open| open.databases));
        self.databases_ahead = ahead;
    }
}

fn redirected() -> Vec<u8> {
    refusal_reply(&Refusal::unclassified(
        "the server sends the client to another node, which is not behind the proxy",
    ))
}

fn bound<T>(sent: &Sent<T>) -> Change {
    match sent.tickets.is_empty() {
        true => Change::None,
        false => Change::Tickets(sent.tickets.clone()),
    }
}

/// What a command's confirmations begin with.
fn confirmation_word(channels: Channels, subscribes: bool) -> &'static [u8] {
    match (channels, subscribes) {
        (Channels::Plain, true) => b"subscribe",
        (Channels::Patterns, true) => b"psubscribe",
        (Channels::Shards, true) => b"ssubscribe",
        (Channels::Plain, false) => b"unsubscribe",
        (Channels::Patterns, false) => b"punsubscribe",
        (Channels::Shards, false) => b"sunsubscribe",
    }
}

/// Whether a reply is a confirmation that the command is owed: in RESP3 a push, in RESP2 an array.
fn confirms<T>(sent: &Sent<T>, head: &ReplyHead) -> Option<Channels> {
    let Expect::Confirmations {
        channels,
        subscribes,
        ..
    } = sent.expect
    else {
        return None;
    };
    let word = confirmation_word(channels, subscribes);
    (head.first_text() == Some(word)).then_some(channels)
}

/// Whether a reply that answers no command may tell the names of keys.
fn may_tell_keys(head: &ReplyHead) -> bool {
    let word = head.first_text();
    matches!(word, Some(b"message" | b"pmessage" | b"invalidate"))
}

/// Whether a reply answers no command: a push; to a subscriber of RESP2 a message; to a monitor a
/// line.
fn is_out_of_order(state: &super::ConnectionState, head: &ReplyHead) -> bool {
    if head.is_push() {
        return true;
    }
    // In RESP2 a subscriber can ask for nothing that is answered by such an array.
    let message = || {
        state.resp == 2
            && state.subscribed()
            && matches!(
                head.first_text(),
                Some(b"message" | b"pmessage" | b"smessage" | b"sunsubscribe")
            )
    };
    (state.monitor && head.is_monitor_line()) || message()
}
