//! The gRPC service of the proxy's admin port: `Tail`. `Query` waits for an index.
//!
//! The state of a tail lives in its stream: a client that goes away ends it, and nothing is left
//! running.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use futures::stream::{self, Empty};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tonic::{Request, Response, Status};

use super::tail::Tail;
use super::writer::AuditWriter;
use crate::proto::audit_service_server::{AuditService, AuditServiceServer};
use crate::proto::{QueryRequest, QueryResponse, TailRequest, TailResponse};

/// Tails that are served at the same time.
pub const TAILS_MAX: usize = 32;

/// The audit service over one writer's files.
pub struct Service {
    writer: AuditWriter,
    tails: Arc<Semaphore>,
}

impl Service {
    /// The service as tonic routes it.
    pub fn server(writer: AuditWriter) -> AuditServiceServer<Service> {
        let tails = Arc::new(Semaphore::new(TAILS_MAX));
        AuditServiceServer::new(Service { writer, tails })
    }
}

#[tonic::async_trait]
impl AuditService for Service {
    type QueryStream = Empty<Result<QueryResponse, Status>>;
    type TailStream = Pin<Box<dyn Stream<Item = Result<TailResponse, Status>> + Send>>;

    async fn query(
        &self,
        _request: Request<QueryRequest>,
    ) -> Result<Response<Self::QueryStream>, Status> {
        Err(Status::unimplemented(
            "audit queries are not served yet; use Tail",
        ))
    }

    async fn tail(
        &self,
        request: Request<TailRequest>,
    ) -> Result<Response<Self::TailStream>, Status> {
        let TailRequest { backlog, follow } = request.into_inner();
        let slot = self.tails.clone().try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!("{TAILS_MAX} audit tails are served already"))
        })?;
        let dir = self.writer.dir().to_owned();
        let batches = self.writer.batches();
        let backlog = usize::try_from(backlog).unwrap_or(usize::MAX);
        let tail = blocking(move || Tail::open(&dir, backlog)).await?;
        let following = Following {
            tail: Some(tail),
            lines: VecDeque::new(),
            batches,
            follow,
            _slot: slot,
        };
        Ok(Response::new(Box::pin(stream::try_unfold(
            following,
            Following::next,
        ))))
    }
}

/// A tail on its way to one client.
struct Following {
    /// None only while a blocking thread reads.
    tail: Option<Tail>,
    lines: VecDeque<String>,
    batches: watch::Receiver<u64>,
    follow: bool,
    _slot: OwnedSemaphorePermit,
}

impl Following {
    async fn next(mut self) -> Result<Option<(TailResponse, Following)>, Status> {
        loop {
            if let Some(json) = self.lines.pop_front() {
                return Ok(Some((TailResponse { json }, self)));
            }
            // Marked as seen before the read, so that a batch during the read wakes us after it.
            self.batches.mark_unchanged();
            self.read().await?;
            if !self.lines.is_empty() {
                continue;
            }
            if !self.follow {
                return Ok(None);
            }
            if self.batches.changed().await.is_err() {
                // The writer has ended; what it wrote last may still be unread.
                self.follow = false;
            }
        }
    }

    async fn read(&mut self) -> Result<(), Status> {
        let mut tail = self
            .tail
            .take()
            .ok_or_else(|| Status::internal("audit tail is gone"))?;
        let (tail, lines) = blocking(move || tail.read().map(|lines| (tail, lines))).await?;
        self.tail = Some(tail);
        self.lines.extend(lines);
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(read).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            tracing::warn!(%error, "audit files can't be read");
            Err(Status::internal(
                "audit files can't be read; the log of the proxy says why",
            ))
        }
        Err(_) => Err(Status::internal("reading audit files was cut off")),
    }
}

#[cfg(test)]
mod tests;
