//! A refusal: what the client is told when its request is not served. One type for all protocols;
//! each protocol's folder turns it into bytes.
//!
//! A refusal is a decision, not an error. Its code is the same word in bodies, metrics and audit.

use std::borrow::Cow;
use std::time::Duration;

use crate::lock_name::LockName;
use crate::token::Token;

/// The stable code of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Code {
    /// A ticket's token is below the floor of its lock.
    Stale,
    /// A rule asks for a ticket that was not presented.
    Missing,
    /// A ticket, or the request that carries it, is malformed or forged.
    Invalid,
    /// The gate cannot admit it now; a retry is safe.
    Busy,
    /// It may be a write, and which locks it needs cannot be told.
    Unclassified,
    /// It was forwarded and its outcome is not known.
    Unknown,
}

impl Code {
    /// All of them, in the order of the interface's table.
    pub const ALL: [Code; 6] = [
        Code::Stale,
        Code::Missing,
        Code::Invalid,
        Code::Busy,
        Code::Unclassified,
        Code::Unknown,
    ];

    /// The word: `stale`, `missing`, `invalid`, `busy`, `unclassified`, `unknown`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Code::Stale => "stale",
            Code::Missing => "missing",
            Code::Invalid => "invalid",
            Code::Busy => "busy",
            Code::Unclassified => "unclassified",
            Code::Unknown => "unknown",
        }
    }

    /// The HTTP status, also of S3: 412 (RFC 9110 15.5.13), 428 (RFC 6585 3), 400, 503, 403, 502.
    pub const fn status(self) -> u16 {
        match self {
            Code::Stale => 412,
            Code::Missing => 428,
            Code::Invalid => 400,
            Code::Busy => 503,
            Code::Unclassified => 403,
            Code::Unknown => 502,
        }
    }
}

/// Whether the refused request can have changed the backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It changed nothing.
    NotApplied,
    /// It may have been applied, or may yet be.
    Unknown,
}

impl Outcome {
    /// The word: `not-applied` or `unknown`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::NotApplied => "not-applied",
            Outcome::Unknown => "unknown",
        }
    }
}

/// What becomes of the client's connection after the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterRefusal {
    /// It stays usable.
    Keep,
    /// It must be closed: where the request ends cannot be told (RFC 9112 6.3).
    Close,
}

/// Why a request is not served, in the words of every protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The stable code.
    pub code: Code,
    /// One factual sentence for people. Never holds a ticket or an internal.
    pub detail: Cow<'static, str>,
    /// The lock that it is about.
    pub lock: Option<LockName>,
    /// The token that was presented for it.
    pub token: Option<Token>,
    /// The watermark of the lock.
    pub watermark: Option<Token>,
    /// When a retry may pass.
    pub retry_after: Option<Duration>,
    /// Whether the backend can have changed.
    pub outcome: Outcome,
    /// What becomes of the connection.
    pub after: AfterRefusal,
}

