//! First packets: versions, lengths, upgrades, and what the server tells at the start.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Three, fenced};
use crate::client::send::{
    V3_0, V3_2, cancel_request, gss_request, password, query, ssl_request, startup, untyped,
};
use crate::client::{Client, Fault, Reply};
use crate::postgres::CLEARTEXT;
use crate::stack::{Proxy, Setup, sign};
use crate::world::{WRITE, World};

const APP: [(&str, &str); 2] = [("user", "app"), ("database", "app")];

fn places(three: &Three) -> [SocketAddr; 3] {
    let proxy = &three.world.proxy;
    [
        three.world.server.address,
        proxy.addresses[1],
        proxy.addresses[0],
    ]
}

/// What comes up to the first ReadyForQuery or the end, without what differs between sessions.
fn first_words(client: &mut Client) -> Vec<Reply> {
    let mut words = vec![];
    while let Some(mut reply) = client.try_read() {
        if reply.tag == b'K' {
            // The length of the key is the version's.
            reply.body.iter_mut().for_each(|byte| *byte = 0);
        }
        let ready = reply.tag == b'Z';
        words.push(reply);
        if ready {
            break;
        }
    }
    words
}

/// Says the same first packet each way.
fn open_with(three: &Three, bytes: &[u8]) -> Vec<Reply> {
    let [direct, open, fenced] = places(three).map(|address| {
        let mut client = Client::open(address);
        client.send(bytes);
        first_words(&mut client)
    });
    assert_eq!(direct, open, "without a rule");
    assert_eq!(direct, fenced, "fenced");
    direct
}

#[test]
fn a_version_is_negotiated_once() {
    let three = Three::new();
    let count = |words: &[Reply]| words.iter().filter(|it| it.tag == b'v').count();
    let plain = open_with(&three, &startup(V3_0, &APP));
    assert_eq!(count(&plain), 0);
    let newer = open_with(&three, &startup(V3_2, &APP));
    // A server of before 18 knows 3.0 only.
    assert!(count(&newer) <= 1, "{newer:?}");
    let unknown = [&APP[..], &[("_pq_.something", "on")]].concat();
    let asked = open_with(&three, &startup(V3_0, &unknown));
    assert_eq!(count(&asked), 1, "{asked:?}");
}

#[test]
fn the_parameters_are_the_servers_in_its_order() {
    let three = Three::new();
    let mut sessions = three.sessions();
    let [(_, direct), others @ ..] = &mut sessions;
    assert!(direct.parameters.len() > 10, "{:?}", direct.parameters);
    for (way, client) in others {
        assert_eq!(direct.parameters, client.parameters, "{way}");
    }
    // And they are told again as they change.
    three.hear_the_same(|client| {
        client.query("SET application_name = 'x'; SET TimeZone = 'Asia/Tokyo'; RESET ALL");
    });
}

#[test]
fn a_start_may_come_in_any_number_of_segments_and_be_long() {
    let three = Three::new();
    let long = "x".repeat(9000);
    let parameters = [&APP[..], &[("application_name", &long)]].concat();
    let bytes = startup(V3_0, &parameters);
    for cut in [1, 3, 4, 8, 9, 1000] {
        for address in places(&three) {
            let mut client = Client::open(address);
            let (head, rest) = bytes.split_at(40);
            for part in head.chunks(cut) {
                client.send(part);
                std::thread::sleep(Duration::from_millis(1));
            }
            client.send(rest);
            client.begin().unwrap();
            assert_eq!(client.query("SELECT 1").value(), "1");
        }
    }
    // Tickets beside other long things.
    let mut client = fenced(&three.world, &[("options", &format!("-c my.value={long}"))]);
    assert_eq!(
        client
            .query("SELECT length(current_setting('my.value'))")
            .value(),
        "9000"
    );
}

/// The server reads what follows once the session has begun.
#[test]
fn a_statement_may_follow_its_start_at_once() {
    let three = Three::new();
    for address in places(&three) {
        let mut client = Client::open(address);
        client.send(&[startup(V3_0, &APP), query("SELECT 'at once'")].concat());
        client.begin().unwrap();
        assert_eq!(client.answer().value(), "at once");
    }
}

#[test]
fn a_start_of_nonsense_ends_the_connection() {
    let three = Three::new();
    let nonsense: [Vec<u8>; 7] = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0, 0, 0, 4],
        vec![0, 0, 0, 0, 0, 0, 0, 0],
        vec![0xff; 64],
        untyped(&[0; 20_000]),
        startup(2 << 16, &APP),
        untyped(b"\0\x03\0\0user\0app"),
    ];
    for bytes in nonsense {
        for address in places(&three) {
            let mut client = Client::open(address);
            client.send(&bytes);
            client.shut_down();
            assert!(client.has_ended(), "{bytes:?}");
        }
    }
    three.world.proxy.client().query("SELECT 1").ok();
}

