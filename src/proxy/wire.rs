//! The two directions of a connection, each with a buffer that serves one message after the other.
//!
//! Every read and write that is dropped half way leaves its buffer as it was: what was read is in
//! it, and what was not written is not told as written.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// What a buffer holds at first, in bytes.
const BUFFER_BYTES: usize = 8 << 10;
/// What a buffer grows to for a body, in bytes.
pub const BODY_BUFFER_BYTES: usize = 64 << 10;
/// Pieces up to this long are copied behind what waits to be written; longer ones are written from
/// where they are.
const COPIED_BYTES_MAX: usize = 4 << 10;
/// What waits to be written is written when it is longer than this.
const OUTPUT_BYTES_MAX: usize = 16 << 10;

/// Bytes that were read and not used yet.
#[derive(Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// These bytes, as if they had been read.
    pub fn of(bytes: &[u8]) -> Buffer {
        Buffer {
            bytes: bytes.to_vec(),
            start: 0,
            end: bytes.len(),
        }
    }

    /// What was read.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Takes bytes out at the front.
    pub fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start >= self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room for more, at most up to `bytes_max` in all. Empty: the buffer is full.
    fn room(&mut self, bytes_max: usize) -> &mut [u8] {
        if self.end == self.bytes.len() && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            let grown = (2 * self.bytes.len()).clamp(BUFFER_BYTES.min(bytes_max), bytes_max);
            self.bytes.resize(grown.max(self.bytes.len()), 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Gives back what a body has made it grow to.
    pub fn shrink(&mut self) {
        if self.is_empty() && self.bytes.len() > BUFFER_BYTES {
            self.bytes.truncate(BUFFER_BYTES);
            self.bytes.shrink_to_fit();
        }
    }
}

/// The side that is read.
pub struct Source<R> {
    /// Where bytes come from.
    pub half: R,
    /// What has come.
    pub input: Buffer,
}

impl<R: AsyncRead + Unpin> Source<R> {
    /// Reads what there is: 0 at the end. An error of kind `OutOfMemory`: `bytes_max` are here.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<io::Result<usize>> {
        let room = self.input.room(bytes_max);
        if room.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        let mut room = ReadBuf::new(room);
        ready!(Pin::new(&mut self.half).poll_read(cx, &mut room))?;
        let read = room.filled().len();
        self.input.end += read;
        Poll::Ready(Ok(read))
    }

    /// As [`Source::poll_fill`].
    pub async fn fill(&mut self, bytes_max: usize) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_fill(cx, bytes_max)).await
    }

    /// Ready when the peer has ended its side. What it sends until then is kept, up to a bound;
    /// beyond it nothing is known.
    pub async fn gone(&mut self) {
        std::future::poll_fn(|cx| {
            loop {
                match ready!(self.poll_fill(cx, BODY_BUFFER_BYTES)) {
                    Ok(0) => return Poll::Ready(()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                        return Poll::Pending;
                    }
                    Err(_) => return Poll::Ready(()),
                }
            }
        })
        .await;
    }
}

/// The side that is written.
pub struct Sink<W> {
    /// Where bytes go.
    pub half: W,
    /// What waits to be written.
    pub output: Vec<u8>,
}

impl<W: AsyncWrite + Unpin> Sink<W> {
    /// Writes once, at least one byte: of what waits, then of `piece`. Answers with what it wrote
    /// of `piece`.
    fn poll_some(&mut self, cx: &mut Context<'_>, piece: &[u8]) -> Poll<io::Result<usize>> {
        let half = Pin::new(&mut self.half);
        let written = match (self.output.is_empty(), piece) {
            (false, []) => ready!(half.poll_write(cx, &self.output))?,
            (true, piece) => ready!(half.poll_write(cx, piece))?,
            (false, piece) => {
                let both = [io::IoSlice::new(&self.output), io::IoSlice::new(piece)];
                ready!(half.poll_write_vectored(cx, &both))?
            }
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        let of_output = written.min(self.output.len());
        if of_output == self.output.len() {
            self.output.clear();
        } else {
            self.output.drain(..of_output);
        }
        Poll::Ready(Ok(written - of_output))
    }

    /// Writes at least one byte of what waits. On an error none was written.
    pub async fn write_some(&mut self) -> io::Result<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        std::future::poll_fn(|cx| self.poll_some(cx, &[])).await?;
        Ok(())
    }

