use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::{Bounds, Health, Pages, Readiness, Times, serve_within};
use crate::audit::{AuditThread, AuditWriter, Limits, Service};
use crate::proto::TailRequest;
use crate::proto::audit_service_client::AuditServiceClient;

/// Short, since one test waits for it.
const DRAIN: Duration = Duration::from_millis(50);
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

struct Switch(AtomicBool);

impl Readiness for Switch {
    fn check(&self) -> Result<(), String> {
        if self.0.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err("no keys from lockd yet".into())
        }
    }
}

/// An admin port with a gRPC service next to the pages.
struct Admin {
    address: SocketAddr,
    ready: Arc<Switch>,
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    _audit: (tempfile::TempDir, AuditThread),
}

async fn start() -> Admin {
    let bounds = Bounds {
        connections_max: 100,
        begin_max: Duration::from_secs(60),
    };
    start_within(bounds, LONG).await
}

async fn start_within(bounds: Bounds, age_max: Duration) -> Admin {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let dir = tempfile::tempdir().unwrap();
    let (writer, thread) = metrics::with_local_recorder(&recorder, || {
        AuditWriter::open(dir.path(), Limits::default()).unwrap()
    });
    let ready = Arc::new(Switch(AtomicBool::new(false)));
    let pages = Pages::new(handle, ready.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let grpc = Routes::new(Service::server(writer)).add_service(Health::server(ready.clone()));
    let stopped = async {
        let _ = stopped.await;
    };
    let times = Times {
        drain_max: DRAIN,
        age_max,
    };
    let server = tokio::spawn(serve_within(
        listener,
        grpc,
        pages,
        stopped,
        (bounds, times),
    ));
    Admin {
        address,
        ready,
        stop,
        server,
        _audit: (dir, thread),
    }
}

impl Admin {
    /// One HTTP/1.1 request on a connection of its own.
    async fn request(&self, method: Method, path: &str) -> (StatusCode, String, String) {
        let stream = TokioIo::new(TcpStream::connect(self.address).await.unwrap());
        let (mut send, connection) =
            hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(stream)
                .await
                .unwrap();
        let connection = tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "admin")
            .body(Empty::new())
            .unwrap();
        let response = send.send_request(request).await.unwrap();
        let (head, body) = response.into_parts();
        let kind = head
            .headers
            .get("content-type")
            .map_or("", |kind| kind.to_str().unwrap());
        let kind = kind.to_owned();
        let body = body.collect().await.unwrap().to_bytes();
        drop(send);
        connection.await.unwrap().unwrap();
        (head.status, kind, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        let (status, _, body) = self.request(Method::GET, path).await;
        (status, body)
    }

    async fn grpc(&self) -> AuditServiceClient<tonic::transport::Channel> {
        AuditServiceClient::connect(format!("http://{}", self.address))
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn metrics_are_served_as_prometheus_text() {
    let admin = start().await;
    let (status, kind, body) = admin.request(Method::GET, "/metrics").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    assert!(body.contains("ringfence_audit_dropped_total 0"), "{body}");
}

#[tokio::test]
async fn ready_follows_the_shell_and_alive_does_not() {
    let admin = start().await;
    assert_eq!(
        admin.get("/healthz").await,
        (StatusCode::OK, "alive\n".into())
    );
    let (status, body) = admin.get("/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body, "not ready: no keys from lockd yet\n");
    admin.ready.0.store(true, Ordering::Relaxed);
    assert_eq!(
        admin.get("/readyz").await,
        (StatusCode::OK, "ready\n".into())
    );
}

#[tokio::test]
async fn other_methods_are_refused() {
    let admin = start().await;
    let (status, ..) = admin.request(Method::POST, "/metrics").await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    let (status, _, body) = admin.request(Method::HEAD, "/healthz").await;
    assert_eq!((status, body.as_str()), (StatusCode::OK, ""));
}

#[tokio::test]
async fn grpc_is_served_on_the_same_port() {
    let admin = start().await;
    let request = TailRequest {
        backlog: 1,
        follow: false,
    };
    let mut tail = admin.grpc().await.tail(request).await.unwrap().into_inner();
    assert!(tail.message().await.unwrap().is_none());
    assert_eq!(admin.get("/healthz").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_stream_without_end_does_not_hold_up_the_shutdown() {
    let admin = start().await;
    let request = TailRequest {
        backlog: 0,
        follow: true,
    };
    let _tail = admin.grpc().await.tail(request).await.unwrap();
    admin.stop.send(()).unwrap();
    admin.server.await.unwrap().unwrap();
    assert!(
        TcpStream::connect(admin.address).await.is_err(),
        "the port is still open"
    );
}

#[tokio::test]
async fn grpc_health_says_what_the_page_says() {
    let admin = start().await;
    let url = format!("http://{}", admin.address);
    let channel = Endpoint::from_shared(url).unwrap().connect_lazy();
    let mut health = HealthClient::new(channel);
    let asks = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    let mut changes = health.watch(asks("")).await.unwrap().into_inner();
    let (no, yes) = (ServingStatus::NotServing, ServingStatus::Serving);
    let first = changes.message().await.unwrap().unwrap();
    assert_eq!(first.status(), no);
    let check = health.check(asks("ringfence.v1.FenceService")).await;
    assert_eq!(check.unwrap().into_inner().status(), no);
    admin.ready.0.store(true, Ordering::Relaxed);
    assert_eq!(changes.message().await.unwrap().unwrap().status(), yes);
    let check = health.check(asks("")).await.unwrap();
    assert_eq!(check.into_inner().status(), yes);
    let other = health.check(asks("else.Service")).await.unwrap_err();
    assert_eq!(other.code(), tonic::Code::NotFound);
}

/// How an HTTP/2 client begins (RFC 9113 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[tokio::test]
async fn who_does_not_ask_to_the_end_is_let_go() {
    let admin = start_within(
        Bounds {
            connections_max: 100,
            begin_max: Duration::from_millis(300),
        },
        LONG,
    )
    .await;
    let endpoint = Endpoint::from_shared(format!("http://{}", admin.address)).unwrap();
    let mut health = HealthClient::new(endpoint.connect().await.unwrap());
    for sent in [
        &b""[..],
        &PREFACE[..20],
        b"GET /healthz HTT",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n",
        // Answered, and then nothing more is asked.
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /ringfence.v1.AuditService/Tail HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(admin.address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        let mut answer = vec![];
        let end = stream.read_to_end(&mut answer);
        let ended = tokio::time::timeout(Duration::from_secs(20), end).await;
        let sent = String::from_utf8_lossy(sent);
        // It may end with a reset, since what was sent is not read.
        let _ = ended.unwrap_or_else(|_| panic!("still open after {sent:?}"));
    }
    // One in HTTP/2 that has begun stays, asked or not.
    let check = health.check(HealthCheckRequest::default()).await;
    check.unwrap();
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_a_place() {
    let admin = start_within(
        Bounds {
            connections_max: 1,
            begin_max: Duration::from_secs(60),
        },
        LONG,
    )
    .await;
    let holds = TcpStream::connect(admin.address).await.unwrap();
    let waits = admin.get("/healthz");
    tokio::pin!(waits);
    let served = tokio::time::timeout(Duration::from_millis(200), &mut waits).await;
    assert!(served.is_err(), "{served:?}");
    drop(holds);
    let served = tokio::time::timeout(Duration::from_secs(20), waits).await;
    assert_eq!(served.unwrap().0, StatusCode::OK);
}

#[tokio::test]
async fn a_connection_that_asks_nothing_gives_its_place_away_in_time() {
    let admin = start_within(
        Bounds {
            connections_max: 1,
            begin_max: Duration::from_secs(60),
        },
        Duration::from_secs(1),
    )
    .await;
    let endpoint = Endpoint::from_shared(format!("http://{}", admin.address)).unwrap();
    let mut health = HealthClient::new(endpoint.connect().await.unwrap());
    health.check(HealthCheckRequest::default()).await.unwrap();
    // It is not dropped.
    let served = tokio::time::timeout(Duration::from_secs(20), admin.get("/healthz"));
    assert_eq!(served.await.unwrap().0, StatusCode::OK);
    // Asked again it makes another one.
    health.check(HealthCheckRequest::default()).await.unwrap();
}
