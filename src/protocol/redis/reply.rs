//! Where replies end, and what they are: RESP2 and RESP3 at once, so that a change of version on a
//! connection never puts the count of its replies out of step.
//!
//! Incremental and streaming: a reply is told by its first bytes, and its end is found by counting
//! what its aggregates announce, whatever the pieces it comes in. Nothing of a payload is kept.
//!
//! Bounded: [`DEPTH_MAX`] open aggregates. An aggregate that is the last element of another does
//! not deepen, so the thousands of nested tables that a script can return pass. Streamed types
//! (`$?`, `*?`), which no server sends, are refused.

use super::number::integer;
use super::reply_head::{ReplyEnd, ReplyHead};

/// Most aggregates that are open at once.
pub const DEPTH_MAX: usize = 1024;

/// Takes the place of `>` where a push stands among the elements of a reply. It is none of them:
/// the server puts a message where it is due, and that is within the reply to an EXEC that
/// publishes to its own client.
const PUSH_ASIDE: u8 = b'P';

/// Bytes of a line that tells a length or a number.
const LINE_BYTES_MAX: usize = 32;

/// Bytes that are no reply: the connection to the backend is out of step and must be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplyError {
    /// No type of RESP2 or RESP3 begins so.
    #[error("the server's reply begins with the byte {0:#04x}, which no type has")]
    Marker(u8),
    /// A length or a number is malformed.
    #[error("the server's reply has a malformed length or number")]
    Length,
    /// Too many aggregates in each other.
    #[error("the server's reply is nested deeper than {DEPTH_MAX}")]
    Depth,
    /// CR LF is missing.
    #[error("the server's reply lacks CR LF")]
    LineEnd,
}

/// How far a reply is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyProgress {
    /// More bytes are needed to tell what it is.
    More,
    /// It is known what it is; its end is not there. It can be streamed.
    Partial(ReplyHead),
    /// It is the first `len` bytes of the buffer.
    Complete {
        /// Its length in bytes.
        len: usize,
        /// What it is.
        head: ReplyHead,
        /// What its last bytes told.
        end: ReplyEnd,
    },
}

/// What of a chunk belongs to the reply that is streamed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyStreamed {
    /// So many bytes from the chunk's beginning.
    pub len: usize,
    /// The last of them is the last of the reply.
    pub ended: Option<ReplyEnd>,
}

/// Where within a value the scanner is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Before the first byte of a value.
    Marker,
    /// In a line that tells a number.
    Number {
        marker: u8,
        len: usize,
    },
    /// In a line of text; the byte before was CR.
    Text {
        after_cr: bool,
    },
    /// In a payload of this many bytes.
    Payload(u64),
    /// Before the CR and the LF after a payload.
    PayloadCr,
    PayloadLf,
    /// After the last byte.
    Done,
}

/// How deep a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    /// The reply itself.
    Reply,
    /// An element of it.
    Element,
    /// Deeper, or within an attribute.
    Inner,
}

/// Finds the end of one reply after the other.
#[derive(Debug)]
pub struct ReplyScanner {
    stage: Stage,
    line: [u8; LINE_BYTES_MAX],
    /// Of the value at hand.
    level: Level,
    /// The reply itself has begun; attributes come before it (RESP3, "Attribute type").
    begun: bool,
    /// Elements of the reply that have not begun.
    elements: u64,
    /// Elements that have not begun, of each aggregate within; none is 0, so an aggregate whose
    /// last element has begun takes no place.
    inner: Vec<u64>,
    head: ReplyHead,
    /// The text at hand is the reply, or its first element: the head's word.
    names: bool,
    /// The next element is the first.
    first_element_next: bool,
    /// No more of the head is to come.
    head_known: bool,
    integer: Option<i64>,
    /// So many bytes of the buffer are behind us.
    at: usize,
}

impl Default for ReplyScanner {
    fn default() -> ReplyScanner {
        ReplyScanner::new()
    }
}

impl ReplyScanner {
    /// A scanner before its first reply.
    pub fn new() -> ReplyScanner {
        ReplyScanner {
            stage: Stage::Marker,
            line: [0; LINE_BYTES_MAX],
            level: Level::Reply,
            begun: false,
            elements: 0,
            inner: Vec::new(),
            head: ReplyHead::NONE,
            names: false,
            first_element_next: false,
            head_known: false,
            integer: None,
            at: 0,
        }
    }

