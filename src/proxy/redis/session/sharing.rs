//! Commands that leave over a lane ([`super::super::lane`]) instead of the client's own connection.
//!
//! Invariants:
//! - a client has one command on its way over a lane at most, and nothing on its own connection
//!   beside it: its commands are run in its order;
//! - where its own connection ends meanwhile, the client gets the outcome first.

use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::{Phase, RETRY_AFTER, Session};
use crate::protocol::Refusal;
use crate::protocol::redis::{
    Action, Finished, Plan, ReplyEnd, ReplyHead, ReplyProgress, ReplyScanner, Send, refusal_reply,
};
use crate::proxy::accept::Alive;
use crate::proxy::gates::Claim;
use crate::proxy::redis::flights::Load;
use crate::proxy::redis::lane::{CLAIMS_MAX, Key, Lanes, Mailbox, Member, Outcome};
use crate::proxy::redis::link::Extent;

/// Longest command that is shared, in bytes: the others wait while it is sent.
const SHARED_BYTES_MAX: usize = 16 << 10;
/// The client's own connection is used as often as this, so that the server does not take it for
/// idle (`timeout` in redis.conf, in whole seconds).
const OWN_EVERY: Duration = Duration::from_millis(500);

/// What a session has to do with lanes.
pub(super) struct Sharing {
    lanes: Arc<Lanes>,
    alive: Alive,
    member: Option<Membership>,
    /// Of the lane that carried its last write, until another one has carried one.
    before: Option<Member>,
    mailbox: Arc<Mailbox>,
    /// A command is on its way.
    awaiting: bool,
    /// The own connection ended meanwhile.
    lost_own: bool,
    /// The last write was shared: `WAIT` must know of it.
    used: bool,
    /// Nothing (more) is shared: it waits for its writes, or its listener says so.
    never: bool,
    own_due: Option<Instant>,
    /// What logged the connection in last.
    login: Option<Arc<[u8]>>,
    /// What is to log it in.
    logging_in: Option<Arc<[u8]>>,
}

/// The membership, and what the connection was when it joined.
struct Membership {
    member: Member,
    resp: u8,
    database: u32,
    claims: Arc<[Claim]>,
    /// It has carried a write.
    used: bool,
}

impl Sharing {
    /// `never`: nothing is shared.
    pub(super) fn new(lanes: Arc<Lanes>, alive: Alive, never: bool) -> Sharing {
        Sharing {
            lanes,
            alive,
            member: None,
            before: None,
            mailbox: Arc::default(),
            awaiting: false,
            lost_own: false,
            used: false,
            never,
            own_due: None,
            login: None,
            logging_in: None,
        }
    }

    /// Whether a command is on its way.
    pub(super) fn is_awaiting(&self) -> bool {
        self.awaiting
    }

    /// The own connection has ended. Whether an outcome is still to come.
    pub(super) fn outlives_own(&mut self) -> bool {
        self.lost_own |= self.awaiting;
        self.awaiting
    }

    /// Whether nothing comes from the own connection any more.
    pub(super) fn has_lost_own(&self) -> bool {
        self.lost_own
    }

    /// A write is forwarded on the own connection: a `WAIT` is about that from here on.
    pub(super) fn note_own_write(&mut self) {
        if self.used {
            self.used = false;
            self.before = None;
        }
    }

    /// A command that logs in is forwarded, as these bytes.
    pub(super) fn note_login(&mut self, bytes: &Send, request: &[u8]) {
        self.logging_in = match bytes {
            Send::AsIs => Some(request.into()),
            Send::Instead(whole) => Some(whole.as_slice().into()),
            // A command that logs in is never sent so.
            Send::Tail { .. } => {
                self.never = true;
                None
            }
        };
    }

    /// A command on the own connection is answered.
    pub(super) fn note_finished(&mut self, finished: &Finished<Load>) {
        match &*finished.operation {
            "auth" | "hello" => {
                if let Some(login) = self.logging_in.take().filter(|_| finished.succeeded) {
                    self.login = Some(login);
                }
                self.leave();
            }
            "reset" if finished.succeeded => {
                self.login = None;
                self.leave();
            }
            _ => {}
        }
    }

    /// It is not a member any more: its connection is another than when it joined.
    fn leave(&mut self) {
        if let Some(membership) = self.member.take().filter(|it| it.used) {
            self.before = Some(membership.member);
        }
    }

    /// It is time to use the own connection.
    fn is_own_due(&mut self, now: Instant) -> bool {
        let due = self.own_due.is_none_or(|due| now >= due);
        if due {
            self.own_due = Some(now + OWN_EVERY);
        }
        due
    }
}

impl Session {
    /// Hands a short write under these claims to a lane, if there is one that takes it now.
    pub(super) fn take_shared(&mut self, request: &[u8], claims: &Arc<[Claim]>) -> bool {
        if self.sharing.never
            || claims.is_empty()
            || claims.len() > CLAIMS_MAX
            || request.len() > SHARED_BYTES_MAX
            || !self.has_nothing_under_way()
        {
            return false;
        }
        let now = Instant::now();
        if self.sharing.is_own_due(now) || !self.join(claims, now) {
            return false;
        }
        let sharing = &mut self.sharing;
        let Some(membership) = &mut sharing.member else {
            return false;
        };
        if !membership.member.lane().submit(request, &sharing.mailbox) {
            return false;
        }
        membership.used = true;
        sharing.before = None;
        sharing.awaiting = true;
        sharing.used = true;
        self.conversation.forward_plain(Load::default(), |_| false);
        self.admission.next_command();
        true
    }

