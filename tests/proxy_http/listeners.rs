//! What listeners differ in: several locks, bare tokens, observing, versions of HTTP, and S3.

use crate::support::{OK, Setup, World, put};

const TWO_LOCKS: &str = r#"
    [[listener.rule]]
    lock = "a"
    path = "/both"
    [[listener.rule]]
    lock = "b"
    path = "/both"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_write_on_two_locks_needs_both() {
    let mut world = World::new(&Setup::rules(TWO_LOCKS)).await;
    let (a, b, b_new) = (
        world.ticket("a", 5),
        world.ticket("b", 3),
        world.ticket("b", 4),
    );
    let problem = world
        .ask(&put("/both", &a, "v"))
        .await
        .refused(428, "missing");
    assert_eq!(problem["lock"], "b");
    assert_eq!(
        world
            .pass(&put("/both", &format!("{b}, {a}"), "v"))
            .await
            .1
            .status,
        200
    );
    assert_eq!(
        world
            .pass(&put("/both", &format!("{a},{b_new}"), "v"))
            .await
            .1
            .status,
        200
    );
    let problem = world
        .ask(&put("/both", &format!("{a},{b}"), "v"))
        .await
        .refused(412, "stale");
    assert_eq!(problem["lock"], "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn bare_integers_count_only_where_the_listener_takes_them() {
    let setup = Setup {
        listener: "trust = \"unsigned\"",
        ..Setup::default()
    };
    let mut world = World::new(&setup).await;
    assert_eq!(
        world.pass(&put("/accounts/7/x", "34", "v")).await.1.status,
        200
    );
    world
        .ask(&put("/accounts/7/x", "33", "v"))
        .await
        .refused(412, "stale");
    let signed = world.ticket("accounts/7", 35);
    for bad in ["0", "-1", "9223372036854775808", "035", "35,36", &signed] {
        world
            .ask(&put("/accounts/7/x", bad, "v"))
            .await
            .refused(400, "invalid");
    }
    world
        .ask("PUT /accounts/7/x HTTP/1.1\r\nHost: b\r\ncontent-length: 0\r\n\r\n")
        .await
        .refused(428, "missing");
    world.shutdown().await;
    // A lock never has both kinds, over restarts too.
    world.start(&Setup::default(), false).unwrap();
    world
        .ask(&put("/accounts/7/x", &signed, "v"))
        .await
        .refused(400, "invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn observing_forwards_everything_and_audits_what_it_would_refuse() {
    let mut world = World::new(&Setup::listener("mode = \"observe\"")).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    for ticket in [new.as_str(), &old, "forged"] {
        let (seen, reply) = world.pass(&put("/accounts/7/x", ticket, "v")).await;
        assert_eq!(reply.status, 200);
        assert!(!seen.to_ascii_lowercase().contains("fencing"), "{seen}");
    }
    let bare = "PUT /accounts/7/x HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\n\r\nv";
    assert_eq!(world.pass(bare).await.1.status, 200);
    for code in ["stale", "invalid", "missing"] {
        let line = world.audited(&[("code", code)]).await;
        assert_eq!(line["mode"], "observe");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_comes_in_and_http_1_goes_out() {
    let world = World::new(&Setup::default()).await;
    let stream = tokio::net::TcpStream::connect(world.address())
        .await
        .unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io)
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = |ticket: &str| {
        hyper::Request::put("http://backend.example/accounts/7/x?q")
            .header("fencing-token", ticket)
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .header("x-other", "1")
            .body(http_body_util::Full::new(bytes::Bytes::from("body")))
            .unwrap()
    };
    let sent = tokio::spawn(sender.send_request(request(&world.ticket("accounts/7", 2))));
    let mut backend = world.backend.accept().await;
    let seen = backend.request().await;
    assert_eq!(
        seen,
        "PUT /accounts/7/x?q HTTP/1.1\r\nhost: backend.example\r\ncookie: a=1; b=2\r\n\
         x-other: 1\r\ncontent-length: 4\r\n\r\nbody"
    );
    backend
        .send(b"HTTP/1.1 201 Created\r\nConnection: close\r\ncontent-length: 0\r\n\r\n")
        .await;
    assert_eq!(sent.await.unwrap().unwrap().status(), 201);
    let refused = sender
        .send_request(request(&world.ticket("accounts/7", 1)))
        .await
        .unwrap();
    assert_eq!(refused.status(), 412);
}

#[tokio::test(flavor = "multi_thread")]
async fn expect_100_continue_is_answered_here() {
    let world = World::new(&Setup::default()).await;
    let ticket = world.ticket("accounts/7", 1);
    let mut client = world.client().await;
    let whole =
        put("/accounts/7/x", &ticket, "body").replace("Host", "Expect: 100-continue\r\nHost");
    let (head, body) = whole.split_at(whole.len() - 4);
    client.send(head.as_bytes()).await;
    assert!(client.head().await.starts_with("HTTP/1.1 100"));
    client.send(body.as_bytes()).await;
    let mut connection = world.backend.accept().await;
    assert!(!connection.request().await.contains("Expect"));
    connection.send(OK).await;
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_stream_and_their_hop_by_hop_fields_stay_behind() {
    let world = World::new(&Setup::default()).await;
    let mut client = world.client().await;
    client.send(b"GET /free HTTP/1.1\r\nHost: b\r\n\r\n").await;
    let mut connection = world.backend.accept().await;
    connection.request().await;
    connection
        .send(
            b"HTTP/1.1 200 OK\r\nX-Mixed-Case: 1\r\nKeep-Alive: 5\r\nconnection: keep-alive\r\n\
              Content-Length: 10\r\n\r\n01234",
        )
        .await;
    let head = client.head().await;
    assert_eq!(
        head,
        "HTTP/1.1 200 OK\r\nX-Mixed-Case: 1\r\nContent-Length: 10\r\n\r\n"
    );
    // The first half is here before the second was sent.
    assert_eq!(client.at_least(5).await, "01234");
    connection.send(b"56789").await;
    assert_eq!(client.at_least(10).await, "0123456789");
}

const OBJECTS: &str = r#"
    [[listener.rule]]
    lock = "days/{day}"
    bucket = "b"
    key = "in/{day}/*"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_request_that_names_its_keys_in_its_body_is_read_and_then_forwarded_whole() {
    let setup = Setup {
        protocol: "s3",
        rules: OBJECTS,
        ..Setup::default()
    };
    let mut world = World::new(&setup).await;
    let body =
        "<Delete><Object><Key>in/7/a</Key></Object><Object><Key>in/8/b</Key></Object></Delete>";
    let delete = |tickets: &str| put("/b?delete", tickets, body).replacen("PUT", "POST", 1);
    let (seven, eight) = (world.ticket("days/7", 1), world.ticket("days/8", 1));
    let refused = world.ask(&delete(&seven)).await;
    assert_eq!(refused.status, 428);
    assert!(
        refused
            .body
            .contains("<FenceCode>missing</FenceCode><Lock>days/8</Lock>")
    );
    let (seen, reply) = world.pass(&delete(&format!("{seven},{eight}"))).await;
    assert_eq!(reply.status, 200);
    assert!(
        seen.starts_with("POST /b?delete HTTP/1.1") && seen.ends_with(body),
        "{seen}"
    );
    let newer = world.ticket("days/7", 2);
    assert_eq!(
        world.pass(&put("/b/in/7/a", &newer, "v")).await.1.status,
        200
    );
    let refused = world.ask(&delete(&format!("{seven},{eight}"))).await;
    assert_eq!(refused.status, 412);
    assert!(
        refused.body.contains("<Code>PreconditionFailed</Code>"),
        "{}",
        refused.body
    );
    world
        .audited(&[("code", "stale"), ("protocol", "s3")])
        .await;
}
