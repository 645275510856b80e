//! Proxies before a real etcd, in this process or as processes of their own; and clients that carry
//! tickets.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ringfence::audit::{AuditThread, AuditWriter, Limits};
use ringfence::config::ProxyConfig;
use ringfence::etcd_proto::etcdserverpb::kv_client::KvClient;
use ringfence::etcd_proto::etcdserverpb::{PutRequest, RangeRequest};
use ringfence::lock_name::LockName;
use ringfence::proxy::{Options, Proxy, start};
use ringfence::ticket::{Action, Order, SealScope, SigningKey, Ticket};
use ringfence::token::Token;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

pub use crate::etcd::{Etcd, Version};
pub use crate::wire::Wire;

/// Nothing in these tests takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

pub const JOBS: &str = r#"
    [[listener.rule]]
    lock = "job/{id}"
    key = "job/{id}/**"
    [[listener.rule]]
    lock = "orders"
    key = "orders"
"#;

pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not happen within {PATIENCE:?}"),
    }
}

/// An etcd and the keys that sign tickets.
pub struct World {
    pub etcd: Etcd,
    pub key: SigningKey,
    pub dir: tempfile::TempDir,
}

/// A proxy in this process.
pub struct Running {
    pub proxy: Proxy,
    pub address: SocketAddr,
    audit_dir: PathBuf,
    _audit: AuditThread,
}

impl World {
    pub fn new(version: Version) -> World {
        let world = World {
            etcd: Etcd::start(version, 1),
            key: SigningKey::generate(),
            dir: tempfile::tempdir().unwrap(),
        };
        std::fs::write(
            world.dir.path().join("keys"),
            world.key.verifying().to_text(),
        )
        .unwrap();
        world
    }

    pub fn etcd_address(&self) -> String {
        self.etcd.endpoint(0).replace("http://", "")
    }

    /// The configuration of a proxy by this name.
    pub fn config(&self, name: &str, upstream: &str, listener: &str) -> String {
        let dir = self.dir.path().display();
        format!(
            "instance = \"{name}\"\ndata_dir = \"{dir}/{name}\"\n\
             [tickets]\nkeys = \"{dir}/keys\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n\
             [[listener]]\nname = \"kv\"\nprotocol = \"etcd\"\nlisten = \"127.0.0.1:0\"\n\
             upstream = \"{upstream}\"\n{listener}"
        )
    }

    /// A new proxy on its own data folder.
    pub fn proxy(&self, name: &str, listener: &str) -> Running {
        self.proxy_over(name, &self.etcd_address(), listener)
    }

    pub fn proxy_over(&self, name: &str, upstream: &str, listener: &str) -> Running {
        self.start(name, &self.config(name, upstream, listener), true)
    }

    pub fn start(&self, name: &str, config: &str, init: bool) -> Running {
        let audit_dir = self.dir.path().join(format!("{name}-audit"));
        let (audit, thread) = AuditWriter::open(&audit_dir, Limits::default()).unwrap();
        let options = Options {
            init,
            admin: "127.0.0.1:7431".parse().unwrap(),
            audit,
            threads: Some(1),
        };
        let proxy = start(ProxyConfig::parse(config).unwrap(), options).unwrap();
        let address = proxy.listeners()[0].1;
        Running {
            proxy,
            address,
            audit_dir,
            _audit: thread,
        }
    }

    pub fn ticket(&self, lock: &str, token: u64) -> String {
        self.key.sign_ticket(&Ticket {
            lock: LockName::new(lock).unwrap(),
            token: Token::new(token).unwrap(),
            holder: format!("holder-{token}"),
            session: "s".to_owned(),
            issued_unix_ms: 0,
            seal: SealScope::BestEffort(vec![]),
        })
    }

    pub fn order(&self, action: Action, lock: &str, token: u64) -> String {
        self.key.sign_order(&Order {
            action,
            lock: LockName::new(lock).unwrap(),
            token: Token::new(token).unwrap(),
            grant: String::new(),
        })
    }

    /// A client of etcd itself.
    pub async fn direct(&self) -> KvClient<Channel> {
        KvClient::new(channel(&self.etcd_address()).await)
    }

    /// What etcd itself has under a key.
    pub async fn value(&self, key: &str) -> Option<String> {
        let range = RangeRequest {
            key: key.to_owned().into(),
            ..Default::default()
        };
        let found = self.direct().await.range(range).await.unwrap().into_inner();
        let kv = found.kvs.first()?;
        Some(String::from_utf8(kv.value.to_vec()).unwrap())
    }

    /// The floor of a lock in etcd.
    pub async fn floor(&self, lock: &str) -> Option<u64> {
        let value = self.value(&format!("_ringfence/floor/{lock}")).await?;
        Some(value.trim_start_matches('u').parse().unwrap())
    }
}

