//! Where a session gets the reply to the command that it has handed to a lane.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use crate::protocol::Refusal;
use crate::protocol::redis::{ReplyEnd, ReplyHead};

/// What became of the command.
pub(in super::super) enum Outcome {
    /// The reply is whole.
    Answered(ReplyHead, ReplyEnd),
    /// It does not come any more; what is known.
    Lost(Refusal),
}

/// What lies in a mailbox.
#[derive(Default)]
pub(in super::super) struct Post {
    /// The reply, as far as it has come.
    pub(in super::super) reply: Vec<u8>,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl Post {
    /// The outcome, once it is there.
    pub(in super::super) fn poll(&mut self, cx: &mut Context<'_>) -> Option<Outcome> {
        let outcome = self.outcome.take();
        let waker = self.waker.as_ref();
        if outcome.is_none() && !waker.is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
        outcome
    }
}

/// One session's mailbox. It has one command on its way at most.
#[derive(Default)]
pub(in super::super) struct Mailbox {
    post: Mutex<Post>,
}

impl Mailbox {
    /// What lies in it. Never held while a lane is asked for something.
    pub(in super::super) fn open(&self) -> MutexGuard<'_, Post> {
        self.post.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Some of the reply.
    pub(super) fn add(&self, part: &[u8]) {
        self.open().reply.extend_from_slice(part);
    }

    /// The rest of the reply.
    pub(super) fn answer(&self, rest: &[u8], head: ReplyHead, end: ReplyEnd) {
        let mut post = self.open();
        post.reply.extend_from_slice(rest);
        tell(post, Outcome::Answered(head, end));
    }

    /// The reply does not come any more.
    pub(super) fn lose(&self, fate: Refusal) {
        let mut post = self.open();
        post.reply.clear();
        tell(post, Outcome::Lost(fate));
    }
}

fn tell(mut post: MutexGuard<'_, Post>, outcome: Outcome) {
    post.outcome = Some(outcome);
    let waker = post.waker.take();
    drop(post);
    if let Some(waker) = waker {
        waker.wake();
    }
}
