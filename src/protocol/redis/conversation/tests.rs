//! Conversations with a server that is played here, command by command.

use super::super::reply::{ReplyProgress, ReplyScanner};
use super::super::request::{RequestLimits, RequestScanner};
use super::super::reserved::{ReservedKeys, Scripts};
use super::super::rules::{RedisRule, RedisRules};
use super::super::table::CommandTable;
use super::super::{FenceCommand, Filter, NeedsMore};
use super::{Action, Change, Conversation, ConversationSettings, Delivery, Plan, Send};
use crate::protocol::{Code, Kind, Unmatched};

/// A conversation, the table and rules that it is held by.
pub(super) struct Talk {
    conversation: Conversation<String>,
    table: CommandTable,
    rules: RedisRules,
    answers: Vec<String>,
}

pub(super) fn rules(list: &[(&str, &str, Option<u32>)]) -> RedisRules {
    let rule = |(key, lock, database): &(&str, &str, Option<u32>)| {
        RedisRule::new(key, lock, *database).unwrap()
    };
    RedisRules::new(list.iter().map(rule).collect(), Unmatched::Pass)
}

/// Jobs by their id, and orders.
fn two_rules() -> RedisRules {
    rules(&[
        ("job:{id}:*", "jobs/{id}", None),
        ("order*", "orders", None),
    ])
}

/// Everything is guarded by one lock.
fn all() -> RedisRules {
    rules(&[("*", "all", None)])
}

impl Talk {
    pub(super) fn new(rules: RedisRules) -> Talk {
        Talk::with(rules, ConversationSettings::default())
    }

    fn with(rules: RedisRules, settings: ConversationSettings) -> Talk {
        Talk {
            conversation: Conversation::new(settings),
            table: super::super::table::sample_table(),
            rules,
            answers: vec![],
        }
    }

    /// Plans a command that comes as an array.
    pub(super) fn plan(&self, line: &str) -> Plan {
        let parts: Vec<&str> = line.split(' ').collect();
        self.plan_bytes(&super::encode::command(&parts)).unwrap()
    }

    fn plan_bytes(&self, bytes: &[u8]) -> Result<Plan, NeedsMore> {
        let mut scanner = RequestScanner::new(RequestLimits {
            decide_bytes: 256,
            ..RequestLimits::default()
        });
        scanner.scan(bytes).unwrap();
        self.conversation
            .plan(&scanner.args(bytes), &self.table, &self.rules)
    }

    /// The client sends a command: it is forwarded, answered or refused.
    fn client(&mut self, line: &str) -> &mut Talk {
        let plan = self.plan(line);
        if self.is_plain(line, &plan) {
            self.conversation
                .forward_plain(line.to_owned(), |last| last == line);
            return self;
        }
        match plan.action.clone() {
            Action::Forward(_) => self.conversation.forward(plan, line.to_owned()),
            Action::Answer(reply) => self.conversation.answer(plan, reply),
            Action::Fence(_) => self.conversation.answer(plan, b"+FENCE\r\n".to_vec()),
            Action::Refuse(refusal) => {
                self.conversation.refuse(plan, &refusal);
            }
        }
        self.locals();
        self
    }

    /// Whether it can go the short way: which must be the same way.
    fn is_plain(&mut self, line: &str, plan: &Plan) -> bool {
        let bytes = super::encode::command(&line.split(' ').collect::<Vec<_>>());
        let mut scanner = RequestScanner::new(RequestLimits::default());
        scanner.scan(&bytes).unwrap();
        let args = scanner.args(&bytes);
        let (kind, locks) = match self.conversation.plain(&args, &self.table, &self.rules) {
            None => return false,
            Some(plain) => (plain.kind, plain.locks.to_vec()),
        };
        let same = Plan {
            kind,
            locks,
            ..Plan::forward(plan.operation.clone())
        };
        assert_eq!(*plan, same, "{line}");
        true
    }

    fn locals(&mut self) {
        while let Some(local) = self.conversation.next_local() {
            self.answers.push(String::from_utf8(local).unwrap());
        }
    }

    /// The server sends a reply; what the conversation makes of it.
    fn server(&mut self, reply: &str) -> Option<super::Finished<String>> {
        let mut scanner = ReplyScanner::new();
        let Ok(ReplyProgress::Complete { head, end, .. }) = scanner.scan(reply.as_bytes()) else {
            panic!("{reply:?} is no whole reply");
        };
        match self
            .conversation
            .reply_begins(&head)
            .expect("it is waited for")
        {
            Delivery::Forward => self.answers.push(reply.to_owned()),
            Delivery::Swallow => {}
            Delivery::Instead(other) => self.answers.push(String::from_utf8(other).unwrap()),
            Delivery::Hold(filter) => self.answers.push(format!("{filter:?}")),
        }
        let finished = self.conversation.reply_ended(&end);
        self.locals();
        finished
    }

    /// A command and its reply.
    fn both(&mut self, line: &str, reply: &str) -> super::Finished<String> {
        self.client(line);
        self.server(reply).expect("it is the last reply")
    }

    fn answers(&mut self) -> Vec<String> {
        std::mem::take(&mut self.answers)
    }
}

fn locks(plan: &Plan) -> Vec<&str> {
    plan.locks.iter().map(|lock| lock.as_str()).collect()
}

/// The locks of a write, or the code that it is refused with.
pub(super) fn needs(talk: &Talk, line: &str) -> Result<Vec<String>, Code> {
    let plan = talk.plan(line);
    match &plan.action {
        Action::Refuse(refusal) => Err(refusal.code),
        _ if plan.kind == Kind::Read => Ok(vec!["read".to_owned()]),
        _ => Ok(locks(&plan).into_iter().map(str::to_owned).collect()),
    }
}

mod bounds;
mod data;
mod fencing;
mod order;
mod plain;
