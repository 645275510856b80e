//! Orders to proxies: sends a signed order to the FenceService of each, all at once, and judges
//! the answers. What follows from them is decided in [`super::seal`].

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::Mutex;
use std::time::Duration;

use futures::future::join_all;
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::lock_name::LockName;
use crate::lockd::loopback;
use crate::lockd::proxies::Proxy;
use crate::lockd::registration::Presence;
use crate::proto::fence_service_client::FenceServiceClient;
use crate::proto::{CloseRequest, IdentityRequest, SealRequest, WatermarkRequest};
use crate::ticket::{Action, Order, SigningKey};
use crate::token::Token;

/// Longest time to connect to a proxy.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time until whoever answers there has said who it is.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(1);
/// How much earlier than the call itself the proxy is told to give up, so that its answer arrives.
const ANSWER_MARGIN: Duration = Duration::from_millis(50);
/// Most channels kept, one for each address.
const CHANNELS_MAX: usize = 1024;

/// What a proxy answered to an order.
pub(super) enum Answer {
    /// Done.
    Done {
        /// Of a seal: the watermark was at its token before, and not by a seal of its grant.
        was_there: bool,
    },
    /// Its floor is above the token.
    Stale,
    /// Nobody listens there: the order has not arrived. In words for operators.
    NotSent(String),
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
                    let done = done.then_some(reply.was_there);
                    (reply.instance, reply.process, done)
                })
            }
            Action::Close => {
                let request = CloseRequest { authority, wait_ms };
                let reply = client.close(request).await.map(tonic::Response::into_inner);
                reply.map(|reply| {
                    let done = reply.lock == order.lock.as_str() && reply.floor > order.token.get();
                    (reply.instance, reply.process, done.then_some(false))
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
        // It said that an order is stale, which is no answer of ours if it is a stranger.
        if (&reply.instance, &reply.process) != (&proxy.instance, &proxy.process) {
            return Err(format!(
                "at {} answers {:?} or another process of it",
                proxy.admin, reply.instance
            ));
        }
        Ok((reply.floor, reply.watermark))
    }

    /// Whether the process that is registered so still answers at its address.
    pub(super) async fn presence(&self, proxy: &Proxy) -> Presence {
        let found = self.look(proxy).await;
        let is_elsewhere = loopback::is_loopback(&proxy.admin)
            && (proxy.loopback_of.is_empty() || proxy.loopback_of != loopback::own_network());
        match found {
            // What is or is not at our own loopback address proves nothing of another machine's.
            Presence::Gone if is_elsewhere => {
                let cause = "a loopback address of another machine".to_owned();
                Presence::Unknown(cause)
            }
            found => found,
        }
    }

    async fn look(&self, proxy: &Proxy) -> Presence {
        let admin = &proxy.admin;
        let address = admin.trim_start_matches("http://").trim_end_matches('/');
        match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(_)) => {}
            // The machine is there and nothing listens. Of a name only the last of its addresses
            // would have been heard.
            Ok(Err(error))
                if error.kind() == std::io::ErrorKind::ConnectionRefused
                    && address.parse::<std::net::SocketAddr>().is_ok() =>
            {
                return Presence::Gone;
            }
            Ok(Err(error)) => return Presence::Unknown(error.to_string()),
            Err(_) => {
                return Presence::Unknown(format!(
                    "no connection within {} ms",
                    CONNECT_TIMEOUT.as_millis()
                ));
            }
        }
        let mut client = match self.channel(admin) {
            Ok(channel) => FenceServiceClient::new(channel),
            Err(error) => return Presence::Unknown(error),
        };
        let asking = client.identity(IdentityRequest {});
        match tokio::time::timeout(IDENTITY_TIMEOUT, asking).await {
            Ok(Ok(answer)) if answer.get_ref().process == proxy.process => Presence::Here,
            Ok(Ok(_)) => Presence::Gone,
            // It has no such call: one that told no process, or something in between that is no
            // proxy, which proves nothing of what is behind it.
            Ok(Err(status)) if status.code() == Code::Unimplemented && proxy.process.is_empty() => {
                Presence::Here
            }
            Ok(Err(status)) => Presence::Unknown(describe(&status)),
            Err(_) => Presence::Unknown(format!(
                "no answer within {} ms",
                IDENTITY_TIMEOUT.as_millis()
            )),
        }
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

fn judge(proxy: &Proxy, answered: Result<(String, String, Option<bool>), Status>) -> Answer {
    match answered {
        // Another proxy at this address would leave the registered one unsealed.
        Ok((instance, _, _)) if instance != proxy.instance => {
            Answer::Failed(format!("at {} answers {instance:?}", proxy.admin))
        }
        Ok((_, process, _)) if process != proxy.process => Answer::Failed(format!(
            "at {} answers a process that is not registered yet",
            proxy.admin
        )),
        Ok((_, _, Some(was_there))) => Answer::Done { was_there },
        Ok((_, _, None)) => Answer::Failed("answered for another lock or token".to_owned()),
        Err(status) if status.code() == Code::FailedPrecondition => Answer::Stale,
        Err(status) if was_not_sent(&status) => Answer::NotSent(describe(&status)),
        Err(status) => Answer::Failed(describe(&status)),
    }
}

/// Whether no connection came about.
fn was_not_sent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return error.kind() == std::io::ErrorKind::ConnectionRefused;
        }
        cause = error.source();
    }
    false
}

fn describe(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// The highest token that a proxy's floor and watermark refuse or have seen: the counter of the
/// store must be above it.
pub(super) fn highest_seen(floor: u64, watermark: u64) -> Option<Token> {
    Token::new(watermark.max(floor.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tonic::service::Routes;
    use tonic::transport::Server;
    use tonic::transport::server::TcpIncoming;

    use super::{Fences, loopback};
    use crate::lockd::proxies::Proxy;
    use crate::lockd::registration::Presence;

    fn proxy(address: SocketAddr, loopback_of: String) -> Proxy {
        Proxy {
            instance: "edge".to_owned(),
            store_id: "one".to_owned(),
            process: "a".to_owned(),
            replaced: false,
            missed: false,
            is_new: false,
            admin: format!("http://{address}"),
            loopback_of,
            patterns: vec![],
        }
    }

    fn is_unknown(presence: &Presence) -> bool {
        matches!(presence, Presence::Unknown(_))
    }

    #[tokio::test]
    async fn a_refused_connection_to_another_machines_loopback_address_proves_nothing() {
        let nowhere = ([127, 0, 0, 1], 1).into();
        let fences = Fences::default();
        let here = proxy(nowhere, loopback::own_network());
        assert_eq!(fences.presence(&here).await, Presence::Gone);
        for elsewhere in ["", "another machine"] {
            let there = proxy(nowhere, elsewhere.to_owned());
            let presence = fences.presence(&there).await;
            assert!(is_unknown(&presence), "{elsewhere:?}");
        }
    }

    #[tokio::test]
    async fn a_server_without_the_call_does_not_prove_that_a_process_is_gone() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_, health) = tonic_health::server::health_reporter();
        let serving = Server::builder()
            .add_routes(Routes::new(health))
            .serve_with_incoming(TcpIncoming::from(listener));
        tokio::spawn(serving);
        let proxy = proxy(address, loopback::own_network());
        let presence = Fences::default().presence(&proxy).await;
        assert!(is_unknown(&presence), "{presence:?}");
    }
}
