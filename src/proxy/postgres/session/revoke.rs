//! A newer token has come while a transaction of this session is open.
//!
//! One that is idle is rolled back at once, a pipeline that waits for its Sync by an error in it; a
//! COPY that waits for data is failed; a statement that
//! runs is cancelled after the listener's `cancel_after`, and its transaction rolled back then; a
//! COMMIT that was forwarded is awaited. What is not over after `terminate_after` ends with its
//! session: terminated, and awaited until it is gone. The client learns it by its next statement,
//! which is refused; the session stays usable, but where it had to be terminated.
//!
//! Invariant: while a cancel of ours is on its way nothing of the client's is forwarded: it would
//! hit that.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use super::{RETRY_AFTER, Session, Silent, Turn, requests::Streamed};
use crate::protocol::Refusal;
use crate::protocol::postgres::classify::{Class, TransactionControl};
use crate::protocol::postgres::frame::{copy_fail, flush};
use crate::protocol::postgres::refusal::{Severity, refusal_error};
use crate::protocol::postgres::session::{Considered, Message, SpanId};
use crate::proxy::postgres::control::ControlError;
use crate::proxy::postgres::report;

/// How long a cancel that changed nothing is left at that.
const CANCEL_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// What the server is told of a COPY that is failed.
const COPY_FAILED: &[u8] = b"a newer holder has the lock";

/// How far the revocation is.
#[derive(Default)]
pub(super) struct Revocation {
    state: State,
    /// A COMMIT was forwarded in this span.
    commit: Option<SpanId>,
}

#[derive(Default)]
enum State {
    /// Nothing in flight is revoked.
    #[default]
    None,
    Active(Box<Active>),
    /// The session is being ended.
    Condemned(Refusal, oneshot::Receiver<()>),
}

struct Active {
    /// What the client is told.
    refusal: Refusal,
    cancel_at: Pin<Box<Sleep>>,
    terminate_at: Pin<Box<Sleep>>,
    cancelling: Option<BoxFuture<'static, Result<(), ControlError>>>,
    /// The COPY was failed.
    failed_copy: bool,
    /// The server was told to keep no answer back.
    flushed: bool,
}

impl Revocation {
    /// Whether the client's messages wait.
    pub(super) fn holds_back(&self) -> bool {
        match &self.state {
            State::None => false,
            State::Active(active) => active.cancelling.is_some(),
            State::Condemned(..) => true,
        }
    }

    /// Notes a message that is about to be forwarded.
    pub(super) fn note_commit(&mut self, considered: &Considered, span: SpanId) {
        let commits = considered.runs.iter().any(|run| {
            matches!(
                run.statement.class,
                Class::Transaction(
                    TransactionControl::Commit { .. } | TransactionControl::Prepare(_)
                )
            )
        });
        if commits {
            self.commit = Some(span);
        }
    }
}

impl Session {
    /// Brings transactions of older tokens to their end. Whether something has changed that the
    /// other stages must look at.
    pub(super) fn poll_revocation(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.phase.has_backend() {
            return false;
        }
        match &mut self.revocation.state {
            State::None => self.begin_revocation(cx),
            State::Active(_) => self.go_on(cx),
            State::Condemned(_, gone) => match Pin::new(gone).poll(cx) {
                Poll::Pending => false,
                Poll::Ready(Ok(())) => {
                    self.proven_gone(cx);
                    true
                }
                // The evictor has ended: so does this proxy.
                Poll::Ready(Err(_)) => {
                    self.backend_ended();
                    true
                }
            },
        }
    }

    /// Whether a newer token has come for something in flight, as far as is seen without waiting.
    pub(super) fn is_revoked(&self) -> bool {
        matches!(self.revocation.state, State::Active(_)) || self.flights.is_revoked()
    }

    fn begin_revocation(&mut self, cx: &mut Context<'_>) -> bool {
        if self.flights.is_empty() || self.flights.poll_revoked(cx).is_pending() {
            return false;
        }
        let refusal = self.revoked_now();
        let config = &self.listener.config;
        self.revocation.state = State::Active(Box::new(Active {
            refusal,
            cancel_at: Box::pin(tokio::time::sleep(config.cancel_after)),
            terminate_at: Box::pin(tokio::time::sleep(config.terminate_after)),
            cancelling: None,
            failed_copy: false,
            flushed: false,
        }));
        true
    }

