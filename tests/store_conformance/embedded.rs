//! What only the embedded store can be asked: power lost at any moment, a failing disk, damage.

use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::ops::Bound;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use redb::backends::{FileBackend, InMemoryBackend};
use redb::{BackendError, Builder, Database, DatabaseError, StorageBackend};
use ringfence::store::embedded::EmbeddedStore;
use ringfence::store::{Enqueued, Event, Store, StoreError};

use crate::fixture::{LONG, Mirror, WAIT_MAX, queue, remove, request, session, stand};

/// Tells the child of the crash test where its store is.
const CHILD_STORE: &str = "RINGFENCE_TEST_CRASH_STORE";

/// Grants that the child must have been told before it is killed.
const GRANTS_BEFORE_KILL: usize = 200;

/// The child: grants and releases for ever, and prints each that it was told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_child() {
    let Some(path) = std::env::var_os(CHILD_STORE) else {
        return;
    };
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(path.as_ref()).await.unwrap());
    loop {
        join_all((0..8).map(|caller| grant_and_release(&store, caller))).await;
    }
}

/// A session of three grants, of which two are released and one ends with it.
async fn grant_and_release(store: &Arc<dyn Store>, caller: u32) {
    let one = session(store).await;
    let lock = format!("lock/{caller}");
    for attempt in 1..=3 {
        let (entry, _) = stand(store, &lock, one, attempt).await;
        println!("\ngrant {caller} {one} {attempt} {}", entry.token);
        if attempt < 3 {
            remove(store, &entry).await;
            println!("\nrelease {caller} {one} {attempt} {}", entry.token);
        }
    }
    store.close_session(one).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_told_before_a_kill_is_there_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.redb");
    let mut highest = 0;
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "embedded::crash_child", "--nocapture"])
            .env(CHILD_STORE, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut told: Vec<Vec<String>> = Vec::new();
        let words = |line: String| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
        let is_told = |words: &Vec<String>| matches!(&*words[0], "grant" | "release");
        while told.len() < GRANTS_BEFORE_KILL {
            let line = lines.next().expect("the child goes on").unwrap();
            told.extend(Some(words(line)).filter(is_told));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it printed up to its end counts too, but for a line that the kill cut.
        told.extend(lines.map_while(Result::ok).map(words).filter(is_told));
        told.retain(|words| words.len() == 5);
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(&path).await.unwrap());
        for words in &told {
            let token: u64 = words[4].parse().unwrap();
            assert!(
                words[0] == "release" || token > highest,
                "{words:?} after {highest}"
            );
        }
        for words in &told {
            check_told(&store, words, &told).await;
        }
        highest = told
            .iter()
            .map(|words| words[4].parse().unwrap())
            .fold(highest, u64::max);
        let fresh = session(&store).await;
        let (entry, _) = stand(&store, "fresh", fresh, 1).await;
        assert!(entry.token.get() > highest);
        highest = entry.token.get();
    }
}

/// One grant or release that the child was told: it stands, it is over, or its session has ended.
async fn check_told(store: &Arc<dyn Store>, words: &[String], told: &[Vec<String>]) {
    let lock = format!("lock/{}", words[1]);
    let (one, attempt) = (words[2].parse().unwrap(), words[3].parse().unwrap());
    if store.keep_alive(one).await.unwrap().is_none() {
        // Only a third attempt is followed by the end of its session.
        let third = |other: &Vec<String>| other[2] == words[2] && other[3] == "3";
        assert!(told.iter().any(third), "the session of {words:?} is lost");
        return;
    }
    let stands = queue(store, &lock).await.iter().any(|entry| {
        entry.session == one && entry.attempt == attempt && entry.token.to_string() == words[4]
    });
    if words[0] == "release" {
        assert!(!stands, "{words:?} came back");
    }
    if !stands {
        let again = store.enqueue(request(&lock, one, attempt)).await.unwrap();
        assert!(
            matches!(again, Enqueued::AttemptOver { .. }),
            "{words:?} is lost: {again:?}"
        );
    }
}

/// A file whose writes fail while `broken` is set.
#[derive(Debug)]
struct Fragile {
    file: FileBackend,
    broken: Arc<AtomicBool>,
}

impl Fragile {
    fn check(&self) -> Result<(), io::Error> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl StorageBackend for Fragile {
    fn len(&self) -> Result<u64, io::Error> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.check()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.check()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.check()?;
        self.file.write(offset, data)
    }

    fn close(&self) -> Result<(), io::Error> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }
}

