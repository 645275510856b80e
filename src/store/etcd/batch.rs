//! Many small transactions as one: what makes etcd fast is fewer of them.
//!
//! One task collects transactions while a few batches are in flight and sends what has gathered as
//! one transaction of nested ones; with nothing in flight it sends at once. Two enqueues for one
//! lock never share a batch, for they would share a create revision and so a token; nor do two
//! writes of one key, which etcd refuses. A batch that etcd refuses is sent again one by one, so
//! that a bad transaction fails alone.
//!
//! Each batch also compares the record of the token generation with what this store knows of it, so
//! that the tokens read from the answer are exactly those of that moment.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use prost::Message as _;
use prost::bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::endpoints::{Endpoints, store_error};
use super::generation::Generations;
use super::layout::Layout;
use super::message::{get, take_nested, take_range, txn};
use crate::etcd_proto::etcdserverpb::{RangeRequest, TxnRequest, TxnResponse};
use crate::lock_name::LockName;
use crate::store::StoreError;

/// Transactions in one batch. etcd refuses more than 128 operations on any path of nesting
/// (`--max-txn-ops`); ours nest up to 7 below the batch.
const BATCH_TXNS_MAX: usize = 96;

/// Bytes in one batch. etcd refuses requests above 1.5 MiB (`--max-request-bytes`).
const BATCH_BYTES_MAX: usize = 512 * 1024;

/// Batches in flight. More would make them smaller.
const BATCHES_IN_FLIGHT_MAX: usize = 2;

/// How long an enqueue behind a holder waits for company: about as long as it takes the one that
/// was just woken to release, with whose removal it then shares one write to disk.
const PATIENCE: Duration = Duration::from_millis(2);

/// Transactions that wait; the next caller waits to get in.
const WAITING_MAX: usize = 16_384;

/// Transactions of a refused batch that are sent at the same time.
const SINGLES_IN_FLIGHT_MAX: usize = 16;

/// How often a batch starts again because the generation changed under it.
const GENERATION_TRIES_MAX: usize = 4;

/// One transaction to send.
pub struct Nested {
    pub lock: LockName,
    /// The only entry that it writes.
    pub key: Bytes,
    /// It may create an entry.
    pub creates: bool,
    /// It has nothing to win yet: it may wait up to [`PATIENCE`] for something to go with.
    pub patient: bool,
    /// The revision of the generation record that it was built on; elsewhere it means nothing.
    pub pinned: Option<i64>,
    pub txn: TxnRequest,
}

/// The answer to one transaction.
pub struct Answer {
    pub response: TxnResponse,
    /// The revision of etcd at that moment: after a write, the one that it made.
    pub revision: i64,
    /// The generations at that moment.
    pub generations: Arc<Generations>,
}

/// Why there is no answer.
#[derive(Debug, Clone)]
pub enum Failure {
    /// The generation is another one than it was built on: nothing was written.
    Repin,
    /// etcd did not do it, or did not say.
    Status(Status),
    Store(StoreError),
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> StoreError {
        match failure {
            Failure::Repin => StoreError::Unavailable("the token generation changes".to_owned()),
            Failure::Status(status) => store_error(&status),
            Failure::Store(error) => error,
        }
    }
}

struct Waiting {
    nested: Nested,
    reply: oneshot::Sender<Result<Answer, Failure>>,
}

/// Hands transactions to the task.
#[derive(Clone)]
pub struct Batcher {
    waiting: mpsc::Sender<Waiting>,
    shared: Arc<Shared>,
}

struct Shared {
    endpoints: Arc<Endpoints>,
    layout: Layout,
    generations: Mutex<Arc<Generations>>,
}

impl Batcher {
    /// The batcher and its task, which ends when the last clone is dropped.
    pub fn new(
        endpoints: Arc<Endpoints>,
        layout: Layout,
    ) -> (Batcher, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let generations = Mutex::default();
        let shared = Arc::new(Shared {
            endpoints,
            layout,
            generations,
        });
        let task = run(receiver, Arc::clone(&shared));
        (
            Batcher {
                waiting: sender,
                shared,
            },
            task,
        )
    }

