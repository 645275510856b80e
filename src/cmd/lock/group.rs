//! CMD's process group: spawning it, signalling it, and knowing when nothing of it is left.
//!
//! Invariant: the leader is not reaped before the group is empty. An unreaped leader keeps its
//! process id, and with it the group's id, so that no signal can reach a group of strangers that
//! was given the same number.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::signal::unix::{self, SignalKind};

use crate::cmd::exit;

/// How often it is looked whether the group is empty: the kernel tells nobody about that.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What became of the leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leader {
    /// It ended, with this exit code in the manner of shells.
    Ended(u8),
    /// The terminal's Ctrl-Z stopped it.
    StoppedFromTerminal,
}

/// The group of a running command.
#[derive(Debug)]
pub struct Group {
    leader: Child,
    id: Pid,
    child_changes: unix::Signal,
}

impl Group {
    /// Starts the command as the leader of a new group.
    pub fn spawn(command: &mut Command) -> io::Result<Group> {
        // First the listener: a change that comes before it would be missed.
        let child_changes = unix::signal(SignalKind::child())?;
        let leader = command.process_group(0).spawn()?;
        let id = Pid::from_child(&leader);
        Ok(Group {
            leader,
            id,
            child_changes,
        })
    }

    /// The group's id.
    pub fn id(&self) -> Pid {
        self.id
    }

    /// Sends a signal to every process of the group.
    pub fn signal(&self, signal: Signal) {
        // Fails only when nobody is left, or for processes of other users, which only they and
        // root can signal.
        let _ = kill_process_group(self.id, signal);
    }

    /// Waits for a change of the leader. Ended is told again and again. Cancel safe.
    pub async fn leader_change(&mut self) -> io::Result<Leader> {
        loop {
            if let Some(change) = self.look_at_leader()? {
                return Ok(change);
            }
            self.child_changes.recv().await;
        }
    }

    fn look_at_leader(&self) -> io::Result<Option<Leader>> {
        let id = WaitId::Pid(self.id);
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Some(status) = waitid(id.clone(), peek)? {
            let code = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => code as u8,
                (None, Some(signal)) => exit::SIGNAL_BASE.saturating_add(signal as u8),
                (None, None) => exit::FAILED,
            };
            return Ok(Some(Leader::Ended(code)));
        }
        let stopped = waitid(id, WaitIdOptions::STOPPED | WaitIdOptions::NOHANG)?;
        let by = stopped.and_then(|status| status.stopping_signal());
        Ok((by == Some(Signal::TSTP.as_raw())).then_some(Leader::StoppedFromTerminal))
    }

    /// Waits until no process of the group runs. Cancel safe.
    pub async fn gone(&self) -> io::Result<()> {
        let mut empty_before = false;
        loop {
            // Twice in a row: a process that forked and ended while /proc was read can hide the
            // new one from one look, not from two.
            let empty = !has_members(self.id)?;
            if empty && empty_before {
                return Ok(());
            }
            empty_before = empty;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Asks the group to end, kills it after `grace`, and waits until it is gone.
    pub async fn end(&self, grace: Duration) -> io::Result<()> {
        self.signal(Signal::TERM);
        // A stopped process handles SIGTERM only when it goes on.
        self.signal(Signal::CONT);
        match tokio::time::timeout(grace, self.gone()).await {
            Ok(gone) => gone,
            Err(_) => self.kill().await,
        }
    }

    /// Kills the group and waits until it is gone.
    pub async fn kill(&self) -> io::Result<()> {
        self.signal(Signal::KILL);
        self.gone().await
    }

    /// Forgets the group, which must be gone.
    pub fn reap(mut self) {
        let _ = self.leader.wait();
    }
}

/// Whether a process of the group is there that has not ended: zombies can do no harm, and in a
/// container whose first process does not reap they stay for ever.
fn has_members(group: Pid) -> io::Result<bool> {
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name
            .to_str()
            .filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
        else {
            continue;
        };
        // A process that ended meanwhile cannot be read.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        if let Some((state, of)) = state_and_group(&stat)
            && of == group.as_raw_nonzero().get()
            && !matches!(state, 'Z' | 'X')
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Fields 3 and 5 of /proc/PID/stat (proc_pid_stat(5)). Field 2, the name in parentheses, may
/// hold anything, also parentheses; nothing after it does.
fn state_and_group(stat: &str) -> Option<(char, i32)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let group = fields.nth(1)?.parse().ok()?;
    Some((state, group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_can_not_fake_its_state() {
        assert_eq!(state_and_group("7 (sh) S 1 42 42 0"), Some(('S', 42)));
        assert_eq!(
            state_and_group("7 (a) Z 1 9 (b) R 1 43 43 0"),
            Some(('R', 43))
        );
        assert_eq!(state_and_group("7 (sh"), None);
        assert_eq!(state_and_group("7 (sh) S 1"), None);
    }
}
