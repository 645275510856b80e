//! Fenced writes whose bodies are held, reads, and what needs no ticket.

use std::time::{Duration, Instant};

use crate::support::{OK, Setup, World, get, put};

#[tokio::test(flavor = "multi_thread")]
async fn a_current_write_passes_without_its_ticket_and_otherwise_byte_for_byte() {
    let mut world = World::new(&Setup::default()).await;
    let ticket = world.ticket("accounts/7", 33);
    let request = format!(
        "PUT /accounts/7/a%2Bb//c?q=%7e HTTP/1.1\r\nHOST: backend.example\r\nX-First: 1\r\n\
         fencing-token: {ticket}\r\nx-CASE: Kept \u{e9}\r\n\
         Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-Twice: a\r\nX-Twice: b\r\n\
         Content-Length: 4\r\n\r\nbody"
    );
    let (seen, reply) = world.pass(&request).await;
    assert_eq!(
        seen,
        "PUT /accounts/7/a%2Bb//c?q=%7e HTTP/1.1\r\nHOST: backend.example\r\nX-First: 1\r\n\
         x-CASE: Kept \u{e9}\r\nX-Twice: a\r\nX-Twice: b\r\nContent-Length: 4\r\n\r\nbody"
    );
    assert_eq!((reply.status, reply.body.as_str()), (200, "ok"));
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_and_newer_tokens_pass_and_an_older_one_is_refused_and_audited() {
    let mut world = World::new(&Setup::default()).await;
    for token in [33, 33, 34] {
        let ticket = world.ticket("accounts/7", token);
        assert_eq!(
            world
                .pass(&put("/accounts/7/x", &ticket, "v"))
                .await
                .1
                .status,
            200
        );
    }
    let old = world.ticket("accounts/7", 33);
    for request in [put("/accounts/7/x", &old, "v"), get("/accounts/7/x", &old)] {
        let problem = world.ask(&request).await.refused(412, "stale");
        assert_eq!(problem["lock"], "accounts/7");
        assert_eq!(problem["token"], "33");
        assert_eq!(problem["watermark"], "34");
        assert_eq!(problem["outcome"], "not-applied");
    }
    world.backend.is_untouched().await;
    let line = world
        .audited(&[("code", "stale"), ("operation", "PUT /accounts/7/x")])
        .await;
    assert_eq!(line["holder"], "holder-33");
    assert_eq!(line["mode"], "enforce");
    // Another lock is another matter.
    let other = world.ticket("accounts/8", 1);
    assert_eq!(
        world
            .pass(&put("/accounts/8/x", &other, "v"))
            .await
            .1
            .status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_leaves_the_connection_usable() {
    let world = World::new(&Setup::default()).await;
    let mut client = world.client().await;
    client
        .send(b"PUT /accounts/7/x HTTP/1.1\r\nHost: b\r\nContent-Length: 0\r\n\r\n")
        .await;
    client.reply().await.refused(428, "missing");
    client
        .send(put("/accounts/7/x", &world.ticket("accounts/7", 1), "").as_bytes())
        .await;
    let mut connection = world.backend.accept().await;
    connection.request().await;
    connection.send(OK).await;
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_genuine_ticket_is_invalid_and_raises_nothing() {
    let mut world = World::new(&Setup::default()).await;
    let ticket = world.ticket("accounts/7", 5);
    let mut forged = ticket.clone();
    forged.replace_range(40..41, if &forged[40..41] == "A" { "B" } else { "A" });
    let strange = World::stopped().await.ticket("accounts/7", 9);
    let cut = &ticket[..ticket.len() - 1];
    let twice = format!("{ticket}, {}", world.ticket("accounts/7", 6));
    for bad in [
        &forged,
        &strange,
        cut,
        &twice,
        "18446744073709551615",
        "7",
        "x",
    ] {
        world
            .ask(&put("/accounts/7/x", bad, "v"))
            .await
            .refused(400, "invalid");
    }
    // A genuine ticket of another lock is no ticket for this one.
    let other = world.ticket("accounts/8", 9);
    world
        .ask(&put("/accounts/7/x", &other, "v"))
        .await
        .refused(428, "missing");
    world.backend.is_untouched().await;
    let first = world.ticket("accounts/7", 1);
    assert_eq!(
        world
            .pass(&put("/accounts/7/x", &first, "v"))
            .await
            .1
            .status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_rule_covers_passes_or_is_refused_as_the_listener_says() {
    let mut world = World::new(&Setup::default()).await;
    let request = "POST /free HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\n\r\nx";
    assert_eq!(world.pass(request).await.1.status, 200);
    let read = "GET /accounts/7/x HTTP/1.1\r\nHost: b\r\n\r\n";
    assert_eq!(world.pass(read).await.1.status, 200);
    let strict = World::new(&Setup::listener("unmatched = \"reject\"")).await;
    strict.ask(request).await.refused(403, "unclassified");
    strict.backend.is_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_with_a_ticket_seals_before_it_is_answered() {
    let mut world = World::new(&Setup::default()).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    assert_eq!(
        world.pass(&put("/accounts/7/x", &old, "v")).await.1.status,
        200
    );
    let (seen, reply) = world.pass(&get("/accounts/7/x", &new)).await;
    assert_eq!(reply.status, 200);
    assert!(!seen.to_ascii_lowercase().contains("fencing"), "{seen}");
    world
        .ask(&put("/accounts/7/x", &old, "v"))
        .await
        .refused(412, "stale");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_body_never_reaches_the_backend_once_a_newer_token_came() {
    let mut world = World::new(&Setup::default()).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    assert_eq!(world.pass(&get("/accounts/7/x", &old)).await.1.status, 200);
    let mut slow = world.client().await;
    let whole = put("/accounts/7/x", &old, "0123456789");
    slow.send(&whole.as_bytes()[..whole.len() - 5]).await;
    // The slow client does not delay the new holder.
    assert_eq!(
        world
            .pass(&put("/accounts/7/x", &new, "new"))
            .await
            .1
            .status,
        200
    );
    slow.reply().await.refused(412, "stale");
    world.backend.is_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_the_client_cuts_off_is_not_forwarded() {
    let mut world = World::new(&Setup::default()).await;
    let ticket = world.ticket("accounts/7", 1);
    let mut client = world.client().await;
    let whole = put("/accounts/7/x", &ticket, "0123456789");
    client.send(&whole.as_bytes()[..whole.len() - 1]).await;
    drop(client);
    world.backend.is_untouched().await;
    // And nothing of it is in flight.
    let new = world.ticket("accounts/7", 2);
    assert_eq!(
        world.pass(&put("/accounts/7/x", &new, "v")).await.1.status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_body_is_held_on_disk_and_arrives_whole() {
    let listener = "[listener.limits]\nbody_memory_bytes_max = 1024\nbody_bytes_max = 1000000";
    let mut world = World::new(&Setup::listener(listener)).await;
    let ticket = world.ticket("accounts/7", 1);
    let body = "0123456789".repeat(50_000);
    let (seen, reply) = world.pass(&put("/accounts/7/x", &ticket, &body)).await;
    assert_eq!(reply.status, 200);
    assert!(seen.ends_with(&format!("\r\n\r\n{body}")));
    let chunked = format!(
        "PUT /accounts/7/x HTTP/1.1\r\nHost: b\r\nFencing-Token: {ticket}\r\n\
         Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    );
    let (seen, _) = world.pass(&chunked).await;
    assert!(seen.ends_with("abcde") && seen.to_ascii_lowercase().contains("content-length: 5"));
    let long = put("/accounts/7/x", &ticket, "").replace("Length: 0", "Length: 1000001");
    world.ask(&long).await.refused(400, "invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_token_waits_for_the_outstanding_reply() {
    let world = World::new(&Setup::default()).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let mut writer = world.client().await;
    writer
        .send(put("/accounts/7/x", &old, "v").as_bytes())
        .await;
    let mut connection = world.backend.accept().await;
    connection.request().await;
    let problem = world
        .ask(&get("/accounts/7/x", &new))
        .await
        .refused(503, "busy");
    assert_eq!(problem["watermark"], "2");
    // Older tokens are stale from the moment at which the newer one came.
    world
        .ask(&put("/accounts/7/x", &old, "v"))
        .await
        .refused(412, "stale");
    let mut reader = world.client().await;
    reader.send(get("/accounts/7/x", &new).as_bytes()).await;
    connection.send(OK).await;
    assert_eq!(writer.reply().await.status, 200);
    // The connection that carried the write carries the read.
    connection.request().await;
    connection.send(OK).await;
    assert_eq!(reader.reply().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_does_not_end_its_released_write() {
    let world = World::new(&Setup::default()).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let mut writer = world.client().await;
    writer
        .send(put("/accounts/7/x", &old, "v").as_bytes())
        .await;
    let mut connection = world.backend.accept().await;
    connection.request().await;
    drop(writer);
    world
        .ask(&get("/accounts/7/x", &new))
        .await
        .refused(503, "busy");
    connection.send(OK).await;
    let mut reader = world.client().await;
    reader.send(get("/accounts/7/x", &new).as_bytes()).await;
    connection.request().await;
    connection.send(OK).await;
    assert_eq!(reader.reply().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_backend_leaves_the_outcome_unknown_and_the_lock_closed_for_the_hold() {
    let mut world = World::new(&Setup::default()).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let mut writer = world.client().await;
    writer
        .send(put("/accounts/7/x", &old, "v").as_bytes())
        .await;
    let mut connection = world.backend.accept().await;
    connection.request().await;
    let lost_at = Instant::now();
    connection.reset();
    let problem = writer.reply().await.refused(502, "unknown");
    assert_eq!(problem["outcome"], "unknown");
    assert_eq!(problem["token"], "1");
    // Its holder goes on.
    assert_eq!(
        world.pass(&put("/accounts/7/x", &old, "v")).await.1.status,
        200
    );
    let busy = world.ask(&get("/accounts/7/x", &new)).await;
    let detail = busy.refused(503, "busy")["detail"].to_string();
    assert!(
        detail.contains("outcome of an older write is not known"),
        "{detail}"
    );
    assert!(
        busy.head
            .to_ascii_lowercase()
            .contains("retry-after: 1\r\n"),
        "{}",
        busy.head
    );
    // Asked again until the hold is over; each answer takes up to the admit deadline.
    let mut reader = world.client().await;
    let mut backend = None;
    while backend.is_none() {
        reader.send(get("/accounts/7/x", &new).as_bytes()).await;
        tokio::select! {
            reply = reader.reply() => drop(reply.refused(503, "busy")),
            connection = world.backend.accept() => backend = Some(connection),
        }
    }
    assert!(
        lost_at.elapsed() >= Duration::from_secs(1),
        "the hold was cut short"
    );
    let mut backend = backend.unwrap();
    backend.request().await;
    backend.send(OK).await;
    assert_eq!(reader.reply().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_had_no_answer_leaves_the_lock_closed_for_the_hold() {
    for status in ["502 Bad Gateway", "504 Gateway Timeout"] {
        let world = World::new(&Setup::default()).await;
        let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
        let mut writer = world.client().await;
        writer
            .send(put("/accounts/7/x", &old, "v").as_bytes())
            .await;
        let mut connection = world.backend.accept().await;
        connection.request().await;
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nno");
        connection.send(answer.as_bytes()).await;
        // As it came: whoever asked knows no more than the gateway.
        let told = writer.reply().await;
        assert_eq!(told.status.to_string(), status[..3]);
        let busy = world.ask(&get("/accounts/7/x", &new)).await;
        let detail = busy.refused(503, "busy")["detail"].to_string();
        assert!(
            detail.contains("outcome of an older write is not known"),
            "{detail}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_is_cut_off_is_no_success() {
    let world = World::new(&Setup::default()).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let mut writer = world.client().await;
    writer
        .send(put("/accounts/7/x", &old, "v").as_bytes())
        .await;
    let mut connection = world.backend.accept().await;
    connection.request().await;
    connection
        .send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n01234")
        .await;
    assert!(writer.head().await.starts_with("HTTP/1.1 200"));
    connection.reset();
    writer.end().await;
    assert!(writer.read.len() < 10, "a body was invented");
    world
        .ask(&get("/accounts/7/x", &new))
        .await
        .refused(503, "busy");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_connection_that_the_backend_closed_is_not_used() {
    let mut world = World::new(&Setup::default()).await;
    let ticket = world.ticket("accounts/7", 1);
    let request = put("/accounts/7/x", &ticket, "v");
    // Each reply is followed by the end of the connection, as at a server's keep-alive limit.
    for _ in 0..20 {
        assert_eq!(world.pass(&request).await.1.status, 200);
    }
    // A kept connection with bytes that nobody asked for is not used either.
    let mut client = world.client().await;
    client.send(request.as_bytes()).await;
    let mut connection = world.backend.accept().await;
    connection.request().await;
    connection.send(OK).await;
    assert_eq!(client.reply().await.status, 200);
    connection
        .send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        .await;
    assert_eq!(world.pass(&request).await.1.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_away_is_busy_and_leaves_no_doubt() {
    let mut world = World::new(&Setup::default()).await;
    world.backend.close();
    let old = world.ticket("accounts/7", 1);
    world
        .ask(&put("/accounts/7/x", &old, "v"))
        .await
        .refused(503, "busy");
    world.backend.reopen().await;
    let new = world.ticket("accounts/7", 2);
    assert_eq!(
        world.pass(&put("/accounts/7/x", &new, "v")).await.1.status,
        200
    );
}
