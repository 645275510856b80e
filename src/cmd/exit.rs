//! Exit codes, and the failures that end a command with one. The numbers are sysexits(3) where it
//! has one that fits: scripts tell by them what to do next.

use std::fmt;

use crate::client::ClientError;

/// Everything went well.
pub const OK: u8 = 0;
/// The command failed in a way that has no code of its own.
pub const FAILED: u8 = 1;
/// The command line is wrong (EX_USAGE).
pub const USAGE: u8 = 64;
/// The lock service or the proxy cannot be reached (EX_UNAVAILABLE).
pub const UNREACHABLE: u8 = 69;
/// The lock was not acquired within the time to wait (EX_TEMPFAIL).
pub const NOT_ACQUIRED: u8 = 75;
/// The lock was lost while CMD ran.
pub const LOST: u8 = 76;
/// CMD was found but cannot be run, as shells say it.
pub const CANNOT_RUN: u8 = 126;
/// CMD was not found, as shells say it.
pub const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended CMD, as shells do.
pub const SIGNAL_BASE: u8 = 128;

/// Why a command ends, in one line for stderr, and its exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// Lower case, factual.
    pub message: String,
}

impl Failure {
    /// A failure with this code.
    pub fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure {
            code,
            message: message.into(),
        }
    }

    /// A failure without a code of its own: what was attempted, and why it failed.
    pub fn because(what: impl fmt::Display, error: impl fmt::Display) -> Failure {
        Failure::new(FAILED, format!("{what}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let code = match &error {
            ClientError::InvalidEndpoint { .. } => USAGE,
            ClientError::Refused {
                code: tonic::Code::InvalidArgument,
                ..
            } => USAGE,
            ClientError::Unavailable { .. } | ClientError::CannotServe { .. } => UNREACHABLE,
            ClientError::NotAcquired { .. } | ClientError::NotSealed { .. } => NOT_ACQUIRED,
            ClientError::SessionLost { .. } => LOST,
            ClientError::Refused { .. } | ClientError::BadReply { .. } => FAILED,
        };
        Failure::new(code, error.to_string())
    }
}
