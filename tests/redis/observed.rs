//! Observe mode: nothing is refused, delayed or ended, whatever it is; what enforce would refuse is
//! in the audit.

use std::io::Read as _;
use std::net::TcpStream;

use redis::Value;

use crate::client::{bulk, code, ok};
use crate::stack::{Proxy, Redis, Setup};

struct World {
    redis: Redis,
    proxy: Proxy,
    _dir: tempfile::TempDir,
}

fn world(with: impl FnOnce(Setup) -> Setup) -> World {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start_with(dir.path(), "redis", "enable-debug-command yes");
    let setup = with(Setup::new(redis.address)).with("mode = \"observe\"");
    let proxy = Proxy::start(dir.path(), &setup);
    World {
        redis,
        proxy,
        _dir: dir,
    }
}

#[test]
fn observe_mode_forwards_what_enforce_would_refuse() {
    let world = world(|setup| setup);
    let mut client = world.proxy.client();
    assert_eq!(client.call(&["SET", "job:1:a", "x"]), ok());
    assert_eq!(client.call(&["FENCE", "SET", &world.proxy.ticket(5)]), ok());
    assert_eq!(client.call(&["FENCE", "SET", &world.proxy.ticket(4)]), ok());
    assert_eq!(client.call(&["SET", "job:1:a", "y"]), ok());
    assert_eq!(client.call(&["GET", "job:1:a"]), bulk("y"));
    assert_eq!(client.call(&["FENCE", "SET", "nonsense"]), ok());
}

#[test]
fn denied_and_unclassified_commands_are_forwarded_and_audited() {
    let world = world(|setup| setup.with("unmatched = \"reject\""));
    let mut client = world.proxy.client();
    for (operation, command) in [
        ("debug", &["DEBUG", "SLEEP", "0"][..]),
        ("client|pause", &["CLIENT", "PAUSE", "0"]),
        ("flushall", &["FLUSHALL"]),
        ("set", &["SET", "uncovered", "x"]),
        ("set", &["SET", "job::a", "x"]),
    ] {
        assert_eq!(client.call(command), ok(), "{command:?}");
        let line = world.proxy.audited("unclassified", operation);
        assert_eq!(line["mode"], "observe", "{line}");
    }
    // In the server's own words where it refuses itself.
    assert_eq!(code(&client.call(&["NOSUCH"])), "ERR");
    assert_eq!(code(&client.call(&["MIGRATE", "h"])), "ERR");
    assert_eq!(
        client.call(&["EVAL", "return redis.call('SET', 'job:1:a', 1)", "0"]),
        ok()
    );
}

#[test]
fn transactions_run_whatever_is_in_them() {
    let world = world(|setup| setup);
    let mut client = world.proxy.client();
    let queued = Value::SimpleString("QUEUED".to_owned());
    assert_eq!(client.call(&["MULTI"]), ok());
    assert_eq!(client.call(&["SET", "job:1:a", "x"]), queued);
    assert_eq!(client.call(&["DEBUG", "SLEEP", "0"]), queued);
    let ticket = world.proxy.ticket(1);
    // The command in it is the server's; FENCE itself is the proxy's, and says what is wrong.
    assert_eq!(
        client.call(&["FENCE", "WITH", &ticket, "INCR", "n"]),
        queued
    );
    assert_eq!(code(&client.call(&["FENCE", "SET", &ticket])), "BADFENCE");
    let ran = Value::Array(vec![ok(), ok(), Value::Int(1)]);
    assert_eq!(client.call(&["EXEC"]), ran);
    world.proxy.audited("unclassified", "debug");
}

#[test]
fn malformed_tickets_are_taken_off_and_the_rest_is_the_servers() {
    let world = world(|setup| setup);
    let user = [
        "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all",
    ];
    assert_eq!(world.redis.client().call(&user), ok());
    let mut client = world.proxy.client();
    assert_eq!(client.call(&["AUTH", "app;fence=", "secret"]), ok());
    assert_eq!(client.call(&["ACL", "WHOAMI"]), bulk("app"));
    assert_eq!(code(&client.call(&["AUTH", "app;fence=x"])), "ERR");
    assert_eq!(
        client.call(&["FENCE", "WITH", "", "SET", "job:1:a", "x"]),
        ok()
    );
    assert_eq!(client.call(&["FENCE", "WITH", "x", "SELECT", "2"]), ok());
    assert_eq!(
        client.call(&["FENCE", "WITH", "x", "GET", "job:1:a"]),
        Value::Nil
    );
}

#[test]
fn a_long_command_passes_though_its_keys_are_not_told() {
    let world = world(|setup| setup);
    let mut client = world.proxy.client();
    let long = "x".repeat(2_000_000);
    assert_eq!(client.call(&["MSET", "u", &long, "job:1:a", "y"]), ok());
    assert_eq!(client.call(&["GET", "job:1:a"]), bulk("y"));
    world.proxy.audited("unclassified", "mset");
}

#[test]
fn another_protocol_passes_as_it_comes() {
    let world = world(|setup| setup);
    assert_eq!(world.redis.client().call(&["SET", "u", "x"]), ok());
    let mut replica = TcpStream::connect(world.proxy.address).unwrap();
    replica
        .set_read_timeout(Some(crate::stack::PATIENCE))
        .unwrap();
    std::io::Write::write_all(&mut replica, b"PSYNC ? -1\r\n").unwrap();
    // +FULLRESYNC, and then the dump: no reply of RESP.
    let mut seen = vec![];
    while !seen.windows(5).any(|window| window == b"REDIS") {
        let mut bytes = [0; 4096];
        let read = replica.read(&mut bytes).unwrap();
        assert!(read > 0, "it has ended");
        seen.extend_from_slice(&bytes[..read]);
    }
    assert!(seen.starts_with(b"+FULLRESYNC "));
    world.proxy.audited("unclassified", "psync");
    // What the server writes goes on to its replica.
    assert_eq!(world.redis.client().call(&["SET", "u2", "later"]), ok());
    while !seen.windows(5).any(|window| window == b"later") {
        let mut bytes = [0; 4096];
        let read = replica.read(&mut bytes).unwrap();
        assert!(read > 0, "it has ended");
        seen.extend_from_slice(&bytes[..read]);
    }
}
