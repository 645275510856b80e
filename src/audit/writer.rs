//! The audit writer: a bounded queue in front of a thread that writes lines to files.
//!
//! The request path only ever tries to enqueue. A record that finds the queue full, or that the
//! disk does not take, is counted in [`telemetry::AUDIT_DROPPED`], and the next line that can be
//! written says how many were lost. Each batch is handed to the kernel as soon as it is written; it
//! is synced to disk when its file ends and at shutdown, so that a crash of the machine (not of the
//! process) may lose the last lines. A refused write changed nothing, so this loses evidence, never
//! data.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use time::Date;
use tokio::sync::watch;

use crate::clock;
use crate::telemetry;

use super::log::Log;
use super::record::{LINE_BYTES_MAX, Record, utc, write_loss_line};

/// Records that wait for the thread.
pub const QUEUE_RECORDS_MAX: usize = 4096;
/// Size at which a file ends, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Files that are kept; the oldest go first.
pub const FILES_MAX: usize = 128;

/// Bytes that are gathered before they are written, if more records wait.
const BATCH_BYTES_MAX: usize = 256 * 1024;
/// How long a loss may wait for its line while no record comes.
const LOSS_REPORT_AFTER: Duration = Duration::from_millis(500);

/// The bounds of an audit directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Records that wait for the thread.
    pub queue_records_max: usize,
    /// Size at which a file ends, in bytes. A single longer line still gets a file.
    pub file_bytes_max: u64,
    /// Files that are kept; the oldest go first.
    pub files_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            queue_records_max: QUEUE_RECORDS_MAX,
            file_bytes_max: FILE_BYTES_MAX,
            files_max: FILES_MAX,
        }
    }
}

/// An audit directory that can't be written.
#[derive(Debug, thiserror::Error)]
#[error("can't write audit files in {dir}: {source}", dir = dir.display())]
pub struct OpenError {
    dir: PathBuf,
    source: io::Error,
}

/// The handle that sessions record through. Cheap to clone.
#[derive(Clone)]
pub struct AuditWriter {
    shared: Arc<Shared>,
}

struct Shared {
    dir: PathBuf,
    queue: SyncSender<Message>,
    /// Records that were not enqueued and are in no loss line yet.
    lost: AtomicU64,
    dropped: metrics::Counter,
    batches: watch::Receiver<u64>,
}

enum Message {
    Record(Box<Record>),
    Close,
}

/// The thread that writes. Dropping it writes what is queued, syncs, and waits for its end.
pub struct AuditThread {
    queue: SyncSender<Message>,
    thread: Option<JoinHandle<()>>,
}

impl AuditWriter {
    /// Makes `dir` if it is missing, checks that it can be written, and starts the thread. The
    /// metrics recorder is installed before, or drops are not counted in it.
    pub fn open(dir: &Path, limits: Limits) -> Result<(AuditWriter, AuditThread), OpenError> {
        let failed = |source| OpenError {
            dir: dir.into(),
            source,
        };
        std::fs::create_dir_all(dir).map_err(failed)?;
        let mut log = Log::new(dir.into(), limits.file_bytes_max, limits.files_max);
        log.prepare(utc(clock::unix_ms()).date()).map_err(failed)?;

        let (queue, records) = sync_channel(limits.queue_records_max);
        let (batches, batches_seen) = watch::channel(0);
        let shared = Arc::new(Shared {
            dir: dir.into(),
            queue: queue.clone(),
            lost: AtomicU64::new(0),
            dropped: metrics::counter!(telemetry::AUDIT_DROPPED),
            batches: batches_seen,
        });
        let batch_bytes_max = usize::try_from(limits.file_bytes_max)
            .map_or(BATCH_BYTES_MAX, |file| BATCH_BYTES_MAX.min(file));
        let work = Work {
            log,
            shared: shared.clone(),
            batches,
            batch: Batch::default(),
            batch_bytes_max,
            lost: 0,
            failing: false,
        };
        let thread = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || work.run(&records))
            .map_err(failed)?;
        Ok((
            AuditWriter { shared },
            AuditThread {
                queue,
                thread: Some(thread),
            },
        ))
    }

    /// Counts the refusal and hands its record to the thread. Never blocks.
    pub fn record(&self, record: Record) {
        metrics::counter!(
            telemetry::REFUSALS,
            "listener" => record.listener.as_str().to_owned(),
            "protocol" => record.protocol,
            "code" => record.code,
            "mode" => record.mode.as_str()
        )
        .increment(1);
        if self
            .shared
            .queue
            .try_send(Message::Record(Box::new(record)))
            .is_err()
        {
            // Relaxed: the count alone is read, nothing else is published with it.
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            self.shared.dropped.increment(1);
        }
    }

    /// The directory of the files.
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// Changes after each batch that reached the files; ends with the thread.
    pub fn batches(&self) -> watch::Receiver<u64> {
        self.shared.batches.clone()
    }
}

