//! May the command at hand be forwarded? At once where its tokens are settled and its session is
//! recorded; otherwise it waits, and is planned and asked for again afterwards.
//!
//! Every ticket that the connection has bound, or that the command carries, is presented: it
//! raises, and one that is stale refuses the command, read or write. Commands that only concern the
//! connection itself pass, so that it stays usable.
//!
//! Invariant: what is forwarded under a ticket was verified by the keys of now. When lockd tells
//! others, or takes this proxy out of the set, the connection's tickets are verified again first.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Session;
use super::present::{self, NotPresented, Presented};
use crate::audit::{self, Excerpt, Record};
use crate::clock;
use crate::config::Mode;
use crate::lock_name::LockName;
use crate::protocol::redis::Plan;
use crate::protocol::{Kind, Refusal};
use crate::proxy::gates::Claim;
use crate::proxy::redis::link::{Extent, Passage};
use crate::proxy::redis::settle::{RETRY_AFTER, Settled};
use crate::ticket::Ticket;
use crate::token::Token;

/// Most times that a command is settled anew before it is told busy.
const ROUNDS_MAX: usize = 64;

type Waiting<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// What the command at hand waits for, and what has come of it.
#[derive(Default)]
pub(super) struct Admission {
    presenting: Option<Waiting<(Presented, Vec<Settled>), NotPresented>>,
    settling: Option<Waiting<Vec<Settled>, Refusal>>,
    /// What the connection has bound is verified again.
    renewing: Option<Waiting<Presented, NotPresented>>,
    /// The tickets that the command carries.
    presented: Option<Result<Presented, Refusal>>,
    /// Those among them that are genuine, but were not taken.
    rejected: Vec<Arc<Ticket>>,
    refused: Option<Refusal>,
    rounds: usize,
    /// What an AUTH on its way carries: the connection's when it succeeds.
    pub(super) binding: Option<Presented>,
}

impl Admission {
    pub(super) fn is_waiting(&self) -> bool {
        self.presenting.is_some() || self.settling.is_some() || self.renewing.is_some()
    }

    /// Whether nothing has come of the command at hand that decides on it.
    pub(super) fn is_undecided(&self) -> bool {
        !self.is_waiting() && self.presented.is_none() && self.refused.is_none()
    }

    /// The command at hand was dealt with.
    pub(super) fn next_command(&mut self) {
        self.presented = None;
        self.rejected.clear();
        self.refused = None;
        self.rounds = 0;
    }

    /// What was asked for by [`Session::present`].
    pub(super) fn take_presented(&mut self) -> Result<Presented, Refusal> {
        let presented = self.presented.take();
        presented.unwrap_or_else(|| Ok(Presented::default()))
    }
}

/// The gate's answer.
pub(super) enum Admitted {
    /// It is not known yet.
    Later,
    Passed(Passage),
    Refused(Refusal),
}

impl Session {
    /// Goes on with what the command at hand waits for.
    pub(super) fn poll_admission(&mut self, cx: &mut Context<'_>) -> bool {
        let admission = &mut self.admission;
        if let Some(presenting) = &mut admission.presenting
            && let Poll::Ready(outcome) = presenting.as_mut().poll(cx)
        {
            admission.presenting = None;
            self.admission.presented = Some(match outcome {
                Ok((presented, settled)) => {
                    self.link.keep(settled);
                    Ok(presented)
                }
                Err(NotPresented { refusal, tickets }) => {
                    self.admission.rejected = tickets;
                    Err(refusal)
                }
            });
            return true;
        }
        if let Some(settling) = &mut self.admission.settling
            && let Poll::Ready(outcome) = settling.as_mut().poll(cx)
        {
            self.admission.settling = None;
            match outcome {
                Ok(settled) => self.link.keep(settled),
                Err(refusal) => self.admission.refused = Some(refusal),
            }
            return true;
        }
        if let Some(renewing) = &mut self.admission.renewing
            && let Poll::Ready(outcome) = renewing.as_mut().poll(cx)
        {
            self.admission.renewing = None;
            match outcome {
                Ok(again) => self.bound.renew(&again),
                Err(NotPresented { refusal, tickets }) => {
                    self.admission.rejected = tickets;
                    self.admission.refused = Some(refusal);
                }
            }
            return true;
        }
        false
    }