    fn go_on(&mut self, cx: &mut Context<'_>) -> bool {
        let State::Active(active) = &mut self.revocation.state else {
            return false;
        };
        if let Some(cancelling) = &mut active.cancelling {
            match cancelling.as_mut().poll(cx) {
                Poll::Pending => {}
                Poll::Ready(outcome) => {
                    if let Err(error) = outcome {
                        tracing::warn!(%error, "a statement of an older token is not cancelled");
                    }
                    active.cancelling = None;
                    let again = Instant::now() + CANCEL_AGAIN_AFTER;
                    active.cancel_at.as_mut().reset(again);
                    return true;
                }
            }
        }
        let cancels = active.cancelling.is_some();
        if !cancels && (self.flights.is_empty() || self.flights.poll_revoked(cx).is_pending()) {
            self.revocation.state = State::None;
            return true;
        }
        if active.terminate_at.as_mut().poll(cx).is_ready() {
            return self.condemn();
        }
        if cancels {
            return false;
        }
        if self.core.is_copying() && !active.failed_copy {
            return self.fail_copy();
        }
        if !active.flushed && self.core.may_need_flush() && self.streamed.is_none() {
            // What a pipeline has done so far may be answered only with its Sync.
            active.flushed = true;
            self.backend.send(&flush());
            return true;
        }
        if self.core.awaits_sync_only() && self.streamed.is_none() {
            let sync = self.core.end_pipeline();
            self.backend.send(&sync);
            return true;
        }
        let refusal = active.refusal.clone();
        if self.can_speak() && self.core.in_transaction() {
            self.roll_back(&refusal);
            return true;
        }
        self.begin_cancel(cx)
    }

    fn begin_cancel(&mut self, cx: &mut Context<'_>) -> bool {
        let runs = !self.core.is_quiet() && !self.core.is_copying();
        let commits = self.awaits_commit();
        let State::Active(active) = &mut self.revocation.state else {
            return false;
        };
        if !runs || commits || active.cancel_at.as_mut().poll(cx).is_pending() {
            return false;
        }
        let Some(session) = self.flights.session().cloned() else {
            return false;
        };
        let control = self.listener.control.clone();
        active.cancelling = Some(Box::pin(async move { control.cancel(&session).await }));
        true
    }

    /// Whether a COMMIT is on its way: it is awaited.
    fn awaits_commit(&self) -> bool {
        match (self.revocation.commit, self.core.awaited_span()) {
            (Some(commit), Some(awaited)) => awaited <= commit,
            _ => false,
        }
    }

    /// Whether something of the proxy's own can be sent now.
    pub(super) fn can_speak(&self) -> bool {
        self.core.is_quiet() && self.streamed != Some(Streamed::Forwarded)
    }

    /// Rolls the open transaction back under the client.
    pub(super) fn roll_back(&mut self, refusal: &Refusal) {
        let error = refusal_error(refusal, Severity::Error);
        let bytes = self.core.roll_back(error);
        self.backend.send(&bytes);
        self.lost_to = Some(refusal.clone());
    }

    /// Fails the COPY whose data is awaited.
    fn fail_copy(&mut self) -> bool {
        if self.streamed.is_some() {
            return false;
        }
        if let State::Active(active) = &mut self.revocation.state {
            active.failed_copy = true;
        }
        if let Ok(considered) = self.core.consider(Message::CopyEnd) {
            self.core.forward(&considered);
            self.backend.send(&copy_fail(COPY_FAILED));
        }
        true
    }

    /// Has the session ended. Nothing more is forwarded on it.
    fn condemn(&mut self) -> bool {
        let (State::Active(active), Some(gone)) = (&self.revocation.state, self.flights.condemn())
        else {
            return false;
        };
        let refusal = active.refusal.clone();
        self.revocation.state = State::Condemned(refusal, gone);
        true
    }

    /// The server lists the session no more: what it has answered before is here.
    fn proven_gone(&mut self, cx: &mut Context<'_>) {
        self.flights.prove_gone();
        let (mut silent, mut turn) = (Silent::default(), Turn::default());
        while self.poll_receive_backend(&mut silent, &mut turn, cx) {}
        self.backend_ended();
    }

    /// What is told of a statement, or a session, that was ended for a newer token; `None`: none
    /// has come. `in_part`: something of it may be done.
    pub(super) fn ended_for(&self, in_part: bool) -> Option<Refusal> {
        let refusal = match &self.revocation.state {
            State::None => return None,
            State::Active(active) => &active.refusal,
            State::Condemned(refusal, _) => refusal,
        };
        if !in_part {
            return Some(refusal.clone());
        }
        let unknown = "a newer holder has this lock: the statement was cancelled, and what it does \
                       outside of a transaction, or has committed, may be done";
        Some(Refusal {
            lock: refusal.lock.clone(),
            token: refusal.token,
            watermark: refusal.watermark,
            ..Refusal::unknown(unknown)
        })
    }

    /// Why the session is being ended.
    pub(super) fn revoked_for(&self) -> Option<&Refusal> {
        match &self.revocation.state {
            State::Condemned(refusal, _) => Some(refusal),
            State::None | State::Active(_) => None,
        }
    }

    /// The refusal of what the client goes on with after its transaction was rolled back.
    pub(super) fn lost_refusal(&self) -> Refusal {
        let unknown = || Refusal::busy("its transaction was rolled back", RETRY_AFTER);
        self.lost_to.clone().unwrap_or_else(unknown)
    }

    /// Records a refusal.
    pub(super) fn report(&self, refusal: &Refusal, operation: &str) {
        let lock = refusal.lock.as_ref();
        let holder = lock.and_then(|lock| self.sets.holder(lock));
        report::refusal(&self.listener, self.address, refusal, operation, holder);
    }
}
