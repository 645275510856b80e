//! What the store says of its own past, wherever a process of it was killed.

use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use super::{LINEAGE_MAX, Opening, Start, Watermarks, WatermarksThread, What};
use crate::gate::Record;
use crate::lock_name::LockName;

fn open(dir: &Path) -> (Watermarks, WatermarksThread, Start) {
    let opening = Opening {
        init: false,
        alone: false,
        registered: true,
        fingerprint: 1,
        patterns: vec![],
    };
    Watermarks::open(dir, opening).unwrap()
}

/// A process that is killed before it has noted an answer.
fn killed(dir: &Path) -> Start {
    open(dir).2
}

fn note(watermarks: &Watermarks, process: &str) {
    let (told, durable) = sync_channel(1);
    let process = process.to_owned();
    let done = move |durable| told.send(durable).unwrap();
    watermarks.submit(What::Noted { process }, Box::new(done));
    assert!(durable.recv().unwrap());
}

/// A process that is killed after it has noted an answer.
fn noted(dir: &Path) -> Start {
    let (watermarks, _thread, start) = open(dir);
    note(&watermarks, &start.process);
    start
}

#[test]
fn whichever_process_lockd_noted_last_is_known_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let first = killed(dir.path());
    assert!(first.after.is_empty());
    // lockd may have noted the first, or nobody.
    let second = noted(dir.path());
    assert_eq!(second.after, std::slice::from_ref(&first.process));
    // From here on only the second counts, until the next one asks.
    let third = killed(dir.path());
    assert_eq!(third.after, std::slice::from_ref(&second.process));
    // lockd has the second or the third.
    let fourth = killed(dir.path());
    assert_eq!(fourth.after, [second.process.clone(), third.process]);
}

#[test]
fn an_older_copy_never_knows_a_later_process_however_often_it_is_started() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = noted(dir.path());
    let file = super::FILE_NAME;
    std::fs::copy(dir.path().join(file), copy.path().join(file)).unwrap();
    let second = noted(dir.path());
    for _ in 0..3 {
        let restored = killed(copy.path());
        assert_eq!(restored.after[0], first.process);
        assert!(!restored.after.contains(&second.process));
    }
}

#[test]
fn after_an_end_out_of_order_every_record_is_doubted_until_it_is_raised_again() {
    let dir = tempfile::tempdir().unwrap();
    let (watermarks, thread, start) = open(dir.path());
    assert!(!start.unclean);
    raise(&watermarks, "a");
    raise(&watermarks, "b");
    let doubted = |watermarks: &Watermarks, lock: &str| {
        let stored = watermarks.load(&LockName::new(lock).unwrap());
        watermarks.is_doubted(&stored.unwrap().unwrap())
    };
    assert!(!doubted(&watermarks, "a"));
    drop((watermarks, thread));
    let (watermarks, thread, start) = open(dir.path());
    assert!(start.unclean && doubted(&watermarks, "a") && doubted(&watermarks, "b"));
    raise(&watermarks, "a");
    assert!(!doubted(&watermarks, "a"));
    // A clean end proves nothing of what was not looked at since.
    thread.close(true);
    let (watermarks, thread, start) = open(dir.path());
    assert!(!start.unclean && !doubted(&watermarks, "a") && doubted(&watermarks, "b"));
    let (told, durable) = sync_channel(1);
    let done = move |durable| told.send(durable).unwrap();
    watermarks.submit(What::Doubted { lost: true }, Box::new(done));
    assert!(durable.recv().unwrap());
    assert!(doubted(&watermarks, "a"));
    raise(&watermarks, "a");
    assert!(!doubted(&watermarks, "a"));
    thread.close(true);
    let (watermarks, _thread, _) = open(dir.path());
    assert!(!doubted(&watermarks, "a") && doubted(&watermarks, "b"));
}

fn raise(watermarks: &Watermarks, lock: &str) {
    let (told, durable) = sync_channel(1);
    let what = What::Raise {
        lock: LockName::new(lock).unwrap(),
        record: Record {
            floor: 7,
            watermark: 7,
            drained: true,
        },
        sealed_for: 0,
        hold: Duration::ZERO,
        unsigned: false,
    };
    let done = move |durable| told.send(durable).unwrap();
    watermarks.submit(what, Box::new(done));
    assert!(durable.recv().unwrap());
}

#[test]
fn a_lineage_that_is_never_answered_stays_short_and_keeps_its_first() {
    let dir = tempfile::tempdir().unwrap();
    let first = noted(dir.path());
    let mut last = first.clone();
    for _ in 0..2 * LINEAGE_MAX {
        let next = killed(dir.path());
        assert_eq!(next.after.first(), Some(&first.process));
        assert_eq!(next.after.last(), Some(&last.process));
        assert!(next.after.len() <= LINEAGE_MAX);
        last = next;
    }
}
