//! The head of an HTTP request as every HTTP-like protocol here sees it: one pass over its fields
//! finds what classification asks for, and refuses heads that two parsers could frame differently.
//!
//! Invariant: a head that passes `scan` has one reading of where its body ends, at most one
//! `Host`, and no name for the ticket's header but the right one. It leaves to the proxy what a
//! parsed head no longer shows: bare LF, spaces before a colon, the bytes of trailers.

use super::http::frame::Line;
use super::http::path;
use super::refusal::Refusal;
use super::tickets;

/// A parsed request head. Names may have any case; values are the bytes as they came.
#[derive(Clone, Copy, Debug)]
pub struct Head<'h> {
    /// The method. Case-sensitive (RFC 9110 9.1).
    pub method: &'h str,
    /// The request target as it came: `/path?query`, `*`, or in absolute form.
    pub target: &'h [u8],
    /// HTTP/2's `:authority`; `None` on HTTP/1, where `Host` tells.
    pub authority: Option<&'h str>,
    /// The header fields in their order, repeated ones included.
    pub headers: Fields<'h>,
}

/// Header fields: names, which may have any case, and values.
#[derive(Clone, Copy, Debug)]
pub enum Fields<'h> {
    /// As pairs.
    Pairs(&'h [(&'h str, &'h [u8])]),
    /// As the lines of a head with these bytes.
    Lines(&'h [u8], &'h [Line]),
}

/// The header that carries tickets, in lower case.
pub const TICKET_HEADER: &str = "fencing-token";

/// Fields that say what the request is: `Connection` must not name them away (RFC 9110 7.6.1).
const NEVER_HOP_BY_HOP: [&str; 4] = ["content-length", "content-type", "host", TICKET_HEADER];

/// What the fields of a head say.
#[derive(Debug, Default)]
pub(super) struct Facts<'h> {
    pub(super) tickets: Vec<&'h str>,
    pub(super) host: Option<&'h [u8]>,
    pub(super) authorization: Option<&'h [u8]>,
    /// The body may be a form with files: one of the content types says so (RFC 7578).
    pub(super) is_form: bool,
    /// A header asks the backend to take another method than the request's.
    pub(super) overrides_method: bool,
    /// Other paths that headers name, in order.
    pub(super) other_paths: Vec<OtherPath<'h>>,
    /// It asks an S3 backend to write more than the key of its address.
    pub(super) widens: bool,
    /// It asks to become another protocol, `h2c` aside, which is never taken up.
    pub(super) upgrades: bool,
    content_lengths: u32,
    transfer_encodings: u32,
}

/// A path that a header names: the request may write there too.
#[derive(Clone, Copy, Debug)]
pub(super) enum OtherPath<'h> {
    /// Where a COPY or a MOVE writes (RFC 4918 10.3): a URI or an absolute path.
    Destination(&'h [u8]),
    /// What servers behind a rewriting hop take for the target.
    Instead(&'h [u8]),
}

impl<'h> OtherPath<'h> {
    /// Its path and query. `None`: readers may differ in it.
    pub(super) fn split(&self) -> Option<(&'h [u8], &'h [u8])> {
        let odd = |value: &[u8], marks: &[u8]| {
            value
                .iter()
                .any(|byte| byte.is_ascii_control() || marks.contains(byte))
        };
        let value = match *self {
            // A query says nothing there: whether it is cut off is up to the reader.
            OtherPath::Destination(value) if odd(value, b" #?*") => return None,
            OtherPath::Instead(value) if odd(value, b" #") => return None,
            OtherPath::Destination(value) | OtherPath::Instead(value) => value,
        };
        path::split_target(value)
    }

    /// Whether its query asks for another method.
    pub(super) fn overrides_method(&self) -> bool {
        self.split()
            .is_some_and(|(_, query)| path::overrides_method(query))
    }
}

/// Reads the fields once.
pub(super) fn scan<'h>(head: &Head<'h>) -> Result<Facts<'h>, Refusal> {
    if !is_token(head.method) {
        return Err(Refusal::malformed("the method is not a token"));
    }
    if head
        .target
        .iter()
        .any(|byte| byte.is_ascii_control() || matches!(byte, b' ' | b'#'))
    {
        return Err(Refusal::malformed(
            "the request target has a space, a control character or a fragment",
        ));
    }
    let mut facts = Facts::default();
    match head.headers {
        Fields::Pairs(pairs) => {
            for &(name, value) in pairs {
                check_field(name, value)?;
                note_field(&mut facts, name.as_bytes(), value)?;
            }
        }
        // Checked when they were read.
        Fields::Lines(bytes, lines) => {
            for line in lines {
                note_field(&mut facts, line.name(bytes), line.value(bytes))?;
            }
        }
    }
    if facts.content_lengths > 0 && facts.transfer_encodings > 0 {
        // RFC 9112 6.3: the two together are an attempt to smuggle.
        return Err(Refusal::malformed(
            "both content-length and transfer-encoding are given",
        ));
    }
    if facts.content_lengths > 1 {
        return Err(Refusal::malformed("content-length is given more than once"));
    }
    Ok(facts)
}

