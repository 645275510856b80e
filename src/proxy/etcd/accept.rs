//! Clients of etcd: HTTP/2 with prior knowledge, as gRPC over plain TCP speaks it. What speaks
//! HTTP/1 (etcd's JSON gateway, its health page) is not served here.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use super::closing::Closings;
use super::door::Door;
use super::upstream::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES};
use crate::incoming::{BEGIN_MAX, Connection};
use crate::proxy::accept::{Serve, Visit, ending};
use crate::proxy::session::Listening;

/// Calls at a time on one connection, watches included: etcd's own servers set no limit, and one
/// client carries all of its watches and keep-alives over one connection.
const STREAMS_PER_CONNECTION_MAX: u32 = 1024;
/// How often a ping looks for a dead client, and how long an answer may take.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_ANSWER_MAX: Duration = Duration::from_secs(20);

/// Serves the clients of a listener on one core.
pub fn serving(listening: Arc<Listening>) -> Serve {
    let server = Arc::new(server(listening.config.limits.head_bytes_max));
    let closings = Closings::new(&listening.config, super::door::fence_keys(&listening));
    let closings = Arc::new(closings);
    Box::new(move |visit| {
        let (listening, closings) = (Arc::clone(&listening), Arc::clone(&closings));
        let door = Arc::new(Door::new(listening, closings, visit.client));
        Box::pin(serve(visit, Arc::clone(&server), door))
    })
}

fn server(head_bytes_max: usize) -> Builder<TokioExecutor> {
    let mut server = Builder::new(TokioExecutor::new());
    server
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWER_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX);
    server
}

async fn serve(visit: Visit, server: Arc<Builder<TokioExecutor>>, door: Arc<Door>) {
    let Visit {
        stream,
        mut shutdown,
        alive: _alive,
        ..
    } = visit;
    let service = service_fn(move |request| {
        let door = Arc::clone(&door);
        async move { Ok::<_, Infallible>(door.serve(request).await) }
    });
    let stream = Connection::new(stream, BEGIN_MAX);
    let connection = server.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = ending(&mut shutdown) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a client's connection ended with an error");
    }
}
