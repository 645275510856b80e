//! RegistryService: the set of proxies, the public keys, and the floors of locks that a proxy does
//! not know.

use std::net::SocketAddr;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::audit::Excerpt;
use crate::audit::acts::{Act, Acts};
use crate::clock;
use crate::lockd::Core;
use crate::lockd::input;
use crate::lockd::loopback;
use crate::lockd::proxies::Proxy;
use crate::lockd::registration::{Presence, Says, Verdict, decide};
use crate::lockd::status::Error;
use crate::proto::register_response::Known;
use crate::proto::registry_service_server::RegistryService;
use crate::proto::{
    FloorRequest, FloorResponse, KeysRequest, KeysResponse, ListProxiesRequest,
    ListProxiesResponse, PublicKey, RegisterRequest, RegisterResponse, UnregisterRequest,
    UnregisterResponse,
};

/// Bytes that the names of all proxies may take together, each with its quotes and comma: a ticket
/// lists those that its seal covered, and is at most [`crate::ticket::TICKET_BYTES_MAX`] long.
const NAMES_BYTES_MAX: usize = 1500;
/// How often a registration is tried anew while others change what is registered under its name.
const TRIES_MAX: usize = 4;

/// The service over a lockd's core.
pub(super) struct Registry {
    core: Arc<Core>,
    /// What is written through this lockd, one at a time: the room for names is shared.
    turn: tokio::sync::Mutex<()>,
}

