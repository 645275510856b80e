//! The keys that sign tickets and orders: kept in a folder, rotated with an overlap.
//!
//! The folder holds `current.key`, the secret that signs (mode 0600), and `previous.pub`, the
//! public halves of its predecessors, newest first, which go on verifying what they signed. A
//! rotation writes `previous.pub` first, so that whoever reads `current.key` and then
//! `previous.pub` never misses the key of a ticket that is in use. Both are replaced by rename.
//!
//! Several lockds over one store share the same keys: the folder is copied to each of them.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use crate::ticket::{InvalidKey, SigningKey, VerifyingKey};

/// How many predecessors still verify.
pub const PREVIOUS_KEYS_MAX: usize = 4;
/// How often a changed folder is looked for.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

const CURRENT: &str = "current.key";
const PREVIOUS: &str = "previous.pub";
const GUARD: &str = ".rotation";

/// Why the keys could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// A file or folder.
    #[error("{path}: {source}")]
    Io {
        /// Which one.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// A file that does not hold keys.
    #[error("{path}: {source}")]
    Invalid {
        /// Which one.
        path: PathBuf,
        /// What it should hold.
        source: InvalidKey,
    },
}

/// The key that signs, and those that still verify.
pub struct KeySet {
    /// Signs every ticket and order.
    pub signing: SigningKey,
    /// Its predecessors, newest first.
    pub previous: Vec<VerifyingKey>,
}

impl KeySet {
    /// Every key that verifies, the current one first.
    pub fn verifying(&self) -> impl Iterator<Item = &VerifyingKey> {
        std::iter::once(self.signing.verifying()).chain(&self.previous)
    }
}

/// The keys of a lockd, replaced while it runs when their folder changes.
pub struct SigningKeys {
    set: ArcSwap<KeySet>,
    folder: Option<Folder>,
}

struct Folder {
    path: PathBuf,
    loaded: Mutex<Stamp>,
}

/// Tells one state of the two files from another: inode, size and time of change, in nanoseconds.
type Stamp = [(u64, u64, i64, i64); 2];

impl SigningKeys {
    /// A key that lives as long as the process: for tests, and where nothing outlives it.
    pub fn in_memory() -> SigningKeys {
        let set = KeySet {
            signing: SigningKey::generate(),
            previous: Vec::new(),
        };
        SigningKeys {
            set: ArcSwap::from_pointee(set),
            folder: None,
        }
    }

    /// Whether a folder has keys: something may have been signed with them. So it has where that
    /// cannot be told.
    pub fn exist(path: &Path) -> bool {
        path.join(CURRENT).try_exists().unwrap_or(true)
    }

    /// Reads the folder; makes it, and a first key in it, where there is none.
    pub fn load_or_create(path: &Path) -> Result<SigningKeys, KeysError> {
        let guard = lock_folder(path)?;
        if !path.join(CURRENT).exists() {
            write_secret(path, &SigningKey::generate())?;
        }
        drop(guard);
        let stamp = stamp(path);
        let set = load(path)?;
        let folder = Folder {
            path: path.to_owned(),
            loaded: Mutex::new(stamp),
        };
        Ok(SigningKeys {
            set: ArcSwap::from_pointee(set),
            folder: Some(folder),
        })
    }

    /// The keys now.
    pub fn current(&self) -> arc_swap::Guard<Arc<KeySet>> {
        self.set.load()
    }

    /// Reads the folder again if its files changed; true if so. A folder that cannot be read
    /// leaves the keys as they are.
    pub fn reload_if_changed(&self) -> Result<bool, KeysError> {
        let Some(folder) = &self.folder else {
            return Ok(false);
        };
        let mut loaded = folder.loaded.lock().expect("no panic while it is held");
        // Before reading: a change in between is then seen next time.
        let now = stamp(&folder.path);
        if *loaded == now {
            return Ok(false);
        }
        self.set.store(Arc::new(load(&folder.path)?));
        *loaded = now;
        Ok(true)
    }

    /// Follows the folder until `stopping`.
    pub(super) async fn follow(self: Arc<Self>, stopping: CancellationToken) {
        if self.folder.is_none() {
            return;
        }
        while stopping
            .run_until_cancelled(tokio::time::sleep(RELOAD_INTERVAL))
            .await
            .is_some()
        {
            let keys = self.clone();
            match tokio::task::spawn_blocking(move || keys.reload_if_changed()).await {
                Ok(Ok(true)) => {
                    let id = self.current().signing.verifying().id().to_owned();
                    tracing::info!(key = id, "signing keys were reloaded");
                }
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "signing keys could not be reloaded"),
                Err(error) => tracing::warn!(%error, "reload of the signing keys was aborted"),
            }
        }
    }
}

/// Makes a new current key; the one before goes on verifying. Returns the keys after it. Where
/// there is none, it is an error and leaves nothing behind.
pub fn rotate(path: &Path) -> Result<KeySet, KeysError> {
    let current = path.join(CURRENT);
    std::fs::metadata(&current).map_err(|source| io(&current, source))?;
    let _guard = lock_folder(path)?;
    let before = load(path)?;
    let lines: Vec<String> = before
        .verifying()
        .take(PREVIOUS_KEYS_MAX)
        .map(VerifyingKey::to_text)
        .collect();
    replace(path, PREVIOUS, &(lines.join("\n") + "\n"))?;
    write_secret(path, &SigningKey::generate())?;
    load(path)
}

