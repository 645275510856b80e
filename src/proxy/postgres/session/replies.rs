//! The server's messages: each is its statement's, whatever came between; with a transaction's end
//! its permits are finished.
//!
//! Invariant: bytes that are no message, and an answer that nothing asked for, end the backend
//! connection: its count is out of step.

use super::Session;
use super::requests::CANCELLED;
use crate::protocol::postgres::frame::{BackendMessage, FrameError, Next};
use crate::protocol::postgres::refusal::{Severity, refusal_error};
use crate::protocol::postgres::session::{Deliver, Unexpected};

/// What becomes of the rest of a long message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Delivered {
    Passed,
    Dropped,
}

#[derive(Debug, thiserror::Error)]
enum OutOfStep {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Unexpected(#[from] Unexpected),
}

impl Session {
    /// Deals with all that has come from the backend.
    pub(super) fn take_replies(&mut self) {
        // Out of the way of everything that is called with its bytes.
        let bytes = std::mem::take(&mut self.backend.received);
        match self.take_replies_from(&bytes) {
            Ok(taken) => {
                self.backend.received = bytes;
                self.backend.consume(taken);
            }
            Err(error) => {
                tracing::error!(%error, "the backend's answers are out of step");
                self.backend_ended();
            }
        }
    }

    fn take_replies_from(&mut self, bytes: &[u8]) -> Result<usize, OutOfStep> {
        let mut at = 0;
        // Messages that follow each other to the client are copied at once.
        let mut run = 0;
        while at < bytes.len() {
            let next = self.replies.next(&bytes[at..])?;
            let (message, begins) = match next {
                Next::More { .. } => break,
                Next::Whole { tag, payload, .. } => {
                    if tag == b'D' && self.exporting.awaited {
                        self.take_exported(payload);
                    }
                    (BackendMessage::read(tag, payload)?, false)
                }
                Next::Begin { tag, .. } => (BackendMessage::streamed(tag), true),
                Next::Part { raw, left, .. } => {
                    if self.delivered == Some(Delivered::Dropped) {
                        self.deliver(&bytes[run..at]);
                        run = at + raw.len();
                    }
                    at += raw.len();
                    if left == 0 {
                        self.delivered = None;
                    }
                    continue;
                }
            };
            let end = at + next.consumed();
            let delivered = match self.take_reply(&message)? {
                Deliver::Pass => Delivered::Passed,
                Deliver::Swallow => {
                    self.deliver(&bytes[run..at]);
                    run = end;
                    Delivered::Dropped
                }
                Deliver::Replace(instead) => {
                    self.deliver(&bytes[run..at]);
                    self.deliver(&instead);
                    run = end;
                    Delivered::Dropped
                }
            };
            if begins && !self.replies.is_between_messages() {
                self.delivered = Some(delivered);
            }
            at = end;
        }
        self.deliver(&bytes[run..at]);
        Ok(at)
    }

    /// Nobody listens behind the last words.
    fn deliver(&mut self, bytes: &[u8]) {
        if self.hears {
            self.client.send(bytes);
        }
    }

    fn take_reply(&mut self, message: &BackendMessage<'_>) -> Result<Deliver, Unexpected> {
        if let BackendMessage::Error(fields) = message {
            let span = self.core.awaited_span();
            self.effects.failed(span, fields.sqlstate());
            self.effects.told_fatal |= fields.is_fatal();
        }
        if let BackendMessage::CommandComplete { tag } = message {
            self.effects.completed(self.core.awaited_span(), tag);
        }
        let reply = self.core.reply(message)?;
        if reply.committed {
            self.effects.committed(&self.database);
        }
        if let BackendMessage::ReadyForQuery(_) = message {
            let awaited = self.core.awaited_span();
            self.effects.through(awaited, &self.database);
        }
        if let Some(span) = reply.ended {
            self.flights.ended(span);
            self.made.clear();
            self.created.clear();
            if self.acting_cursors.ended(span) {
                self.core.distrust();
            }
            self.exporting.ended();
            self.effects
                .ended(span, &self.database, &self.listener.prepared);
        }
        match (message, reply.deliver) {
            // The proxy cancelled it: the client learns why.
            (BackendMessage::Error(fields), Deliver::Pass)
                if fields.sqlstate() == Some(CANCELLED.as_bytes()) =>
            {
                let Some(refusal) = self.cancelled_for() else {
                    return Ok(Deliver::Pass);
                };
                self.report(&refusal, "statement");
                Ok(Deliver::Replace(refusal_error(&refusal, Severity::Error)))
            }
            (_, deliver) => Ok(deliver),
        }
    }
}