impl AuditThread {
    /// Writes what is queued, syncs, and waits for the thread's end. Blocks for as long as the disk
    /// takes. Records that come later are lost and counted.
    pub fn close(self) {
        drop(self);
    }
}

impl Drop for AuditThread {
    fn drop(&mut self) {
        // Waits for room in a full queue, which the thread is making.
        let _ = self.queue.send(Message::Close);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the audit thread panicked; its last records are lost");
        }
    }
}

/// Lines that go to one file in one write.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    records: u64,
    /// The loss that the first line reports; 0: there is no such line.
    loss: u64,
    day: Option<Date>,
}

/// What the thread owns.
struct Work {
    log: Log,
    shared: Arc<Shared>,
    batches: watch::Sender<u64>,
    batch: Batch,
    batch_bytes_max: usize,
    /// Lost records that no stored line reports yet.
    lost: u64,
    failing: bool,
}

impl Work {
    fn run(mut self, queue: &Receiver<Message>) {
        loop {
            match queue.recv_timeout(LOSS_REPORT_AFTER) {
                Ok(Message::Record(record)) => self.gather(&record),
                Ok(Message::Close) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.begin_batch(clock::unix_ms());
                    self.flush();
                    continue;
                }
            }
            let closed = self.gather_waiting(queue);
            self.flush();
            if closed {
                break;
            }
        }
        self.begin_batch(clock::unix_ms());
        self.flush();
        if let Err(error) = self.log.sync() {
            tracing::error!(%error, "audit files may lack their last lines after a power cut");
        }
    }

    /// Gathers what is queued already, and tells whether the end was among it.
    fn gather_waiting(&mut self, queue: &Receiver<Message>) -> bool {
        while let Ok(message) = queue.try_recv() {
            match message {
                Message::Record(record) => self.gather(&record),
                Message::Close => return true,
            }
        }
        false
    }

    fn gather(&mut self, record: &Record) {
        let day = utc(record.unix_ms).date();
        let full = self.batch.bytes.len() + LINE_BYTES_MAX > self.batch_bytes_max;
        if self.batch.day.is_some_and(|of_batch| of_batch != day) || full {
            self.flush();
        }
        self.begin_batch(record.unix_ms);
        self.batch.day = Some(day);
        record.write_line(&mut self.batch.bytes);
        self.batch.records += 1;
    }

    /// Puts the line about what was lost, if anything was, at the start of an empty batch.
    fn begin_batch(&mut self, unix_ms: u64) {
        if !self.batch.bytes.is_empty() {
            return;
        }
        self.lost += self.shared.lost.swap(0, Ordering::Relaxed);
        if self.lost > 0 {
            write_loss_line(unix_ms, self.lost, &mut self.batch.bytes);
            self.batch.loss = self.lost;
            self.batch.day = Some(utc(unix_ms).date());
        }
    }

    fn flush(&mut self) {
        let Some(day) = self.batch.day.take() else {
            return;
        };
        let stored = self.log.append(day, &self.batch.bytes);
        let (reported, lost) = match &stored {
            Ok(()) => (self.batch.loss, 0),
            Err(short) if self.batch.loss == 0 => (0, self.batch.records - short.lines),
            Err(short) if short.lines == 0 => (0, self.batch.records),
            Err(short) => (self.batch.loss, self.batch.records - (short.lines - 1)),
        };
        self.lost = self.lost - reported + lost;
        self.shared.dropped.increment(lost);
        self.tell_disk_state(stored.err().map(|short| short.error));
        self.batch.bytes.clear();
        self.batch.records = 0;
        self.batch.loss = 0;
        self.batches.send_modify(|count| *count += 1);
    }

    /// Logs the first failure and the recovery, not each failed batch.
    fn tell_disk_state(&mut self, error: Option<io::Error>) {
        let dir = self.shared.dir.display();
        match error {
            Some(error) if !self.failing => {
                tracing::error!(%dir, %error, "audit records are lost");
                self.failing = true;
            }
            None if self.failing => {
                tracing::info!(%dir, "audit records are kept again");
                self.failing = false;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