fn check_field(name: &str, value: &[u8]) -> Result<(), Refusal> {
    if !is_token(name) {
        return Err(Refusal::malformed("a header's name is not a token"));
    }
    if has_break(value) {
        // Obsolete line folding (RFC 9112 5.2), or worse.
        return Err(Refusal::malformed(format!(
            "the header `{}` has a line break or NUL in its value",
            name.to_ascii_lowercase()
        )));
    }
    Ok(())
}

fn note_field<'h>(facts: &mut Facts<'h>, name: &[u8], value: &'h [u8]) -> Result<(), Refusal> {
    // By length first: most fields are decided by one comparison.
    match name.len() {
        2 if same(name, "te") => {}
        4 if same(name, "host") && facts.host.is_some() => {
            return Err(Refusal::malformed("host is given more than once"));
        }
        4 if same(name, "host") => facts.host = Some(value),
        7 if same(name, "upgrade") => {
            facts.upgrades |= list(value).any(|member| !member.eq_ignore_ascii_case(b"h2c"));
        }
        7 if same(name, "trailer") && list(value).any(is_ticket_name) => {
            return Err(Refusal::invalid("a ticket cannot travel in a trailer"));
        }
        10 if same(name, "connection") => check_connection(value)?,
        11 if same(name, "destination") => {
            facts.other_paths.push(OtherPath::Destination(value));
        }
        12 if same(name, "content-type") => facts.is_form |= is_form(value),
        13 if same(name, "authorization") => facts.authorization = Some(value),
        13 if same(name, TICKET_HEADER) => {
            if !facts.tickets.is_empty() {
                return Err(Refusal::invalid("fencing-token is given more than once"));
            }
            facts.tickets = tickets::parse(value)?;
        }
        // CGI and its heirs read `_` and `-` alike: the backend could take what we do not see.
        13 if is_ticket_name(name) => {
            return Err(Refusal::invalid(
                "the ticket's header is spelled `Fencing-Token`",
            ));
        }
        13 | 17 | 22 if is_method_override(name) => facts.overrides_method = true,
        13 | 14 if names_target(name) => facts.other_paths.push(OtherPath::Instead(value)),
        14 if same(name, "content-length") => {
            if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
                return Err(Refusal::malformed("content-length is not a number"));
            }
            facts.content_lengths += 1;
        }
        17 if same(name, "transfer-encoding") => {
            facts.transfer_encodings += 1;
            let exact = value.eq_ignore_ascii_case(b"chunked");
            if !exact || facts.transfer_encodings > 1 {
                return Err(Refusal::malformed(
                    "transfer-encoding is not exactly `chunked`",
                ));
            }
        }
        20 | 32 if widens_key(name) => facts.widens = true,
        _ => {}
    }
    Ok(())
}

/// Extensions of MinIO's: a folder goes with all that is in it; an archive is unpacked beside.
fn widens_key(name: &[u8]) -> bool {
    ["x-minio-force-delete", "x-amz-meta-snowball-auto-extract"]
        .iter()
        .any(|known| same_but_underscores(name, known))
}

fn check_connection(value: &[u8]) -> Result<(), Refusal> {
    for member in list(value) {
        let named = |known: &&&str| member.eq_ignore_ascii_case(known.as_bytes());
        if let Some(known) = NEVER_HOP_BY_HOP.iter().find(named) {
            return Err(Refusal::malformed(format!(
                "connection names the header `{known}`"
            )));
        }
    }
    Ok(())
}

/// Whether a trailer of this name carries, or looks as if it carried, a ticket: such a request is
/// invalid, for its ticket would come after the decision.
pub fn is_ticket_name(name: &[u8]) -> bool {
    same_but_underscores(name, TICKET_HEADER)
}

fn is_form(content_type: &[u8]) -> bool {
    let multipart = b"multipart/";
    let start = content_type.trim_ascii_start().get(..multipart.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(multipart))
}

