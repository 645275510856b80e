//! Floors that backends keep themselves, so that several proxies before one need share nothing
//! else: raised before a token is admitted, whoever presents it and on whichever listener, or
//! seals by it.

use std::sync::Arc;
use std::time::Duration;

use super::etcd;
#[cfg(feature = "postgres")]
use super::postgres::fence_store::FenceStore;
use super::redis::fence_keys::FenceKeys;
use crate::lock_name::LockName;
use crate::protocol::Refusal;
use crate::token::Token;

/// What a client is told to wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The floors of one backend. Cheap to clone.
#[derive(Clone)]
pub enum BackendFloors {
    /// Compared within etcd's own transactions.
    Etcd(Arc<etcd::Floors>),
    /// Sessions below them are ended in Redis.
    Redis(FenceKeys),
    /// Sessions below them are ended in Postgres.
    #[cfg(feature = "postgres")]
    Postgres(FenceStore),
}

impl BackendFloors {
    /// Whether it keeps this lock's floor.
    pub fn guards(&self, lock: &LockName) -> bool {
        match self {
            BackendFloors::Etcd(floors) => floors.guards(lock),
            BackendFloors::Redis(keys) => keys.guards(lock),
            #[cfg(feature = "postgres")]
            BackendFloors::Postgres(store) => store.guards(lock),
        }
    }

    /// Whether they are these.
    pub fn are(&self, keys: &FenceKeys) -> bool {
        match self {
            BackendFloors::Etcd(_) => false,
            #[cfg(feature = "postgres")]
            BackendFloors::Postgres(_) => false,
            BackendFloors::Redis(own) => own.are(keys),
        }
    }

    /// Returns once the lock's floor is this one, and nothing below it can be applied any more.
    pub async fn raise(
        &self,
        lock: &LockName,
        floor: u64,
        unsigned: bool,
    ) -> Result<(), NotRaised> {
        match self {
            BackendFloors::Etcd(floors) => floors.raise(lock, floor, unsigned).await,
            BackendFloors::Redis(keys) => keys.raise(lock, floor, unsigned).await,
            #[cfg(feature = "postgres")]
            BackendFloors::Postgres(store) => store.raise(lock, floor, unsigned).await,
        }
    }
}

/// Why a floor was not raised.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotRaised {
    /// It is higher already.
    Higher(u64),
    /// The lock's tokens are of the other kind there.
    OtherKind,
    /// The backend has no floor of this lock, and nobody tells what it was.
    Lost,
    /// The backend holds what no proxy wrote.
    Damaged,
    /// The backend cannot be reached, or does not take it.
    Unavailable,
}

impl NotRaised {
    /// What is told to the one who presented the token.
    pub fn refusal(self, lock: LockName, token: Token) -> Refusal {
        let refusal = match self {
            NotRaised::Higher(floor) => {
                return Refusal::stale(lock, token, Token::new(floor));
            }
            NotRaised::OtherKind => Refusal::invalid(
                "this lock's tokens are of the other kind: signed tickets and bare integers \
                 never meet",
            ),
            NotRaised::Lost => Refusal::busy(
                "the backend has lost the floor of this lock, and nobody tells what it was",
                RETRY_AFTER,
            ),
            NotRaised::Damaged => Refusal::busy(
                "the floor of this lock in the backend is damaged",
                RETRY_AFTER,
            ),
            NotRaised::Unavailable => Refusal::busy(
                "the backend does not take the lock's floor now",
                RETRY_AFTER,
            ),
        };
        refusal.for_lock(lock).with_token(token)
    }
}
