//! Stage 5, reply, where it is our own: a refusal. What the backend says is relayed by `carry`.

use super::read::CLIENT_STALL_MAX;
use super::{After, Asked, Session};
use crate::protocol::Refusal;
use crate::protocol::http::frame::Version;
use crate::protocol::refusal::{AfterRefusal, RefusalReply};

impl Session {
    /// Tells a refusal, and audits it.
    pub(super) async fn refuse(&mut self, refusal: Refusal, asked: &Asked<'_>) -> After {
        self.door.audit(&refusal, asked);
        self.tell(refusal, asked).await
    }

    async fn tell(&mut self, mut refusal: Refusal, asked: &Asked<'_>) -> After {
        let keeps = asked.head.is_some_and(|head| {
            // One in HTTP/1.0 would have to be told so; a refused one can do without.
            head.keeps_alive() && head.version() == Version::Http11
        });
        if !keeps || self.door.is_ending() || !self.can_skip_body() {
            refusal.after = AfterRefusal::Close;
        }
        let listener = self.door.listening.rules();
        let reply = listener.refusal_reply(&refusal, asked.target());
        let is_head = asked.head.is_some_and(|head| head.method() == "HEAD");
        // Of a reply that was begun nothing is left here: refusals come before its first byte.
        self.writer.output.clear();
        write(&reply, is_head, &mut self.writer.output);
        match self.writer.flush(CLIENT_STALL_MAX).await {
            Ok(()) if refusal.after == AfterRefusal::Keep => self.skip_body().await,
            Ok(()) => After::Close,
            Err(_) => After::Reset,
        }
    }
}

fn write(reply: &RefusalReply, is_head: bool, out: &mut Vec<u8>) {
    let phrase = phrase(reply.status);
    out.extend_from_slice(format!("HTTP/1.1 {} {phrase}\r\n", reply.status).as_bytes());
    for (name, value) in &reply.headers {
        out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    if !is_head {
        out.extend_from_slice(&reply.body);
    }
}

/// The phrases of the statuses that refusals have (RFC 9110 15). Any other one goes without.
fn phrase(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        403 => "Forbidden",
        412 => "Precondition Failed",
        428 => "Precondition Required",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        _ => "",
    }
}
