//! etcd's own lock service. Its few messages are written out here, since nothing else needs them:
//! package `v3lockpb`, service `Lock`.

use ringfence::etcd_proto::etcdserverpb::kv_client::KvClient;
use ringfence::etcd_proto::etcdserverpb::lease_client::LeaseClient;
use ringfence::etcd_proto::etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest, RangeRequest};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use super::service::{Locks, TTL_S, connect};

#[derive(Clone, PartialEq, prost::Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

/// The header, field 1, is left out.
#[derive(Clone, PartialEq, prost::Message)]
struct LockResponse {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnlockRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnlockResponse {}

/// The service of one etcd.
#[derive(Clone)]
pub struct V3Lock(Vec<Channel>);

pub struct Session {
    channel: Channel,
    lease: i64,
}

pub struct Held {
    channel: Channel,
    key: Vec<u8>,
}

impl V3Lock {
    pub async fn connect(url: &str) -> V3Lock {
        V3Lock(connect(url).await)
    }
}

async fn call<Q, A>(channel: Channel, path: &'static str, request: Q) -> A
where
    Q: prost::Message + 'static,
    A: prost::Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.expect("a connection");
    let codec = ProstCodec::<Q, A>::default();
    let path = PathAndQuery::from_static(path);
    let reply = grpc.unary(tonic::Request::new(request), path, codec).await;
    reply
        .unwrap_or_else(|status| panic!("v3lock: {status}"))
        .into_inner()
}

impl Locks for V3Lock {
    type Session = Session;
    type Held = Held;

    async fn open(&self, client: usize) -> Session {
        let channel = self.0[client % self.0.len()].clone();
        let request = LeaseGrantRequest { ttl: TTL_S, id: 0 };
        let grant = LeaseClient::new(channel.clone())
            .lease_grant(request)
            .await
            .expect("a lease");
        Session {
            channel,
            lease: grant.into_inner().id,
        }
    }

    async fn lock(&self, session: &mut Session, name: &str) -> Held {
        let request = LockRequest {
            name: name.as_bytes().to_vec(),
            lease: session.lease,
        };
        let channel = session.channel.clone();
        let reply: LockResponse = call(channel.clone(), "/v3lockpb.Lock/Lock", request).await;
        Held {
            channel,
            key: reply.key,
        }
    }

    async fn unlock(&self, held: Held) {
        let request = UnlockRequest { key: held.key };
        let _: UnlockResponse = call(held.channel, "/v3lockpb.Lock/Unlock", request).await;
    }

    async fn queued(&self, name: &str) -> u64 {
        let request = RangeRequest {
            key: format!("{name}/").into(),
            // The byte after `/` ends the range of all keys that begin so.
            range_end: format!("{name}0").into(),
            count_only: true,
            ..RangeRequest::default()
        };
        let reply = KvClient::new(self.0[0].clone())
            .range(request)
            .await
            .expect("a count");
        u64::try_from(reply.into_inner().count).expect("a count")
    }

    async fn close(&self, session: Session) {
        let request = LeaseRevokeRequest { id: session.lease };
        LeaseClient::new(session.channel)
            .lease_revoke(request)
            .await
            .expect("a revocation");
    }
}
