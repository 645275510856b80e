//! The pages that are not gRPC: `/metrics`, `/healthz`, `/readyz`.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use metrics_exporter_prometheus::PrometheusHandle;
use tonic::body::Body;
use tonic::codegen::{Service, http};

use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};

/// The paths that are served.
pub(super) const PATHS: [&str; 3] = ["/metrics", "/healthz", "/readyz"];

const PLAIN: &str = "text/plain; charset=utf-8";
/// Prometheus, "Exposition formats": the text format's version.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a shell tells about itself.
pub trait Readiness: Send + Sync + 'static {
    /// Whether requests can be served now; the error says what is missing, in a few words for
    /// operators. Called per request and never blocks.
    fn check(&self) -> Result<(), String>;
}

/// The pages of one process.
#[derive(Clone)]
pub struct Pages {
    metrics: PrometheusHandle,
    readiness: Arc<dyn Readiness>,
}

impl Pages {
    /// Pages over the process's recorder and its shell.
    pub fn new(metrics: PrometheusHandle, readiness: Arc<dyn Readiness>) -> Pages {
        Pages { metrics, readiness }
    }

    pub(super) fn metrics(&self) -> &PrometheusHandle {
        &self.metrics
    }

    fn page(&self, method: &Method, path: &str) -> Response<Body> {
        if method != Method::GET && method != Method::HEAD {
            let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET\n".into());
            refused
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match path {
            "/metrics" => text(StatusCode::OK, PROMETHEUS, self.metrics.render()),
            // That it answers is the whole statement.
            "/healthz" => text(StatusCode::OK, PLAIN, "alive\n".into()),
            "/readyz" => match self.readiness.check() {
                Ok(()) => text(StatusCode::OK, PLAIN, "ready\n".into()),
                Err(missing) => text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    PLAIN,
                    format!("not ready: {missing}\n"),
                ),
            },
            _ => text(StatusCode::NOT_FOUND, PLAIN, "no such page\n".into()),
        }
    }
}

impl<B> Service<Request<B>> for Pages {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        ready(Ok(self.page(request.method(), request.uri().path())))
    }
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::new(http_body_util::Full::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
