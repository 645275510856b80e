//! Small files that are written whole or not at all.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

/// Writes it, durably: under its name stands what stood there, or this text.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".new");
    let mut file = File::create(&partial)?;
    file.write_all(text.as_bytes())?;
    // Before it has its name: an empty file would keep its reader from starting.
    file.sync_all()?;
    std::fs::rename(&partial, path)?;
    sync_folder(path)
}

/// Makes durable that a file has its name there.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
