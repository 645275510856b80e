//! Watching who holds a lock.

use std::sync::Arc;

use tonic::Streaming;

use crate::lock_name::LockName;
use crate::proto::{Grant, WatchLockRequest, WatchLockResponse};

use super::backoff::Backoff;
use super::endpoints::Endpoints;
use super::error::{ClientError, Fault, fault};

/// The holders of a lock, one after the other.
#[derive(Debug)]
pub struct HolderWatch {
    endpoints: Arc<Endpoints>,
    lock: LockName,
    backoff: Backoff,
    stream: Option<(usize, Streaming<WatchLockResponse>)>,
    told: Option<Option<u64>>,
    /// How often a stream was begun: what one endpoint told says nothing about the next one's
    /// answers, which may come from an older view.
    epoch: u64,
}

impl HolderWatch {
    pub(super) fn new(endpoints: Arc<Endpoints>, lock: LockName) -> HolderWatch {
        HolderWatch {
            endpoints,
            lock,
            backoff: Backoff::new(),
            stream: None,
            told: None,
            epoch: 0,
        }
    }

    /// The next holder; `Ok(None)` when nobody holds the lock. Tries for as long as it takes to
    /// reach an endpoint; an error is a refusal that would come again.
    ///
    /// The same holder is not told twice in a row. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Grant>, ClientError> {
        loop {
            let holder = self.message().await?;
            let token = holder.as_ref().map(|grant| grant.token);
            if self.told != Some(token) {
                self.told = Some(token);
                return Ok(holder);
            }
        }
    }

    /// Which stream the last answer of [`HolderWatch::message`] came from.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What the service says next about the holder, repetitions included. Cancel safe.
    pub(super) async fn message(&mut self) -> Result<Option<Grant>, ClientError> {
        loop {
            if self.stream.is_none() {
                let (at, mut stub) = self.endpoints.current();
                let request = WatchLockRequest {
                    lock: self.lock.to_string(),
                };
                match stub.watch_lock(request).await {
                    Ok(response) => {
                        self.epoch += 1;
                        self.stream = Some((at, response.into_inner()));
                    }
                    Err(status) => {
                        self.away(at, &status)?;
                        tokio::time::sleep(self.backoff.pause()).await;
                        continue;
                    }
                }
            }
            let Some((at, stream)) = &mut self.stream else {
                continue;
            };
            let at = *at;
            match stream.message().await {
                Ok(Some(message)) => {
                    self.backoff = Backoff::new();
                    return Ok(message.holder);
                }
                Ok(None) => {}
                Err(status) => self.away(at, &status)?,
            }
            self.stream = None;
            tokio::time::sleep(self.backoff.pause()).await;
        }
    }

    fn away(&self, at: usize, status: &tonic::Status) -> Result<(), ClientError> {
        match fault(status) {
            Fault::Endpoint => {
                self.endpoints.failed(at);
                Ok(())
            }
            // A service that ends a watch that fell behind says so; beginning again is right.
            Fault::Answer if is_transient(status.code()) => Ok(()),
            Fault::Answer => Err(ClientError::refused(status)),
        }
    }
}

fn is_transient(code: tonic::Code) -> bool {
    use tonic::Code;
    matches!(
        code,
        Code::Aborted | Code::Cancelled | Code::DataLoss | Code::ResourceExhausted
    )
}
