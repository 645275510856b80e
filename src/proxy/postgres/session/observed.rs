//! Observing: nothing is refused, delayed or waited for. What passes may define what the sessions
//! of enforcing listeners run, all the same.

use super::Session;
use super::effects::Ending;
use super::resolved::defines;
use super::weigh::{Needs, Weighed, operation_of};
use crate::config::Mode;
use crate::protocol::Refusal;
use crate::protocol::postgres::session::{Considered, Run};
use crate::token::Token;

/// What a message brings about that passes without having been looked up, where one of its runs
/// does so by its text.
pub(super) fn unseen_ending(considered: &Considered, acts: impl Fn(&Run) -> bool) -> Ending {
    let mut ending = Ending::default();
    if considered.runs.iter().any(acts) {
        ending.distrust();
        ending.shifts = true;
        ending.redefines = true;
    }
    ending
}

/// Whether a run may define something, as far as its text tells.
pub(super) fn defines_by_text(run: &Run) -> bool {
    let mut all = run.executed.iter().chain([&run.statement]);
    all.any(|it| defines(it) || it.uses.everything.is_some() || it.uses.redefines)
}

/// The same where a function that it calls may.
fn may_define(run: &Run) -> bool {
    let mut all = run.executed.iter().chain([&run.statement]);
    defines_by_text(run) || all.any(|it| !it.uses.functions.is_empty())
}

impl Session {
    /// Observing, what enforcing would refuse is written down and passes.
    pub(super) fn refused(&mut self, refusal: Refusal, considered: &Considered) -> Weighed {
        match self.listener.config.mode {
            Mode::Enforce => Weighed::Refused(refusal),
            Mode::Observe => {
                self.report(&refusal, operation_of(considered));
                Weighed::Passed(unseen_ending(considered, may_define))
            }
        }
    }

    pub(super) fn observe(&mut self, considered: &Considered, needs: &Needs) {
        for claim in needs.claims.iter() {
            let shadows = &self.listener.shadows;
            if let Some(watermark) = shadows.observe(&claim.lock, claim.token) {
                let watermark = Token::new(watermark);
                let refusal = Refusal::stale(claim.lock.clone(), claim.token, watermark);
                self.report(&refusal, operation_of(considered));
            }
        }
    }
}
