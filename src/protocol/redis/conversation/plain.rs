//! The short way for what most traffic is: one command after the other of the same name.
//!
//! A command is plain when its name alone tells what becomes of it: flags say read or write, its
//! only key is its first argument, and it means nothing to the connection. What is known of the
//! last plain command is kept, so that the next one of that name costs one comparison of names, and
//! what its key needs. Commands that are due and alike are one entry of the queue.
//!
//! Invariant: whatever is planned here would be planned the same by `plan`; a test compares them.

use std::sync::Arc;

use super::super::args::Args;
use super::super::brief;
use super::super::class::Class;
use super::super::key_spec::{Begin, Find, Home, KeyUse};
use super::super::rules::RedisRules;
use super::super::table::{Command, CommandTable};
use super::{Conversation, Databases, Entry};
use crate::lock_name::LockName;
use crate::protocol::Kind;

/// What is known of the last plain command.
#[derive(Debug)]
pub(super) struct Usual {
    /// As the client spells it.
    name: Box<[u8]>,
    operation: Arc<str>,
    kind: Kind,
    /// Its reply can be short: see `brief`.
    brief: bool,
    databases: Databases,
    /// Of its key. Every other key has the same where `RedisRules::are_uniform`.
    locks: Vec<LockName>,
}

/// A plain command: forwarded as it is, answered by one reply that goes to the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plain<'c> {
    /// Read or write.
    pub kind: Kind,
    /// As in [`super::Plan::locks`].
    pub locks: &'c [LockName],
    /// Its reply is short, whatever the data.
    pub brief: bool,
}

/// Plain commands of one name that follow each other.
#[derive(Debug)]
pub(super) struct Run<T> {
    pub(super) operation: Arc<str>,
    pub(super) kind: Kind,
    /// Of the first; it stands for those of the others.
    pub(super) payload: T,
    /// Those that are due; at least one.
    pub(super) count: usize,
}

impl<T> Conversation<T> {
    /// The command, if it is plain and nothing stands against it; otherwise [`Conversation::plan`]
    /// tells more. To be asked with one table and one set of rules for the whole conversation.
    /// Changes nothing that `plan` looks at.
    pub fn plain(
        &mut self,
        args: &Args<'_>,
        table: &CommandTable,
        rules: &RedisRules,
    ) -> Option<Plain<'_>> {
        if self.transaction.is_some() || args.is_inline() || !args.is_complete() {
            return None;
        }
        let (name, key) = (args.get(0)?, args.get(1)?);
        let usual = self.usual.take();
        let known =
            usual.filter(|usual| *usual.name == *name && usual.databases == self.databases_ahead);
        let (mut usual, is_new) = match known {
            Some(usual) => (usual, false),
            None => (self.learn(name, args, table)?, true),
        };
        if is_new || !rules.are_uniform() {
            usual.locks = locks_of(key, usual.kind, &usual.databases, rules)?;
        }
        let usual = self.usual.insert(usual);
        Some(Plain {
            kind: usual.kind,
            locks: &usual.locks,
            brief: usual.brief && !brief::asks_for_value(&usual.operation, args),
        })
    }

    fn learn(&self, name: &[u8], args: &Args<'_>, table: &CommandTable) -> Option<Box<Usual>> {
        let (command, _) = table.find(args);
        Some(Box::new(Usual {
            name: name.into(),
            operation: Arc::clone(&command.name),
            kind: plain_kind(command)?,
            brief: brief::has_brief_reply(&command.name),
            databases: self.databases_ahead,
            locks: vec![],
        }))
    }
}

impl<T> Conversation<T> {
    /// The plain command that was asked about last is on its way to the backend. Where it follows
    /// one of its name, whose payload `stands_for` this one, that payload is kept for both.
    pub fn forward_plain(&mut self, payload: T, stands_for: impl FnOnce(&T) -> bool) {
        let Some(usual) = &self.usual else {
            return;
        };
        self.due += 1;
        if let Some(Entry::Plain(run)) = self.queue.back_mut()
            && Arc::ptr_eq(&run.operation, &usual.operation)
            && stands_for(&run.payload)
        {
            run.count += 1;
            return;
        }
        self.queue.push_back(Entry::Plain(Run {
            operation: Arc::clone(&usual.operation),
            kind: usual.kind,
            payload,
            count: 1,
        }));
    }
}

/// What a plain command does; none: it is not plain.
fn plain_kind(command: &Command) -> Option<Kind> {
    let flags = &command.flags;
    let [spec] = command.keys.as_slice() else {
        return None;
    };
    let first = spec.begin == Begin::Index(1)
        && matches!(
            spec.find,
            Find::Range {
                last: 0,
                step: 1,
                limit: 0 | 1
            }
        )
        && !spec.incomplete;
    let other = flags.blocking || flags.pubsub || flags.module || flags.container || flags.movable;
    if command.treatment.is_some() || !flags.known || other || !first {
        return None;
    }
    match (flags.write, flags.readonly, spec.written) {
        (true, false, true) => Some(Kind::Write),
        (false, true, false) => Some(Kind::Read),
        _ => None,
    }
}

fn locks_of(
    key: &[u8],
    kind: Kind,
    databases: &Databases,
    rules: &RedisRules,
) -> Option<Vec<LockName>> {
    if rules.reserved().is_some_and(|reserved| reserved.is(key)) {
        return None;
    }
    let key = KeyUse {
        key,
        written: kind == Kind::Write,
        home: Home::Current,
    };
    let class = Class::of_keys(kind, vec![key]);
    rules.locks(&class, databases).ok()
}