    /// Looks at what came. The buffer begins with the reply's first byte, at every call.
    #[inline]
    pub fn scan(&mut self, buffer: &[u8]) -> Result<ReplyProgress, ReplyError> {
        self.at += self.advance(&buffer[self.at..])?;
        Ok(match self.end() {
            Some(end) => ReplyProgress::Complete {
                len: self.at,
                head: self.head,
                end,
            },
            None if self.head_known => ReplyProgress::Partial(self.head),
            None => ReplyProgress::More,
        })
    }

    /// How much of a chunk belongs to a reply that was told as [`ReplyProgress::Partial`]. The
    /// chunk is what follows the buffer that was given to `scan`, or the last chunk.
    pub fn stream(&mut self, chunk: &[u8]) -> Result<ReplyStreamed, ReplyError> {
        let len = self.advance(chunk)?;
        Ok(ReplyStreamed {
            len,
            ended: self.end(),
        })
    }

    /// Forgets the reply, which has ended. The next one begins with the byte after it.
    pub fn reset(&mut self) {
        self.stage = Stage::Marker;
        self.begun = false;
        self.elements = 0;
        self.inner.clear();
        self.head = ReplyHead::NONE;
        self.names = false;
        self.first_element_next = false;
        self.head_known = false;
        self.integer = None;
        self.at = 0;
    }

    fn end(&self) -> Option<ReplyEnd> {
        (self.stage == Stage::Done).then_some(ReplyEnd {
            integer: self.integer,
        })
    }

    /// Goes on over a chunk; says how many of its bytes are of this reply.
    fn advance(&mut self, chunk: &[u8]) -> Result<usize, ReplyError> {
        let mut at = 0;
        while at < chunk.len() {
            let rest = &chunk[at..];
            at += match self.stage {
                Stage::Done => break,
                Stage::Marker => {
                    self.value_begins(rest[0])?;
                    1
                }
                Stage::Number { marker, len } => self.number(marker, len, rest)?,
                Stage::Text { after_cr } => self.text(after_cr, rest),
                Stage::Payload(left) => self.payload(left, rest),
                Stage::PayloadCr if rest[0] == b'\r' => {
                    self.stage = Stage::PayloadLf;
                    1
                }
                Stage::PayloadLf if rest[0] == b'\n' => {
                    self.value_ends();
                    1
                }
                Stage::PayloadCr | Stage::PayloadLf => return Err(ReplyError::LineEnd),
            };
        }
        Ok(at)
    }

    fn value_begins(&mut self, marker: u8) -> Result<(), ReplyError> {
        self.stage = match marker {
            b'+' | b'-' | b',' | b'#' | b'(' => Stage::Text { after_cr: false },
            b':' | b'$' | b'*' | b'~' | b'%' | b'|' | b'>' | b'_' | b'!' | b'=' => {
                Stage::Number { marker, len: 0 }
            }
            other => return Err(ReplyError::Marker(other)),
        };
        // An attribute is no value: the one that it is about follows it.
        if marker == b'|' {
            return Ok(());
        }
        if marker == b'>' && (self.begun || !self.inner.is_empty()) {
            let marker = PUSH_ASIDE;
            self.stage = Stage::Number { marker, len: 0 };
            return Ok(());
        }
        let text = matches!(marker, b'+' | b'-' | b'$' | b'!');
        if let Some(missing) = self.inner.last_mut() {
            self.level = Level::Inner;
            *missing -= 1;
            if *missing == 0 {
                self.inner.pop();
            }
        } else if self.begun {
            self.level = Level::Element;
            self.elements -= 1;
            if self.first_element_next {
                self.first_element_next = false;
                self.names = text;
                self.head_known = !text;
            }
        } else {
            self.level = Level::Reply;
            self.begun = true;
            self.head.begin(marker);
            self.names = matches!(marker, b'+' | b'-' | b'!');
            self.head_known = matches!(marker, b',' | b'#' | b'(' | b'=' | b'~' | b'%');
        }
        Ok(())
    }

    /// A value without elements has ended.
    fn value_ends(&mut self) {
        self.head_known |= self.names;
        self.names = false;
        let over = self.begun && self.elements == 0 && self.inner.is_empty();
        self.stage = if over { Stage::Done } else { Stage::Marker };
    }

