//! Planning: from the arguments of a command to what is to become of it.

use super::super::args::Args;
use super::super::class::Class;
use super::super::encode;
use super::super::fence;
use super::super::filter::Filter;
use super::super::key_spec::{NeedsMore, argument};
use super::super::options::database_index;
use super::super::rules::RedisRules;
use super::super::table::{Command, CommandTable};
use super::super::treatment::{Channels, Special, Treatment};
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

    /// A command that is forwarded by its name alone: so much of it has come, and still it is not
    /// told which keys it names. For where nothing is refused.
    pub fn plan_unread(&self, args: &Args<'_>, table: &CommandTable, refusal: Refusal) -> Plan {
        let (command, _) = table.find(args);
        let plan = Plan::forward(command.name.clone());
        let would_refuse = Some(Box::new(refusal));
        let special = match command.treatment {
            Some(Treatment::Special(special)) => special,
            _ => {
                return Plan {
                    would_refuse,
                    ..plan
                };
            }
        };
        let expect = match special {
            Special::Subscribe(channels) | Special::Unsubscribe(channels) => {
                let subscribes = matches!(special, Special::Subscribe(_));
                confirmations(channels, subscribes, args)
            }
            _ => Expect::One,
        };
        Plan {
            would_refuse,
            expect,
            ..plan
        }
    }

    /// The plan of what is refused: where nothing is, it stays and says why it would be.
    pub(super) fn refused(&self, plan: Plan, refusal: Refusal) -> Plan {
        match self.settings.observes {
            true => Plan {
                would_refuse: plan.would_refuse.or_else(|| Some(Box::new(refusal))),
                ..plan
            },
            false => Plan::refuse(plan.operation, refusal),
        }
    }

    pub(super) fn plan_command(
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
        let mut refusal = None;
        if denied && !rules.permits(&operation) {
            let why = match command.why {
                "" => "it is about subscriptions and not known here",
                why => why,
            };
            let detail = format!("`{operation}` is not let through: {why}");
            refusal = Some(Refusal::unclassified(detail));
        }
        let special = match command.treatment {
            Some(Treatment::Special(special)) => Some(special),
            _ => None,
        };
        let refusal = refusal.or_else(|| self.refuses_in_transaction(special, rules));
        let mut plan = Plan::forward(operation);
        if let Some(refusal) = refusal {
            plan = self.refused(plan, refusal);
            if matches!(plan.action, Action::Refuse(_)) {
                return Ok(plan);
            }
        }
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
            Err(refusal) => plan = self.refused(plan, refusal),
        }
        if matches!(plan.action, Action::Refuse(_)) {
            return Ok(plan);
        }
        if let Some(transaction) = &self.transaction
            && transaction.locks.len() + plan.locks.len() > TRANSACTION_LOCKS_MAX
        {
            let detail = format!("the transaction needs more than {TRANSACTION_LOCKS_MAX} locks");
            plan = self.refused(plan, Refusal::unclassified(detail));
            if matches!(plan.action, Action::Refuse(_)) {
                return Ok(plan);
            }
            plan.locks.clear();
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
                plan.expect = confirmations(channels, subscribes, args);
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
            return match rules.guards() && !self.settings.observes {
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
            return Ok(self.without_stray_ticket(plan, args));
        };
        match fence::split_user(user) {
            Err(refusal) => Ok(self.refused(without_tickets(plan, args), refusal)),
            Ok(None) => Ok(self.without_stray_ticket(plan, args)),
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
                        Err(refusal) => {
                            return Ok(self.refused(without_tickets(plan, args), refusal));
                        }
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
                _ => return Ok(self.without_stray_ticket(plan, args)),
            }
        }
        plan.effect = Effect::Hello { version, auth };
        plan.alone = auth;
        match changed {
            true => Ok(plan.instead(&sent)),
            false => Ok(plan),
        }
    }

    /// Refuses a command that has a ticket where none belongs: the server must not see it.
    fn without_stray_ticket(&self, plan: Plan, args: &Args<'_>) -> Plan {
        if args.iter().skip(1).any(fence::mentions_ticket) {
            let detail = "a ticket stands behind the user's name, which a password follows";
            return self.refused(without_tickets(plan, args), Refusal::invalid(detail));
        }
        plan
    }
}

/// The command with its arguments cut off where tickets begin in them.
fn without_tickets(plan: Plan, args: &Args<'_>) -> Plan {
    plan.instead(&args.iter().map(fence::before_ticket).collect::<Vec<_>>())
}

/// One for each channel, one in all where none is named.
fn confirmations(channels: Channels, subscribes: bool, args: &Args<'_>) -> Expect {
    Expect::Confirmations {
        channels,
        subscribes,
        left: (args.declared() > 1).then(|| args.declared() as u64 - 1),
    }
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
