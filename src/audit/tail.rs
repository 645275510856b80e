//! Reads the last lines of an audit directory, over its files in order, and then what is added.
//!
//! Only whole lines are given out: a torn last line, of a crash or of a write that is under way, is
//! not a line. Reading is blocking; the caller chooses the thread.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::files::{self, AuditFile};
use super::record::LINE_BYTES_MAX;

/// Most lines of the past that a tail begins with.
pub const BACKLOG_LINES_MAX: usize = 10_000;

/// Bytes that are read at a time. A whole line always fits.
const CHUNK_BYTES: usize = 16 * LINE_BYTES_MAX;

/// A reader of an audit directory and its place there.
pub struct Tail {
    dir: PathBuf,
    at: Option<Place>,
}

struct Place {
    sequence: u64,
    file: File,
    /// Where the first line begins that was not given out.
    offset: u64,
}

impl Tail {
    /// A reader that begins with the last `backlog` lines, at most [`BACKLOG_LINES_MAX`].
    pub fn open(dir: &Path, backlog: usize) -> io::Result<Tail> {
        let mut wanted = backlog.min(BACKLOG_LINES_MAX);
        let mut at = None;
        for file in files::list(dir)?.iter().rev() {
            // Removed since it was listed: then every older one is gone too.
            let Some(mut place) = Place::open(file)? else {
                break;
            };
            let (offset, found) = start_of_last_lines(&mut place.file, wanted)?;
            place.offset = offset;
            at = Some(place);
            wanted -= found;
            if wanted == 0 {
                break;
            }
        }
        Ok(Tail {
            dir: dir.into(),
            at,
        })
    }

    /// The next lines, without their line feeds. Empty: there are none for now.
    pub fn read(&mut self) -> io::Result<Vec<String>> {
        loop {
            // Looked for before the present file is read: once there is a newer file, the present
            // one no longer grows, and so its end is final.
            let newer = self.newer_file()?;
            if let Some(place) = &mut self.at {
                let lines = place.read_lines()?;
                if !lines.is_empty() {
                    return Ok(lines);
                }
            }
            match newer {
                None => return Ok(Vec::new()),
                Some(file) => {
                    if let Some(place) = Place::open(&file)? {
                        self.at = Some(place);
                    }
                }
            }
        }
    }

    /// The oldest file after the present one.
    fn newer_file(&self) -> io::Result<Option<AuditFile>> {
        let after = self.at.as_ref().map_or(0, |place| place.sequence);
        Ok(files::list(&self.dir)?
            .into_iter()
            .find(|file| file.sequence > after))
    }
}

