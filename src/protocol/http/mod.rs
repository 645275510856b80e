//! HTTP: any REST backend. The method tells reads from writes, the path tells the locks.
//!
//! `GET`, `HEAD`, `OPTIONS` and `TRACE` are reads (RFC 9110 9.2.1), all else is a write, unknown
//! methods included. A rule may say otherwise for the paths that it covers: `write_methods` win
//! over `read_methods`, and both over the method's own meaning. A request that asks the backend to
//! take another method than its own is a write whatever is said.
//!
//! All the rules that cover a write apply. How a path is read: [`path`].

pub mod frame;
pub mod path;

mod refusal;

use super::head::{self, Head, is_token};
use super::pattern::{InvalidPattern, LockTemplate, Match, Pattern, Subject};
use super::{Kind, Refusal, RequestClass, Unmatched};
use crate::lock_name::{LockName, LockPattern};

pub use refusal::refusal_reply;

/// The rules of an HTTP listener.
#[derive(Clone, Debug, Default)]
pub struct HttpRules {
    rules: Vec<HttpRule>,
    unmatched: Unmatched,
}

/// One rule: these paths are guarded by this lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpRule {
    path: Pattern,
    lock: LockTemplate,
    write_methods: Vec<Box<str>>,
    read_methods: Vec<Box<str>>,
}

impl HttpRule {
    /// The paths and the lock that guards them.
    pub fn new(path: &str, lock: &str) -> Result<HttpRule, InvalidPattern> {
        let path = Pattern::new(Subject::Path, path)?;
        let lock = LockTemplate::new(lock, path.captures())?;
        Ok(HttpRule {
            path,
            lock,
            write_methods: vec![],
            read_methods: vec![],
        })
    }

    /// Methods that are writes on these paths.
    pub fn with_write_methods(self, methods: &[&str]) -> Result<HttpRule, InvalidPattern> {
        Ok(HttpRule {
            write_methods: check_methods(methods)?,
            ..self
        })
    }

    /// Methods that are reads on these paths.
    pub fn with_read_methods(self, methods: &[&str]) -> Result<HttpRule, InvalidPattern> {
        Ok(HttpRule {
            read_methods: check_methods(methods)?,
            ..self
        })
    }
}

fn check_methods(methods: &[&str]) -> Result<Vec<Box<str>>, InvalidPattern> {
    let check = |method: &&str| match *method {
        // A tunnel hides what it carries: it is never a read.
        "CONNECT" => Err("a tunnel cannot be classified"),
        method if !is_token(method) => Err("it is not a token"),
        // RFC 9110 9.1: methods are case-sensitive, and the registered ones are in capitals.
        method if method.bytes().any(|byte| byte.is_ascii_lowercase()) => {
            Err("it is not in capitals")
        }
        method => Ok(method.into()),
    };
    let named = |method: &&str| {
        check(method).map_err(|reason| InvalidPattern {
            what: "method",
            text: (*method).to_owned(),
            reason: reason.to_owned(),
        })
    };
    methods.iter().map(named).collect()
}

/// What the rules that cover a request say, taken together.
#[derive(Default)]
struct Covering {
    locks: Vec<LockName>,
    says_write: bool,
    says_read: bool,
    /// Why the locks cannot be told.
    doubt: Option<&'static str>,
}

impl HttpRules {
    /// These rules.
    pub fn new(rules: Vec<HttpRule>, unmatched: Unmatched) -> HttpRules {
        HttpRules { rules, unmatched }
    }

    /// Classifies a request.
    pub fn classify<'h>(&self, head: &Head<'h>) -> Result<RequestClass<'h>, Refusal> {
        let facts = head::scan(head)?;
        let guards = !self.rules.is_empty() || self.unmatched == Unmatched::Reject;
        if guards && (facts.upgrades || head.method == "CONNECT") {
            return Err(Refusal::unclassified(
                "a tunnel or an upgrade hides the writes that it carries",
            ));
        }
        let (path, query) = path::split_target(head.target)
            .ok_or_else(|| Refusal::malformed("the request target is not a path"))?;
        let covering = self.cover(path, head.method);
        let overridden = facts.overrides_method || path::overrides_method(query);
        let kind = covering.kind(head.method, overridden);
        if kind == Kind::Write {
            if let Some(doubt) = covering.doubt {
                return Err(Refusal::unclassified(doubt));
            }
            if covering.locks.is_empty() && self.unmatched == Unmatched::Reject {
                return Err(Refusal::unclassified("no rule covers this write"));
            }
        }
        Ok(RequestClass {
            kind,
            locks: covering.locks,
            tickets: facts.tickets,
            operation: head.method,
        })
    }

    fn cover(&self, path: &[u8], method: &str) -> Covering {
        let mut covering = Covering::default();
        if self.rules.is_empty() {
            return covering;
        }
        let path = path::Path::read(path);
        for rule in &self.rules {
            let found = path.matches(&rule.path);
            if found == Match::No {
                continue;
            }
            covering.says_write |= rule.write_methods.iter().any(|known| **known == *method);
            match found {
                Match::Yes(captures) => {
                    covering.says_read |= rule.read_methods.iter().any(|known| **known == *method);
                    match rule.lock.build(&captures) {
                        Ok(lock) => covering.locks.push(lock),
                        Err(_) => covering.doubt = Some("the path gives no valid lock name"),
                    }
                }
                _ => {
                    covering.doubt =
                        Some("the path can be read in two ways, and a rule may cover it")
                }
            }
        }
        covering.locks.sort_unstable();
        covering.locks.dedup();
        covering
    }

    /// Every lock that a rule can name.
    pub fn lock_patterns(&self) -> Vec<LockPattern> {
        let mut patterns: Vec<LockPattern> = vec![];
        for rule in &self.rules {
            if !patterns.contains(rule.lock.lock_pattern()) {
                patterns.push(rule.lock.lock_pattern().clone());
            }
        }
        patterns
    }
}

impl Covering {
    fn kind(&self, method: &str, overridden: bool) -> Kind {
        let safe = matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE");
        if overridden || self.says_write || !(self.says_read || safe) {
            Kind::Write
        } else {
            Kind::Read
        }
    }
}

#[cfg(test)]
mod tests;
