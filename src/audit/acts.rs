//! What operators did: one line of JSON each, on disk before the act is carried out.
//!
//! Apart from the refusals, which may be lost rather than delay a request: an act of an operator
//! gives up a protection, so an act that cannot be recorded is not carried out.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::record::{Excerpt, rfc3339};

/// The file's name in the folder of the audit.
pub const FILE_NAME: &str = "acts.jsonl";

/// One act.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Act {
    /// When, in Unix milliseconds.
    pub unix_ms: u64,
    /// What was done, for example `unregister`.
    pub act: &'static str,
    /// To what: a proxy's name.
    pub subject: Excerpt,
    /// Why, in the operator's words.
    pub reason: Excerpt,
    /// From where, as far as it is known.
    pub client: Option<SocketAddr>,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    event: &'static str,
    act: &'static str,
    subject: &'a str,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<SocketAddr>,
}

/// The file of acts in one folder.
#[derive(Clone, Debug)]
pub struct Acts {
    dir: PathBuf,
}

impl Acts {
    /// The file in `dir`; both are made with the first act.
    pub fn in_folder(dir: &Path) -> Acts {
        Acts { dir: dir.into() }
    }

    /// Appends an act and syncs it. Blocks on the disk. After an error nothing may be done.
    pub fn record(&self, act: &Act) -> io::Result<()> {
        let fields = Line {
            time: rfc3339(act.unix_ms),
            event: "act",
            act: act.act,
            subject: act.subject.as_str(),
            reason: act.reason.as_str(),
            client: act.client,
        };
        let mut line = serde_json::to_vec(&fields)?;
        line.push(b'\n');
        std::fs::create_dir_all(&self.dir)?;
        let path = self.dir.join(FILE_NAME);
        let is_new = !path.try_exists()?;
        let mut file = File::options().create(true).append(true).open(&path)?;
        // One call: lines of two processes never mix (POSIX write(2), O_APPEND).
        file.write_all(&line)?;
        file.sync_all()?;
        if is_new {
            // fsync(2) on a file says nothing about its directory entry.
            File::open(&self.dir)?.sync_all()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Act, Acts, FILE_NAME};
    use crate::audit::Excerpt;

    fn act(subject: &str) -> Act {
        Act {
            unix_ms: 1_764_443_212_007,
            act: "unregister",
            subject: Excerpt::new(subject),
            reason: Excerpt::new("its \"machine\" is gone"),
            client: Some("10.0.0.7:555".parse().unwrap()),
        }
    }

    #[test]
    fn acts_are_lines_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let acts = Acts::in_folder(&dir.path().join("audit"));
        acts.record(&act("edge-1")).unwrap();
        acts.record(&act("edge-2")).unwrap();
        let text = std::fs::read_to_string(dir.path().join("audit").join(FILE_NAME)).unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["subject"], "edge-1");
        assert_eq!(lines[1]["subject"], "edge-2");
        assert_eq!(lines[0]["reason"], "its \"machine\" is gone");
        assert_eq!(lines[0]["time"], "2025-11-29T19:06:52.007Z");
        assert_eq!(lines[0]["client"], "10.0.0.7:555");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let acts = Acts::in_folder(&file.path().join("audit"));
        assert!(acts.record(&act("edge-1")).is_err());
    }
}
