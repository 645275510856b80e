//! Refusals as gRPC statuses with `google.rpc.ErrorInfo` (google/rpc/error_details.proto), encoded
//! by hand: two small messages are not worth a dependency.

use std::collections::HashMap;

use prost::Message;
use tonic::{Code, Status};

use crate::protocol::Refusal;
use crate::protocol::refusal::Code as FenceCode;

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// `google.rpc.ErrorInfo`.
#[derive(Clone, PartialEq, Message)]
struct ErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(map = "string, string", tag = "3")]
    metadata: HashMap<String, String>,
}

/// The status of a refusal.
pub(super) fn of(refusal: &Refusal) -> Status {
    let code = match refusal.code {
        FenceCode::Stale | FenceCode::Missing => Code::FailedPrecondition,
        FenceCode::Invalid => Code::InvalidArgument,
        FenceCode::Busy => Code::Unavailable,
        FenceCode::Unclassified => Code::PermissionDenied,
        FenceCode::Unknown => Code::Unknown,
    };
    let numbers = [("token", refusal.token), ("watermark", refusal.watermark)];
    let numbers = numbers
        .into_iter()
        .filter_map(|(name, it)| Some((name, it?.to_string())));
    let lock = refusal.lock.iter().map(|lock| ("lock", lock.to_string()));
    let metadata = lock
        .chain(numbers)
        .map(|(name, value)| (name.to_owned(), value));
    let info = ErrorInfo {
        reason: refusal.code.as_str().to_owned(),
        domain: "ringfence".to_owned(),
        metadata: metadata.collect(),
    };
    let details = RpcStatus {
        code: code.into(),
        message: refusal.detail.to_string(),
        details: vec![prost_types::Any {
            type_url: "type.googleapis.com/google.rpc.ErrorInfo".to_owned(),
            value: info.encode_to_vec(),
        }],
    };
    Status::with_details(
        code,
        refusal.detail.to_string(),
        details.encode_to_vec().into(),
    )
}
