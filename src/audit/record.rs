//! The audit record and its line of JSON. Pure: the time is a field, not read here.
//!
//! Only the fields named here ever reach a line. Text that a peer chose passes through [`Excerpt`],
//! which bounds it and removes whatever looks like a ticket: a ticket is a credential, and an audit
//! file is read by more people than may hold one.

use std::net::SocketAddr;

use serde::Serialize;
use time::OffsetDateTime;

use crate::lock_name::LockName;
use crate::token::Token;

/// Longest text of an [`Excerpt`], in bytes of UTF-8.
pub const EXCERPT_BYTES_MAX: usize = 512;

/// Longest line with its line feed, in bytes: four excerpts and a lock name, every character of
/// them escaped to six bytes, and the rest.
pub const LINE_BYTES_MAX: usize = 16 * 1024;

/// What takes the place of a ticket in a text.
const TICKET_REMOVED: &str = "<ticket>";

/// How a ticket or an order begins (PASETO v4.public), plain and percent-encoded, in lower case.
const TICKET_MARKS: [&str; 4] = [
    "v4.public.",
    "v4%2epublic%2e",
    "v4.public%2e",
    "v4%2epublic.",
];

/// Text from a peer or a configuration: bounded, and without tickets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Excerpt(Box<str>);

impl Excerpt {
    /// The start of `text`, up to [`EXCERPT_BYTES_MAX`], with each ticket replaced by `<ticket>`.
    /// A text that was cut ends with `…`.
    pub fn new(text: &str) -> Excerpt {
        let ellipsis = "…";
        if text.len() <= EXCERPT_BYTES_MAX {
            return Excerpt(without_tickets(text).into());
        }
        let kept = floor_char_boundary(text, EXCERPT_BYTES_MAX - ellipsis.len());
        // Cut first, so that the cost is bounded; a ticket that begins before the cut is removed
        // by its beginning.
        Excerpt((without_tickets(&text[..kept]) + ellipsis).into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    (0..=at)
        .rev()
        .find(|&i| text.is_char_boundary(i))
        .unwrap_or(0)
}

/// `text` with each ticket in it replaced. Never longer than `text`: the mark alone is longer than
/// what replaces it.
fn without_tickets(text: &str) -> String {
    // ASCII lower case keeps every byte offset.
    let lower = text.to_ascii_lowercase();
    let mut kept = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(begin) = next_mark(&lower, at) {
        kept.push_str(&text[at..begin]);
        kept.push_str(TICKET_REMOVED);
        let rest = &text[begin..];
        at = begin
            + rest
                .find(|c: char| !is_ticket_char(c))
                .unwrap_or(rest.len());
    }
    kept.push_str(&text[at..]);
    kept
}

fn next_mark(lower: &str, from: usize) -> Option<usize> {
    TICKET_MARKS
        .iter()
        .filter_map(|mark| lower[from..].find(mark))
        .min()
        .map(|i| from + i)
}

/// The characters of base64url with its dots, and the percent sign of an encoded one.
fn is_ticket_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '=' | '%')
}

/// Whether the request was really refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// It was refused.
    Enforce,
    /// It was forwarded; in enforce mode it would have been refused.
    Observe,
}

impl Mode {
    /// The word in records and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Observe => "observe",
        }
    }
}

/// One refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// When, in Unix milliseconds.
    pub unix_ms: u64,
    /// The proxy's name.
    pub instance: Excerpt,
    /// The listener's name.
    pub listener: Excerpt,
    /// The listener's protocol: `http`, `s3`, `postgres`, `redis` or `etcd`.
    pub protocol: &'static str,
    /// The client's address as the listener saw it.
    pub client: SocketAddr,
    /// Why: `stale`, `missing`, `invalid`, `busy`, `unclassified` or `unknown`.
    pub code: &'static str,
    /// The lock that the refusal is about, where it is about one.
    pub lock: Option<LockName>,
    /// The token that was presented for it.
    pub token: Option<Token>,
    /// The lock's watermark at that moment.
    pub watermark: Option<Token>,
    /// Who holds the presented ticket, as the ticket says.
    pub holder: Option<Excerpt>,
    /// What was asked for, for example `PUT /v1/accounts/7`: a verb and a name, never a body.
    pub operation: Excerpt,
    /// Whether it was really refused.
    pub mode: Mode,
}

