//! Where requests end, and what their arguments are: RESP arrays of bulk strings, and inline
//! commands.
//!
//! Incremental: each byte is looked at once, payloads are skipped by their length and never copied.
//! A request that grows past a bound is offered with the arguments that are there, so that it can
//! be decided on and streamed.
//!
//! Invariant: what passes here is read by Redis as the same arguments. Redis skips the two bytes
//! after a length or a payload without looking at them (`processMultibulkBuffer`); here they must
//! be CR LF, so that no request can be hidden in them.

use super::args::{Args, Span};
use super::inline;
use super::number::integer;

/// The bounds of a request. The defaults are Redis's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestLimits {
    /// Most arguments.
    pub args_max: u32,
    /// Longest argument in bytes: `proto-max-bulk-len`.
    pub bulk_bytes_max: u64,
    /// Longest inline command in bytes, and longest line that tells a length.
    pub inline_bytes_max: usize,
    /// A request that does not end within so many bytes is offered as
    /// [`RequestProgress::Partial`]. Also what the arguments' places can take of memory.
    pub decide_bytes: usize,
}

impl Default for RequestLimits {
    fn default() -> RequestLimits {
        RequestLimits {
            args_max: i32::MAX as u32,
            bulk_bytes_max: 512 << 20,
            inline_bytes_max: 64 << 10,
            decide_bytes: 64 << 10,
        }
    }
}

/// How far a request is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestProgress {
    /// More bytes are needed.
    More,
    /// It is the first `len` bytes of the buffer.
    Complete {
        /// Its length in bytes.
        len: usize,
    },
    /// It does not end within the bound: decide on the arguments that are there and stream, or
    /// [`RequestScanner::hold_until`] more of it is there.
    Partial,
}

/// What of a chunk belongs to the request that is streamed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Streamed {
    /// So many bytes from the chunk's beginning.
    pub len: usize,
    /// The last of them is the last of the request.
    pub ended: bool,
}

/// Bytes that are no request. Redis answers so and closes the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// `*` is not followed by a count, or by too high a one.
    #[error("invalid multibulk length")]
    MultibulkLength,
    /// `$` is not followed by a length, or by too high a one.
    #[error("invalid bulk length")]
    BulkLength,
    /// An argument does not begin with `$`.
    #[error("expected '$', got '{}'", char::from(*.0))]
    ExpectedBulk(u8),
    /// The line of a count has no end.
    #[error("too big mbulk count string")]
    CountLine,
    /// The line of a length has no end.
    #[error("too big bulk count string")]
    LengthLine,
    /// An inline command has no end.
    #[error("too big inline request")]
    InlineTooBig,
    /// An inline command's quotes do not close, or text follows them.
    #[error("unbalanced quotes in request")]
    Quotes,
    /// CR LF is missing where it must be. Redis would read on, and could read another request.
    #[error("expected CR LF")]
    LineEnd,
}

impl ProtocolError {
    /// The reply before the connection is closed.
    pub fn to_reply(self) -> Vec<u8> {
        let text = match self {
            // What is not visible would break the line, or the reader's terminal.
            ProtocolError::ExpectedBulk(byte) if !byte.is_ascii_graphic() => {
                format!("expected '$', got '\\x{byte:02x}'")
            }
            _ => self.to_string(),
        };
        format!("-ERR Protocol error: {text}\r\n").into_bytes()
    }
}

/// Bytes of a line that tells a length, more than any that Redis takes needs.
const LENGTH_LINE_BYTES_MAX: usize = 24;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Before the first byte.
    Start,
    /// Before the `$` of an argument.
    Length,
    /// In an argument of this many bytes.
    Payload(u64),
    /// After the last byte.
    Done,
}

/// Where the stream is, after [`RequestProgress::Partial`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flow {
    Payload(u64),
    Cr,
    Lf,
    Length {
        line: [u8; LENGTH_LINE_BYTES_MAX],
        len: usize,
    },
    Done,
}

const NO_LINE: Flow = Flow::Length {
    line: [0; LENGTH_LINE_BYTES_MAX],
    len: 0,
};

/// Finds the end of one request after the other, and their arguments.
#[derive(Debug)]
pub struct RequestScanner {
    limits: RequestLimits,
    decide_bytes: usize,
    stage: Stage,
    flow: Flow,
    /// So many bytes are behind us.
    at: usize,
    /// So many bytes of the line that begins there hold no CR.
    looked: usize,
    spans: Vec<Span>,
    declared: usize,
    /// Arguments that are not there yet, when streaming: not whole.
    missing: usize,
    /// The unquoted arguments of an inline command.
    inline: Option<Vec<u8>>,
}