#[test]
fn upgrades_that_are_not_there_are_declined_once_each() {
    let three = Three::new();
    // The server itself may have GSSAPI.
    for address in &places(&three)[1..] {
        let mut client = Client::open(*address);
        client.send(&gss_request());
        assert_eq!(client.read_byte(), Some(b'N'));
        client.send(&ssl_request());
        assert_eq!(client.read_byte(), Some(b'N'));
        client.send(&startup(V3_0, &APP));
        client.begin().unwrap();
    }
    for twice in [gss_request(), ssl_request()] {
        let mut client = Client::open(three.world.proxy.address());
        client.send(&twice);
        assert_eq!(client.read_byte(), Some(b'N'));
        client.send(&twice);
        assert_ne!(client.read_byte(), Some(b'N'), "declined twice");
    }
}

#[test]
fn a_refusal_of_the_servers_is_told_as_it_is() {
    let three = Three::new();
    for parameters in [
        [("user", "nobody"), ("database", "app")],
        [("user", "app"), ("database", "nowhere")],
        [("user", "app"), ("replication", "maybe")],
    ] {
        let told = open_with(&three, &startup(V3_0, &parameters));
        assert_eq!(told.last().map(|it| it.tag), Some(b'E'), "{told:?}");
    }
}

/// The proxy must not cut it, nor take it for something else.
#[test]
fn a_long_password_arrives() {
    let three = Three::new();
    let long = "p".repeat(1500);
    let set = format!("ALTER ROLE {} PASSWORD '{long}'", CLEARTEXT.0);
    three.world.admin().query(&set).ok();
    let packet = startup(V3_0, &[("user", CLEARTEXT.0), ("database", "app")]);
    let answer = |address, secret: &str| {
        let mut client = Client::open(address);
        client.send(&packet);
        // AuthenticationCleartextPassword.
        assert_eq!(client.read().body, [0, 0, 0, 3]);
        client.send(&password(secret));
        client.begin().err().unwrap_or_default()
    };
    for (secret, code) in [(&*long, ""), ("wrong", "28P01"), (&long[1..], "28P01")] {
        let [direct, open, fenced] = places(&three).map(|address| answer(address, secret));
        // Postgres 13 takes no more than 1,000 bytes, and ends without a word.
        if direct.message != "the connection has ended" {
            assert_eq!(direct.code, code, "{direct:?}");
        }
        assert_eq!([&open, &fenced], [&direct, &direct]);
    }
}

#[test]
fn nothing_of_a_ticket_that_is_wrong_reaches_the_server() {
    let world = World::new();
    let stranger = ringfence::ticket::SigningKey::generate();
    for ticket in [&sign(&stranger, "app", 1), "7", "v4.public.AAAA"] {
        let parameters = [("ringfence.token", ticket)];
        let refused = Client::try_connect(world.proxy.address(), &parameters);
        let fault = match refused {
            Err(fault) => fault,
            // Or with its first statement.
            Ok(mut client) => client.query("SELECT 1").refused("RF003").clone(),
        };
        assert_eq!(fault.code, "RF003", "{fault:?}");
        let told = ticket.len() > 1 && world.server.log().contains(ticket);
        assert!(!told, "{ticket}");
    }
}

#[test]
fn a_session_for_replication_is_denied_or_passed_as_configured() {
    let denies = |fault: Fault| !fault.code.is_empty() && fault.message.contains("replication");
    let world = World::with(|setup| setup.and("passes", "replication = \"pass\"", ""));
    let parameters = [("replication", "database"), ("user", "postgres")];
    let denied = Client::try_connect(world.proxy.address(), &parameters);
    assert!(denied.is_err_and(denies), "a replication session");
    let mut passed = Client::connect_with(world.proxy.addresses[1], &parameters);
    let system = passed.ask(&query("IDENTIFY_SYSTEM")).ok();
    assert_eq!(system.rows.len(), 1, "{system:?}");
}

#[test]
fn a_cancel_request_of_a_stranger_is_without_an_answer() {
    let three = Three::new();
    for key in [
        &[0, 0, 0, 1, 0, 0, 0, 2][..],
        &[1; 36],
        &[1; 260],
        &[1, 2],
        &[],
    ] {
        for address in places(&three) {
            let mut client = Client::open(address);
            client.send(&cancel_request(key));
            assert!(client.has_ended(), "{key:?}");
        }
    }
}

#[test]
fn a_listener_without_rules_needs_no_control_role() {
    let server = World::server();
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(server.address).with_rules("");
    setup.without_control = true;
    let proxy = Proxy::start(dir.path(), &setup);
    proxy.client().query(WRITE).ok();
    let rejects = setup.clone().with("unmatched = \"reject\"");
    let dir = tempfile::tempdir().unwrap();
    let told = Proxy::refuses_to_start(dir.path(), &rejects);
    assert!(told.contains("listener.control"), "{told}");
}
