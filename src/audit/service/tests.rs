use std::path::Path;

use futures::StreamExt;
use tonic::{Code, Request};

use super::super::record::{Excerpt, Mode, Record};
use super::super::writer::{AuditWriter, Limits};
use super::{AuditService, Semaphore, Service, TAILS_MAX};
use crate::proto::{QueryRequest, TailRequest};

fn record(operation: &str) -> Record {
    Record {
        unix_ms: 1_764_443_212_007,
        instance: Excerpt::new("edge-1"),
        listener: Excerpt::new("web"),
        protocol: "http",
        client: "192.0.2.7:40001".parse().unwrap(),
        code: "missing",
        lock: None,
        token: None,
        watermark: None,
        holder: None,
        operation: Excerpt::new(operation),
        mode: Mode::Observe,
    }
}

fn open(dir: &Path) -> (Service, AuditWriter, super::super::AuditThread) {
    // So small that every record rotates.
    let limits = Limits {
        file_bytes_max: 1,
        ..Limits::default()
    };
    let (writer, thread) = AuditWriter::open(dir, limits).unwrap();
    let tails = std::sync::Arc::new(Semaphore::new(TAILS_MAX));
    (
        Service {
            writer: writer.clone(),
            tails,
        },
        writer,
        thread,
    )
}

fn operation(json: &str) -> String {
    let line: serde_json::Value = serde_json::from_str(json).unwrap();
    line["operation"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_tail_gives_the_backlog_then_follows_over_rotations_to_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (service, writer, thread) = open(dir.path());
    let mut batches = writer.batches();
    for n in 0..3 {
        batches.mark_unchanged();
        writer.record(record(&format!("PUT /{n}")));
        batches.changed().await.unwrap();
    }
    let request = Request::new(TailRequest {
        backlog: 2,
        follow: true,
    });
    let mut tail = service.tail(request).await.unwrap().into_inner();
    for expected in ["PUT /1", "PUT /2"] {
        assert_eq!(
            operation(&tail.next().await.unwrap().unwrap().json),
            expected
        );
    }
    for n in 3..6 {
        writer.record(record(&format!("PUT /{n}")));
        let line = tail.next().await.unwrap().unwrap().json;
        assert_eq!(operation(&line), format!("PUT /{n}"));
    }
    writer.record(record("PUT /last"));
    tokio::task::spawn_blocking(|| thread.close())
        .await
        .unwrap();
    assert_eq!(
        operation(&tail.next().await.unwrap().unwrap().json),
        "PUT /last"
    );
    assert!(tail.next().await.is_none(), "the tail ends with the writer");
}

#[tokio::test]
async fn without_follow_a_tail_ends_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (service, writer, thread) = open(dir.path());
    writer.record(record("PUT /only"));
    tokio::task::spawn_blocking(|| thread.close())
        .await
        .unwrap();
    let request = Request::new(TailRequest {
        backlog: 10,
        follow: false,
    });
    let tail = service.tail(request).await.unwrap().into_inner();
    let lines: Vec<_> = tail
        .map(|line| operation(&line.unwrap().json))
        .collect()
        .await;
    assert_eq!(lines, ["PUT /only"]);
}

#[tokio::test]
async fn one_tail_too_many_is_refused_until_another_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _writer, _thread) = open(dir.path());
    let request = || {
        Request::new(TailRequest {
            backlog: 0,
            follow: true,
        })
    };
    let mut tails = Vec::new();
    for _ in 0..TAILS_MAX {
        tails.push(service.tail(request()).await.unwrap());
    }
    let refused = service.tail(request()).await.err().unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    tails.pop();
    assert!(service.tail(request()).await.is_ok());
}

#[tokio::test]
async fn files_that_cannot_be_read_are_an_error_without_a_path() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _writer, _thread) = open(dir.path());
    std::fs::remove_dir_all(dir.path()).unwrap();
    let request = Request::new(TailRequest {
        backlog: 1,
        follow: false,
    });
    let error = service.tail(request).await.err().unwrap();
    assert_eq!(error.code(), Code::Internal);
    assert!(
        !error.message().contains(dir.path().to_str().unwrap()),
        "{error}"
    );
}

#[tokio::test]
async fn queries_are_not_served_yet() {
    let dir = tempfile::tempdir().unwrap();
    let (service, _writer, _thread) = open(dir.path());
    let error = service
        .query(Request::new(QueryRequest::default()))
        .await
        .err()
        .unwrap();
    assert_eq!(error.code(), Code::Unimplemented);
}
