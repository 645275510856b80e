//! What is not etcd's gRPC, what other listeners do for etcd, and an etcd with users.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use ringfence::etcd_proto::etcdserverpb::PutRequest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::Code;

use crate::support::{JOBS, Version, World, etcdctl, get, put, refused, soon, with};

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_on_another_listener_shuts_older_ones_out_of_etcd() {
    let world = World::new(Version::V3_4);
    // etcd's own HTTP pages stand for another backend under the same lock.
    let web = format!(
        "{JOBS}\n[[listener]]\nname = \"web\"\nprotocol = \"http\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = \"{}\"\n[[listener.rule]]\nlock = \"orders\"\npath = \"/**\"\n",
        world.etcd_address()
    );
    let (a, b) = (world.proxy("a", &web), world.proxy("b", JOBS));
    let (one, two) = (world.ticket("orders", 1), world.ticket("orders", 2));
    let mut client = b.client().await;
    client.put(with(put("orders", "1"), &[&one])).await.unwrap();
    let mut stream = tokio::net::TcpStream::connect(a.proxy.listeners()[1].1)
        .await
        .unwrap();
    let request = format!(
        "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\nFencing-Token: {two}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon("the answer", stream.read_to_string(&mut answer))
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(world.floor("orders").await, Some(2));
    refused(
        client.put(with(put("orders", "old"), &[&one])).await,
        Code::FailedPrecondition,
        "stale",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_grpc_gets_to_etcd() {
    let world = World::new(Version::V3_4);
    let proxy = world.proxy("a", JOBS);
    // The JSON gateway: {"key": "orders", "value": "x"}.
    let json = r#"{"key":"b3JkZXJz","value":"eA=="}"#;
    let run = |version: &'static str, kind: &'static str, address: String| {
        tokio::task::spawn_blocking(move || {
            let mut command = std::process::Command::new("curl");
            command.args([
                "-s",
                "-m",
                "5",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                version,
            ]);
            command.args(["-H", kind, "-d", json]);
            command.arg(format!("http://{address}/v3/kv/put"));
            String::from_utf8(command.output().expect("curl runs").stdout).unwrap()
        })
    };
    let address = proxy.address.to_string();
    let kind = "Content-Type: application/json";
    let etcd = run("--http1.1", kind, world.etcd_address()).await.unwrap();
    assert_eq!(etcd, "200", "etcd itself takes it");
    world.etcd.ctl(&["del", "orders"]);
    let http2 = run("--http2-prior-knowledge", kind, address.clone())
        .await
        .unwrap();
    assert_eq!(http2, "403");
    let http1 = run("--http1.1", kind, address.clone()).await.unwrap();
    assert_ne!(http1, "200");
    // With gRPC's media type it is a method that nobody knows.
    let grpc = "Content-Type: application/grpc";
    run("--http2-prior-knowledge", grpc, address).await.unwrap();
    proxy.audited("unclassified", "v3/kv/put").await;
    assert_eq!(world.value("orders").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_before_the_end_of_the_body_resets_nothing() {
    // curl 7.88 takes a reset with NO_ERROR beside the answer for a failure, and hides the answer.
    let world = World::new(Version::V3_4);
    let proxy = world.proxy("a", JOBS);
    let stream = tokio::net::TcpStream::connect(proxy.address).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let handshake = hyper::client::conn::http2::handshake(executor, io);
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let (body, frames) = tokio::sync::mpsc::channel::<Bytes>(1);
    let frames = StreamBody::new(futures::stream::unfold(frames, |mut frames| async {
        let data = frames.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(data)), frames))
    }));
    let request = |body| {
        let url = format!("http://{}/v3/kv/put", proxy.address);
        hyper::Request::post(url).body(body).unwrap()
    };
    body.send(Bytes::from("{")).await.unwrap();
    let sent = sender.send_request(request(BodyExt::boxed(frames)));
    let refused = soon("a refusal", sent).await.unwrap();
    assert_eq!(refused.status(), 403);
    soon("its body", refused.into_body().collect())
        .await
        .unwrap();
    // A reset would be here before the answers to these.
    for _ in 0..20 {
        let whole = BodyExt::boxed(Full::new(Bytes::new()));
        let sent = soon("a refusal", sender.send_request(request(whole)));
        assert_eq!(sent.await.unwrap().status(), 403);
    }
    body.send(Bytes::from("}"))
        .await
        .expect("the stream goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_values_pass_and_too_large_ones_are_etcds_to_refuse() {
    let world = World::new(Version::V3_5);
    let proxy = world.proxy("a", JOBS);
    let mut client = proxy.client().await;
    let ticket = world.ticket("orders", 1);
    let large = |bytes: usize| PutRequest {
        value: vec![b'x'; bytes].into(),
        ..put("orders", "")
    };
    client.put(with(large(1 << 20), &[&ticket])).await.unwrap();
    let found = client
        .range(with(get("orders"), &[&ticket]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(found.kvs[0].value.len(), 1 << 20);
    let refusal = client
        .put(with(large(1_600_000), &[&ticket]))
        .await
        .unwrap_err();
    let expected = world
        .direct()
        .await
        .put(large(1_600_000))
        .await
        .unwrap_err();
    assert_eq!(
        (refusal.code(), refusal.message()),
        (expected.code(), expected.message())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_with_users_knows_the_proxy_and_its_clients() {
    let world = World::new(Version::V3_4);
    for args in [
        &["user", "add", "root:r"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "fence"],
        &[
            "role",
            "grant-permission",
            "fence",
            "readwrite",
            "_ringfence/",
            "--prefix=true",
        ],
        &["user", "add", "proxy:p"],
        &["user", "grant-role", "proxy", "fence"],
        &["role", "add", "orders"],
        &["role", "grant-permission", "orders", "readwrite", "orders"],
        &[
            "role",
            "grant-permission",
            "orders",
            "read",
            "_ringfence/",
            "--prefix=true",
        ],
        &["user", "add", "client:c"],
        &["user", "grant-role", "client", "orders"],
        &["auth", "enable"],
    ] {
        let output = etcdctl(&world.etcd_address(), args);
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    let file = world.dir.path().join("password");
    std::fs::write(&file, "p\n").unwrap();
    let user = format!("etcd_user = \"proxy\"\netcd_password_file = {file:?}\n{JOBS}");
    let proxy = world.proxy("a", &user);
    let address = proxy.address.to_string();
    let as_client = |args: &[&str]| {
        let mut all = vec!["--user", "client:c"];
        all.extend(args);
        etcdctl(&address, &all)
    };
    // The client's own identity goes with its calls.
    assert!(as_client(&["get", "orders"]).status.success());
    assert!(!as_client(&["get", "elsewhere"]).status.success());
    let mut client = proxy.client().await;
    let ticket = world.ticket("orders", 1);
    let token = authenticate(&address).await;
    let mut request = with(put("orders", "1"), &[&ticket]);
    request
        .metadata_mut()
        .insert("token", token.parse().unwrap());
    client.put(request).await.unwrap();
    let mut read = with(get("orders"), &[&ticket]);
    read.metadata_mut().insert("token", token.parse().unwrap());
    assert_eq!(
        client.range(read).await.unwrap().into_inner().kvs[0].value,
        "1"
    );
    // Without one etcd refuses in its own words.
    let nobody = client
        .put(with(put("orders", "2"), &[&ticket]))
        .await
        .unwrap_err();
    assert!(
        nobody.message().contains("user name is empty"),
        "{nobody:?}"
    );
}

/// Logs `client` in through the proxy; the token.
async fn authenticate(address: &str) -> String {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Login {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(string, tag = "2")]
        password: String,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct LoggedIn {
        #[prost(string, tag = "2")]
        token: String,
    }
    let mut grpc = tonic::client::Grpc::new(crate::support::channel(address).await);
    soon("readiness", grpc.ready()).await.unwrap();
    let login = Login {
        name: "client".to_owned(),
        password: "c".to_owned(),
    };
    let path = "/etcdserverpb.Auth/Authenticate".parse().unwrap();
    let codec = tonic_prost::ProstCodec::<Login, LoggedIn>::default();
    let answer = grpc.unary(tonic::Request::new(login), path, codec).await;
    answer.unwrap().into_inner().token
}

/// A call of etcd's lock service; its status.
async fn lock(address: &str, method: &str, message: Name, ticket: &str) -> Result<(), Code> {
    let mut grpc = tonic::client::Grpc::new(crate::support::channel(address).await);
    soon("readiness", grpc.ready()).await.unwrap();
    let path = method.parse().unwrap();
    let codec = tonic_prost::ProstCodec::<Name, Any>::default();
    let answer = grpc.unary(with(message, &[ticket]), path, codec).await;
    answer.map(drop).map_err(|status| status.code())
}

/// Any answer.
#[derive(Clone, PartialEq, prost::Message)]
struct Any {}

/// `LockRequest { name, lease }`, `UnlockRequest { key }`.
#[derive(Clone, PartialEq, prost::Message)]
struct Name {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[tokio::test(flavor = "multi_thread")]
async fn etcds_own_locks_are_refused_where_a_rule_may_cover_their_keys() {
    let world = World::new(Version::V3_5);
    let proxy = world.proxy("a", JOBS);
    let address = proxy.address.to_string();
    let lease = world.etcd.grant(600);
    let lease = i64::from_str_radix(&lease, 16).unwrap();
    let (job, locked) = (world.ticket("job/7", 1), "/v3lockpb.Lock/Lock");
    let name = |name: &str| Name {
        name: name.to_owned(),
        lease,
    };
    // A ticket does not help: nothing compares it within.
    let guarded = lock(&address, locked, name("job/7"), &job).await;
    assert_eq!(guarded, Err(Code::PermissionDenied));
    let fence = lock(&address, locked, name("_ringfence"), &job).await;
    assert_eq!(fence, Err(Code::PermissionDenied));
    lock(&address, locked, name("mine"), &job).await.unwrap();
    assert_eq!(
        world.value(&format!("mine/{lease:x}")).await.as_deref(),
        Some("")
    );
    let unlock = "/v3lockpb.Lock/Unlock";
    let key = Name {
        name: "orders".to_owned(),
        lease: 0,
    };
    assert_eq!(
        lock(&address, unlock, key, &job).await,
        Err(Code::PermissionDenied)
    );
    let observe = "/v3electionpb.Election/Leader";
    let leader = lock(&address, observe, name("_ringfence/floor"), &job).await;
    assert_eq!(leader, Err(Code::PermissionDenied));
}

#[tokio::test(flavor = "multi_thread")]
async fn observing_passes_what_cannot_be_read_too() {
    let world = World::new(Version::V3_5);
    let proxy = world.proxy("a", &format!("mode = \"observe\"\n{JOBS}"));
    // A message that says it is compressed, in no way that etcd knows.
    let file = world.dir.path().join("message");
    std::fs::write(&file, [1, 0, 0, 0, 2, 0x0a, 0x00]).unwrap();
    let data = format!("@{}", file.display());
    let url = format!("http://{}/etcdserverpb.KV/Put", proxy.address);
    let said = tokio::task::spawn_blocking(move || {
        let mut command = std::process::Command::new("curl");
        command.args(["-s", "-m", "10", "-D", "-", "--http2-prior-knowledge"]);
        command.args(["-H", "Content-Type: application/grpc", "-H", "TE: trailers"]);
        command.args(["-H", "grpc-encoding: odd", "--data-binary", &data, &url]);
        String::from_utf8(command.output().expect("curl runs").stdout).unwrap()
    });
    // etcd's own words, not the proxy's.
    let said = said.await.unwrap();
    assert!(said.contains("ecompressor is not installed"), "{said}");
    proxy.audited("unclassified", "etcdserverpb.KV/Put").await;
}
