//! Planning: from the arguments of a command to what is to become of it.

use std::sync::Arc;

use super::super::args::Args;
use super::super::class::Class;
use super::super::encode;
use super::super::fence::{self, Fence, WITH_COMMAND_AT};
use super::super::filter::Filter;
use super::super::key_spec::{NeedsMore, argument};
use super::super::options::database_index;
use super::super::rules::RedisRules;
use super::super::table::{Command, CommandTable};
use super::super::treatment::{Special, Treatment};
use super::plan::{Action, Deliver, Effect, Expect, Plan, Send};
use super::withheld::ReplyMode;
use super::{Conversation, EXEC_ABORTED, TRANSACTION_LOCKS_MAX};
use crate::protocol::{Kind, Refusal};

impl<T> Conversation<T> {
    /// What is to become of a command. Changes nothing: the plan is handed to `forward`, `answer`
    /// or `refuse` before the next one is made.
    ///
    /// [`NeedsMore`] only where the arguments are not all there.
    pub fn plan(
        &self,
        args: &Args<'_>,
        table: &CommandTable,
        rules: &RedisRules,
    ) -> Result<Plan, NeedsMore> {
        let name = argument(args, 0)?.unwrap_or_default();
        if fence::is_fence(name) {
            return self.plan_fence(args, table, rules);
        }
        self.plan_command(args, table, rules)
    }

    fn plan_fence(
        &self,
        args: &Args<'_>,
        table: &CommandTable,
        rules: &RedisRules,
    ) -> Result<Plan, NeedsMore> {
        let operation: Arc<str> = "fence".into();
        let fence = match fence::read(args)? {
            Ok(fence) => fence,
            Err(refusal) => return Ok(Plan::refuse(operation, refusal)),
        };
        if self.in_transaction() {
            let refusal = Refusal::invalid("FENCE is not taken between MULTI and EXEC");
            return Ok(Plan::refuse(operation, refusal));
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
            return Ok(Plan::refuse(operation, refusal));
        }
        plan.tickets = tickets;
        if plan.action == Action::Forward(Send::AsIs) {
            plan.action = Action::Forward(without_beginning(args));
        }
        Ok(plan)
    }

    fn plan_command(
        &self,
        args: &Args<'_>,
        table: &CommandTable,
        rules: &RedisRules,
    ) -> Result<Plan, NeedsMore> {
        let (command, _) = table.find(args);
        if command.flags.container && args.len() < 2 && !args.is_complete() {
            return Err(NeedsMore);
        }
        let operation = command.name.clone();
        let denied = command.treatment == Some(Treatment::Denied) || !is_understood(command);
        if denied && !rules.permits(&operation) {
            let why = match command.why {
                "" => "it is about subscriptions and not known here",
                why => why,
            };
            let detail = format!("`{operation}` is not let through: {why}");
            return Ok(Plan::refuse(operation, Refusal::unclassified(detail)));
        }
        let special = match command.treatment {
            Some(Treatment::Special(special)) => Some(special),
            _ => None,
        };
        if let Some(refusal) = self.refuses_in_transaction(special, rules) {
            return Ok(Plan::refuse(operation, refusal));
        }
        let mut plan = Plan::forward(operation);
        if args.is_inline() {
            // What was classified is what is sent, whoever splits it.
            plan.action = Action::Forward(Send::Instead(encode::command(
                &args.iter().collect::<Vec<_>>(),
            )));
        }
        let databases = self.databases_ahead;
        let class = match command.classify(args) {
            Ok(class) => class,
            Err(NeedsMore) if command.only_reads() && rules.reserved().is_none() => Class::read(),
            Err(NeedsMore) if !rules.guards() && rules.reserved().is_none() => Class::server(),
            Err(more) => return Err(more),
        };
        plan.kind = class.kind;
        plan.blocks = class.blocks && !self.in_transaction();
        plan.pins = plan.blocks || self.in_transaction();
        let reserved = rules.reserved().map_or(Ok(()), |reserved| {
            reserved.check(command, args, &class, &databases)
        });
        match reserved.and_then(|()| rules.locks(&class, &databases)) {
            Ok(locks) => plan.locks = locks,
            Err(refusal) => return Ok(Plan::refuse(plan.operation, refusal)),
        }
        if let Some(transaction) = &self.transaction
            && transaction.locks.len() + plan.locks.len() > TRANSACTION_LOCKS_MAX
        {
            let detail = format!("the transaction needs more than {TRANSACTION_LOCKS_MAX} locks");
            return Ok(Plan::refuse(plan.operation, Refusal::unclassified(detail)));
        }
        match special {
            Some(special) => self.plan_special(special, plan, args, rules),
            None => Ok(plan),
        }
    }

