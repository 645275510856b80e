//! Typed messages out of a stream of bytes, whole or in pieces.

use super::{
    AUTH_PAYLOAD_BYTES_MAX, FrameError, HEAD_BYTES, PAYLOAD_BYTES_MAX, SMALL_PAYLOAD_BYTES_MAX,
    WHOLE_BYTES_MAX,
};

/// Bytes of a type and a length.
const HEADER_BYTES: usize = 5;

/// Who sends the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// A client that is asked for authentication: it sends nothing but `p` (and `X`).
    Authenticating,
    /// A client.
    Client,
    /// A server.
    Server,
}

/// What the buffered bytes begin with. `raw` is what is to be forwarded and dropped from the
/// buffer; it holds the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next<'b> {
    /// Not enough: the buffer is to hold this many bytes in all.
    More {
        /// At least.
        bytes: usize,
    },
    /// A whole message.
    Whole {
        /// Its type.
        tag: u8,
        /// Without the header.
        payload: &'b [u8],
        /// With the header.
        raw: &'b [u8],
    },
    /// The beginning of a message that is too long to be held: its type and length are known, and
    /// [`Next::Part`] follows until nothing is left.
    Begin {
        /// Its type.
        tag: u8,
        /// The length of the whole payload.
        payload_bytes: usize,
        /// The first bytes of the payload.
        head: &'b [u8],
        /// With the header.
        raw: &'b [u8],
    },
    /// More of the message that began.
    Part {
        /// Its type.
        tag: u8,
        /// The bytes.
        raw: &'b [u8],
        /// How many of it are still to come: 0 at its end.
        left: usize,
    },
}

impl Next<'_> {
    /// How many bytes are to be dropped from the buffer.
    pub fn consumed(&self) -> usize {
        match self {
            Next::More { .. } => 0,
            Next::Whole { raw, .. } | Next::Begin { raw, .. } | Next::Part { raw, .. } => raw.len(),
        }
    }
}

/// Splits one direction of a connection into messages. Where a long message is in the middle is
/// all that it remembers.
#[derive(Clone, Debug)]
pub struct Decoder {
    side: Side,
    /// Type and bytes that are still to come.
    streaming: Option<(u8, usize)>,
}

impl Decoder {
    /// For the stream that this side sends.
    pub fn new(side: Side) -> Decoder {
        Decoder {
            side,
            streaming: None,
        }
    }

    /// The client is authenticated: it sends its usual messages from here on.
    pub fn authenticated(&mut self) {
        if self.side == Side::Authenticating {
            self.side = Side::Client;
        }
    }

    /// Whether the next byte begins a message.
    pub fn is_between_messages(&self) -> bool {
        self.streaming.is_none()
    }

    /// What the buffer begins with. Call it again with what follows [`Next::consumed`].
    pub fn next<'b>(&mut self, buffer: &'b [u8]) -> Result<Next<'b>, FrameError> {
        if let Some((tag, left)) = self.streaming {
            return Ok(self.part(buffer, tag, left));
        }
        let Some((header, payload)) = buffer.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(Next::More {
                bytes: HEADER_BYTES,
            });
        };
        let [tag, length @ ..] = *header;
        let payload_bytes = check(self.side, tag, i32::from_be_bytes(length))?;
        if payload_bytes <= WHOLE_BYTES_MAX && !self.streams_at_once(tag, payload_bytes) {
            let bytes = HEADER_BYTES + payload_bytes;
            return Ok(match buffer.get(..bytes) {
                None => Next::More { bytes },
                Some(raw) => Next::Whole {
                    tag,
                    payload: &raw[HEADER_BYTES..],
                    raw,
                },
            });
        }
        let wanted = if self.streams_at_once(tag, payload_bytes) {
            0
        } else {
            HEAD_BYTES
        };
        if payload.len() < wanted {
            return Ok(Next::More {
                bytes: HEADER_BYTES + wanted,
            });
        }
        let head = &payload[..payload.len().min(payload_bytes)];
        self.streaming = Some((tag, payload_bytes - head.len())).filter(|(_, left)| *left > 0);
        Ok(Next::Begin {
            tag,
            payload_bytes,
            head,
            raw: &buffer[..HEADER_BYTES + head.len()],
        })
    }

    fn part<'b>(&mut self, buffer: &'b [u8], tag: u8, left: usize) -> Next<'b> {
        if buffer.is_empty() {
            return Next::More { bytes: 1 };
        }
        let raw = &buffer[..buffer.len().min(left)];
        let left = left - raw.len();
        self.streaming = Some((tag, left)).filter(|(_, left)| *left > 0);
        Next::Part { tag, raw, left }
    }

    /// Data that nobody looks into need not be held once it is longer than a read.
    fn streams_at_once(&self, tag: u8, payload_bytes: usize) -> bool {
        let data = tag == b'd' || (tag == b'D' && self.side == Side::Server);
        data && payload_bytes > HEAD_BYTES
    }
}

/// Checks a type and a length, which counts itself; the length of the payload.
fn check(side: Side, tag: u8, length: i32) -> Result<usize, FrameError> {
    let max = match side {
        Side::Authenticating => match tag {
            b'p' => AUTH_PAYLOAD_BYTES_MAX,
            b'X' => SMALL_PAYLOAD_BYTES_MAX,
            _ => return Err(FrameError::UnknownType { tag }),
        },
        // The bounds of the server's SocketBackend.
        Side::Client => match tag {
            b'Q' | b'P' | b'B' | b'F' | b'd' => PAYLOAD_BYTES_MAX,
            b'C' | b'D' | b'E' | b'H' | b'S' | b'X' | b'c' | b'f' => SMALL_PAYLOAD_BYTES_MAX,
            _ => return Err(FrameError::UnknownType { tag }),
        },
        Side::Server if tag.is_ascii_alphanumeric() => PAYLOAD_BYTES_MAX,
        Side::Server => return Err(FrameError::UnknownType { tag }),
    };
    let what = name(side, tag);
    let bytes = usize::try_from(i64::from(length) - 4).map_err(|_| FrameError::Length {
        what,
        length: length.into(),
    })?;
    if bytes > max {
        return Err(FrameError::TooLong { what, bytes, max });
    }
    Ok(bytes)
}

fn name(side: Side, tag: u8) -> &'static str {
    match (side, tag) {
        (Side::Server, b'D') => "DataRow",
        (Side::Server, b'E') => "ErrorResponse",
        (Side::Server, _) => "a message of the server",
        (_, b'Q') => "Query",
        (_, b'P') => "Parse",
        (_, b'B') => "Bind",
        (_, b'D') => "Describe",
        (_, b'E') => "Execute",
        (_, b'C') => "Close",
        (_, b'S') => "Sync",
        (_, b'H') => "Flush",
        (_, b'F') => "FunctionCall",
        (_, b'd') => "CopyData",
        (_, b'c') => "CopyDone",
        (_, b'f') => "CopyFail",
        (_, b'X') => "Terminate",
        (_, b'p') => "an answer to a request for authentication",
        _ => "a message",
    }
}
