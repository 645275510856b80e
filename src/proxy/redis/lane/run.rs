//! A lane at work: opened, settled, and polled until it ends.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf as _, BytesMut};
use tokio::time::Sleep;

use super::{Lane, Stage, State};
use crate::protocol::Kind;
use crate::protocol::redis::{ReplyProgress, encode_command};
use crate::proxy::accept::Alive;
use crate::proxy::polled::{Received, shrink};
use crate::proxy::redis::RedisListening;
use crate::proxy::redis::backend::OpenError;
use crate::proxy::redis::link::{Link, Revoked};

/// How long the commands of clients that are gone may take.
const FAREWELL_MAX: Duration = Duration::from_secs(2);
/// Most times that its claims are settled before one command passes.
const ROUNDS_MAX: usize = 64;

/// What is to be done next.
enum Next {
    Settle,
    End,
}

/// Carries a lane's commands to its end. `_alive`: the proxy waits for it when it goes down.
pub(super) async fn carry(lane: Arc<Lane>, listening: Arc<RedisListening>, _alive: Alive) {
    let ended = Ended(&lane);
    let mut link = match open(&lane, &listening).await {
        Ok(link) => link,
        Err(error) => {
            tracing::debug!(%error, "no connection for a holder's clients to share");
            return;
        }
    };
    let mut farewell = None;
    loop {
        let settling = link.settling(Kind::Write, Arc::clone(&lane.key.claims));
        let Ok(settled) = settling.await else {
            // A newer token has come, or it is not known whether one has.
            return;
        };
        link.keep(settled);
        lane.state().resume(link);
        let poll = |cx: &mut Context<'_>| lane.poll(cx, &mut farewell);
        match std::future::poll_fn(poll).await {
            Next::End => return drop(ended),
            Next::Settle => {}
        }
        match lane.state().link.take() {
            Some(taken) => link = taken,
            None => return,
        }
    }
}

async fn open(lane: &Lane, listening: &Arc<RedisListening>) -> Result<Link, OpenError> {
    let opened = listening.open().await?;
    let mut steps: Vec<Vec<u8>> = vec![];
    steps.extend(lane.key.login.as_ref().map(|login| login.to_vec()));
    if lane.key.resp == 3 {
        steps.push(encode_command(&["HELLO", "3"]));
    }
    if lane.key.database != 0 {
        let database = lane.key.database.to_string();
        steps.push(encode_command(&["SELECT", &database]));
    }
    let stream = listening.connector.prepare(opened.stream, &steps).await?;
    Ok(Link::new(Arc::clone(listening), stream, opened.session))
}

/// Whatever ends it, also the end of its task: nobody waits for ever.
struct Ended<'l>(&'l Lane);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.state().end();
    }
}

impl Lane {
    fn poll(&self, cx: &mut Context<'_>, farewell: &mut Option<Pin<Box<Sleep>>>) -> Poll<Next> {
        let mut state = self.state();
        loop {
            let Some(link) = &mut state.link else {
                return Poll::Ready(Next::End);
            };
            let mut moved = link.poll_send(cx);
            match link.poll_receive(cx) {
                Received::Nothing => {}
                Received::Some => {
                    moved = true;
                    if let Err(reason) = state.take_replies() {
                        tracing::error!(reason, "the backend's replies are out of step");
                        return Poll::Ready(Next::End);
                    }
                }
                Received::Ended => return Poll::Ready(Next::End),
            }
            if moved {
                continue;
            }
            match state.poll_revocation(cx) {
                Revoked::Nothing => {}
                Revoked::Moved => continue,
                Revoked::Gone | Revoked::Unknown => return Poll::Ready(Next::End),
            }
            if let Some(next) = self.next(&state, cx, farewell) {
                return Poll::Ready(next);
            }
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
    }

    /// What is to be done when nothing moves.
    fn next(
        &self,
        state: &State,
        cx: &mut Context<'_>,
        farewell: &mut Option<Pin<Box<Sleep>>>,
    ) -> Option<Next> {
        let deserted = self.members.load(Ordering::Relaxed) == 0;
        if state.waiting.is_empty() {
            return match state.stage {
                _ if deserted => Some(Next::End),
                Stage::Unsettled if state.rounds < ROUNDS_MAX => Some(Next::Settle),
                Stage::Unsettled => Some(Next::End),
                _ => None,
            };
        }
        if !deserted {
            *farewell = None;
            return None;
        }
        let sleep = farewell.get_or_insert_with(|| Box::pin(tokio::time::sleep(FAREWELL_MAX)));
        sleep.as_mut().poll(cx).is_ready().then_some(Next::End)
    }
}

impl State {
    /// Takes commands on this link, whose claims are settled.
    fn resume(&mut self, link: Link) {
        self.link = Some(link);
        self.rounds += 1;
        if matches!(self.stage, Stage::Opening | Stage::Unsettled) {
            self.stage = Stage::Open;
        }
    }