fn is_method_override(name: &[u8]) -> bool {
    [
        "x-http-method",
        "x-method-override",
        "x-http-method-override",
    ]
    .iter()
    .any(|known| same_but_underscores(name, known))
}

fn names_target(name: &[u8]) -> bool {
    ["x-original-url", "x-rewrite-url"]
        .iter()
        .any(|known| same_but_underscores(name, known))
}

fn same(name: &[u8], known: &str) -> bool {
    name.eq_ignore_ascii_case(known.as_bytes())
}

fn same_but_underscores(name: &[u8], known: &str) -> bool {
    let plain = |byte: u8| {
        if byte == b'_' {
            b'-'
        } else {
            byte.to_ascii_lowercase()
        }
    };
    name.len() == known.len() && name.iter().zip(known.bytes()).all(|(&a, b)| plain(a) == b)
}

/// The members of a comma-separated list, empty ones left out (RFC 9110 5.6.1.2).
pub(super) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty())
}

/// Whether a value has CR, LF or NUL. Looks at every byte: without an early end it is vectorised.
fn has_break(value: &[u8]) -> bool {
    value.iter().fold(false, |found, byte| {
        found | matches!(byte, b'\r' | b'\n' | 0)
    })
}

/// The characters of a token (RFC 9110 5.6.2).
static TOKEN_CHARS: [bool; 256] = token_chars();

const fn token_chars() -> [bool; 256] {
    let mut chars = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        chars[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let marks = b"!#$%&'*+-.^_`|~";
    let mut at = 0;
    while at < marks.len() {
        chars[marks[at] as usize] = true;
        at += 1;
    }
    chars
}

/// A token of RFC 9110 5.6.2.
pub(crate) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .fold(true, |so_far, byte| so_far & TOKEN_CHARS[byte as usize])
}

#[cfg(test)]
mod tests {
    use super::{Fields, Head, scan};
    use crate::protocol::refusal::{AfterRefusal, Code};

    fn refused(headers: &[(&str, &[u8])]) -> Option<(Code, AfterRefusal)> {
        let head = Head {
            method: "PUT",
            target: b"/",
            authority: None,
            headers: Fields::Pairs(headers),
        };
        scan(&head)
            .err()
            .map(|refusal| (refusal.code, refusal.after))
    }

    const CLOSES: Option<(Code, AfterRefusal)> = Some((Code::Invalid, AfterRefusal::Close));
    const KEEPS: Option<(Code, AfterRefusal)> = Some((Code::Invalid, AfterRefusal::Keep));

    #[test]
    fn one_reading_of_the_end_of_the_body_passes_and_two_are_refused() {
        assert_eq!(refused(&[("Content-Length", b"5")]), None);
        assert_eq!(refused(&[("Transfer-Encoding", b"Chunked")]), None);
        assert_eq!(
            refused(&[("content-length", b"5"), ("content-length", b"5")]),
            CLOSES
        );
        assert_eq!(
            refused(&[("content-length", b"5"), ("transfer-encoding", b"chunked")]),
            CLOSES
        );
        for length in ["", "+5", "5, 5", "0x5", "-1", " 5"] {
            assert_eq!(
                refused(&[("content-length", length.as_bytes())]),
                CLOSES,
                "{length}"
            );
        }
        for coding in [
            "",
            "identity",
            "chunked, gzip",
            "gzip, chunked",
            "chunked,chunked",
            "xchunked",
        ] {
            assert_eq!(
                refused(&[("transfer-encoding", coding.as_bytes())]),
                CLOSES,
                "{coding}"
            );
        }
    }

    #[test]
    fn folded_values_and_crooked_names_are_refused() {
        assert_eq!(refused(&[("x-a", b"plain \xe9")]), None);
        assert_eq!(refused(&[("x-a", b"one\r\n two")]), CLOSES);
        assert_eq!(refused(&[("x-a ", b"v")]), CLOSES);
        assert_eq!(refused(&[("host", b"a"), ("Host", b"a")]), CLOSES);
    }

    #[test]
    fn the_ticket_travels_in_one_header_of_one_spelling() {
        assert_eq!(refused(&[("FENCING-TOKEN", b"a")]), None);
        assert_eq!(
            refused(&[("fencing-token", b"a"), ("fencing-token", b"a")]),
            KEEPS
        );
        assert_eq!(refused(&[("fencing_token", b"a")]), KEEPS);
        assert_eq!(refused(&[("trailer", b"x, Fencing-Token")]), KEEPS);
        assert_eq!(refused(&[("connection", b"close, fencing-token")]), CLOSES);
        assert_eq!(refused(&[("connection", b"Host")]), CLOSES);
    }
}
