//! The floors that etcd itself keeps: raised before a token is admitted, whoever presents it and on
//! whichever listener.
//!
//! A floor is read and then replaced by a transaction that compares what was read, so that it never
//! falls, with any number of proxies at it. Invariants:
//! - a floor that is not there is made only by one who knows what it was: with lockd, the highest
//!   token granted is asked for each time; without, the gate's durable floor counts, and only while
//!   the `ready` key shows that this etcd has not lost its fence keys as a whole;
//! - a raise that has begun is carried out whether the one who asked still waits or not.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::identity::Identity;
use super::upstream::{Backend, Unary};
use crate::config::{ListenerConfig, Mode};
use crate::lock_name::{LockName, LockPattern};
use crate::protocol::Listener;
use crate::protocol::etcd::fence::{Fence, FenceKeys, Seen, value};
use crate::protocol::etcd::wire::{self, Malformed, put_bytes, put_number};
use crate::proxy::floors::NotRaised;
use crate::proxy::registry::Registry;

/// Most times that a floor is read again because another proxy changed it meanwhile.
const ROUNDS_MAX: usize = 16;
/// Longest time for one call to etcd, and for a connection.
const CALL_MAX: Duration = Duration::from_secs(3);
/// First and longest wait between attempts to write the `ready` key.
const READY_RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

pub(super) const TXN: &str = "/etcdserverpb.KV/Txn";

/// The floors in one etcd.
pub struct Floors {
    listener: String,
    patterns: Vec<LockPattern>,
    keys: FenceKeys,
    backend: Backend,
    /// Who we are there.
    identity: Identity,
    /// Who knows the floor of a lock that etcd has none of.
    registry: Option<Registry>,
    /// Carries the connection, whichever thread asks.
    runtime: Handle,
}

impl From<Malformed> for NotRaised {
    fn from(error: Malformed) -> NotRaised {
        tracing::warn!(%error, "etcd's answer about a floor cannot be read");
        NotRaised::Unavailable
    }
}

impl Floors {
    /// The floors of a listener before etcd that enforces. Called within a tokio runtime.
    pub fn of(listener: &ListenerConfig, registry: Option<Registry>) -> Option<Arc<Floors>> {
        let Listener::Etcd(rules) = &listener.rules else {
            return None;
        };
        let patterns = rules.lock_patterns();
        // Where nothing is enforced etcd is left as it is.
        if listener.mode == Mode::Observe || patterns.is_empty() {
            return None;
        }
        Some(Arc::new(Floors {
            listener: listener.name.clone(),
            patterns,
            keys: rules.keys.clone(),
            backend: Backend::new(
                listener.upstream.clone(),
                listener.limits.upstream_connect_timeout.min(CALL_MAX),
            ),
            identity: Identity::new(listener.backend_user.clone()),
            registry,
            runtime: Handle::current(),
        }))
    }

