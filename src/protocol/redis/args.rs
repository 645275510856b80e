//! The arguments of a request, as places in its bytes: nothing is copied.

/// Where an argument is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) len: u32,
}

impl Span {
    pub(super) fn of(start: usize, len: usize) -> Span {
        // Buffers are bounded by `decide_bytes`, which `RequestScanner` keeps below 4 GiB.
        Span {
            start: u32::try_from(start).unwrap_or(u32::MAX),
            len: u32::try_from(len).unwrap_or(u32::MAX),
        }
    }

    fn end(self) -> usize {
        self.start as usize + self.len as usize
    }
}

/// The arguments of a request, as far as they are there whole.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
    declared: usize,
    inline: bool,
}

impl<'a> Args<'a> {
    /// So many of a request, of which these are in the buffer.
    pub(super) fn new(buffer: &'a [u8], spans: &'a [Span], declared: usize) -> Args<'a> {
        Args {
            bytes: buffer,
            spans,
            declared,
            inline: false,
        }
    }

    /// All of an inline command, unquoted.
    pub(super) fn inline(unquoted: &'a [u8], spans: &'a [Span]) -> Args<'a> {
        Args {
            bytes: unquoted,
            spans,
            declared: spans.len(),
            inline: true,
        }
    }

    /// The argument at this place; 0 is the command's name.
    pub fn get(&self, at: usize) -> Option<&'a [u8]> {
        let span = self.spans.get(at)?;
        self.bytes.get(span.start as usize..span.end())
    }

    /// How many are there.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether none is there.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// How many there will be.
    pub fn declared(&self) -> usize {
        self.declared
    }

    /// Whether all are there.
    pub fn is_complete(&self) -> bool {
        self.spans.len() == self.declared
    }

    /// Those that are there.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (bytes, spans) = (self.bytes, self.spans);
        spans
            .iter()
            .filter_map(move |span| bytes.get(span.start as usize..span.end()))
    }

    /// The command that begins at a later argument.
    pub fn from(&self, at: usize) -> Args<'a> {
        Args {
            spans: self.spans.get(at..).unwrap_or_default(),
            declared: self.declared.saturating_sub(at),
            ..*self
        }
    }

    /// Whether it came as an inline command: its bytes are not those of its arguments.
    pub(super) fn is_inline(&self) -> bool {
        self.inline
    }

    /// Where in the request the argument at this place, which is not the first, begins with its
    /// `$`.
    pub(super) fn offset_of(&self, at: usize) -> Option<usize> {
        let before = self.spans.get(at.checked_sub(1)?)?;
        Some(before.end() + 2)
    }
}
