//! What passes and what is refused, one command at a time.

use redis::Value;

use crate::client::{bulk, code, error, ok};
use crate::stack::{JOBS, Proxy, Redis, Setup, sign};

struct World {
    redis: Redis,
    proxy: Proxy,
    _dir: tempfile::TempDir,
}

fn world(with: impl FnOnce(Setup) -> Setup) -> World {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let proxy = Proxy::start(dir.path(), &with(Setup::new(redis.address)));
    World {
        redis,
        proxy,
        _dir: dir,
    }
}

#[test]
fn the_holder_writes_and_a_stale_one_is_refused_on_writes_and_reads() {
    let world = world(|setup| setup);
    let mut old = world.proxy.holder(33);
    assert_eq!(old.call(&["SET", "job:1:a", "old"]), ok());
    let mut new = world.proxy.holder(34);
    let refused = old.call(&["SET", "job:1:a", "late"]);
    assert_eq!(code(&refused), "FENCED");
    let text = error(&refused);
    for fact in [
        "lock=\"job/1\"",
        "token=33",
        "watermark=34",
        "outcome=not-applied",
    ] {
        assert!(text.contains(fact), "{text}");
    }
    assert_eq!(code(&old.call(&["GET", "job:1:a"])), "FENCED");
    assert_eq!(new.call(&["GET", "job:1:a"]), bulk("old"));
    assert_eq!(new.call(&["SET", "job:1:a", "new"]), ok());
    assert_eq!(world.redis.client().call(&["GET", "job:1:a"]), bulk("new"));
    // The connection stays usable.
    assert_eq!(old.call(&["PING"]), Value::SimpleString("PONG".to_owned()));
    assert_eq!(old.call(&["FENCE", "CLEAR"]), ok());
    assert_eq!(old.call(&["GET", "job:1:a"]), bulk("new"));
}

#[test]
fn a_stale_refusal_is_audited_with_its_holder() {
    let world = world(|setup| setup);
    let stale = world.proxy.ticket(5);
    let mut old = world.proxy.holder(5);
    world.proxy.holder(6);
    let user = format!("default;fence={stale}");
    for (operation, command) in [
        // By the connection's ticket, by one for the command, by one that is to be bound.
        ("set", &["SET", "job:1:a", "x"][..]),
        ("get", &["GET", "job:1:a"]),
        ("incr", &["FENCE", "WITH", &stale, "INCR", "job:1:n"]),
        ("fence", &["FENCE", "SET", &stale]),
        ("auth", &["AUTH", &user, "pw"]),
    ] {
        assert_eq!(code(&old.call(command)), "FENCED", "{command:?}");
        let line = world.proxy.audited("stale", operation);
        assert_eq!(line["holder"], "test", "{line}");
        assert_eq!(
            (&line["token"], &line["watermark"]),
            (&"5".into(), &"6".into()),
            "{line}"
        );
    }
}

#[test]
fn a_stale_ticket_cannot_be_bound_and_leaves_none_bound() {
    let world = world(|setup| setup);
    let mut client = world.proxy.holder(5);
    world.proxy.holder(6);
    let stale = world.proxy.ticket(5);
    assert_eq!(code(&client.call(&["FENCE", "SET", &stale])), "FENCED");
    assert_eq!(code(&client.call(&["SET", "job:1:a", "x"])), "NOFENCE");
}

#[test]
fn without_a_ticket_guarded_writes_are_refused_and_the_rest_passes() {
    let world = world(|setup| setup);
    let mut client = world.proxy.client();
    let refused = client.call(&["SET", "job:1:a", "x"]);
    assert_eq!(code(&refused), "NOFENCE");
    assert!(error(&refused).contains("lock=\"job/1\""));
    assert_eq!(client.call(&["SET", "other", "x"]), ok());
    assert_eq!(client.call(&["GET", "job:1:a"]), Value::Nil);
    assert_eq!(code(&client.call(&["FLUSHALL"])), "FENCEUNCLASS");
    assert_eq!(client.call(&["GET", "other"]), bulk("x"));
}

#[test]
fn what_no_rule_covers_is_refused_where_the_listener_says_so() {
    let world = world(|setup| setup.with("unmatched = \"reject\""));
    let mut client = world.proxy.client();
    assert_eq!(code(&client.call(&["SET", "other", "x"])), "FENCEUNCLASS");
    assert_eq!(client.call(&["GET", "other"]), Value::Nil);
}

#[test]
fn forged_and_malformed_tickets_are_invalid() {
    let world = world(|setup| setup);
    let mut client = world.proxy.client();
    let stranger = ringfence::ticket::SigningKey::generate();
    let forged = sign(&stranger, "job/1", 1);
    for ticket in [forged.as_str(), "7", "", "v4.public.AAAA"] {
        let refused = client.call(&["FENCE", "SET", ticket]);
        assert_eq!(code(&refused), "BADFENCE", "{ticket:?}");
    }
    assert_eq!(code(&client.call(&["FENCE", "NONSENSE"])), "BADFENCE");
    assert_eq!(code(&client.call(&["SET", "job:1:a", "x"])), "NOFENCE");
}

