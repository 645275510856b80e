//! Orders to proxies: sends a signed order to the FenceService of each, all at once, and judges
//! the answers. What follows from them is decided in [`super::seal`].

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use futures::future::join_all;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::lock_name::LockName;
use crate::lockd::proxies::Proxy;
use crate::proto::fence_service_client::FenceServiceClient;
use crate::proto::{CloseRequest, SealRequest, WatermarkRequest};
use crate::ticket::{Action, Order, SigningKey};
use crate::token::Token;

/// Longest time to connect to a proxy.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How much earlier than the call itself the proxy is told to give up, so that its answer arrives.
const ANSWER_MARGIN: Duration = Duration::from_millis(50);
/// Most channels kept, one for each address.
const CHANNELS_MAX: usize = 1024;

/// What a proxy answered to an order.
pub(super) enum Answer {
    /// Done.
    Done,
    /// Its floor is above the token.
    Stale,
    /// Anything else, in words for operators.
    Failed(String),
}

/// Channels to proxies, one for each address.
#[derive(Default)]
pub(super) struct Fences {
    channels: Mutex<HashMap<String, Channel>>,
}

impl Fences {
    /// Sends the order to all of them at once. The answers are in the order of the proxies.
    pub(super) async fn order(
        &self,
        proxies: &[&Proxy],
        order: &Order,
        key: &SigningKey,
        timeout: Duration,
    ) -> Vec<Answer> {
        let authority = key.sign_order(order);
        let calls = proxies.iter().map(|proxy| async {
            let call = self.order_one(proxy, order, authority.clone(), timeout);
            match tokio::time::timeout(timeout, call).await {
                Ok(answer) => answer,
                Err(_) => Answer::Failed(format!("no answer within {} ms", timeout.as_millis())),
            }
        });
        join_all(calls).await
    }

    async fn order_one(
        &self,
        proxy: &Proxy,
        order: &Order,
        authority: String,
        timeout: Duration,
    ) -> Answer {
        let mut client = match self.channel(&proxy.admin) {
            Ok(channel) => FenceServiceClient::new(channel),
            Err(error) => return Answer::Failed(error),
        };
        let wait_ms = timeout.saturating_sub(ANSWER_MARGIN).as_millis() as u64;
        let answered = match order.action {
            Action::Seal => {
                let request = SealRequest { authority, wait_ms };
                let reply = client.seal(request).await.map(tonic::Response::into_inner);
                reply.map(|reply| {
                    let done =
                        reply.lock == order.lock.as_str() && reply.token == order.token.get();
                    (reply.instance, done)
                })
            }
            Action::Close => {
                let request = CloseRequest { authority, wait_ms };
                let reply = client.close(request).await.map(tonic::Response::into_inner);
                reply.map(|reply| {
                    let done = reply.lock == order.lock.as_str() && reply.floor > order.token.get();
                    (reply.instance, done)
                })
            }
        };
        judge(proxy, answered)
    }

    /// The lowest token that the proxy admits for the lock, and its watermark.
    pub(super) async fn watermark(
        &self,
        proxy: &Proxy,
        lock: &LockName,
        timeout: Duration,
    ) -> Result<(u64, u64), String> {
        let mut client = FenceServiceClient::new(self.channel(&proxy.admin)?);
        let request = WatermarkRequest {
            lock: lock.to_string(),
        };
        let reply = tokio::time::timeout(timeout, client.watermark(request))
            .await
            .map_err(|_| format!("no answer within {} ms", timeout.as_millis()))?
            .map_err(|status| describe(&status))?
            .into_inner();
        Ok((reply.floor, reply.watermark))
    }

    fn channel(&self, admin: &str) -> Result<Channel, String> {
        let mut channels = self.channels.lock().expect("no panic while it is held");
        if let Some(channel) = channels.get(admin) {
            return Ok(channel.clone());
        }
        if channels.len() >= CHANNELS_MAX {
            channels.clear();
        }
        let channel = Endpoint::from_shared(admin.to_owned())
            .map_err(|error| format!("address {admin:?}: {error}"))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .connect_lazy();
        channels.insert(admin.to_owned(), channel.clone());
        Ok(channel)
    }
}

fn judge(proxy: &Proxy, answered: Result<(String, bool), Status>) -> Answer {
    match answered {
        // Another proxy at this address would leave the registered one unsealed.
        Ok((instance, _)) if instance != proxy.instance => {
            Answer::Failed(format!("at {} answers {instance:?}", proxy.admin))
        }
        Ok((_, true)) => Answer::Done,
        Ok((_, false)) => Answer::Failed("answered for another lock or token".to_owned()),
        Err(status) if status.code() == Code::FailedPrecondition => Answer::Stale,
        Err(status) => Answer::Failed(describe(&status)),
    }
}

fn describe(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// The highest token that a proxy's floor and watermark refuse or have seen: the counter of the
/// store must be above it.
pub(super) fn highest_seen(floor: u64, watermark: u64) -> Option<Token> {
    Token::new(watermark.max(floor.saturating_sub(1)))
}
