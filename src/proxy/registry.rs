//! The link to lockd: registration, public keys, floors.
//!
//! One task registers this proxy again and again: lockd keeps registrations durably, but learns of
//! a moved admin port or of new patterns only so. Invariants:
//! - until lockd has answered, no ticket verifies and no floor is known: nothing is admitted. What
//!   it says of a lost store, and that it has noted this process, is on disk before a ticket
//!   verifies;
//! - once lockd refuses this process, since another one has its name or it was taken out of the
//!   set, no ticket verifies any more: seals that follow do not reach it. For a process that was
//!   registered that is for good, whatever lockd says later: it may have missed seals, and lockd's
//!   store may be one that has forgotten that;
//! - a ring of keys is taken only whole: an answer with a key that does not parse changes nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::ring::{RingSource, RingView};
use super::watermarks::{Start, Watermarks, What};
use crate::lock_name::LockName;
use crate::proto::register_response::Known;
use crate::proto::registry_service_client::RegistryServiceClient;
use crate::proto::{FloorRequest, PublicKey, RegisterRequest};
use crate::ticket::{KeyRing, VerifyingKey};

/// How often the proxy registers again, which also brings new keys.
const REFRESH_EVERY: Duration = Duration::from_secs(10);
/// Unknown key ids bring the next refresh forward, but not more often than this.
const REFRESH_AT_MOST_EVERY: Duration = Duration::from_millis(500);
/// First and longest wait between attempts that fail.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How long one call may take.
const CALL_MAX: Duration = Duration::from_secs(5);

/// What lockd says about this proxy's store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Not answered yet.
    Pending,
    /// This instance was not known: no store of it can have been lost.
    New,
    /// The store that it knows.
    Same,
    /// That store, now for locks that it was not registered for before: what was sealed since may
    /// not be in it.
    SealsMissed,
    /// It knew the instance with another store, or with a process that this one does not know, or
    /// it does not know a store that holds floors: what was sealed since may not be in it.
    StoreLost,
}

/// The handle. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    client: RegistryServiceClient<Channel>,
    shared: Arc<Shared>,
}

struct Shared {
    registration: RegisterRequest,
    /// The store holds floors from before this process.
    has_floors: bool,
    /// See [`Start::unclean`].
    unclean: bool,
    watermarks: Watermarks,
    /// An answer was taken, and what it said of the store is on disk.
    registered: AtomicBool,
    taken_at: OnceLock<Instant>,
    /// Why lockd refuses this process.
    refusal: Mutex<Option<String>>,
    ring: RingSource,
    standing: watch::Sender<Standing>,
    /// Refreshes that ended, well or not.
    rounds: watch::Sender<u64>,
    /// See [`Registry::ended`].
    ended: watch::Sender<bool>,
    wanted: Notify,
}

/// An address of lockd that is no URL.
#[derive(Debug, thiserror::Error)]
#[error("not the address of a lock service: {url:?}: {reason}")]
pub struct InvalidLockd {
    url: String,
    reason: String,
}

impl Registry {
    /// A link that connects when it is used. Called within a tokio runtime, which then carries it.
    pub fn new(
        lockd: &str,
        registration: RegisterRequest,
        start: &Start,
        watermarks: &Watermarks,
    ) -> Result<Registry, InvalidLockd> {
        let endpoint = Endpoint::from_shared(lockd.to_owned()).map_err(|error| InvalidLockd {
            url: lockd.to_owned(),
            reason: error.to_string(),
        })?;
        let endpoint = endpoint
            .connect_timeout(CALL_MAX)
            .timeout(CALL_MAX)
            .http2_keep_alive_interval(Duration::from_secs(5))
            .keep_alive_while_idle(true);
        Ok(Registry {
            client: RegistryServiceClient::new(endpoint.connect_lazy()),
            shared: Arc::new(Shared {
                registration,
                has_floors: start.has_floors,
                unclean: start.unclean,
                watermarks: watermarks.clone(),
                registered: AtomicBool::new(false),
                taken_at: OnceLock::new(),
                refusal: Mutex::default(),
                ring: RingSource::default(),
                standing: watch::Sender::new(Standing::Pending),
                rounds: watch::Sender::new(0),
                ended: watch::Sender::new(false),
                wanted: Notify::new(),
            }),
        })
    }

    /// The keys, now and later.
    pub fn ring(&self) -> RingView {
        self.shared.ring.view()
    }

