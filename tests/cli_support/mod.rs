//! Runs the real binary: a lock service with a folder of its own, and commands against it.
//! Everything that is started is ended when its value is dropped.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything takes here; a test that waits so long has failed.
pub const LONG: Duration = Duration::from_secs(40);

/// The binary under test.
pub fn ringfence() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
    command.env_remove("RINGFENCE_LOG").stdin(Stdio::null());
    command
}

/// Waits until `find` finds something.
pub fn wait_for<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + LONG;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the condition holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || holds().then_some(()));
}

/// CLOCK_BOOTTIME in milliseconds.
pub fn boottime_ms() -> u64 {
    ringfence::clock::boottime().as_millis()
}

/// Whether a process is there and has not ended.
pub fn is_running(pid: u32) -> bool {
    state(pid).is_some_and(|state| !['Z', 'X'].contains(&state))
}

/// Whether a signal has stopped a process.
pub fn is_stopped(pid: u32) -> bool {
    state(pid) == Some('T')
}

/// The third field of /proc/PID/stat; the second may hold anything.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.trim().chars().next()
}

/// A process that runs while its value lives, with what it printed.
pub struct Running {
    child: Child,
    stdout: Arc<Mutex<String>>,
    stderr: Arc<Mutex<String>>,
}

impl Running {
    /// Starts it and collects its output.
    pub fn start(command: &mut Command) -> Running {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = collect(child.stdout.take().unwrap());
        let stderr = collect(child.stderr.take().unwrap());
        Running {
            child,
            stdout,
            stderr,
        }
    }

    pub fn stdout(&self) -> String {
        self.stdout.lock().unwrap().clone()
    }

    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for its first line on stdout.
    pub fn first_line(&mut self) -> String {
        self.line_with("")
    }

    /// Waits for a line on stdout that holds the text.
    pub fn line_with(&mut self, text: &str) -> String {
        wait_for(&format!("a line with {text:?}"), || {
            let out = self.stdout();
            let complete = out.rsplit_once('\n').map_or("", |(complete, _)| complete);
            if let Some(line) = complete.lines().find(|line| line.contains(text)) {
                return Some(line.to_owned());
            }
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "ended with {ended:?}: {out} {}",
                self.stderr()
            );
            None
        })
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        wait_for("the end of the process", || self.child.try_wait().unwrap())
    }

    /// Waits for its end; its exit code.
    pub fn code(&mut self) -> i32 {
        let status = self.wait();
        status
            .code()
            .unwrap_or_else(|| panic!("ended by {status}: {}", self.stderr()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that is typed to.
pub struct Typed {
    pub running: Running,
    pub stdin: ChildStdin,
}

impl Typed {
    /// Starts a command whose stdin is a pipe.
    pub fn start(command: &mut Command) -> Typed {
        let mut running = Running::start(command);
        let stdin = running.child.stdin.take().unwrap();
        Typed { running, stdin }
    }
}

fn collect(mut from: impl std::io::Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let collected = text.clone();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            collected
                .lock()
                .unwrap()
                .push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    });
    text
}

/// A lock service with a folder of its own.
pub struct Lockd {
    pub process: Running,
    pub url: String,
    folder: tempfile::TempDir,
}

impl Lockd {
    pub fn start() -> Lockd {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("lockd.toml");
        let data = folder.path().join("data");
        let text = format!(
            "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ndata_dir = {:?}\n\
             session_ttl_min = \"1s\"\n",
            data.to_str().unwrap()
        );
        std::fs::write(&config, text).unwrap();
        let mut process = Running::start(ringfence().arg("lockd").arg("--config").arg(config));
        let line = process.line_with("lockd: gRPC ");
        let url = line.rsplit(' ').next().unwrap().to_owned();
        Lockd {
            process,
            url,
            folder,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The binary with this lock service as its default.
    pub fn ringfence(&self) -> Command {
        let mut command = ringfence();
        command.env("RINGFENCE_LOCKD", &self.url);
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.ringfence().args(args).output().unwrap()
    }

    /// Starts a command.
    pub fn start_command(&self, args: &[&str]) -> Running {
        Running::start(self.ringfence().args(args))
    }

    /// Takes a lock without CMD; returns once it is held.
    pub fn hold(&self, lock: &str) -> Running {
        let mut holder = self.start_command(&["lock", lock]);
        assert!(holder.first_line().starts_with("v4.public."));
        holder
    }

    /// What `show` says in JSON.
    pub fn show(&self, lock: &str) -> serde_json::Value {
        let shown = self.run(&["show", lock, "--output", "json"]);
        assert!(shown.status.success(), "{shown:?}");
        serde_json::from_slice(&shown.stdout).unwrap()
    }

    pub fn is_free(&self, lock: &str) -> bool {
        self.show(lock)["holder"].is_null()
    }
}

/// The lines of a file that may not be there yet.
pub fn lines(path: &Path) -> Vec<String> {
    let Ok(file) = std::fs::File::open(path) else {
        return vec![];
    };
    BufReader::new(file).lines().map_while(Result::ok).collect()
}

/// The number in a file, once it is there with its line's end.
pub fn number_in(path: &Path) -> u32 {
    wait_for(&format!("a number in {}", path.display()), || {
        let text = std::fs::read_to_string(path).ok()?;
        text.strip_suffix('\n')?.trim().parse().ok()
    })
}
