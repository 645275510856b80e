//! Holders of locks, and clients of storage as users have them: curl and boto3.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use ringfence::proto::lock_service_client::LockServiceClient;
use ringfence::proto::{
    AcquireRequest, AcquireResponse, CloseSessionRequest, OpenSessionRequest, ReleaseRequest,
};
use tonic::transport::Channel;

use crate::stack::{Lockd, eventually, signal};

/// A session without a keep-alive of its own: it ends by itself after its time to live, as the
/// session of a stopped holder does.
pub struct Holder {
    client: LockServiceClient<Channel>,
    pub session: String,
}

impl Holder {
    pub async fn open(lockd: &Lockd, ttl_ms: u64) -> Holder {
        let mut client = LockServiceClient::connect(lockd.url()).await.unwrap();
        let request = OpenSessionRequest {
            ttl_ms,
            holder: "test".to_owned(),
        };
        let session = client
            .open_session(request)
            .await
            .unwrap()
            .into_inner()
            .session;
        Holder { client, session }
    }

    /// The same session through another lockd.
    pub async fn resume(lockd: &Lockd, session: &str) -> Holder {
        let client = LockServiceClient::connect(lockd.url()).await.unwrap();
        Holder {
            client,
            session: session.to_owned(),
        }
    }

    pub async fn release(&mut self, lock: &str, token: u64) -> bool {
        let request = ReleaseRequest {
            session: self.session.clone(),
            lock: lock.to_owned(),
            token,
            close: false,
        };
        self.client
            .release(request)
            .await
            .unwrap()
            .into_inner()
            .released
    }

    pub async fn acquire(
        &mut self,
        lock: &str,
        wait_ms: u64,
    ) -> Result<AcquireResponse, tonic::Status> {
        let request = AcquireRequest {
            session: self.session.clone(),
            lock: lock.to_owned(),
            wait_ms,
            attempt: 1,
            holder: "test".to_owned(),
        };
        self.client
            .acquire(request)
            .await
            .map(tonic::Response::into_inner)
    }

    pub async fn close(mut self) {
        let request = CloseSessionRequest {
            session: self.session.clone(),
        };
        self.client.close_session(request).await.unwrap();
    }
}

/// What came back of an HTTP request.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub body: String,
}

