//! Where a body ends, and its payload, piece by piece.

use std::ops::Range;

use super::chunked::Chunked;

/// Bytes that are no frame, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub &'static str);

/// How a body is delimited, and how far it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BodyReader {
    /// This many bytes are left.
    Length(u64),
    /// In chunks.
    Chunked(Chunked),
    /// Until the connection ends. Responses only.
    UntilClose,
}

/// What comes next in the input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Payload, at this place of the input. The input is used up to its end.
    Data(Range<usize>),
    /// More input is needed; this many bytes of it are used up.
    More(usize),
    /// The body has ended.
    End {
        /// This many bytes of the input are used up.
        used: usize,
        /// The lines of the trailer section, among them.
        trailers: Range<usize>,
    },
}

/// How a body is framed on its way on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// As it is.
    Plain,
    /// In chunks.
    Chunked,
}

impl BodyReader {
    /// No body.
    pub const EMPTY: BodyReader = BodyReader::Length(0);

    /// A body in chunks.
    pub fn chunked() -> BodyReader {
        BodyReader::Chunked(Chunked::default())
    }

    /// What comes next. Payload that it tells of counts as read.
    pub fn next(&mut self, input: &[u8]) -> Result<Piece, Broken> {
        match self {
            BodyReader::Length(0) => Ok(Piece::End {
                used: 0,
                trailers: 0..0,
            }),
            BodyReader::Length(left) => {
                let here = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= here as u64;
                Ok(payload(here))
            }
            BodyReader::Chunked(chunked) => chunked.next(input),
            BodyReader::UntilClose => Ok(payload(input.len())),
        }
    }

    /// Whether all of it was read.
    pub fn is_ended(&self) -> bool {
        match self {
            BodyReader::Length(left) => *left == 0,
            BodyReader::Chunked(chunked) => chunked.is_ended(),
            BodyReader::UntilClose => false,
        }
    }

    /// How many bytes are left, where that is known.
    pub fn left(&self) -> Option<u64> {
        match self {
            BodyReader::Length(left) => Some(*left),
            BodyReader::Chunked(chunked) if chunked.is_ended() => Some(0),
            BodyReader::Chunked(_) | BodyReader::UntilClose => None,
        }
    }
}

fn payload(here: usize) -> Piece {
    match here {
        0 => Piece::More(0),
        here => Piece::Data(0..here),
    }
}

impl Encoding {
    /// Frames a piece of payload. An empty piece is none: it would end a body in chunks.
    pub fn put(self, payload: &[u8], out: &mut Vec<u8>) {
        if payload.is_empty() {
            return;
        }
        match self {
            Encoding::Plain => out.extend_from_slice(payload),
            Encoding::Chunked => {
                Encoding::put_size(payload.len(), out);
                out.extend_from_slice(payload);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// The line before a chunk.
    pub fn put_size(size: usize, out: &mut Vec<u8>) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut shift = (usize::BITS - size.leading_zeros()).max(1).div_ceil(4) * 4;
        while shift > 0 {
            shift -= 4;
            out.push(DIGITS[(size >> shift) & 0xf]);
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Ends a body. A plain one has no room for trailers.
    pub fn put_end(self, trailers: &[u8], out: &mut Vec<u8>) {
        if self == Encoding::Chunked {
            out.extend_from_slice(b"0\r\n");
            out.extend_from_slice(trailers);
            out.extend_from_slice(b"\r\n");
        }
    }
}
