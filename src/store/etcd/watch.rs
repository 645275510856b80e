//! One watch on everything: a whole read at one revision, then every change after it.
//!
//! A stream that etcd ends on a connection that lives goes on after the last revision that arrived
//! whole, and the reader notices nothing. On another connection, or where etcd has compacted that
//! revision away, the watch starts again with [`Event::Reset`]: there may be a restored etcd behind
//! it, whose revisions mean other entries.
//!
//! A delete names only the key, so the watch remembers what each entry was.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::answer;
use super::endpoints::{CALL_MAX, Endpoints, MESSAGE_BYTES_MAX, Member, request};
use super::generation::Generations;
use super::hints::{At, Hints, Queues};
use super::layout::{KeyRange, Layout};
use super::mark;
use super::read::snapshot;
use super::records::Records;

use crate::etcd_proto::etcdserverpb::watch_client::WatchClient;
use crate::etcd_proto::etcdserverpb::watch_request::RequestUnion;
use crate::etcd_proto::etcdserverpb::{
    WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use crate::etcd_proto::mvccpb::event::EventType;
use crate::etcd_proto::mvccpb::{Event as EtcdEvent, KeyValue};
use crate::lock_name::LockName;
use crate::store::{Event, SessionId, StoreError};
use crate::token::Token;

/// How long a failed watch waits before it tries the next member.
const RETRY_EVERY: Duration = Duration::from_millis(200);

/// The same where etcd's data are not what they were: a retry changes that only by another member.
const LOST_RETRY_EVERY: Duration = Duration::from_secs(5);

/// How often a quiet stream is asked whether it lives.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// A stream that said nothing for this long, although asked, is left.
const QUIET_MAX: Duration = Duration::from_secs(5);

/// Why a stream ended.
enum End {
    /// The reader has gone.
    Reader,
    /// Go on after the last whole revision.
    Broken(Status),
    /// etcd no longer has what follows that revision, or it cannot be read: start again.
    Restart(String),
}

/// What an entry was when it was last seen.
struct Seen {
    lock: LockName,
    session: SessionId,
    token: Token,
    create_revision: i64,
}

/// The right to tell the hints, given back at the end.
struct Feeding(Arc<Hints>);

impl Drop for Feeding {
    fn drop(&mut self) {
        self.0.end_feeding();
    }
}

/// Feeds one watch until its reader is gone.
pub async fn feed(
    endpoints: Arc<Endpoints>,
    layout: Layout,
    hints: Arc<Hints>,
    records: Arc<Records>,
    told: Arc<AtomicU64>,
    reader: mpsc::Sender<Event>,
) {
    let mut feed = Feed {
        range: layout.watch_range(),
        generation_key: layout.generation(),
        layout,
        hints: hints.begin_feeding().then_some(Feeding(hints)),
        records,
        told,
        reader,
        seen: HashMap::new(),
        generations: Generations::default(),
        revision: 0,
        term: 0,
        timeline: 0,
    };
    while !feed.reader.is_closed() {
        match feed.start(&endpoints).await {
            Ok(()) => {}
            Err(Some(error)) => {
                tracing::warn!(%error, "etcd: watch not started");
                let lost = matches!(error, StoreError::Corrupt(_));
                tokio::time::sleep(if lost { LOST_RETRY_EVERY } else { RETRY_EVERY }).await;
                continue;
            }
            Err(None) => return,
        }
        loop {
            let member = endpoints.member();
            match feed.follow(&endpoints, &member).await {
                End::Reader => return,
                End::Broken(status) => {
                    endpoints.failed(&member, &status);
                    tokio::time::sleep(RETRY_EVERY).await;
                }
                End::Restart(why) => {
                    tracing::warn!(%why, "etcd: watch starts again");
                    break;
                }
            }
        }
    }
}

struct Feed {
    range: KeyRange,
    generation_key: Bytes,
    layout: Layout,
    /// Told what is seen, unless another watch does that.
    hints: Option<Feeding>,
    /// Told that one of them has changed.
    records: Arc<Records>,
    /// The highest token that was told by anyone, as far as it was seen.
    told: Arc<AtomicU64>,
    reader: mpsc::Sender<Event>,
    seen: HashMap<Bytes, Seen>,
    generations: Generations,
    /// All events up to this one have been sent.
    revision: i64,
    /// The election after which that was read. Only a restored etcd begins to count again.
    term: u64,
    /// [`Endpoints::timeline`] since before that was read.
    timeline: u64,
}

impl Feed {
    /// Reads everything and sends it. `Err(None)`: the reader has gone.
    async fn start(&mut self, endpoints: &Endpoints) -> Result<(), Option<StoreError>> {
        let layout = self.layout.clone();
        let keep = |kv: &KeyValue| layout.parse_entry(kv).is_some();
        let mut timeline = endpoints.timeline();
        let mut read = snapshot(endpoints, &self.range, self.generation_key.clone(), keep).await?;
        if endpoints.timeline() != timeline {
            // It made a new connection, perhaps halfway through.
            timeline = endpoints.timeline();
            read = snapshot(endpoints, &self.range, self.generation_key.clone(), keep).await?;
        }
        // It may be another etcd than the one that the last connection led to.
        mark::check(endpoints, &self.layout).await?;
        self.timeline = timeline;
        if let Some(Feeding(hints)) = &self.hints {
            hints.forget();
        }
        self.seen.clear();
        self.generations = read.generations;
        self.revision = read.revision;
        self.term = read.term;
        let mut events = Vec::with_capacity(read.kvs.len() + 2);
        for kv in read.kvs {
            self.put(kv, &mut events)?;
        }
        if let Some(Feeding(hints)) = &self.hints {
            let mut queues = Queues::new();
            for (key, seen) in &self.seen {
                let queue = queues.entry(seen.lock.clone()).or_default();
                queue.insert(seen.create_revision, key.clone());
            }
            let revision = self.revision;
            hints.replace(queues, At { timeline, revision });
        }
        events.sort_by_key(|event| match event {
            Event::Put(entry) => Some(entry.token),
            _ => None,
        });
        events.insert(0, Event::Reset);
        events.push(Event::Synced);
        self.tell(events).await.map_err(|_| None)
    }

    async fn tell(&self, events: Vec<Event>) -> Result<(), mpsc::error::SendError<Event>> {
        for event in events {
            self.reader.send(event).await?;
        }
        Ok(())
    }

    /// One stream, from the revision after the last one.
    async fn follow(&mut self, endpoints: &Endpoints, member: &Member) -> End {
        let create = RequestUnion::CreateRequest(WatchCreateRequest {
            key: self.range.start.clone(),
            range_end: self.range.end.clone(),
            start_revision: self.revision + 1,
            fragment: true,
            ..WatchCreateRequest::default()
        });
        let (outgoing, requests) = mpsc::channel(4);
        // Before the call: etcd sends the head of its answer with the first answer only.
        if outgoing
            .try_send(WatchRequest {
                request_union: Some(create),
            })
            .is_err()
        {
            return End::Broken(Status::internal("a fresh queue is full"));
        }
        let mut client =
            WatchClient::new(member.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let call = client.watch(request(ReceiverStream::new(requests)));
        let mut answers = match tokio::time::timeout(CALL_MAX, call).await {
            Ok(Ok(answers)) => answers.into_inner(),
            Ok(Err(status)) => return End::Broken(status),
            Err(_) => return End::Broken(Status::deadline_exceeded("no watch was made")),
        };
        let mut heard = Instant::now();
        let mut behind: Option<Instant> = None;
        let mut asks = tokio::time::interval(ASK_EVERY);
        let reader = self.reader.clone();
        loop {
            tokio::select! {
                answer = answers.message() => {
                    let end = match answer {
                        // What answers now may be a restored etcd, with other entries at the
                        // revisions that were read.
                        Ok(Some(_)) if endpoints.timeline() != self.timeline => {
                            Some(End::Restart("another connection to etcd".to_owned()))
                        }
                        Ok(Some(answer)) if self.is_behind(&answer) => {
                            let since = *behind.get_or_insert_with(Instant::now);
                            (since.elapsed() > QUIET_MAX)
                                .then(|| End::Restart("etcd went back in time".to_owned()))
                        }
                        Ok(Some(answer)) => {
                            behind = None;
                            self.handle(answer, endpoints).await
                        }
                        Ok(None) => Some(End::Broken(Status::unavailable("etcd ended it"))),
                        Err(status) => Some(End::Broken(status)),
                    };
                    if let Some(end) = end {
                        return end;
                    }
                    // After the reader has taken it all: a slow reader is not a quiet stream.
                    heard = Instant::now();
                }
                _ = asks.tick() => {
                    if heard.elapsed() > QUIET_MAX {
                        return End::Broken(Status::deadline_exceeded("the watch is silent"));
                    }
                    // Only a sign of life: what such an answer says of revisions may run ahead of
                    // the events (etcd issue 15220).
                    let ask = RequestUnion::ProgressRequest(WatchProgressRequest {});
                    let _ = outgoing.try_send(WatchRequest { request_union: Some(ask) });
                }
                () = reader.closed() => return End::Reader,
            }
        }
    }

    /// The member has not come as far as what was sent already. It may be late, for a moment; or
    /// etcd was restored from a backup, and what comes next is not what was waited for.
    fn is_behind(&self, answer: &WatchResponse) -> bool {
        let at = answer.header.as_ref().map_or(0, |header| header.revision);
        at < self.revision && answer.events.is_empty() && !answer.canceled
    }

    async fn handle(&mut self, answer: WatchResponse, endpoints: &Endpoints) -> Option<End> {
        let term = answer.header.as_ref().map_or(0, |header| header.raft_term);
        if term < self.term {
            return Some(End::Restart(format!("term {term} after {}", self.term)));
        }
        if answer.compact_revision > 0 {
            return Some(End::Restart(format!(
                "compacted up to {}",
                answer.compact_revision
            )));
        }
        if answer.canceled {
            return Some(End::Broken(Status::unavailable(answer.cancel_reason)));
        }
        let last = answer.events.last().and_then(|event| event.kv.as_ref());
        let last = last.map_or(0, |kv| kv.mod_revision);
        // Others have written it: a restored etcd may be told by that alone.
        endpoints.note_event(last);
        let mut events = Vec::with_capacity(answer.events.len());
        for event in answer.events {
            if let Err(error) = self.translate(event, &mut events) {
                return Some(End::Restart(error.to_string()));
            }
        }
        endpoints.note_generations(&self.generations);
        if self.tell(events).await.is_err() {
            return Some(End::Reader);
        }
        // A fragment may end within a revision, which must then be asked for again.
        let whole = if answer.fragment { last - 1 } else { last };
        self.revision = self.revision.max(whole);
        None
    }

    fn translate(&mut self, event: EtcdEvent, events: &mut Vec<Event>) -> Result<(), StoreError> {
        let deleted = event.r#type() == EventType::Delete;
        let Some(kv) = event.kv else { return Ok(()) };
        if self.layout.record_name(&kv.key).is_some() {
            self.records.forget();
            return Ok(());
        }
        if kv.key == self.generation_key {
            self.generations = Generations::read(Some(&kv).filter(|_| !deleted))?;
            return Ok(());
        }
        if deleted {
            self.gone(&kv.key, events);
            return Ok(());
        }
        self.put(kv, events)
    }

    /// An entry, or a key that is none (any more).
    fn put(&mut self, kv: KeyValue, events: &mut Vec<Event>) -> Result<(), StoreError> {
        let Some(entry) = answer::entry(&self.layout, &kv, &self.generations)? else {
            self.gone(&kv.key, events);
            return Ok(());
        };
        let create_revision = kv.create_revision;
        if self
            .seen
            .get(&kv.key)
            .is_some_and(|seen| seen.create_revision != create_revision)
        {
            self.gone(&kv.key, events);
        }
        if let Some(Feeding(hints)) = &self.hints {
            hints.put(&entry.lock, create_revision, &kv.key, kv.mod_revision);
        }
        // Relaxed, as where it is read: a mark that comes a turn later only tells less.
        self.told.fetch_max(entry.token.get(), Ordering::Relaxed);
        let seen = Seen {
            lock: entry.lock.clone(),
            session: entry.session,
            token: entry.token,
            create_revision,
        };
        self.seen.insert(kv.key, seen);
        events.push(Event::Put(entry));
        Ok(())
    }

    fn gone(&mut self, key: &Bytes, events: &mut Vec<Event>) {
        let Some(seen) = self.seen.remove(key) else {
            return;
        };
        let Seen {
            lock,
            session,
            token,
            create_revision,
        } = seen;
        if let Some(Feeding(hints)) = &self.hints {
            hints.gone(&lock, create_revision);
        }
        events.push(Event::Gone {
            lock,
            session,
            token,
        });
    }
}
