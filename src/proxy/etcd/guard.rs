//! Streams of reads that were opened under tickets: watches, and observers of elections.
//!
//! A lower token is refused on reads too, so a holder that was superseded must not read on as one.
//! Beside such a stream the proxy watches the floors of its tickets, over the client's own
//! connection and with its identity. The watch is there before the floors are compared for the last
//! time: a rise after that is seen, whoever caused it, a proxy that shares nothing with this one
//! among them. The client is told by the status that a stale call gets.
//!
//! What is left: etcd orders no watch after another one, so events of the moment in which a floor
//! rises may still be delivered before the end.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::{Body as _, Incoming};
use hyper::header::HeaderMap;
use tokio::time::Instant;

use super::Asked;
use super::body::ToEtcd;
use super::call::with_own_headers;
use super::door::{Door, record};
use super::frames::{Messages, frame, payload};
use crate::protocol::etcd::fence::{Fence, FenceKeys, Seen};
use crate::protocol::etcd::watch::{self, Told};
use crate::protocol::{Kind, Refusal};
use crate::proxy::session::Listening;
use crate::token::Token;

const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// Longest response about a floor, in bytes.
const RESPONSE_BYTES_MAX: usize = 1 << 20;
/// When a client may open its stream again where nothing better is known.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Watches the floors of one stream.
pub struct Guard {
    body: Incoming,
    messages: Messages,
    keys: FenceKeys,
    fences: Vec<Fence>,
    // For the audit.
    listening: Arc<Listening>,
    client: SocketAddr,
    asked: Asked,
}

impl Door {
    /// Watches these floors. They are to be compared once more before the stream is opened.
    pub(super) async fn guard(
        &self,
        headers: &HeaderMap,
        fences: Vec<Fence>,
        asked: &Asked,
        deadline: Instant,
    ) -> Result<Guard, Refusal> {
        let keys = self.rules().keys.clone();
        let mut messages = BytesMut::new();
        for fence in &fences {
            let create = watch::create(&keys.floor_key(&fence.lock));
            messages.extend_from_slice(&frame(&create));
        }
        let mut headers = with_own_headers(headers);
        // The client's deadline, if it has one, ends its own stream.
        headers.remove("grpc-timeout");
        let body = ToEtcd::Open(Some(messages.freeze()));
        let request: Request<ToEtcd> = self.backend.request(WATCH, headers, body);
        let opening = async {
            let sent = self.backend.send(request).await;
            let response = sent.map_err(|lost| self.lost(&lost, Kind::Read))?;
            let mut guard = Guard {
                body: response.into_body(),
                messages: Messages::new(RESPONSE_BYTES_MAX),
                keys,
                fences,
                listening: Arc::clone(&self.listening),
                client: self.client(),
                asked: asked.clone(),
            };
            guard.begin().await?;
            Ok(guard)
        };
        match tokio::time::timeout_at(deadline, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(unwatched("etcd does not answer in time")),
        }
    }
}

impl Guard {
    /// Waits until etcd watches every floor.
    async fn begin(&mut self) -> Result<(), Refusal> {
        let mut watched = 0;
        while watched < self.fences.len() {
            match self.next_told().map_err(|reason| unwatched(&reason))? {
                Some(Told::Created) => watched += 1,
                // A rise at this moment: the floors are compared afterwards.
                Some(Told::Floors(_)) => {}
                Some(Told::Cancelled(reason)) => return Err(unwatched(&reason)),
                None => match self.body.frame().await {
                    Some(Ok(frame)) => self.take(frame.data_ref()),
                    Some(Err(error)) => return Err(unwatched(&error)),
                    None => return Err(unwatched("etcd has ended it")),
                },
            }
        }
        Ok(())
    }

    fn take(&mut self, data: Option<&bytes::Bytes>) {
        if let Some(data) = data {
            self.messages.push(data);
        }
    }

    fn next_told(&mut self) -> Result<Option<Told>, String> {
        let message = self.messages.next().map_err(|error| error.to_string())?;
        let told = message.map(|framed| watch::told(&payload(framed), &self.keys));
        told.transpose().map_err(|error| error.to_string())
    }

    /// Ready once a token of the stream is not current any more, or that cannot be told.
    pub(super) fn poll_superseded(&mut self, cx: &mut Context<'_>) -> Poll<Refusal> {
        let refusal = loop {
            match self.next_told() {
                Ok(Some(Told::Floors(seen))) => match self.judge(&seen) {
                    Some(refusal) => break refusal,
                    None => continue,
                },
                Ok(Some(Told::Created)) => continue,
                Ok(Some(Told::Cancelled(reason))) | Err(reason) => break unwatched(&reason),
                Ok(None) => {}
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => self.take(frame.data_ref()),
                Some(Err(error)) => break unwatched(&error),
                None => break unwatched("etcd has ended it"),
            }
        };
        record(&self.listening, self.client, &refusal, &self.asked);
        Poll::Ready(refusal)
    }

    /// What floors became, by their keys.
    fn judge(&self, seen: &[(Vec<u8>, Seen)]) -> Option<Refusal> {
        for (key, seen) in seen {
            let of = |fence: &&Fence| self.keys.floor_key(&fence.lock) == *key;
            let Some(fence) = self.fences.iter().find(of) else {
                continue;
            };
            let token = Token::new(fence.floor)?;
            let refusal = match seen {
                Seen::Floor { floor, unsigned } if *unsigned == fence.unsigned => {
                    if *floor == fence.floor {
                        continue;
                    }
                    if *floor > fence.floor {
                        let lock = fence.lock.clone();
                        return Some(Refusal::stale(lock, token, Token::new(*floor)));
                    }
                    Refusal::busy("the floor of this lock in etcd fell", RETRY_AFTER)
                }
                Seen::Floor { .. } | Seen::Damaged => {
                    Refusal::busy("the floor of this lock in etcd is damaged", RETRY_AFTER)
                }
                Seen::Missing => Refusal::busy("etcd has lost the floor of this lock", RETRY_AFTER),
            };
            return Some(refusal.for_lock(fence.lock.clone()).with_token(token));
        }
        None
    }
}

/// The floors of a stream are not watched: whether its tickets are current is not known.
fn unwatched(reason: &(impl std::fmt::Display + ?Sized)) -> Refusal {
    tracing::warn!(%reason, "the floors of a stream are not watched");
    Refusal::busy(
        "etcd does not let the tickets' floors be watched",
        RETRY_AFTER,
    )
}
