//! Every argument of the services is checked here before anything is done with it.

use std::time::Duration;

use crate::lock_name::{LockName, LockPattern, PATTERNS_MAX};
use crate::lockd::Settings;
use crate::lockd::status::Error;
use crate::store::SessionId;
use crate::token::Token;

/// Longest text for operators (holder, reason), in bytes.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Longest wait of one Acquire, in milliseconds: a day.
pub const WAIT_MS_MAX: u64 = 24 * 60 * 60 * 1000;
/// Highest attempt id: the rest of its 64 bits counts re-entries of one attempt.
pub const ATTEMPT_MAX: u64 = (1 << 55) - 1;
/// Longest name of a proxy, in bytes.
pub const INSTANCE_BYTES_MAX: usize = 64;
/// Longest address of a proxy and longest id of its store, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 512;
/// Most processes that a store says it may follow.
const AFTER_MAX: usize = 64;

fn invalid(what: &'static str, value: impl ToString, rule: impl ToString) -> Error {
    let value = value.to_string().chars().take(64).collect();
    Error::Invalid {
        what,
        value,
        rule: rule.to_string(),
    }
}

pub(super) fn lock(text: &str) -> Result<LockName, Error> {
    LockName::new(text).map_err(|error| invalid("lock", text, error.reason))
}

pub(super) fn session(text: &str) -> Result<SessionId, Error> {
    text.parse().map_err(|_| {
        invalid(
            "session",
            text,
            "lower-case hexadecimal without leading zeros, below 2^64, is one",
        )
    })
}

pub(super) fn token(value: u64) -> Result<Token, Error> {
    Token::new(value).ok_or_else(|| invalid("token", value, "a positive integer below 2^63 is one"))
}

/// The time to live to ask the store for: at least the shortest one that the operator allows.
pub(super) fn ttl(ttl_ms: u64, settings: &Settings) -> Result<Duration, Error> {
    let (min, max) = (settings.session_ttl_min, settings.session_ttl_max);
    if ttl_ms == 0 || Duration::from_millis(ttl_ms) > max {
        let rule = format!("it is positive and at most {}", max.as_millis());
        return Err(invalid("ttl_ms", ttl_ms, rule));
    }
    Ok(Duration::from_millis(ttl_ms).max(min))
}

pub(super) fn wait(wait_ms: u64) -> Result<Duration, Error> {
    if wait_ms > WAIT_MS_MAX {
        return Err(invalid(
            "wait_ms",
            wait_ms,
            format!("it is at most {WAIT_MS_MAX}"),
        ));
    }
    Ok(Duration::from_millis(wait_ms))
}

pub(super) fn attempt(attempt: u64) -> Result<u64, Error> {
    if attempt > ATTEMPT_MAX {
        return Err(invalid(
            "attempt",
            attempt,
            format!("it is at most {ATTEMPT_MAX}"),
        ));
    }
    Ok(attempt)
}

/// Text for operators, which also travels inside tickets: no control characters, which would
/// swell there, and could act on a terminal.
pub(super) fn text(what: &'static str, text: String) -> Result<String, Error> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(invalid(
            what,
            text,
            format!("it is longer than {TEXT_BYTES_MAX} bytes"),
        ));
    }
    if text.chars().any(char::is_control) {
        return Err(invalid(what, text, "it has a control character"));
    }
    Ok(text)
}

pub(super) fn reason(reason: String) -> Result<String, Error> {
    if reason.trim().is_empty() {
        return Err(invalid("reason", reason, "it is empty"));
    }
    text("reason", reason)
}

pub(super) fn instance(name: &str) -> Result<(), Error> {
    let fits = (1..=INSTANCE_BYTES_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if !fits {
        let rule = format!("1 to {INSTANCE_BYTES_MAX} letters, digits, `.`, `_`, `-` are one");
        return Err(invalid("instance", name, rule));
    }
    Ok(())
}

pub(super) fn store_id(id: &str) -> Result<(), Error> {
    let fits =
        (1..=ADDRESS_BYTES_MAX).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
    if !fits {
        let rule = format!("1 to {ADDRESS_BYTES_MAX} visible ASCII characters are one");
        return Err(invalid("store_id", id, rule));
    }
    Ok(())
}

/// Empty: a proxy that does not tell it.
pub(super) fn process(id: &str) -> Result<(), Error> {
    let fits = id.len() <= INSTANCE_BYTES_MAX && id.bytes().all(|b| b.is_ascii_graphic());
    if !fits {
        let rule = format!("at most {INSTANCE_BYTES_MAX} visible ASCII characters are one");
        return Err(invalid("process", id, rule));
    }
    Ok(())
}

pub(super) fn after(processes: &[String]) -> Result<(), Error> {
    if processes.len() > AFTER_MAX {
        let rule = format!("a store tells at most {AFTER_MAX}");
        return Err(invalid("number of processes before", processes.len(), rule));
    }
    processes.iter().try_for_each(|id| process(id))
}

pub(super) fn admin_address(text: &str) -> Result<(), Error> {
    let rule = "an address like http://10.0.0.7:7431 is one";
    let uri = text.parse::<tonic::transport::Uri>().ok().filter(|uri| {
        text.len() <= ADDRESS_BYTES_MAX
            && uri.scheme_str() == Some("http")
            && uri
                .authority()
                .is_some_and(|authority| authority.port_u16() != Some(0))
            && matches!(uri.path(), "" | "/")
            && uri.query().is_none()
    });
    uri.map(|_| ()).ok_or_else(|| invalid("admin", text, rule))
}

pub(super) fn patterns(texts: &[String]) -> Result<Vec<LockPattern>, Error> {
    if texts.len() > PATTERNS_MAX {
        let rule = format!("a proxy has at most {PATTERNS_MAX}");
        return Err(invalid("number of patterns", texts.len(), rule));
    }
    let parse = |text: &String| {
        LockPattern::new(text).map_err(|error| invalid("pattern", text, error.reason))
    };
    texts.iter().map(parse).collect()
}
