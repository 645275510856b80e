//! A proxy that is only its FenceService: answers orders as the test tells it to.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use ringfence::lockd::SigningKeys;
use ringfence::proto::fence_service_server::{FenceService, FenceServiceServer};
use ringfence::proto::{
    CloseRequest, CloseResponse, IdentityRequest, IdentityResponse, ListWatermarksRequest,
    ListWatermarksResponse, RegisterRequest, SealRequest, SealResponse, WatermarkRequest,
    WatermarkResponse,
};
use ringfence::ticket::{Action, KeyRing, Order};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use super::Client;

/// What it does with a seal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mood {
    /// Raises its watermark, unless the token is below its floor.
    Works,
    /// Holds every seal until the mood changes.
    Holds,
    /// Says that it is busy, and raises nothing.
    Busy,
    /// Raises its watermark, and says that older writes are in flight.
    Late,
}

#[derive(Default)]
pub struct Seen {
    pub floor: u64,
    pub watermark: u64,
    /// The grant whose seal raised it.
    pub grant: String,
    pub orders: Vec<Order>,
}

pub struct FakeProxy {
    pub instance: String,
    pub address: SocketAddr,
    pub seen: Arc<Mutex<Seen>>,
    pub mood: watch::Sender<Mood>,
    server: JoinHandle<()>,
}

#[derive(Clone)]
struct Fence {
    instance: String,
    seen: Arc<Mutex<Seen>>,
    mood: watch::Receiver<Mood>,
    keys: Arc<SigningKeys>,
}

impl FakeProxy {
    pub async fn start(instance: &str, keys: &Arc<SigningKeys>) -> FakeProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mood = watch::Sender::new(Mood::Works);
        let fence = Fence {
            instance: instance.to_owned(),
            seen: seen.clone(),
            mood: mood.subscribe(),
            keys: keys.clone(),
        };
        let server = tokio::spawn(async move {
            Server::builder()
                .add_service(FenceServiceServer::new(fence))
                .serve_with_incoming(TcpIncoming::from(listener))
                .await
                .unwrap();
        });
        FakeProxy {
            instance: instance.to_owned(),
            address,
            seen,
            mood,
            server,
        }
    }

    pub async fn register(&self, client: &Client, pattern: &str) {
        register(client, &self.instance, &self.address.to_string(), pattern).await;
    }

    pub fn set_watermark(&self, watermark: u64) {
        let mut seen = self.seen.lock().unwrap();
        (seen.floor, seen.watermark) = (watermark, watermark);
    }

    pub fn watermark(&self) -> u64 {
        self.seen.lock().unwrap().watermark
    }

    pub fn orders(&self) -> Vec<(Action, u64)> {
        let seen = self.seen.lock().unwrap();
        seen.orders
            .iter()
            .map(|order| (order.action, order.token.get()))
            .collect()
    }
}

impl Drop for FakeProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

pub async fn register(client: &Client, instance: &str, address: &str, pattern: &str) {
    let request = RegisterRequest {
        instance: instance.to_owned(),
        store_id: format!("store-of-{instance}"),
        admin: format!("http://{address}"),
        patterns: vec![pattern.to_owned()],
        ..RegisterRequest::default()
    };
    client.registry.clone().register(request).await.unwrap();
}

impl Fence {
    fn take(&self, authority: &str, action: Action) -> Result<Order, Status> {
        let ring = KeyRing::new(self.keys.current().verifying().cloned());
        let order = ring
            .verify_order(authority)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        assert_eq!(order.action, action);
        self.seen.lock().unwrap().orders.push(order.clone());
        Ok(order)
    }
}

#[tonic::async_trait]
impl FenceService for Fence {
    async fn seal(&self, request: Request<SealRequest>) -> Result<Response<SealResponse>, Status> {
        let order = self.take(&request.into_inner().authority, Action::Seal)?;
        let mut mood = self.mood.clone();
        let now = *mood.wait_for(|mood| *mood != Mood::Holds).await.unwrap();
        if now == Mood::Busy {
            return Err(Status::unavailable("busy"));
        }
        let token = order.token.get();
        let mut seen = self.seen.lock().unwrap();
        if token < seen.floor {
            return Err(Status::failed_precondition("stale"));
        }
        let was_there = seen.watermark == token && seen.grant != order.grant;
        if seen.watermark != token {
            seen.grant = order.grant;
        }
        (seen.floor, seen.watermark) = (token, token);
        if now == Mood::Late {
            return Err(Status::unavailable("an older write is still in flight"));
        }
        let (instance, lock) = (self.instance.clone(), order.lock.to_string());
        Ok(Response::new(SealResponse {
            instance,
            lock,
            token,
            was_there,
            ..SealResponse::default()
        }))
    }

    async fn close(
        &self,
        request: Request<CloseRequest>,
    ) -> Result<Response<CloseResponse>, Status> {
        let order = self.take(&request.into_inner().authority, Action::Close)?;
        if *self.mood.borrow() == Mood::Busy {
            return Err(Status::unavailable("busy"));
        }
        let mut seen = self.seen.lock().unwrap();
        let floor = order.token.get() + 1;
        if seen.floor >= floor {
            return Err(Status::failed_precondition("stale"));
        }
        seen.floor = floor;
        let (instance, lock) = (self.instance.clone(), order.lock.to_string());
        Ok(Response::new(CloseResponse {
            instance,
            lock,
            floor,
            ..CloseResponse::default()
        }))
    }

    async fn identity(
        &self,
        _: Request<IdentityRequest>,
    ) -> Result<Response<IdentityResponse>, Status> {
        Ok(Response::new(IdentityResponse {
            instance: self.instance.clone(),
            process: String::new(),
        }))
    }

    async fn watermark(
        &self,
        request: Request<WatermarkRequest>,
    ) -> Result<Response<WatermarkResponse>, Status> {
        let seen = self.seen.lock().unwrap();
        let lock = request.into_inner().lock;
        let (floor, watermark) = (seen.floor, seen.watermark);
        let answer = WatermarkResponse {
            lock,
            floor,
            watermark,
            instance: self.instance.clone(),
            ..WatermarkResponse::default()
        };
        Ok(Response::new(answer))
    }

    async fn list_watermarks(
        &self,
        _: Request<ListWatermarksRequest>,
    ) -> Result<Response<ListWatermarksResponse>, Status> {
        Ok(Response::new(ListWatermarksResponse::default()))
    }
}
