//! Malformed requests on the wire: each gets its clear answer, nothing reaches the backend, the
//! proxy goes on.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::backend::Origin;
use crate::clients::{Holder, put};
use crate::stack::{Lockd, Proxy, ProxySetup};

const RULE: &str = "[[listener.rule]]\nlock = \"orders\"\npath = \"/orders/**\"\n";

/// Sends the bytes and returns the status of the answer: 0 where the connection was closed without
/// one. What waits for more than was sent is told that no more comes.
fn send(address: SocketAddr, request: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    // The answer may come, and the connection end, before all is sent.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    for _ in 0..20 {
        let mut part = [0; 4096];
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let _ = stream.shutdown(std::net::Shutdown::Write);
            }
            Err(_) => break,
        }
        if answer.windows(2).any(|it| it == b"\r\n") {
            break;
        }
    }
    let text = String::from_utf8_lossy(&answer);
    text.split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or(0)
}

fn request(head: &str, body: &str) -> Vec<u8> {
    format!("{}\r\n\r\n{body}", head.replace('\n', "\r\n")).into_bytes()
}

/// Head, body, and the statuses that are right; 0 stands for closing without an answer.
type Case<'a> = (&'a str, String, &'a [u16]);

fn cases(ticket: &str) -> Vec<Case<'static>> {
    let with = |line: &str| {
        format!("PUT /orders/1 HTTP/1.1\nHost: a\nContent-Length: 1\n{line}").replace("{t}", ticket)
    };
    let two = |line: &str| format!("{}\n{line}", with("Fencing-Token: {t}"));
    vec![
        ("no ticket", with("X: y"), &[428]),
        ("empty ticket", with("Fencing-Token:"), &[400]),
        ("garbage ticket", with("Fencing-Token: garbage"), &[400]),
        ("bare integer", with("Fencing-Token: 42"), &[400]),
        (
            "u64::MAX signed by nobody",
            with("Fencing-Token: 18446744073709551615"),
            &[400],
        ),
        (
            "truncated ticket",
            with(&format!("Fencing-Token: {}", &ticket[..ticket.len() - 9])),
            &[400],
        ),
        (
            "another version",
            with(&format!("Fencing-Token: {}", ticket.replace("v4", "v2"))),
            &[400],
        ),
        (
            "another purpose",
            with(&format!(
                "Fencing-Token: {}",
                ticket.replace("public", "local")
            )),
            &[400],
        ),
        (
            "ticket with an empty neighbour",
            with("Fencing-Token: {t},"),
            &[400],
        ),
        (
            "two lines of tickets",
            two("Fencing-Token: {t}").replace("{t}", ticket),
            &[400],
        ),
        ("underscore variant", with("Fencing_Token: {t}"), &[400]),
        (
            "ticket named in Connection",
            two("Connection: fencing-token"),
            &[400],
        ),
        (
            "too long a ticket",
            with(&format!("Fencing-Token: v4.public.{}", "A".repeat(9000))),
            &[400],
        ),
        (
            "too many tickets",
            with(&format!("Fencing-Token: {}", vec!["x"; 40].join(","))),
            &[400],
        ),
        (
            "no host",
            "PUT /orders/1 HTTP/1.1\nContent-Length: 1".to_owned(),
            &[400],
        ),
        ("two hosts", with("Host: b"), &[400]),
        ("conflicting lengths", with("Content-Length: 2"), &[400, 0]),
        (
            "length and chunked",
            two("Transfer-Encoding: chunked"),
            &[400, 0],
        ),
        (
            "chunked is not last",
            two("Transfer-Encoding: chunked, gzip"),
            &[400, 501, 0],
        ),
        (
            "negative length",
            "PUT /orders/1 HTTP/1.1\nHost: a\nContent-Length: -1".to_owned(),
            &[400, 0],
        ),
        (
            "length beyond 64 bits",
            "PUT /orders/1 HTTP/1.1\nHost: a\nContent-Length: 99999999999999999999".to_owned(),
            &[400, 413, 0],
        ),
        ("no version", "PUT /orders/1".to_owned(), &[400, 0]),
        (
            "unknown version",
            "PUT /orders/1 HTTP/9.9\nHost: a".to_owned(),
            &[400, 505, 0],
        ),
        ("bare nonsense", "hello".to_owned(), &[400, 0]),
        ("space before the colon", with("X : y"), &[400, 0]),
        ("folded header", with("X: y\n z"), &[400, 0]),
        ("control byte in a header", with("X: a\u{1}b"), &[400, 0]),
        (
            "encoded slash below a rule",
            "PUT /orders%2F1 HTTP/1.1\nHost: a\nContent-Length: 1".to_owned(),
            &[400, 403, 428],
        ),
        (
            "dot segments into a rule",
            "PUT /x/../orders/1 HTTP/1.1\nHost: a\nContent-Length: 1".to_owned(),
            &[400, 403, 428],
        ),
        (
            "encoded letters of a rule",
            "PUT /%6frders/1 HTTP/1.1\nHost: a\nContent-Length: 1".to_owned(),
            &[400, 403, 428],
        ),
        (
            "double slash into a rule",
            "PUT //orders/1 HTTP/1.1\nHost: a\nContent-Length: 1".to_owned(),
            &[400, 403, 428],
        ),
        (
            "NUL in the path",
            "PUT /orders/%00 HTTP/1.1\nHost: a\nContent-Length: 1".to_owned(),
            &[400, 403, 428],
        ),
        (
            "absolute form",
            "PUT http://a/orders/1 HTTP/1.1\nHost: a\nContent-Length: 1".to_owned(),
            &[400, 403, 428],
        ),
        (
            "CONNECT",
            "CONNECT orders:1 HTTP/1.1\nHost: orders:1".to_owned(),
            &[400, 403, 405, 501],
        ),
        (
            "upgrade on a rule",
            with("Connection: upgrade\nUpgrade: websocket"),
            &[400, 403, 428],
        ),
        (
            "method override",
            "POST /orders/1 HTTP/1.1\nHost: a\nContent-Length: 1\nX-HTTP-Method-Override: GET"
                .to_owned(),
            &[403, 428, 400],
        ),
        (
            "read that is overridden",
            "GET /orders/1 HTTP/1.1\nHost: a\nX-HTTP-Method-Override: DELETE".to_owned(),
            &[403, 428, 400],
        ),
        (
            "head too large",
            with(&format!("X: {}", "y".repeat(200_000))),
            &[400, 431, 0],
        ),
        (
            "body shorter than it says",
            format!("PUT /orders/1 HTTP/1.1\nHost: a\nContent-Length: 9\nFencing-Token: {ticket}"),
            &[400, 408, 0],
        ),
        (
            "broken chunk",
            format!(
                "PUT /orders/1 HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\nFencing-Token: {ticket}"
            ),
            &[400, 0],
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_are_answered_and_reach_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), "");
    let origin = Origin::start();
    let setup = ProxySetup {
        name: "edge-1",
        protocol: "http",
        upstream: origin.address,
        lockd: &lockd,
        listener: "",
        rules: RULE,
        data: None,
    };
    let mut proxy = Proxy::start(dir.path(), &setup);
    let mut holder = Holder::open(&lockd, 120_000).await;
    let grant = holder.acquire("orders", 20_000).await.unwrap();

    let listen = proxy.listen;
    let ticket = grant.ticket.clone();
    let wrong = tokio::task::spawn_blocking(move || {
        let mut wrong = Vec::new();
        for (name, head, right) in cases(&ticket) {
            let status = send(listen, &request(&head, "1"));
            if !right.contains(&status) {
                wrong.push(format!("{name}: {status}, not one of {right:?}"));
            }
        }
        wrong
    });
    let wrong = wrong.await.unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(
        origin.applied(),
        [""; 0],
        "a malformed request had an effect"
    );
    let log = proxy.process.log();
    assert!(!log.contains("panicked"), "{log}");
    assert_eq!(
        put(&proxy.url("/orders/1"), "good", Some(&grant.ticket)).status,
        200
    );
    proxy.process.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ticket_is_stripped_and_all_else_passes_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let lockd = Lockd::start(dir.path(), "");
    let origin = Origin::start();
    let setup = ProxySetup {
        name: "edge-1",
        protocol: "http",
        upstream: origin.address,
        lockd: &lockd,
        listener: "",
        rules: RULE,
        data: None,
    };
    let proxy = Proxy::start(dir.path(), &setup);
    let mut holder = Holder::open(&lockd, 120_000).await;
    let grant = holder.acquire("orders", 20_000).await.unwrap();
    let head = format!(
        "PUT /orders/a%20b/%41?q=%2F&&z HTTP/1.1\nHost: Example.COM:81\nX-MiXed-CaSe:  two  words \n\
         Content-Length: 1\nfencing-TOKEN: {}\nAccept: */*",
        grant.ticket
    );
    let listen = proxy.listen;
    let status = tokio::task::spawn_blocking(move || send(listen, &request(&head, "1")));
    assert_eq!(status.await.unwrap(), 200);
    let seen = origin.heads().concat();
    for line in [
        "PUT /orders/a%20b/%41?q=%2F&&z HTTP/1.1\r\n",
        "Host: Example.COM:81\r\n",
        "X-MiXed-CaSe:  two  words \r\n",
        "Content-Length: 1\r\n",
        "Accept: */*\r\n",
    ] {
        assert!(seen.contains(line), "{line:?} is not in {seen:?}");
    }
    assert!(!seen.to_lowercase().contains("fencing"), "{seen:?}");
    assert!(!seen.contains(&grant.ticket), "{seen:?}");
}