impl Refusal {
    fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal {
            code,
            detail: detail.into(),
            lock: None,
            token: None,
            watermark: None,
            retry_after: None,
            outcome: Outcome::NotApplied,
            after: AfterRefusal::Keep,
        }
    }

    /// The ticket's token is below the floor. `watermark` is what the gate has now.
    pub fn stale(lock: LockName, token: Token, watermark: Option<Token>) -> Refusal {
        let detail = "a newer holder has this lock, or this grant was closed: it came too late";
        Refusal {
            lock: Some(lock),
            token: Some(token),
            watermark,
            ..Refusal::new(Code::Stale, detail)
        }
    }

    /// A write without a ticket for this lock.
    pub fn missing(lock: LockName) -> Refusal {
        let detail = format!("this write needs a ticket for the lock `{lock}`");
        Refusal {
            lock: Some(lock),
            ..Refusal::new(Code::Missing, detail)
        }
    }

    /// The same, with the reason why it counts as a write under that lock.
    pub fn because(self, why: Option<&str>) -> Refusal {
        let Some(why) = why else {
            return self;
        };
        Refusal {
            detail: format!("{}: {why}", self.detail).into(),
            ..self
        }
    }

    /// A malformed or forged ticket, or a malformed request.
    pub fn invalid(detail: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal::new(Code::Invalid, detail)
    }

    /// A request whose framing is ambiguous: the connection ends with it.
    pub fn malformed(detail: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal {
            after: AfterRefusal::Close,
            ..Refusal::new(Code::Invalid, detail)
        }
    }

    /// Not now; nothing was forwarded.
    pub fn busy(detail: impl Into<Cow<'static, str>>, retry_after: Duration) -> Refusal {
        Refusal {
            retry_after: Some(retry_after),
            ..Refusal::new(Code::Busy, detail)
        }
    }

    /// Possibly a write whose locks cannot be told.
    pub fn unclassified(detail: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal::new(Code::Unclassified, detail)
    }

    /// Forwarded, and lost before the outcome was seen.
    pub fn unknown(detail: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal {
            outcome: Outcome::Unknown,
            ..Refusal::new(Code::Unknown, detail)
        }
    }

    /// The same refusal, about this lock.
    pub fn for_lock(self, lock: LockName) -> Refusal {
        Refusal {
            lock: Some(lock),
            ..self
        }
    }

    /// The same refusal, with the token that was presented.
    pub fn with_token(self, token: Token) -> Refusal {
        Refusal {
            token: Some(token),
            ..self
        }
    }

    /// The same refusal, with the watermark of its lock.
    pub fn with_watermark(self, watermark: Token) -> Refusal {
        Refusal {
            watermark: Some(watermark),
            ..self
        }
    }

    /// `Retry-After` in whole seconds, rounded up, at least 1 (RFC 9110 10.2.3).
    pub fn retry_after_seconds(&self) -> Option<u64> {
        let wait = self.retry_after?;
        Some((wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1))
    }
}

/// The reply that carries a refusal, ready to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusalReply {
    /// The status.
    pub status: u16,
    /// The header fields: Content-Type, Content-Length, Cache-Control; Retry-After and Connection
    /// where they apply.
    pub headers: Vec<(&'static str, String)>,
    /// The body. Not sent in reply to HEAD.
    pub body: Vec<u8>,
}

impl RefusalReply {
    /// Frames a body of this media type.
    pub(super) fn new(refusal: &Refusal, media_type: &'static str, body: Vec<u8>) -> RefusalReply {
        let mut headers = vec![
            ("content-type", media_type.to_owned()),
            ("content-length", body.len().to_string()),
            // A refusal is about this moment: 4xx may otherwise be cached (RFC 9111 4.2.2).
            ("cache-control", "no-store".to_owned()),
        ];
        if let Some(seconds) = refusal.retry_after_seconds() {
            headers.push(("retry-after", seconds.to_string()));
        }
        if refusal.after == AfterRefusal::Close {
            headers.push(("connection", "close".to_owned()));
        }
        RefusalReply {
            status: refusal.code.status(),
            headers,
            body,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AfterRefusal, Code, Outcome, Refusal};
    use std::time::Duration;

    #[test]
    fn every_code_has_its_own_word_and_status() {
        let told: Vec<_> = Code::ALL
            .iter()
            .map(|code| (code.as_str(), code.status()))
            .collect();
        let table = [
            ("stale", 412),
            ("missing", 428),
            ("invalid", 400),
            ("busy", 503),
            ("unclassified", 403),
            ("unknown", 502),
        ];
        assert_eq!(told, table);
    }

    #[test]
    fn only_an_unknown_outcome_says_that_it_may_have_been_applied() {
        assert_eq!(Refusal::unknown("x").outcome, Outcome::Unknown);
        assert_eq!(Refusal::unclassified("x").outcome, Outcome::NotApplied);
        assert_eq!(Refusal::malformed("x").after, AfterRefusal::Close);
        assert_eq!(Refusal::invalid("x").after, AfterRefusal::Keep);
    }

    #[test]
    fn a_retry_waits_whole_seconds_and_never_none() {
        let seconds = |ms| Refusal::busy("x", Duration::from_millis(ms)).retry_after_seconds();
        assert_eq!(
            [seconds(0), seconds(1), seconds(1000), seconds(1001)],
            [1, 1, 1, 2].map(Some)
        );
        assert_eq!(Refusal::invalid("x").retry_after_seconds(), None);
    }
}
