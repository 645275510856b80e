//! Configurations and key files.

use ringfence::config::{LockdConfig, ProxyConfig};
use ringfence::ticket::SigningKey;

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
        ("session_ttl_min = \"1w\"", "expected a duration"),
        (
            "session_ttl_min = \"2h\"",
            "`session_ttl_max` (3600s) is below `session_ttl_min` (7200s)",
        ),
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