    /// Whether nothing of the client is on its way, and its next command does not depend on its
    /// own connection.
    fn has_nothing_under_way(&self) -> bool {
        self.phase == Phase::Open
            && self.conversation.outstanding() == 0
            && self.conversation.is_plain()
            && self.delivery.is_none()
            && self.link.to_backend.is_empty()
            && self.link.from_backend.is_empty()
    }

    /// Whether the session is a member of a lane that is as its connection is.
    fn join(&mut self, claims: &Arc<[Claim]>, now: Instant) -> bool {
        let resp = self.conversation.state().resp;
        let Some(database) = self.conversation.databases().single() else {
            return false;
        };
        let fits = |it: &Membership| {
            it.resp == resp
                && it.database == database
                && Arc::ptr_eq(&it.claims, claims)
                && !it.member.lane().is_replaceable(now)
        };
        if self.sharing.member.as_ref().is_some_and(fits) {
            return true;
        }
        // Tokens that are not current need no lane.
        let mut slots = claims.iter();
        let current = |claim| self.link.slots.find(claim).is_some_and(|it| it.passes());
        if !slots.all(current) {
            return false;
        }
        let key = Key {
            login: self.sharing.login.clone(),
            resp,
            database,
            claims: Arc::clone(claims),
        };
        let sharing = &mut self.sharing;
        sharing.leave();
        let member = sharing.lanes.join(key, &self.listening, &sharing.alive);
        sharing.member = Some(Membership {
            member,
            resp,
            database,
            claims: Arc::clone(claims),
            used: false,
        });
        true
    }

    /// Whether a command waits for writes that left on a connection which is shared.
    pub(super) fn waits_for_shared(&self, plan: &Plan) -> bool {
        self.sharing.used && plan.is_wait() && !self.conversation.in_transaction()
    }

    /// A `WAIT` for writes that were shared takes their connection over: the server keeps what it
    /// is about with the connection. From here on this client shares nothing.
    pub(super) fn forward_wait(&mut self, plan: Plan, request: &[u8], extent: Extent) {
        let sharing = &mut self.sharing;
        sharing.never = true;
        sharing.leave();
        let mut bytes = BytesMut::new();
        if let Action::Forward(send) = &plan.action {
            send.write(request, &mut bytes);
        }
        let taken = extent == Extent::Whole
            && sharing
                .before
                .as_ref()
                .is_some_and(|it| it.lane().take_over(&bytes, &sharing.mailbox));
        if !taken {
            let detail = "the connection that its writes have left on is gone";
            return self.refuse(plan, &Refusal::busy(detail, RETRY_AFTER), extent);
        }
        self.sharing.awaiting = true;
        self.conversation.forward(plan, Load::default());
    }

    /// Delivers the outcome of the command that is on its way.
    pub(super) fn poll_shared(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.sharing.awaiting || matches!(self.phase, Phase::Flushing | Phase::Over) {
            return false;
        }
        let mailbox = Arc::clone(&self.sharing.mailbox);
        let mut post = mailbox.open();
        let Some(outcome) = post.poll(cx) else {
            return false;
        };
        self.sharing.awaiting = false;
        let delivered = match outcome {
            Outcome::Answered(head, end) => {
                self.deliver_shared(&post.reply, &head, &end).map(|_| ())
            }
            Outcome::Lost(fate) => self.deliver_fate(&fate),
        };
        post.reply.clear();
        drop(post);
        if let Err(reason) = delivered {
            tracing::error!(reason, "a shared connection's replies are out of step");
            self.sharing.lost_own = true;
        }
        if self.sharing.lost_own {
            self.backend_ended();
        }
        true
    }

    /// The command's name.
    fn deliver_shared(
        &mut self,
        reply: &[u8],
        head: &ReplyHead,
        end: &ReplyEnd,
    ) -> Result<Option<Arc<str>>, String> {
        let delivery = self.delivery_of(head)?;
        self.deliver_whole(delivery, reply)?;
        let finished = self.conversation.reply_ended(end);
        let operation = finished.as_ref().map(|it| Arc::clone(&it.operation));
        if let Some(finished) = finished {
            self.finish(finished);
        }
        self.pump_local();
        Ok(operation)
    }

    /// The reply does not come any more: the client is told what is known, at its place.
    fn deliver_fate(&mut self, fate: &Refusal) -> Result<(), String> {
        let line = refusal_reply(fate);
        let Ok(ReplyProgress::Complete { head, end, .. }) = ReplyScanner::new().scan(&line) else {
            return Err("a refusal is no reply".to_owned());
        };
        let operation = self.deliver_shared(&line, &head, &end)?;
        self.audit(fate, operation.as_deref().unwrap_or_default());
        Ok(())
    }
}