/// The fields of a line, in their order.
#[derive(Serialize)]
struct RefusalLine<'a> {
    time: String,
    event: &'static str,
    instance: &'a str,
    listener: &'a str,
    protocol: &'static str,
    client: SocketAddr,
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    lock: Option<&'a str>,
    // Strings: JavaScript loses integers above 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    watermark: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<&'a str>,
    operation: &'a str,
    mode: Mode,
}

#[derive(Serialize)]
struct LossLine {
    time: String,
    event: &'static str,
    lost: u64,
}

impl Record {
    /// Appends the record as one line of JSON with its line feed.
    pub fn write_line(&self, line: &mut Vec<u8>) {
        let fields = RefusalLine {
            time: rfc3339(self.unix_ms),
            event: "refusal",
            instance: self.instance.as_str(),
            listener: self.listener.as_str(),
            protocol: self.protocol,
            client: self.client,
            code: self.code,
            lock: self.lock.as_ref().map(LockName::as_str),
            token: self.token.map(|token| token.to_string()),
            watermark: self.watermark.map(|token| token.to_string()),
            holder: self.holder.as_ref().map(Excerpt::as_str),
            operation: self.operation.as_str(),
            mode: self.mode,
        };
        push_line(line, &fields);
    }
}

/// Appends the line that says that `lost` records could not be kept before it.
pub fn write_loss_line(unix_ms: u64, lost: u64, line: &mut Vec<u8>) {
    push_line(
        line,
        &LossLine {
            time: rfc3339(unix_ms),
            event: "lost",
            lost,
        },
    );
}

fn push_line(line: &mut Vec<u8>, fields: &impl Serialize) {
    serde_json::to_writer(&mut *line, fields)
        .expect("strings and integers always have a JSON form, and memory takes every byte");
    line.push(b'\n');
}

/// The UTC date and time of day of `unix_ms`; the last representable one where it is beyond.
pub(super) fn utc(unix_ms: u64) -> OffsetDateTime {
    let nanos = i128::from(unix_ms) * 1_000_000;
    OffsetDateTime::from_unix_timestamp_nanos(nanos)
        .unwrap_or_else(|_| time::PrimitiveDateTime::MAX.assume_utc())
}

/// Always with milliseconds and `Z`, so that lines sort by their text (RFC 3339 section 5.1).
pub(super) fn rfc3339(unix_ms: u64) -> String {
    let at = utc(unix_ms);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second(),
        at.millisecond()
    )
}

#[cfg(test)]
mod tests {
    use super::{EXCERPT_BYTES_MAX, Excerpt, LINE_BYTES_MAX, Mode, Record, write_loss_line};
    use crate::audit::record::rfc3339;
    use crate::lock_name::LockName;
    use crate::ticket::{SealScope, SigningKey, Ticket};
    use crate::token::Token;

    fn record() -> Record {
        Record {
            unix_ms: 1_764_443_212_007,
            instance: Excerpt::new("edge-1"),
            listener: Excerpt::new("orders-db"),
            protocol: "http",
            client: "192.0.2.7:40001".parse().unwrap(),
            code: "stale",
            lock: Some(LockName::new("orders").unwrap()),
            token: Token::new(33),
            watermark: Token::new(34),
            holder: Some(Excerpt::new("host-a/job-1")),
            operation: Excerpt::new("PUT /orders/7"),
            mode: Mode::Enforce,
        }
    }

