//! Running CMD under a lock: what ends it, and in which order things are given up.

use std::io;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::cli::LockArgs;
use crate::client::{Guard, Lost};
use crate::cmd::complain;
use crate::cmd::exit::{self, Failure};
use crate::cmd::signals::Signals;

use super::group::{Group, Leader};
use super::terminal::Terminal;

/// What ended the watch over a running command.
enum Outcome {
    Ended(u8),
    Lost(Lost),
}

/// Runs CMD; the lock is released when its group is gone.
pub(super) async fn run(
    guard: Guard,
    margin: Duration,
    args: &LockArgs,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let terminal = Terminal::of_stdin();
    let mut group = match Group::spawn(&mut command(&guard, args)) {
        Ok(group) => group,
        Err(error) => {
            super::release(guard).await;
            return Err(cannot_run(args, &error));
        }
    };
    terminal.give_to(group.id());
    group.signal(Signal::CONT);
    let ended = watch(&guard, margin, args.grace, &mut group, &terminal, signals).await;
    terminal.take_back();
    match ended {
        Ok(outcome) => {
            group.reap();
            conclude(guard, outcome).await
        }
        Err(error) => {
            // Without knowing that the group is gone the lock must not be given to another.
            group.signal(Signal::KILL);
            Err(Failure::because(
                "cannot follow CMD; the lock is left to its lease",
                error,
            ))
        }
    }
}

fn command(guard: &Guard, args: &LockArgs) -> Command {
    let mut command = Command::new(&args.command[0]);
    command
        .args(&args.command[1..])
        .env("FENCING_TOKEN", guard.ticket())
        .env("FENCING_TOKEN_NUMBER", guard.token().to_string())
        .env("FENCING_LOCK", guard.lock().as_str());
    command
}

fn cannot_run(args: &LockArgs, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::CANNOT_RUN,
    };
    Failure::new(code, format!("cannot run {:?}: {error}", args.command[0]))
}

/// Watches lock, leader and signals; returns when nothing of the group is left.
async fn watch(
    guard: &Guard,
    margin: Duration,
    grace: Duration,
    group: &mut Group,
    terminal: &Terminal,
    signals: &mut Signals,
) -> io::Result<Outcome> {
    let mut lost = std::pin::pin!(guard.lost(margin));
    loop {
        tokio::select! {
            // The loss first: whatever else happened while this process did not run came too late.
            biased;
            lost = &mut lost => return end_lost(guard, lost, grace, group).await,
            signal = signals.next() => group.signal(signal),
            change = group.leader_change() => match change? {
                Leader::Ended(_) if !guard.is_held() => {
                    return end_lost(guard, Lost::Expired, grace, group).await;
                }
                Leader::Ended(code) => {
                    // What CMD left running is ended too: with it the lock would stay in use.
                    let ending = end_rest(group, grace, signals);
                    tokio::select! {
                        biased;
                        lost = &mut lost => return end_lost(guard, lost, grace, group).await,
                        ended = ending => return ended.map(|()| Outcome::Ended(code)),
                    }
                }
                // Somebody stopped CMD, and no terminal: that is between the two of them.
                Leader::StoppedFromTerminal if !terminal.is_ours() => {}
                Leader::StoppedFromTerminal => {
                    terminal.stop_self();
                    // The lease went on meanwhile, so it is looked at before CMD goes on.
                    if !guard.is_held() {
                        return end_lost(guard, Lost::Expired, grace, group).await;
                    }
                    terminal.give_to(group.id());
                    group.signal(Signal::CONT);
                }
            },
        }
    }
}

/// Ends the group after CMD itself has ended, and passes signals on meanwhile.
async fn end_rest(group: &Group, grace: Duration, signals: &mut Signals) -> io::Result<()> {
    let mut ending = std::pin::pin!(group.end(grace));
    loop {
        tokio::select! {
            ended = &mut ending => return ended,
            signal = signals.next() => group.signal(signal),
        }
    }
}

async fn end_lost(
    guard: &Guard,
    lost: Lost,
    grace: Duration,
    group: &Group,
) -> io::Result<Outcome> {
    let (lock, token) = (guard.lock(), guard.token());
    // The service's own word comes while the deadline is ahead; after it, another may hold the
    // lock.
    let late = lost == Lost::Expired || (lost != Lost::Ended && !guard.is_held());
    if late {
        complain(format_args!(
            "lock {lock} (token {token}): {lost}; killing CMD"
        ));
        group.kill().await?;
    } else {
        complain(format_args!(
            "lock {lock} (token {token}): {lost}; ending CMD"
        ));
        group.end(grace).await?;
    }
    Ok(Outcome::Lost(lost))
}

/// Gives the lock up and says how it went.
async fn conclude(guard: Guard, outcome: Outcome) -> Result<u8, Failure> {
    match outcome {
        Outcome::Ended(code) => {
            super::release(guard).await;
            Ok(code)
        }
        Outcome::Lost(lost) => {
            let failure = super::lost_failure(&guard, lost);
            super::close_lost(guard).await;
            Err(failure)
        }
    }
}
