//! Malformed requests, tickets, lock names and configurations: each is refused with an error that
//! says what was wrong. Nothing here opens a socket; the same requests on the wire have their own
//! tests.

use ringfence::config::{LockdConfig, ProxyConfig};
use ringfence::lock_name::{LockName, LockPattern};
use ringfence::protocol::http::{HttpRule, HttpRules};
use ringfence::protocol::s3::{S3Rule, S3Rules};
use ringfence::protocol::{Classified, Code, Fields, Head, Listener, Refusal, Unmatched};
use ringfence::ticket::{Action, InvalidTicket, KeyRing, Order, SealScope, SigningKey, Ticket};
use ringfence::token::Token;

fn http() -> Listener {
    let rule = HttpRule::new("/v1/accounts/{id}/**", "account/{id}").unwrap();
    Listener::Http(HttpRules::new(vec![rule], Unmatched::Pass))
}

fn s3() -> Listener {
    let rule = S3Rule::new("data", Some("in/{day}/*"), "day/{day}").unwrap();
    Listener::S3(S3Rules::new(
        vec![rule],
        &["s3.example.com"],
        Unmatched::Pass,
    ))
}

/// The whole way of a request: head, and body where it is asked for.
fn refusal(
    listener: &Listener,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<Refusal> {
    let headers: Vec<(&str, &[u8])> = headers
        .iter()
        .map(|(name, value)| (*name, value.as_bytes()))
        .collect();
    let head = Head {
        method,
        target: target.as_bytes(),
        authority: None,
        headers: Fields::Pairs(&headers),
    };
    match listener.classify(&head) {
        Err(refusal) => Some(refusal),
        Ok(Classified::Ready(_)) => None,
        Ok(Classified::NeedsBody(pending)) => {
            listener.classify_body(pending, body.as_bytes()).err()
        }
    }
}

type Headers = &'static [(&'static str, &'static str)];

/// Method, target, headers, code, a part of the detail.
const HTTP_REQUESTS: &[(&str, &str, Headers, Code, &str)] = &[
    ("PU T", "/", &[], Code::Invalid, "the method is not a token"),
    ("", "/", &[], Code::Invalid, "the method is not a token"),
    ("PUT", "", &[], Code::Invalid, "target is not a path"),
    ("PUT", "v1", &[], Code::Invalid, "target is not a path"),
    (
        "PUT",
        "ftp://h/",
        &[],
        Code::Invalid,
        "target is not a path",
    ),
    (
        "PUT",
        "/a b",
        &[],
        Code::Invalid,
        "has a space, a control character or a fragment",
    ),
    (
        "PUT",
        "/a#b",
        &[],
        Code::Invalid,
        "has a space, a control character or a fragment",
    ),
    (
        "PUT",
        "/a\r\nx: y",
        &[],
        Code::Invalid,
        "has a space, a control character or a fragment",
    ),
    (
        "PUT",
        "/",
        &[("a b", "")],
        Code::Invalid,
        "a header's name is not a token",
    ),
    (
        "PUT",
        "/",
        &[("a\0", "")],
        Code::Invalid,
        "a header's name is not a token",
    ),
    (
        "PUT",
        "/",
        &[("a", "b\r\n c")],
        Code::Invalid,
        "`a` has a line break or NUL in its value",
    ),
    (
        "PUT",
        "/",
        &[("a", "b\0")],
        Code::Invalid,
        "`a` has a line break or NUL in its value",
    ),
    (
        "PUT",
        "/",
        &[("host", "a"), ("host", "a")],
        Code::Invalid,
        "host is given more than once",
    ),
    (
        "PUT",
        "/",
        &[("content-length", "x")],
        Code::Invalid,
        "content-length is not a number",
    ),
    (
        "PUT",
        "/",
        &[("content-length", "-1")],
        Code::Invalid,
        "content-length is not a number",
    ),
    (
        "PUT",
        "/",
        &[("content-length", "1"), ("content-length", "2")],
        Code::Invalid,
        "content-length is given more than once",
    ),
    (
        "PUT",
        "/",
        &[("content-length", "1"), ("transfer-encoding", "chunked")],
        Code::Invalid,
        "both content-length and transfer-encoding",
    ),
    (
        "PUT",
        "/",
        &[("transfer-encoding", "gzip")],
        Code::Invalid,
        "not exactly `chunked`",
    ),
    (
        "PUT",
        "/",
        &[("transfer-encoding", "chunked, x")],
        Code::Invalid,
        "not exactly `chunked`",
    ),
    (
        "PUT",
        "/",
        &[("connection", "content-length")],
        Code::Invalid,
        "connection names the header",
    ),
    (
        "PUT",
        "/",
        &[("fencing-token", "")],
        Code::Invalid,
        "an empty ticket",
    ),
    (
        "PUT",
        "/",
        &[("fencing-token", "a,,b")],
        Code::Invalid,
        "an empty ticket",
    ),
    (
        "PUT",
        "/",
        &[("fencing-token", "a b")],
        Code::Invalid,
        "a byte that no ticket has",
    ),
    (
        "PUT",
        "/",
        &[("fencing-token", "ü")],
        Code::Invalid,
        "a byte that no ticket has",
    ),
    (
        "PUT",
        "/",
        &[("fencing-token", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17")],
        Code::Invalid,
        "more than 16 tickets",
    ),
    (
        "PUT",
        "/",
        &[("fencing-token", "a"), ("Fencing-Token", "b")],
        Code::Invalid,
        "fencing-token is given more than once",
    ),
    (
        "PUT",
        "/",
        &[("Fencing_Token", "a")],
        Code::Invalid,
        "spelled `Fencing-Token`",
    ),
    (
        "PUT",
        "/",
        &[("trailer", "fencing-token")],
        Code::Invalid,
        "cannot travel in a trailer",
    ),
    (
        "PUT",
        "/",
        &[("connection", "Fencing-Token")],
        Code::Invalid,
        "connection names the header",
    ),
    (
        "CONNECT",
        "/",
        &[],
        Code::Unclassified,
        "a tunnel or an upgrade",
    ),
    (
        "GET",
        "/",
        &[("upgrade", "websocket")],
        Code::Unclassified,
        "a tunnel or an upgrade",
    ),
    (
        "PUT",
        "/v1/accounts/%2e%2e/x",
        &[],
        Code::Unclassified,
        "can be read in two ways",
    ),
    (
        "PUT",
        "/x/../v1/accounts/7",
        &[],
        Code::Unclassified,
        "can be read in two ways",
    ),
    (
        "PUT",
        "/v1%2Faccounts/7",
        &[],
        Code::Unclassified,
        "can be read in two ways",
    ),
    (
        "PUT",
        "/v1/accounts/%zz",
        &[],
        Code::Unclassified,
        "can be read in two ways",
    ),
    (
        "PUT",
        "/v1/accounts/%00",
        &[],
        Code::Unclassified,
        "can be read in two ways",
    ),
    (
        "PUT",
        "/v1/accounts/%c0%ae",
        &[],
        Code::Unclassified,
        "can be read in two ways",
    ),
    (
        "PUT",
        "/v1/accounts/7\\8",
        &[],
        Code::Unclassified,
        "can be read in two ways",
    ),
];

/// Method, target, headers, body, code, a part of the detail.
const S3_REQUESTS: &[(&str, &str, Headers, &str, Code, &str)] = &[
    (
        "PUT",
        "/data/in//x",
        &[],
        "",
        Code::Unclassified,
        "can be read in two ways",
    ),
    (
        "PUT",
        "//data/in/7/x",
        &[],
        "",
        Code::Unclassified,
        "can be read in two ways",
    ),
    (
        "PUT",
        "/data/in/7/../../x",
        &[],
        "",
        Code::Unclassified,
        "can be read in two ways",
    ),
    (
        "PUT",
        "/data%2Fin/7/x",
        &[],
        "",
        Code::Unclassified,
        "can be read in two ways",
    ),
    (
        "PUT",
        "/data/in/%ff/x",
        &[],
        "",
        Code::Unclassified,
        "can be read in two ways",
    ),
    (
        "DELETE",
        "/data",
        &[],
        "",
        Code::Unclassified,
        "it writes to the whole bucket",
    ),
    (
        "PUT",
        "/data/in/7/x?unheard-of",
        &[],
        "",
        Code::Unclassified,
        "writes to the whole bucket",
    ),
    (
        "POST",
        "/data",
        &[("content-type", "multipart/form-data; boundary=x")],
        "",
        Code::Unclassified,
        "its key is in a form's field",
    ),
    (
        "POST",
        "/data?delete",
        &[],
        "",
        Code::Unclassified,
        "body of DeleteObjects cannot be read",
    ),
    (
        "POST",
        "/data?delete",
        &[],
        "<Delete/>",
        Code::Unclassified,
        "cannot be read",
    ),
    (
        "POST",
        "/data?delete",
        &[],
        "<Delete></Delete>",
        Code::Unclassified,
        "it names no key",
    ),
    (
        "POST",
        "/data?delete",
        &[],
        "<!DOCTYPE a [<!ENTITY b \"in\">]><Delete><Object><Key>&b;</Key></Object></Delete>",
        Code::Unclassified,
        "it holds what DeleteObjects does not have",
    ),
    (
        "PUT",
        "/data/in/7/x",
        &[
            ("host", "a.s3.example.com"),
            (
                "authorization",
                "AWS4-HMAC-SHA256 SignedHeaders=fencing-token",
            ),
        ],
        "",
        Code::Invalid,
        "add it after signing",
    ),
    (
        "PUT",
        "http://a.s3.example.com/in/7/x",
        &[("host", "b.s3.example.com")],
        "",
        Code::Invalid,
        "names two different hosts",
    ),
    (
        "PUT",
        "/in/7/x",
        &[("host", "data.elsewhere")],
        "",
        Code::Unclassified,
        "in two ways",
    ),
];

#[test]
fn malformed_requests_are_refused() {
    for (method, target, headers, code, part) in HTTP_REQUESTS {
        let refusal = refusal(&http(), method, target, headers, "")
            .unwrap_or_else(|| panic!("{method} {target} {headers:?} was taken"));
        assert_eq!(
            refusal.code, *code,
            "{method} {target} {headers:?}: {}",
            refusal.detail
        );
        assert!(
            refusal.detail.contains(part),
            "{part:?} is not in {:?}",
            refusal.detail
        );
    }
    for (method, target, headers, body, code, part) in S3_REQUESTS {
        let refusal = refusal(&s3(), method, target, headers, body)
            .unwrap_or_else(|| panic!("{method} {target} {headers:?} was taken"));
        assert_eq!(
            refusal.code, *code,
            "{method} {target} {headers:?}: {}",
            refusal.detail
        );
        assert!(
            refusal.detail.contains(part),
            "{part:?} is not in {:?}",
            refusal.detail
        );
    }
}

/// The sound neighbour of each group above passes: the tables refuse for the reason they name.
#[test]
fn their_sound_neighbours_pass() {
    let headers = [
        ("host", "h"),
        ("content-length", "1"),
        ("Fencing-Token", "a, b"),
    ];
    for target in [
        "/v1/accounts/7",
        "/v1/accounts/7/x%2Fy",
        "http://h/v1/accounts/7",
        "/v2/%zz",
    ] {
        assert_eq!(
            refusal(&http(), "PUT", target, &headers, ""),
            None,
            "{target}"
        );
    }
    let chunked = [("transfer-encoding", "chunked")];
    assert_eq!(refusal(&http(), "PUT", "/", &chunked, ""), None);
    let body = "<Delete><Object><Key>in/7/x</Key></Object></Delete>";
    for (method, target) in [
        ("PUT", "/data/in/7/x"),
        ("DELETE", "/b"),
        ("POST", "/data?delete"),
    ] {
        assert_eq!(
            refusal(&s3(), method, target, &[], body),
            None,
            "{method} {target}"
        );
    }
}

#[test]
fn no_refusal_repeats_a_ticket_or_breaks_its_own_document() {
    let ticket = "v4.public.secret\u{ff}";
    let refusal = refusal(&http(), "PUT", "/", &[("fencing-token", ticket)], "").unwrap();
    assert!(!refusal.detail.contains("secret"));
    for listener in [http(), s3()] {
        let reply = listener.refusal_reply(&refusal, b"/\xff\x00<&>?x");
        let length = reply
            .headers
            .iter()
            .find(|(name, _)| *name == "content-length")
            .unwrap();
        assert_eq!(length.1, reply.body.len().to_string());
        assert_eq!(reply.status, 400);
        assert!(std::str::from_utf8(&reply.body).is_ok_and(|body| !body.contains('\0')));
    }
}

fn ticket() -> Ticket {
    Ticket {
        lock: LockName::new("account/7").unwrap(),
        token: Token::new(7).unwrap(),
        holder: "h".to_owned(),
        session: "s".to_owned(),
        issued_unix_ms: 1,
        seal: SealScope::BestEffort(vec![]),
    }
}

#[test]
fn malformed_and_forged_tickets_are_refused() {
    let (ours, theirs) = (SigningKey::generate(), SigningKey::generate());
    let ring = KeyRing::new([ours.verifying().clone()]);
    let good = ours.sign_ticket(&ticket());
    assert_eq!(ring.verify_ticket(&good), Ok(ticket()));

    let order = Order {
        action: Action::Seal,
        lock: ticket().lock,
        token: Token::MAX,
    };
    // Another key's envelope that claims to be of ours.
    let foreign = theirs.sign_ticket(&ticket());
    let footer = good.rsplit_once('.').unwrap().1;
    let claimed = format!("{}.{footer}", foreign.rsplit_once('.').unwrap().0);
    let cases = [
        (String::new(), "not a ticket"),
        (u64::MAX.to_string(), "not a ticket"),
        ("0".to_owned(), "not a ticket"),
        ("v4.public.".to_owned(), "not a ticket"),
        ("v4.public.ü".to_owned(), "not a ticket"),
        ("v4.local.AAAA.AAAA".to_owned(), "not a ticket"),
        (good.replacen("v4", "v3", 1), "not a ticket"),
        (good.rsplit_once('.').unwrap().0.to_owned(), "not a ticket"),
        (
            "eyJhbGciOiJub25lIn0.eyJ0b2tlbiI6IjkifQ.".to_owned(),
            "not a ticket",
        ),
        (good[..good.len() / 2].to_owned(), "not a ticket"),
        ("x".repeat(4097), "ticket is longer than 4096 bytes"),
        (foreign, "signed by an unknown key"),
        (claimed, "signature does not verify"),
        (ours.sign_order(&order), "signature does not verify"),
    ];
    for (envelope, part) in cases {
        let error = ring
            .verify_ticket(&envelope)
            .expect_err(&envelope)
            .to_string();
        assert!(
            error.contains(part),
            "{part:?} is not in {error:?} for {envelope:?}"
        );
    }
    assert!(matches!(
        KeyRing::default().verify_ticket(&good),
        Err(InvalidTicket::UnknownKey { .. })
    ));
}

#[test]
fn texts_that_are_no_token_are_refused() {
    let max = u64::MAX.to_string();
    for bad in [
        "",
        "0",
        "00",
        "01",
        "-1",
        "+1",
        "1.0",
        "1e3",
        "0x1",
        " 1",
        "9223372036854775808",
        &max,
    ] {
        let error = bad.parse::<Token>().expect_err(bad).to_string();
        assert!(error.contains(&format!("`{bad}`")), "{error}");
    }
    assert_eq!("9223372036854775807".parse(), Ok(Token::MAX));
}

#[test]
fn texts_that_are_no_lock_name_are_refused() {
    let long = "x".repeat(256);
    for (bad, part) in [
        ("", "it is empty"),
        ("/a", "it has an empty segment"),
        ("a/", "it has an empty segment"),
        ("a//b", "it has an empty segment"),
        (".", "it has a `.` or `..` segment"),
        ("a/..", "it has a `.` or `..` segment"),
        ("a\nb", "it has a control character"),
        ("a\0", "it has a control character"),
        ("a\u{85}", "it has a control character"),
        (&long, "it is longer than 255 bytes"),
    ] {
        let error = LockName::new(bad).expect_err(bad).to_string();
        assert!(error.contains(part), "{error}");
    }
    for (bad, part) in [
        ("a/**/b", "`**` is not its last segment"),
        ("a/x*", "`*` shares a segment"),
        ("", "it is empty"),
    ] {
        let error = LockPattern::new(bad).expect_err(bad).to_string();
        assert!(error.contains(part), "{error}");
    }
}

const PROXY: &str = r#"
instance = "edge-1"
data_dir = "d"
[tickets]
lockd = "http://127.0.0.1:7420"
[[listener]]
name = "a"
protocol = "http"
listen = "127.0.0.1:7480"
upstream = "127.0.0.1:80"
[[listener.rule]]
lock = "a/{x}"
path = "/{x}/**"
"#;

/// What is replaced in the file, by what, and the error.
const PROXY_FILES: &[(&str, &str, &str)] = &[
    ("instance = \"edge-1\"", "instance =", "line 2: not TOML"),
    ("[tickets]", "[tickets", "line 4: not TOML"),
    ("instance = \"edge-1\"", "", "`instance` is missing"),
    ("data_dir = \"d\"", "", "`data_dir` is missing"),
    (
        "\"edge-1\"",
        "\"\"",
        "line 2: `instance` is \"\": a name has 1 to 64",
    ),
    (
        "\"edge-1\"",
        "\"../x\"",
        "line 2: `instance` is \"../x\": a name has",
    ),
    (
        "data_dir = \"d\"",
        "data_dir = 1",
        "line 3: `data_dir` is 1: expected a folder",
    ),
    (
        "data_dir",
        "datadir",
        "line 3: unknown key `datadir`: did you mean `data_dir`?",
    ),
    (
        "[tickets]",
        "[ticket]",
        "line 4: unknown key `ticket`: did you mean `tickets`?",
    ),
    (
        "lockd =",
        "lokd =",
        "line 5: unknown key `tickets.lokd`: did you mean `lockd`?",
    ),
    (
        "http://127.0.0.1:7420",
        "127.0.0.1:7420",
        "line 5: `tickets.lockd` is \"127.0.0.1:7420\"",
    ),
    (
        "http://127.0.0.1:7420",
        "https://a:1",
        "https is not supported by this version yet",
    ),
    ("lockd =", "keys = \"k\"\nlockd =", "exclude each other"),
    (
        "[tickets]",
        "[watermarks]\nstore = \"etcd\"\n[tickets]",
        "not supported by this version yet",
    ),
    (
        "[tickets]",
        "[watermarks]\nstore = \"x\"\n[tickets]",
        "line 5: `watermarks.store` is \"x\"",
    ),
    (
        "[tickets]",
        "admin = \"x\"\n[tickets]",
        "line 4: `admin` is \"x\": expected [admin]",
    ),
    (
        "[tickets]",
        "[audit]\nfiles_max = 0\n[tickets]",
        "from 1 to 100000",
    ),
    (
        "[[listener]]",
        "[listener]",
        "line 6: `listener` is a table: expected [[listener]]",
    ),
    ("name = \"a\"", "", "line 6: `listener.name` is missing"),
    (
        "\"http\"",
        "\"postgres\"",
        if cfg!(feature = "postgres") {
            "`listener.control` is missing"
        } else {
            "line 8: `listener.protocol` is \"postgres\": this program was built without it"
        },
    ),
    ("\"http\"", "\"redis\"", "`listener.rule.key` is missing"),
    ("\"http\"", "\"etcd\"", "`listener.rule.key` is missing"),
    (
        "\"http\"",
        "\"htp\"",
        "line 8: `listener.protocol` is \"htp\": expected \"http\", \"s3\", \"redis\", \"postgres\" or \"etcd\"",
    ),
    (
        "127.0.0.1:7480",
        "127.0.0.1:65536",
        "line 9: `listener.listen` is \"127.0.0.1:65536\"",
    ),
    (
        "127.0.0.1:7480",
        "localhost:7480",
        "expected an IP address and a port",
    ),
    (
        "127.0.0.1:7480",
        "127.0.0.1",
        "expected an IP address and a port",
    ),
    (
        "127.0.0.1:7480",
        "0.0.0.0:7431",
        "which is the admin port's",
    ),
    ("127.0.0.1:80", "http://127.0.0.1:80", "expected host:port"),
    ("127.0.0.1:80", "127.0.0.1:0", "expected host:port"),
    ("127.0.0.1:80", "a b:80", "expected host:port"),
    (
        "name = \"a\"",
        "name = \"a\"\ntrust = \"no\"",
        "expected one of \"signed\", \"unsigned\"",
    ),
    (
        "name = \"a\"",
        "name = \"a\"\nmode = true",
        "`listener.mode` is true: expected one of",
    ),
    (
        "name = \"a\"",
        "name = \"a\"\nunmatched = \"\"",
        "expected one of \"pass\", \"reject\"",
    ),
    (
        "name = \"a\"",
        "name = \"a\"\nin_doubt_hold = 30",
        "`listener.in_doubt_hold` is 30: expected a duration",
    ),
    (
        "name = \"a\"",
        "name = \"a\"\nin_doubt_hold = \"30\"",
        "expected a duration such as \"500ms\"",
    ),
    (
        "name = \"a\"",
        "name = \"a\"\nadmit_deadline = \"0s\"",
        "from 1ms to 3600s",
    ),
    (
        "name = \"a\"",
        "name = \"a\"\ntruncated_body = \"x\"",
        "one of \"held\", \"discarded\"",
    ),
    (
        "name = \"a\"",
        "name = \"a\"\nvirtual_hosts = [\"s3\"]",
        "belongs to protocol = \"s3\"",
    ),
    (
        "name = \"a\"",
        "name = \"a\"\nvirtual_hosts = \"s3\"",
        "expected a list of texts",
    ),
    (
        "name = \"a\"",
        "name = \"a\"\nlimits = { head_bytes_max = 1 }",
        "from 8192 to 1048576",
    ),
    (
        "name = \"a\"",
        "name = \"a\"\nlimits = { head_bytes = 1 }",
        "did you mean `head_bytes_max`?",
    ),
    (
        "lock = \"a/{x}\"",
        "",
        "line 11: `listener.rule.lock` is missing",
    ),
    (
        "lock = \"a/{x}\"",
        "lock = \"a//{x}\"",
        "line 12: invalid lock \"a//{x}\": it has an empty segment",
    ),
    (
        "lock = \"a/{x}\"",
        "lock = \"a/{y}\"",
        "no pattern of the rule captures `{y}`",
    ),
    (
        "lock = \"a/{x}\"",
        "lock = \"a/*\"",
        "`*` has no place in it",
    ),
    ("path = \"/{x}/**\"", "", "`listener.rule.path` is missing"),
    (
        "path = \"/{x}/**\"",
        "path = \"{x}\"",
        "line 13: invalid path \"{x}\": it does not begin with `/`",
    ),
    (
        "path = \"/{x}/**\"",
        "path = \"/{x}/\"",
        "it has an empty segment, or ends in `/`",
    ),
    (
        "path = \"/{x}/**\"",
        "path = \"/{x}/%20\"",
        "patterns are written decoded",
    ),
    (
        "path = \"/{x}/**\"",
        "path = \"/{x}\"\nwrite_methods = [\"\"]",
        "invalid method \"\"",
    ),
    (
        "path = \"/{x}/**\"",
        "path = \"/{x}\"\ntable = \"t\"",
        "unknown key `listener.rule.table`",
    ),
];

#[test]
fn malformed_proxy_files_are_refused() {
    assert!(ProxyConfig::parse(PROXY).is_ok());
    for (that, this, part) in PROXY_FILES {
        assert!(PROXY.contains(that), "{that:?}");
        let told = ProxyConfig::parse(&PROXY.replacen(that, this, 1))
            .expect_err(this)
            .to_string();
        assert!(told.contains(part), "{part:?} is not in:\n{told}");
    }
    let told = ProxyConfig::parse("").unwrap_err().to_string();
    assert!(told.contains("no [[listener]] is given"), "{told}");
}

#[test]
fn malformed_lockd_files_are_refused() {
    for (text, part) in [
        (
            "listen = 7420",
            "line 1: `listen` is 7420: expected an address",
        ),
        (
            "listn = \"127.0.0.1:1\"",
            "line 1: unknown key `listn`: did you mean `listen`?",
        ),
        (
            "store = \"zookeeper\"",
            "expected one of \"embedded\", \"etcd\"",
        ),
        (
            "store = \"etcd\"",
            "needs the table [etcd] with its endpoints",
        ),
        ("session_ttl_min = \"1d\"", "expected a duration"),
        ("session_ttl_min = \"0s\"", "from 1s to 86400s"),
        (
            "[[seal]]\nmode = \"required\"",
            "line 1: `seal.pattern` is missing",
        ),
        (
            "[[seal]]\npattern = \"a\"\nmode = \"maybe\"",
            "line 3: `seal.mode` is \"maybe\"",
        ),
        ("[seal]\npattern = \"a\"", "expected [[seal]]"),
        ("a = 1\na = 2", "line 2: not TOML: duplicate key"),
    ] {
        let told = LockdConfig::parse(text).expect_err(text).to_string();
        assert!(told.contains(part), "{part:?} is not in:\n{told}");
    }
}

#[test]
fn files_that_cannot_be_read_and_keys_that_are_none_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.toml");
    let told = ProxyConfig::load(&missing).unwrap_err().to_string();
    assert!(told.contains("missing.toml: cannot be read"), "{told}");

    let key = SigningKey::generate();
    let keys = folder.path().join("keys");
    let told = |text: &str| {
        std::fs::write(&keys, text).unwrap();
        ringfence::config::read_key_file(&keys).map_err(|errors| errors.to_string())
    };
    let good = format!("# ours\n\n{}\n", key.verifying().to_text());
    assert!(!told(&good).unwrap().is_empty());
    assert!(told("# none\n").unwrap_err().contains("holds no key"));
    // A secret key in the wrong place is refused, and not repeated.
    let secret = key.to_secret_text();
    let error = told(&format!("\n{secret}\n")).unwrap_err();
    assert!(
        error.contains("line 2: not a public key") && !error.contains(&secret),
        "{error}"
    );
}