    fn line_of(record: &Record) -> String {
        let mut line = Vec::new();
        record.write_line(&mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn a_record_is_one_line_with_its_fields_in_order() {
        assert_eq!(
            line_of(&record()),
            concat!(
                r#"{"time":"2025-11-29T19:06:52.007Z","event":"refusal","instance":"edge-1","#,
                r#""listener":"orders-db","protocol":"http","client":"192.0.2.7:40001","#,
                r#""code":"stale","lock":"orders","token":"33","watermark":"34","#,
                r#""holder":"host-a/job-1","operation":"PUT /orders/7","mode":"enforce"}"#,
                "\n"
            )
        );
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let bare = Record {
            lock: None,
            token: None,
            watermark: None,
            holder: None,
            ..record()
        };
        let line = line_of(&bare);
        for field in ["lock", "token", "watermark", "holder"] {
            assert!(
                !line.contains(&format!("\"{field}\"")),
                "{field} is in {line}"
            );
        }
    }

    #[test]
    fn a_line_feed_from_a_peer_does_not_end_the_line() {
        let forged = Record {
            operation: Excerpt::new("GET /\n{\"event\":\"x\"}"),
            ..record()
        };
        let line = line_of(&forged);
        assert_eq!(line.matches('\n').count(), 1);
        let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(parsed["operation"], "GET /\n{\"event\":\"x\"}");
    }

    #[test]
    fn a_real_ticket_never_reaches_a_line() {
        let ticket = SigningKey::generate().sign_ticket(&Ticket {
            lock: LockName::new("orders").unwrap(),
            token: Token::MIN,
            holder: "h".into(),
            session: "s".into(),
            issued_unix_ms: 0,
            seal: SealScope::Required(Vec::new()),
        });
        let body = &ticket["v4.public.".len()..][..40];
        let encoded = ticket.replace('.', "%2E");
        for text in [
            format!("FENCE WITH {ticket} SET k v"),
            format!("GET /x?t={encoded}&u=1"),
            format!("SET ringfence.token = '{ticket}'"),
            ticket.to_uppercase(),
            format!("{}{ticket}", "x".repeat(EXCERPT_BYTES_MAX - 60)),
            format!("{ticket},{ticket} end"),
        ] {
            let kept = Excerpt::new(&text);
            assert!(kept.as_str().contains("<ticket>"), "{kept:?}");
            assert!(
                !kept
                    .as_str()
                    .to_lowercase()
                    .contains(&body.to_lowercase()[..8]),
                "{kept:?}"
            );
        }
        let around = Excerpt::new(&format!("FENCE WITH {ticket} SET k v"));
        assert_eq!(around.as_str(), "FENCE WITH <ticket> SET k v");
    }

    #[test]
    fn text_without_a_ticket_is_kept_as_it_is() {
        for text in ["", "PUT /v4/public/x", "v4.publi", "größe v4 .public."] {
            assert_eq!(Excerpt::new(text).as_str(), text);
        }
    }

    #[test]
    fn long_text_is_cut_on_a_character() {
        let kept = Excerpt::new(&"ä".repeat(EXCERPT_BYTES_MAX));
        assert!(kept.as_str().len() <= EXCERPT_BYTES_MAX);
        assert!(kept.as_str().ends_with("ä…"));
        let whole = "x".repeat(EXCERPT_BYTES_MAX);
        assert_eq!(Excerpt::new(&whole).as_str(), whole);
    }

    #[test]
    fn the_longest_record_fits_a_line() {
        let worst = Excerpt::new(&"\u{1}".repeat(EXCERPT_BYTES_MAX));
        let record = Record {
            unix_ms: u64::MAX,
            instance: worst.clone(),
            listener: worst.clone(),
            holder: Some(worst.clone()),
            operation: worst,
            lock: Some(LockName::new(&"\"".repeat(255)).unwrap()),
            token: Some(Token::MAX),
            watermark: Some(Token::MAX),
            ..record()
        };
        assert!(line_of(&record).len() <= LINE_BYTES_MAX);
    }

    #[test]
    fn a_loss_is_a_line_of_its_own() {
        let mut line = Vec::new();
        write_loss_line(0, 12, &mut line);
        let text = String::from_utf8(line).unwrap();
        assert_eq!(
            text,
            "{\"time\":\"1970-01-01T00:00:00.000Z\",\"event\":\"lost\",\"lost\":12}\n"
        );
    }

    #[test]
    fn times_beyond_the_calendar_are_clamped() {
        assert_eq!(rfc3339(u64::MAX), "9999-12-31T23:59:59.999Z");
    }
}
