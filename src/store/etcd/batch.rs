//! Many small transactions as one: what makes etcd fast is fewer of them.
//!
//! One task collects transactions while a few batches are in flight and sends what has gathered as
//! one transaction of nested ones; with nothing in flight it sends at once. Two enqueues for one
//! lock never share a batch, for they would share a create revision and so a token; nor do two
//! writes of one key, which etcd refuses. A batch that etcd refuses is sent again one by one, so
//! that a bad transaction fails alone.
//!
//! Each batch also compares the record of the token generation with what this store knows of it, so
//! that the tokens read from the answer are exactly those of that moment; and this lock service's
//! mark with what it was, so that no etcd which was restored from a backup gives out tokens.

use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use prost::bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Status};

use super::endpoints::{Endpoints, store_error};
use super::generation::Generations;
use super::hints::At;
use super::lanes::Lanes;
use super::layout::Layout;
use super::mark;
use super::message::{get, get_range, into_nested, range, take_range, txn};
use super::records::{Records, Stamp, stamp_range};
use crate::etcd_proto::etcdserverpb::{RangeRequest, ResponseOp, TxnRequest, TxnResponse};
use crate::lock_name::LockName;
use crate::store::StoreError;

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
    /// The revision of the generation record that it was built on; elsewhere it means nothing.
    pub pinned: Option<i64>,
    /// Believed to succeed: it joins the batch itself instead of being nested in it. Where one of
    /// these fails none is done, and each caller has to say what it wants without beliefs.
    pub flat: bool,
    pub txn: TxnRequest,
}

impl Nested {
    /// How many operations or compares it adds to its batch.
    pub fn weight(&self) -> usize {
        if self.flat {
            self.txn.success.len().max(self.txn.compare.len())
        } else {
            1
        }
    }
}

