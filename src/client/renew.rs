//! Renewing a session over one bidirectional stream, through whichever endpoint answers.
//!
//! One renewal is under way at a time, so that an answer belongs to the renewal just sent. A stream
//! that ends, or an answer that is late, puts the lease in doubt and moves on to the next endpoint
//! at once; only the service's word or the deadline ends the session.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::clock::{Instant, boottime};
use crate::proto::{KeepAliveRequest, KeepAliveResponse};

use super::backoff::Backoff;
use super::lease::SessionState;
use super::session::Core;
use super::sleep::sleep_until;

/// Renewals per time to live.
const RENEWALS_PER_TTL: u32 = 3;
/// An answer later than this part of the time to live counts as none, so that several endpoints
/// can be asked within what is left.
const ANSWER_PART_OF_TTL: u32 = 6;
/// Shortest time that an answer is given.
const ANSWER_MIN: Duration = Duration::from_millis(50);

/// Why a stream was left.
enum Left {
    /// The session is over: no more renewals.
    Over,
    /// The endpoint failed; `answered` tells whether it had renewed before.
    Endpoint { answered: bool },
}

/// Renews until the session is lost.
pub(super) async fn keep_alive(core: Arc<Core>) {
    let mut backoff = Backoff::new();
    loop {
        let (at, mut stub) = core.endpoints.current();
        let (requests, queue) = mpsc::channel(1);
        let sent = boottime();
        // The channel is new and has room for one.
        let _ = requests.try_send(KeepAliveRequest {
            session: core.id.clone(),
        });
        let opening = stub.keep_alive(ReceiverStream::new(queue));
        let left = match tokio::time::timeout(answer_max(&core), opening).await {
            Ok(Ok(answers)) => renew_over(&core, sent, requests, answers.into_inner()).await,
            Ok(Err(_)) | Err(_) => Left::Endpoint { answered: false },
        };
        tracing::debug!(session = core.id, endpoint = at, "renewal stream ended");
        match left {
            Left::Over => return,
            Left::Endpoint { answered } => {
                if answered {
                    backoff = Backoff::new();
                }
                core.endpoints.failed(at);
            }
        }
        core.lease.send_modify(super::lease::Lease::doubt);
        if core.lost_now() {
            return;
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

async fn renew_over(
    core: &Core,
    mut sent: Instant,
    requests: mpsc::Sender<KeepAliveRequest>,
    mut answers: Streaming<KeepAliveResponse>,
) -> Left {
    let mut answered = false;
    loop {
        match tokio::time::timeout(answer_max(core), answers.message()).await {
            Ok(Ok(Some(answer))) if answer.session == core.id => {
                if !take(core, sent, &answer) {
                    return Left::Over;
                }
                answered = true;
            }
            Ok(Ok(_)) | Ok(Err(_)) | Err(_) => return Left::Endpoint { answered },
        }
        let next = sent + core.lease.borrow().ttl() / RENEWALS_PER_TTL;
        tokio::select! {
            () = sleep_until(next) => {}
            // Nothing was asked: only the end of the stream can come, and it is worth noticing now.
            _ = answers.message() => return Left::Endpoint { answered },
        }
        sent = boottime();
        let request = KeepAliveRequest {
            session: core.id.clone(),
        };
        if requests.try_send(request).is_err() {
            return Left::Endpoint { answered };
        }
    }
}

/// Takes an answer into the lease; false once the session is over.
fn take(core: &Core, sent: Instant, answer: &KeepAliveResponse) -> bool {
    core.lease.send_modify(|lease| match answer.ttl_ms {
        0 => lease.end(),
        ttl => lease.renewed(sent, Duration::from_millis(ttl), boottime()),
    });
    let (session, ttl_ms, sent_ms) = (&core.id, answer.ttl_ms, sent.as_millis());
    tracing::debug!(session, ttl_ms, sent_ms, "renewed");
    !core.lost_now()
}

fn answer_max(core: &Core) -> Duration {
    (core.lease.borrow().ttl() / ANSWER_PART_OF_TTL).max(ANSWER_MIN)
}

impl Core {
    fn lost_now(&self) -> bool {
        self.lease.borrow().state(boottime()) == SessionState::Lost
    }
}