fn load(path: &Path) -> Result<KeySet, KeysError> {
    let current = path.join(CURRENT);
    let text = std::fs::read_to_string(&current).map_err(|source| io(&current, source))?;
    let signing = SigningKey::parse(&text).map_err(|source| KeysError::Invalid {
        path: current.clone(),
        source,
    })?;
    warn_if_open(&current);

    let file = path.join(PREVIOUS);
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(source) => return Err(io(&file, source)),
    };
    let mut previous = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .take(PREVIOUS_KEYS_MAX)
    {
        let key = VerifyingKey::parse(line).map_err(|source| KeysError::Invalid {
            path: file.clone(),
            source,
        })?;
        // A rotation that stopped half-way left the current key among the previous ones.
        if key.id() != signing.verifying().id() {
            previous.push(key);
        }
    }
    Ok(KeySet { signing, previous })
}

fn warn_if_open(file: &Path) {
    let mode = std::fs::metadata(file).map_or(0, |metadata| metadata.mode() & 0o777);
    if mode & 0o077 != 0 {
        tracing::warn!(
            file = %file.display(), mode = format!("{mode:o}"),
            "the signing key can be read by others",
        );
    }
}

fn write_secret(path: &Path, key: &SigningKey) -> Result<(), KeysError> {
    replace(path, CURRENT, &(key.to_secret_text() + "\n"))
}

/// Replaces a file as a whole, durably, readable by its owner alone.
fn replace(folder: &Path, name: &str, text: &str) -> Result<(), KeysError> {
    let target = folder.join(name);
    // tempfile makes its files with mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|error| io(&target, error))?;
    file.write_all(text.as_bytes())
        .map_err(|error| io(&target, error))?;
    file.as_file()
        .sync_all()
        .map_err(|error| io(&target, error))?;
    file.persist(&target)
        .map_err(|error| io(&target, error.error))?;
    File::open(folder)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| io(folder, error))
}

/// Holds off other rotations until dropped. Makes the folder where there is none.
fn lock_folder(path: &Path) -> Result<File, KeysError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| io(path, error))?;
    let file = path.join(GUARD);
    let guard = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&file)
        .map_err(|error| io(&file, error))?;
    guard.lock().map_err(|error| io(&file, error))?;
    Ok(guard)
}

fn stamp(path: &Path) -> Stamp {
    [CURRENT, PREVIOUS].map(|name| match std::fs::metadata(path.join(name)) {
        Ok(file) => (file.ino(), file.size(), file.mtime(), file.mtime_nsec()),
        Err(_) => (0, 0, 0, 0),
    })
}

fn io(path: &Path, source: std::io::Error) -> KeysError {
    KeysError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_is_taken_over_and_the_old_key_still_verifies() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let keys = SigningKeys::load_or_create(&path).unwrap();
        let first = keys.current().signing.verifying().id().to_owned();
        assert!(!keys.reload_if_changed().unwrap());

        rotate(&path).unwrap();
        assert!(keys.reload_if_changed().unwrap());
        let set = keys.current();
        assert_ne!(set.signing.verifying().id(), first);
        let previous: Vec<_> = set.previous.iter().map(VerifyingKey::id).collect();
        assert_eq!(previous, [&first]);
        let mode = std::fs::metadata(path.join(CURRENT)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);

        let again = SigningKeys::load_or_create(&path).unwrap();
        assert_eq!(
            again.current().signing.verifying().id(),
            set.signing.verifying().id()
        );
    }

    #[test]
    fn no_more_than_the_named_number_of_keys_overlap() {
        let folder = tempfile::tempdir().unwrap();
        SigningKeys::load_or_create(folder.path()).unwrap();
        let sets: Vec<_> = (0..6).map(|_| rotate(folder.path()).unwrap()).collect();
        let last = sets.last().unwrap();
        assert_eq!(last.previous.len(), PREVIOUS_KEYS_MAX);
        assert_eq!(last.previous[0].id(), sets[4].signing.verifying().id());
    }

    #[test]
    fn a_rotation_without_keys_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let error = rotate(&folder.path().join("made/keys")).err().unwrap();
        assert!(error.to_string().contains(CURRENT), "{error}");
        rotate(folder.path()).err().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn keys_that_cannot_be_looked_for_may_be_there() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!SigningKeys::exist(&folder.path().join("none")));
        let circle = folder.path().join("circle");
        std::os::unix::fs::symlink(&circle, &circle).unwrap();
        assert!(SigningKeys::exist(&circle));
    }

    #[test]
    fn a_damaged_key_is_named_and_leaves_the_running_keys() {
        let folder = tempfile::tempdir().unwrap();
        let keys = SigningKeys::load_or_create(folder.path()).unwrap();
        let id = keys.current().signing.verifying().id().to_owned();
        std::fs::write(folder.path().join(CURRENT), "k4.secret.AAAA").unwrap();
        let error = keys.reload_if_changed().unwrap_err();
        assert!(error.to_string().contains(CURRENT), "{error}");
        assert_eq!(keys.current().signing.verifying().id(), id);
    }
}
