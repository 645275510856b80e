//! Reads of many keys in pages, all at one revision.

use tonic::{Code, Status};

use super::endpoints::{Endpoints, store_error};
use super::generation::Generations;
use super::layout::KeyRange;
use super::message::{get, get_range, take_range};
use crate::etcd_proto::etcdserverpb::{RangeRequest, RangeResponse, TxnRequest};
use crate::etcd_proto::mvccpb::KeyValue;
use crate::store::StoreError;

/// Keys in one page.
const PAGE_KEYS: i64 = 1000;

/// How often a read starts again because etcd compacted its revision away between two pages.
const COMPACTED_TRIES_MAX: usize = 3;

/// What a range held at one moment, and the token generations of the same moment.
pub struct Snapshot {
    pub kvs: Vec<KeyValue>,
    pub generations: Generations,
    pub revision: i64,
    /// The election after which it was read.
    pub term: u64,
}

/// Reads the whole range and the generations, whose key is `generation`, linearizably. Keys that
/// `keep` refuses are dropped page by page.
pub async fn snapshot(
    endpoints: &Endpoints,
    range: &KeyRange,
    generation: prost::bytes::Bytes,
    keep: impl Fn(&KeyValue) -> bool,
) -> Result<Snapshot, StoreError> {
    let mut page_keys = PAGE_KEYS;
    let mut compacted = 0;
    loop {
        match pages(endpoints, range, &generation, &keep, page_keys).await {
            // The peer's or our own limit on a message: foreign values may be large.
            Err(Failed::Status(status)) if too_large(&status) && page_keys > 1 => {
                page_keys = (page_keys / 10).max(1);
            }
            Err(Failed::Status(status))
                if status.code() == Code::OutOfRange && compacted < COMPACTED_TRIES_MAX =>
            {
                compacted += 1;
            }
            Err(Failed::Status(status)) if status.code() == Code::OutOfRange => {
                return Err(StoreError::Unavailable(store_error(&status).to_string()));
            }
            Err(Failed::Status(status)) => return Err(store_error(&status)),
            Err(Failed::Store(error)) => return Err(error),
            Ok(snapshot) => return Ok(snapshot),
        }
    }
}

enum Failed {
    Status(Status),
    Store(StoreError),
}

async fn pages(
    endpoints: &Endpoints,
    range: &KeyRange,
    generation: &prost::bytes::Bytes,
    keep: &impl Fn(&KeyValue) -> bool,
    page_keys: i64,
) -> Result<Snapshot, Failed> {
    let mut page = RangeRequest {
        key: range.start.clone(),
        range_end: range.end.clone(),
        limit: page_keys,
        ..RangeRequest::default()
    };
    let ops = vec![get(generation.clone()), get_range(page.clone())];
    let txn = TxnRequest {
        success: ops,
        ..TxnRequest::default()
    };
    let before = endpoints.before().map_err(Failed::Status)?;
    let mut answer = endpoints.txn(txn).await.map_err(Failed::Status)?;
    let header = answer.header.take().unwrap_or_default();
    let (revision, term) = (header.revision, header.raft_term);
    let found = take_range(&mut answer, 0).map_err(Failed::Store)?;
    let generations = Generations::read(found.kvs.first()).map_err(Failed::Store)?;
    let checked = endpoints.check_generations(before, &generations);
    checked.map_err(Failed::Status)?;
    let mut read: RangeResponse = take_range(&mut answer, 1).map_err(Failed::Store)?;
    let mut kvs = Vec::new();
    loop {
        let last = read.kvs.last().map(|kv| kv.key.clone());
        kvs.extend(read.kvs.into_iter().filter(keep));
        match last {
            Some(last) if read.more => page.key = [&last[..], &[0]].concat().into(),
            _ => {
                return Ok(Snapshot {
                    kvs,
                    generations,
                    revision,
                    term,
                });
            }
        }
        page.revision = revision;
        read = endpoints
            .range(page.clone())
            .await
            .map_err(Failed::Status)?;
    }
}

/// A page above the limit of one side. tonic and grpc-go both say so as out of range or resource
/// exhausted, and both name the message's size.
fn too_large(status: &Status) -> bool {
    matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted)
        && (status.message().contains("message") && status.message().contains("larg"))
}