#[test]
fn a_ticket_for_one_command_says_nothing_about_the_next() {
    let world = world(|setup| setup);
    let mut client = world.proxy.client();
    let ticket = world.proxy.ticket(9);
    let set = ["FENCE", "WITH", &ticket, "SET", "job:1:a", "x"];
    assert_eq!(client.call(&set), ok());
    assert_eq!(code(&client.call(&["SET", "job:1:a", "y"])), "NOFENCE");
    assert_eq!(client.call(&["GET", "job:1:a"]), bulk("x"));
    world.proxy.holder(10);
    assert_eq!(code(&client.call(&set)), "FENCED");
}

#[test]
fn a_command_on_two_locks_needs_both_tickets() {
    let world = world(|setup| setup);
    let mut client = world.proxy.client();
    let (one, two) = (world.proxy.ticket(3), sign(&world.proxy.key, "job/2", 8));
    assert_eq!(client.call(&["FENCE", "SET", &one]), ok());
    let both = ["MSET", "job:1:a", "x", "job:2:a", "y"];
    let refused = client.call(&both);
    assert_eq!(code(&refused), "NOFENCE");
    assert!(error(&refused).contains("lock=\"job/2\""));
    assert_eq!(client.call(&["FENCE", "SET", &one, &two]), ok());
    assert_eq!(client.call(&both), ok());
    let status = client.call(&["FENCE", "STATUS"]);
    let expected = ["job/1", "3", "job/2", "8"].map(bulk).to_vec();
    assert_eq!(status, Value::Array(expected));
}

#[test]
fn bare_tokens_pass_where_the_listener_takes_them() {
    let world = world(|setup| setup.with("trust = \"unsigned\""));
    let mut old = world.proxy.client();
    assert_eq!(old.call(&["FENCE", "SET", "7"]), ok());
    assert_eq!(old.call(&["SET", "job:1:a", "x"]), ok());
    assert_eq!(old.call(&["SET", "job:2:a", "x"]), ok());
    assert_eq!(
        code(&old.call(&["MSET", "job:1:a", "x", "job:2:a", "y"])),
        "BADFENCE"
    );
    let mut new = world.proxy.client();
    assert_eq!(
        new.call(&["FENCE", "WITH", "8", "GET", "job:1:a"]),
        bulk("x")
    );
    assert_eq!(code(&old.call(&["SET", "job:1:a", "y"])), "FENCED");
    // Another lock has another watermark.
    assert_eq!(old.call(&["SET", "job:2:a", "y"]), ok());
    assert_eq!(code(&new.call(&["FENCE", "SET", "0"])), "BADFENCE");
}

#[test]
fn auth_carries_a_ticket() {
    let world = world(|setup| setup);
    let mut admin = world.redis.client();
    let user = [
        "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all",
    ];
    assert_eq!(admin.call(&user), ok());
    let mut client = world.proxy.client();
    let name = format!("app;fence={}", world.proxy.ticket(4));
    // A failed AUTH binds nothing.
    assert_eq!(code(&client.call(&["AUTH", &name, "wrong"])), "WRONGPASS");
    assert_eq!(code(&client.call(&["SET", "job:1:a", "x"])), "NOFENCE");
    assert_eq!(client.call(&["AUTH", &name, "secret"]), ok());
    assert_eq!(client.call(&["SET", "job:1:a", "x"]), ok());
    assert_eq!(client.call(&["ACL", "WHOAMI"]), bulk("app"));
    assert_eq!(
        client.call(&["RESET"]),
        Value::SimpleString("RESET".to_owned())
    );
    assert_eq!(code(&client.call(&["SET", "job:1:a", "x"])), "NOFENCE");
}

#[test]
fn observe_mode_forwards_what_enforce_would_refuse() {
    let world = world(|setup| setup.with("mode = \"observe\""));
    let mut client = world.proxy.client();
    assert_eq!(client.call(&["SET", "job:1:a", "x"]), ok());
    assert_eq!(client.call(&["FENCE", "SET", &world.proxy.ticket(5)]), ok());
    assert_eq!(client.call(&["FENCE", "SET", &world.proxy.ticket(4)]), ok());
    assert_eq!(client.call(&["SET", "job:1:a", "y"]), ok());
    assert_eq!(client.call(&["GET", "job:1:a"]), bulk("y"));
    assert_eq!(client.call(&["FENCE", "SET", "nonsense"]), ok());
}

#[test]
fn a_control_user_without_the_rights_is_told_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let mut admin = redis.client();
    let poor = [
        "ACL",
        "SETUSER",
        "ringfence",
        "on",
        ">pw",
        "+info",
        "+client|id",
    ];
    assert_eq!(admin.call(&poor), ok());
    let file = dir.path().join("password");
    std::fs::write(&file, "pw\n").unwrap();
    let control =
        format!("{JOBS}[listener.control]\nuser = \"ringfence\"\npassword_file = {file:?}\n");
    let setup = Setup::new(redis.address).with_rules(&control);
    let said = Proxy::refuses_to_start(dir.path(), &setup);
    assert!(said.contains("client|kill"), "{said}");
    assert!(said.contains("ACL SETUSER"), "{said}");
    let rights = [
        "ACL",
        "SETUSER",
        "ringfence",
        "+info",
        "+command",
        "+client|id",
        "+client|kill",
        "+client|list",
        "+reset",
    ];
    assert_eq!(admin.call(&rights), ok());
    let proxy = Proxy::start(dir.path(), &setup);
    assert_eq!(proxy.holder(1).call(&["SET", "job:1:a", "x"]), ok());
}
