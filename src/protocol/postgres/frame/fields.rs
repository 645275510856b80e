//! Reads the fields of one payload, front to back.

use super::{FrameError, malformed};

/// What is left of a payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'b> {
    what: &'static str,
    rest: &'b [u8],
}

impl<'b> Fields<'b> {
    pub(super) fn new(what: &'static str, payload: &'b [u8]) -> Fields<'b> {
        Fields {
            what,
            rest: payload,
        }
    }

    fn ends_early(&self) -> FrameError {
        malformed(self.what, "it ends early")
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'b [u8], FrameError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or_else(|| self.ends_early())?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or_else(|| self.ends_early())?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, FrameError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, FrameError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, FrameError> {
        self.array().map(i32::from_be_bytes)
    }

    /// A text that ends in a zero byte, without it.
    pub(super) fn text(&mut self) -> Result<&'b [u8], FrameError> {
        let end = self
            .rest
            .iter()
            .position(|&byte| byte == 0)
            .ok_or_else(|| malformed(self.what, "a text in it has no end"))?;
        let text = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(text)
    }

    /// A value with its length in front; `None` is NULL (length -1).
    pub(super) fn value(&mut self) -> Result<Option<&'b [u8]>, FrameError> {
        match self.i32()? {
            -1 => Ok(None),
            length => {
                let length = usize::try_from(length)
                    .map_err(|_| malformed(self.what, "a value in it has a negative length"))?;
                self.bytes(length).map(Some)
            }
        }
    }

    pub(super) fn rest(&self) -> &'b [u8] {
        self.rest
    }

    pub(super) fn end(&self) -> Result<(), FrameError> {
        match self.rest {
            [] => Ok(()),
            _ => Err(malformed(self.what, "bytes follow its end")),
        }
    }
}
