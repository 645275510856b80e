//! The signals that ask this process to end.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// SIGINT, SIGTERM, SIGHUP and SIGQUIT, one after the other.
///
/// What was ignored when the process started stays ignored, here and in children: nohup(1) and
/// the background jobs of shells rely on that.
pub struct Signals {
    interrupt: Option<unix::Signal>,
    terminate: Option<unix::Signal>,
    hangup: Option<unix::Signal>,
    quit: Option<unix::Signal>,
}

impl Signals {
    /// Takes them over: from now on none of them ends the process by itself.
    pub fn take_over() -> io::Result<Signals> {
        let ignored = ignored_mask(&std::fs::read_to_string("/proc/self/status")?);
        let stream = |kind: SignalKind| -> io::Result<Option<unix::Signal>> {
            let is_ignored = ignored >> (kind.as_raw_value() - 1) & 1 == 1;
            if is_ignored {
                Ok(None)
            } else {
                unix::signal(kind).map(Some)
            }
        };
        Ok(Signals {
            interrupt: stream(SignalKind::interrupt())?,
            terminate: stream(SignalKind::terminate())?,
            hangup: stream(SignalKind::hangup())?,
            quit: stream(SignalKind::quit())?,
        })
    }

    /// The next one. Cancel safe.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            () = receive(&mut self.interrupt) => Signal::INT,
            () = receive(&mut self.terminate) => Signal::TERM,
            () = receive(&mut self.hangup) => Signal::HUP,
            () = receive(&mut self.quit) => Signal::QUIT,
        }
    }
}

async fn receive(stream: &mut Option<unix::Signal>) {
    if let Some(stream) = stream
        && stream.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}

/// The mask `SigIgn` of /proc/PID/status (proc_pid_status(5)): bit N - 1 is signal N.
fn ignored_mask(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        // SIGHUP is 1, SIGPIPE 13: what nohup leaves to a program of this runtime.
        let status = "Name:\tx\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored_mask(status), 0x1001);
        assert_eq!(ignored_mask("Name:\tx\n"), 0);
    }
}
