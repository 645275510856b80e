//! A body that is read whole before its first byte is forwarded: in memory up to a limit, then in
//! an unlinked file, which ends with the process however it ends.

use std::io;
use std::path::{Path, PathBuf};

use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

/// How much of a file is read at a time, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Takes a body in.
pub struct Spool {
    dir: PathBuf,
    memory_bytes_max: usize,
    length: u64,
    memory: Vec<u8>,
    file: Option<File>,
}

impl Spool {
    /// A spool whose file, if it needs one, is in `dir`.
    pub fn new(dir: &Path, memory_bytes_max: usize) -> Spool {
        Spool {
            dir: dir.into(),
            memory_bytes_max,
            length: 0,
            memory: vec![],
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

    /// The whole body, to be read from its start.
    pub async fn finish(mut self) -> io::Result<HeldBody> {
        let source = match self.file.take() {
            None => Source::Memory(self.memory),
            Some(mut file) => {
                file.flush().await?;
                file.rewind().await?;
                Source::File {
                    file: Box::new(file),
                    chunk: vec![],
                }
            }
        };
        Ok(HeldBody {
            length: self.length,
            left: self.length,
            source,
            trailers: vec![],
        })
    }
}

/// A whole body, of known length.
#[derive(Debug)]
pub struct HeldBody {
    length: u64,
    left: u64,
    source: Source,
    /// The lines of its trailer section.
    trailers: Vec<u8>,
}

#[derive(Debug)]
enum Source {
    Memory(Vec<u8>),
    File { file: Box<File>, chunk: Vec<u8> },
}

impl HeldBody {
    /// Its length in bytes, without the trailers.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The lines of its trailer section.
    pub fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// The same body with these trailers.
    pub fn with_trailers(self, trailers: Vec<u8>) -> HeldBody {
        HeldBody { trailers, ..self }
    }

    /// All of its bytes, if they are in memory and no more than this.
    pub fn take_short(&mut self, bytes_max: usize) -> Option<Vec<u8>> {
        match &mut self.source {
            Source::Memory(bytes) if bytes.len() <= bytes_max => {
                self.left = 0;
                Some(std::mem::take(bytes))
            }
            Source::Memory(_) | Source::File { .. } => None,
        }
    }

    /// All of its bytes. For bodies that are bounded by what memory can take.
    pub async fn read_whole(mut self) -> io::Result<Vec<u8>> {
        let mut whole = vec![];
        loop {
            match self.next().await? {
                [] => return Ok(whole),
                bytes => whole.extend_from_slice(bytes),
            }
        }
    }

    /// The next bytes; empty at the end.
    pub async fn next(&mut self) -> io::Result<&[u8]> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let bytes = match &mut self.source {
            Source::Memory(bytes) => bytes,
            Source::File { file, chunk } => {
                chunk.resize(CHUNK_BYTES, 0);
                let read = file.read(chunk).await?;
                chunk.truncate(read);
                chunk
            }
        };
        if bytes.is_empty() {
            return Err(io::Error::other(
                "the spooled body is shorter than what was written",
            ));
        }
        self.left = self.left.saturating_sub(bytes.len() as u64);
        Ok(bytes)
    }
}

impl From<Vec<u8>> for HeldBody {
    fn from(bytes: Vec<u8>) -> HeldBody {
        HeldBody {
            length: bytes.len() as u64,
            left: bytes.len() as u64,
            source: Source::Memory(bytes),
            trailers: vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Spool;

    #[tokio::test]
    async fn a_body_comes_back_whole_from_memory_and_from_disk() {
        let dir = tempfile::tempdir().unwrap();
        for (chunk, count) in [(10, 3), (10_000, 50)] {
            let mut spool = Spool::new(dir.path(), 4096);
            for i in 0..count {
                spool.push(&vec![i as u8; chunk]).await.unwrap();
            }
            assert_eq!(spool.is_on_disk(), chunk * count > 4096);
            let body = spool.finish().await.unwrap().read_whole().await.unwrap();
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