    /// Writes all that waits. Each write may take `stall_max`; then the error is `TimedOut`.
    pub async fn flush(&mut self, stall_max: Duration) -> io::Result<()> {
        self.write(&[], stall_max).await
    }

    /// Writes all that waits, then this.
    async fn write(&mut self, mut piece: &[u8], stall_max: Duration) -> io::Result<()> {
        while !(self.output.is_empty() && piece.is_empty()) {
            let some = std::future::poll_fn(|cx| self.poll_some(cx, piece));
            let written = within(stall_max, some).await??;
            piece = &piece[written..];
        }
        Ok(())
    }

    /// Adds bytes to what waits, and writes where that has become long.
    pub async fn put(&mut self, piece: &[u8], stall_max: Duration) -> io::Result<()> {
        if piece.len() > COPIED_BYTES_MAX {
            return self.write(piece, stall_max).await;
        }
        self.output.extend_from_slice(piece);
        if self.output.len() > OUTPUT_BYTES_MAX {
            return self.flush(stall_max).await;
        }
        Ok(())
    }

    /// Whether more can be added without writing.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        bytes <= COPIED_BYTES_MAX && self.output.len() + bytes <= OUTPUT_BYTES_MAX
    }

    /// Gives back what a long head has made it grow to.
    pub fn shrink(&mut self) {
        if self.output.is_empty() {
            self.output.shrink_to(2 * OUTPUT_BYTES_MAX);
        }
    }
}

/// Waits for it at most this long. No timer is set where it is ready at once.
pub async fn within<T>(max: Duration, future: impl Future<Output = T>) -> io::Result<T> {
    let mut future = std::pin::pin!(future);
    let mut sleep = std::pin::pin!(None::<Sleep>);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(value));
        }
        if sleep.is_none() {
            sleep.set(Some(tokio::time::sleep(max)));
        }
        let over = sleep.as_mut().as_pin_mut().map(|sleep| sleep.poll(cx));
        match over {
            Some(Poll::Ready(())) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            _ => Poll::Pending,
        }
    })
    .await
}

/// A timer for one wait after the other, all of one task. The runtime's own is moved only when it
/// fires or is too late, so that most waits cost no more than a look at the clock.
pub struct Patience {
    sleep: Pin<Box<Sleep>>,
    deadline: Instant,
    /// The task is woken when `sleep` ends.
    is_set: bool,
}

impl Patience {
    /// A timer that runs for nobody yet.
    pub fn new(longest: Duration) -> Patience {
        let deadline = Instant::now() + longest;
        Patience {
            sleep: Box::pin(tokio::time::sleep_until(deadline)),
            deadline,
            is_set: false,
        }
    }

    /// From now on this long.
    pub fn start(&mut self, max: Duration) {
        self.deadline = Instant::now() + max;
        if self.sleep.deadline() > self.deadline {
            self.reset();
        }
    }

    fn reset(&mut self) {
        self.sleep.as_mut().reset(self.deadline);
        self.is_set = false;
    }

    /// Ready when the time is over.
    pub fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.is_set && !self.sleep.is_elapsed() {
                return Poll::Pending;
            }
            self.is_set = true;
            ready!(self.sleep.as_mut().poll(cx));
            if self.sleep.deadline() >= self.deadline {
                return Poll::Ready(());
            }
            self.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Patience;
    use std::time::Duration;
    use tokio::time::Instant;

    #[tokio::test]
    async fn patience_ends_when_it_was_last_told_to() {
        let mut patience = Patience::new(Duration::from_secs(30));
        for ms in [60, 5, 90, 90, 1] {
            let begun = Instant::now();
            patience.start(Duration::from_millis(ms));
            std::future::poll_fn(|cx| patience.poll_over(cx)).await;
            let took = begun.elapsed();
            assert!(took >= Duration::from_millis(ms), "{ms} ms: {took:?}");
            assert!(took < Duration::from_secs(10), "{ms} ms: {took:?}");
            // One that is given up leaves nothing behind.
            patience.start(Duration::from_secs(20));
            let given_up = std::future::poll_fn(|cx| patience.poll_over(cx));
            let given_up = tokio::time::timeout(Duration::from_millis(1), given_up).await;
            assert!(given_up.is_err());
        }
    }
}
