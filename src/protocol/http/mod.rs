//! HTTP: any REST backend. The method tells reads from writes, the path tells the locks.
//!
//! `GET`, `HEAD`, `OPTIONS` and `TRACE` are reads (RFC 9110 9.2.1), all else is a write, unknown
//! methods included. A rule may say otherwise for the paths that it covers: `write_methods` win
//! over `read_methods`, and both over the method's own meaning; what is said of `GET` as a write
//! holds for `HEAD`, unless the rule reads it. A request that asks the backend to
//! take another method than its own is a write whatever is said.
//!
//! A request also counts as one to each other path that a header names: the destination of COPY and
//! MOVE, and what stands for the target behind a rewriting hop. BIND and its kin name theirs in the
//! body, and are refused beside rules.
//!
//! All the rules that cover a write apply. How a path is read: [`path`].

pub mod frame;
pub mod path;

mod refusal;

use super::head::{self, Head, OtherPath, is_token};
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

    fn says_write(&self, method: &str) -> bool {
        // Frameworks run the same for HEAD and leave the body out (RFC 9110 9.3.2).
        let as_get = method == "HEAD"
            && names(&self.write_methods, "GET")
            && !names(&self.read_methods, "HEAD");
        as_get || names(&self.write_methods, method)
    }
}

fn names(methods: &[Box<str>], method: &str) -> bool {
    methods.iter().any(|known| **known == *method)
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
    /// A path that no rule covers.
    uncovered: bool,
}

const PATH_DOUBT: &str = "the path can be read in two ways, and a rule may cover it";
const NAME_DOUBT: &str = "the path gives no valid lock name";
const OTHER_DOUBT: &str = "where it writes besides its target cannot be told";

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
        let mut covering = self.cover(path, head.method);
        let others = self.cover_others(&facts.other_paths, head.method);
        let overridden = facts.overrides_method
            || path::overrides_method(query)
            || facts
                .other_paths
                .iter()
                .any(|other| other.overrides_method());
        let is_write = |covering: &Covering| covering.is_write(head.method, overridden);
        let kind = match is_write(&covering) || others.iter().any(is_write) {
            true => Kind::Write,
            false => Kind::Read,
        };
        if kind == Kind::Write {
            covering = others.into_iter().fold(covering, Covering::and);
            if let Some(doubt) = covering.doubt {
                return Err(Refusal::unclassified(doubt));
            }
            if covering.uncovered && self.unmatched == Unmatched::Reject {
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

    /// What covers each path that the request names beside its target.
    fn cover_others(&self, paths: &[OtherPath<'_>], method: &str) -> Vec<Covering> {
        let cover = |other: &OtherPath<'_>| match other.split() {
            Some((path, _)) => self.cover(path, method),
            None => self.cover_anything(method),
        };
        let mut others: Vec<Covering> = paths.iter().map(cover).collect();
        if matches!(method, "BIND" | "UNBIND" | "REBIND") {
            others.push(self.cover_anything(method));
        }
        others
    }

    /// A path that is not known.
    fn cover_anything(&self, method: &str) -> Covering {
        Covering {
            says_write: self.rules.iter().any(|rule| rule.says_write(method)),
            doubt: (!self.rules.is_empty()).then_some(OTHER_DOUBT),
            uncovered: true,
            ..Covering::default()
        }
    }

    fn cover(&self, path: &[u8], method: &str) -> Covering {
        let mut covering = Covering::default();
        if self.rules.is_empty() {
            return covering.finish();
        }
        let path = path::Path::read(path);
        for rule in &self.rules {
            let found = path.matches(&rule.path);
            if found == Match::No {
                continue;
            }
            covering.says_write |= rule.says_write(method);
            match found {
                Match::Yes(captures) => {
                    covering.says_read |= names(&rule.read_methods, method);
                    match rule.lock.build(&captures) {
                        Ok(lock) => covering.locks.push(lock),
                        Err(_) => covering.doubt = Some(NAME_DOUBT),
                    }
                }
                _ => covering.doubt = Some(PATH_DOUBT),
            }
        }
        covering.finish()
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
    fn is_write(&self, method: &str, overridden: bool) -> bool {
        let safe = matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE");
        overridden || self.says_write || !(self.says_read || safe)
    }

    /// What covers a write to both.
    fn and(mut self, other: Covering) -> Covering {
        self.locks.extend(other.locks);
        self.doubt = self.doubt.or(other.doubt);
        let uncovered = self.uncovered || other.uncovered;
        Covering {
            uncovered,
            ..self.finish()
        }
    }

    fn finish(mut self) -> Covering {
        self.locks.sort_unstable();
        self.locks.dedup();
        self.uncovered = self.locks.is_empty();
        self
    }
}

#[cfg(test)]
mod tests;