/// The answer to one transaction. A flat one that was not done has not succeeded and holds nothing.
pub struct Answer {
    pub response: TxnResponse,
    /// The moment; its revision is, after a write, the one that it made.
    pub at: At,
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

/// One that waits for its batch.
pub struct Waiting {
    pub nested: Nested,
    pub reply: oneshot::Sender<Result<Answer, Failure>>,
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
    records: Arc<Records>,
}

impl Batcher {
    /// The batcher and its task, which ends when the last clone is dropped.
    pub fn new(
        endpoints: Arc<Endpoints>,
        layout: Layout,
        records: Arc<Records>,
    ) -> (Batcher, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let generations = Mutex::default();
        let shared = Arc::new(Shared {
            endpoints,
            layout,
            generations,
            records,
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
        let before = self.endpoints.before();
        let before = before.map_err(|status| store_error(&status))?;
        let read = self
            .endpoints
            .range(RangeRequest {
                key,
                ..RangeRequest::default()
            })
            .await;
        let read = read.map_err(|status| store_error(&status))?;
        let read = Generations::read(read.kvs.first())?;
        let checked = self.endpoints.check_generations(before, &read);
        checked.map_err(|status| store_error(&status))?;
        self.learn(read);
        Ok(self.generations())
    }

    /// Takes what was read, even if it is older: reads may overtake each other. A wrong guess only
    /// costs another try, since every batch compares it.
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
        while in_flight.len() < lanes.in_flight_max() {
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
        }
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
    /// One transaction of all. Repeats it while the generation changes under it, and without the
    /// flat ones where one of these fails.
    async fn send(&self, batch: &[Nested]) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        let mut flat_fits = true;
        for _ in 0..GENERATION_TRIES_MAX {
            let generations = self.generations();
            let revision = generations.revision();
            let goes = |one: &Nested| {
                one.pinned.is_none_or(|pinned| pinned == revision) && (flat_fits || !one.flat)
            };
            let key = self.layout.generation();
            let mark = self.endpoints.mark();
            let mut request = join(batch.iter().filter(|one| goes(one)), &generations, &key);
            request.success.push(get_range(stamp_range(&self.layout)));
            request.failure.push(get(key));
            if let Some(mark) = mark {
                request.compare.push(mark::stands(&self.layout, mark));
                request.failure.push(get(self.layout.mark(mark.id)));
            }
            let before = self.endpoints.before().map_err(Failure::Status)?;
            let mut answer = self.endpoints.txn(request).await.map_err(Failure::Status)?;
            let at = At {
                timeline: self.endpoints.timeline(),
                revision: answer.header.as_ref().map_or(0, |header| header.revision),
            };
            if !answer.succeeded {
                if let Some(mark) = mark {
                    let read = take_range(&mut answer, 1).map_err(Failure::Store)?;
                    let found = read.kvs.first().map_or(0, |kv| kv.mod_revision);
                    let checked = self.endpoints.check_mark(mark, found);
                    checked.map_err(Failure::Status)?;
                }
                let read = take_range(&mut answer, 0).map_err(Failure::Store)?;
                let read = Generations::read(read.kvs.first()).map_err(Failure::Store)?;
                let checked = self.endpoints.check_generations(before, &read);
                checked.map_err(Failure::Status)?;
                if read == *generations {
                    flat_fits = false;
                    if batch.iter().all(|one| one.flat) {
                        return Ok(batch.iter().map(|_| missed(&generations, at)).collect());
                    }
                } else {
                    self.learn(read);
                }
                continue;
            }
            // They are what etcd has; and this store may know of later ones.
            let checked = self.endpoints.check_generations(before, &generations);
            checked.map_err(Failure::Status)?;
            let last = answer.responses.len().saturating_sub(1);
            let stamp = Stamp::read(range(&answer, last).map_err(Failure::Store)?);
            self.records.confirm(stamp, at);
            let mut answers = answer.responses.into_iter();
            let read = |one: &Nested| {
                if one.flat && !flat_fits {
                    return missed(&generations, at);
                }
                if !goes(one) {
                    return Err(Failure::Repin);
                }
                let response = take_own(one, &mut answers)?;
                Ok(Answer {
                    response,
                    at,
                    generations: Arc::clone(&generations),
                })
            };
            return Ok(batch.iter().map(read).collect());
        }
        Err(Failure::Repin)
    }
}

/// The answer to a flat one that was not done.
fn missed(generations: &Arc<Generations>, at: At) -> Result<Answer, Failure> {
    Ok(Answer {
        response: TxnResponse::default(),
        at,
        generations: Arc::clone(generations),
    })
}

/// All of them as one, while the generation is what it was.
fn join<'a>(
    batch: impl Iterator<Item = &'a Nested>,
    generations: &Generations,
    key: &Bytes,
) -> TxnRequest {
    let mut compare = generations.unchanged(key);
    let mut success = Vec::new();
    for one in batch {
        if one.flat {
            compare.extend_from_slice(&one.txn.compare);
            success.extend_from_slice(&one.txn.success);
        } else {
            success.push(txn(one.txn.clone()));
        }
    }
    TxnRequest {
        compare,
        success,
        failure: Vec::new(),
    }
}

/// What of the answer to all is the answer to this one.
fn take_own(
    one: &Nested,
    answers: &mut impl Iterator<Item = ResponseOp>,
) -> Result<TxnResponse, Failure> {
    if !one.flat {
        let own = answers.next().and_then(into_nested);
        return own.ok_or_else(|| Failure::Store(lost()));
    }
    let responses: Vec<ResponseOp> = answers.take(one.txn.success.len()).collect();
    if responses.len() < one.txn.success.len() {
        return Err(Failure::Store(lost()));
    }
    Ok(TxnResponse {
        succeeded: true,
        responses,
        ..TxnResponse::default()
    })
}

fn lost() -> StoreError {
    StoreError::Corrupt("etcd answered against its contract: a nested answer is missing".to_owned())
}
