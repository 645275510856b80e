//! Refusals as statuses of the admin port's services.

use tonic::{Code, Status};

use crate::protocol::{Refusal, grpc};

/// The status of a refusal, with its `google.rpc.ErrorInfo`.
pub(in crate::proxy) fn of(refusal: &Refusal) -> Status {
    let status = grpc::status(refusal);
    let code = Code::from_i32(status.code.into());
    Status::with_details(code, status.message, status.details.into())
}
