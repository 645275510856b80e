//! A whole reply as a tree: for the proxy's own questions (`COMMAND`, `CLIENT LIST`, `INFO`) and
//! for the replies that are filtered. The replies that clients wait for are not parsed, only
//! scanned ([`super::reply`]).

use super::number::integer;
use super::reply::ReplyError;

/// Most values within each other.
const NESTING_MAX: usize = 64;

/// A reply or a part of it, of RESP2 or RESP3. Borrows its texts.
#[derive(Clone, PartialEq, Debug)]
pub enum Value<'a> {
    /// A simple string.
    Simple(&'a [u8]),
    /// A simple or blob error.
    Error(&'a [u8]),
    /// An integer.
    Integer(i64),
    /// A bulk or verbatim string, the latter without its three letters of format.
    Bulk(&'a [u8]),
    /// A null of either version.
    Null,
    /// A boolean, a double or a big number, as text.
    Scalar(&'a [u8]),
    /// An array, a set or a push.
    Array(Vec<Value<'a>>),
    /// A map.
    Map(Vec<(Value<'a>, Value<'a>)>),
}

impl<'a> Value<'a> {
    /// Reads the reply that a buffer begins with, and its length. An error where it is not there
    /// whole. Attributes are left out.
    pub fn parse(buffer: &'a [u8]) -> Result<(Value<'a>, usize), ReplyError> {
        let mut reader = Reader { buffer, at: 0 };
        let value = reader.value(0, false)?;
        Ok((value, reader.at))
    }

    /// The text of a string of any kind, not of an error.
    pub fn as_text(&self) -> Option<&'a [u8]> {
        match self {
            Value::Simple(text) | Value::Bulk(text) => Some(text),
            _ => None,
        }
    }

    /// The integer.
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Value::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// The elements of an array, a set or a push.
    pub fn as_array(&self) -> Option<&[Value<'a>]> {
        match self {
            Value::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// What a map, or an array of names and values in turn, has under this name.
    pub fn field(&self, name: &str) -> Option<&Value<'a>> {
        let named = |key: &Value<'_>| key.as_text() == Some(name.as_bytes());
        match self {
            Value::Map(fields) => {
                let found = fields.iter().find(|(key, _)| named(key));
                found.map(|(_, value)| value)
            }
            Value::Array(elements) => {
                let mut pairs = elements.chunks_exact(2);
                pairs.find(|pair| named(&pair[0])).map(|pair| &pair[1])
            }
            _ => None,
        }
    }
}

struct Reader<'a> {
    buffer: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// `within`: it stands in another value, or in an attribute.
    fn value(&mut self, nesting: usize, within: bool) -> Result<Value<'a>, ReplyError> {
        if nesting == NESTING_MAX {
            return Err(ReplyError::Depth);
        }
        let marker = *self.buffer.get(self.at).ok_or(ReplyError::LineEnd)?;
        let line = self.line()?;
        Ok(match marker {
            b'+' => Value::Simple(line),
            b'-' => Value::Error(line),
            b',' | b'#' | b'(' => Value::Scalar(line),
            b'_' => Value::Null,
            b':' => Value::Integer(integer(line).ok_or(ReplyError::Length)?),
            b'$' | b'*' if line == b"-1" => Value::Null,
            b'$' => Value::Bulk(self.payload(line)?),
            b'=' => Value::Bulk(self.payload(line)?.get(4..).ok_or(ReplyError::Length)?),
            b'!' => Value::Error(self.payload(line)?),
            // A push among elements is none of them (see `super::reply`).
            b'>' if within => {
                self.elements(line, nesting)?;
                self.value(nesting + 1, within)?
            }
            b'*' | b'~' | b'>' => Value::Array(self.elements(line, nesting)?),
            b'%' => Value::Map(self.pairs(line, nesting)?),
            b'|' => {
                self.pairs(line, nesting)?;
                self.value(nesting + 1, within)?
            }
            other => return Err(ReplyError::Marker(other)),
        })
    }

    fn elements(&mut self, line: &[u8], nesting: usize) -> Result<Vec<Value<'a>>, ReplyError> {
        let count = self.count(line)?;
        (0..count).map(|_| self.value(nesting + 1, true)).collect()
    }

    fn pairs(
        &mut self,
        line: &[u8],
        nesting: usize,
    ) -> Result<Vec<(Value<'a>, Value<'a>)>, ReplyError> {
        let count = self.count(line)?;
        let mut pair = |_| {
            Ok((
                self.value(nesting + 1, true)?,
                self.value(nesting + 1, true)?,
            ))
        };
        (0..count).map(&mut pair).collect()
    }

    /// The line that begins here, without its first byte and its end, and past it.
    fn line(&mut self) -> Result<&'a [u8], ReplyError> {
        let rest = &self.buffer[self.at..];
        let len = rest
            .windows(2)
            .position(|pair| pair == b"\r\n")
            .ok_or(ReplyError::LineEnd)?;
        self.at += len + 2;
        rest.get(1..len).ok_or(ReplyError::LineEnd)
    }

    /// A count that the rest of the buffer can hold: at least three bytes each.
    fn count(&self, line: &[u8]) -> Result<usize, ReplyError> {
        let most = (self.buffer.len() - self.at) / 3;
        let count = integer(line).and_then(|count| usize::try_from(count).ok());
        count
            .filter(|count| *count <= most)
            .ok_or(ReplyError::Length)
    }

    fn payload(&mut self, line: &[u8]) -> Result<&'a [u8], ReplyError> {
        let len = integer(line)
            .and_then(|len| usize::try_from(len).ok())
            .ok_or(ReplyError::Length)?;
        let rest = &self.buffer[self.at..];
        let end = len.checked_add(2).ok_or(ReplyError::Length)?;
        let text = rest.get(..end).and_then(|text| text.strip_suffix(b"\r\n"));
        self.at += end;
        text.ok_or(ReplyError::LineEnd)
    }
}