pub async fn channel(address: &str) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    soon("a connection", endpoint.connect()).await.unwrap()
}

impl Running {
    pub async fn channel(&self) -> Channel {
        channel(&self.address.to_string()).await
    }

    pub async fn client(&self) -> KvClient<Channel> {
        KvClient::new(self.channel().await)
    }

    pub fn audit(&self) -> Vec<serde_json::Value> {
        let mut lines = vec![];
        for file in std::fs::read_dir(&self.audit_dir).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            lines.extend(text.lines().map(|line| serde_json::from_str(line).unwrap()));
        }
        lines
    }

    /// Waits for a line of the audit.
    pub async fn audited(&self, code: &str, operation: &str) -> serde_json::Value {
        soon(&format!("an audit line {code} {operation}"), async {
            loop {
                let found = self
                    .audit()
                    .into_iter()
                    .find(|line| line["code"] == code && line["operation"] == operation);
                match found {
                    Some(line) => return line,
                    None => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        })
        .await
    }
}

/// A request with tickets in its metadata.
pub fn with<T>(message: T, tickets: &[&str]) -> Request<T> {
    let mut request = Request::new(message);
    for ticket in tickets {
        request
            .metadata_mut()
            .append("fencing-token", ticket.parse().unwrap());
    }
    request
}

pub fn put(key: &str, value: &str) -> PutRequest {
    PutRequest {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        ..Default::default()
    }
}

pub fn get(key: &str) -> RangeRequest {
    RangeRequest {
        key: key.to_owned().into(),
        ..Default::default()
    }
}

/// Asserts that a call was refused so; the metadata of its `ErrorInfo`.
pub fn refused<T: std::fmt::Debug>(
    result: Result<T, Status>,
    code: Code,
    reason: &str,
) -> std::collections::HashMap<String, String> {
    let status = result.expect_err("it was served");
    assert_eq!(status.code(), code, "{status:?}");
    let info = error_info(&status);
    assert_eq!(info.0, reason, "{status:?}");
    info.1
}

/// `google.rpc.ErrorInfo` of a status: reason and metadata.
fn error_info(status: &Status) -> (String, std::collections::HashMap<String, String>) {
    use prost::Message as _;

    #[derive(Clone, PartialEq, prost::Message)]
    struct Details {
        #[prost(message, repeated, tag = "3")]
        details: Vec<Any>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct Any {
        #[prost(string, tag = "1")]
        type_url: String,
        #[prost(message, tag = "2")]
        value: Option<Info>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct Info {
        #[prost(string, tag = "1")]
        reason: String,
        #[prost(string, tag = "2")]
        domain: String,
        #[prost(map = "string, string", tag = "3")]
        metadata: std::collections::HashMap<String, String>,
    }
    let details = Details::decode(status.details()).unwrap();
    let any = details.details.first().expect("details");
    assert!(any.type_url.ends_with("google.rpc.ErrorInfo"), "{any:?}");
    let info = any.value.clone().expect("a value");
    assert_eq!(info.domain, "ringfence");
    (info.reason, info.metadata)
}

/// A proxy as a process of its own.
pub struct Process {
    child: Child,
    pub address: SocketAddr,
}

impl Process {
    pub fn start(world: &World, name: &str, config: &str, init: bool) -> Process {
        let file = world.dir.path().join(format!("{name}.toml"));
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        command.arg("proxy").arg("--config").arg(&file);
        if init {
            command.arg("--init");
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the proxy runs");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let line = lines.find(|line| line.starts_with("proxy: listener kv "));
        let line = line.expect("the listener's line");
        let address = line.rsplit(' ').next().unwrap().parse().unwrap();
        Process { child, address }
    }

    pub async fn client(&self) -> KvClient<Channel> {
        KvClient::new(channel(&self.address.to_string()).await)
    }

    /// By its name, such as `STOP`.
    pub fn signal(&self, name: &str) {
        crate::process::signal(self.child.id(), name);
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `etcdctl` of Debian on an address; what it printed and whether it was content.
pub fn etcdctl(address: &str, args: &[&str]) -> Output {
    etcdctl_with(address, args, "")
}

/// The same with something on its standard input.
pub fn etcdctl_with(address: &str, args: &[&str], input: &str) -> Output {
    use std::io::Write as _;
    let mut child = ctl_command(address, args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("etcdctl runs");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

pub fn ctl_command(address: &str, args: &[&str]) -> Command {
    let mut command = Command::new("etcdctl");
    command
        .env("ETCDCTL_API", "3")
        .env("ETCDCTL_ENDPOINTS", address)
        .args(["--command-timeout", "10s"])
        .args(args);
    command
}

pub fn remove(path: &Path) {
    std::fs::remove_dir_all(path).unwrap();
}
