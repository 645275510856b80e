//! What can go wrong for a client, and whose fault it was.

use crate::lock_name::LockName;

/// Why a call of the client failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// An address that is no `http://host:port`. Nothing was sent.
    #[error("not the address of a lock service: {endpoint:?} ({reason})")]
    InvalidEndpoint {
        /// What was given.
        endpoint: String,
        /// Why it is refused.
        reason: String,
    },
    /// No endpoint answered. Safe to try again.
    #[error("no lock service answers at {endpoints}: {reason}")]
    Unavailable {
        /// The addresses that were tried.
        endpoints: String,
        /// What the last of them said.
        reason: String,
    },
    /// An endpoint answered that it cannot serve now. Safe to try again.
    #[error("the lock service at {endpoints} cannot serve now: {reason}")]
    CannotServe {
        /// The addresses that were tried.
        endpoints: String,
        /// What the last of them said.
        reason: String,
    },
    /// The lock was granted within the time to wait, but could not be sealed through its proxies,
    /// and was taken back.
    #[error("lock {lock} was not acquired within the time to wait: {reason}")]
    NotSealed {
        /// The lock.
        lock: LockName,
        /// What the service said.
        reason: String,
    },
    /// The lock was not granted within the time to wait. Nothing is left behind in its queue.
    #[error("lock {lock} was not granted within the time to wait")]
    NotAcquired {
        /// The lock.
        lock: LockName,
    },
    /// The session has ended, or may have: nothing that it held is held any more.
    #[error("the session is lost: {reason}")]
    SessionLost {
        /// How that came to be known.
        reason: String,
    },
    /// The service refused the call; the same call again would be refused again.
    #[error("the lock service refused: {message} ({code:?})")]
    Refused {
        /// The gRPC code.
        code: tonic::Code,
        /// The service's own words.
        message: String,
    },
    /// The service answered with something that breaks its own contract.
    #[error("the lock service sent an answer that makes no sense: {reason}")]
    BadReply {
        /// What was wrong with it.
        reason: String,
    },
}

/// What a failed call says about the endpoint that it was sent to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The endpoint cannot serve, or the connection broke: the outcome is unknown, go elsewhere.
    Endpoint,
    /// The call was answered.
    Answer,
}

/// Tells an answer of the service from a broken connection.
///
/// A status that the transport made up carries the error that caused it; one that came over the
/// wire carries none.
pub(super) fn fault(status: &tonic::Status) -> Fault {
    match status.code() {
        _ if is_made_here(status) => Fault::Endpoint,
        // Its store does not answer, or is damaged: another one may serve.
        tonic::Code::Unavailable | tonic::Code::DataLoss => Fault::Endpoint,
        _ => Fault::Answer,
    }
}

/// Whether the transport made it up, and nobody answered.
pub(super) fn is_made_here(status: &tonic::Status) -> bool {
    std::error::Error::source(status).is_some()
}

/// The status in one line, with the causes that only its sources name.
pub(super) fn describe(status: &tonic::Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        let cause = error.to_string();
        if !cause.is_empty() && !text.contains(&cause) {
            text = if text.is_empty() {
                cause
            } else {
                format!("{text}: {cause}")
            };
        }
        source = error.source();
    }
    if text.is_empty() {
        status.code().to_string()
    } else {
        text
    }
}

impl ClientError {
    pub(super) fn refused(status: &tonic::Status) -> ClientError {
        ClientError::Refused {
            code: status.code(),
            message: describe(status),
        }
    }
}
