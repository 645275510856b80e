//! Sealing a grant through every proxy of its lock, and closing the fence behind one.
//!
//! CONTRACT.md, "Seal through every proxy": the grant is durable and first; the order goes to all
//! registered proxies; a linearizable read shows that the grant is still alive and first; only
//! then is its ticket issued. The set of proxies is read after the grant.
//!
//! A seal is idempotent at the proxies, so a repeated Acquire, here or through another lockd,
//! joins what is running there by asking again; whichever call wrote the entry last owns its
//! removal.
//!
//! Two grants never share a token, also where the store was restored from a copy that has forgotten
//! grants: their seals raised the watermarks of the proxies. So it has to be a seal of the grant
//! itself that raises: each order names its grant, and a proxy keeps beside the watermark whose
//! order raised it. Where the watermark was at the token already and that was another one, or a
//! write came before any order, the counter is lifted above it and the grant begins again with a
//! new token, and behind those that wait, as where it was higher.

use std::time::Duration;

use tokio::time::Instant;

use crate::lock_name::LockName;
use crate::lockd::Core;
use crate::lockd::fence::{Answer, highest_seen};
use crate::lockd::place::Place;
use crate::lockd::proxies::Proxy;
use crate::store::{Remove, StoreError};
use crate::telemetry;
use crate::ticket::{Action, Order, SealScope};
use crate::token::Token;

/// First pause before a failed seal is tried again; it doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The highest watermark of a proxy that the store's counter follows. Above it the rest of the
/// token space is small: such a watermark is poisoned, and an operator has to lower it.
const RAISE_TO_MAX: u64 = 1 << 62;

/// Why a grant is not sealed.
pub(super) enum Unsealed {
    /// The grant has ended, or is not the first.
    Dead,
    /// The grant is alive and first, but a proxy has seen a higher token, or this one from another
    /// grant: the store's counter must be lifted above it.
    Behind {
        /// The highest token that a proxy has seen.
        above: Token,
    },
    /// Required proxies did not seal in time.
    Failed {
        /// Each proxy that failed, and how.
        causes: String,
    },
    /// The store failed during the check.
    Store(StoreError),
    /// This lockd is shutting down.
    Stopping,
}

impl From<StoreError> for Unsealed {
    fn from(error: StoreError) -> Unsealed {
        Unsealed::Store(error)
    }
}