    fn poll_revocation(&mut self, cx: &mut Context<'_>) -> Revoked {
        let Some(link) = &mut self.link else {
            return Revoked::Unknown;
        };
        let revoked = link.poll_revocation(cx);
        if revoked == Revoked::Gone {
            // What the server has answered before is here.
            while self
                .link
                .as_mut()
                .is_some_and(|link| link.poll_receive(cx) == Received::Some)
            {
                if self.take_replies().is_err() {
                    break;
                }
            }
        }
        revoked
    }

    /// Hands out the replies that have come.
    fn take_replies(&mut self) -> Result<(), String> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        let mut bytes = std::mem::take(&mut link.from_backend);
        let taken = self.take_replies_from(&bytes)?;
        bytes.advance(taken);
        shrink(&mut bytes);
        self.keep_rest(bytes);
        Ok(())
    }

    fn keep_rest(&mut self, bytes: BytesMut) {
        if let Some(link) = &mut self.link {
            link.from_backend = bytes;
        }
    }

    fn take_replies_from(&mut self, bytes: &[u8]) -> Result<usize, String> {
        let unexpected = || "a reply came that nobody waits for".to_owned();
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let first = self.waiting.front().ok_or_else(unexpected)?;
            if let Some(head) = self.head {
                let part = self.replies.stream(rest).map_err(|it| it.to_string())?;
                at += part.len;
                match part.ended {
                    None => first.mailbox.add(&rest[..part.len]),
                    Some(end) => {
                        first.mailbox.answer(&rest[..part.len], head, end);
                        self.answered();
                    }
                }
                continue;
            }
            match self.replies.scan(rest).map_err(|it| it.to_string())? {
                ReplyProgress::More => break,
                ReplyProgress::Partial(head) if head.is_push() => return Err(unexpected()),
                ReplyProgress::Partial(head) => {
                    first.mailbox.add(rest);
                    self.head = Some(head);
                    at = bytes.len();
                }
                ReplyProgress::Complete { head, .. } if head.is_push() => {
                    return Err(unexpected());
                }
                ReplyProgress::Complete { len, head, end } => {
                    first.mailbox.answer(&rest[..len], head, end);
                    at += len;
                    self.answered();
                }
            }
        }
        Ok(at)
    }

    /// The first command is answered.
    fn answered(&mut self) {
        self.replies.reset();
        self.head = None;
        if let (Some(waiting), Some(link)) = (self.waiting.pop_front(), &mut self.link) {
            link.flights.answered(waiting.load);
        }
    }

    /// No command is taken any more, and no reply comes: whoever waits is told what is known, and
    /// what is in doubt is condemned.
    fn end(&mut self) {
        self.stage = Stage::Ended(Instant::now());
        self.waker = None;
        let link = self.link.take();
        for waiting in self.waiting.drain(..) {
            let Some(link) = &link else {
                continue;
            };
            let kind = if waiting.load.fenced {
                Kind::Write
            } else {
                Kind::Read
            };
            waiting.mailbox.lose(link.fate(kind, Some(&waiting.load)));
        }
    }
}
