//! A ticket in a comment, in the manner of sqlcommenter: `/*fencing_token='...'*/` before or after
//! all else of a text.
//!
//! Only the first and the last comment of a text count. That is where libraries put them, and where
//! no knowledge of literals is needed: of a text that the grammar takes, what begins with `/*`
//! begins with a comment, and what ends with `*/` ends with one, since a literal would end with its
//! quote.

use std::ops::Range;

use percent_encoding::percent_decode;

use super::Tickets;
use crate::protocol::refusal::Refusal;

/// The key.
pub const KEY: &str = "fencing_token";

/// A comment with tickets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommentTickets {
    /// The tickets: they count for the statements of this text only. On a BEGIN, for its
    /// transaction.
    pub tickets: Tickets,
    /// Where the comment stands: it is blanked before the text is forwarded.
    pub span: Range<usize>,
}

/// The tickets in the comments of a text that the grammar took. The last one wins.
pub fn find(text: &[u8]) -> Result<Option<CommentTickets>, Refusal> {
    // Most texts end here.
    if !memchr::memchr_iter(b'/', text).any(|at| text[at..].starts_with(b"/*")) {
        return Ok(None);
    }
    for span in [last(text), first(text)].into_iter().flatten() {
        if let Some(value) = value(&text[span.start + 2..span.end - 2]) {
            return Ok(Some(CommentTickets {
                tickets: Tickets::parse(&value)?,
                span,
            }));
        }
    }
    Ok(None)
}

/// The same text with blanks in the place of a comment: positions in errors stay right.
pub fn blank(text: &[u8], span: &Range<usize>) -> Vec<u8> {
    let mut out = text.to_vec();
    out[span.clone()].fill(b' ');
    out
}

fn trimmed(text: &[u8]) -> Range<usize> {
    let skipped = |byte: &u8| byte.is_ascii_whitespace() || *byte == b';';
    let start = text.iter().position(|byte| !skipped(byte));
    let end = text.iter().rposition(|byte| !skipped(byte));
    match (start, end) {
        (Some(start), Some(end)) => start..end + 1,
        _ => 0..0,
    }
}

fn last(text: &[u8]) -> Option<Range<usize>> {
    let end = trimmed(text).end;
    let body = text[..end].strip_suffix(b"*/")?;
    let start = body.windows(2).rposition(|window| window == b"/*")?;
    // One within another is not looked at: blanked, it would leave the outer one open.
    let before = &body[..start];
    let opens = before.windows(2).rposition(|window| window == b"/*");
    let closes = before.windows(2).rposition(|window| window == b"*/");
    (opens.is_none() || closes > opens).then_some(start..end)
}

/// A first comment that holds another is not looked at.
fn first(text: &[u8]) -> Option<Range<usize>> {
    let start = trimmed(text).start;
    let body = text[start..].strip_prefix(b"/*")?;
    let end = body.windows(2).position(|window| window == b"*/")?;
    let nested = body[..end].windows(2).any(|window| window == b"/*");
    (!nested).then_some(start..start + 2 + end + 2)
}

/// The value of the key in `key='value',key='value'`. Keys and values are url-encoded, and a quote
/// within a value is escaped by a backslash.
fn value(comment: &[u8]) -> Option<Vec<u8>> {
    let mut rest = comment.trim_ascii();
    while let Some(equals) = rest.iter().position(|byte| *byte == b'=') {
        let key = rest[..equals].trim_ascii();
        let quoted = rest[equals + 1..].trim_ascii_start().strip_prefix(b"'")?;
        let end = end_of_value(quoted)?;
        if key == KEY.as_bytes() {
            return Some(percent_decode(&quoted[..end]).collect());
        }
        rest = quoted[end + 1..].trim_ascii_start();
        rest = rest.strip_prefix(b",")?;
    }
    None
}

fn end_of_value(quoted: &[u8]) -> Option<usize> {
    let mut escaped = false;
    quoted.iter().position(|byte| {
        let ends = *byte == b'\'' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })
}
