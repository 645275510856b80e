//! Appends whole lines to the newest audit file, and begins a new file by size and by day.
//!
//! Invariant: what a file holds is whole lines, except for a torn last one after a crash. A failed
//! write is cut back to the last whole line, so that a line is either stored or counted as lost.
//!
//! One process writes a directory at a time; the lock on the proxy's `data_dir` sees to that.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use time::Date;

use super::files::{self, AuditFile, day_name};

/// A write that stored only the first lines of what it was given.
#[derive(Debug, thiserror::Error)]
#[error("only {lines} lines were stored: {error}")]
pub(super) struct Short {
    /// How many lines from the start are stored.
    pub lines: u64,
    /// What went wrong then.
    pub error: io::Error,
}

/// The newest file of a directory, as its only writer sees it.
pub(super) struct Log {
    dir: PathBuf,
    file_bytes_max: u64,
    files_max: usize,
    /// None: the next append looks at the directory again, as it does after an error.
    current: Option<Current>,
}

struct Current {
    file: File,
    day: String,
    bytes: u64,
}

impl Log {
    /// A log in `dir`, which exists.
    pub(super) fn new(dir: PathBuf, file_bytes_max: u64, files_max: usize) -> Log {
        Log {
            dir,
            file_bytes_max,
            files_max,
            current: None,
        }
    }

    /// Opens the file that lines of `day` go to, so that a start fails where writing would.
    pub(super) fn prepare(&mut self, day: Date) -> io::Result<()> {
        self.file_for(&day_name(day), day, 0).map(drop)
    }

    /// Appends whole lines. On an error the lines that were not stored leave no trace.
    pub(super) fn append(&mut self, day: Date, lines: &[u8]) -> Result<(), Short> {
        debug_assert!(lines.last().is_none_or(|&b| b == b'\n'));
        let current = match self.file_for(&day_name(day), day, lines.len() as u64) {
            Ok(current) => current,
            Err(error) => return Err(Short { lines: 0, error }),
        };
        let Err((written, error)) = write_counted(&mut current.file, lines) else {
            current.bytes += lines.len() as u64;
            return Ok(());
        };
        let whole = lines[..written]
            .iter()
            .rposition(|&b| b == b'\n')
            .map_or(0, |i| i + 1);
        if whole < written {
            // Should this fail too, the torn line stays last in its file: `reopen` begins another.
            let _ = current.file.set_len(current.bytes + whole as u64);
        }
        self.current = None;
        let stored = lines[..whole].iter().filter(|&&b| b == b'\n').count() as u64;
        Err(Short {
            lines: stored,
            error,
        })
    }

    /// Makes what was appended durable.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.current
            .as_ref()
            .map_or(Ok(()), |current| current.file.sync_data())
    }

    fn file_for(&mut self, day_name: &str, day: Date, bytes: u64) -> io::Result<&mut Current> {
        if self.current.is_none() {
            self.current = self.reopen()?;
        }
        let full = self.current.as_ref().is_none_or(|current| {
            // A day never goes back to an older one: a clock that does would make a file per line.
            let newer_day = day_name > current.day.as_str();
            newer_day || (current.bytes > 0 && current.bytes + bytes > self.file_bytes_max)
        });
        if full {
            self.sync()?;
            self.current = Some(self.begin(day)?);
        }
        Ok(self.current.as_mut().expect("a file was opened above"))
    }

    /// The newest file, if lines can be added to it.
    fn reopen(&self) -> io::Result<Option<Current>> {
        let Some(newest) = files::list(&self.dir)?.pop() else {
            return Ok(None);
        };
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .open(&newest.path)?;
        let bytes = file.metadata()?.len();
        if bytes > 0 {
            let mut last = [0];
            file.seek(SeekFrom::Start(bytes - 1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                return Ok(None);
            }
        }
        Ok(Some(Current {
            file,
            day: newest.day,
            bytes,
        }))
    }

    fn begin(&self, day: Date) -> io::Result<Current> {
        let mut known = files::list(&self.dir)?;
        let sequence = known.last().map_or(1, |newest| newest.sequence + 1);
        let next = AuditFile::new(&self.dir, sequence, day);
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create_new(true)
            .open(&next.path)?;
        known.push(next.clone());
        self.remove_oldest(&known);
        Ok(Current {
            file,
            day: next.day,
            bytes: 0,
        })
    }

    /// Refusals that a client repeats for ever must not fill the disk that watermarks live on.
    fn remove_oldest(&self, known: &[AuditFile]) {
        let surplus = known.len().saturating_sub(self.files_max);
        for old in &known[..surplus] {
            match std::fs::remove_file(&old.path) {
                Ok(()) => tracing::info!(file = %old.path.display(), "old audit file removed"),
                Err(error) => {
                    tracing::warn!(file = %old.path.display(), %error, "old audit file is kept");
                }
            }
        }
    }
}

