//! Connections to the members of an etcd cluster, and which of them is used.
//!
//! One member serves everything until it fails a call; then the next one does. Every call says
//! `hasleader`, so that a member which is cut off from the others refuses at once instead of
//! letting the call wait (etcd: `WithRequireLeader`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use super::generation::Generations;
use super::history::{Before, History, Mark, Seen};
use crate::etcd_proto::etcdserverpb::kv_client::KvClient;
use crate::etcd_proto::etcdserverpb::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use crate::store::{NO_SPACE, StoreError};

/// Longest time until a call is given up. A proposal that was under way to a leader that died gets
/// no answer at all, so this is how long such a death can hold up a caller.
pub const CALL_MAX: Duration = Duration::from_secs(3);

/// Longest time until a connection is given up.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// How often an HTTP/2 ping looks for a dead peer. etcd closes connections that ping more often
/// than every 5 s (`--grpc-keepalive-min-time`).
const PING_EVERY: Duration = Duration::from_secs(10);

/// Largest message that is taken from etcd: a page of foreign keys may be far larger than ours.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The members.
#[derive(Debug)]
pub struct Endpoints {
    channels: Vec<(String, Channel)>,
    current: AtomicUsize,
    connections: Arc<AtomicU64>,
    history: History,
}

/// Connects, and counts how often.
#[derive(Clone)]
struct Counted {
    connector: HttpConnector,
    connections: Arc<AtomicU64>,
}

impl Service<Uri> for Counted {
    type Response = <HttpConnector as Service<Uri>>::Response;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = <HttpConnector as Service<Uri>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        // Before the connection is made, so that no answer on it is read under the count before.
        // AcqRel: whoever reads that answer reads this count too.
        self.connections.fetch_add(1, Ordering::AcqRel);
        self.connector.call(to)
    }
}

/// One member, and which it is: to be named when it failed.
#[derive(Clone, Debug)]
pub struct Member {
    pub channel: Channel,
    index: usize,
}

impl Endpoints {
    /// Connects when first used. Must be called in a tokio runtime.
    pub fn new(addresses: &[String], seen: Option<Seen>) -> Result<Endpoints, StoreError> {
        let refused = |address: &str, why: &str| {
            StoreError::Refused(format!("etcd endpoint {address:?}: {why}"))
        };
        let mut channels = Vec::with_capacity(addresses.len());
        let connections = Arc::new(AtomicU64::new(0));
        for address in addresses {
            if !address.starts_with("http://") {
                return Err(refused(
                    address,
                    "it must begin with http:// (TLS is not built in)",
                ));
            }
            let endpoint = Endpoint::from_shared(address.clone())
                .map_err(|error| refused(address, &error.to_string()))?
                .connect_timeout(CONNECT_MAX)
                .http2_keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(CALL_MAX)
                .keep_alive_while_idle(true);
            let mut connector = HttpConnector::new();
            connector.set_nodelay(true);
            connector.set_connect_timeout(Some(CONNECT_MAX));
            let counted = Counted {
                connector,
                connections: Arc::clone(&connections),
            };
            let channel = endpoint.connect_with_connector_lazy(counted);
            channels.push((address.clone(), channel));
        }
        if channels.is_empty() {
            return Err(StoreError::Refused(
                "no etcd endpoint is configured".to_owned(),
            ));
        }
        Ok(Endpoints {
            channels,
            current: AtomicUsize::new(0),
            connections,
            history: History::after(seen),
        })
    }

    /// The cluster and the highest revision that was seen of it.
    pub fn seen(&self) -> Option<(u64, i64)> {
        self.history.seen()
    }

    /// The mark as it was last written.
    pub fn mark(&self) -> Option<Mark> {
        self.history.mark()
    }

    /// The mark was written.
    pub fn set_mark(&self, mark: Mark) {
        self.history.set_mark(mark);
    }

    /// See [`History::check_mark`].
    pub fn check_mark(&self, written: Mark, found: i64) -> Result<(), Status> {
        self.history.check_mark(written, found)
    }

    /// See [`History::before`].
    pub fn before(&self) -> Result<Before, Status> {
        self.history.before()
    }

    /// See [`History::check_generations`].
    pub fn check_generations(&self, before: Before, found: &Generations) -> Result<(), Status> {
        self.history.check_generations(before, found)
    }

    /// An event has told these generations.
    pub fn note_generations(&self, seen: &Generations) {
        self.history.note_generations(seen);
    }

