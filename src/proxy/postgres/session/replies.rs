//! The server's messages: each is its statement's, whatever came between; with a transaction's end
//! its permits are finished.
//!
//! Invariant: bytes that are no message, and an answer that nothing asked for, end the backend
//! connection: its count is out of step.

use super::end::ADMIN_SHUTDOWN;
use super::requests::CANCELLED;
use super::{Session, Turn};
use crate::protocol::Refusal;
use crate::protocol::postgres::frame::{BackendMessage, ErrorFields, FrameError, Next};
use crate::protocol::postgres::refusal::{Severity, refusal_error};
use crate::protocol::postgres::session::{Deliver, Unexpected, commits};

/// What becomes of the rest of a long message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Delivered {
    Passed,
    Dropped,
}

/// How far bytes of the server were read.
#[derive(Default)]
struct Read {
    at: usize,
    /// Where what was not delivered yet begins: messages that follow each other to the client are
    /// copied at once.
    run: usize,
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
    pub(super) fn take_replies(&mut self, turn: &mut Turn) {
        // Out of the way of everything that is called with its bytes.
        let bytes = std::mem::take(&mut self.backend.received);
        let mut read = Read::default();
        let outcome = self.take_replies_from(&bytes, &mut read);
        turn.spend(self.core.catch_up());
        // What came before something that is out of step is the client's all the same.
        self.deliver(&bytes[read.run..read.at]);
        match outcome {
            Ok(()) => {
                self.backend.received = bytes;
                self.backend.consume(read.at);
            }
            Err(error) => {
                tracing::error!(%error, "the backend's answers are out of step");
                self.backend_ended();
            }
        }
    }

    fn take_replies_from(&mut self, bytes: &[u8], read: &mut Read) -> Result<(), OutOfStep> {
        while read.at < bytes.len() {
            let next = self.replies.next(&bytes[read.at..])?;
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
                        self.deliver(&bytes[read.run..read.at]);
                        read.run = read.at + raw.len();
                    }
                    read.at += raw.len();
                    if left == 0 {
                        self.delivered = None;
                    }
                    continue;
                }
            };
            let end = read.at + next.consumed();
            let delivered = match self.take_reply(&message)? {
                Deliver::Pass => Delivered::Passed,
                Deliver::Swallow => {
                    self.deliver(&bytes[read.run..read.at]);
                    read.run = end;
                    Delivered::Dropped
                }
                Deliver::Replace(instead) => {
                    self.deliver(&bytes[read.run..read.at]);
                    self.deliver(&instead);
                    read.run = end;
                    Delivered::Dropped
                }
            };
            if begins && !self.replies.is_between_messages() {
                self.delivered = Some(delivered);
            }
            read.at = end;
        }
        Ok(())
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
            let statement = self.core.awaited_statement();
            self.effects.failed(span, statement, fields.sqlstate());
            self.note_failed();
        }
        if let BackendMessage::ParameterStatus { name, value } = message {
            self.note_told(name, value);
        }
        if let BackendMessage::CommandComplete { tag } = message {
            self.effects.completed(self.core.awaited_span(), tag);
        }
        let is_error = matches!(message, BackendMessage::Error(_));
        let in_part = is_error && self.core.may_be_done_in_part();
        let fatal = matches!(message, BackendMessage::Error(fields) if fields.is_fatal());
        let may_be_done = in_part || fatal && self.may_be_committed();
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
            self.defined.ended(span);
            if self.cursors.ended(span) {
                self.core.distrust();
            }
            self.exporting.ended();
            self.effects
                .ended(span, &self.database, &self.listener.prepared);
        }
        let told = match message {
            BackendMessage::Error(fields) => self.told_instead(fields, may_be_done),
            _ => None,
        };
        let deliver = match (told, reply.deliver) {
            // The proxy brought it about: the client learns why. Its session's end it learns
            // whatever the server was about.
            (Some((refusal, severity)), deliver) if fatal || deliver == Deliver::Pass => {
                self.report(&refusal, "statement");
                Deliver::Replace(refusal_error(&refusal, severity))
            }
            (_, deliver) => deliver,
        };
        self.effects.told_fatal |= fatal && deliver != Deliver::Swallow;
        Ok(deliver)
    }

    /// What the client is told in the place of an error that the proxy asked for. `may_be_done`:
    /// something of what it answers.
    fn told_instead(
        &self,
        error: &ErrorFields<'_>,
        may_be_done: bool,
    ) -> Option<(Refusal, Severity)> {
        let severity = match error.is_fatal() {
            true => Severity::Fatal,
            false => Severity::Error,
        };
        let asked_for = match severity {
            Severity::Fatal => ADMIN_SHUTDOWN,
            Severity::Error => CANCELLED,
        };
        if error.sqlstate() != Some(asked_for.as_bytes()) {
            return None;
        }
        let refusal = self.ended_for(may_be_done)?;
        Some((refusal, severity))
    }

    /// Whether what the server answers next, or has answered last, may be committed though an error
    /// ends the session: the answer to a statement of a pipeline comes before that.
    fn may_be_committed(&self) -> bool {
        let awaited = self.core.awaited_statement();
        self.flights.is_released() && awaited.is_none_or(commits)
    }
}