impl RequestScanner {
    /// A scanner before its first request.
    pub fn new(limits: RequestLimits) -> RequestScanner {
        RequestScanner {
            limits,
            decide_bytes: limits.decide_bytes.min(u32::MAX as usize),
            stage: Stage::Start,
            flow: Flow::Done,
            at: 0,
            looked: 0,
            spans: Vec::new(),
            declared: 0,
            missing: 0,
            inline: None,
        }
    }

    /// Looks at what came. The buffer begins with the request's first byte, at every call.
    #[inline]
    pub fn scan(&mut self, buffer: &[u8]) -> Result<RequestProgress, ProtocolError> {
        loop {
            match self.stage {
                Stage::Start => match buffer.first() {
                    None => return Ok(RequestProgress::More),
                    Some(b'*') => {
                        let Some(line) = self.line(buffer, ProtocolError::CountLine)? else {
                            return self.pending(buffer);
                        };
                        self.begin(integer(line))?;
                    }
                    Some(_) => return self.scan_inline(buffer),
                },
                Stage::Length => {
                    let Some(line) = self.length_line(buffer)? else {
                        return self.pending(buffer);
                    };
                    self.stage = Stage::Payload(self.bulk_length(line)?);
                }
                Stage::Payload(len) => {
                    let end = self.at as u64 + len;
                    if (buffer.len() as u64) < end + 2 {
                        if end + 2 > self.decide_bytes as u64 {
                            return self.partial(buffer);
                        }
                        return Ok(RequestProgress::More);
                    }
                    // Below the length of a buffer.
                    let end = end as usize;
                    if buffer[end..end + 2] != *b"\r\n" {
                        return Err(ProtocolError::LineEnd);
                    }
                    self.spans.push(Span::of(self.at, end - self.at));
                    self.at = end + 2;
                    self.missing -= 1;
                    self.stage = match self.missing {
                        0 => Stage::Done,
                        _ => Stage::Length,
                    };
                }
                Stage::Done => return Ok(RequestProgress::Complete { len: self.at }),
            }
        }
    }

    /// The arguments found so far in the buffer that was given to `scan`.
    pub fn args<'a>(&'a self, buffer: &'a [u8]) -> Args<'a> {
        match &self.inline {
            Some(unquoted) => Args::inline(unquoted, &self.spans),
            None => Args::new(buffer, &self.spans, self.declared),
        }
    }

    /// After [`RequestProgress::Partial`]: scan on until so many bytes are there.
    pub fn hold_until(&mut self, bytes: usize) {
        self.decide_bytes = bytes.min(u32::MAX as usize);
    }

    /// How much of a chunk belongs to a request that was offered as [`RequestProgress::Partial`].
    /// The chunk is what follows the buffer that was given to `scan`, or the last chunk.
    ///
    /// After an error nothing of the chunk may be forwarded: then the server cannot have run it.
    pub fn stream(&mut self, chunk: &[u8]) -> Result<Streamed, ProtocolError> {
        let mut at = 0;
        while at < chunk.len() {
            match &mut self.flow {
                Flow::Done => {
                    return Ok(Streamed {
                        len: at,
                        ended: true,
                    });
                }
                Flow::Payload(left) => {
                    // At most the chunk's length.
                    let taken = (*left).min((chunk.len() - at) as u64) as usize;
                    at += taken;
                    *left -= taken as u64;
                    if *left == 0 {
                        self.flow = Flow::Cr;
                    }
                    continue;
                }
                Flow::Cr if chunk[at] == b'\r' => self.flow = Flow::Lf,
                Flow::Lf if chunk[at] == b'\n' => {
                    self.missing -= 1;
                    self.flow = match self.missing {
                        0 => Flow::Done,
                        _ => NO_LINE,
                    };
                }
                Flow::Cr | Flow::Lf => return Err(ProtocolError::LineEnd),
                Flow::Length { line, len } => {
                    *line.get_mut(*len).ok_or(ProtocolError::BulkLength)? = chunk[at];
                    *len += 1;
                    let line = *line;
                    if let Some(text) = line[..*len].strip_suffix(b"\n") {
                        let text = text.strip_suffix(b"\r").ok_or(ProtocolError::LineEnd)?;
                        self.flow = Flow::Payload(self.bulk_length(text)?);
                    }
                }
            }
            at += 1;
        }
        Ok(Streamed {
            len: at,
            ended: self.flow == Flow::Done,
        })
    }

    /// Forgets the request, which has ended. The next one begins with the byte after it.
    pub fn reset(&mut self) {
        self.decide_bytes = self.limits.decide_bytes.min(u32::MAX as usize);
        self.stage = Stage::Start;
        self.flow = Flow::Done;
        self.at = 0;
        self.looked = 0;
        self.spans.clear();
        // One large request must not keep its memory for the connection's life.
        self.spans.shrink_to(SPANS_KEPT);
        self.declared = 0;
        self.missing = 0;
        self.inline = None;
    }

