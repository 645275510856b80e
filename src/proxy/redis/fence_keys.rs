//! Watermarks in the Redis server itself, so that several proxies before one server keep the order
//! of tokens with nothing else shared (`watermarks.store = "backend"`).
//!
//! One hash, in a database of its own, holds for each lock the watermark and the sessions that
//! were let in under it, of all proxies. Before a session's first command under a token it is put
//! there by a script that, in one step of the server, refuses a lower token than the watermark,
//! raises it to a higher one, and tells which sessions have lower ones. These are killed, and
//! listed until they are gone, before the command passes. All is ordered by the server: a session
//! that was put there before a raise is killed by it; one that comes after it is refused.
//!
//! (Rather than by the name of the connection, which is the client's own, may be changed by it and
//! needs rights of its user.)
//!
//! Invariants:
//! - a hash that is not there, or not ready, admits nobody. Whoever finds it so sweeps: every
//!   client of the server is killed, since a session that was in a lost hash is in no list; only
//!   then is a new hash ready;
//! - a lock that is not in it is not at zero: its watermark is what lockd has granted, or what this
//!   proxy has on disk, which its gate has checked before.
//!
//! The proxy's own gates stand before it: they drain what is in flight here, and are durable. A
//! raise that no session asks for (a seal or a close from outside, a token on another listener)
//! goes through the same step without one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::Instant;

use super::control::{Control, ControlError, RunId, SessionId};
use crate::lock_name::{LockName, LockPattern};
use crate::protocol::Refusal;
use crate::proxy::floors::NotRaised;
use crate::proxy::gates::Claim;
use crate::proxy::registry::Registry;

/// The hash's key. All that begins like it, up to the colon, is reserved.
pub const KEY: &str = "ringfence:fence";
/// What clients may not name.
pub const RESERVED_PREFIX: &str = "ringfence:";

/// How long whoever finds the hash lost, or a session alive, waits before it looks again.
const AGAIN_AFTER: Duration = Duration::from_millis(5);
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Most sessions of one exchange with the server.
const BATCH_SESSIONS_MAX: usize = 256;

/// KEYS: the hash. ARGV: lock, token, run id, client id (none: only the watermark is raised),
/// watermark of a lock that is not there. Tokens have 19 digits, so that texts compare as numbers.
const HOLD: &str = r"
local key, lock, token, run, id = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if redis.call('HGET', key, 'state') ~= 'ready' then return {'lost'} end
local watermark = redis.call('HGET', key, 'w:' .. lock)
if not watermark then
  if ARGV[5] == '' then return {'unknown'} end
  watermark = ARGV[5]
