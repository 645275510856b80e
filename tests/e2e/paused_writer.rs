//! The paused writer: a holder uploads slowly, is stopped, loses the lock, and wakes.

use std::time::Duration;

use crate::backend::{Origin, S3};
use crate::clients::{Boto, Holder, Upload, get, put};
use crate::stack::{Lockd, Proxy, ProxySetup, eventually};

const RULE: &str = "[[listener.rule]]\nlock = \"orders\"\npath = \"/orders/**\"\n";
const S3_RULE: &str =
    "[[listener.rule]]\nlock = \"orders\"\nbucket = \"box\"\nkey = \"orders/**\"\n";
const STREAMING: &str = "truncated_body = \"discarded\"\n";
const TTL_MS: u64 = 1_000;
const WAIT_MS: u64 = 20_000;

struct Stage {
    _dir: tempfile::TempDir,
    lockd: Lockd,
    proxy: Proxy,
}

fn stage(protocol: &str, upstream: std::net::SocketAddr, listener: &str) -> Stage {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), "");
    let rules = if protocol == "s3" { S3_RULE } else { RULE };
    let setup = ProxySetup {
        name: "edge-1",
        protocol,
        upstream,
        lockd: &lockd,
        listener,
        rules,
        data: None,
    };
    let proxy = Proxy::start(dir.path(), &setup);
    Stage {
        lockd,
        proxy,
        _dir: dir,
    }
}

/// The record of a refused PUT, which no other operation's stands for.
fn audited_stale(proxy: &Proxy, operation: &str, token: u64) {
    eventually("the audit record of the refusal", || {
        proxy.audit().iter().any(|record| {
            record["code"] == "stale"
                && record["lock"] == "orders"
                && record["operation"] == operation
                && record["token"].as_str() == Some(&*token.to_string())
        })
    });
}

