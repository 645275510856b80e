//! Refusals as gRPC statuses with `google.rpc.ErrorInfo` (google/rpc/error_details.proto), as
//! bytes: small messages that are not worth a dependency.

use super::etcd::wire::{put_bytes, put_number};
use super::refusal::{Code, Refusal};

/// A status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrpcStatus {
    /// The code (gRPC, "Status codes and their use in gRPC").
    pub code: u8,
    /// For people.
    pub message: String,
    /// `google.rpc.Status` with the code, the message and an `ErrorInfo`: the value of
    /// `grpc-status-details-bin`.
    pub details: Vec<u8>,
}

/// The domain of our reasons.
pub const DOMAIN: &str = "ringfence";
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";

impl Code {
    /// The gRPC code: FAILED_PRECONDITION, FAILED_PRECONDITION, INVALID_ARGUMENT, UNAVAILABLE,
    /// PERMISSION_DENIED, UNKNOWN.
    pub const fn grpc(self) -> u8 {
        match self {
            Code::Stale | Code::Missing => 9,
            Code::Invalid => 3,
            Code::Busy => 14,
            Code::Unclassified => 7,
            Code::Unknown => 2,
        }
    }
}

/// The status of a refusal.
pub fn status(refusal: &Refusal) -> GrpcStatus {
    let mut info = vec![];
    put_bytes(&mut info, 1, refusal.code.as_str().as_bytes());
    put_bytes(&mut info, 2, DOMAIN.as_bytes());
    let metadata = [
        ("lock", refusal.lock.as_ref().map(ToString::to_string)),
        ("token", refusal.token.map(|it| it.to_string())),
        ("watermark", refusal.watermark.map(|it| it.to_string())),
        ("outcome", Some(refusal.outcome.as_str().to_owned())),
    ];
    for (name, value) in metadata {
        let Some(value) = value else { continue };
        let mut entry = vec![];
        put_bytes(&mut entry, 1, name.as_bytes());
        put_bytes(&mut entry, 2, value.as_bytes());
        put_bytes(&mut info, 3, &entry);
    }
    let mut any = vec![];
    put_bytes(&mut any, 1, ERROR_INFO.as_bytes());
    put_bytes(&mut any, 2, &info);
    let mut details = vec![];
    put_number(&mut details, 1, refusal.code.grpc().into());
    put_bytes(&mut details, 2, refusal.detail.as_bytes());
    put_bytes(&mut details, 3, &any);
    GrpcStatus {
        code: refusal.code.grpc(),
        message: refusal.detail.to_string(),
        details,
    }
}