end
if watermark > token then return {'stale', watermark} end
local kept, answer = {}, {'held'}
local sessions = redis.call('HGET', key, 's:' .. lock) or ''
for of, its, at in string.gmatch(sessions, '(%x+):(%d+):(%d+)') do
  if of == run and its ~= id then
    kept[#kept + 1] = of .. ':' .. its .. ':' .. at
    if at < token then answer[#answer + 1] = its end
  end
end
if id ~= '' then kept[#kept + 1] = run .. ':' .. id .. ':' .. token end
redis.call('HSET', key, 'w:' .. lock, token, 's:' .. lock, table.concat(kept, ' '))
return answer
";

/// KEYS: the hash. ARGV: lock, then client ids that are gone.
const FORGET: &str = r"
local sessions = redis.call('HGET', KEYS[1], 's:' .. ARGV[1])
if not sessions then return 0 end
local gone, kept = {}, {}
for i = 2, #ARGV do gone[ARGV[i]] = true end
for of, its, at in string.gmatch(sessions, '(%x+):(%d+):(%d+)') do
  if not gone[its] then kept[#kept + 1] = of .. ':' .. its .. ':' .. at end
end
if #kept == 0 then return redis.call('HDEL', KEYS[1], 's:' .. ARGV[1]) end
return redis.call('HSET', KEYS[1], 's:' .. ARGV[1], table.concat(kept, ' '))
";

/// KEYS: the hash. ARGV: the mark of this sweep, and what follows it.
const FINISH_SWEEP: &str = r"
if redis.call('HGET', KEYS[1], 'state') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[2])
return 1
";

/// The state of a hash that can be trusted.
const READY: &str = "ready";

/// The fence keys of one server. Cheap to clone.
#[derive(Clone)]
pub struct FenceKeys {
    shared: Arc<Shared>,
}

struct Shared {
    /// In the keys' own database.
    control: Control,
    /// Of the listener's rules.
    patterns: Vec<LockPattern>,
    registry: Option<Registry>,
    /// One sweep at a time.
    sweeping: AsyncMutex<()>,
    /// The hash was found ready, or made so, once in this run.
    begun: watch::Sender<bool>,
    /// Sessions that have ended, by lock.
    ended: Mutex<Vec<(LockName, u64)>>,
    wanted: Notify,
}

/// What is asked of the server.
struct Ask<'a> {
    lock: &'a LockName,
    token: u64,
    unsigned: bool,
    /// Who is let in; none: only the watermark is raised.
    session: Option<&'a SessionId>,
}

/// What the server says about it.
enum Held {
    Lost,
    Unknown,
    Stale(u64),
    /// The ids of sessions with lower tokens.
    In(Vec<u64>),
}

impl FenceKeys {
    /// Over a control connection to the keys' database, for a listener whose rules name these
    /// locks. `registry`: who knows what was granted.
    pub fn new(
        control: Control,
        patterns: Vec<LockPattern>,
        registry: Option<Registry>,
    ) -> FenceKeys {
        FenceKeys {
            shared: Arc::new(Shared {
                control,
                patterns,
                registry,
                sweeping: AsyncMutex::default(),
                begun: watch::Sender::new(false),
                ended: Mutex::default(),
                wanted: Notify::new(),
            }),
        }
    }

    /// Makes the hash if it is not there, and then forgets ended sessions. Runs until it is
    /// dropped.
    pub async fn run(self) {
        while let Err(error) = self.sweep().await {
            tracing::warn!(%error, "the fence keys are not ready");
            tokio::time::sleep(RETRY_AFTER).await;
        }
        self.shared.begun.send_replace(true);
        loop {
            let ended = std::mem::take(&mut *self.shared.ended());
            if ended.is_empty() {
                self.shared.wanted.notified().await;
                continue;
            }
            for (lock, id) in ended {
                // One that stays is found gone by the next raise.
                if let Err(error) = self.forget(&lock, &[id]).await {
                    tracing::debug!(%error, "an ended session stays in the fence keys");
                }
            }
        }
    }

    /// Waits until this run has found the hash ready: the first sweep must not meet our clients.
    pub async fn begun(&self) {
        let mut begun = self.shared.begun.subscribe();
        // The sender lives as long as we do.
        let _ = begun.wait_for(|begun| *begun).await;
    }

    /// Whether the listener's rules name this lock.
    pub fn guards(&self, lock: &LockName) -> bool {
        let mut patterns = self.shared.patterns.iter();
        patterns.any(|pattern| pattern.matches(lock))
    }

    /// Whether these are the others' too.
    pub fn are(&self, others: &FenceKeys) -> bool {
        Arc::ptr_eq(&self.shared, &others.shared)
    }

    /// Raises a lock's watermark. When it returns, no session of any proxy with a lower token can
    /// be applied any more. One that is dropped has to be asked for again: the sessions are listed
    /// until they are gone.
    pub async fn raise(
        &self,
        lock: &LockName,
        floor: u64,
        unsigned: bool,
    ) -> Result<(), NotRaised> {
        let ask = Ask {
            lock,
            token: floor,
            unsigned,
            session: None,
        };
        self.assert(&ask).await
    }

    /// Lets a session in under a claim, which the proxy's own gate has settled, or says why not.
    /// When it returns, no session of any proxy with a lower token can be applied any more.
    pub async fn hold(
        &self,
        claim: &Claim,
        session: &SessionId,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let ask = Ask {
            lock: &claim.lock,
            token: claim.token.get(),
            unsigned: claim.unsigned,
            session: Some(session),
        };
        match tokio::time::timeout_at(deadline, self.assert(&ask)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(not_raised)) => Err(not_raised.refusal(claim.lock.clone(), claim.token)),
            Err(_) => {
                let detail = "older sessions at the backend are not gone yet";
                let refusal = Refusal::busy(detail, RETRY_AFTER);
                Err(refusal.for_lock(claim.lock.clone()).with_token(claim.token))
            }
        }
    }

    async fn assert(&self, ask: &Ask<'_>) -> Result<(), NotRaised> {
        let mut known = String::new();
        loop {
            let (run_id, held) = match self.ask(ask, &known).await {
                Ok(held) => held,
                Err(error) => {
                    tracing::warn!(%error, "the fence keys cannot be had");
                    tokio::time::sleep(AGAIN_AFTER).await;
                    continue;
                }
            };
            match held {
                Held::Lost => {
                    tracing::error!("the fence keys are lost: every client is being killed");
                    if let Err(error) = self.sweep().await {
                        tracing::warn!(%error, "the fence keys are not ready");
                        tokio::time::sleep(AGAIN_AFTER).await;
                    }
                }
                Held::Unknown => known = digits(self.floor(ask).await?),
                Held::Stale(watermark) => return Err(NotRaised::Higher(watermark)),
                Held::In(lower) => {
                    self.end(&run_id, &lower).await;
                    if !lower.is_empty()
                        && let Err(error) = self.forget(ask.lock, &lower).await
                    {
                        tracing::debug!(%error, "gone sessions stay in the fence keys");
                    }
                    return Ok(());
                }
            }
        }
    }

    /// The answer, and the life of the server that gave it.
    async fn ask(&self, ask: &Ask<'_>, known: &str) -> Result<(RunId, Held), ControlError> {
        let control = &self.shared.control;
        let run_id = match ask.session {
            Some(session) => Arc::clone(&session.run_id),
            None => control.link().await?.run_id,
        };
        let id = ask.session.map(|session| session.id.to_string());
        let mut command = redis::cmd("EVAL");
        command.arg(HOLD).arg(1).arg(KEY).arg(ask.lock.as_str());
        command.arg(digits(ask.token)).arg(&*run_id);
        command.arg(id.unwrap_or_default()).arg(known);
        let (answered, answer) = control.call(&command).await?;
        if answered != run_id {
            // A session has ended with its server; its end will tell.
            return Err(ControlError::Unfit("another server answers".to_owned()));
        }
        let held = read_held(&answer);
        let held = held.ok_or_else(|| ControlError::Unfit(format!("{answer:?}")))?;
        Ok((run_id, held))
    }

    /// The lowest token that may be let in for a lock that is not in the hash.
    async fn floor(&self, ask: &Ask<'_>) -> Result<u64, NotRaised> {
        match &self.shared.registry {
            Some(registry) if !ask.unsigned => registry.floor(ask.lock).await.map_err(|reason| {
                tracing::warn!(lock = %ask.lock, %reason, "the floor is not told");
                NotRaised::Lost
            }),
            // The gate has compared the token with what is on disk here.
            _ => Ok(1),
        }
    }

    /// Kills these sessions and waits until they are gone.
    async fn end(&self, run_id: &str, ids: &[u64]) {
        let mut there = ids.to_vec();
        while !there.is_empty() {
            let batch: Vec<u64> = there.iter().copied().take(BATCH_SESSIONS_MAX).collect();
            match self.shared.control.kill_and_list(run_id, &batch).await {
                Ok(still) => {
                    there.retain(|id| !batch.contains(id) || still.contains(id));
                    if still.is_empty() {
                        continue;
                    }
                }
                Err(error) => tracing::warn!(%error, "older sessions are not gone yet"),
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    async fn forget(&self, lock: &LockName, ids: &[u64]) -> Result<(), ControlError> {
        let mut command = redis::cmd("EVAL");
        command
            .arg(FORGET)
            .arg(1)
            .arg(KEY)
            .arg(lock.as_str())
            .arg(ids);
        self.shared.control.call(&command).await.map(|_| ())
    }

    /// The sessions of these locks have ended by themselves.
    pub fn release(&self, locks: impl Iterator<Item = LockName>, session: &SessionId) {
        let mut ended = self.shared.ended();
        ended.extend(locks.map(|lock| (lock, session.id)));
        drop(ended);
        self.shared.wanted.notify_one();
    }

    /// Makes the hash ready, if it is not: every client that may be in a lost one is killed first.
    async fn sweep(&self) -> Result<(), ControlError> {
        let _one = self.shared.sweeping.lock().await;
        let control = &self.shared.control;
        let (run_id, state) = control.call(&hget_state()).await?;
        if state == Value::BulkString(READY.into()) {
            return Ok(());
        }
        let (_, own) = control.call(redis::cmd("CLIENT").arg("ID")).await?;
        let own = match own {
            Value::Int(id) => u64::try_from(id).unwrap_or_default(),
            _ => 0,
        };
        // Nobody is let in from here on, until it is ready by a sweep that began later.
        let mark = format!("swept by {own}");
        let mut begin = redis::cmd("HSET");
        begin.arg(KEY).arg("state").arg(&mark);
        control.call(&begin).await?;
        let (listed_by, clients) = control.other_clients().await?;
        if listed_by != run_id {
            return Err(ControlError::Unfit("another server answers".to_owned()));
        }
        self.end(&run_id, &clients).await;
        let mut finish = redis::cmd("EVAL");
        finish
            .arg(FINISH_SWEEP)
            .arg(1)
            .arg(KEY)
            .arg(&mark)
            .arg(READY);
        match control.call(&finish).await? {
            (on, Value::Int(1)) if on == run_id => Ok(()),
            _ => Err(ControlError::Unfit("another sweep came between".to_owned())),
        }
    }
}

impl Shared {
    fn ended(&self) -> std::sync::MutexGuard<'_, Vec<(LockName, u64)>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hget_state() -> Cmd {
    let mut command = redis::cmd("HGET");
    command.arg(KEY).arg("state");
    command
}

/// Texts of one length compare as their numbers.
fn digits(token: u64) -> String {
    format!("{token:019}")
}

fn read_held(answer: &Value) -> Option<Held> {
    let Value::Array(answer) = answer else {
        return None;
    };
    let text = |value: &Value| match value {
        Value::BulkString(text) => String::from_utf8(text.clone()).ok(),
        _ => None,
    };
    let (word, rest) = answer.split_first()?;
    match text(word)?.as_str() {
        "lost" => Some(Held::Lost),
        "unknown" => Some(Held::Unknown),
        "stale" => Some(Held::Stale(text(rest.first()?)?.parse().ok()?)),
        "held" => {
            let ids = rest.iter().map(|id| text(id)?.parse().ok());
            Some(Held::In(ids.collect::<Option<Vec<u64>>>()?))
        }
        _ => None,
    }
}
