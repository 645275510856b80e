//! With a lock service that knows the floors: what etcd has lost comes back from there.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use ringfence::proto::register_response::Known;
use ringfence::proto::registry_service_server::{RegistryService, RegistryServiceServer};
use ringfence::proto::{
    FloorRequest, FloorResponse, KeysRequest, KeysResponse, ListProxiesRequest,
    ListProxiesResponse, PublicKey, RegisterRequest, RegisterResponse, UnregisterRequest,
    UnregisterResponse,
};
use tonic::{Code, Request, Response, Status};

use crate::support::{JOBS, Version, World, put, refused, soon, with};

/// Knows one key, and the floor of every lock: `None`, and it says nothing.
#[derive(Clone)]
struct Registry {
    key: PublicKey,
    floor: Arc<Mutex<Option<u64>>>,
}

#[tonic::async_trait]
impl RegistryService for Registry {
    async fn register(
        &self,
        _: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        Ok(Response::new(RegisterResponse {
            known: Known::New.into(),
            keys: vec![self.key.clone()],
        }))
    }

    async fn floor(&self, _: Request<FloorRequest>) -> Result<Response<FloorResponse>, Status> {
        match *self.floor.lock().unwrap() {
            Some(floor) => Ok(Response::new(FloorResponse { floor })),
            None => Err(Status::unavailable("no quorum")),
        }
    }

    async fn keys(&self, _: Request<KeysRequest>) -> Result<Response<KeysResponse>, Status> {
        Ok(Response::new(KeysResponse {
            keys: vec![self.key.clone()],
        }))
    }

    async fn list_proxies(
        &self,
        _: Request<ListProxiesRequest>,
    ) -> Result<Response<ListProxiesResponse>, Status> {
        Err(Status::unimplemented("not asked by proxies"))
    }

    async fn unregister(
        &self,
        _: Request<UnregisterRequest>,
    ) -> Result<Response<UnregisterResponse>, Status> {
        Err(Status::unimplemented("not asked by proxies"))
    }
}

async fn serve(registry: Registry) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(RegistryServiceServer::new(registry))
            .serve_with_incoming(incoming),
    );
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_floor_is_what_lockd_says_never_what_a_proxy_remembers() {
    let world = World::new(Version::V3_4);
    let key = world.key.verifying();
    let registry = Registry {
        key: PublicKey {
            id: key.id().to_owned(),
            key: key.to_text(),
        },
        floor: Arc::new(Mutex::new(Some(1))),
    };
    let lockd = serve(registry.clone()).await;
    let config = world.config("a", &world.etcd_address(), JOBS);
    let keys = format!("keys = \"{}/keys\"", world.dir.path().display());
    let config = config.replace(&keys, &format!("lockd = \"http://{lockd}\""));
    let proxy = world.start("a", &config, false);
    soon("the keys", async {
        while proxy.proxy.health().check().is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    let mut client = proxy.client().await;
    let five = world.ticket("orders", 5);
    client
        .put(with(put("orders", "5"), &[&five]))
        .await
        .unwrap();
    assert_eq!(world.floor("orders").await, Some(5));
    // Another proxy has admitted 8 meanwhile; then etcd lost everything of the fence.
    world.etcd.ctl(&["del", "_ringfence/", "--prefix"]);
    *registry.floor.lock().unwrap() = None;
    let told = refused(
        client.put(with(put("orders", "5"), &[&five])).await,
        Code::Unavailable,
        "busy",
    );
    assert_eq!(told["lock"], "orders");
    assert_eq!(
        world.floor("orders").await,
        None,
        "closed until it is known"
    );
    *registry.floor.lock().unwrap() = Some(8);
    let stale = client.put(with(put("orders", "5"), &[&five])).await;
    let told = refused(stale, Code::FailedPrecondition, "stale");
    assert_eq!(told["watermark"], "8");
    assert_eq!(world.floor("orders").await, Some(8));
    let eight = world.ticket("orders", 8);
    client
        .put(with(put("orders", "8"), &[&eight]))
        .await
        .unwrap();
}
