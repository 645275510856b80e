//! The chunked transfer coding (RFC 9112 7.1), read strictly. Extensions of chunks end at this hop.

use super::explain::explain;
use super::{Broken, FIELDS_MAX, Line, Piece, lines};
use crate::protocol::head::is_ticket_name;

/// Longest line before a chunk, in bytes: its size and its extensions.
const SIZE_LINE_BYTES_MAX: usize = 256;
/// Most digits of a chunk's size: the rest of 64 bits is room for sums.
const SIZE_DIGITS_MAX: usize = 15;
/// Longest trailer section, in bytes.
pub const TRAILER_BYTES_MAX: usize = 16 << 10;

/// Fields that frame or route a message, which a trailer must not be merged into (RFC 9110 6.5.1).
const NEVER_IN_TRAILERS: [&str; 5] = [
    "connection",
    "content-length",
    "host",
    "trailer",
    "transfer-encoding",
];

/// How far a body in chunks was read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chunked(State);

#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Size,
    /// This many bytes of a chunk are left.
    Data(u64),
    DataEnd,
    Trailers,
    Ended,
}

impl Chunked {
    pub(super) fn is_ended(&self) -> bool {
        self.0 == State::Ended
    }

    pub(super) fn next(&mut self, input: &[u8]) -> Result<Piece, Broken> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            match self.0 {
                State::Size => match size_line(rest)? {
                    None => return Ok(Piece::More(at)),
                    Some((size, used)) => {
                        at += used;
                        self.0 = match size {
                            0 => State::Trailers,
                            size => State::Data(size),
                        };
                    }
                },
                State::Data(_) if rest.is_empty() => return Ok(Piece::More(at)),
                State::Data(left) => {
                    let here = usize::try_from(left).map_or(rest.len(), |it| it.min(rest.len()));
                    self.0 = match left - here as u64 {
                        0 => State::DataEnd,
                        left => State::Data(left),
                    };
                    return Ok(Piece::Data(at..at + here));
                }
                State::DataEnd => match rest {
                    [b'\r', b'\n', ..] => {
                        at += 2;
                        self.0 = State::Size;
                    }
                    [] | [b'\r'] => return Ok(Piece::More(at)),
                    _ => return Err(Broken("a chunk is longer than its size")),
                },
                State::Trailers => match trailers(rest)? {
                    None => return Ok(Piece::More(at)),
                    Some(used) => {
                        self.0 = State::Ended;
                        return Ok(Piece::End {
                            used: at + used,
                            trailers: at..at + used - 2,
                        });
                    }
                },
                State::Ended => {
                    return Ok(Piece::End {
                        used: 0,
                        trailers: 0..0,
                    });
                }
            }
        }
    }
}

/// The size of the chunk that begins here, and the length of its line.
fn size_line(input: &[u8]) -> Result<Option<(u64, usize)>, Broken> {
    let digits = input
        .iter()
        .take_while(|byte| byte.is_ascii_hexdigit())
        .count();
    if digits > SIZE_DIGITS_MAX {
        return Err(Broken("a chunk's size is too large"));
    }
    if digits == 0 && !input.is_empty() {
        return Err(Broken("a chunk's size is not a number"));
    }
    let Some(end) = line_end(&input[digits..])? else {
        return Ok(None);
    };
    let mut size = 0;
    for digit in &input[..digits] {
        // Hex digits only; anything else would count as nothing.
        let digit = char::from(*digit).to_digit(16).unwrap_or_default();
        size = size << 4 | u64::from(digit);
    }
    Ok(Some((size, digits + end)))
}

/// The length of what follows a size, its CR LF included.
fn line_end(rest: &[u8]) -> Result<Option<usize>, Broken> {
    match rest {
        [b'\r', b'\n', ..] => return Ok(Some(2)),
        [] | [b'\r'] => return Ok(None),
        // RFC 9112 7.1.1 allows white space before the semicolon, which readers take differently.
        [b';', ..] => {}
        _ => return Err(Broken("a chunk's size is not a number")),
    }
    for (at, byte) in rest.iter().enumerate() {
        match byte {
            b'\r' => {
                return match rest.get(at + 1) {
                    Some(b'\n') => Ok(Some(at + 2)),
                    None => Ok(None),
                    Some(_) => Err(Broken("a chunk's extension has a control character")),
                };
            }
            b'\t' => {}
            byte if byte.is_ascii_control() => {
                return Err(Broken("a chunk's extension has a control character"));
            }
            _ => {}
        }
        if at >= SIZE_LINE_BYTES_MAX {
            return Err(Broken("a chunk's extension is too long"));
        }
    }
    Ok(None)
}

/// The length of the trailer section that begins here, with its last line.
fn trailers(input: &[u8]) -> Result<Option<usize>, Broken> {
    if input.starts_with(b"\r\n") {
        return Ok(Some(2));
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    match httparse::parse_headers(input, &mut fields) {
        Ok(httparse::Status::Complete((used, fields))) if used <= TRAILER_BYTES_MAX => {
            check_trailers(&input[..used], fields)?;
            Ok(Some(used))
        }
        Ok(httparse::Status::Partial) if input.len() <= TRAILER_BYTES_MAX => Ok(None),
        Ok(_) => Err(Broken("the trailers are too long")),
        Err(error) => Err(explain(error, input)),
    }
}

fn check_trailers(section: &[u8], fields: &[httparse::Header<'_>]) -> Result<(), Broken> {
    let mut taken: Vec<Line> = Vec::with_capacity(fields.len());
    lines::take(section, fields, &mut taken)?;
    for line in &taken {
        let name = line.name(section);
        if is_ticket_name(name) {
            return Err(Broken("a ticket cannot travel in a trailer"));
        }
        let named = |known: &&str| name.eq_ignore_ascii_case(known.as_bytes());
        if NEVER_IN_TRAILERS.iter().any(named) {
            return Err(Broken("a trailer has a field that frames the message"));
        }
    }
    Ok(())
}
