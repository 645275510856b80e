//! The ports of the real processes under clients that are too many.

mod cli_support;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use cli_support::{Running, ringfence, until};
use rustix::process::{Resource, Rlimit, prlimit};

/// Descriptors that a process may have open: more than it needs, and soon used up.
const DESCRIPTORS: u64 = 80;
/// More than that.
const FLOOD: usize = 120;

/// Starts the binary with a log that an operator would see, and a limit on its descriptors.
fn start(command: &mut std::process::Command) -> Running {
    let running = Running::start(command.env("RINGFENCE_LOG", "info"));
    let limit = Rlimit {
        current: Some(DESCRIPTORS),
        maximum: Some(DESCRIPTORS),
    };
    prlimit(Some(running.pid()), Resource::Nofile, limit).unwrap();
    running
}

fn address(running: &mut Running, what: &str) -> SocketAddr {
    let line = running.line_with(what);
    let url = line.rsplit(' ').next().unwrap();
    url.trim_start_matches("http://").parse().unwrap()
}

fn is_alive(admin: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(admin) else {
        return false;
    };
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let asked = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    asked.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.contains(" 200 ")
}

/// Seconds of processor time that the process has used.
fn processor_seconds(running: &Running) -> f64 {
    let stat = format!("/proc/{}/stat", running.pid().as_raw_nonzero());
    let stat = std::fs::read_to_string(stat).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
    // proc_pid_stat(5): utime and stime, in hundredths.
    (ticks(11) + ticks(12)) / 100.0
}

/// Takes every descriptor by connections to a port, and lets them go again.
fn flood(running: &Running, port: SocketAddr, admin: SocketAddr) {
    const REFUSED: &str = "a connection was not accepted";
    let told_before = running.stderr().matches(REFUSED).count();
    let clients: Vec<TcpStream> = (0..FLOOD)
        .map(|_| TcpStream::connect(port).unwrap())
        .collect();
    until("the log says so", || {
        running.stderr().matches(REFUSED).count() > told_before
    });
    let (before, time) = (processor_seconds(running), Duration::from_secs(2));
    std::thread::sleep(time);
    let used = processor_seconds(running) - before;
    assert!(used < time.as_secs_f64() / 4.0, "{used} s in {time:?}");
    let told = running.stderr().matches(REFUSED).count() - told_before;
    assert!(told <= 2, "told {told} times in {time:?}");
    drop(clients);
    until("it serves again", || is_alive(admin));
}

fn lockd_config(folder: &Path) -> std::path::PathBuf {
    let (file, data) = (folder.join("lockd.toml"), folder.join("data"));
    let text = format!(
        "listen = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ndata_dir = {:?}\n",
        data.to_str().unwrap()
    );
    std::fs::write(&file, text).unwrap();
    file
}

fn proxy_config(folder: &Path) -> std::path::PathBuf {
    let (file, data) = (folder.join("proxy.toml"), folder.join("data"));
    let text = format!(
        "instance = \"edge-1\"\ndata_dir = {:?}\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [[listener]]\nname = \"web\"\nprotocol = \"http\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = \"127.0.0.1:1\"\ntrust = \"unsigned\"\n\
         [[listener.rule]]\nlock = \"a\"\npath = \"/**\"\n",
        data.to_str().unwrap()
    );
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn lockd_rests_when_it_is_out_of_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let config = lockd_config(folder.path());
    let mut lockd = start(ringfence().arg("lockd").arg("--config").arg(config));
    let (grpc, admin) = (
        address(&mut lockd, "lockd: gRPC "),
        address(&mut lockd, "lockd: admin "),
    );
    flood(&lockd, grpc, admin);
}

#[test]
fn an_admin_port_rests_when_it_is_out_of_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let config = lockd_config(folder.path());
    let mut lockd = start(ringfence().arg("lockd").arg("--config").arg(config));
    let admin = address(&mut lockd, "lockd: admin ");
    flood(&lockd, admin, admin);
}

#[test]
fn a_proxys_ports_rest_when_it_is_out_of_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let config = proxy_config(folder.path());
    let args = ["proxy", "--init", "--config"];
    let mut proxy = start(ringfence().args(args).arg(config));
    let admin = address(&mut proxy, "admin");
    flood(&proxy, admin, admin);
    let web = address(&mut proxy, "web");
    flood(&proxy, web, admin);
}
