//! strace on a running process: what it does in which order, and its death at a chosen call.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::stack::{eventually, signal};

/// strace on threads of a process, which it leaves alone when it ends.
pub struct Strace {
    child: Child,
}

impl Strace {
    /// On all threads of a process, also those that it starts from now on.
    pub fn on_process(pid: u32, arguments: &[&str]) -> Strace {
        let traced = |tracer| {
            let all = threads(pid);
            all.iter().all(|thread| is_traced(pid, thread.id, tracer))
        };
        Strace::start(pid, pid, &[&["-f"], arguments].concat(), traced)
    }

    /// On this thread alone: without `-f` strace follows nothing but what `-p` names.
    pub fn on_thread(pid: u32, id: u32, arguments: &[&str]) -> Strace {
        let traced = |tracer| is_traced(pid, id, tracer);
        Strace::start(pid, id, arguments, traced)
    }

    fn start(of: u32, id: u32, arguments: &[&str], traced: impl Fn(u32) -> bool) -> Strace {
        let child = Command::new("strace")
            .args(["-q", "-p", &id.to_string()])
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .expect("strace is installed");
        let mut strace = Strace { child };
        // It may have sent its death, and ended, before this looks. Where it just cannot attach,
        // the process lives on.
        eventually("strace at work, or the end of what it follows", || {
            let ended = strace.child.try_wait().unwrap().is_some();
            !is_alive(of) || !ended && traced(strace.child.id())
        });
        strace
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        // On SIGTERM it lets a living process go. After the death of one it may wait for ever for a
        // thread that is gone, and takes no SIGTERM then.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            signal(self.child.id(), "TERM");
        }
        let until = Instant::now() + Duration::from_secs(2);
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            if Instant::now() > until {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn is_traced(pid: u32, thread: u32, tracer: u32) -> bool {
    let path = format!("/proc/{pid}/task/{thread}/status");
    let wanted = format!("TracerPid:\t{tracer}\n");
    // One that has ended needs no tracer.
    std::fs::read_to_string(path).map_or(true, |status| status.contains(&wanted))
}

pub struct Thread {
    pub id: u32,
    pub name: String,
}

/// The threads of a process, oldest first.
pub fn threads(pid: u32) -> Vec<Thread> {
    let folder = format!("/proc/{pid}/task");
    let Ok(entries) = std::fs::read_dir(Path::new(&folder)) else {
        return vec![];
    };
    let named = |id: u32| {
        let name = std::fs::read_to_string(format!("{folder}/{id}/comm")).ok()?;
        Some(Thread {
            id,
            name: name.trim().to_owned(),
        })
    };
    let ids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<Thread> = ids.filter_map(named).collect();
    found.sort_by_key(|thread| thread.id);
    found
}

/// Whether a process has not ended, reaped or not.
pub fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|text| !text.contains("State:\tZ"))
}
