//! The part of a lock service that proxies ask, for proxies that run as processes: it answers what
//! the test says.

#![allow(
    dead_code,
    reason = "each test binary uses its own part of the support code"
)]

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use ringfence::proto::register_response::Known;
use ringfence::proto::registry_service_server::{RegistryService, RegistryServiceServer};
use ringfence::proto::{
    FloorRequest, FloorResponse, KeysRequest, KeysResponse, ListProxiesRequest,
    ListProxiesResponse, PublicKey, RegisterRequest, RegisterResponse, UnregisterRequest,
    UnregisterResponse,
};
use ringfence::ticket::SigningKey;
use tokio::runtime::Runtime;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::process::eventually;

#[derive(Default)]
struct State {
    keys: Vec<PublicKey>,
    /// Of every lock.
    floor: u64,
    /// By instance, as it registered last.
    stores: HashMap<String, String>,
    /// It does not answer registrations.
    silent: bool,
    /// Those that were taken out of the set.
    removed: Vec<String>,
}

/// Ends when it is dropped.
pub struct Lockd {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    _runtime: Runtime,
}

impl Lockd {
    /// One whose tickets this key signs.
    pub fn start(key: &SigningKey) -> Lockd {
        let state = Arc::new(Mutex::new(State {
            floor: 1,
            ..State::default()
        }));
        let runtime = Runtime::new().unwrap();
        let service = RegistryServiceServer::new(Registry(Arc::clone(&state)));
        let address = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let incoming = TcpIncoming::from(listener);
            let server = tonic::transport::Server::builder().add_service(service);
            tokio::spawn(server.serve_with_incoming(incoming));
            address
        });
        let lockd = Lockd {
            address,
            state,
            _runtime: runtime,
        };
        lockd.set_key(key);
        lockd
    }

    /// The line of `[tickets]`.
    pub fn tickets(&self) -> String {
        format!("lockd = \"http://{}\"", self.address)
    }

    /// No other key signs from now on.
    pub fn set_key(&self, key: &SigningKey) {
        let key = key.verifying();
        self.state().keys = vec![PublicKey {
            id: key.id().to_owned(),
            key: key.to_text(),
        }];
    }

    /// The highest token granted, of every lock.
    pub fn set_floor(&self, floor: u64) {
        self.state().floor = floor;
    }

    /// Whether it answers registrations from now on.
    pub fn answer(&self, answers: bool) {
        self.state().silent = !answers;
    }

    /// Takes a proxy out of the set.
    pub fn remove(&self, instance: &str) {
        self.state().removed.push(instance.to_owned());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// What a proxy with this admin port says of its readiness.
pub fn readiness(admin: SocketAddr) -> String {
    let mut stream = TcpStream::connect(admin).unwrap();
    let head = "GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    told
}

/// Waits until the proxy has heard from the lock service, and done what that asks for.
#[track_caller]
pub fn wait_until_ready(admin: SocketAddr) {
    eventually("readiness", || readiness(admin).starts_with("HTTP/1.1 200"));
}

#[derive(Clone)]
struct Registry(Arc<Mutex<State>>);

#[tonic::async_trait]
impl RegistryService for Registry {
    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        let RegisterRequest {
            instance, store_id, ..
        } = request.into_inner();
        let mut state = self.0.lock().unwrap();
        if state.silent {
            return Err(Status::unavailable("no quorum"));
        }
        if state.removed.contains(&instance) {
            return Err(Status::failed_precondition("taken out of the set"));
        }
        let known = match state.stores.insert(instance, store_id.clone()) {
            None => Known::New,
            Some(before) if before == store_id => Known::Same,
            Some(_) => Known::StoreLost,
        };
        Ok(Response::new(RegisterResponse {
            known: known.into(),
            keys: state.keys.clone(),
        }))
    }

    async fn floor(&self, _: Request<FloorRequest>) -> Result<Response<FloorResponse>, Status> {
        let floor = self.0.lock().unwrap().floor;
        Ok(Response::new(FloorResponse { floor }))
    }

    async fn keys(&self, _: Request<KeysRequest>) -> Result<Response<KeysResponse>, Status> {
        let keys = self.0.lock().unwrap().keys.clone();
        Ok(Response::new(KeysResponse { keys }))
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
