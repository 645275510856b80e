//! Requests: decoded, planned, and forwarded one by one; what came in one read leaves in one write.
//!
//! Invariant: a refused command leaves no byte on the backend connection, and the reply to it comes
//! at its place among the others.

use std::sync::Arc;

use bytes::Buf as _;

use super::admit::{Admitted, missing};
use super::present::Presented;
use super::{Phase, Session, WAITING_BYTES_MAX};
use crate::config::{Mode, Trust};
use crate::gate::Revoked;
use crate::protocol::redis::{Action, FenceCommand, Plan, RequestProgress, refusal_reply};
use crate::protocol::{AfterRefusal, Kind, Refusal};
use crate::proxy::polled::shrink;
use crate::proxy::redis::flights::Load;
use crate::proxy::redis::link::{Extent, Passage};

/// Most bytes of a request that are kept until it can be decided on.
pub(super) const UNDECIDED_BYTES_MAX: usize = 1 << 20;

/// A request whose rest is still to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Streamed {
    /// It is forwarded.
    Forwarded {
        /// Its permits are the last ones in flight, and are not released.
        fenced: bool,
    },
    /// It was refused or answered.
    Dropped,
}

/// What became of a request that was looked at.
enum Taken {
    /// It was dealt with.
    Done,
    /// Not yet: the gate is asked, or replies are awaited.
    Later,
    /// More of it must be there first.
    MoreBytes(usize),
}

impl Session {
    /// Deals with what has come, as far as it can now. Whether something was done.
    pub(super) fn take_requests(&mut self) -> bool {
        if self.from_client.is_empty() || !self.takes_requests() {
            return false;
        }
        // Out of the way of everything that is called with its bytes.
        let mut bytes = std::mem::take(&mut self.from_client);
        let taken = self.take_from(&bytes);
        bytes.advance(taken);
        shrink(&mut bytes);
        self.from_client = bytes;
        // What has begun to wait must be polled.
        taken > 0 || self.admission.is_waiting()
    }

    fn takes_requests(&mut self) -> bool {
        if self.barrier && self.conversation.outstanding() == 0 {
            self.barrier = false;
        }
        self.phase == Phase::Open
            && !self.barrier
            && !self.sharing.is_awaiting()
            && !self.link.is_condemned()
            && !self.admission.is_waiting()
            && self.conversation.has_room()
            && self.link.to_backend.len() < WAITING_BYTES_MAX
            && self.to_client.len() < WAITING_BYTES_MAX
    }

    /// How many bytes were dealt with.
    fn take_from(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && self.takes_requests() {
            let rest = &bytes[at..];
            if let Some(streamed) = self.streamed {
                at += self.stream(streamed, rest);
                continue;
            }
            match self.requests.scan(rest) {
                Ok(RequestProgress::More) => break,
                Ok(RequestProgress::Complete { len }) => {
                    let request = &rest[..len];
                    if self.requests.args(rest).is_empty() {
                        self.conversation.empty_request();
                        self.pump_local();
                        self.requests.reset();
                        at += len;
                        continue;
                    }
                    let taken = match self.take_plain(request, len == rest.len()) {
                        true => Taken::Done,
                        false => self.take(request, Extent::Whole),
                    };
                    match taken {
                        Taken::Done => {
                            self.requests.reset();
                            at += len;
                        }
                        Taken::Later | Taken::MoreBytes(_) => break,
                    }
                }
                Ok(RequestProgress::Partial) => match self.take(rest, Extent::Beginning) {
                    Taken::Done => at = bytes.len(),
                    Taken::Later => break,
                    Taken::MoreBytes(wanted) => {
                        self.requests.hold_until(wanted);
                        break;
                    }
                },
                Err(error) => {
                    self.last_words = Some(error.to_reply());
                    self.phase = Phase::Ending;
                    at = bytes.len();
                }
            }
        }
        at
    }

