//! Writer A seen from the demo: the child process, its steps, and stopping it.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::cmd::exit::{self, Failure};
use crate::lock_name::LockName;

pub use super::writer::Step;

/// Longest wait for a step of the child.
const STEP_MAX: Duration = Duration::from_secs(60);
/// How often it is looked whether the child has stopped.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The child. Killed when dropped.
#[derive(Debug)]
pub struct PausedWriter {
    child: Child,
    id: Pid,
    orders: ChildStdin,
    steps: Lines<BufReader<ChildStdout>>,
}

impl PausedWriter {
    /// Starts it: it asks for the lock at once.
    pub fn start(
        lock: &LockName,
        lockd: &str,
        target: &str,
        content: &str,
        ttl: Duration,
    ) -> Result<PausedWriter, Failure> {
        let failed = |error| Failure::because("cannot start writer A", error);
        let program = std::env::current_exe().map_err(failed)?;
        let mut child = Command::new(program)
            .arg("demo-writer")
            .args([
                "--name",
                lock.as_str(),
                "--lockd",
                lockd,
                "--target",
                target,
            ])
            .args([
                "--content",
                content,
                "--ttl",
                &format!("{}ms", ttl.as_millis()),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let id = child.id().and_then(|id| Pid::from_raw(id as i32));
        match (id, child.stdin.take(), child.stdout.take()) {
            (Some(id), Some(orders), Some(stdout)) => {
                let steps = BufReader::new(stdout).lines();
                Ok(PausedWriter {
                    child,
                    id,
                    orders,
                    steps,
                })
            }
            _ => Err(Failure::new(exit::FAILED, "writer A ended before it began")),
        }
    }

    /// Waits until it holds the lock; returns its token.
    pub async fn held(&mut self) -> Result<String, Failure> {
        match self.step().await? {
            Step::Held(token) => Ok(token),
            other => Err(unexpected(&other)),
        }
    }

    /// Lets it begin its upload, and waits until half is on the way.
    pub async fn begin(&mut self) -> Result<(), Failure> {
        self.order().await?;
        match self.step().await? {
            Step::Half => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Stops it, and returns when it has stopped.
    pub async fn stop(&mut self) -> Result<(), Failure> {
        let failed = |error| Failure::because("cannot stop writer A", error);
        kill_process(self.id, Signal::STOP).map_err(failed)?;
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        while waitid(WaitId::Pid(self.id), stopped)
            .map_err(failed)?
            .is_none()
        {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        // Read when it goes on.
        self.order().await
    }

    /// Lets it go on.
    pub fn go_on(&self) -> Result<(), Failure> {
        kill_process(self.id, Signal::CONT)
            .map_err(|error| Failure::because("cannot let writer A go on", error))
    }

    /// Waits for the answer to its upload and for its end.
    pub async fn finish(mut self) -> Result<Step, Failure> {
        let step = self.step().await?;
        let _ = tokio::time::timeout(STEP_MAX, self.child.wait()).await;
        Ok(step)
    }

    async fn order(&mut self) -> Result<(), Failure> {
        let order = self.orders.write_all(b"go on\n").await;
        order.map_err(|error| Failure::because("writer A does not listen", error))
    }

    async fn step(&mut self) -> Result<Step, Failure> {
        let line = tokio::time::timeout(STEP_MAX, self.steps.next_line())
            .await
            .map_err(|_| Failure::new(exit::FAILED, "writer A takes too long"))?
            .map_err(|error| Failure::because("writer A", error))?
            .ok_or_else(|| Failure::new(exit::FAILED, "writer A ended early"))?;
        Step::parse(&line)
            .ok_or_else(|| Failure::new(exit::FAILED, format!("writer A says {line:?}")))
    }
}

fn unexpected(step: &Step) -> Failure {
    Failure::new(
        exit::FAILED,
        format!("writer A is at another step: {step:?}"),
    )
}
