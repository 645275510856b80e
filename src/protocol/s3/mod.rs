//! S3 in pass-through form: clients sign for the backend, so bytes travel on as they came, without
//! the ticket's header.
//!
//! The operation says how far a request writes, the address which bucket and key it is about,
//! the rules which locks guard them. An operation on a whole bucket needs the locks of every rule
//! on that bucket; where a rule's lock depends on the key it cannot be told, and the operation is
//! refused. A key that the address does not name may be any: dots in it lead out of its bucket on
//! stores in file systems. CopyObject and UploadPartCopy write what their path names; their source
//! is only read.
//!
//! Outside: what lifecycle rules and replication write in the backend.

mod address;
mod delete_objects;
mod host;
mod operation;
mod refusal;
mod signature;

use address::{Address, Key};
use operation::{Operation, Reach};

use super::head::{self, Facts, Head};
use super::http::path;
use super::pattern::{Captures, InvalidPattern, LockTemplate, Match, Pattern, Subject};
use super::{Classified, Kind, Refusal, RequestClass, Unmatched};
use crate::lock_name::{LockName, LockPattern};

pub use delete_objects::KEYS_MAX;
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
        let mut captures = bucket.captures().to_vec();
        let key = match key {
            None => None,
            Some(text) => {
                let key = Pattern::new(Subject::Key, text)?;
                check_captures(&captures, &key, text)?;
                captures.extend_from_slice(key.captures());
                Some(key)
            }
        };
        let lock = LockTemplate::new(lock, &captures)?;
        Ok(S3Rule { bucket, key, lock })
    }

    fn match_key<'k>(&self, key: &'k Key<'_>) -> Match<'k> {
        match &self.key {
            Some(pattern) => key.matches(pattern),
            None => Match::Yes(Captures::default()),
        }
    }
}

fn check_captures(bucket: &[Box<str>], key: &Pattern, text: &str) -> Result<(), InvalidPattern> {
    let invalid = |reason| InvalidPattern {
        what: "key",
        text: text.to_owned(),
        reason,
    };
    if let Some(name) = key.captures().iter().find(|name| bucket.contains(name)) {
        return Err(invalid(format!(
            "`{{{name}}}` is captured in the bucket already"
        )));
    }
    if bucket.len() + key.captures().len() > super::pattern::CAPTURES_MAX {
        return Err(invalid(
            "bucket and key together capture too much".to_owned(),
        ));
    }
    Ok(())
}

/// A request whose keys are named in its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingBody<'h> {
    bucket: String,
    tickets: Vec<&'h str>,
    operation: &'static str,
}

impl PendingBody<'_> {
    /// Longest body that is read, in bytes: S3 takes 1,000 keys of 1,024 bytes.
    pub const BYTES_MAX: usize = 2 * 1024 * 1024;
}

/// The locks of a write, as far as rules tell.
#[derive(Default)]
struct Covering {
    locks: Vec<LockName>,
    /// Why the locks cannot be told.
    doubt: Option<&'static str>,
    /// A part of the write that no rule covers.
    uncovered: bool,
}

const ADDRESS_DOUBT: &str = "the bucket or key can be read in two ways, and a rule may cover it";
const NAME_DOUBT: &str = "the bucket or key gives no valid lock name";
const ELSEWHERE_DOUBT: &str = "its key is in a form's field or a header, and a rule may cover it";
const BUCKET_DOUBT: &str = "it writes to the whole bucket, where locks depend on the key";

impl S3Rules {
    /// These rules, on a backend that serves buckets as subdomains of these hosts.
    pub fn new(rules: Vec<S3Rule>, virtual_hosts: &[&str], unmatched: Unmatched) -> S3Rules {
        let mut hosts: Vec<Box<str>> = virtual_hosts
            .iter()
            .map(|host| host.to_ascii_lowercase().into())
            .collect();
        // `b.eu.s3.example.com` belongs to `eu.s3.example.com` before `s3.example.com`.
        hosts.sort_by_key(|host| std::cmp::Reverse(host.len()));
        S3Rules {
            rules,
            virtual_hosts: hosts,
            unmatched,
        }
    }

