use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;

use super::super::files;
use super::{AuditWriter, Limits};
use crate::audit::record::{Excerpt, Mode, Record};
use crate::lock_name::LockName;
use crate::token::Token;

/// Later than every record, so that a file of this day is never left for its day.
const LAST_DAY: &str = "9999-12-31";

fn record(token: u64) -> Record {
    Record {
        unix_ms: 1_764_443_212_007,
        instance: Excerpt::new("edge-1"),
        listener: Excerpt::new("web"),
        protocol: "http",
        client: "192.0.2.7:40001".parse().unwrap(),
        code: "stale",
        lock: Some(LockName::new("orders").unwrap()),
        token: Token::new(token),
        watermark: Some(Token::MAX),
        holder: None,
        operation: Excerpt::new("PUT /orders/7"),
        mode: Mode::Enforce,
    }
}

fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

fn lines(dir: &Path) -> Vec<Value> {
    let files = files::list(dir).unwrap();
    let texts = files
        .iter()
        .map(|file| fs::read_to_string(&file.path).unwrap());
    texts
        .flat_map(|text| text.lines().map(parse).collect::<Vec<_>>())
        .collect()
}

fn first_file(dir: &Path) -> PathBuf {
    dir.join(format!("0000000001-{LAST_DAY}.jsonl"))
}

/// The value of the drop counter in the exporter's text.
fn dropped(metrics: &str) -> u64 {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(crate::telemetry::AUDIT_DROPPED))
        .unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn records_are_kept_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let (writer, thread) = AuditWriter::open(dir.path(), Limits::default()).unwrap();
    for token in 1..=100 {
        writer.record(record(token));
    }
    thread.close();
    let kept = lines(dir.path());
    let tokens: Vec<_> = kept
        .iter()
        .map(|line| line["token"].as_str().unwrap())
        .collect();
    let expected: Vec<_> = (1..=100).map(|token: u64| token.to_string()).collect();
    assert_eq!(tokens, expected);
}

#[test]
fn files_rotate_under_load_and_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits {
        file_bytes_max: 1000,
        files_max: 1000,
        ..Limits::default()
    };
    let (writer, thread) = AuditWriter::open(dir.path(), limits).unwrap();
    for token in 1..=100 {
        writer.record(record(token));
    }
    thread.close();
    let files = files::list(dir.path()).unwrap();
    assert!(files.len() > 10, "only {} files", files.len());
    for file in files {
        assert!(fs::metadata(&file.path).unwrap().len() <= 1000);
    }
    assert_eq!(lines(dir.path()).len(), 100);
}

#[test]
fn a_full_queue_drops_counts_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    // A pipe that nobody reads yet: the disk that has stopped answering.
    let pipe = first_file(dir.path());
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();

    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let limits = Limits {
        queue_records_max: 8,
        ..Limits::default()
    };
    let (sent, writer, thread) = metrics::with_local_recorder(&recorder, || {
        let (writer, thread) = AuditWriter::open(dir.path(), limits).unwrap();
        let mut sent = 0;
        while dropped(&metrics.render()) < 10 {
            sent += 1;
            writer.record(record(sent));
        }
        (sent, writer, thread)
    });

    let mut kept = 0;
    let mut lost = 0;
    let mut reader = BufReader::new(File::open(&pipe).unwrap()).lines();
    while kept + lost < sent {
        let line = parse(&reader.next().unwrap().unwrap());
        match line["event"].as_str().unwrap() {
            "refusal" => kept += 1,
            "lost" => lost += line["lost"].as_u64().unwrap(),
            other => panic!("event {other}"),
        }
    }
    assert_eq!(kept + lost, sent);
    assert_eq!(lost, dropped(&metrics.render()));
    drop(writer);
    thread.close();
}

#[test]
fn a_full_disk_drops_counts_and_says_so_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    // The kernel's own full disk (full(4)): every write to it fails with ENOSPC.
    let full = first_file(dir.path());
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();

    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let (writer, thread) = metrics::with_local_recorder(&recorder, || {
        AuditWriter::open(dir.path(), Limits::default()).unwrap()
    });
    for token in 1..=5 {
        writer.record(record(token));
    }
    while dropped(&metrics.render()) < 5 {
        std::thread::yield_now();
    }
    fs::remove_file(&full).unwrap();
    writer.record(record(6));
    thread.close();

    let kept = lines(dir.path());
    let lost: u64 = kept.iter().filter_map(|line| line["lost"].as_u64()).sum();
    let tokens: Vec<_> = kept
        .iter()
        .filter_map(|line| line["token"].as_str())
        .collect();
    assert_eq!((lost, tokens), (5, vec!["6"]));
    assert_eq!(dropped(&metrics.render()), 5);
}

#[test]
fn a_loss_is_told_without_a_further_record() {
    let dir = tempfile::tempdir().unwrap();
    let full = first_file(dir.path());
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let (writer, thread) = metrics::with_local_recorder(&recorder, || {
        AuditWriter::open(dir.path(), Limits::default()).unwrap()
    });
    writer.record(record(1));
    while dropped(&metrics.render()) < 1 {
        std::thread::yield_now();
    }
    fs::remove_file(&full).unwrap();
    while lines(dir.path()).is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(lines(dir.path())[0]["lost"], 1);
    thread.close();
}

#[test]
fn a_record_after_the_close_is_dropped_and_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        let (writer, thread) = AuditWriter::open(dir.path(), Limits::default()).unwrap();
        thread.close();
        writer.record(record(1));
    });
    assert_eq!(dropped(&recorder.handle().render()), 1);
}

#[test]
fn refusals_are_counted_by_listener_and_code() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        let (writer, _thread) = AuditWriter::open(dir.path(), Limits::default()).unwrap();
        writer.record(record(1));
        writer.record(record(2));
    });
    let text = recorder.handle().render();
    let expected = concat!(
        r#"ringfence_refusals_total{listener="web",protocol="http",code="stale","#,
        r#"mode="enforce"} 2"#
    );
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let Err(error) = AuditWriter::open(&file.join("audit"), Limits::default()) else {
        panic!("a directory below a file was opened");
    };
    assert!(error.to_string().contains("file/audit"), "{error}");
}