    fn begin(&mut self, count: Option<i64>) -> Result<(), ProtocolError> {
        let count = count
            .filter(|count| *count <= i64::from(self.limits.args_max))
            .ok_or(ProtocolError::MultibulkLength)?;
        // Below zero: no arguments, as Redis has it.
        self.declared = usize::try_from(count).unwrap_or(0);
        self.missing = self.declared;
        self.stage = match self.declared {
            0 => Stage::Done,
            _ => Stage::Length,
        };
        Ok(())
    }

    fn scan_inline(&mut self, buffer: &[u8]) -> Result<RequestProgress, ProtocolError> {
        // Redis looks for LF as in a C string: it never looks past NUL.
        let end = buffer[self.at..]
            .iter()
            .position(|byte| matches!(byte, b'\n' | 0))
            .map_or(buffer.len(), |found| self.at + found);
        self.at = end;
        if end > self.limits.inline_bytes_max {
            return Err(ProtocolError::InlineTooBig);
        }
        if buffer.get(end) != Some(&b'\n') {
            return match buffer.len() > self.limits.inline_bytes_max {
                true => Err(ProtocolError::InlineTooBig),
                false => Ok(RequestProgress::More),
            };
        }
        let line = &buffer[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mut unquoted = Vec::with_capacity(line.len());
        self.spans.clear();
        inline::split(line, &mut unquoted, &mut self.spans)?;
        self.inline = Some(unquoted);
        self.declared = self.spans.len();
        self.at = end + 1;
        self.stage = Stage::Done;
        Ok(RequestProgress::Complete { len: self.at })
    }

    /// The line of an argument's length, without `$`, and past it.
    fn length_line<'b>(&mut self, buffer: &'b [u8]) -> Result<Option<&'b [u8]>, ProtocolError> {
        match buffer.get(self.at) {
            None => Ok(None),
            Some(b'$') => {
                let at = self.at;
                let found = self.line(buffer, ProtocolError::LengthLine)?;
                // `bulk_length` looks at the `$` too.
                Ok(found.map(|_| &buffer[at..self.at - 2]))
            }
            Some(&other) => Err(ProtocolError::ExpectedBulk(other)),
        }
    }

    /// The line that begins here, without its first byte and its end, and past it.
    #[inline]
    fn line<'b>(
        &mut self,
        buffer: &'b [u8],
        endless: ProtocolError,
    ) -> Result<Option<&'b [u8]>, ProtocolError> {
        let rest = &buffer[self.at..];
        let mut more = rest[self.looked..].iter();
        let Some(len) = more.position(|&byte| byte == b'\r') else {
            self.looked = rest.len();
            return match rest.len() > self.limits.inline_bytes_max {
                true => Err(endless),
                false => Ok(None),
            };
        };
        let len = self.looked + len;
        match rest.get(len + 1) {
            None => Ok(None),
            Some(b'\n') => {
                self.at += len + 2;
                self.looked = 0;
                Ok(Some(&rest[1..len]))
            }
            Some(_) => Err(ProtocolError::LineEnd),
        }
    }

    /// Reads `$` and a length.
    fn bulk_length(&self, line: &[u8]) -> Result<u64, ProtocolError> {
        let text = match line {
            [b'$', text @ ..] => text,
            [other, ..] => return Err(ProtocolError::ExpectedBulk(*other)),
            [] => return Err(ProtocolError::BulkLength),
        };
        integer(text)
            .and_then(|len| u64::try_from(len).ok())
            .filter(|len| *len <= self.limits.bulk_bytes_max)
            .ok_or(ProtocolError::BulkLength)
    }

    fn pending(&mut self, buffer: &[u8]) -> Result<RequestProgress, ProtocolError> {
        match self.stage {
            Stage::Length if buffer.len() >= self.decide_bytes => self.partial(buffer),
            _ => Ok(RequestProgress::More),
        }
    }

    /// Brings the stream to the end of the buffer.
    fn partial(&mut self, buffer: &[u8]) -> Result<RequestProgress, ProtocolError> {
        self.flow = match self.stage {
            Stage::Payload(0) => Flow::Cr,
            Stage::Payload(len) => Flow::Payload(len),
            _ => NO_LINE,
        };
        let missing = self.missing;
        self.stream(&buffer[self.at..])?;
        // What the scan has not seen whole is still missing, should it go on.
        debug_assert_eq!(
            self.missing, missing,
            "a partial request cannot have a whole argument"
        );
        Ok(RequestProgress::Partial)
    }
}

/// Places of arguments that a connection keeps memory for between requests.
const SPANS_KEPT: usize = 64;

#[cfg(test)]
mod tests;