impl Place {
    /// None: the file was removed.
    fn open(file: &AuditFile) -> io::Result<Option<Place>> {
        match File::open(&file.path) {
            Ok(opened) => Ok(Some(Place {
                sequence: file.sequence,
                file: opened,
                offset: 0,
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read_lines(&mut self) -> io::Result<Vec<String>> {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        self.file.seek(SeekFrom::Start(self.offset))?;
        (&self.file)
            .take(CHUNK_BYTES as u64)
            .read_to_end(&mut chunk)?;
        let Some(last_feed) = chunk.iter().rposition(|&b| b == b'\n') else {
            if chunk.len() < CHUNK_BYTES {
                return Ok(Vec::new());
            }
            let wrong = format!("no line of an audit file is as long as {CHUNK_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, wrong));
        };
        self.offset += last_feed as u64 + 1;
        let lines = chunk[..last_feed].split(|&b| b == b'\n');
        Ok(lines
            .map(|line| String::from_utf8_lossy(line).into_owned())
            .collect())
    }
}

/// Where the last `wanted` whole lines of the file begin, and how many there are.
fn start_of_last_lines(file: &mut File, wanted: usize) -> io::Result<(u64, usize)> {
    let mut found = None;
    let mut end = file.metadata()?.len();
    let mut chunk = vec![0; CHUNK_BYTES];
    while end > 0 {
        let begin = end.saturating_sub(CHUNK_BYTES as u64);
        let block = &mut chunk[..(end - begin) as usize];
        file.read_exact_at(block, begin)?;
        for at in (0..block.len()).rev().filter(|&at| block[at] == b'\n') {
            // The last feed ends the last line; each one before it begins one more.
            let lines = found.map_or(0, |n| n + 1);
            if lines == wanted {
                return Ok((begin + at as u64 + 1, lines));
            }
            found = Some(lines);
        }
        end = begin;
    }
    Ok((0, found.map_or(0, |n| n + 1)))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use std::path::Path;

    use super::{CHUNK_BYTES, Tail};

    fn append(dir: &Path, sequence: u64, text: &str) {
        let path = dir.join(format!("{sequence:010}-2026-01-01.jsonl"));
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn read_all(tail: &mut Tail) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let lines = tail.read().unwrap();
            if lines.is_empty() {
                return all;
            }
            all.extend(lines);
        }
    }

    #[test]
    fn the_backlog_reaches_over_files() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), 1, "a\nb\n");
        append(dir.path(), 2, "");
        append(dir.path(), 3, "c\nd\n");
        for (backlog, expected) in [
            (0, vec![]),
            (1, vec!["d"]),
            (2, vec!["c", "d"]),
            (3, vec!["b", "c", "d"]),
            (9, vec!["a", "b", "c", "d"]),
        ] {
            let mut tail = Tail::open(dir.path(), backlog).unwrap();
            assert_eq!(read_all(&mut tail), expected, "the last {backlog}");
        }
    }

    #[test]
    fn new_lines_are_followed_into_the_next_files() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), 1, "a\n");
        let mut tail = Tail::open(dir.path(), 0).unwrap();
        assert_eq!(read_all(&mut tail), [""; 0]);
        append(dir.path(), 1, "b\n");
        append(dir.path(), 2, "c\n");
        append(dir.path(), 3, "d\n");
        assert_eq!(read_all(&mut tail), ["b", "c", "d"]);
        append(dir.path(), 3, "e\n");
        assert_eq!(read_all(&mut tail), ["e"]);
    }

    #[test]
    fn the_first_file_of_an_empty_directory_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let mut tail = Tail::open(dir.path(), 5).unwrap();
        assert_eq!(read_all(&mut tail), [""; 0]);
        append(dir.path(), 1, "a\n");
        assert_eq!(read_all(&mut tail), ["a"]);
    }

    #[test]
    fn a_torn_line_is_not_given_out() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), 1, "a\nto");
        let mut tail = Tail::open(dir.path(), 1).unwrap();
        assert_eq!(read_all(&mut tail), ["a"]);
        append(dir.path(), 1, "rn\n");
        assert_eq!(read_all(&mut tail), ["torn"]);
        append(dir.path(), 1, "left torn");
        append(dir.path(), 2, "b\n");
        assert_eq!(read_all(&mut tail), ["b"]);
    }

    #[test]
    fn a_file_larger_than_a_chunk_is_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let line = "x".repeat(999);
        let lines = 3 * CHUNK_BYTES / 1000;
        append(dir.path(), 1, &format!("{line}\n").repeat(lines));
        let mut tail = Tail::open(dir.path(), lines - 1).unwrap();
        let all = read_all(&mut tail);
        assert_eq!(all.len(), lines - 1);
        assert!(all.iter().all(|read| *read == line));
    }

    #[test]
    fn a_line_without_end_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        append(dir.path(), 1, &"x".repeat(CHUNK_BYTES));
        let error = Tail::open(dir.path(), 1).unwrap().read().unwrap_err();
        assert!(error.to_string().contains("no line"), "{error}");
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        assert!(Tail::open(&gone, 1).is_err());
        fs::create_dir(&gone).unwrap();
        assert!(Tail::open(&gone, 1).is_ok());
    }
}