impl Reply {
    fn parse(output: &str) -> Reply {
        let (body, status) = output.rsplit_once('\n').expect("curl ends with the status");
        Reply {
            status: status.trim().parse().unwrap(),
            body: body.to_owned(),
        }
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

fn curl_command() -> Command {
    let mut command = Command::new("curl");
    command.args([
        "-sS",
        "--max-time",
        "60",
        "--noproxy",
        "*",
        "-w",
        "\n%{http_code}",
    ]);
    command
}

fn with_ticket(command: &mut Command, ticket: Option<&str>) {
    if let Some(ticket) = ticket {
        command.arg("-H").arg(format!("Fencing-Token: {ticket}"));
    }
}

pub fn put(url: &str, body: &str, ticket: Option<&str>) -> Reply {
    let mut command = curl_command();
    command.args(["-X", "PUT", "--data-binary", body, url]);
    with_ticket(&mut command, ticket);
    run(&mut command)
}

/// `None` where there is no answer within some seconds.
pub fn put_soon(url: &str, body: &str, ticket: &str) -> Option<Reply> {
    let mut command = curl_command();
    command.args(["--max-time", "5", "-X", "PUT", "--data-binary", body, url]);
    with_ticket(&mut command, Some(ticket));
    let output = command.output().expect("curl is installed");
    let answered = output.status.success();
    answered.then(|| Reply::parse(&String::from_utf8_lossy(&output.stdout)))
}

pub fn get(url: &str, ticket: Option<&str>) -> Reply {
    let mut command = curl_command();
    command.arg(url);
    with_ticket(&mut command, ticket);
    run(&mut command)
}

fn run(command: &mut Command) -> Reply {
    let output = command.output().expect("curl is installed");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Reply::parse(&String::from_utf8_lossy(&output.stdout))
}

/// A real curl that uploads what it is fed, and can be stopped in the middle.
pub struct Upload {
    child: Child,
    stdin: Option<ChildStdin>,
    /// What curl says that it sent.
    trace: tempfile::NamedTempFile,
}

impl Upload {
    pub fn start(url: &str, ticket: &str) -> Upload {
        let trace = tempfile::NamedTempFile::new().unwrap();
        let mut command = curl_command();
        // -T: chunked, sent as it is read.
        command.args(["-N", "-T", "-", url, "--trace-ascii"]);
        command.arg(trace.path());
        with_ticket(&mut command, Some(ticket));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("curl is installed");
        let stdin = child.stdin.take();
        Upload {
            child,
            stdin,
            trace,
        }
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        // A refused upload closes the pipe: what curl reports then is what counts.
        let _ = stdin.write_all(bytes).and_then(|()| stdin.flush());
    }

    /// Waits until curl has sent a part of its body.
    pub fn wait_until_sent(&self, part: &str) {
        eventually("the part that curl sends", || {
            let trace = std::fs::read_to_string(self.trace.path()).unwrap();
            let data = trace.split_once("=> Send data");
            data.is_some_and(|(_, sent)| sent.contains(part))
        });
    }

    pub fn stop(&self) {
        signal(self.child.id(), "STOP");
    }

    pub fn go_on(&self) {
        signal(self.child.id(), "CONT");
    }

    pub fn finish(mut self) -> Reply {
        drop(self.stdin.take());
        let output = self.child.wait_with_output().unwrap();
        Reply::parse(&String::from_utf8_lossy(&output.stdout))
    }
}

/// A Python script with boto3 that talks over its standard streams.
pub struct Boto {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Boto {
    /// `script` runs with `s3` (a client of `endpoint` that sends `ticket` unsigned), `say(word)`
    /// and `heard()` in scope.
    pub fn start(endpoint: &str, ticket: &str, script: &str) -> Boto {
        let prelude = "\
import sys, boto3, botocore
from botocore.config import Config
endpoint, ticket = sys.argv[1], sys.argv[2]
config = Config(signature_version='s3v4', s3={'addressing_style': 'path'},
                retries={'total_max_attempts': 1}, read_timeout=60,
                request_checksum_calculation='when_required')
s3 = boto3.client('s3', endpoint_url=endpoint, region_name='us-east-1', config=config,
                  aws_access_key_id='AKTEST', aws_secret_access_key='SKTEST')
def stamp(request, **kwargs):
    if ticket: request.headers['Fencing-Token'] = ticket
s3.meta.events.register('before-send.s3.*', stamp)
def say(word): print(word, flush=True)
def heard(): return sys.stdin.readline().strip()
";
        let mut child = Command::new(python())
            .args(["-c", &format!("{prelude}{script}"), endpoint, ticket])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python with boto3 is in .venv: `make test` installs it");
        let lines = BufReader::new(child.stdout.take().unwrap());
        Boto { child, lines }
    }

    /// The next line that the script says.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the script ended without a word");
        line.trim().to_owned()
    }

    pub fn tell(&mut self, word: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{word}")
            .and_then(|()| stdin.flush())
            .unwrap();
    }

    pub fn stop(&self) {
        signal(self.child.id(), "STOP");
    }

    pub fn go_on(&self) {
        signal(self.child.id(), "CONT");
    }

    /// What it says from here on, to its end.
    pub fn rest(mut self) -> String {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap();
        rest.trim().to_owned()
    }
}

impl Drop for Boto {
    fn drop(&mut self) {
        self.go_on();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn python() -> PathBuf {
    match std::env::var_os("RINGFENCE_TEST_PYTHON") {
        Some(path) => path.into(),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/python"),
    }
}
