//! gRPC's frames within HTTP/2 bodies: a flag, four bytes of length, a message (gRPC over HTTP2,
//! "Length-Prefixed-Message").

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes before each message.
const PREFIX_BYTES: usize = 5;

/// A body that is no sequence of plain messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// The flag says so, although nothing was agreed on.
    #[error("a message is compressed")]
    Compressed,
    /// Longer than is taken.
    #[error("a message is longer than {0} bytes")]
    TooLong(usize),
    /// The body ended within a message.
    #[error("a message is cut off")]
    Cut,
    /// Where there must be one.
    #[error("the call has not exactly one message")]
    NotOne,
}

/// Cuts a body into messages.
pub struct Messages {
    buffer: BytesMut,
    bytes_max: usize,
}

impl Messages {
    /// Messages of at most so many bytes.
    pub fn new(bytes_max: usize) -> Messages {
        Messages {
            buffer: BytesMut::new(),
            bytes_max,
        }
    }

    /// More of the body.
    pub fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    /// The next message with its prefix, if it is here whole.
    pub fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(prefix) = self.buffer.first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let [flag, length @ ..] = *prefix;
        if flag != 0 {
            return Err(FrameError::Compressed);
        }
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > self.bytes_max {
            return Err(FrameError::TooLong(self.bytes_max));
        }
        if self.buffer.len() < PREFIX_BYTES + length {
            return Ok(None);
        }
        Ok(Some(self.buffer.split_to(PREFIX_BYTES + length).freeze()))
    }

    /// The one message of a body that has ended, without its prefix.
    pub fn only(mut self) -> Result<Bytes, FrameError> {
        let message = self.next()?;
        match message {
            Some(message) if self.buffer.is_empty() => Ok(payload(message)),
            None if !self.buffer.is_empty() => Err(FrameError::Cut),
            _ => Err(FrameError::NotOne),
        }
    }

    /// How many bytes wait to be cut.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// A message without its prefix.
pub fn payload(mut framed: Bytes) -> Bytes {
    framed.advance(PREFIX_BYTES.min(framed.len()));
    framed
}

/// A message with its prefix. Its length was bounded when it was read.
pub fn frame(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.extend_from_slice(message);
    framed.freeze()
}

#[cfg(test)]
mod tests {
    use super::{FrameError, Messages, frame, payload};

    #[test]
    fn messages_are_cut_where_they_end() {
        let mut messages = Messages::new(8);
        let body = [frame(b"one"), frame(b""), frame(b"three")].concat();
        let mut found = vec![];
        for byte in body {
            messages.push(&[byte]);
            while let Some(message) = messages.next().unwrap() {
                found.push(payload(message));
            }
        }
        assert_eq!(found, ["one", "", "three"]);
        assert!(messages.is_empty());
    }

    #[test]
    fn what_is_no_single_plain_message_is_refused() {
        let only = |bytes: &[u8]| {
            let mut messages = Messages::new(8);
            messages.push(bytes);
            messages.only()
        };
        assert_eq!(only(&frame(b"a")).unwrap(), "a");
        assert_eq!(only(b""), Err(FrameError::NotOne));
        assert_eq!(
            only(&[frame(b"a"), frame(b"b")].concat()),
            Err(FrameError::NotOne)
        );
        assert_eq!(only(&frame(b"a")[..5]), Err(FrameError::Cut));
        assert_eq!(only(&[1, 0, 0, 0, 0]), Err(FrameError::Compressed));
        assert_eq!(
            only(&[0, 0xff, 0xff, 0xff, 0xff]),
            Err(FrameError::TooLong(8))
        );
    }
}