    /// Commands that would put the count of replies out of step, or change who speaks, when `EXEC`
    /// runs them; and those whose replies are filtered.
    fn refuses_in_transaction(
        &self,
        special: Option<Special>,
        rules: &RedisRules,
    ) -> Option<Refusal> {
        if !self.in_transaction() {
            return None;
        }
        let refused = match special? {
            Special::Subscribe(_)
            | Special::Unsubscribe(_)
            | Special::Hello
            | Special::Auth
            | Special::Monitor
            | Special::ClientReply => true,
            Special::Keys
            | Special::Scan
            | Special::RandomKey
            | Special::SlowLog
            | Special::AclLog => rules.reserved().is_some(),
            Special::ClientSetName | Special::ClientGetName | Special::ClientList => {
                self.settings.name_prefix.is_some()
            }
            _ => false,
        };
        refused.then(|| Refusal::unclassified("it is not let through between MULTI and EXEC"))
    }

    fn plan_special(
        &self,
        special: Special,
        mut plan: Plan,
        args: &Args<'_>,
        rules: &RedisRules,
    ) -> Result<Plan, NeedsMore> {
        let alone = args.declared() == 1;
        match special {
            Special::Select => {
                if let Some(index) = argument(args, 1)?.and_then(database_index) {
                    plan.effect = Effect::Select(index);
                    plan.pins = true;
                }
            }
            Special::Auth => return self.plan_auth(plan, args),
            Special::Hello => return self.plan_hello(plan, args),
            Special::Reset if alone => {
                plan.effect = Effect::Reset;
                plan.barrier = true;
            }
            Special::Quit => plan.effect = Effect::Quit,
            Special::Multi if alone && !self.in_transaction() => {
                plan.effect = Effect::Multi;
                plan.pins = true;
            }
            Special::Discard if alone && self.in_transaction() => {
                plan.effect = Effect::Discard;
                plan.barrier = true;
            }
            Special::Exec => return Ok(self.plan_exec(plan, rules)),
            Special::Watch if !self.in_transaction() => {
                plan.effect = Effect::Watch;
                plan.pins = true;
            }
            Special::Unwatch if !self.in_transaction() => plan.effect = Effect::Unwatch,
            Special::Subscribe(channels) | Special::Unsubscribe(channels) => {
                let subscribes = matches!(special, Special::Subscribe(_));
                plan.pins = true;
                plan.expect = Expect::Confirmations {
                    channels,
                    subscribes,
                    left: (!alone).then(|| args.declared() as u64 - 1),
                };
            }
            Special::Monitor if alone => {
                plan.effect = Effect::Monitor;
                plan.pins = true;
            }
            Special::ClientReply => plan = with_reply_mode(plan, args)?,
            Special::ClientState => {
                plan.effect = Effect::ClientState;
                plan.pins = true;
            }
            Special::ClientSetName => {
                plan.effect = Effect::ClientState;
                plan.pins = true;
                if let (Some(prefix), Some(name), 3) = (
                    &self.settings.name_prefix,
                    argument(args, 2)?,
                    args.declared(),
                ) {
                    let name = [&**prefix, name].concat();
                    plan = plan.instead(&[b"CLIENT", b"SETNAME".as_slice(), &name]);
                }
            }
            Special::ClientGetName | Special::ClientList => {
                if let Some(prefix) = self.settings.name_prefix.clone() {
                    let filter = match special {
                        Special::ClientGetName => Filter::Name,
                        _ => Filter::NameFields,
                    };
                    plan.deliver = Deliver::Filtered(filter(prefix));
                }
                // It tells about this connection.
                plan.pins = true;
            }
            Special::Keys | Special::Scan | Special::RandomKey => {
                let may_list = |database| self.databases_ahead.may_be(database);
                if let Some(reserved) = rules.reserved().filter(|keys| may_list(keys.database)) {
                    let filter = match special {
                        Special::Keys => Filter::Keys,
                        Special::Scan => Filter::Scan,
                        _ => Filter::RandomKey,
                    };
                    plan.deliver = Deliver::Filtered(filter(reserved.prefix.clone()));
                }
            }
            // What was asked of keys in any database is in these.
            Special::SlowLog | Special::AclLog => {
                if let Some(prefix) = rules.hidden_prefix() {
                    plan.deliver = Deliver::Filtered(match special {
                        Special::SlowLog => Filter::SlowLog(prefix),
                        _ => Filter::AclLog(prefix),
                    });
                }
            }
            // It is about the writes of its own connection.
            Special::Wait => plan.pins = true,
            _ => {}
        }
        Ok(plan)
    }

    fn plan_exec(&self, plan: Plan, rules: &RedisRules) -> Plan {
        let Some(transaction) = &self.transaction else {
            // Where writes are guarded it must not run what is not known here.
            return match rules.guards() {
                true => Plan {
                    action: Action::Answer(encode::error("ERR EXEC without MULTI")),
                    ..plan
                },
                false => plan,
            };
        };
        let plan = Plan {
            effect: Effect::Exec,
            pins: true,
            ..plan
        };
        if transaction.refused {
            return Plan {
                deliver: Deliver::Instead(encode::error(EXEC_ABORTED)),
                ..plan.instead(&["DISCARD"])
            };
        }
        Plan {
            kind: if transaction.writes {
                Kind::Write
            } else {
                Kind::Read
            },
            locks: transaction.locks.clone(),
            ..plan
        }
    }

