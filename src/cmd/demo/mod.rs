//! `ringfence demo`: the paused writer, first without the proxy and then with it.
//!
//! Both clients are real: writer A is a process of its own that SIGSTOP really stops past its
//! lease, writer B lives here. Nothing is simulated, and the end is judged by what the store holds.

mod http;
mod paused;
mod writer;

pub use writer::run as run_writer;

use std::time::Duration;

use crate::cli::DemoArgs;
use crate::client::{Client, Session, SessionOptions, Wait};
use crate::lock_name::LockName;
use crate::proto::TailRequest;
use crate::proto::audit_service_client::AuditServiceClient;

use super::dev::object_store::BUCKET;
use super::dev::stack::{Stack, StackOptions};
use super::exit::{self, Failure};
use super::signals::Signals;
use super::{print_line, proxy_client};

use paused::{PausedWriter, Step};

/// What A writes, long ago.
const OLD: &str = "old bytes, written by A, who was paused";
/// What B writes.
const NEW: &str = "new bytes, written by B, who holds the lock";
/// Longest wait for a lock whose lease ends by itself.
const LOCK_MAX: Duration = Duration::from_secs(60);

/// How one telling ended.
struct Ending {
    /// The answer to A's late write.
    late: Step,
    /// What the store holds.
    content: String,
}

impl Ending {
    fn stale_write_was_refused(&self) -> bool {
        matches!(&self.late, Step::Status(412, _)) && self.content == NEW
    }
}

/// Plays the story; returns the exit code.
pub async fn run(args: DemoArgs) -> Result<u8, Failure> {
    let mut signals =
        Signals::take_over().map_err(|error| Failure::because("cannot handle signals", error))?;
    let folder = tempfile::Builder::new()
        .prefix("ringfence-demo-")
        .tempdir()
        .map_err(|error| Failure::because("cannot make a temporary folder", error))?;
    let stack = Stack::start(StackOptions::on_free_ports(folder.path())).await?;
    let told = tokio::select! {
        told = tell(&stack, args.ttl) => told,
        signal = signals.next() => Ok(exit::SIGNAL_BASE + signal.as_raw() as u8),
    };
    stack.stop().await;
    told
}

async fn tell(stack: &Stack, ttl: Duration) -> Result<u8, Failure> {
    say("A lock service gives A the lock. A begins to write, and is paused (SIGSTOP) for longer")?;
    say("than its lease. B gets the lock and writes. Then A goes on where it was.")?;

    say("\n1. Without the proxy: both write straight to the store")?;
    let object = "without-proxy.txt";
    let straight = format!("{}/{BUCKET}/{object}", stack.store_url());
    let ending = play(stack, "unguarded", &straight, &straight, ttl).await?;
    if ending.content != OLD {
        let message = format!(
            "the old bytes were to win, but the store holds {:?}",
            ending.content
        );
        return Err(Failure::new(exit::FAILED, message));
    }
    say("   A's lock was long gone, and its write won. B's bytes are lost, and nobody was told.")?;

    say("\n2. With the proxy: the same, written through ringfence")?;
    let object = "with-proxy.txt";
    let through = format!("{}/{BUCKET}/{object}", stack.s3_url());
    let straight = format!("{}/{BUCKET}/{object}", stack.store_url());
    let ending = play(stack, BUCKET, &through, &straight, ttl).await?;
    let audited = audited(stack).await?;
    match &audited {
        Some(line) => say(&format!("   The audit:  {line}"))?,
        None => say("   The audit holds nothing of it.")?,
    }
    if ending.stale_write_was_refused() && audited.is_some() {
        say("\nThe stale write was refused, and B's bytes stand.")?;
        Ok(exit::OK)
    } else {
        say("\nFAILED: the stale write was not refused, or not written to the audit.")?;
        Ok(exit::FAILED)
    }
}

/// Plays the story once on one lock, writing to `target`; `object` is where the store itself shows
/// what it holds.
async fn play(
    stack: &Stack,
    lock: &str,
    target: &str,
    object: &str,
    ttl: Duration,
) -> Result<Ending, Failure> {
    let lock = LockName::new(lock).map_err(|error| Failure::because("lock", error))?;
    let mut a = PausedWriter::start(&lock, &stack.lockd_url(), target, OLD, ttl)?;
    let token_a = a.held().await?;
    say(&format!(
        "   A holds the lock {lock:?} with token {token_a}"
    ))?;
    a.begin().await?;
    say("   A looks: it holds the lock. It uploads, half of its bytes are sent ...")?;
    a.stop().await?;
    say("   A is stopped by SIGSTOP")?;

    let b = session_of_b(stack, ttl).await?;
    let guard = b.acquire(&lock, Wait::AtMost(LOCK_MAX)).await?;
    let token_b = guard.token();
    say(&format!(
        "   A's lease ends; B gets the lock with token {token_b}"
    ))?;
    let answer = http::put(target, Some(guard.ticket()), NEW)
        .await
        .map_err(|error| Failure::because("B's write", error))?;
    say(&format!("   B writes: {}", answer.status))?;
    if !answer.status.is_success() {
        let message = format!("B's write failed: {} {}", answer.status, answer.body);
        return Err(Failure::new(exit::FAILED, message));
    }

    a.go_on()?;
    say("   A goes on (SIGCONT) and sends the rest of its bytes")?;
    let late = a.finish().await?;
    match &late {
        Step::Status(code, text) => say(&format!("   A's write is answered: {code} {text}"))?,
        other => say(&format!("   A's write is not answered: {other:?}"))?,
    }
    let content = http::get(object)
        .await
        .map_err(|error| Failure::because("the store", error))?;
    say(&format!("   The store holds: {:?}", content.body))?;
    guard.release().await?;
    b.close().await?;
    Ok(Ending {
        late,
        content: content.body,
    })
}

async fn session_of_b(stack: &Stack, ttl: Duration) -> Result<Session, Failure> {
    let client = Client::new([stack.lockd_url()])?;
    let holder = "writer B".to_owned();
    Ok(client
        .open_session(SessionOptions {
            ttl,
            holder,
            ..SessionOptions::default()
        })
        .await?)
}

/// The last refusal that says `stale`.
async fn audited(stack: &Stack) -> Result<Option<String>, Failure> {
    let mut audit = AuditServiceClient::new(proxy_client::connect(&stack.admin_url()).await?);
    // The audit is written behind the refusal: it is followed until the record is there.
    let request = TailRequest {
        backlog: 100,
        follow: true,
    };
    let records = audit
        .tail(request)
        .await
        .map_err(|status| proxy_client::refused(&status))?;
    let mut records = records.into_inner();
    let looking = async {
        while let Ok(Some(record)) = records.message().await {
            if record.json.contains(r#""code":"stale""#) {
                return Some(record.json);
            }
        }
        None
    };
    Ok(tokio::time::timeout(Duration::from_secs(10), looking)
        .await
        .unwrap_or(None))
}

fn say(text: &str) -> Result<(), Failure> {
    print_line(text)
}
