//! etcd, and lockd over it and over its embedded store.

use std::path::Path;
use std::process::Command;

use super::process::{Server, free_port};

/// A server and its address.
pub struct Running {
    pub server: Server,
    pub url: String,
}

pub fn etcd(dir: &Path) -> Running {
    let (clients, peers) = (free_port(), free_port());
    let (url, peer_url) = (
        format!("http://127.0.0.1:{clients}"),
        format!("http://127.0.0.1:{peers}"),
    );
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(dir.join("etcd"));
    command.args([
        "--listen-client-urls",
        &url,
        "--advertise-client-urls",
        &url,
    ]);
    command.args([
        "--listen-peer-urls",
        &peer_url,
        "--initial-advertise-peer-urls",
        &peer_url,
    ]);
    command.args(["--initial-cluster", &format!("default={peer_url}")]);
    Running {
        server: Server::start("etcd", &mut command, dir, &[clients]),
        url,
    }
}

pub fn lockd_on_etcd(dir: &Path, etcd: &Running) -> Running {
    let store = format!("store = \"etcd\"\n[etcd]\nendpoints = [\"{}\"]\n", etcd.url);
    lockd("lockd-on-etcd", dir, &store)
}

pub fn lockd_embedded(dir: &Path) -> Running {
    lockd("lockd-embedded", dir, "store = \"embedded\"\n")
}

fn lockd(name: &str, dir: &Path, store: &str) -> Running {
    let (port, admin) = (free_port(), free_port());
    let data = dir.join(name);
    let text = format!(
        "data_dir = \"{}\"\nlisten = \"127.0.0.1:{port}\"\nadmin = \"127.0.0.1:{admin}\"\n{store}",
        data.display()
    );
    let config = dir.join(format!("{name}.toml"));
    std::fs::write(&config, text).expect("lockd's configuration");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
    command.args(["lockd", "--config"]).arg(&config);
    let server = Server::start(name, &mut command, dir, &[port]);
    Running {
        server,
        url: format!("http://127.0.0.1:{port}"),
    }
}