    /// Classifies a request by its head.
    pub fn classify<'h>(&self, head: &Head<'h>) -> Result<Classified<'h>, Refusal> {
        let facts = head::scan(head)?;
        let (path, query) = path::split_target(head.target)
            .ok_or_else(|| Refusal::malformed("the request target is not a path"))?;
        signature::check_signed_headers(facts.authorization, query)?;
        let guards = !self.rules.is_empty() || self.unmatched == Unmatched::Reject;
        if guards && (facts.upgrades || head.method == "CONNECT") {
            return Err(Refusal::unclassified(
                "a tunnel or an upgrade hides the writes that it carries",
            ));
        }
        let address = self.read_address(head, facts.host, path)?;
        let operation = find_operation(head.method, &address, query, &facts);
        let covering = match operation.reach {
            Reach::Nothing | Reach::Key => self.cover_key(&address),
            Reach::Bucket => self.cover_bucket(&address),
            Reach::KeyElsewhere => self.cover_in_doubt(ELSEWHERE_DOUBT),
            Reach::KeysInBody => self.cover_in_doubt(ADDRESS_DOUBT),
        };
        let asks_body = operation.reach == Reach::KeysInBody && covering.doubt.is_some();
        if let Some(bucket) = address
            .bucket()
            .filter(|_| asks_body && address.is_certain())
        {
            return Ok(Classified::NeedsBody(PendingBody {
                bucket: bucket.to_owned(),
                tickets: facts.tickets,
                operation: operation.name,
            }));
        }
        let (kind, locks) = match operation.reach {
            Reach::Nothing => (Kind::Read, covering.locks),
            _ => (Kind::Write, self.decide(covering)?),
        };
        Ok(Classified::Ready(RequestClass {
            kind,
            locks,
            tickets: facts.tickets,
            operation: operation.name,
        }))
    }

    /// Classifies a request by its body.
    pub fn classify_body<'h>(
        &self,
        pending: PendingBody<'h>,
        body: &[u8],
    ) -> Result<RequestClass<'h>, Refusal> {
        let PendingBody {
            bucket,
            tickets,
            operation,
        } = pending;
        if body.len() > PendingBody::BYTES_MAX {
            return Err(Refusal::unclassified(format!(
                "the body of {operation} is longer than {} bytes",
                PendingBody::BYTES_MAX
            )));
        }
        let keys = delete_objects::keys(body).map_err(|reason| {
            Refusal::unclassified(format!("the body of {operation} cannot be read: {reason}"))
        })?;
        let mut covering = Covering::default();
        for key in &keys {
            let address = Address::of_key(&bucket, Key::verbatim(key));
            let one = self.cover_key(&address);
            covering.locks.extend(one.locks);
            covering.doubt = covering.doubt.or(one.doubt);
            covering.uncovered |= one.uncovered;
            // Keys of one bucket mostly share their locks: this keeps the list short.
            covering.locks.sort_unstable();
            covering.locks.dedup();
        }
        let locks = self.decide(covering)?;
        Ok(RequestClass {
            kind: Kind::Write,
            locks,
            tickets,
            operation,
        })
    }

    fn read_address<'h>(
        &self,
        head: &Head<'_>,
        host: Option<&[u8]>,
        path: &'h [u8],
    ) -> Result<Address<'h>, Refusal> {
        let Some(host) = host::of_request(head, host)? else {
            return Ok(Address::in_path(path));
        };
        let guarded = self
            .rules
            .iter()
            .filter_map(|rule| rule.bucket.as_literal());
        Ok(match host::bucket(&host, &self.virtual_hosts, guarded) {
            host::Bucket::InPath => Address::in_path(path),
            host::Bucket::Named(bucket) => Address::in_bucket(bucket, path),
            host::Bucket::Doubtful => Address::in_path(path).doubtful(),
        })
    }

    /// The locks of one key.
    fn cover_key(&self, address: &Address<'_>) -> Covering {
        let mut covering = Covering::default();
        let Some(key) = address.key() else {
            return covering;
        };
        for rule in &self.rules {
            let bucket = match address.match_bucket(&rule.bucket) {
                Match::No => continue,
                Match::Yes(captures) => Some(captures),
                Match::Maybe => None,
            };
            match (bucket, rule.match_key(key)) {
                (_, Match::No) if !address.is_anything() => {}
                (Some(bucket), Match::Yes(key)) => covering.add(&rule.lock, &bucket.then(key)),
                _ => covering.doubt = Some(ADDRESS_DOUBT),
            }
        }
        covering.finish()
    }

    /// The locks of a whole bucket; of everything where no bucket is named.
    fn cover_bucket(&self, address: &Address<'_>) -> Covering {
        let mut covering = Covering::default();
        for rule in &self.rules {
            match address.match_bucket(&rule.bucket) {
                Match::No => {}
                Match::Maybe => covering.doubt = Some(ADDRESS_DOUBT),
                Match::Yes(captures) if rule.lock.captures_used() <= captures.as_slice().len() => {
                    covering.add(&rule.lock, &captures);
                }
                Match::Yes(_) => covering.doubt = Some(BUCKET_DOUBT),
            }
        }
        covering.finish()
    }

    /// In doubt for this reason, where any rule is: the bucket of the address tells nothing of keys
    /// that are not in it.
    fn cover_in_doubt(&self, reason: &'static str) -> Covering {
        let free = self.rules.is_empty();
        Covering {
            doubt: (!free).then_some(reason),
            uncovered: free,
            ..Covering::default()
        }
    }

    fn decide(&self, covering: Covering) -> Result<Vec<LockName>, Refusal> {
        if let Some(doubt) = covering.doubt {
            return Err(Refusal::unclassified(doubt));
        }
        if covering.uncovered && self.unmatched == Unmatched::Reject {
            return Err(Refusal::unclassified("no rule covers this write"));
        }
        Ok(covering.locks)
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

/// The operation, with the reach that the fields of the head give it.
fn find_operation(
    method: &str,
    address: &Address<'_>,
    query: &[u8],
    facts: &Facts<'_>,
) -> Operation {
    let found = operation::find(method, address.level(), query, facts.is_form);
    let Operation { name, reach } = match facts.overrides_method || path::overrides_method(query) {
        true => operation::UNKNOWN,
        false => found,
    };
    let reach = match reach {
        Reach::Nothing => Reach::Nothing,
        _ if !facts.other_paths.is_empty() => Reach::KeyElsewhere,
        Reach::Key if facts.widens => Reach::Bucket,
        reach => reach,
    };
    Operation { name, reach }
}

impl Covering {
    fn add(&mut self, lock: &LockTemplate, captures: &Captures<'_>) {
        match lock.build(captures) {
            Ok(lock) => self.locks.push(lock),
            Err(_) => self.doubt = Some(NAME_DOUBT),
        }
    }

    fn finish(mut self) -> Covering {
        self.locks.sort_unstable();
        self.locks.dedup();
        self.uncovered = self.locks.is_empty() && self.doubt.is_none();
        self
    }
}

#[cfg(test)]
mod tests;