async fn stopped_curl_is_refused(listener: &str) {
    let origin = Origin::start();
    let stage = stage("http", origin.address, listener);
    let url = stage.proxy.url("/orders/1");

    let mut a = Holder::open(&stage.lockd, TTL_MS).await;
    let a_grant = a.acquire("orders", 0).await.unwrap();
    let mut upload = Upload::start(&url, &a_grant.ticket);
    upload.feed(b"first half of A, ");
    upload.wait_until_sent("first half of A, ");
    let begun = || origin.heads().iter().any(|head| head.starts_with("PUT "));
    if listener == STREAMING {
        eventually("the begin of A's write at the backend", begun);
    }
    upload.stop();
    assert_eq!(begun(), listener == STREAMING, "a body that is held");

    // A's lease ends while it is stopped.
    let mut b = Holder::open(&stage.lockd, 30_000).await;
    let b_grant = b.acquire("orders", WAIT_MS).await.unwrap();
    assert!(b_grant.token > a_grant.token);
    assert_eq!(b_grant.sealed, ["edge-1"]);
    assert_eq!(
        get(&url, Some(&b_grant.ticket)).status,
        404,
        "A's half must not be there"
    );
    assert_eq!(put(&url, "B", Some(&b_grant.ticket)).status, 200);

    upload.go_on();
    upload.feed(b"second half of A");
    let refused = upload.finish();
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (412, "stale"),
        "{refused:?}"
    );
    assert_eq!(refused.json()["token"], a_grant.token.to_string());
    assert_eq!(refused.json()["watermark"], b_grant.token.to_string());
    assert_eq!(origin.object("/orders/1").as_deref(), Some("B"));
    assert_eq!(origin.applied(), ["/orders/1=B"]);
    assert_eq!(
        get(&url, Some(&a_grant.ticket)).status,
        412,
        "a stale read is refused too"
    );
    audited_stale(&stage.proxy, "PUT /orders/1", a_grant.token);
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_stopped_in_its_upload_is_refused_when_bodies_are_held() {
    stopped_curl_is_refused("").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_stopped_in_its_upload_is_refused_when_bodies_stream() {
    stopped_curl_is_refused(STREAMING).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seal_waits_for_the_reply_to_what_is_applied_and_not_answered() {
    let origin = Origin::start();
    let stage = stage("http", origin.address, STREAMING);
    let url = stage.proxy.url("/orders/1");
    let mut a = Holder::open(&stage.lockd, TTL_MS).await;
    let a_grant = a.acquire("orders", 0).await.unwrap();
    origin.hold_before_reply();
    let (a_url, a_ticket) = (url.clone(), a_grant.ticket.clone());
    let writing = tokio::task::spawn_blocking(move || put(&a_url, "A", Some(&a_ticket)));
    let holding = origin.clone();
    tokio::task::spawn_blocking(move || holding.wait_until_held())
        .await
        .unwrap();

    let mut b = Holder::open(&stage.lockd, 30_000).await;
    let acquiring = tokio::spawn(async move { b.acquire("orders", WAIT_MS).await });
    tokio::time::sleep(Duration::from_millis(TTL_MS * 2)).await;
    assert!(
        !acquiring.is_finished(),
        "B was told of its grant before A's reply came"
    );
    origin.let_go();
    let b_grant = acquiring.await.unwrap().unwrap();
    assert_eq!(writing.await.unwrap().status, 200);
    assert_eq!(get(&url, Some(&b_grant.ticket)).body, "A");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seal_waits_for_the_reply_to_what_is_already_sent() {
    let origin = Origin::start();
    let stage = stage("http", origin.address, "");
    let url = stage.proxy.url("/orders/1");

    let mut a = Holder::open(&stage.lockd, TTL_MS).await;
    let a_grant = a.acquire("orders", 0).await.unwrap();
    origin.hold_before_apply();
    let (a_url, a_ticket) = (url.clone(), a_grant.ticket.clone());
    let writing = tokio::task::spawn_blocking(move || put(&a_url, "A", Some(&a_ticket)));
    tokio::task::spawn_blocking({
        let origin = origin.clone();
        move || origin.wait_until_held()
    })
    .await
    .unwrap();

    let mut b = Holder::open(&stage.lockd, 30_000).await;
    let acquiring = tokio::spawn(async move {
        let grant = b.acquire("orders", WAIT_MS).await.unwrap();
        (b, grant)
    });
    // Longer than A's lease: B stands first, and its seal waits for A's write.
    tokio::time::sleep(Duration::from_millis(TTL_MS * 2)).await;
    assert!(
        !acquiring.is_finished(),
        "B was told of its grant over A's write in flight"
    );
    assert_eq!(origin.applied(), [""; 0]);

    origin.let_go();
    let (_b, b_grant) = acquiring.await.unwrap();
    assert_eq!(
        writing.await.unwrap().status,
        200,
        "A's success is the backend's success"
    );
    assert_eq!(
        get(&url, Some(&b_grant.ticket)).body,
        "A",
        "B reads what A wrote before the seal"
    );
    assert_eq!(put(&url, "B", Some(&b_grant.ticket)).status, 200);
    assert_eq!(origin.applied(), ["/orders/1=A", "/orders/1=B"]);
    assert_eq!(put(&url, "A again", Some(&a_grant.ticket)).status, 412);
}

/// Uploads 64 KiB in two halves; says `half` between them and waits to be told to go on.
const SLOW_PUT: &str = "
class Slow:
    def __init__(self): self.at, self.size, self.uploads = 0, 1 << 16, 0
    def __len__(self): return self.size
    def tell(self): return self.at
    def seek(self, to, whence=0):
        self.at = to if whence == 0 else self.at + to if whence == 1 else self.size + to
        return self.at
    def read(self, n=-1):
        if self.at == 0: self.uploads += 1
        if self.uploads == 2 and self.at == self.size // 2:
            say('half'); heard()
        n = self.size - self.at if n < 0 else n
        n = min(n, self.size - self.at, self.size // 2)
        self.at += n
        return b'A' * n
try:
    s3.put_object(Bucket='box', Key='orders/1', Body=Slow())
    say('stored')
except botocore.exceptions.ClientError as error:
    say('%s %s' % (error.response['ResponseMetadata']['HTTPStatusCode'],
                   error.response['Error']['Code']))
";

const PUT_B: &str = "
s3.put_object(Bucket='box', Key='orders/1', Body=b'B')
say(s3.get_object(Bucket='box', Key='orders/1')['Body'].read().decode())
";

async fn stopped_boto_is_refused(listener: &str) {
    let disk = tempfile::tempdir().unwrap();
    let store = S3::start(disk.path()).await;
    let stage = stage("s3", store.address, listener);
    let endpoint = stage.proxy.url("");

    let mut a = Holder::open(&stage.lockd, TTL_MS).await;
    let a_grant = a.acquire("orders", 0).await.unwrap();
    let mut uploading = Boto::start(&endpoint, &a_grant.ticket, SLOW_PUT);
    let is_streaming = listener == STREAMING;
    let uploading = tokio::task::spawn_blocking(move || {
        assert_eq!(uploading.hear(), "half");
        let begun = || store.requests().contains(&"PUT /box/orders/1".to_owned());
        if is_streaming {
            eventually("the begin of A's write at the backend", begun);
        }
        uploading.stop();
        assert_eq!(begun(), is_streaming, "a body that is held");
        uploading
    });
    let mut uploading = uploading.await.unwrap();

    let mut b = Holder::open(&stage.lockd, 30_000).await;
    let b_grant = b.acquire("orders", WAIT_MS).await.unwrap();
    let writing = Boto::start(&endpoint, &b_grant.ticket, PUT_B);
    let written = tokio::task::spawn_blocking(move || writing.rest())
        .await
        .unwrap();
    assert_eq!(written, "B");

    let told = tokio::task::spawn_blocking(move || {
        uploading.go_on();
        uploading.tell("go on");
        uploading.rest()
    });
    assert_eq!(told.await.unwrap(), "412 PreconditionFailed");
    assert_eq!(
        std::fs::read_to_string(disk.path().join("box/orders/1")).unwrap(),
        "B"
    );
    audited_stale(&stage.proxy, "PutObject /box/orders/1", a_grant.token);
}

#[tokio::test(flavor = "multi_thread")]
async fn boto3_stopped_in_its_upload_is_refused_when_bodies_are_held() {
    stopped_boto_is_refused("").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn boto3_stopped_in_its_upload_is_refused_when_bodies_stream() {
    stopped_boto_is_refused(STREAMING).await;
}

const SIGNED: &str = "
def sign(request, **kwargs): request.headers['Fencing-Token'] = ticket
s3.meta.events.register('before-sign.s3.*', sign)
s3.meta.events.unregister('before-send.s3.*', stamp)
try:
    s3.put_object(Bucket='box', Key='orders/1', Body=b'x')
    say('stored')
except botocore.exceptions.ClientError as error:
    say('%s %s' % (error.response['ResponseMetadata']['HTTPStatusCode'],
                   error.response['Error']['Message']))
";

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_that_is_among_the_signed_headers_is_told_so() {
    let disk = tempfile::tempdir().unwrap();
    let store = S3::start(disk.path()).await;
    let stage = stage("s3", store.address, "");
    let mut a = Holder::open(&stage.lockd, 30_000).await;
    let grant = a.acquire("orders", WAIT_MS).await.unwrap();
    let signing = Boto::start(&stage.proxy.url(""), &grant.ticket, SIGNED);
    let told = tokio::task::spawn_blocking(move || signing.rest())
        .await
        .unwrap();
    assert!(
        told.starts_with("400 ") && told.to_lowercase().contains("sign"),
        "{told}"
    );
    assert!(!disk.path().join("box/orders/1").exists());
}