    /// Sends one transaction. Dropped before it was sent, it is not sent.
    pub async fn send(&self, nested: Nested) -> Result<Answer, Failure> {
        let (reply, answer) = oneshot::channel();
        let stopped = || Failure::Store(StoreError::Unavailable("the store stopped".to_owned()));
        self.waiting
            .send(Waiting { nested, reply })
            .await
            .map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// The generations as last seen.
    pub fn generations(&self) -> Arc<Generations> {
        self.shared.generations()
    }

    /// The generations as they are.
    pub async fn refresh(&self) -> Result<Arc<Generations>, StoreError> {
        self.shared.refresh().await
    }
}

impl Shared {
    fn generations(&self) -> Arc<Generations> {
        Arc::clone(
            &self
                .generations
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    async fn refresh(&self) -> Result<Arc<Generations>, StoreError> {
        let key = self.layout.generation();
        let read = self
            .endpoints
            .range(RangeRequest {
                key,
                ..RangeRequest::default()
            })
            .await;
        let read = read.map_err(|status| store_error(&status))?;
        self.learn(Generations::read(read.kvs.first())?);
        Ok(self.generations())
    }

    /// Takes what was read, even if it is older: reads may overtake each other, and a restored etcd
    /// goes back. A wrong guess only costs another try, since every batch compares it.
    fn learn(&self, read: Generations) {
        *self
            .generations
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(read);
    }
}

async fn run(mut receiver: mpsc::Receiver<Waiting>, shared: Arc<Shared>) {
    let mut lanes = Lanes::default();
    let mut in_flight: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    let mut open = true;
    while open || !lanes.is_empty() || !in_flight.is_empty() {
        while in_flight.len() < BATCHES_IN_FLIGHT_MAX && lanes.is_due(Instant::now()) {
            let batch = lanes.take_batch();
            if batch.is_empty() {
                break;
            }
            in_flight.push(Box::pin(send_batch(Arc::clone(&shared), batch)));
        }
        tokio::select! {
            received = receiver.recv(), if open && lanes.len < WAITING_MAX => match received {
                Some(waiting) => {
                    lanes.push(waiting);
                    while lanes.len < WAITING_MAX && let Ok(waiting) = receiver.try_recv() {
                        lanes.push(waiting);
                    }
                }
                None => open = false,
            },
            Some(()) = in_flight.next() => {}
            () = lanes.until_due(), if lanes.due.is_some() => {}
        }
    }
}

/// What waits, by lock: a lock with a thousand enqueues takes one place in each batch.
#[derive(Default)]
struct Lanes {
    lanes: HashMap<LockName, Lane>,
    /// The locks that have something waiting, in turn.
    turns: VecDeque<LockName>,
    len: usize,
    /// When what waits must go: `None` if something that is not patient waits, or nothing.
    due: Option<Instant>,
}

/// Others first: a removal must not wait behind the enqueues that it serves.
#[derive(Default)]
struct Lane {
    others: VecDeque<Waiting>,
    creates: VecDeque<Waiting>,
}

impl Lanes {
    fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| due <= now)
    }

    async fn until_due(&self) {
        if let Some(due) = self.due {
            tokio::time::sleep_until(due).await;
        }
    }

    fn push(&mut self, waiting: Waiting) {
        let was_empty = self.is_empty();
        let lane = self
            .lanes
            .entry(waiting.nested.lock.clone())
            .or_insert_with(|| {
                self.turns.push_back(waiting.nested.lock.clone());
                Lane::default()
            });
        let queue = if waiting.nested.creates {
            &mut lane.creates
        } else {
            &mut lane.others
        };
        // Where several wait for one lock, each takes a batch, and there is no time to lose.
        let patient = waiting.nested.patient && queue.is_empty();
        queue.push_back(waiting);
        self.len += 1;
        match patient {
            true if was_empty => self.due = Some(Instant::now() + PATIENCE),
            true => {}
            false => self.due = None,
        }
    }