/// Like `write_all`, but tells how many bytes were taken before the error.
fn write_counted(file: &mut File, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
            Ok(n) => written += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((written, error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use time::Date;

    use super::{Log, files};
    use crate::audit::record::utc;

    fn day(n: u64) -> Date {
        utc(n * 86_400_000).date()
    }

    fn contents(dir: &Path) -> Vec<String> {
        let listed = files::list(dir).unwrap();
        listed
            .iter()
            .map(|file| fs::read_to_string(&file.path).unwrap())
            .collect()
    }

    #[test]
    fn a_file_ends_before_it_grows_past_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::new(dir.path().into(), 10, 9);
        for lines in ["1234\n", "5678\n", "9\n"] {
            log.append(day(1), lines.as_bytes()).unwrap();
        }
        assert_eq!(contents(dir.path()), ["1234\n5678\n", "9\n"]);
    }

    #[test]
    fn a_new_day_begins_a_new_file_and_an_older_day_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::new(dir.path().into(), 1000, 9);
        for (n, lines) in [(1, "a\n"), (2, "b\n"), (1, "c\n")] {
            log.append(day(n), lines.as_bytes()).unwrap();
        }
        assert_eq!(contents(dir.path()), ["a\n", "b\nc\n"]);
    }

    #[test]
    fn only_the_newest_files_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::new(dir.path().into(), 1, 2);
        for lines in ["a\n", "b\n", "c\n"] {
            log.append(day(1), lines.as_bytes()).unwrap();
        }
        assert_eq!(contents(dir.path()), ["b\n", "c\n"]);
    }

    #[test]
    fn a_restart_goes_on_in_the_newest_file() {
        let dir = tempfile::tempdir().unwrap();
        Log::new(dir.path().into(), 1000, 9)
            .append(day(1), b"a\n")
            .unwrap();
        Log::new(dir.path().into(), 1000, 9)
            .append(day(1), b"b\n")
            .unwrap();
        assert_eq!(contents(dir.path()), ["a\nb\n"]);
    }

    #[test]
    fn a_restart_after_a_torn_line_begins_a_new_file() {
        let dir = tempfile::tempdir().unwrap();
        Log::new(dir.path().into(), 1000, 9)
            .append(day(1), b"a\n")
            .unwrap();
        let torn = files::list(dir.path()).unwrap().remove(0).path;
        fs::write(&torn, "a\n{\"tor").unwrap();
        Log::new(dir.path().into(), 1000, 9)
            .append(day(1), b"b\n")
            .unwrap();
        assert_eq!(contents(dir.path()), ["a\n{\"tor", "b\n"]);
    }

    #[test]
    fn a_full_disk_stores_nothing_and_is_left_when_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        // The kernel's own full disk (full(4)): every write to it fails with ENOSPC.
        let full = dir.path().join("0000000001-1970-01-02.jsonl");
        std::os::unix::fs::symlink("/dev/full", &full).unwrap();
        let mut log = Log::new(dir.path().into(), 1000, 9);
        for _ in 0..2 {
            let short = log.append(day(1), b"a\nb\n").unwrap_err();
            assert_eq!(short.lines, 0);
            assert_eq!(short.error.kind(), std::io::ErrorKind::StorageFull);
        }
        fs::remove_file(&full).unwrap();
        log.append(day(1), b"c\n").unwrap();
        assert_eq!(contents(dir.path()), ["c\n"]);
    }
}