    /// Whether the tickets that the command carries are verified and settled, or refused.
    pub(super) fn present(&mut self, plan: &Plan) -> bool {
        if self.admission.presented.is_some() {
            return true;
        }
        let (listening, session) = (self.listening.clone(), self.link.flights.session().clone());
        let presenting = present::present(listening, session, plan.tickets.clone());
        self.admission.presenting = Some(Box::pin(presenting));
        false
    }

    /// Whether what the connection has bound was verified by the keys of now. Verifies it again if
    /// it was not.
    fn is_bound_current(&mut self) -> bool {
        if !self.bound.is_outdated(&self.listening.tickets) {
            return true;
        }
        let renewing = present::verify_bound(Arc::clone(&self.listening), self.bound.clone());
        self.admission.renewing = Some(Box::pin(renewing));
        false
    }

    /// May it pass?
    pub(super) fn admit(&mut self, plan: &Plan, extent: Extent) -> Admitted {
        if let Some(refusal) = self.admission.refused.take() {
            return self.unless_observing(plan, refusal);
        }
        if !is_about_connection(&plan.operation) && !self.is_bound_current() {
            return Admitted::Later;
        }
        if !plan.tickets.is_empty() {
            let tickets = &self.listening.tickets;
            let presented = self.admission.presented.as_ref();
            if let Some(Ok(presented)) = presented
                && presented.is_outdated(tickets)
            {
                self.admission.presented = None;
            }
            if !self.present(plan) {
                return Admitted::Later;
            }
            if let Some(Err(refusal)) = &self.admission.presented {
                let refusal = refusal.clone();
                return self.unless_observing(plan, refusal);
            }
        }
        let claims = match self.claims(plan) {
            Ok(claims) => claims,
            Err(refusal) => return self.unless_observing(plan, refusal),
        };
        if self.listening.config.mode == Mode::Observe {
            if let Some(refusal) = &plan.would_refuse {
                self.audit(refusal, &plan.operation);
            }
            self.observe(plan, &claims);
            return Admitted::Passed(Passage::Free);
        }
        if plan.kind == Kind::Write
            && let Some(lock) = missing(&plan.locks, &claims)
        {
            return Admitted::Refused(Refusal::missing(lock.clone()));
        }
        if claims.is_empty() || is_about_connection(&plan.operation) {
            return Admitted::Passed(Passage::Free);
        }
        let passed = self.link.pass(plan.kind, &claims, extent);
        match passed {
            Some(passage) => Admitted::Passed(passage),
            None => self.settle(plan, claims),
        }
    }

    /// What the command presents: what it carries, and what the connection has bound for the other
    /// locks.
    fn claims(&self, plan: &Plan) -> Result<Arc<[Claim]>, Refusal> {
        let carried = match &self.admission.presented {
            Some(Ok(presented)) => presented,
            _ if self.bound.bare.is_none() => return Ok(Arc::clone(&self.bound.claims)),
            _ => &Presented::default(),
        };
        let mut claims = carried.claims.to_vec();
        let bound = self.bound.claims.iter();
        let others = bound.filter(|claim| !carried.claims.iter().any(|it| it.lock == claim.lock));
        claims.extend(others.cloned());
        if let Some(token) = carried.bare.or(self.bound.bare) {
            claims.extend(of_bare(token, &plan.locks)?);
        }
        claims.sort_unstable_by(|a, b| a.lock.cmp(&b.lock));
        Ok(claims.into())
    }

    fn settle(&mut self, plan: &Plan, claims: Arc<[Claim]>) -> Admitted {
        self.admission.rounds += 1;
        if self.admission.rounds > ROUNDS_MAX {
            let detail = "newer tokens keep coming for these locks";
            return Admitted::Refused(Refusal::busy(detail, RETRY_AFTER));
        }
        let settling = self.link.settling(plan.kind, claims);
        self.admission.settling = Some(Box::pin(settling));
        Admitted::Later
    }