    /// What lockd says about this proxy's store.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.shared.standing.subscribe()
    }

    /// When lockd took this process in, if its store may lack what was admitted last: until then
    /// another process may have admitted writes, which are not in this store.
    pub fn taken_at(&self) -> Option<Instant> {
        self.shared.taken_at.get().copied()
    }

    /// Why lockd refuses this process, if it does.
    pub fn refusal(&self) -> Option<String> {
        self.shared.refusal().clone()
    }

    /// Returns once lockd refuses this process although it was registered: it never admits again.
    pub async fn ended(&self) {
        let mut ended = self.shared.ended.subscribe();
        // The sender lives as long as this handle.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// The floor of a lock that is not known here. An error says why lockd did not tell it.
    pub async fn floor(&self, lock: &LockName) -> Result<u64, String> {
        let request = FloorRequest {
            lock: lock.to_string(),
        };
        match self.client.clone().floor(request).await {
            Ok(answer) => Ok(answer.into_inner().floor),
            Err(status) => Err(describe(&status)),
        }
    }

    /// Asks for a refresh, and waits until one that began later has ended.
    pub async fn refresh(&self) {
        let mut rounds = self.shared.rounds.subscribe();
        // The round that runs now may have asked before the key was made; the one after it has not.
        for _ in 0..2 {
            self.shared.wanted.notify_one();
            if rounds.changed().await.is_err() {
                return;
            }
        }
    }

    /// Registers, and again. Runs until it is dropped.
    pub async fn run(self) {
        let mut backoff = BACKOFF.0;
        loop {
            let began = Instant::now();
            let pause = match self.register().await {
                Ok(()) => {
                    backoff = BACKOFF.0;
                    REFRESH_EVERY
                }
                Err(reason) => {
                    tracing::warn!(%reason, "registration with the lock service failed");
                    backoff = (backoff * 2).min(BACKOFF.1);
                    backoff
                }
            };
            self.shared.rounds.send_modify(|rounds| *rounds += 1);
            let wanted = self.shared.wanted.notified();
            // Whichever comes first, it registers again.
            let _ = tokio::time::timeout(pause, wanted).await;
            tokio::time::sleep_until(began + REFRESH_AT_MOST_EVERY.min(pause)).await;
        }
    }

    async fn register(&self) -> Result<(), String> {
        // Relaxed: only this task writes it.
        let registered = self.shared.registered.load(Ordering::Relaxed);
        if *self.shared.ended.borrow() {
            return Err(self.refusal().unwrap_or_default());
        }
        let request = RegisterRequest {
            registered,
            ..self.shared.registration.clone()
        };
        let answer = match self.client.clone().register(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => {
                if status.code() == Code::FailedPrecondition {
                    self.stop_admitting(status.message());
                }
                return Err(describe(&status));
            }
        };
        let keys = parse_keys(&answer.keys)?;
        match answer.known() {
            Known::Unspecified => return Err("the answer does not say what is known".to_owned()),
            // An older lockd, which would have refused otherwise.
            Known::New if registered => {
                let reason = "it was taken out of the set while this process ran; start it again";
                self.stop_admitting(reason);
                return Err(reason.to_owned());
            }
            known if !registered => self.take_standing(known).await?,
            _ => {}
        }
        *self.shared.refusal() = None;
        // Last: while no key is known nothing is admitted, so nothing is before the standing is.
        self.shared.ring.set(Some(KeyRing::new(keys)));
        Ok(())
    }

    /// The first answer: what it says of the store counts for this run.
    async fn take_standing(&self, known: Known) -> Result<(), String> {
        let standing = match known {
            // It may have been sealed past while it was not in the set.
            Known::New if self.shared.has_floors => Standing::StoreLost,
            Known::New => Standing::New,
            Known::StoreLost => Standing::StoreLost,
            Known::SealsMissed => Standing::SealsMissed,
            Known::Same | Known::Unspecified => Standing::Same,
        };
        let lost = standing == Standing::StoreLost;
        if lost || self.shared.unclean {
            // The first answer counts, also if this is tried again: it was taken then.
            self.shared.taken_at.get_or_init(Instant::now);
        }
        if lost || standing == Standing::SealsMissed {
            self.make_durable(What::Doubted { lost }).await?;
        }
        // After the doubt: what is not noted is told again.
        let process = self.shared.registration.process.clone();
        self.make_durable(What::Noted { process }).await?;
        self.shared.standing.send_replace(standing);
        self.shared.registered.store(true, Ordering::Relaxed);
        // At once: lockd tells it to every process until one says that it has noted it.
        self.shared.wanted.notify_one();
        Ok(())
    }

    async fn make_durable(&self, what: What) -> Result<(), String> {
        let (sender, durable) = oneshot::channel();
        let done = |durable| {
            // Nobody waits any more: it is asked again.
            let _ = sender.send(durable);
        };
        self.shared.watermarks.submit(what, Box::new(done));
        match durable.await {
            Ok(true) => Ok(()),
            _ => Err("what the lock service says cannot be made durable".to_owned()),
        }
    }

    fn stop_admitting(&self, reason: &str) {
        *self.shared.refusal() = Some(reason.to_owned());
        self.shared.ring.set(None);
        if self.shared.registered.load(Ordering::Relaxed) {
            self.shared.ended.send_replace(true);
        }
    }
}

impl Shared {
    fn refusal(&self) -> MutexGuard<'_, Option<String>> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn describe(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

fn parse_keys(keys: &[PublicKey]) -> Result<Vec<VerifyingKey>, String> {
    if keys.is_empty() {
        return Err("the answer holds no key".to_owned());
    }
    let parse = |key: &PublicKey| match VerifyingKey::parse(&key.key) {
        // The id is derived from the key: one that names another key is a mix-up.
        Ok(parsed) if parsed.id() == key.id => Ok(parsed),
        Ok(_) => Err(format!("the key {:?} has another id", key.id)),
        Err(error) => Err(format!("the key {:?}: {error}", key.id)),
    };
    keys.iter().map(parse).collect()
}
