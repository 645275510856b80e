//! The part of a lock service that proxies ask. It answers what the test says.

#![allow(
    dead_code,
    reason = "each test binary uses its own part of the support code"
)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use ringfence::proto::register_response::Known;
use ringfence::proto::registry_service_server::{RegistryService, RegistryServiceServer};
use ringfence::proto::{
    FloorRequest, FloorResponse, KeysRequest, KeysResponse, ListProxiesRequest,
    ListProxiesResponse, PublicKey, RegisterRequest, RegisterResponse, UnregisterRequest,
    UnregisterResponse,
};
use ringfence::ticket::SigningKey;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// What it says, and what it was told.
#[derive(Default)]
pub struct State {
    pub keys: Vec<PublicKey>,
    /// By lock.
    pub floors: HashMap<String, u64>,
    /// Of every other lock; `None`: it does not tell.
    pub floor: Option<u64>,
    /// By instance, as it registered last.
    pub stores: HashMap<String, String>,
    pub registered: Vec<RegisterRequest>,
    /// It does not answer registrations.
    pub silent: bool,
    /// Every process that asks was taken out of the set, or those of these instances were.
    pub refuses: bool,
    pub removed: Vec<String>,
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<State>>);

impl Registry {
    pub async fn serve(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = TcpIncoming::from(listener);
        let service = RegistryServiceServer::new(self.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(incoming));
        address
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn add_key(&self, key: &SigningKey) {
        let key = key.verifying();
        self.state().keys.push(PublicKey {
            id: key.id().to_owned(),
            key: key.to_text(),
        });
    }

    /// No other key signs from now on.
    pub fn set_key(&self, key: &SigningKey) {
        self.state().keys.clear();
        self.add_key(key);
    }

    pub fn set_floor(&self, lock: &str, floor: u64) {
        self.state().floors.insert(lock.to_owned(), floor);
    }
}

#[tonic::async_trait]
impl RegistryService for Registry {
    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.state();
        if state.silent {
            return Err(Status::unavailable("no quorum"));
        }
        if state.refuses || state.removed.contains(&request.instance) {
            return Err(Status::failed_precondition("taken out of the set"));
        }
        let (instance, store_id) = (request.instance.clone(), request.store_id.clone());
        let known = match state.stores.insert(instance, store_id) {
            None => Known::New,
            Some(before) if before == request.store_id => Known::Same,
            Some(_) => Known::StoreLost,
        };
        state.registered.push(request);
        Ok(Response::new(RegisterResponse {
            known: known.into(),
            keys: state.keys.clone(),
        }))
    }

    async fn floor(
        &self,
        request: Request<FloorRequest>,
    ) -> Result<Response<FloorResponse>, Status> {
        let state = self.state();
        let of_lock = state.floors.get(&request.into_inner().lock).copied();
        match of_lock.or(state.floor) {
            Some(floor) => Ok(Response::new(FloorResponse { floor })),
            None => Err(Status::unavailable("no quorum")),
        }
    }

    async fn keys(&self, _: Request<KeysRequest>) -> Result<Response<KeysResponse>, Status> {
        let keys = self.state().keys.clone();
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
