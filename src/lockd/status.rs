//! The one table from what went wrong in the lock service to a gRPC status.
//!
//! Each status names the party at fault by its code, says by it whether a retry is safe, and
//! carries a stable word in the metadata key [`REASON_KEY`] for programs. Texts hold what the
//! client sent and what it may know; the store's own words go to the log only.

use tonic::{Code, Status};

use crate::lock_name::LockName;
use crate::store::{NO_SPACE, SessionId, StoreError};
use crate::token::Token;

/// Metadata key of the stable word for a refusal.
pub const REASON_KEY: &str = "ringfence-reason";
/// Metadata key of the last attempt, in decimal, where the reason is `attempt-over`.
pub const LAST_ATTEMPT_KEY: &str = "ringfence-last-attempt";

/// Why a call of the lock service did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument breaks a rule.
    #[error("invalid {what} {value:?}: {rule}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// What was given, cut to 64 characters.
        value: String,
        /// The rule.
        rule: String,
    },
    /// The session is unknown or has ended.
    #[error("session {0} is unknown or has ended")]
    SessionGone(SessionId),
    /// The attempt was released before, or a later one stands.
    #[error("attempt {attempt} on lock {lock} is over: the last one is {last}")]
    AttemptOver {
        /// The lock.
        lock: LockName,
        /// The attempt of the call.
        attempt: u64,
        /// The last one.
        last: u64,
    },
    /// The entry of the call is no longer in the queue.
    #[error("place {token} in the queue of lock {lock} is gone: released, broken or session ended")]
    PlaceGone {
        /// The lock.
        lock: LockName,
        /// The token of the entry.
        token: Token,
    },
    /// Another one holds the lock.
    #[error("lock {lock} was not granted within {wait_ms} ms")]
    NotGranted {
        /// The lock.
        lock: LockName,
        /// How long the call waited, in milliseconds.
        wait_ms: u64,
    },
    /// The token is not the holder's.
    #[error("token {token} does not hold lock {lock}: {holder}")]
    NotHolder {
        /// The lock.
        lock: LockName,
        /// The token of the call.
        token: Token,
        /// Who holds it.
        holder: String,
    },
    /// The grant could not be sealed through its proxies, and was released again.
    #[error(
        "lock {lock} was granted but not sealed, and is released again: {causes} (a proxy that \
         does not come back is taken out with `ringfence proxies remove`)"
    )]
    NotSealed {
        /// The lock.
        lock: LockName,
        /// Each proxy that failed, and how.
        causes: String,
    },
    /// The fence could not be closed at every proxy; the grant was not removed.
    #[error("the fence of lock {lock} is not closed, and its grant was not removed: {causes}")]
    NotClosed {
        /// The lock.
        lock: LockName,
        /// Each proxy that failed, and how.
        causes: String,
    },
    /// A limit of the service is reached.
    #[error("too many {what}: the limit is {max}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// No proxy has this name.
    #[error("proxy {0:?} is not registered")]
    NoSuchProxy(String),
    /// The process that is registered under this name still runs.
    #[error(
        "another proxy runs as {instance:?}, with its admin port at {admin}: each proxy needs an \
         `instance` of its own"
    )]
    NameTaken {
        /// The name.
        instance: String,
        /// Where the other one answers.
        admin: String,
    },
    /// It may still run, and the one that came does not know its watermarks.
    #[error(
        "the proxy that is registered as {instance:?} is not proven gone ({admin}: {cause}), and \
         this one does not have its watermarks: end it, or take it out with `ringfence proxies \
         remove {instance} --reason TEXT --sessions-proven-dead`"
    )]
    NotProvenGone {
        /// The name.
        instance: String,
        /// Where the other one was looked for.
        admin: String,
        /// What was found there.
        cause: String,
    },
    /// A loopback address, of another machine.
    #[error(
        "the admin port of this proxy is said to be at {admin}, which for the lock service is its \
         own machine, and the proxy comes from {peer}: set `listen` of its [admin] to an address \
         that the lock service reaches, or to 0.0.0.0 and the port"
    )]
    LoopbackAdmin {
        /// What the proxy told.
        admin: String,
        /// Where it comes from.
        peer: std::net::SocketAddr,
    },
    /// The process was registered, and is no longer.
    #[error(
        "proxy {0:?} was taken out of the set, or replaced, while this process ran: it may have \
         missed seals; start it again"
    )]
    TakenOut(String),
    /// An operator's act that could not be put on disk, and was not done.
    #[error("not done, since it cannot be recorded: {0}")]
    NotRecorded(String),
    /// An operator's act without what it requires.
    #[error("refused: {0}")]
    Refused(&'static str),
    /// Something that changes too fast.
    #[error("{0}: try again")]
    Busy(&'static str),
    /// The service is going down.
    #[error("the lock service is shutting down; sessions, grants and places in queues stay")]
    ShuttingDown,
    /// A listing while the store does not answer.
    #[error("the lock service's store cannot be read: its locks are not known now (see its log)")]
    CannotList,
    /// The service has not yet read the whole state of its store.
    #[error("the lock service has not read its store yet")]
    NotSynced,
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Error {
    /// The gRPC code and the stable word.
    fn class(&self) -> (Code, &'static str) {
        match self {
            Error::Invalid { .. } => (Code::InvalidArgument, "invalid"),
            Error::SessionGone(_) => (Code::FailedPrecondition, "session-gone"),
            Error::AttemptOver { .. } => (Code::FailedPrecondition, "attempt-over"),
            Error::PlaceGone { .. } => (Code::FailedPrecondition, "place-gone"),
            Error::NotHolder { .. } => (Code::FailedPrecondition, "not-holder"),
            Error::Refused(_) => (Code::FailedPrecondition, "refused"),
            Error::NotGranted { .. } => (Code::DeadlineExceeded, "not-granted"),
            Error::NotSealed { .. } => (Code::Unavailable, "not-sealed"),
            Error::NotClosed { .. } => (Code::Unavailable, "not-closed"),
            Error::TooMany { .. } => (Code::ResourceExhausted, "limit"),
            Error::NameTaken { .. } => (Code::FailedPrecondition, "name-taken"),
            Error::LoopbackAdmin { .. } => (Code::FailedPrecondition, "loopback-admin"),
            Error::NotProvenGone { .. } => (Code::FailedPrecondition, "not-proven-gone"),
            Error::TakenOut(_) => (Code::FailedPrecondition, "taken-out"),
            Error::NotRecorded(_) => (Code::Unavailable, "not-recorded"),
            Error::NoSuchProxy(_) => (Code::NotFound, "no-such-proxy"),
            Error::Busy(_) => (Code::Unavailable, "busy"),
            Error::ShuttingDown => (Code::Unavailable, "shutting-down"),
            Error::CannotList => (Code::Unavailable, "store-unavailable"),
            Error::NotSynced => (Code::Unavailable, "not-synced"),
            Error::Store(StoreError::Unavailable(why)) if why == NO_SPACE => {
                (Code::Unavailable, "store-full")
            }
            Error::Store(StoreError::Unavailable(_)) => (Code::Unavailable, "store-unavailable"),
            Error::Store(StoreError::Corrupt(_)) => (Code::DataLoss, "store-corrupt"),
            Error::Store(StoreError::Refused(_)) => (Code::Internal, "store-refused"),
        }
    }

    /// The stable word, for metrics.
    pub fn reason(&self) -> &'static str {
        self.class().1
    }

    fn text_for_client(&self) -> String {
        match self {
            Error::Store(StoreError::Unavailable(why)) if why == NO_SPACE => {
                format!("{NO_SPACE}, and takes no writes: this was not done, repeating it is safe")
            }
            Error::Store(StoreError::Unavailable(_)) => {
                "the store is unavailable: whether this was done is unknown, repeating it is safe"
                    .to_owned()
            }
            Error::Store(StoreError::Corrupt(_)) => {
                "the store is corrupt, or was replaced by an older one; nothing is granted (see its log)"
                    .to_owned()
            },
            Error::Store(StoreError::Refused(_)) => "the store refused this".to_owned(),
            other => other.to_string(),
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        let (code, reason) = error.class();
        if let Error::Store(store) = &error {
            tracing::warn!(error = %store, "store failed");
        }
        let mut status = Status::new(code, error.text_for_client());
        let metadata = status.metadata_mut();
        metadata.insert(
            REASON_KEY,
            tonic::metadata::MetadataValue::from_static(reason),
        );
        if let Error::AttemptOver { last, .. } = error {
            metadata.insert(LAST_ATTEMPT_KEY, last.into());
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stores_own_words_stay_inside() {
        let error = Error::from(StoreError::Unavailable("dial 10.1.2.3: refused".to_owned()));
        let status = Status::from(error);
        assert_eq!(status.code(), Code::Unavailable);
        assert!(!status.message().contains("10.1.2.3"), "{status:?}");
        assert_eq!(
            status.metadata().get(REASON_KEY).unwrap(),
            "store-unavailable"
        );
    }

    #[test]
    fn a_store_without_space_is_said_to_be_so() {
        let error = Error::from(StoreError::Unavailable(NO_SPACE.to_owned()));
        let status = Status::from(error);
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("NOSPACE"), "{status:?}");
        assert_eq!(status.metadata().get(REASON_KEY).unwrap(), "store-full");
    }

    #[test]
    fn an_attempt_that_is_over_tells_the_last_one() {
        let lock = LockName::new("a").unwrap();
        let status = Status::from(Error::AttemptOver {
            lock,
            attempt: 2,
            last: 7,
        });
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(status.metadata().get(LAST_ATTEMPT_KEY).unwrap(), "7");
    }
}
