//! A body that is read whole before its first byte is forwarded: in memory up to a limit, then in
//! an unlinked file, which ends with the process however it ends.
//!
//! A client may send many at a time on each connection. So all bodies of a process share the memory
//! and the files that they may have ([`SpoolRoom`]): past the one they go into files earlier, past
//! the other they are refused, and what the process is there for keeps its descriptors.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, getrlimit};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How much of a file is read at a time, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// What all bodies take in memory before the next one goes into a file, in bytes.
const MEMORY_BYTES_MAX: usize = 256 << 20;

/// Files of bodies for each of the process's descriptors.
const FILES_PART_OF_DESCRIPTORS: u64 = 4;

/// Where the bodies of a process are held.
#[derive(Debug)]
pub struct SpoolRoom {
    dir: PathBuf,
    memory_bytes_max: usize,
    memory_bytes: AtomicUsize,
    files: Arc<Semaphore>,
}

impl SpoolRoom {
    /// Files are in `dir`, and a part of the descriptors that this process may have open now.
    pub fn new(dir: PathBuf) -> SpoolRoom {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let files = usize::try_from(descriptors / FILES_PART_OF_DESCRIPTORS).unwrap_or(usize::MAX);
        SpoolRoom {
            dir,
            memory_bytes_max: MEMORY_BYTES_MAX,
            memory_bytes: AtomicUsize::new(0),
            files: Arc::new(Semaphore::new(files.min(Semaphore::MAX_PERMITS))),
        }
    }

    // Relaxed: nothing is published with the count.
    fn is_full(&self) -> bool {
        self.memory_bytes.load(Ordering::Relaxed) > self.memory_bytes_max
    }
}

/// What a body has of its room's memory.
#[derive(Debug)]
struct Share {
    room: Arc<SpoolRoom>,
    bytes: usize,
}

impl Share {
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.room.memory_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn give_back(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.room.memory_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A file with its place among those that there may be.
#[derive(Debug)]
struct Placed {
    file: File,
    _place: OwnedSemaphorePermit,
}

/// Takes a body in.
pub struct Spool {
    share: Share,
    memory_bytes_max: usize,
    length: u64,
    memory: Vec<u8>,
    file: Option<Box<Placed>>,
}

impl Spool {
    /// A spool that has up to `memory_bytes_max` in memory, as long as its room has that.
    pub fn new(room: &Arc<SpoolRoom>, memory_bytes_max: usize) -> Spool {
        Spool {
            share: Share {
                room: Arc::clone(room),
                bytes: 0,
            },
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
        if let Some(placed) = &mut self.file {
            return placed.file.write_all(bytes).await;
        }
        self.memory.extend_from_slice(bytes);
        self.share.add(bytes.len());
        if self.length > self.memory_bytes_max as u64 || self.share.room.is_full() {
            self.move_to_file().await?;
        }
        Ok(())
    }

    async fn move_to_file(&mut self) -> io::Result<()> {
        let room = &self.share.room;
        let place = Arc::clone(&room.files).try_acquire_owned();
        let place = place.map_err(|_| io::Error::other("too many bodies are in files already"))?;
        let dir = room.dir.clone();
        let opened = tokio::task::spawn_blocking(move || tempfile::tempfile_in(dir)).await;
        let mut file = File::from_std(opened.map_err(io::Error::other)??);
        file.write_all(&std::mem::take(&mut self.memory)).await?;
        self.share.give_back();
        self.file = Some(Box::new(Placed {
            file,
            _place: place,
        }));
        Ok(())
    }

    /// Whether it needed its file.
    pub fn is_on_disk(&self) -> bool {
        self.file.is_some()
    }

    /// The whole body, to be read from its start.
    pub async fn finish(mut self) -> io::Result<HeldBody> {
        let source = match self.file.take() {
            None => Source::Memory {
                bytes: self.memory,
                _share: Some(self.share),
            },
            Some(mut placed) => {
                placed.file.flush().await?;
                placed.file.rewind().await?;
                Source::File {
                    placed,
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
    Memory {
        bytes: Vec<u8>,
        /// What they take of a room.
        _share: Option<Share>,
    },
    File {
        placed: Box<Placed>,
        chunk: Vec<u8>,
    },
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
            Source::Memory { bytes, .. } if bytes.len() <= bytes_max => {
                self.left = 0;
                Some(std::mem::take(bytes))
            }
            Source::Memory { .. } | Source::File { .. } => None,
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
            Source::Memory { bytes, .. } => bytes,
            Source::File { placed, chunk } => {
                chunk.resize(CHUNK_BYTES, 0);
                let read = placed.file.read(chunk).await?;
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
            source: Source::Memory {
                bytes,
                _share: None,
            },
            trailers: vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::{Spool, SpoolRoom};

    #[tokio::test]
    async fn a_body_comes_back_whole_from_memory_and_from_disk() {
        let dir = tempfile::tempdir().unwrap();
        let room = Arc::new(SpoolRoom::new(dir.path().to_owned()));
        for (chunk, count) in [(10, 3), (10_000, 50)] {
            let mut spool = Spool::new(&room, 4096);
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

    #[tokio::test]
    async fn all_bodies_together_have_so_much_memory_and_so_many_files() {
        let dir = tempfile::tempdir().unwrap();
        let room = Arc::new(SpoolRoom {
            dir: dir.path().to_owned(),
            memory_bytes_max: 1000,
            memory_bytes: AtomicUsize::new(0),
            files: Arc::new(Semaphore::new(1)),
        });
        let spooled = async |bytes: usize| {
            let mut spool = Spool::new(&room, 4096);
            spool.push(&vec![7; bytes]).await.map(|()| spool)
        };
        let first = spooled(900).await.unwrap().finish().await.unwrap();
        // The rest of a body that has begun is of it.
        let second = spooled(200).await.unwrap();
        assert!(second.is_on_disk());
        assert!(spooled(200).await.is_err());
        let third = spooled(100).await.unwrap();
        assert!(!third.is_on_disk());
        drop((first, second, third));
        assert_eq!(room.memory_bytes.load(Ordering::Relaxed), 0);
        let again = spooled(5000).await.unwrap().finish().await.unwrap();
        assert!(spooled(5000).await.is_err());
        assert_eq!(again.read_whole().await.unwrap(), vec![7; 5000]);
        assert!(spooled(5000).await.is_ok());
    }
}
