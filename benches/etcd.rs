//! Puts and gets to etcd, directly and through the proxy: unguarded (passed on) and guarded (under
//! a ticket, with the comparison in etcd's own transaction).
//!
//! Clients, proxy and etcd share the machine. How to run it and what it found: benches/README.md.

#[path = "support/process.rs"]
mod process;
#[path = "support/stats.rs"]
mod stats;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use process::{Server, free_port};
use ringfence::etcd_proto::etcdserverpb::kv_client::KvClient;
use ringfence::etcd_proto::etcdserverpb::{PutRequest, RangeRequest};
use stats::{median, quantile, setting};
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

/// Bytes of each value.
const VALUE_BYTES: usize = 64;
/// Clients at a time, each with its own connection.
const CLIENTS: [usize; 3] = [1, 16, 64];

/// How etcd is reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Direct,
    Passed,
    Fenced,
}

const WAYS: [(&str, Way); 3] = [
    ("direct", Way::Direct),
    ("proxy, no rule covers it", Way::Passed),
    ("proxy, fenced", Way::Fenced),
];

/// What one load found.
struct Figures {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// Processor time of the proxy, per operation.
    proxy_us: f64,
}

fn etcd(dir: &Path) -> (Server, String) {
    let (clients, peers) = (free_port(), free_port());
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(dir.join("etcd")).args([
        "--listen-client-urls",
        &url(clients),
        "--advertise-client-urls",
        &url(clients),
        "--listen-peer-urls",
        &url(peers),
        "--initial-advertise-peer-urls",
        &url(peers),
        "--initial-cluster",
        &format!("default={}", url(peers)),
    ]);
    let server = Server::start("etcd", &mut command, dir, &[clients]);
    (server, format!("127.0.0.1:{clients}"))
}

fn proxy(dir: &Path, etcd: &str) -> (Server, String) {
    let (port, admin) = (free_port(), free_port());
    let data = dir.join("proxy");
    let text = format!(
        "instance = \"bench\"\ndata_dir = {data:?}\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n\
         [[listener]]\nname = \"kv\"\nprotocol = \"etcd\"\nlisten = \"127.0.0.1:{port}\"\n\
         upstream = \"{etcd}\"\ntrust = \"unsigned\"\n\
         [[listener.rule]]\nlock = \"bench\"\nkey = \"fenced/**\"\n"
    );
    let config = dir.join("proxy.toml");
    std::fs::write(&config, text).expect("the proxy's configuration");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
    command
        .arg("proxy")
        .arg("--config")
        .arg(&config)
        .arg("--init");
    let server = Server::start("proxy", &mut command, dir, &[port]);
    (server, format!("127.0.0.1:{port}"))
}

async fn connect(address: &str) -> KvClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    KvClient::new(endpoint.connect().await.expect("a connection"))
}

/// Latencies in microseconds of one client's operations.
async fn client(address: String, way: Way, puts: bool, nth: usize, until: Instant) -> Vec<f64> {
    let mut client = connect(&address).await;
    let prefix = if way == Way::Fenced { "fenced" } else { "free" };
    let key = format!("{prefix}/{nth}");
    let mut latencies = vec![];
    while Instant::now() < until {
        let began = Instant::now();
        if puts {
            let put = PutRequest {
                key: key.clone().into(),
                value: vec![b'x'; VALUE_BYTES].into(),
                ..Default::default()
            };
            client.put(under(put, way)).await.expect("a put");
        } else {
            let range = RangeRequest {
                key: key.clone().into(),
                ..Default::default()
            };
            client.range(under(range, way)).await.expect("a get");
        }
        latencies.push(began.elapsed().as_secs_f64() * 1e6);
    }
    latencies
}

fn under<T>(message: T, way: Way) -> Request<T> {
    let mut request = Request::new(message);
    if way == Way::Fenced {
        let token = tonic::metadata::MetadataValue::from_static("7");
        request.metadata_mut().insert("fencing-token", token);
    }
    request
}

async fn load(address: &str, way: Way, puts: bool, clients: usize, proxy: &Server) -> Figures {
    let period = Duration::from_secs(setting("BENCH_SECONDS", 3));
    let (began, cpu) = (Instant::now(), proxy.cpu());
    let tasks = (0..clients).map(|nth| {
        let address = address.to_owned();
        tokio::spawn(client(address, way, puts, nth, began + period))
    });
    let mut latencies = vec![];
    for task in tasks.collect::<Vec<_>>() {
        latencies.extend(task.await.expect("a client that ends"));
    }
    let operations = latencies.len() as f64;
    Figures {
        per_second: operations / began.elapsed().as_secs_f64(),
        p50_us: median(&latencies),
        p99_us: quantile(&latencies, 0.99),
        proxy_us: (proxy.cpu() - cpu).as_secs_f64() * 1e6 / operations,
    }
}

#[tokio::main]
async fn main() {
    let rounds = setting("BENCH_ROUNDS", 3);
    let dir = tempfile::tempdir().expect("a directory for the servers' data");
    let (_etcd, direct) = etcd(dir.path());
    let (proxy, through) = proxy(dir.path(), &direct);
    println!("etcd: {rounds} rounds, medians; values of {VALUE_BYTES} bytes");
    for (what, puts) in [("puts", true), ("gets", false)] {
        for clients in CLIENTS {
            println!("{what}, {clients} clients:");
            let mut found: Vec<Vec<Figures>> = WAYS.iter().map(|_| vec![]).collect();
            for _ in 0..rounds {
                for ((_, way), found) in WAYS.iter().zip(&mut found) {
                    let address = if *way == Way::Direct {
                        &direct
                    } else {
                        &through
                    };
                    found.push(load(address, *way, puts, clients, &proxy).await);
                }
            }
            for ((name, _), found) in WAYS.iter().zip(&found) {
                let of = |figure: fn(&Figures) -> f64| {
                    median(&found.iter().map(figure).collect::<Vec<_>>())
                };
                println!(
                    "  {name:26} {:8.0}/s  p50 {:6.0} us  p99 {:6.0} us  proxy {:5.1} us/op",
                    of(|it| it.per_second),
                    of(|it| it.p50_us),
                    of(|it| it.p99_us),
                    of(|it| it.proxy_us),
                );
            }
        }
    }
}