/// Seals the grant at `place`, trying again until `deadline` while a required proxy is down: the
/// grant keeps its place meanwhile, so that those behind it are not tried one by one.
pub(super) async fn seal_grant(
    core: &Core,
    place: &Place,
    deadline: Instant,
) -> Result<SealScope, Unsealed> {
    let mut pause = PAUSE_MIN;
    loop {
        let causes = match seal_once(core, place, pause == PAUSE_MIN).await? {
            Round::Sealed(scope) => return Ok(scope),
            Round::Failed { causes } => causes,
        };
        if Instant::now() + pause >= deadline {
            return Err(Unsealed::Failed { causes });
        }
        tracing::warn!(lock = %place.lock(), token = %place.token(), causes, "seal failed");
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = core.stopping.cancelled() => return Err(Unsealed::Stopping),
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

enum Round {
    Sealed(SealScope),
    Failed { causes: String },
}

async fn seal_once(core: &Core, place: &Place, is_first_round: bool) -> Result<Round, Unsealed> {
    let registered = match place.covers_since().filter(|_| is_first_round) {
        Some(version) => core.proxies.read_since(version).await?,
        // Again in each round: an operator may have taken a dead proxy out of the set.
        None => core.proxies.read().await?,
    };
    let proxies: Vec<&Proxy> = registered
        .iter()
        .filter(|p| p.guards(place.lock()))
        .collect();
    if proxies.is_empty() {
        return Ok(Round::Sealed(SealScope::Required(Vec::new())));
    }
    if place.is_early() {
        // A proxy has just come to guard the lock. The check below needs the grant to be the first
        // in the store.
        let causes = "the release before it is not written yet".to_owned();
        return Ok(Round::Failed { causes });
    }
    let started = Instant::now();
    let order = Order {
        action: Action::Seal,
        lock: place.lock().clone(),
        token: place.token(),
        grant: place.grant(),
    };
    let keys = core.keys.current().clone();
    let timeout = core.settings.seal_timeout;
    let answers = core
        .fences
        .order(&proxies, &order, &keys.signing, timeout)
        .await;
    metrics::histogram!(telemetry::SEAL_SECONDS).record(started.elapsed().as_secs_f64());

    // The read that decides: whatever the proxies said, only a grant that is alive and first now
    // gets a ticket.
    if !is_alive_and_first(core, place).await? {
        return Err(Unsealed::Dead);
    }
    let mut sealed = Vec::new();
    let mut causes = Vec::new();
    for (proxy, answer) in proxies.iter().zip(answers) {
        match answer {
            // The token was another one's, granted by a store that this one has forgotten.
            Answer::Done { was_there: true } => {
                let above = place.token();
                return Err(Unsealed::Behind { above });
            }
            Answer::Done { was_there: false } => sealed.push(proxy.instance.clone()),
            Answer::NotSent(cause) | Answer::Failed(cause) => {
                causes.push(format!("{}: {cause}", proxy.instance))
            }
            Answer::Stale => match behind(core, proxy, place).await {
                Ok(above) => return Err(Unsealed::Behind { above }),
                Err(cause) => causes.push(format!("{}: {cause}", proxy.instance)),
            },
        }
    }
    if core.settings.is_best_effort(place.lock()) {
        return Ok(Round::Sealed(SealScope::BestEffort(sealed)));
    }
    if causes.is_empty() {
        return Ok(Round::Sealed(SealScope::Required(sealed)));
    }
    Ok(Round::Failed {
        causes: causes.join("; "),
    })
}

async fn is_alive_and_first(core: &Core, place: &Place) -> Result<bool, StoreError> {
    let view = core.store.queue(place.lock()).await?;
    let first = view.entries.first();
    Ok(first.is_some_and(|first| first.token == place.token() && first.session == place.session()))
}

/// How far the store's counter has to be lifted for a proxy that calls a living grant stale.
async fn behind(core: &Core, proxy: &Proxy, place: &Place) -> Result<Token, String> {
    let timeout = core.settings.seal_timeout;
    let (floor, watermark) = core.fences.watermark(proxy, place.lock(), timeout).await?;
    match highest_seen(floor, watermark) {
        Some(seen) if seen.get() > RAISE_TO_MAX => Err(format!(
            "its watermark {watermark} is poisoned: that proxy has to be started with an empty data_dir"
        )),
        Some(seen) if seen >= place.token() => Ok(seen),
        _ => Err(format!(
            "refuses {} at a watermark of {watermark}",
            place.token()
        )),
    }
}

/// What became of a grant that was to be closed and removed.
pub(super) enum Ended {
    /// It held the lock; its fence is closed and its entry removed.
    Closed,
    /// Another one holds the lock, or nobody. Nothing was done.
    NotHolder {
        /// The holder's token.
        holder: Option<Token>,
    },
    /// The fence is not closed everywhere. The grant was not removed.
    NotClosed {
        /// Each proxy that failed, and how.
        causes: String,
    },
}

/// Closes the fence behind a grant at every proxy of its lock, then removes the grant.
///
/// The order is signed only for a token that a linearizable read shows as the holder's: a close
/// names a floor, and one above the living grant would shut out its holder.
pub(super) async fn close_grant(
    core: &Core,
    lock: &LockName,
    token: Token,
    mine: impl Fn(&crate::store::Entry) -> bool,
) -> Result<Ended, StoreError> {
    let view = core.store.queue(lock).await?;
    let holder = view.entries.first();
    let Some(entry) = holder.filter(|entry| entry.token == token && mine(entry)) else {
        return Ok(Ended::NotHolder {
            holder: holder.map(|entry| entry.token),
        });
    };
    let registered = core.proxies.read().await?;
    let proxies: Vec<&Proxy> = registered.iter().filter(|p| p.guards(lock)).collect();
    let order = Order {
        action: Action::Close,
        lock: lock.clone(),
        token,
        grant: String::new(),
    };
    let keys = core.keys.current().clone();
    let timeout = core.settings.seal_timeout;
    let answers = core
        .fences
        .order(&proxies, &order, &keys.signing, timeout)
        .await;
    let mut causes = Vec::new();
    for (proxy, answer) in proxies.iter().zip(answers) {
        match answer {
            Answer::Done { .. } => {}
            // Stale is as good as closed: the floor is above the token already.
            Answer::Stale => match core.fences.watermark(proxy, lock, timeout).await {
                Ok((floor, _)) if floor > token.get() => {}
                Ok((floor, _)) => {
                    causes.push(format!("{}: refuses at a floor of {floor}", proxy.instance));
                }
                Err(cause) => causes.push(format!("{}: {cause}", proxy.instance)),
            },
            Answer::NotSent(cause) | Answer::Failed(cause) => {
                causes.push(format!("{}: {cause}", proxy.instance));
            }
        }
    }
    if !causes.is_empty() && !core.settings.is_best_effort(lock) {
        return Ok(Ended::NotClosed {
            causes: causes.join("; "),
        });
    }
    let remove = Remove {
        lock: lock.clone(),
        session: entry.session,
        token,
        only_version: None,
    };
    core.remove(remove).await?;
    Ok(Ended::Closed)
}