    /// The next batch: each lock in turn gives what may go together.
    fn take_batch(&mut self) -> Vec<Waiting> {
        let mut batch: Vec<Waiting> = Vec::new();
        let mut bytes = 0;
        for _ in 0..self.turns.len() {
            if batch.len() >= BATCH_TXNS_MAX || bytes >= BATCH_BYTES_MAX {
                break;
            }
            let Some(lock) = self.turns.pop_front() else {
                break;
            };
            let Some(lane) = self.lanes.get_mut(&lock) else {
                continue;
            };
            let start = batch.len();
            self.len -= lane.take(&mut batch, BATCH_TXNS_MAX);
            bytes += batch[start..]
                .iter()
                .map(|one| one.nested.txn.encoded_len())
                .sum::<usize>();
            if lane.others.is_empty() && lane.creates.is_empty() {
                self.lanes.remove(&lock);
            } else {
                self.turns.push_back(lock);
            }
        }
        // What stays clashed with what goes, and has waited.
        self.due = None;
        batch
    }
}

impl Lane {
    /// Moves to the batch what may join it; returns how many have left the lane.
    fn take(&mut self, batch: &mut Vec<Waiting>, count_max: usize) -> usize {
        let (start, before) = (batch.len(), self.others.len() + self.creates.len());
        for queue in [&mut self.others, &mut self.creates] {
            while batch.len() < count_max
                && let Some(waiting) = queue.pop_front()
            {
                let joined = &batch[start..];
                let abandoned = waiting.reply.is_closed();
                let clash = joined.iter().any(|other| {
                    other.nested.key == waiting.nested.key
                        || (other.nested.creates && waiting.nested.creates)
                });
                if clash && !abandoned {
                    queue.push_front(waiting);
                    break;
                }
                if abandoned {
                    continue;
                }
                // Removals have the first claim to a place in the batch, but an enqueue runs before
                // them: it then still finds the holder that it reads, who may be about to go.
                let at = if waiting.nested.creates {
                    start
                } else {
                    batch.len()
                };
                batch.insert(at, waiting);
            }
        }
        before - self.others.len() - self.creates.len()
    }
}

async fn send_batch(shared: Arc<Shared>, batch: Vec<Waiting>) {
    let (nested, replies): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .map(|waiting| (waiting.nested, waiting.reply))
        .unzip();
    let answers = match shared.send(&nested).await {
        Ok(answers) => answers,
        Err(Failure::Status(status)) if nested.len() > 1 && refuses_batch(&status) => {
            tracing::debug!(%status, count = nested.len(), "etcd: batch refused, one by one now");
            let singles = nested
                .into_iter()
                .map(|one| send_one(Arc::clone(&shared), one));
            futures::stream::iter(singles)
                .buffered(SINGLES_IN_FLIGHT_MAX)
                .collect()
                .await
        }
        Err(failure) => nested.iter().map(|_| Err(failure.clone())).collect(),
    };
    for (reply, answer) in replies.into_iter().zip(answers) {
        // A caller that has gone away hears nothing; what was written stands.
        let _ = reply.send(answer);
    }
}

async fn send_one(shared: Arc<Shared>, nested: Nested) -> Result<Answer, Failure> {
    let mut answers = shared.send(&[nested]).await?;
    answers.pop().unwrap_or_else(|| Err(Failure::Store(lost())))
}

/// Whether etcd has refused the whole for one part of it: nothing was written then.
fn refuses_batch(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::OutOfRange
    )
}

impl Shared {
    /// One transaction of all. Repeats it while the generation changes under it.
    async fn send(&self, batch: &[Nested]) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        for _ in 0..GENERATION_TRIES_MAX {
            let generations = self.generations();
            let revision = generations.revision();
            let fits = |one: &&Nested| one.pinned.is_none_or(|pinned| pinned == revision);
            let key = self.layout.generation();
            let request = TxnRequest {
                compare: generations.unchanged(&key),
                success: batch
                    .iter()
                    .filter(fits)
                    .map(|one| txn(one.txn.clone()))
                    .collect(),
                failure: vec![get(key)],
            };
            let mut answer = self.endpoints.txn(request).await.map_err(Failure::Status)?;
            let at = answer.header.as_ref().map_or(0, |header| header.revision);
            if !answer.succeeded {
                let read = take_range(&mut answer, 0).map_err(Failure::Store)?;
                let read = Generations::read(read.kvs.first()).map_err(Failure::Store)?;
                self.learn(read);
                continue;
            }
            let mut answers = take_nested(answer).into_iter();
            let read = |one: &Nested| {
                if !fits(&one) {
                    return Err(Failure::Repin);
                }
                let response = answers
                    .next()
                    .flatten()
                    .ok_or_else(|| Failure::Store(lost()))?;
                Ok(Answer {
                    response,
                    revision: at,
                    generations: Arc::clone(&generations),
                })
            };
            return Ok(batch.iter().map(read).collect());
        }
        Err(Failure::Repin)
    }
}

