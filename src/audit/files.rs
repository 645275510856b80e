//! The names of audit files: `<sequence>-<day>.jsonl`, for example `0000000007-2026-01-31.jsonl`.
//!
//! The sequence alone orders them: it only grows, whatever the clock does. The day is for people.

use std::io;
use std::path::{Path, PathBuf};

use time::Date;

/// An audit file by its place in the order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AuditFile {
    pub sequence: u64,
    pub path: PathBuf,
    /// The day in its name as written there.
    pub day: String,
}

impl AuditFile {
    pub(super) fn new(dir: &Path, sequence: u64, day: Date) -> AuditFile {
        let day = day_name(day);
        AuditFile {
            sequence,
            path: dir.join(format!("{sequence:010}-{day}.jsonl")),
            day,
        }
    }
}

/// The day as file names have it. Days sort by this text.
pub(super) fn day_name(day: Date) -> String {
    format!(
        "{:04}-{:02}-{:02}",
        day.year(),
        u8::from(day.month()),
        day.day()
    )
}

/// The audit files of `dir`, oldest first. Files with other names are not ours and are left out.
pub(super) fn list(dir: &Path) -> io::Result<Vec<AuditFile>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if let Some((sequence, day)) = path.file_name().and_then(|n| n.to_str()).and_then(parse) {
            files.push(AuditFile {
                sequence,
                day,
                path,
            });
        }
    }
    files.sort_by_key(|file| file.sequence);
    Ok(files)
}

fn parse(name: &str) -> Option<(u64, String)> {
    let (sequence, day) = name.strip_suffix(".jsonl")?.split_once('-')?;
    let digits = (10..19).contains(&sequence.len()) && sequence.bytes().all(|b| b.is_ascii_digit());
    let dated = day.len() == 10 && day.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    if !digits || !dated {
        return None;
    }
    Some((sequence.parse().ok()?, day.to_string()))
}

#[cfg(test)]
mod tests {
    use super::{AuditFile, list, parse};
    use crate::audit::record::utc;

    #[test]
    fn names_are_read_back_and_others_are_left_alone() {
        assert_eq!(
            parse("0000000007-2026-01-31.jsonl"),
            Some((7, "2026-01-31".into()))
        );
        for other in [
            "x.jsonl",
            "7-2026-01-31.jsonl",
            "0000000007-2026-01-31.json",
            ".jsonl",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn files_are_listed_by_sequence_not_by_day() {
        let dir = tempfile::tempdir().unwrap();
        let late = AuditFile::new(dir.path(), 1, utc(86_400_000 * 9).date());
        let early = AuditFile::new(dir.path(), 2, utc(0).date());
        std::fs::write(&early.path, "").unwrap();
        std::fs::write(&late.path, "").unwrap();
        std::fs::write(dir.path().join("notes.txt"), "").unwrap();
        assert_eq!(list(dir.path()).unwrap(), [late, early]);
    }
}
