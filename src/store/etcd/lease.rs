//! Sessions as leases. All renewals of a store share one stream to etcd, which is opened again, at
//! the next member, when it breaks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::endpoints::{CALL_MAX, Endpoints, Member, request, store_error};
use crate::etcd_proto::etcdserverpb::lease_client::LeaseClient;
use crate::etcd_proto::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use crate::store::StoreError;

/// Renewals that wait to be sent; the next caller waits to get in.
const RENEWALS_MAX: usize = 4096;

/// How often the stream is looked at for renewals that stay unanswered.
const CHECK_EVERY: Duration = Duration::from_secs(1);

type Reply = oneshot::Sender<Result<Option<Duration>, StoreError>>;

struct Renewal {
    lease: i64,
    reply: Reply,
}

/// Hands renewals to the task.
#[derive(Clone)]
pub struct Renewals(mpsc::Sender<Renewal>);

impl Renewals {
    /// The handle and its task, which ends when the last clone is dropped.
    pub fn new(endpoints: Arc<Endpoints>) -> (Renewals, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::channel(RENEWALS_MAX);
        (Renewals(sender), run(receiver, endpoints))
    }

    /// Renews one lease. `None`: etcd does not know it.
    pub async fn renew(&self, lease: i64) -> Result<Option<Duration>, StoreError> {
        let (reply, answer) = oneshot::channel();
        let stopped = || StoreError::Unavailable("the store stopped".to_owned());
        self.0
            .send(Renewal { lease, reply })
            .await
            .map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

/// What was sent and not answered. etcd answers one stream's renewals in order, so of several for
/// one lease the first answer is that of the first; and no answer may serve a later one, whose
/// time to live counts from its own sending.
#[derive(Default)]
struct Sent {
    by_lease: HashMap<i64, VecDeque<Reply>>,
    /// When each was sent, oldest first: as many as replies.
    times: VecDeque<(i64, Instant)>,
}

impl Sent {
    fn push(&mut self, renewal: Renewal) {
        self.by_lease
            .entry(renewal.lease)
            .or_default()
            .push_back(renewal.reply);
        self.times.push_back((renewal.lease, Instant::now()));
    }

    fn answer(&mut self, answer: &LeaseKeepAliveResponse) {
        let Some(replies) = self.by_lease.get_mut(&answer.id) else {
            return;
        };
        let reply = replies.pop_front();
        if replies.is_empty() {
            self.by_lease.remove(&answer.id);
        }
        if let Some(at) = self.times.iter().position(|(lease, _)| *lease == answer.id) {
            self.times.remove(at);
        }
        let ttl = u64::try_from(answer.ttl)
            .ok()
            .filter(|seconds| *seconds > 0);
        if let Some(reply) = reply {
            let _ = reply.send(Ok(ttl.map(Duration::from_secs)));
        }
    }

    fn overdue(&self) -> bool {
        self.times
            .front()
            .is_some_and(|(_, sent)| sent.elapsed() > CALL_MAX)
    }

    fn fail(&mut self, status: &Status) {
        self.times.clear();
        for reply in self.by_lease.drain().flat_map(|(_, replies)| replies) {
            let _ = reply.send(Err(StoreError::Unavailable(
                store_error(status).to_string(),
            )));
        }
    }
}

async fn run(mut receiver: mpsc::Receiver<Renewal>, endpoints: Arc<Endpoints>) {
    let mut sent = Sent::default();
    while let Some(first) = receiver.recv().await {
        let member = endpoints.member();
        let Err(status) = stream(first, &mut receiver, &member, &mut sent).await else {
            return;
        };
        endpoints.failed(&member, &status);
        sent.fail(&status);
    }
}

/// Renews over one stream until it breaks; `Ok` when the store is gone.
async fn stream(
    first: Renewal,
    receiver: &mut mpsc::Receiver<Renewal>,
    member: &Member,
    sent: &mut Sent,
) -> Result<(), Status> {
    let (outgoing, requests) = mpsc::channel(RENEWALS_MAX);
    // Before the call: etcd sends the head of its answer with the first answer only.
    send(first, &outgoing, sent).await?;
    let mut client = LeaseClient::new(member.channel.clone());
    let call = client.lease_keep_alive(request(ReceiverStream::new(requests)));
    let late = || Status::deadline_exceeded(format!("no renewal in {CALL_MAX:?}"));
    let answer = tokio::time::timeout(CALL_MAX, call)
        .await
        .map_err(|_| late())??;
    let mut answers: Streaming<LeaseKeepAliveResponse> = answer.into_inner();
    let mut checks = tokio::time::interval(CHECK_EVERY);
    loop {
        tokio::select! {
            renewal = receiver.recv() => match renewal {
                Some(renewal) => send(renewal, &outgoing, sent).await?,
                None => return Ok(()),
            },
            answer = answers.message() => match answer? {
                Some(answer) => sent.answer(&answer),
                None => return Err(Status::unavailable("etcd ended the renewals")),
            },
            _ = checks.tick() => if sent.overdue() {
                return Err(late());
            },
        }
    }
}

async fn send(
    renewal: Renewal,
    outgoing: &mpsc::Sender<LeaseKeepAliveRequest>,
    sent: &mut Sent,
) -> Result<(), Status> {
    let id = renewal.lease;
    sent.push(renewal);
    // Bounded by the answers' deadline: a peer that takes nothing must not stop the task for ever.
    let sending = outgoing.send(LeaseKeepAliveRequest { id });
    match tokio::time::timeout(CALL_MAX, sending).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(Status::unavailable("etcd takes no renewals")),
    }
}