fn lost() -> StoreError {
    StoreError::Corrupt("etcd answered against its contract: a nested answer is missing".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Reply = oneshot::Receiver<Result<Answer, Failure>>;

    fn push(lanes: &mut Lanes, lock: &str, key: &str, creates: bool, patient: bool) -> Reply {
        let (reply, answer) = oneshot::channel();
        let nested = Nested {
            lock: LockName::new(lock).unwrap(),
            key: key.to_owned().into(),
            creates,
            patient,
            pinned: None,
            txn: TxnRequest::default(),
        };
        lanes.push(Waiting { nested, reply });
        answer
    }

    fn keys(batch: &[Waiting]) -> Vec<&str> {
        batch
            .iter()
            .map(|one| std::str::from_utf8(&one.nested.key).unwrap())
            .collect()
    }

    #[test]
    fn one_enqueue_of_a_lock_goes_in_a_batch_and_removals_go_before_it() {
        let mut lanes = Lanes::default();
        let _replies = [
            push(&mut lanes, "a", "a/1", true, false),
            push(&mut lanes, "a", "a/2", true, false),
            push(&mut lanes, "b", "b/1", true, false),
            push(&mut lanes, "a", "a/3", false, false),
            push(&mut lanes, "a", "a/4", false, false),
        ];
        assert_eq!(keys(&lanes.take_batch()), ["a/1", "a/3", "a/4", "b/1"]);
        assert_eq!(keys(&lanes.take_batch()), ["a/2"]);
        assert!(lanes.is_empty() && lanes.take_batch().is_empty());
    }

    #[test]
    fn two_writes_of_one_key_never_share_a_batch() {
        let mut lanes = Lanes::default();
        let _replies = [
            push(&mut lanes, "a", "a/1", false, false),
            push(&mut lanes, "a", "a/1", false, false),
            push(&mut lanes, "a", "a/1", true, false),
        ];
        for _ in 0..3 {
            assert_eq!(keys(&lanes.take_batch()), ["a/1"]);
        }
        assert!(lanes.is_empty());
    }

    #[test]
    fn what_nobody_waits_for_any_more_is_not_sent() {
        let mut lanes = Lanes::default();
        drop(push(&mut lanes, "a", "a/1", true, false));
        let _reply = push(&mut lanes, "a", "a/2", true, false);
        drop(push(&mut lanes, "b", "b/1", false, false));
        assert_eq!(keys(&lanes.take_batch()), ["a/2"]);
        assert!(lanes.is_empty());
    }

    #[test]
    fn a_batch_has_a_limit_and_each_lock_has_its_turn() {
        let mut lanes = Lanes::default();
        let mut replies = Vec::new();
        for index in 0..BATCH_TXNS_MAX {
            replies.push(push(
                &mut lanes,
                "hot",
                &format!("hot/{index}"),
                true,
                false,
            ));
            replies.push(push(&mut lanes, &format!("l{index}"), "l/1", true, false));
        }
        assert_eq!(lanes.take_batch().len(), BATCH_TXNS_MAX);
        let second = lanes.take_batch();
        assert_eq!(
            keys(&second)
                .iter()
                .filter(|key| key.starts_with("hot/"))
                .count(),
            1
        );
    }

    #[test]
    fn the_patient_wait_until_something_urgent_comes_or_their_time_is_up() {
        let mut lanes = Lanes::default();
        let now = Instant::now();
        let mut replies = vec![push(&mut lanes, "a", "a/1", true, true)];
        assert!(!lanes.is_due(now) && lanes.is_due(Instant::now() + PATIENCE));
        replies.push(push(&mut lanes, "b", "b/1", false, false));
        assert!(lanes.is_due(now));
        assert_eq!(lanes.take_batch().len(), 2);
        // Several for one lock take a batch each.
        replies.push(push(&mut lanes, "a", "a/1", true, true));
        replies.push(push(&mut lanes, "a", "a/2", true, true));
        assert!(lanes.is_due(now));
    }
}
