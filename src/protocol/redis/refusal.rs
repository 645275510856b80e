//! A refusal as a Redis error: one line, the code first, the facts last.
//!
//! `-FENCED a newer holder has this lock lock="orders" token=33 watermark=34 outcome=not-applied`
//!
//! The codes are none that a client acts on by itself: `READONLY`, `MOVED`, `ASK`, `LOADING`,
//! `MASTERDOWN` and `CLUSTERDOWN` make clients turn to another server.

use std::fmt::Write as _;

use crate::protocol::refusal::{Code, Refusal};

/// The error's first word.
pub const fn code_word(code: Code) -> &'static str {
    match code {
        Code::Stale => "FENCED",
        Code::Missing => "NOFENCE",
        Code::Invalid => "BADFENCE",
        Code::Busy => "FENCEBUSY",
        Code::Unclassified => "FENCEUNCLASS",
        Code::Unknown => "FENCEDOUBT",
    }
}

/// The line, with its end.
pub fn refusal_reply(refusal: &Refusal) -> Vec<u8> {
    let mut line = format!("-{} ", code_word(refusal.code));
    // An error is one line: what could end it, or is not to be seen, becomes a blank.
    line.extend(
        refusal
            .detail
            .chars()
            .map(|char| if char.is_control() { ' ' } else { char }),
    );
    // Writing to a String cannot fail.
    if let Some(lock) = &refusal.lock {
        let escaped = lock.as_str().replace('\\', "\\\\").replace('"', "\\\"");
        let _ = write!(line, " lock=\"{escaped}\"");
    }
    if let Some(token) = refusal.token {
        let _ = write!(line, " token={token}");
    }
    if let Some(watermark) = refusal.watermark {
        let _ = write!(line, " watermark={watermark}");
    }
    if let Some(wait) = refusal.retry_after {
        let _ = write!(line, " retry_after_ms={}", wait.as_millis());
    }
    let _ = write!(line, " outcome={}\r\n", refusal.outcome.as_str());
    line.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::{code_word, refusal_reply};
    use crate::lock_name::LockName;
    use crate::protocol::refusal::{Code, Refusal};
    use crate::token::Token;
    use std::time::Duration;

    fn text(refusal: &Refusal) -> String {
        String::from_utf8(refusal_reply(refusal)).unwrap()
    }

    #[test]
    fn the_facts_stand_behind_the_sentence() {
        let lock = LockName::new("tenant/\"4\\2\"").unwrap();
        let stale = Refusal::stale(lock, Token::MIN, Token::new(2));
        assert_eq!(
            text(&stale),
            "-FENCED a newer holder has this lock, or this grant was closed: it came too late \
             lock=\"tenant/\\\"4\\\\2\\\"\" token=1 watermark=2 outcome=not-applied\r\n"
        );
        let busy = Refusal::busy("a seal is under way", Duration::from_millis(1500));
        assert_eq!(
            text(&busy),
            "-FENCEBUSY a seal is under way retry_after_ms=1500 outcome=not-applied\r\n"
        );
        let unknown = text(&Refusal::unknown("lost"));
        assert_eq!(unknown, "-FENCEDOUBT lost outcome=unknown\r\n");
    }

    #[test]
    fn a_refusal_is_one_line_whatever_its_detail() {
        let refusal = Refusal::invalid("a\r\n+OK\r\nb\0");
        assert_eq!(
            text(&refusal),
            "-BADFENCE a  +OK  b  outcome=not-applied\r\n"
        );
    }

    #[test]
    fn no_code_is_one_that_clients_act_on() {
        for code in Code::ALL {
            let word = code_word(code);
            assert!(word.contains("FENCE"), "{word}");
        }
    }
}
