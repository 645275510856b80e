//! Clients that wait, and clients that others wait for.

use redis::Value;

use super::{all, world};
use crate::client::{bulk, encode, ok};
use crate::revoked::wait_until_blocked;
use crate::stack::{eventually, sign};

#[test]
fn a_blocked_command_holds_back_no_reply_and_a_script_wakes_it() {
    let world = world();
    let mut direct = world.redis.client();
    let push = "redis.call('RPUSH', KEYS[1], ARGV[1]); return redis.call('LLEN', KEYS[1])";
    for blocks in [
        &["BRPOPLPUSH", "job:1:wait", "job:1:active", "0"][..],
        &["BLMOVE", "job:1:wait", "job:1:active", "LEFT", "LEFT", "0"],
    ] {
        let mut worker = world.proxy.holder(1);
        worker.send_bytes(&all(&[
            &["SET", "job:1:a", "x"],
            &["GET", "job:1:a"],
            blocks,
        ]));
        // Before anything wakes it.
        assert_eq!(worker.read(), ok());
        assert_eq!(worker.read(), bulk("x"));
        wait_until_blocked(&mut direct, "1");
        let mut producer = world.proxy.holder(1);
        let pushed = producer.call(&["EVAL", push, "1", "job:1:wait", "job"]);
        assert_eq!(pushed, Value::Int(1));
        assert_eq!(worker.read(), bulk("job"));
        wait_until_blocked(&mut direct, "0");
    }
}

#[test]
fn a_client_that_reads_nothing_of_its_exec_stops_nobody() {
    let world = world();
    let mut direct = world.redis.client();
    let large = "x".repeat(4 << 20);
    assert_eq!(direct.call(&["SET", "job:1:large", &large]), ok());
    let mut silent = world.proxy.holder(1);
    let mut commands: Vec<&[&str]> = vec![&["MULTI"], &["INCR", "job:1:n"]];
    commands.resize(18, &["GET", "job:1:large"]);
    commands.push(&["EXEC"]);
    silent.send_bytes(&all(&commands));
    eventually("the transaction", || {
        direct.call(&["GET", "job:1:n"]) == bulk("1")
    });
    // Holders of the same token and of another lock go on.
    let mut other = world.proxy.client();
    let ticket = sign(&world.proxy.key, "job/2", 1);
    assert_eq!(other.call(&["FENCE", "SET", &ticket]), ok());
    for (mut client, key) in [(world.proxy.holder(1), "job:1:m"), (other, "job:2:m")] {
        client.send_bytes(&all(&[&["MULTI"], &["INCR", key], &["EXEC"]]));
        assert_eq!(client.read(), ok());
        client.read();
        assert_eq!(client.read(), Value::Array(vec![Value::Int(1)]));
    }
    // A newer holder comes, and nothing of the older one is run after that.
    let mut newer = world.proxy.holder(2);
    assert!(silent.try_send_bytes(&encode(&["INCR", "job:1:n"])));
    assert_eq!(newer.call(&["INCR", "job:1:n"]), Value::Int(2));
    drop(silent);
    assert_eq!(newer.call(&["INCR", "job:1:n"]), Value::Int(3));
}
