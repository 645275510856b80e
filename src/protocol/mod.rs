//! Classification: from the bytes of a request to what it is (a read or a write), which locks it
//! needs, which tickets it carries; and from a refusal to the bytes that the client gets.
//!
//! Pure: no I/O, no clock, no global state. Bytes from a peer never panic here. It leaves to the
//! proxy: reading and forwarding bytes, verifying tickets, asking the gate.
//!
//! The invariant that everything here serves: **what cannot be shown to be a read is a write, and
//! a write that a rule could cover under any reading of its address is never passed as uncovered.**
//! Where two readings of an address disagree, the write is refused as unclassified.

pub mod etcd;
pub mod grpc;
pub mod head;
pub mod http;
pub mod pattern;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod redis;
pub mod refusal;
pub mod s3;
pub mod tickets;

#[cfg(test)]
mod readings;

use crate::lock_name::{LockName, LockPattern};

pub use etcd::EtcdRules;
pub use head::{Fields, Head};
pub use http::HttpRules;
pub use refusal::{AfterRefusal, Code, Outcome, Refusal, RefusalReply};
pub use s3::{PendingBody, S3Rules};

/// Whether a request can change the backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It cannot.
    Read,
    /// It may: what cannot be shown to be a read is a write.
    Write,
}

/// What a listener does with a write that no rule covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unmatched {
    /// Forwards it, unfenced.
    #[default]
    Pass,
    /// Refuses it as unclassified.
    Reject,
}

/// What a request is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestClass<'h> {
    /// Read or write.
    pub kind: Kind,
    /// The locks that rules name for it: sorted, each once. A write needs a current ticket for each
    /// of them. A read needs none; there they tell which lock a bare token is for. Empty on a
    /// write: no rule covers it and the listener lets such writes pass.
    pub locks: Vec<LockName>,
    /// The tickets that it presents, as they came: not verified, in order, each once. Every one
    /// that verifies raises its lock, on a read as on a write.
    pub tickets: Vec<&'h str>,
    /// The operation's name for the audit: the method, or S3's name of the operation.
    pub operation: &'h str,
}

/// What the head of a request tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Classified<'h> {
    /// All that is needed.
    Ready(RequestClass<'h>),
    /// The locks are named in the body: read it whole, at most [`PendingBody::BYTES_MAX`], then ask
    /// [`Listener::classify_body`].
    NeedsBody(PendingBody<'h>),
}

/// The compiled rules of one listener.
#[derive(Clone, Debug)]
pub enum Listener {
    /// Any REST backend.
    Http(HttpRules),
    /// An S3 backend whose clients sign for it (pass-through).
    S3(S3Rules),
    /// etcd, over gRPC: its requests are classified by [`EtcdRules::classify`].
    Etcd(EtcdRules),
}

impl Listener {
    /// Classifies a request by its head.
    pub fn classify<'h>(&self, head: &Head<'h>) -> Result<Classified<'h>, Refusal> {
        match self {
            Listener::Http(rules) => rules.classify(head).map(Classified::Ready),
            Listener::S3(rules) => rules.classify(head),
            Listener::Etcd(_) => Err(not_http()),
        }
    }

    /// Classifies a request whose head answered [`Classified::NeedsBody`].
    pub fn classify_body<'h>(
        &self,
        pending: PendingBody<'h>,
        body: &[u8],
    ) -> Result<RequestClass<'h>, Refusal> {
        match self {
            Listener::S3(rules) => rules.classify_body(pending, body),
            Listener::Http(_) => Err(Refusal::unclassified("this protocol asks for no body")),
            Listener::Etcd(_) => Err(not_http()),
        }
    }

    /// The reply that tells a refusal in the listener's own protocol. `target` is the request's
    /// target as it came: S3 names it as the resource.
    pub fn refusal_reply(&self, refusal: &Refusal, target: &[u8]) -> RefusalReply {
        match self {
            // What is no gRPC gets the plain form.
            Listener::Http(_) | Listener::Etcd(_) => http::refusal_reply(refusal),
            Listener::S3(_) => s3::refusal_reply(refusal, target),
        }
    }

    /// Every lock that a rule can name, as patterns for the registration with lockd.
    pub fn lock_patterns(&self) -> Vec<LockPattern> {
        match self {
            Listener::Http(rules) => rules.lock_patterns(),
            Listener::S3(rules) => rules.lock_patterns(),
            Listener::Etcd(rules) => rules.lock_patterns(),
        }
    }
}

fn not_http() -> Refusal {
    Refusal::unclassified("this listener speaks gRPC")
}
