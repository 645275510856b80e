//! Stage 0, accept: a client of an `http` or `s3` listener, with the core's pool of connections to
//! its backend.

use std::sync::Arc;

use super::{Door, Listening, Session, client, http2};
use crate::proxy::accept::{Serve, Visit};
use crate::proxy::upstream::Pool;

/// Serves the clients of a listener on one core.
pub fn serving(listening: Arc<Listening>) -> Serve {
    let upstream = listening.config.upstream.clone();
    let pool = Pool::new(upstream, listening.config.limits.upstream_connect_timeout);
    Box::new(move |visit| {
        let (listening, pool) = (Arc::clone(&listening), Arc::clone(&pool));
        Box::pin(serve(visit, listening, pool))
    })
}

async fn serve(visit: Visit, listening: Arc<Listening>, pool: Arc<Pool>) {
    let door = Door {
        listening,
        pool,
        client: visit.client,
        _alive: visit.alive,
        shutdown: visit.shutdown,
    };
    let session = Session::new(client::of_socket(visit.stream), door);
    if let Some(session) = session.run().await {
        http2::serve(session).await;
    }
}