    fn take(&mut self, request: &[u8], extent: Extent) -> Taken {
        if self.blind {
            self.take_blind(request, extent);
            return Taken::Done;
        }
        let args = self.requests.args(request);
        let rules = &self.listening.config.rules;
        let Ok(plan) = self.conversation.plan(&args, &self.table, rules) else {
            return self.undecided(request);
        };
        if extent == Extent::Beginning && self.needs_every_key(&plan) {
            return self.undecided(request);
        }
        let waits_for_shared = self.waits_for_shared(&plan);
        if (plan.alone || waits_for_shared) && self.conversation.outstanding() > 0 {
            return Taken::Later;
        }
        let barrier = plan.barrier;
        let taken = self.decide(plan, request, extent);
        if matches!(taken, Taken::Done) {
            self.admission.next_command();
            self.barrier |= barrier;
        }
        taken
    }

    /// Forwards a command whose name alone tells what becomes of it, if it may pass at once.
    /// Everything else is planned. `is_last`: nothing has come behind it.
    fn take_plain(&mut self, request: &[u8], is_last: bool) -> bool {
        if self.listening.config.mode == Mode::Observe
            || self.bound.bare.is_some()
            || self.bound.is_outdated(&self.listening.tickets)
            || !self.admission.is_undecided()
        {
            return false;
        }
        let (args, rules) = (self.requests.args(request), &self.listening.config.rules);
        let Some(plain) = self.conversation.plain(&args, &self.table, rules) else {
            return false;
        };
        let claims = Arc::clone(&self.bound.claims);
        let (kind, brief) = (plain.kind, plain.brief && is_last);
        if kind == Kind::Write && missing(plain.locks, &claims).is_some() {
            return false;
        }
        if brief && kind == Kind::Write && self.take_shared(request, &claims) {
            return true;
        }
        let passage = match claims.is_empty() {
            true => Passage::Free,
            false => match self.link.pass(kind, &claims, Extent::Whole) {
                Some(passage) => passage,
                None => return false,
            },
        };
        let fenced = self.link.board(passage);
        if kind == Kind::Write {
            self.sharing.note_own_write();
        }
        self.link.to_backend.extend_from_slice(request);
        let load = Load {
            fenced,
            blocking: false,
            end: self.link.queued_bytes(),
        };
        // Where the end of an earlier one has not left, that of a later one has not either.
        self.conversation
            .forward_plain(load, |run| run.fenced == fenced && !run.blocking);
        self.admission.next_command();
        true
    }

    /// What has come of a request does not tell which locks it needs.
    fn undecided(&mut self, request: &[u8]) -> Taken {
        if request.len() < UNDECIDED_BYTES_MAX {
            return Taken::MoreBytes(request.len() + UNDECIDED_BYTES_MAX / 8);
        }
        let refusal = Refusal::unclassified(format!(
            "which keys this command names is not told in its first {UNDECIDED_BYTES_MAX} bytes"
        ));
        if self.listening.config.mode == Mode::Observe {
            let args = self.requests.args(request);
            let plan = self.conversation.plan_unread(&args, &self.table, refusal);
            return self.decide(plan, request, Extent::Beginning);
        }
        self.last_words = Some(refusal_reply(&refusal));
        self.phase = Phase::Ending;
        Taken::Done
    }

    /// A bare token says its lock by the keys that it is presented for, on a read too: one that is
    /// judged by its beginning would present nothing.
    fn needs_every_key(&self, plan: &Plan) -> bool {
        let bare = self.listening.config.trust == Trust::Unsigned
            && (self.bound.bare.is_some() || !plan.tickets.is_empty());
        bare && plan.kind == Kind::Read && matches!(plan.action, Action::Forward(_))
    }

