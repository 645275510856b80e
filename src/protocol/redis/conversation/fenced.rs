//! Planning `FENCE`, the proxy's own command, and what stands in it.

use std::sync::Arc;

use super::super::args::Args;
use super::super::encode;
use super::super::fence::{self, Fence, WITH_COMMAND_AT};
use super::super::key_spec::{NeedsMore, argument};
use super::super::rules::RedisRules;
use super::super::table::CommandTable;
use super::Conversation;
use super::plan::{Action, Effect, Expect, Plan, Send};
use crate::protocol::Refusal;

impl<T> Conversation<T> {
    pub(super) fn plan_fence(
        &self,
        args: &Args<'_>,
        table: &CommandTable,
        rules: &RedisRules,
    ) -> Result<Plan, NeedsMore> {
        let operation: Arc<str> = "fence".into();
        let refused = |refusal| match fence::command_in(args) {
            // The command in it is the server's.
            Some(inner) if self.settings.observes => {
                let plan = self.plan_command(&inner, table, rules)?;
                let plan = Plan {
                    action: in_place(plan.action, args),
                    ..plan
                };
                Ok(self.refused(plan, refusal))
            }
            _ => Ok(Plan::refuse(operation.clone(), refusal)),
        };
        let fence = match fence::read(args)? {
            Ok(fence) => fence,
            Err(refusal) => return refused(refusal),
        };
        if self.in_transaction() {
            return refused(Refusal::invalid(
                "FENCE is not taken between MULTI and EXEC",
            ));
        }
        let tickets = match fence {
            Fence::With(tickets) => tickets,
            Fence::Connection(command, tickets) => {
                let plan = Plan::new(operation, Action::Fence(command));
                return Ok(Plan { tickets, ..plan });
            }
        };
        let inner = args.from(WITH_COMMAND_AT);
        let mut plan = match argument(&inner, 0)? {
            Some(name) if fence::is_fence(name) => {
                let refusal = Refusal::invalid("FENCE WITH is followed by a command of the server");
                return Ok(Plan::refuse(operation, refusal));
            }
            _ => self.plan_command(&inner, table, rules)?,
        };
        if plan.effect != Effect::None || plan.expect != Expect::One {
            let refusal = Refusal::invalid(format!(
                "FENCE WITH is for one command on data: `{}` is about the connection",
                plan.operation
            ));
            return refused(refusal);
        }
        plan.tickets = tickets;
        plan.action = in_place(plan.action, args);
        Ok(plan)
    }
}

/// What is done with the command of a `FENCE WITH`, from its own beginning on.
fn in_place(action: Action, args: &Args<'_>) -> Action {
    match action {
        Action::Forward(Send::AsIs) => Action::Forward(without_beginning(args)),
        other => other,
    }
}

/// The request without `FENCE WITH <ticket>`.
fn without_beginning(args: &Args<'_>) -> Send {
    let inner = args.from(WITH_COMMAND_AT);
    match args
        .offset_of(WITH_COMMAND_AT)
        .filter(|_| !args.is_inline())
    {
        Some(from) => {
            let mut head = vec![];
            encode::line(&mut head, b'*', inner.declared());
            Send::Tail { head, from }
        }
        None => Send::Instead(encode::command(&inner.iter().collect::<Vec<_>>())),
    }
}
