//! The lock service's endpoints and the fail-over between them.
//!
//! Every endpoint serves the same locks and sessions (lockd keeps nothing that its store does not),
//! so any call may go to any of them. One is current for the whole client; whoever sees it fail
//! moves all to the next.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::proto::lock_service_client::LockServiceClient;

use super::backoff::Backoff;
use super::error::{ClientError, Fault, describe, fault, is_made_here};

/// Time to set up a connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// A silent connection is probed this often (RFC 9113 6.7, PING), also while a call waits on it: a
/// service that is stopped, or behind a dead link, is found by this and by nothing else.
const PING_EVERY: Duration = Duration::from_secs(2);
/// An unanswered probe ends the connection after this time.
const PING_ANSWER_MAX: Duration = Duration::from_secs(2);
/// Longest wait for the answer to a call that does not block by design.
pub(super) const CALL_MAX: Duration = Duration::from_secs(3);
/// Most endpoints of one client.
const ENDPOINTS_MAX: usize = 16;

/// The stub of one endpoint.
pub(super) type Stub = LockServiceClient<Channel>;

#[derive(Debug)]
pub(super) struct Endpoints {
    names: Vec<String>,
    stubs: Vec<Stub>,
    current: AtomicUsize,
}

impl Endpoints {
    /// Parses the addresses; nothing is connected yet.
    pub(super) fn new(addresses: &[String]) -> Result<Endpoints, ClientError> {
        let invalid = |endpoint: &str, reason: String| ClientError::InvalidEndpoint {
            endpoint: endpoint.chars().take(256).collect(),
            reason,
        };
        if addresses.is_empty() || addresses.len() > ENDPOINTS_MAX {
            let reason = format!("1 to {ENDPOINTS_MAX} addresses are needed");
            return Err(invalid(&addresses.join(","), reason));
        }
        let mut stubs = Vec::with_capacity(addresses.len());
        for address in addresses {
            let endpoint = Endpoint::from_shared(address.clone())
                .map_err(|error| invalid(address, error.to_string()))?;
            if endpoint.uri().scheme_str() != Some("http") || endpoint.uri().host().is_none() {
                return Err(invalid(address, "http://host:port is one".to_owned()));
            }
            let channel = endpoint
                .connect_timeout(CONNECT_MAX)
                .http2_keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(PING_ANSWER_MAX)
                .keep_alive_while_idle(true)
                .tcp_nodelay(true)
                .connect_lazy();
            stubs.push(LockServiceClient::new(channel));
        }
        Ok(Endpoints {
            names: addresses.to_vec(),
            stubs,
            current: AtomicUsize::new(0),
        })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.stubs.len()
    }

    /// The current endpoint, and its number for [`Endpoints::failed`].
    pub(super) fn current(&self) -> (usize, Stub) {
        // Relaxed: a hint only; any endpoint can serve any call.
        let at = self.current.load(Ordering::Relaxed);
        (at, self.stubs[at].clone())
    }

    /// Moves on from this endpoint, unless another call has done so already.
    pub(super) fn failed(&self, at: usize) {
        let next = (at + 1) % self.stubs.len();
        let _ = self
            .current
            .compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// All of them failed; why the last one did. `None`: it did not answer in time.
    pub(super) fn unavailable(&self, status: Option<&Status>) -> ClientError {
        let endpoints = self.names.join(", ");
        let Some(status) = status else {
            let reason = "no answer in time".to_owned();
            return ClientError::Unavailable { endpoints, reason };
        };
        let reason = describe(status);
        if is_made_here(status) {
            ClientError::Unavailable { endpoints, reason }
        } else {
            ClientError::CannotServe { endpoints, reason }
        }
    }

    /// Makes a call that may be repeated at will, on one endpoint after the other, with pauses
    /// between rounds, until one answers or `patience` is over. Each is tried once at least.
    pub(super) async fn call<T, F>(
        &self,
        patience: Duration,
        mut call: impl FnMut(Stub) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let until = tokio::time::Instant::now() + patience;
        let mut backoff = Backoff::new();
        let mut tried = 0;
        loop {
            let (at, stub) = self.current();
            let failed = match tokio::time::timeout(CALL_MAX, call(stub)).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) if fault(&status) == Fault::Answer => {
                    return Err(ClientError::refused(&status));
                }
                Ok(Err(status)) => Some(status),
                Err(_) => None,
            };
            self.failed(at);
            tried += 1;
            let pause = backoff.pause();
            if tried >= self.len() && tokio::time::Instant::now() + pause >= until {
                return Err(self.unavailable(failed.as_ref()));
            }
            if tried % self.len() == 0 {
                tokio::time::sleep(pause).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_are_checked_before_anything_is_sent() {
        let new = |text: &[&str]| {
            Endpoints::new(
                &text
                    .iter()
                    .map(|text| (*text).to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert!(new(&["http://127.0.0.1:7420", "http://lockd-2:7420"]).is_ok());
        for bad in [
            "",
            "127.0.0.1:7420",
            "ftp://x",
            "http://",
            "http://a b",
            "https://x:1",
        ] {
            let refused = new(&[bad]);
            assert!(
                matches!(refused, Err(ClientError::InvalidEndpoint { .. })),
                "{bad:?}"
            );
        }
        assert!(new(&[]).is_err());
    }

    #[tokio::test]
    async fn whoever_sees_a_failure_moves_all_once() {
        let all = ["http://a:1", "http://b:1", "http://c:1"].map(str::to_owned);
        let endpoints = Endpoints::new(&all).unwrap();
        endpoints.failed(0);
        endpoints.failed(0);
        assert_eq!(endpoints.current().0, 1);
        endpoints.failed(1);
        endpoints.failed(2);
        assert_eq!(endpoints.current().0, 0);
    }
}