    fn unless_observing(&mut self, plan: &Plan, refusal: Refusal) -> Admitted {
        match self.listening.config.mode {
            Mode::Enforce => Admitted::Refused(refusal),
            Mode::Observe => {
                self.audit(&refusal, &plan.operation);
                Admitted::Passed(Passage::Free)
            }
        }
    }

    /// What an enforcing listener would refuse is audited.
    fn observe(&self, plan: &Plan, claims: &[Claim]) {
        if plan.kind == Kind::Write
            && let Some(lock) = missing(&plan.locks, claims)
        {
            self.audit(&Refusal::missing(lock.clone()), &plan.operation);
        }
        for claim in claims {
            if let Some(watermark) = self.listening.shadows.observe(&claim.lock, claim.token) {
                let watermark = Token::new(watermark);
                let refusal = Refusal::stale(claim.lock.clone(), claim.token, watermark);
                self.audit(&refusal, &plan.operation);
            }
        }
    }

    /// Records a refusal.
    pub(super) fn audit(&self, refusal: &Refusal, operation: &str) {
        let listening = &self.listening;
        let carried = self.admission.presented.iter().flatten();
        let tickets = carried
            .flat_map(|it| &it.tickets)
            .chain(&self.admission.rejected)
            .chain(&self.bound.tickets);
        let holder = refusal
            .lock
            .as_ref()
            .and_then(|lock| tickets.into_iter().find(|ticket| ticket.lock == *lock))
            .map(|ticket| Excerpt::new(&ticket.holder));
        listening.audit.record(Record {
            unix_ms: clock::unix_ms(),
            instance: Excerpt::new(&listening.instance),
            listener: Excerpt::new(&listening.config.name),
            protocol: "redis",
            client: self.address,
            code: refusal.code.as_str(),
            lock: refusal.lock.clone(),
            token: refusal.token,
            watermark: refusal.watermark,
            holder,
            operation: Excerpt::new(operation),
            mode: match listening.config.mode {
                Mode::Enforce => audit::Mode::Enforce,
                Mode::Observe => audit::Mode::Observe,
            },
        });
    }

    /// What an AUTH that is forwarded carries.
    pub(super) fn note_binding(&mut self, plan: &Plan) {
        if plan.barrier
            && let Some(Ok(presented)) = &self.admission.presented
        {
            self.admission.binding = Some(presented.clone());
        }
    }
}

/// Whether a command concerns nothing but its connection: it passes while a bound ticket is stale.
fn is_about_connection(operation: &str) -> bool {
    let word = operation.split('|').next().unwrap_or(operation);
    matches!(
        word,
        "auth"
            | "client"
            | "command"
            | "discard"
            | "echo"
            | "hello"
            | "multi"
            | "ping"
            | "quit"
            | "reset"
            | "select"
            | "unwatch"
            | "subscribe"
            | "psubscribe"
            | "ssubscribe"
            | "unsubscribe"
            | "punsubscribe"
            | "sunsubscribe"
    )
}

/// The lock that a write needs and presents no ticket for.
pub(super) fn missing<'l>(locks: &'l [LockName], claims: &[Claim]) -> Option<&'l LockName> {
    let presented = |lock: &LockName| claims.iter().any(|claim| claim.lock == *lock);
    locks.iter().find(|lock| !presented(lock))
}

fn of_bare(token: Token, locks: &[LockName]) -> Result<Option<Claim>, Refusal> {
    match locks {
        // Where no rule names a lock, an integer says nothing.
        [] => Ok(None),
        [lock] => Ok(Some(Claim {
            lock: lock.clone(),
            token,
            unsigned: true,
        })),
        _ => Err(Refusal::invalid(
            "this command needs several locks: a bare token does not say which one it is for",
        )),
    }
}
