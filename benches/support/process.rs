//! Servers that a bench starts on free ports and ends again, and the processor time they took.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take until it listens.
const START_MAX: Duration = Duration::from_secs(20);

/// A server with its children; ended when dropped.
pub struct Server(Child);

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound address").port()
}

impl Server {
    /// Starts the program and waits until each port accepts. Its output goes to `<dir>/<name>.log`.
    pub fn start(name: &str, command: &mut Command, dir: &Path, ports: &[u16]) -> Server {
        let log = dir.join(format!("{name}.log"));
        let out = File::create(&log).expect("a log file");
        let err = out.try_clone().expect("a second handle of the log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start ({command:?}): {error}"));
        let mut server = Server(child);
        let started = Instant::now();
        for &port in ports {
            while TcpStream::connect(("127.0.0.1", port)).is_err() {
                let ended = server.0.try_wait().expect("the state of a child");
                if ended.is_some() || started.elapsed() > START_MAX {
                    let text = std::fs::read_to_string(&log).unwrap_or_default();
                    panic!("{name} does not listen on {port} ({ended:?}):\n{text}");
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        server
    }

    /// Processor time of the process and its children so far, user and system.
    pub fn cpu(&self) -> Duration {
        let own = self.0.id();
        std::iter::once(own).chain(children(own)).map(cpu_of).sum()
    }
}

impl Server {
    /// Resident memory of the process and its children, in KiB (VmRSS of proc_pid_status(5)).
    #[allow(dead_code, reason = "each bench uses its own part of the support code")]
    pub fn resident_kib(&self) -> f64 {
        let own = self.0.id();
        let resident = |pid: u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"))?;
            line.trim().split(' ').next()?.parse::<f64>().ok()
        };
        let all = std::iter::once(own).chain(children(own));
        all.filter_map(resident).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Children first: nginx's worker would outlive a killed master.
        let own = self.0.id();
        for pid in children(own).chain([own]) {
            if let Some(pid) = i32::try_from(pid)
                .ok()
                .and_then(rustix::process::Pid::from_raw)
            {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = self.0.wait();
    }
}

fn children(pid: u32) -> impl Iterator<Item = u32> {
    let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let pids: Vec<u32> = listed
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|p| p.parse().ok())
        .collect();
    pids.into_iter()
}

/// utime + stime of proc_pid_stat(5), fields 14 and 15, in ticks of 10 ms.
fn cpu_of(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = after_name
        .split(' ')
        .skip(11)
        .take(2)
        .filter_map(|t| t.parse::<u64>().ok());
    Duration::from_millis(ticks.sum::<u64>() * 10)
}
