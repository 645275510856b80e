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
use crate::lockd::proxies::Proxy;
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

/// The service over a lockd's core.
pub(super) struct Registry {
    core: Arc<Core>,
    /// Registrations through this lockd, one at a time: each reads what is known before it writes.
    turn: tokio::sync::Mutex<()>,
}

impl Registry {
    pub(super) fn new(core: Arc<Core>) -> Registry {
        Registry {
            core,
            turn: tokio::sync::Mutex::default(),
        }
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
        let request = request.into_inner();
        input::instance(&request.instance)?;
        input::store_id(&request.store_id)?;
        input::admin_address(&request.admin)?;
        let mut proxy = Proxy {
            replaced: false,
            patterns: input::patterns(&request.patterns)?,
            instance: request.instance,
            store_id: request.store_id,
            admin: request.admin,
        };
        let _turn = self.turn.lock().await;
        let registered = self.core.proxies.read().await.map_err(Error::Store)?;
        let before = registered
            .iter()
            .find(|other| other.instance == proxy.instance);
        let known = match before {
            None => Known::New,
            Some(before) if before.store_id == proxy.store_id && !before.replaced => Known::Same,
            Some(_) => Known::StoreLost,
        };
        proxy.replaced = known == Known::StoreLost;
        if before.is_none() {
            let others = registered
                .iter()
                .map(|other| other.instance.len() + 3)
                .sum::<usize>();
            if others + proxy.instance.len() + 3 > NAMES_BYTES_MAX {
                let error = Error::TooMany {
                    what: "bytes of proxies' names",
                    max: NAMES_BYTES_MAX,
                };
                return Err(error.into());
            }
        }
        if before != Some(&proxy) {
            self.core.proxies.put(&proxy).await.map_err(Error::Store)?;
            tracing::info!(
                instance = proxy.instance,
                admin = proxy.admin,
                known = known.as_str_name(),
                "proxy registered"
            );
        }
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
        // The living grant must pass; without one everything granted before is at or below the
        // latest token, and every later one above it.
        let floor = view
            .entries
            .first()
            .map_or(view.latest, |holder| holder.token);
        Ok(Response::new(FloorResponse { floor: floor.get() }))
    }
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
