//! Refusals as problem details (RFC 9457). The code, lock, token, watermark and outcome are
//! extension members; tokens are strings, since JavaScript loses integers above 2^53.

use serde::Serialize;

use crate::protocol::refusal::{Code, Refusal, RefusalReply};

#[derive(Serialize)]
struct Problem<'a> {
    title: &'static str,
    status: u16,
    detail: &'a str,
    code: &'static str,
    lock: Option<&'a str>,
    token: Option<String>,
    watermark: Option<String>,
    outcome: &'static str,
}

/// The reply that tells a refusal.
pub fn refusal_reply(refusal: &Refusal) -> RefusalReply {
    let problem = Problem {
        title: title(refusal.code),
        status: refusal.code.status(),
        detail: &refusal.detail,
        code: refusal.code.as_str(),
        lock: refusal.lock.as_ref().map(|lock| lock.as_str()),
        token: refusal.token.map(|token| token.to_string()),
        watermark: refusal.watermark.map(|token| token.to_string()),
        outcome: refusal.outcome.as_str(),
    };
    let body = serde_json::to_vec(&problem).expect("a problem is plain data");
    RefusalReply::new(refusal, "application/problem+json", body)
}

/// Without a `type` the title is the status' phrase (RFC 9457 4.2.1).
fn title(code: Code) -> &'static str {
    match code {
        Code::Stale => "Precondition Failed",
        Code::Missing => "Precondition Required",
        Code::Invalid => "Bad Request",
        Code::Busy => "Service Unavailable",
        Code::Unclassified => "Forbidden",
        Code::Unknown => "Bad Gateway",
    }
}

#[cfg(test)]
mod tests {
    use super::refusal_reply;
    use crate::lock_name::LockName;
    use crate::protocol::refusal::Refusal;
    use crate::token::Token;
    use std::time::Duration;

    #[test]
    fn a_stale_write_is_told_in_problem_json() {
        let lock = LockName::new("tenant/\"42\"").unwrap();
        let reply = refusal_reply(&Refusal::stale(lock, Token::MIN, Some(Token::MAX)));
        assert_eq!(reply.status, 412);
        let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(body["code"], "stale");
        assert_eq!(body["lock"], "tenant/\"42\"");
        assert_eq!(body["token"], "1");
        assert_eq!(body["watermark"], "9223372036854775807");
        assert_eq!(body["outcome"], "not-applied");
        let length = reply.body.len().to_string();
        assert!(reply.headers.contains(&("content-length", length)));
        assert!(
            reply
                .headers
                .contains(&("content-type", "application/problem+json".to_owned()))
        );
        assert!(!reply.headers.iter().any(|(name, _)| *name == "retry-after"));
    }

    #[test]
    fn a_busy_gate_says_when_to_come_back_and_a_bad_frame_ends_the_connection() {
        let busy = refusal_reply(&Refusal::busy("sealing", Duration::from_millis(1500)));
        assert!(busy.headers.contains(&("retry-after", "2".to_owned())));
        let malformed = refusal_reply(&Refusal::malformed("x"));
        assert!(
            malformed
                .headers
                .contains(&("connection", "close".to_owned()))
        );
    }
}