    /// An event of this revision has come.
    pub fn note_event(&self, revision: i64) {
        self.history.note(revision);
    }

    /// Another number after each new connection and each change of member. What was learnt from one
    /// process of etcd holds for its later answers; after a new connection it may be one that was
    /// restored from a backup, and counts its revisions anew.
    pub fn timeline(&self) -> u64 {
        self.connections.load(Ordering::Acquire)
    }

    /// The member in use.
    pub fn member(&self) -> Member {
        // Relaxed: only a hint, nothing else is published with it.
        let index = self.current.load(Ordering::Relaxed) % self.channels.len();
        Member {
            channel: self.channels[index].1.clone(),
            index,
        }
    }

    /// Goes on to the next member, unless another call has done so since.
    pub fn failed(&self, member: &Member, why: &dyn std::fmt::Display) {
        let next = (member.index + 1) % self.channels.len();
        let changed =
            self.current
                .compare_exchange(member.index, next, Ordering::Relaxed, Ordering::Relaxed);
        if changed.is_ok() && next != member.index {
            self.connections.fetch_add(1, Ordering::AcqRel);
        }
        if next == member.index {
            // The only one. Its callers hear of every failure.
            tracing::debug!(member = %self.channels[next].0, %why, "etcd: call failed");
        } else if changed.is_ok() {
            let (from, to) = (&self.channels[member.index].0, &self.channels[next].0);
            tracing::warn!(%from, %to, %why, "etcd: member failed");
        }
    }

    /// One call with its deadline, to the member in use.
    pub async fn call<T, F>(&self, make: impl FnOnce(Channel) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let member = self.member();
        let answer = match tokio::time::timeout(CALL_MAX, make(member.channel.clone())).await {
            Ok(answer) => answer.map(Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded(format!(
                "no answer in {CALL_MAX:?}"
            ))),
        };
        if let Err(status) = &answer
            && blames_member(status)
        {
            self.failed(&member, status);
        }
        answer
    }

    /// One transaction.
    pub async fn txn(&self, txn: TxnRequest) -> Result<TxnResponse, Status> {
        let before = self.history.before()?;
        let call = async |channel| {
            let answer = kv(channel).txn(request(txn)).await?;
            let header = answer.get_ref().header.as_ref();
            self.history.check(before, header)?;
            Ok(answer)
        };
        self.call(call).await
    }

    /// One linearizable range.
    pub async fn range(&self, range: RangeRequest) -> Result<RangeResponse, Status> {
        let before = self.history.before()?;
        let call = async |channel| {
            let answer = kv(channel).range(request(range)).await?;
            let header = answer.get_ref().header.as_ref();
            self.history.check(before, header)?;
            Ok(answer)
        };
        self.call(call).await
    }
}

fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// A request that a member without a leader refuses.
pub fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let value = tonic::metadata::MetadataValue::from_static("true");
    request.metadata_mut().insert("hasleader", value);
    request
}

/// Whether another member may do better.
fn blames_member(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Unknown
            | Code::Internal
            | Code::Cancelled
            // It is of another cluster, or went back.
            | Code::DataLoss
    )
}

/// What a failed call means to the caller of the store.
pub fn store_error(status: &Status) -> StoreError {
    let text = format!("etcd: {}: {}", status.code(), status.message());
    match status.code() {
        Code::PermissionDenied
        | Code::Unauthenticated
        | Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::NotFound
        | Code::Unimplemented => StoreError::Refused(text),
        Code::DataLoss => StoreError::Corrupt(text),
        // etcd `api/v3rpc/rpctypes/error.go`, ErrGRPCNoSpace: refused before it is applied.
        Code::ResourceExhausted if status.message().contains("database space exceeded") => {
            StoreError::Unavailable(NO_SPACE.to_owned())
        }
        _ => StoreError::Unavailable(text),
    }
}

#[cfg(test)]
mod tests {
    use super::store_error;
    use crate::store::{NO_SPACE, StoreError};
    use tonic::Status;

    #[test]
    fn etcds_space_that_is_used_up_is_told_from_other_limits() {
        let full = store_error(&Status::resource_exhausted(
            "etcdserver: mvcc: database space exceeded",
        ));
        assert!(matches!(full, StoreError::Unavailable(why) if why == NO_SPACE));
        let busy = store_error(&Status::resource_exhausted("etcdserver: too many requests"));
        assert!(matches!(busy, StoreError::Unavailable(why) if why != NO_SPACE));
    }
}