    /// Reads on in the line of a number; says how many bytes it took.
    fn number(&mut self, marker: u8, len: usize, rest: &[u8]) -> Result<usize, ReplyError> {
        let found = rest
            .iter()
            .take(LINE_BYTES_MAX)
            .position(|&byte| byte == b'\n');
        let taken = found.map_or(rest.len(), |lf| lf + 1);
        if len == 0 && found.is_some() {
            // It came whole, as nearly always: no copy.
            self.number_ends(marker, &rest[..taken])?;
            return Ok(taken);
        }
        let end = len + taken;
        let slot = self.line.get_mut(len..end).ok_or(ReplyError::Length)?;
        slot.copy_from_slice(&rest[..taken]);
        if found.is_some() {
            let line = self.line;
            self.number_ends(marker, &line[..end])?;
        } else {
            self.stage = Stage::Number { marker, len: end };
        }
        Ok(taken)
    }

    fn number_ends(&mut self, marker: u8, line: &[u8]) -> Result<(), ReplyError> {
        let text = line.strip_suffix(b"\r\n").ok_or(ReplyError::LineEnd)?;
        if marker == b'_' && text.is_empty() {
            self.null_ends();
            return Ok(());
        }
        let number = integer(text).ok_or(ReplyError::Length)?;
        match (marker, number) {
            (b'_', _) => return Err(ReplyError::Length),
            (b':', number) => {
                if self.level != Level::Inner {
                    self.integer = Some(number);
                }
                self.value_ends();
            }
            // The nulls of RESP2.
            (b'$' | b'*', -1) => self.null_ends(),
            (_, ..0) => return Err(ReplyError::Length),
            // Three letters of format and a colon come first.
            (b'=', ..4) => return Err(ReplyError::Length),
            (b'$' | b'!' | b'=', len) => {
                self.head_known |= marker == b'$' && self.level == Level::Reply;
                self.stage = match len.unsigned_abs() {
                    0 => Stage::PayloadCr,
                    len => Stage::Payload(len),
                };
            }
            (_, count) => self.aggregate_begins(marker, count.unsigned_abs())?,
        }
        Ok(())
    }

    fn null_ends(&mut self) {
        if self.level == Level::Reply {
            self.head.set_null();
        }
        self.value_ends();
    }

    fn aggregate_begins(&mut self, marker: u8, count: u64) -> Result<(), ReplyError> {
        // Read from 63 bits: twice as much fits.
        let count = match marker {
            b'%' | b'|' => 2 * count,
            _ => count,
        };
        if count == 0 && !matches!(marker, b'|' | PUSH_ASIDE) {
            self.value_ends();
            return Ok(());
        }
        self.stage = Stage::Marker;
        let is_value = !matches!(marker, b'|' | PUSH_ASIDE);
        if is_value && self.level == Level::Reply {
            self.elements = count;
            self.first_element_next = matches!(marker, b'*' | b'>');
        } else if count > 0 {
            if self.inner.len() == DEPTH_MAX {
                return Err(ReplyError::Depth);
            }
            self.inner.push(count);
        }
        Ok(())
    }

    /// Reads on in a line of text; says how many bytes it took.
    fn text(&mut self, after_cr: bool, rest: &[u8]) -> usize {
        if after_cr && rest[0] == b'\n' {
            self.value_ends();
            return 1;
        }
        let end = rest.windows(2).position(|pair| pair == b"\r\n");
        if self.names {
            // A CR is text where no LF follows it.
            let open = rest.strip_suffix(b"\r").unwrap_or(rest);
            self.head.push(if after_cr { b"\r" } else { b"" });
            self.head.push(end.map_or(open, |end| &rest[..end]));
            self.head_known |= self.head.is_full();
        }
        match end {
            Some(end) => {
                self.value_ends();
                end + 2
            }
            None => {
                let after_cr = rest.ends_with(b"\r");
                self.stage = Stage::Text { after_cr };
                rest.len()
            }
        }
    }

    fn payload(&mut self, left: u64, rest: &[u8]) -> usize {
        // At most the chunk's length.
        let taken = left.min(rest.len() as u64) as usize;
        if self.names {
            self.head.push(&rest[..taken]);
            self.head_known |= self.head.is_full();
        }
        self.stage = match left - taken as u64 {
            0 => Stage::PayloadCr,
            left => Stage::Payload(left),
        };
        taken
    }
}

#[cfg(test)]
mod tests;