    /// `AUTH password`, `AUTH user password`.
    fn plan_auth(&self, mut plan: Plan, args: &Args<'_>) -> Result<Plan, NeedsMore> {
        plan.effect = Effect::Auth;
        plan.pins = true;
        plan.alone = true;
        if !args.is_complete() {
            return Err(NeedsMore);
        }
        let (Some(user), Some(password), 3) = (args.get(1), args.get(2), args.len()) else {
            return Ok(without_stray_ticket(plan, args));
        };
        match fence::split_user(user) {
            Err(refusal) => Ok(Plan::refuse(plan.operation, refusal)),
            Ok(None) => Ok(without_stray_ticket(plan, args)),
            Ok(Some((user, tickets))) => {
                plan.tickets = tickets;
                plan.barrier = true;
                // Servers before ACLs, and clients without a user, know the password alone.
                Ok(match user {
                    [] => plan.instead(&[b"AUTH", password]),
                    user => plan.instead(&[b"AUTH", user, password]),
                })
            }
        }
    }

    /// `HELLO [version [AUTH user password] [SETNAME name]]` (`helloCommand`).
    fn plan_hello(&self, mut plan: Plan, args: &Args<'_>) -> Result<Plan, NeedsMore> {
        if !args.is_complete() {
            return Err(NeedsMore);
        }
        plan.pins = true;
        let version = match args.get(1) {
            Some(b"2") => Some(2),
            Some(b"3") => Some(3),
            // The server refuses any other.
            _ => None,
        };
        let mut sent: Vec<Vec<u8>> = args.iter().take(2).map(<[u8]>::to_vec).collect();
        let (mut changed, mut auth) = (false, false);
        let mut at = 2;
        while let Some(option) = args.get(at) {
            let is = |word: &str| option.eq_ignore_ascii_case(word.as_bytes());
            sent.push(option.to_vec());
            match (args.get(at + 1), args.get(at + 2)) {
                (Some(user), Some(password)) if is("auth") => {
                    auth = true;
                    let user = match fence::split_user(user) {
                        Err(refusal) => return Ok(Plan::refuse(plan.operation, refusal)),
                        Ok(None) => user,
                        Ok(Some((user, tickets))) => {
                            changed = true;
                            plan.tickets = tickets;
                            plan.barrier = true;
                            // Without a name it is the default user.
                            if user.is_empty() { b"default" } else { user }
                        }
                    };
                    sent.extend([user.to_vec(), password.to_vec()]);
                    at += 3;
                }
                (Some(name), _) if is("setname") => {
                    let prefix = self.settings.name_prefix.as_deref().unwrap_or_default();
                    changed |= !prefix.is_empty();
                    sent.push([prefix, name].concat());
                    at += 2;
                }
                // The server refuses it, and does none of it.
                _ => return Ok(without_stray_ticket(plan, args)),
            }
        }
        plan.effect = Effect::Hello { version, auth };
        plan.alone = auth;
        match changed {
            true => Ok(plan.instead(&sent)),
            false => Ok(plan),
        }
    }
}

/// Refuses a command that has a ticket where none belongs: the server must not see it.
fn without_stray_ticket(plan: Plan, args: &Args<'_>) -> Plan {
    if args.iter().skip(1).any(fence::mentions_ticket) {
        let detail = "a ticket stands behind the user's name, which a password follows";
        return Plan::refuse(plan.operation, Refusal::invalid(detail));
    }
    plan
}

/// A command about subscriptions that is not known here would put replies out of step.
fn is_understood(command: &Command) -> bool {
    command.treatment.is_some() || !command.flags.pubsub || command.flags.module
}

/// `CLIENT REPLY` is carried out here. The server is told `ON`, which it always is: so it says, in
/// its turn, whether it would have taken the command. What it would refuse anyway is left to it.
fn with_reply_mode(plan: Plan, args: &Args<'_>) -> Result<Plan, NeedsMore> {
    let word = argument(args, 2)?.unwrap_or_default();
    let modes = [
        ("on", ReplyMode::On),
        ("off", ReplyMode::Off),
        ("skip", ReplyMode::Skip),
    ];
    let named = |(name, _): &&(&str, ReplyMode)| word.eq_ignore_ascii_case(name.as_bytes());
    let (Some((_, mode)), 3) = (modes.iter().find(named), args.declared()) else {
        return Ok(plan);
    };
    Ok(Plan {
        effect: Effect::ReplyMode(*mode),
        ..plan.instead(&["CLIENT", "REPLY", "ON"])
    })
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