impl Registry {
    pub(super) fn new(core: Arc<Core>) -> Registry {
        Registry {
            core,
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Registers it, if it may be.
    async fn take(&self, proxy: &Proxy, says: &Says) -> Result<Known, Error> {
        let mut looked: Option<(Proxy, Presence)> = None;
        for _ in 0..TRIES_MAX {
            let set = self.core.proxies.read().await?;
            let mut others = set.iter();
            let before = others.find(|other| other.instance == proxy.instance);
            // What was found holds for the process that was looked for.
            let presence = looked.as_ref().filter(|(of, _)| Some(of) == before);
            let presence = presence.map(|(_, presence)| presence);
            match decide(before, proxy.clone(), says, presence) {
                Verdict::Refused(error) => {
                    if says.registered && before.is_none() {
                        tracing::warn!(
                            instance = proxy.instance,
                            admin = proxy.admin,
                            "a proxy that is not in the set says that it was registered: it was \
                             taken out, or this store is an older one"
                        );
                    }
                    return Err(error);
                }
                Verdict::Ask => {
                    let Some(before) = before else { continue };
                    let presence = self.core.fences.presence(before).await;
                    looked = Some((before.clone(), presence));
                }
                Verdict::Taken(proxy, known) => {
                    if self.write(before, &proxy, known).await? {
                        return Ok(known);
                    }
                }
            }
        }
        Err(Error::Busy("the registration of this proxy keeps changing"))
    }

    /// `false`: it was changed meanwhile.
    async fn write(
        &self,
        before: Option<&Proxy>,
        proxy: &Proxy,
        known: Known,
    ) -> Result<bool, Error> {
        if before == Some(proxy) {
            return Ok(true);
        }
        let _turn = self.turn.lock().await;
        if before.is_none() {
            check_names(&self.core.proxies.read().await?, proxy)?;
        }
        let written = self.core.proxies.replace(before, proxy).await?;
        if written {
            tracing::info!(
                instance = proxy.instance,
                admin = proxy.admin,
                known = known.as_str_name(),
                "proxy registered"
            );
        }
        Ok(written)
    }

    /// Puts an operator's act on disk, before it is done.
    async fn record(
        &self,
        instance: &str,
        reason: &str,
        client: Option<SocketAddr>,
    ) -> Result<(), Error> {
        let act = Act {
            unix_ms: clock::unix_ms(),
            act: "unregister",
            subject: Excerpt::new(instance),
            reason: Excerpt::new(reason),
            client,
        };
        let acts = Acts::in_folder(&self.core.settings.audit_dir);
        tokio::task::spawn_blocking(move || acts.record(&act))
            .await
            .map_err(std::io::Error::other)
            .and_then(|recorded| recorded)
            .map_err(|error| Error::NotRecorded(error.to_string()))
    }
}

#[tonic::async_trait]
impl RegistryService for Registry {
    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        let (peer, local) = (request.remote_addr(), request.local_addr());
        let request = request.into_inner();
        input::instance(&request.instance)?;
        input::store_id(&request.store_id)?;
        input::admin_address(&request.admin)?;
        input::process(&request.process)?;
        input::after(&request.after)?;
        let is_loopback = loopback::is_loopback(&request.admin);
        let loopback_of = match is_loopback {
            true => loopback::own_network(),
            false => String::new(),
        };
        let proxy = Proxy {
            loopback_of,
            replaced: false,
            missed: false,
            is_new: false,
            patterns: input::patterns(&request.patterns)?,
            instance: request.instance,
            store_id: request.store_id,
            process: request.process,
            admin: request.admin,
        };
        if is_loopback && let Some(peer) = peer.filter(|peer| !is_own(peer, local)) {
            let error = Error::LoopbackAdmin {
                admin: proxy.admin,
                peer,
            };
            tracing::warn!(instance = proxy.instance, %error, "proxy not registered");
            return Err(error.into());
        }
        let says = Says {
            registered: request.registered,
            after: request.after,
        };
        let known = self.take(&proxy, &says).await.inspect_err(|error| {
            tracing::warn!(instance = proxy.instance, %error, "proxy not registered");
        })?;
        let keys = public_keys(&self.core);
        Ok(Response::new(RegisterResponse {
            known: known.into(),
            keys,
        }))
    }

    async fn list_proxies(
        &self,
        _: Request<ListProxiesRequest>,
    ) -> Result<Response<ListProxiesResponse>, Status> {
        let registered = self.core.proxies.read().await.map_err(Error::Store)?;
        let proxies = registered
            .iter()
            .map(|proxy| RegisterRequest {
                instance: proxy.instance.clone(),
                store_id: proxy.store_id.clone(),
                after: Vec::new(),
                process: proxy.process.clone(),
                registered: false,
                admin: proxy.admin.clone(),
                patterns: proxy
                    .patterns
                    .iter()
                    .map(|p| p.as_str().to_owned())
                    .collect(),
            })
            .collect();
        Ok(Response::new(ListProxiesResponse { proxies }))
    }

    async fn unregister(
        &self,
        request: Request<UnregisterRequest>,
    ) -> Result<Response<UnregisterResponse>, Status> {
        let client = request.remote_addr();
        let request = request.into_inner();
        input::instance(&request.instance)?;
        let reason = input::reason(request.reason)?;
        if !request.sessions_proven_dead {
            let error = Error::Refused(
                "a proxy is taken out only when its backend sessions are proven dead",
            );
            return Err(error.into());
        }
        let _turn = self.turn.lock().await;
        let registered = self.core.proxies.read().await.map_err(Error::Store)?;
        if !registered
            .iter()
            .any(|proxy| proxy.instance == request.instance)
        {
            return Err(Error::NoSuchProxy(request.instance).into());
        }
        self.record(&request.instance, &reason, client).await?;
        self.core
            .proxies
            .remove(&request.instance)
            .await
            .map_err(Error::Store)?;
        tracing::warn!(
            instance = request.instance,
            reason,
            "proxy unregistered by an operator"
        );
        Ok(Response::new(UnregisterResponse {}))
    }

    async fn keys(&self, _: Request<KeysRequest>) -> Result<Response<KeysResponse>, Status> {
        Ok(Response::new(KeysResponse {
            keys: public_keys(&self.core),
        }))
    }

    async fn floor(
        &self,
        request: Request<FloorRequest>,
    ) -> Result<Response<FloorResponse>, Status> {
        let lock = input::lock(&request.into_inner().lock)?;
        let view = self.core.store.queue(&lock).await.map_err(Error::Store)?;
        // The living grant must pass; without one everything granted before, which may have been
        // broken and closed, is at or below the latest token, and every later one above it.
        let holder = view.entries.first();
        let floor = holder.map_or(view.latest.get() + 1, |holder| holder.token.get());
        Ok(Response::new(FloorResponse { floor }))
    }
}

/// Whether a connection comes from this machine.
fn is_own(peer: &SocketAddr, local: Option<SocketAddr>) -> bool {
    let peer = peer.ip().to_canonical();
    peer.is_loopback() || local.is_some_and(|local| local.ip().to_canonical() == peer)
}

/// Whether a ticket has room for one more name.
fn check_names(registered: &[Proxy], proxy: &Proxy) -> Result<(), Error> {
    let names = registered.iter().map(|other| other.instance.len() + 3);
    if names.sum::<usize>() + proxy.instance.len() + 3 > NAMES_BYTES_MAX {
        return Err(Error::TooMany {
            what: "bytes of proxies' names",
            max: NAMES_BYTES_MAX,
        });
    }
    Ok(())
}

fn public_keys(core: &Core) -> Vec<PublicKey> {
    let keys = core.keys.current();
    keys.verifying()
        .map(|key| PublicKey {
            id: key.id().to_owned(),
            key: key.to_text(),
        })
        .collect()
}
