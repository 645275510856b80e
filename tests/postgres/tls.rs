//! TLS with clients and with the server, by the request for it and directly.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::client::Client;
use crate::client::send::{V3_0, query, ssl_request, startup};
use crate::drivers::psql::program;
use crate::drivers::{outcome, run};
use crate::postgres::{Options, Postgres, SCRAM, TLS_ONLY};
use crate::stack::{DATABASE, Proxy, Setup};
use crate::world::World;

const APP: [(&str, &str); 2] = [("user", "app"), ("database", "app")];

/// A certificate of its own for the proxy, and its key.
fn certificate(dir: &Path) -> (PathBuf, PathBuf) {
    let (certificate, key) = (dir.join("proxy.crt"), dir.join("proxy.key"));
    run(Command::new("openssl")
        .args(["req", "-x509", "-nodes", "-days", "30", "-newkey", "ec"])
        .args(["-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-subj", "/CN=localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args([Path::new("-keyout"), &key, Path::new("-out"), &certificate]));
    (certificate, key)
}

struct Guarded {
    proxy: Proxy,
    server: Postgres,
    certificate: PathBuf,
    _dir: tempfile::TempDir,
}

/// A proxy with TLS before a server; `clients`: whether they must; `upstream`: of `upstream_tls`.
fn guarded(server: Options, clients: &str, upstream: impl Fn(&Postgres) -> String) -> Guarded {
    let dir = tempfile::tempdir().unwrap();
    let server = Postgres::start_with(server);
    let (certificate, key) = certificate(dir.path());
    let rules = format!(
        "{DATABASE}[listener.tls]\ncert = {certificate:?}\nkey = {key:?}\nclients = \"{clients}\"\n\
         [listener.upstream_tls]\n{}\n",
        upstream(&server),
    );
    let setup = Setup::new(server.address).with_rules(&rules);
    let proxy = Proxy::start(dir.path(), &setup);
    Guarded {
        proxy,
        server,
        certificate,
        _dir: dir,
    }
}

fn with_tls() -> Options {
    Options {
        tls: true,
        ..Options::default()
    }
}

/// Asks psql for a 1 with this `sslmode` and more of libpq's variables.
fn ask(address: SocketAddr, mode: &str, more: &[(&str, &str)]) -> (bool, String, String) {
    let mut command = program("psql", address);
    command.env("PGSSLMODE", mode).envs(more.iter().copied());
    outcome(command.args(["-X", "-t", "-A", "-c", "SELECT 1"]))
}

#[test]
fn clients_come_by_tls_or_without_it_as_configured() {
    let both = guarded(Options::default(), "may", |_| String::new());
    let root = both.certificate.to_str().unwrap();
    for (mode, more) in [
        ("disable", &[][..]),
        ("prefer", &[]),
        ("require", &[]),
        ("verify-full", &[("PGSSLROOTCERT", root)]),
    ] {
        let told = ask(both.proxy.address(), mode, more);
        assert!(told.0 && told.1 == "1\n", "{mode}: {told:?}");
    }
    let must = guarded(Options::default(), "must", |_| String::new());
    let told = ask(must.proxy.address(), "require", &[]);
    assert!(told.0, "{told:?}");
    let told = ask(must.proxy.address(), "disable", &[]);
    assert!(!told.0 && told.2.contains("FATAL"), "{told:?}");
    let none = World::new();
    let told = ask(none.proxy.address(), "require", &[]);
    assert!(
        !told.0 && told.2.contains("does not support SSL"),
        "{told:?}"
    );
}

#[test]
fn the_server_is_reached_by_tls_as_configured() {
    for (mode, by_tls) in [("disable", "f"), ("prefer", "t"), ("require", "t")] {
        let line = format!("mode = \"{mode}\"");
        let it = guarded(with_tls(), "may", |_| line.clone());
        let mut client = it.proxy.client();
        let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        assert_eq!(client.query(sql).value(), by_tls, "{mode}");
        let only = Client::try_connect(it.proxy.address(), &[("user", TLS_ONLY)]);
        let code = only.err().map(|fault| fault.code).unwrap_or_default();
        assert_eq!(code, if by_tls == "t" { "" } else { "28000" }, "{mode}");
    }
    let full = guarded(with_tls(), "may", |server| {
        format!("mode = \"verify-full\"\nca = {:?}", server.certificate())
    });
    full.proxy.client().query("SELECT 1").ok();
    drop(full.server);
}

#[test]
fn a_server_that_is_not_the_one_is_not_spoken_to() {
    let dir = tempfile::tempdir().unwrap();
    let (stranger, _) = certificate(dir.path());
    let server = Postgres::start_with(with_tls());
    let rules =
        format!("{DATABASE}[listener.upstream_tls]\nmode = \"verify-full\"\nca = {stranger:?}\n");
    let setup = Setup::new(server.address).with_rules(&rules);
    let said = Proxy::refuses_to_start(dir.path(), &setup);
    assert!(said.contains("certificate"), "{said}");
    // Nor one without TLS where it is required.
    let bare = Postgres::start();
    let rules = format!("{DATABASE}[listener.upstream_tls]\nmode = \"require\"\n");
    let setup = Setup::new(bare.address).with_rules(&rules);
    let said = Proxy::refuses_to_start(dir.path(), &setup);
    assert!(said.contains("TLS"), "{said}");
}

#[test]
fn scram_passes_and_channel_binding_is_told_clearly() {
    let password = [("PGUSER", SCRAM.0), ("PGPASSWORD", SCRAM.1)];
    let more = |binding| [&password[..], &[("PGCHANNELBINDING", binding)]].concat();
    for (server, upstream) in [(Options::default(), "disable"), (with_tls(), "require")] {
        let line = format!("mode = \"{upstream}\"");
        let it = guarded(server, "may", |_| line.clone());
        let address = it.proxy.address();
        for (mode, binding) in [("disable", "prefer"), ("require", "disable")] {
            let told = ask(address, mode, &more(binding));
            assert!(told.0, "{upstream}, {mode}, {binding}: {told:?}");
        }
        // What is bound to our certificate cannot be bound to the server's.
        let told = ask(address, "require", &more("require"));
        assert!(
            !told.0 && told.2.contains("channel"),
            "{upstream}: {told:?}"
        );
        // libpq's default.
        let told = ask(address, "require", &more("prefer"));
        assert!(told.0 || told.2.contains("channel"), "{upstream}: {told:?}");
        assert!(told.0 || upstream == "require", "{upstream}: {told:?}");
    }
}

/// `openssl s_client` on this address, with a StartupMessage and a query.
fn by_openssl(address: SocketAddr, arguments: &[&str]) -> Vec<u8> {
    let mut child: Child = Command::new("timeout")
        .args(["20", "openssl", "s_client", "-quiet", "-connect"])
        .arg(address.to_string())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sql = "SELECT 'by ' || 'tls', 'upstream ' || ssl \
               FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let said = [startup(V3_0, &APP), query(sql)].concat();
    let _ = stdin.write_all(&said);
    let _ = stdin.write_all(&crate::client::send::terminate());
    let mut heard = vec![];
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut heard)
        .unwrap();
    drop(stdin);
    let _ = child.wait();
    heard
}

fn contains(heard: &[u8], text: &str) -> bool {
    heard
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

#[test]
fn tls_may_begin_at_once_with_its_protocol_named() {
    let it = guarded(Options::default(), "may", |_| String::new());
    let address = it.proxy.address();
    let named = ["-alpn", "postgresql", "-servername", "db.example"];
    let heard = by_openssl(address, &named);
    assert!(
        contains(&heard, "by tls"),
        "{:?}",
        String::from_utf8_lossy(&heard)
    );
    // PostgreSQL docs 55.2.10: without ALPN it could be a request to another protocol.
    assert!(!contains(&by_openssl(address, &[]), "by tls"));
    assert!(!contains(&by_openssl(address, &["-alpn", "h2"]), "by tls"));
    let asked = by_openssl(address, &["-starttls", "postgres"]);
    assert!(contains(&asked, "by tls"));
}

/// Whether it begins at once or is asked for, as Postgres itself has it.
const BEGINS: [&[&str]; 2] = [&["-alpn", "postgresql"], &["-starttls", "postgres"]];

/// It is for whoever routes by it. There is one server behind a listener, whatever it is called.
#[test]
fn the_name_that_a_tls_client_asks_for_matters_nothing() {
    let it = guarded(Options::default(), "must", |_| String::new());
    let long = format!("{}.example", ["x".repeat(60).as_str(); 3].join("."));
    for begins in BEGINS {
        for name in [
            &["-noservername"][..],
            &["-servername", "localhost"],
            &["-servername", "db.example"],
            &["-servername", &long],
        ] {
            let heard = by_openssl(it.proxy.address(), &[begins, name].concat());
            let told = String::from_utf8_lossy(&heard);
            assert!(contains(&heard, "by tls"), "{begins:?} {name:?}: {told:?}");
        }
    }
}

/// pgbouncer 1584: what stands before servers chooses one by the name, also where nobody looks at
/// its certificate.
#[test]
fn the_server_is_told_the_name_that_it_has_in_the_configuration() {
    for mode in ["prefer", "require"] {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let rules = format!("[listener.upstream_tls]\nmode = \"{mode}\"\n");
        let mut setup = Setup::new(server.local_addr().unwrap()).with_rules(&rules);
        setup.upstream = format!("localhost:{port}");
        setup.without_control = true;
        let dir = tempfile::tempdir().unwrap();
        let proxy = Proxy::start(dir.path(), &setup);
        let mut client = Client::open(proxy.address());
        client.send(&startup(V3_0, &APP));
        let (mut stream, _) = server.accept().unwrap();
        let mut request = [0; 8];
        stream.read_exact(&mut request).unwrap();
        assert_eq!(request[..], ssl_request());
        stream.write_all(b"S").unwrap();
        // RFC 8446 5.1: type, version, length.
        let mut head = [0; 5];
        stream.read_exact(&mut head).unwrap();
        let mut hello = vec![0; u16::from_be_bytes([head[3], head[4]]).into()];
        stream.read_exact(&mut hello).unwrap();
        assert!(contains(&hello, "localhost"), "{mode}: {hello:?}");
    }
}

/// envoy 30194: the answer to the client's request for TLS was taken for the server's.
#[test]
fn tls_with_clients_and_with_the_server_are_agreed_on_apart() {
    for (server, mode, by_tls) in [
        (Options::default(), "prefer", "upstream false"),
        (with_tls(), "disable", "upstream false"),
        (with_tls(), "prefer", "upstream true"),
        (with_tls(), "require", "upstream true"),
    ] {
        let line = format!("mode = \"{mode}\"");
        let it = guarded(server, "must", |_| line.clone());
        for begins in BEGINS {
            let heard = by_openssl(it.proxy.address(), begins);
            let told = String::from_utf8_lossy(&heard);
            let is_so = contains(&heard, "by tls") && contains(&heard, by_tls);
            assert!(is_so, "{mode}, {begins:?}: {told:?}");
        }
    }
}

/// What was sent before the handshake was not protected by it (CVE-2021-23214).
#[test]
fn what_comes_before_the_handshake_is_not_taken() {
    let it = guarded(Options::default(), "may", |_| String::new());
    let mut client = Client::open(it.proxy.address());
    client.send(&[ssl_request(), startup(V3_0, &APP)].concat());
    let first = client.read_byte();
    assert!(
        first.is_none() || first == Some(b'S') || first == Some(b'E'),
        "{first:?}"
    );
    if first != Some(b'E') {
        assert_eq!(client.read_byte(), None, "a session without a handshake");
    }
    // In the clear after an S it is no handshake.
    let mut client = Client::open(it.proxy.address());
    client.send(&ssl_request());
    assert_eq!(client.read_byte(), Some(b'S'));
    client.send(&startup(V3_0, &APP));
    let heard: Vec<u8> = std::iter::from_fn(|| client.read_byte()).collect();
    assert!(!contains(&heard, "server_version"), "{heard:?}");
    it.proxy.client().query("SELECT 1").ok();
}
