//! The signals that ask this process to end.

use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// What a user or a supervisor sends to end a process.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// What else ends a process that does not expect it, and is sent on purpose (signal(7)).
const OTHERS: [Signal; 7] = [
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::POWER,
];

/// Signals, one after the other.
///
/// What was ignored when the process started stays ignored, here and in children: nohup(1) and
/// the background jobs of shells rely on that.
pub struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Takes SIGINT, SIGTERM, SIGHUP and SIGQUIT over: from now on none of them ends the process by
    /// itself.
    pub fn take_over() -> io::Result<Signals> {
        Signals::take(&ENDING)
    }

    /// The same with every other one that is sent to processes and would end this one.
    pub fn take_over_all() -> io::Result<Signals> {
        Signals::take(&[&ENDING[..], &OTHERS].concat())
    }

    fn take(signals: &[Signal]) -> io::Result<Signals> {
        let ignored = ignored_mask(&std::fs::read_to_string("/proc/self/status")?);
        let signals = signals.iter().copied();
        let heeded = signals.filter(|signal| ignored >> (signal.as_raw() - 1) & 1 == 0);
        let streams = heeded.map(|signal| {
            let stream = unix::signal(SignalKind::from_raw(signal.as_raw()))?;
            Ok((signal, stream))
        });
        let streams = streams.collect::<io::Result<_>>()?;
        Ok(Signals { streams })
    }

    /// The next one. Cancel safe.
    pub async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (signal, stream) in &mut self.streams {
                // A stream ends with its runtime only.
                if let Poll::Ready(Some(())) = stream.poll_recv(cx) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
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