    fn decide(&mut self, plan: Plan, request: &[u8], extent: Extent) -> Taken {
        match &plan.action {
            Action::Refuse(refusal) => {
                let refusal = refusal.clone();
                self.refuse(plan, &refusal, extent);
            }
            Action::Answer(reply) => {
                let reply = reply.clone();
                self.answer(plan, reply, extent);
            }
            Action::Fence(FenceCommand::Set) => {
                if !self.present(&plan) {
                    return Taken::Later;
                }
                match self.admission.take_presented() {
                    Ok(presented) => {
                        self.bound = presented;
                        self.answer(plan, b"+OK\r\n".to_vec(), extent);
                    }
                    Err(refusal) => {
                        // What was bound before would be taken for what was just refused.
                        self.bound = Presented::default();
                        match self.listening.config.mode {
                            Mode::Enforce => self.refuse(plan, &refusal, extent),
                            Mode::Observe => {
                                self.audit(&refusal, &plan.operation);
                                self.answer(plan, b"+OK\r\n".to_vec(), extent);
                            }
                        }
                    }
                }
            }
            Action::Fence(FenceCommand::Clear) => {
                self.bound = Presented::default();
                self.answer(plan, b"+OK\r\n".to_vec(), extent);
            }
            Action::Fence(FenceCommand::Status) => {
                let status = self.bound.status();
                self.answer(plan, status, extent);
            }
            Action::Forward(_) => match self.admit(&plan, extent) {
                Admitted::Later => return Taken::Later,
                Admitted::Refused(refusal) => self.refuse(plan, &refusal, extent),
                Admitted::Passed(passage) if self.waits_for_shared(&plan) => {
                    passage.give_back();
                    self.forward_wait(plan, request, extent);
                }
                Admitted::Passed(passage) => self.forward(plan, passage, request, extent),
            },
        }
        Taken::Done
    }

    fn answer(&mut self, plan: Plan, reply: Vec<u8>, extent: Extent) {
        self.conversation.answer(plan, reply);
        self.pump_local();
        self.streamed = (extent == Extent::Beginning).then_some(Streamed::Dropped);
    }

    pub(super) fn refuse(&mut self, plan: Plan, refusal: &Refusal, extent: Extent) {
        self.audit(refusal, &plan.operation);
        if let Some(instead) = self.conversation.refuse(plan, refusal) {
            self.link.to_backend.extend_from_slice(&instead);
        }
        self.pump_local();
        self.streamed = (extent == Extent::Beginning).then_some(Streamed::Dropped);
        if refusal.after == AfterRefusal::Close {
            self.phase = Phase::Ending;
        }
    }

    fn forward(&mut self, plan: Plan, passage: Passage, request: &[u8], extent: Extent) {
        self.note_binding(&plan);
        let fenced = self.link.board(passage);
        if plan.kind == Kind::Write {
            self.sharing.note_own_write();
        }
        if let Action::Forward(bytes) = &plan.action {
            if plan.logs_in() {
                self.sharing.note_login(bytes, request);
            }
            bytes.write(request, &mut self.link.to_backend);
        }
        let load = Load {
            fenced,
            blocking: plan.blocks,
            end: match extent {
                Extent::Whole => self.link.queued_bytes(),
                Extent::Beginning => u64::MAX,
            },
        };
        self.link.flights.note(load);
        self.conversation.forward(plan, load);
        self.streamed = (extent == Extent::Beginning).then_some(Streamed::Forwarded { fenced });
    }

    /// The next bytes of a request that was dealt with; how many of them are its own.
    fn stream(&mut self, streamed: Streamed, chunk: &[u8]) -> usize {
        let Ok(part) = self.requests.stream(chunk) else {
            // Its end has not left: the server cannot run it.
            self.streamed = None;
            self.link.condemn();
            return chunk.len();
        };
        if let Streamed::Forwarded { fenced } = streamed {
            // The last byte is what makes the server run it.
            if part.ended && fenced && self.link.flights.release_last() == Err(Revoked) {
                self.streamed = None;
                self.link.condemn();
                return chunk.len();
            }
            self.link.to_backend.extend_from_slice(&chunk[..part.len]);
            let end = self.link.queued_bytes();
            // It may have been answered before its end.
            if part.ended
                && let Some(load) = self.conversation.newest_mut()
            {
                load.end = end;
            }
        }
        if part.ended {
            self.requests.reset();
            self.streamed = None;
        }
        part.len
    }

    /// Hands out the proxy's own answers that are next in order.
    pub(super) fn pump_local(&mut self) {
        while let Some(reply) = self.conversation.next_local() {
            self.to_client.extend_from_slice(&reply);
        }
    }
}
