//! Refusals as ErrorResponse: SQLSTATE, message, and the machine-readable part as JSON in DETAIL.
//!
//! A class of its own (`RF`), because a driver must not take a refusal for one of Postgres's: class
//! 40 for instance would be retried at once, with the same stale ticket.

use serde::Serialize;

use super::frame::{error_response, notice_response};
use crate::protocol::refusal::{Code, Refusal};

#[derive(Serialize)]
struct Detail<'a> {
    code: &'static str,
    lock: Option<&'a str>,
    token: Option<String>,
    watermark: Option<String>,
    outcome: &'static str,
}

/// The SQLSTATE of a code. An unknown outcome has Postgres's own: `transaction_resolution_unknown`.
pub const fn sqlstate(code: Code) -> &'static str {
    match code {
        Code::Stale => "RF001",
        Code::Missing => "RF002",
        Code::Invalid => "RF003",
        Code::Busy => "RF004",
        Code::Unclassified => "RF005",
        Code::Unknown => "08007",
    }
}

/// Whether the session goes on after an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// It does.
    Error,
    /// It ends.
    Fatal,
}

impl Severity {
    const fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "ERROR",
            Severity::Fatal => "FATAL",
        }
    }
}

fn detail(refusal: &Refusal) -> String {
    let detail = Detail {
        code: refusal.code.as_str(),
        lock: refusal.lock.as_ref().map(|lock| lock.as_str()),
        token: refusal.token.map(|token| token.to_string()),
        watermark: refusal.watermark.map(|token| token.to_string()),
        outcome: refusal.outcome.as_str(),
    };
    serde_json::to_string(&detail).expect("a detail is plain data")
}

/// The ErrorResponse that tells a refusal.
pub fn refusal_error(refusal: &Refusal, severity: Severity) -> Vec<u8> {
    let detail = detail(refusal);
    let mut fields = vec![
        (b'S', severity.as_str()),
        (b'V', severity.as_str()),
        (b'C', sqlstate(refusal.code)),
        (b'M', &*refusal.detail),
        (b'D', &*detail),
    ];
    let wait = refusal.retry_after_seconds();
    let hint = wait.map(|seconds| format!("Retry after {seconds} s."));
    if let Some(hint) = &hint {
        fields.push((b'H', hint));
    }
    error_response(&fields)
}

/// The same as a warning: what enforce mode would refuse.
pub fn refusal_notice(refusal: &Refusal) -> Vec<u8> {
    let detail = detail(refusal);
    notice_response(&[
        (b'S', "WARNING"),
        (b'V', "WARNING"),
        (b'C', sqlstate(refusal.code)),
        (b'M', &*refusal.detail),
        (b'D', &*detail),
    ])
}

/// An error of the proxy itself, outside of any refusal: SQLSTATE and message.
pub fn plain_error(severity: Severity, sqlstate: &str, text: &str) -> Vec<u8> {
    error_response(&[
        (b'S', severity.as_str()),
        (b'V', severity.as_str()),
        (b'C', sqlstate),
        (b'M', text),
    ])
}

#[cfg(test)]
mod tests {
    use super::{Severity, refusal_error, refusal_notice, sqlstate};
    use crate::lock_name::LockName;
    use crate::protocol::postgres::frame::BackendMessage;
    use crate::protocol::refusal::{Code, Refusal};
    use crate::token::Token;
    use std::time::Duration;

    fn fields(bytes: &[u8]) -> Vec<(char, String)> {
        let (BackendMessage::Error(fields) | BackendMessage::Notice(fields)) =
            BackendMessage::read(bytes[0], &bytes[5..]).unwrap()
        else {
            panic!("no error");
        };
        let text = |kind| Some((kind as char, fields.get(kind)?));
        let known = b"SVCMDH".iter().filter_map(|kind| text(*kind));
        known
            .map(|(kind, text)| (kind, String::from_utf8(text.to_vec()).unwrap()))
            .collect()
    }

    #[test]
    fn every_code_has_its_sqlstate_and_none_is_retried_blindly() {
        let told = Code::ALL.map(sqlstate);
        let table = ["RF001", "RF002", "RF003", "RF004", "RF005", "08007"];
        assert_eq!(told, table);
        assert!(told.iter().all(|state| !state.starts_with("40")));
    }

    #[test]
    fn a_stale_write_is_told_with_lock_token_and_watermark() {
        let lock = LockName::new("tenant/\"42\"").unwrap();
        let refusal = Refusal::stale(lock, Token::MIN, Some(Token::MAX));
        let fields = fields(&refusal_error(&refusal, Severity::Error));
        let kinds: String = fields.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, "SVCMD");
        assert_eq!(fields[2].1, "RF001");
        let detail: serde_json::Value = serde_json::from_str(&fields[4].1).unwrap();
        assert_eq!(detail["code"], "stale");
        assert_eq!(detail["lock"], "tenant/\"42\"");
        assert_eq!(detail["token"], "1");
        assert_eq!(detail["watermark"], "9223372036854775807");
    }

    #[test]
    fn a_busy_gate_hints_at_a_retry_and_no_text_can_forge_a_field() {
        let busy = Refusal::busy("sealing\0CXX000", Duration::from_millis(1500));
        let told = fields(&refusal_error(&busy, Severity::Fatal));
        assert_eq!(told[0].1, "FATAL");
        assert_eq!(told[2].1, "RF004");
        assert_eq!(told[3].1, "sealingCXX000");
        assert_eq!(told[5].1, "Retry after 2 s.");
        assert_eq!(fields(&refusal_notice(&busy))[0].1, "WARNING");
    }
}
