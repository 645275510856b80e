//! A body that is read whole before its first byte is forwarded: in memory up to a limit, then in
//! an unlinked file, which ends with the process however it ends.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncSeekExt, AsyncWriteExt, ReadBuf};

use super::upstream::BodyError;

/// How much of a file is read at a time, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Takes a body in.
pub struct Spool {
    dir: PathBuf,
    memory_bytes_max: usize,
    length: u64,
    memory: BytesMut,
    file: Option<File>,
}

impl Spool {
    /// A spool whose file, if it needs one, is in `dir`.
    pub fn new(dir: &Path, memory_bytes_max: usize) -> Spool {
        Spool {
            dir: dir.into(),
            memory_bytes_max,
            length: 0,
            memory: BytesMut::new(),
            file: None,
        }
    }

    /// How many bytes it holds.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Adds bytes.
    pub async fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.length += bytes.len() as u64;
        if let Some(file) = &mut self.file {
            return file.write_all(bytes).await;
        }
        // Copied: a slice of the connection's read buffer would keep the whole of it.
        self.memory.extend_from_slice(bytes);
        if self.length > self.memory_bytes_max as u64 {
            self.move_to_file().await?;
        }
        Ok(())
    }

    async fn move_to_file(&mut self) -> io::Result<()> {
        let dir = self.dir.clone();
        let opened = tokio::task::spawn_blocking(move || tempfile::tempfile_in(dir)).await;
        let mut file = File::from_std(opened.map_err(io::Error::other)??);
        file.write_all(&std::mem::take(&mut self.memory)).await?;
        self.file = Some(file);
        Ok(())
    }

    /// Whether it needed its file.
    pub fn is_on_disk(&self) -> bool {
        self.file.is_some()
    }

    /// All of its bytes. For bodies that are bounded by what memory can take.
    pub async fn read_whole(self) -> Result<Bytes, BodyError> {
        Ok(self.finish().await?.collect().await?.to_bytes())
    }

    /// The whole body, to be read from its start.
    pub async fn finish(mut self) -> io::Result<HeldBody> {
        let source = match self.file.take() {
            None => Source::Memory(self.memory.freeze()),
            Some(mut file) => {
                file.flush().await?;
                file.rewind().await?;
                Source::File(Box::new(file))
            }
        };
        Ok(HeldBody {
            left: self.length,
            source,
        })
    }
}

/// A whole body, of known length.
pub struct HeldBody {
    left: u64,
    source: Source,
}

enum Source {
    Memory(Bytes),
    File(Box<File>),
}

impl HeldBody {
    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }
}

impl From<Bytes> for HeldBody {
    fn from(bytes: Bytes) -> HeldBody {
        HeldBody {
            left: bytes.len() as u64,
            source: Source::Memory(bytes),
        }
    }
}

impl Body for HeldBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let me = self.get_mut();
        if me.left == 0 {
            return Poll::Ready(None);
        }
        let bytes = match &mut me.source {
            Source::Memory(bytes) => std::mem::take(bytes),
            Source::File(file) => ready!(poll_chunk(file, cx))?,
        };
        if bytes.is_empty() {
            return Poll::Ready(Some(Err(
                "the spooled body is shorter than what was written".into(),
            )));
        }
        me.left = me.left.saturating_sub(bytes.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

fn poll_chunk(file: &mut File, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
    let mut chunk = BytesMut::zeroed(CHUNK_BYTES);
    let mut buf = ReadBuf::new(&mut chunk);
    ready!(Pin::new(file).poll_read(cx, &mut buf))?;
    let filled = buf.filled().len();
    chunk.truncate(filled);
    Poll::Ready(Ok(chunk.freeze()))
}

#[cfg(test)]
mod tests {
    use super::Spool;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn a_body_comes_back_whole_from_memory_and_from_disk() {
        let dir = tempfile::tempdir().unwrap();
        for (chunk, count) in [(10, 3), (10_000, 50)] {
            let mut spool = Spool::new(dir.path(), 4096);
            for i in 0..count {
                spool.push(&vec![i as u8; chunk]).await.unwrap();
            }
            assert_eq!(spool.is_on_disk(), chunk * count > 4096);
            let body = spool
                .finish()
                .await
                .unwrap()
                .collect()
                .await
                .unwrap()
                .to_bytes();
            assert_eq!(body.len(), chunk * count);
            assert!(
                body.chunks(chunk)
                    .enumerate()
                    .all(|(i, bytes)| bytes[0] == i as u8)
            );
        }
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "a spool file has a name"
        );
    }
}
