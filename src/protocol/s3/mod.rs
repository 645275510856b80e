//! S3 in pass-through form.

mod refusal;

use super::head::{self, Head};
use super::pattern::{InvalidPattern, LockTemplate, Pattern, Subject};
use super::{Classified, Kind, Refusal, RequestClass, Unmatched};
use crate::lock_name::LockPattern;

pub use refusal::refusal_reply;

/// The rules of an S3 listener.
#[derive(Clone, Debug, Default)]
pub struct S3Rules {
    rules: Vec<S3Rule>,
    virtual_hosts: Vec<Box<str>>,
    unmatched: Unmatched,
}

/// One rule: these keys of these buckets are guarded by this lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct S3Rule {
    bucket: Pattern,
    key: Option<Pattern>,
    lock: LockTemplate,
}

impl S3Rule {
    /// The buckets, their keys (all of them without `key`), and the lock that guards them.
    pub fn new(bucket: &str, key: Option<&str>, lock: &str) -> Result<S3Rule, InvalidPattern> {
        let bucket = Pattern::new(Subject::Bucket, bucket)?;
        let key = key.map(|key| Pattern::new(Subject::Key, key)).transpose()?;
        let mut captures = bucket.captures().to_vec();
        captures.extend(key.iter().flat_map(|key| key.captures().iter().cloned()));
        let lock = LockTemplate::new(lock, &captures)?;
        Ok(S3Rule { bucket, key, lock })
    }
}

/// A request whose keys are named in its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingBody<'h> {
    bucket: String,
    tickets: Vec<&'h str>,
}

impl PendingBody<'_> {
    /// Longest body that is read, in bytes: S3 takes 1,000 keys of 1,024 bytes.
    pub const BYTES_MAX: usize = 2 * 1024 * 1024;
}

impl S3Rules {
    /// These rules, on a backend that serves buckets as subdomains of these hosts.
    pub fn new(rules: Vec<S3Rule>, virtual_hosts: &[&str], unmatched: Unmatched) -> S3Rules {
        let virtual_hosts = virtual_hosts.iter().map(|host| (*host).into()).collect();
        S3Rules {
            rules,
            virtual_hosts,
            unmatched,
        }
    }

    /// Classifies a request by its head.
    pub fn classify<'h>(&self, head: &Head<'h>) -> Result<Classified<'h>, Refusal> {
        let facts = head::scan(head)?;
        Ok(Classified::Ready(RequestClass {
            kind: Kind::Write,
            locks: vec![],
            tickets: facts.tickets,
            operation: head.method,
        }))
    }

    /// Classifies a request by its body.
    pub fn classify_body<'h>(
        &self,
        pending: PendingBody<'h>,
        body: &[u8],
    ) -> Result<RequestClass<'h>, Refusal> {
        let _ = (pending, body);
        Err(Refusal::unclassified("not yet"))
    }

    /// Every lock that a rule can name.
    pub fn lock_patterns(&self) -> Vec<LockPattern> {
        self.rules
            .iter()
            .map(|rule| rule.lock.lock_pattern().clone())
            .collect()
    }
}