    /// Whether it keeps this lock's floor.
    pub fn guards(&self, lock: &LockName) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(lock))
    }

    /// Returns once the lock's floor is this one.
    pub async fn raise(
        self: &Arc<Floors>,
        lock: &LockName,
        floor: u64,
        unsigned: bool,
    ) -> Result<(), NotRaised> {
        let fence = Fence {
            lock: lock.clone(),
            floor,
            unsigned,
        };
        let me = Arc::clone(self);
        let raising = self.runtime.spawn(async move { me.raise_to(&fence).await });
        raising.await.unwrap_or(Err(NotRaised::Unavailable))
    }

    async fn raise_to(&self, wanted: &Fence) -> Result<(), NotRaised> {
        let key = self.keys.floor_key(&wanted.lock);
        for _ in 0..ROUNDS_MAX {
            let seen = self.read(&key).await?;
            match seen.floor {
                Seen::Damaged => return Err(NotRaised::Damaged),
                Seen::Floor { unsigned, .. } if unsigned != wanted.unsigned => {
                    return Err(NotRaised::OtherKind);
                }
                Seen::Floor { floor, .. } if floor > wanted.floor => {
                    return Err(NotRaised::Higher(floor));
                }
                Seen::Floor { floor, .. } if floor == wanted.floor => return Ok(()),
                Seen::Floor { .. } => {
                    // `Compare { EQUAL, MOD = 2, key, mod_revision }`.
                    let unchanged = compare(&key, 2, Some((6, seen.mod_revision)));
                    if self.put(&[unchanged], &key, &value(wanted)).await? {
                        return Ok(());
                    }
                }
                Seen::Missing => {
                    let lost = self.lost_floor(wanted).await?;
                    let made = Fence {
                        floor: lost.max(wanted.floor),
                        ..wanted.clone()
                    };
                    if self.make(&key, &made).await? && made.floor == wanted.floor {
                        return Ok(());
                    }
                }
            }
        }
        Err(NotRaised::Unavailable)
    }

    /// What lockd knows of a floor that etcd does not have. 0 where nobody is to be asked.
    async fn lost_floor(&self, wanted: &Fence) -> Result<u64, NotRaised> {
        match &self.registry {
            Some(registry) if !wanted.unsigned => {
                let floor = registry.floor(&wanted.lock).await;
                floor.map_err(|reason| {
                    tracing::warn!(lock = %wanted.lock, %reason, "a missing floor is not told");
                    NotRaised::Lost
                })
            }
            _ => Ok(0),
        }
    }

    /// Makes a floor that is not there. False: it is there now.
    async fn make(&self, key: &[u8], made: &Fence) -> Result<bool, NotRaised> {
        // `CREATE = 1`, which is 0 for what does not exist.
        let missing = compare(key, 1, None);
        if self.registry.is_some() && !made.unsigned {
            return self.put(&[missing], key, &value(made)).await;
        }
        // `Compare { NOT_EQUAL, CREATE = 1, ready }`: it exists.
        let ready_key = self.keys.ready_key();
        let mut ready = vec![];
        put_number(&mut ready, 1, 3);
        ready.extend(compare(&ready_key, 1, None));
        if self.put(&[missing, ready], key, &value(made)).await? {
            return Ok(true);
        }
        if self.read(&ready_key).await?.floor != Seen::Missing {
            return Ok(false);
        }
        tracing::error!(
            listener = self.listener,
            key = %String::from_utf8_lossy(&ready_key),
            "etcd has no fence keys: either it never had any, and the proxy is to be started with \
             --init, or it lost them; write this key once no older holder can be at work"
        );
        Err(NotRaised::Lost)
    }

    /// Writes the `ready` key, over and over until it is there: an operator has said that this etcd
    /// has no fence keys that could have been lost.
    pub async fn make_ready(self: Arc<Floors>) {
        let key = self.keys.ready_key();
        let mut pause = READY_RETRY.0;
        while self
            .put(&[compare(&key, 1, None)], &key, b"1")
            .await
            .is_err()
        {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(READY_RETRY.1);
        }
    }

    async fn read(&self, key: &[u8]) -> Result<Read, NotRaised> {
        let mut range = vec![];
        put_bytes(&mut range, 1, key);
        let response = self.call("/etcdserverpb.KV/Range", &range).await?;
        // `RangeResponse.kvs`, `KeyValue.mod_revision`.
        let kv = wire::bytes_of(&response, 2)?;
        Ok(Read {
            floor: Seen::of_range(&response)?,
            mod_revision: wire::number_of(kv, 3)?,
        })
    }

    /// `Txn { If compares; Then put }`: whether it was put.
    async fn put(&self, compares: &[Vec<u8>], key: &[u8], value: &[u8]) -> Result<bool, NotRaised> {
        let (mut put, mut op, mut txn) = (vec![], vec![], vec![]);
        put_bytes(&mut put, 1, key);
        put_bytes(&mut put, 2, value);
        put_bytes(&mut op, 2, &put);
        for compare in compares {
            put_bytes(&mut txn, 1, compare);
        }
        put_bytes(&mut txn, 2, &op);
        let response = self.call(TXN, &txn).await?;
        // `TxnResponse.succeeded`.
        Ok(wire::number_of(&response, 2)? != 0)
    }

    async fn call(&self, path: &str, message: &[u8]) -> Result<Vec<u8>, NotRaised> {
        let unavailable = |reason: &dyn std::fmt::Display| {
            tracing::warn!(listener = self.listener, %reason, "a floor cannot be had from etcd");
            NotRaised::Unavailable
        };
        // The second time with a new token: etcd's end, and every change of its users ends them.
        for is_last in [false, true] {
            let headers = self.identity.headers(&self.backend, CALL_MAX).await;
            let headers = headers.map_err(|reason| unavailable(&reason))?;
            let called = self.backend.call(path, headers, message, CALL_MAX);
            let unary: Unary = called.await.map_err(|error| unavailable(&error))?;
            match (unary.status(), &unary.message) {
                (Some(0), Some(message)) => return Ok(message.to_vec()),
                _ if is_last || !self.identity.forget() => {
                    return Err(unavailable(&unary.reason()));
                }
                _ => {}
            }
        }
        Err(NotRaised::Unavailable)
    }
}

/// A fence key as it was read.
struct Read {
    floor: Seen,
    mod_revision: u64,
}

/// A `Compare` for equality with a number, 0 where it is not given.
fn compare(key: &[u8], target: u64, number: Option<(u32, u64)>) -> Vec<u8> {
    let mut compare = vec![];
    put_number(&mut compare, 2, target);
    put_bytes(&mut compare, 3, key);
    match number {
        Some((field, number)) => put_number(&mut compare, field, number),
        // A oneof must be there even for 0: `create_revision`.
        None => compare.extend([5 << 3, 0]),
    }
    compare
}