/// Opens the file, whose disk fails while `broken` is set.
fn fragile(
    path: PathBuf,
    broken: Arc<AtomicBool>,
) -> impl Fn() -> Result<Database, DatabaseError> + Send + 'static {
    move || {
        let mut options = fs::File::options();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let file = FileBackend::new(file.map_err(redb::StorageError::Io)?)?;
        Builder::new().create_with_backend(Fragile {
            file,
            broken: Arc::clone(&broken),
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_copy_is_not_gone_on_with_after_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("s.redb"), folder.path().join("copy"));
    let (own, broken) = (folder.path().join("own"), Arc::new(AtomicBool::new(false)));
    let open = fragile(path.clone(), Arc::clone(&broken));
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open_with(open).await.unwrap());
    let one = session(&store).await;
    stand(&store, "a", one, 1).await;
    fs::copy(&path, &copy).unwrap();
    let (last, _) = stand(&store, "b", one, 1).await;

    broken.store(true, Ordering::SeqCst);
    store.enqueue(request("c", one, 1)).await.unwrap_err();
    fs::rename(&path, &own).unwrap();
    fs::copy(&copy, &path).unwrap();
    broken.store(false, Ordering::SeqCst);
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(110)).await;
        let refused = store.enqueue(request("c", one, 1)).await.unwrap_err();
        assert!(refused.to_string().contains("older copy"), "{refused}");
    }
    // With its own file it goes on.
    fs::rename(&own, &path).unwrap();
    let mut tries = 0;
    while store.enqueue(request("c", one, 1)).await.is_err() {
        tries += 1;
        assert!(tries < 100, "it does not open again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (next, _) = stand(&store, "d", one, 1).await;
    assert!(next.token > last.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_makes_it_unavailable_and_space_brings_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.redb");
    let broken = Arc::new(AtomicBool::new(false));
    let open = fragile(path, Arc::clone(&broken));
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open_with(open).await.unwrap());
    let (one, two) = (session(&store).await, session(&store).await);
    let (kept, _) = stand(&store, "a", one, 1).await;
    let mut mirror = Mirror::start(&store).await;
    broken.store(true, Ordering::SeqCst);
    for attempt in 1..=3 {
        let refused = store.enqueue(request("a", two, attempt)).await;
        assert!(
            matches!(refused, Err(StoreError::Unavailable(_))),
            "{refused:?}"
        );
        let refused = store.remove(crate::fixture::removal(&kept)).await;
        assert!(
            matches!(refused, Err(StoreError::Unavailable(_))),
            "{refused:?}"
        );
    }
    // Sessions do not end for it.
    assert_eq!(store.keep_alive(one).await.unwrap(), Some(LONG));
    broken.store(false, Ordering::SeqCst);
    // The watch itself asks until the store is open again, and starts anew.
    mirror.until(|mirror| mirror.resets == 2).await;
    assert_eq!(mirror.of("a"), queue(&store, "a").await);
    assert!(
        mirror
            .of("a")
            .iter()
            .all(|entry| entry.session != one || *entry == kept)
    );
    assert_eq!(store.keep_alive(one).await.unwrap(), Some(LONG));
    let (after, _) = stand(&store, "a", two, 4).await;
    assert!(after.token > kept.token);
    mirror
        .until(|mirror| mirror.of("a").last() == Some(&after))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_falls_too_far_behind_starts_again() {
    let open = || Builder::new().create_with_backend(InMemoryBackend::new());
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open_with(open).await.unwrap());
    let one = session(&store).await;
    let mut mirror = Mirror::start(&store).await;
    // More groups of events than a watch buffers, one after the other.
    for attempt in 1..=4000 {
        let (entry, _) = stand(&store, "a", one, attempt).await;
        remove(&store, &entry).await;
    }
    let (last, _) = stand(&store, "a", one, 4001).await;
    mirror
        .until(|mirror| mirror.of("a") == [last.clone()])
        .await;
    assert_eq!(mirror.resets, 2);
    // And goes on as before.
    remove(&store, &last).await;
    assert!(matches!(mirror.next().await, Event::Gone { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_with_the_store() {
    let open = || Builder::new().create_with_backend(InMemoryBackend::new());
    let store = EmbeddedStore::open_with(open).await.unwrap();
    let mut events = store.watch().await.unwrap();
    assert_eq!(events.recv().await, Some(Event::Reset));
    assert_eq!(events.recv().await, Some(Event::Synced));
    drop(store);
    let ended = tokio::time::timeout(WAIT_MAX, events.recv()).await;
    assert_eq!(ended.expect("an end in time"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_open_damaged_or_no_store_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made/on/demand/s.redb");
    let store = EmbeddedStore::open(&path).await.unwrap();
    assert!(
        EmbeddedStore::open(&path).await.is_err(),
        "two stores on one file"
    );
    drop(store);
    drop(EmbeddedStore::open(&path).await.unwrap());
    let text = folder.path().join("text");
    fs::write(&text, "not a store\n".repeat(1000)).unwrap();
    assert!(EmbeddedStore::open(&text).await.is_err());
    assert!(EmbeddedStore::open(folder.path()).await.is_err());
    // Cut in half.
    let length = fs::metadata(&path).unwrap().len();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(length / 2)
        .unwrap();
    assert!(EmbeddedStore::open(&path).await.is_err());
}
