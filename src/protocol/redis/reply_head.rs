//! What a reply is, told by its first bytes.

/// Bytes of a reply's beginning that are kept: longer than every word that is looked for.
const WORD_BYTES_MAX: usize = 24;

/// What the beginning of a reply tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyHead {
    marker: u8,
    null: bool,
    word: Word,
}

/// The first bytes of a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Word {
    bytes: [u8; WORD_BYTES_MAX],
    len: u8,
}

const NO_WORD: Word = Word {
    bytes: [0; WORD_BYTES_MAX],
    len: 0,
};

impl Word {
    fn push(&mut self, text: &[u8]) {
        let len = usize::from(self.len);
        let taken = text.len().min(WORD_BYTES_MAX - len);
        self.bytes[len..len + taken].copy_from_slice(&text[..taken]);
        // At most WORD_BYTES_MAX.
        self.len += taken as u8;
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Where a cluster's node sends the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redirect {
    /// The slot lives at another node.
    Moved,
    /// The slot is moving to another node.
    Ask,
}

impl ReplyHead {
    /// Nothing is known yet.
    pub(super) const NONE: ReplyHead = ReplyHead {
        marker: 0,
        null: false,
        word: NO_WORD,
    };

    /// The type of the reply.
    pub(super) fn begin(&mut self, marker: u8) {
        self.marker = marker;
    }

    /// More of its text.
    pub(super) fn push(&mut self, text: &[u8]) {
        self.word.push(text);
    }

    /// Whether no more of its text is kept.
    pub(super) fn is_full(&self) -> bool {
        usize::from(self.word.len) == WORD_BYTES_MAX
    }

    pub(super) fn set_null(&mut self) {
        self.null = true;
    }

    /// An error, simple or blob.
    pub fn is_error(&self) -> bool {
        matches!(self.marker, b'-' | b'!')
    }

    /// A push of RESP3: out of the order of replies.
    pub fn is_push(&self) -> bool {
        self.marker == b'>'
    }

    /// A null of either version.
    pub fn is_null(&self) -> bool {
        self.null
    }

    /// `+OK`.
    pub fn is_ok(&self) -> bool {
        self.is_status(b"OK")
    }

    /// `+QUEUED`.
    pub fn is_queued(&self) -> bool {
        self.is_status(b"QUEUED")
    }

    /// This simple string.
    pub fn is_status(&self, text: &[u8]) -> bool {
        self.marker == b'+' && self.word.as_bytes() == text
    }

    /// The first word of an error: `ERR`, `WRONGTYPE`, at most 24 bytes of it.
    pub fn error_code(&self) -> Option<&[u8]> {
        self.is_error().then(|| {
            let word = self.word.as_bytes();
            word.split(|&byte| byte == b' ').next().unwrap_or(word)
        })
    }

    /// `MOVED`, `REDIRECT` and `ASK`, which would lead the client past the proxy.
    pub fn redirect(&self) -> Option<Redirect> {
        match self.error_code()? {
            // Valkey's own word is for clients that asked for it.
            b"MOVED" | b"REDIRECT" => Some(Redirect::Moved),
            b"ASK" => Some(Redirect::Ask),
            _ => None,
        }
    }

    /// The text that an array or a push begins with: `message`, `subscribe`.
    pub(super) fn first_text(&self) -> Option<&[u8]> {
        matches!(self.marker, b'*' | b'>').then(|| self.word.as_bytes())
    }

    /// A line of MONITOR: a simple string that begins with the time, as no other does.
    pub(super) fn is_monitor_line(&self) -> bool {
        self.marker == b'+' && self.word.as_bytes().first().is_some_and(u8::is_ascii_digit)
    }
}

/// What the end of a reply tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplyEnd {
    /// The last integer among its outermost elements, or the reply itself. Subscriptions are
    /// counted there.
    pub integer: Option<i64>,
}
