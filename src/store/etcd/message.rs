//! Building and reading etcd's messages, without a meaning of their own.

use prost::bytes::Bytes;

use crate::etcd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::etcd_proto::etcdserverpb::request_op::Request;
use crate::etcd_proto::etcdserverpb::response_op::Response;
use crate::etcd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseOp,
    TxnRequest, TxnResponse,
};
use crate::store::StoreError;

/// An answer that etcd's contract excludes.
pub fn odd(what: &str) -> StoreError {
    StoreError::Corrupt(format!("etcd answered against its contract: {what}"))
}

pub fn nested(answer: &TxnResponse, index: usize) -> Result<&TxnResponse, StoreError> {
    match answer
        .responses
        .get(index)
        .and_then(|op| op.response.as_ref())
    {
        Some(Response::ResponseTxn(inner)) => Ok(inner),
        _ => Err(odd("no transaction in its place")),
    }
}

pub fn range(answer: &TxnResponse, index: usize) -> Result<&RangeResponse, StoreError> {
    match answer
        .responses
        .get(index)
        .and_then(|op| op.response.as_ref())
    {
        Some(Response::ResponseRange(read)) => Ok(read),
        _ => Err(odd("no range in its place")),
    }
}

/// The transaction that this answers, if it does.
pub fn into_nested(op: ResponseOp) -> Option<TxnResponse> {
    match op.response {
        Some(Response::ResponseTxn(inner)) => Some(inner),
        _ => None,
    }
}

/// One range in an answer, by its place.
pub fn take_range(answer: &mut TxnResponse, index: usize) -> Result<RangeResponse, StoreError> {
    match answer
        .responses
        .get_mut(index)
        .and_then(|op| op.response.take())
    {
        Some(Response::ResponseRange(read)) => Ok(read),
        _ => Err(odd("no range in its place")),
    }
}

pub fn txn(txn: TxnRequest) -> RequestOp {
    RequestOp {
        request: Some(Request::RequestTxn(txn)),
    }
}

pub fn get(key: Bytes) -> RequestOp {
    get_range(RangeRequest {
        key,
        ..RangeRequest::default()
    })
}

pub fn get_range(range: RangeRequest) -> RequestOp {
    RequestOp {
        request: Some(Request::RequestRange(range)),
    }
}

pub fn put(key: Bytes, value: Bytes, lease: i64) -> RequestOp {
    let put = PutRequest {
        key,
        value,
        lease,
        ..PutRequest::default()
    };
    RequestOp {
        request: Some(Request::RequestPut(put)),
    }
}

pub fn compare(key: &Bytes, result: CompareResult, union: TargetUnion) -> Compare {
    let target = match &union {
        TargetUnion::Version(_) => CompareTarget::Version,
        TargetUnion::CreateRevision(_) => CompareTarget::Create,
        TargetUnion::ModRevision(_) => CompareTarget::Mod,
        TargetUnion::Value(_) => CompareTarget::Value,
        TargetUnion::Lease(_) => CompareTarget::Lease,
    };
    Compare {
        result: result.into(),
        target: target.into(),
        key: key.clone(),
        target_union: Some(union),
        range_end: Bytes::new(),
    }
}

pub fn delete(key: Bytes) -> RequestOp {
    let delete = DeleteRangeRequest {
        key,
        ..DeleteRangeRequest::default()
    };
    RequestOp {
        request: Some(Request::RequestDeleteRange(delete)),
    }
}
