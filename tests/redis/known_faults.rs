//! Faults that are publicly known of Redis proxies, and of servers that a proxy must live with:
//! each has a test of its own kind here, or where this list says.
//!
//! - twitter/twemproxy 19, 85: sizes near a multiple of the buffer's are lost:
//!   `values_near_the_edges_of_buffers_come_back`
//! - twitter/twemproxy 133: an unsupported command ends the connection:
//!   `a_refused_command_leaves_the_connection`
//! - twitter/twemproxy 149: an answer before the request's end shifts all later ones:
//!   `an_answer_before_the_end_of_its_request_shifts_none`
//! - twitter/twemproxy 169, 404: after an aborted pipeline others get its replies:
//!   `an_aborted_pipeline_answers_nobody_else`
//! - twitter/twemproxy 193, 353: pipelined commands run in another order:
//!   `a_pipeline_runs_in_its_order`
//! - twitter/twemproxy 332, 361, 500: MSET and MGET without their arguments crash or hang:
//!   `commands_without_their_arguments_are_answered`
//! - twitter/twemproxy 357: an empty key: `an_empty_key_is_a_key`
//! - twitter/twemproxy 487, 538: memory grows with every MSET:
//!   `memory_does_not_grow_with_requests`
//! - envoyproxy/envoy 23651, 26342: MULTI to EXEC in one write crashes:
//!   `a_transaction_in_one_write_passes`
//! - envoyproxy/envoy 17571: HELLO is refused in words that clients do not know:
//!   `hello_is_answered_in_the_servers_own_words`
//! - envoyproxy/envoy 40462, 10402: CLIENT SETNAME and SETINFO are unknown:
//!   `clients_name_themselves`
//! - envoyproxy/envoy 41201, dragonflydb/dragonfly 8243: `redis-cli --pipe` is out of step:
//!   `redis_cli_pipes`
//! - RedisLabs/redis-cluster-proxy 18, 48: a client that leaves a blocked command crashes it:
//!   `a_client_that_leaves_its_blocked_command_harms_nobody`
//! - RedisLabs/redis-cluster-proxy 21, 88, 94: requests that are cut between reads, and empty
//!   values, are misread: `requests_may_be_cut_anywhere`
//! - RedisLabs/redis-cluster-proxy 44: the reply after an error goes astray:
//!   `an_error_shifts_no_reply`
//! - RedisLabs/redis-cluster-proxy 49: PING within MULTI is answered at once:
//!   `within_a_transaction_the_proxy_answers_nothing_itself`
//! - RedisLabs/redis-cluster-proxy 79: binary values are cut:
//!   `values_near_the_edges_of_buffers_come_back`
//! - joyieldInc/predixy 9, 10: AUTH as an inline command is unknown:
//!   `auth_may_be_an_inline_command`
//! - joyieldInc/predixy 52: EXEC without its MULTI:
//!   `within_a_transaction_the_proxy_answers_nothing_itself`
//! - dragonflydb/dragonfly 4182, 5952: replies that the client reads late are lost, or time out:
//!   `replies_that_are_read_late_are_all_there`
//! - dragonflydb/dragonfly 6738: what is due before a blocked command waits with it, and a script
//!   wakes nobody: `a_blocked_command_holds_back_no_reply_and_a_script_wakes_it`
//! - dragonflydb/dragonfly 7272: a client that reads nothing of its EXEC stops all transactions:
//!   `a_client_that_reads_nothing_of_its_exec_stops_nobody`
//! - dragonflydb/dragonfly 7650: pipelined blocking pops lose their replies:
//!   `every_pipelined_blocking_pop_is_answered`
//! - dragonflydb/dragonfly 8006: HELLO 3 and CLIENT TRACKING in one write:
//!   `a_pipelined_handshake_takes_effect_in_its_order`
//! - dragonflydb/dragonfly 935: QUIT drops replies that are due: `quit_comes_after_all_replies`
//! - shotover/shotover-proxy 535: INFO and others are never answered:
//!   `every_kind_of_command_is_answered`
//! - shotover/shotover-proxy PR 1887: one command that is confirmed several times shifts replies:
//!   `every_channel_is_confirmed_and_no_reply_shifted`
//! - shotover/shotover-proxy 645: messages and confirmations change places:
//!   `messages_and_confirmations_keep_their_order`
//! - redis/redis 15640: a failed AUTH behind others is not answered:
//!   `a_failed_auth_is_sent_alone`
//! - redis/redis 6409: nothing is answered after CLIENT REPLY OFF to ON in one write:
//!   `replies_come_again_after_a_write_without_any`
//! - redis/redis 7746: what is no request leaves a connection that can be used no more:
//!   `what_is_no_request_ends_the_connection`
//! - redis/redis 11874: CLIENT REPLY OFF withholds messages:
//!   `replies_that_are_off_withhold_no_message`
//! - redis/redis 12207: SUBSCRIBE within MULTI shifts replies:
//!   `within_a_transaction_the_proxy_answers_nothing_itself`
//! - redis/redis 12326, 2967: a message within the reply to EXEC:
//!   `pipelines::messages_within_the_reply_to_an_exec_put_nothing_out_of_step`
//! - redis/redis 13645: invalidations come before their SUBSCRIBE is confirmed:
//!   `protocol::redis::conversation::tests::order`
//! - redis/redis 714: UNSUBSCRIBE from nothing: `messages_and_confirmations_keep_their_order`

mod handshakes;
mod stalled;
mod subscriptions;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::Value;

use crate::client::{bulk, code, encode, error, ok};
use crate::revoked::wait_until_blocked;
use crate::stack::{PATIENCE, Proxy, Redis, Setup, eventually};

struct World {
    redis: Redis,
    proxy: Proxy,
    _dir: tempfile::TempDir,
}

fn world() -> World {
    world_of("")
}

/// `lines`: of the server's configuration.
fn world_of(lines: &str) -> World {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start_with(dir.path(), "redis", lines);
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    World {
        redis,
        proxy,
        _dir: dir,
    }
}

fn simple(text: &str) -> Value {
    Value::SimpleString(text.to_owned())
}

fn all(commands: &[&[&str]]) -> Vec<u8> {
    commands
        .iter()
        .flat_map(|command| encode(command))
        .collect()
}

#[test]
fn values_near_the_edges_of_buffers_come_back() {
    let world = world();
    let mut client = world.proxy.holder(1);
    for edge in [4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10] {
        // The key, the lengths and the line ends make up to some eighty bytes more.
        for len in (edge - 90..edge + 4).step_by(3) {
            let mut value: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            value[len / 2..len / 2 + 2].copy_from_slice(b"\r\n");
            let mut set = b"*3\r\n$3\r\nSET\r\n$7\r\njob:1:a\r\n".to_vec();
            set.extend(format!("${len}\r\n").into_bytes());
            set.extend_from_slice(&value);
            set.extend_from_slice(b"\r\n");
            set.extend(encode(&["GET", "job:1:a"]));
            client.send_bytes(&set);
            assert_eq!(client.read(), ok(), "{len}");
            assert!(client.read() == Value::BulkString(value), "{len}");
        }
    }
}

#[test]
fn a_refused_command_leaves_the_connection() {
    let world = world();
    let mut client = world.proxy.client();
    for command in [
        &["DEBUG", "SLEEP", "0"][..],
        &["NOSUCH"],
        &["SET", "job:1:a", "x"],
    ] {
        assert!(!code(&client.call(command)).is_empty(), "{command:?}");
        assert_eq!(client.call(&["ECHO", "x"]), bulk("x"), "{command:?}");
    }
}

#[test]
fn an_answer_before_the_end_of_its_request_shifts_none() {
    let world = world_of("proto-max-bulk-len 1mb");
    let mut client = world.proxy.client();
    client.send(&["ECHO", "before"]);
    // The server refuses the length, and hangs up.
    client.send_bytes(b"*3\r\n$3\r\nSET\r\n$1\r\nu\r\n$4194304\r\n");
    assert_eq!(client.read(), bulk("before"));
    let mut chunks = 0;
    while client.try_send_bytes(&[b'x'; 64 << 10]) && chunks < 64 {
        chunks += 1;
    }
    for reply in client.drain() {
        assert!(["ERR", "FENCEBUSY", "FENCEDOUBT"].contains(&&*code(&reply)));
    }
    let mut other = world.proxy.client();
    assert_eq!(other.call(&["EXISTS", "u"]), Value::Int(0));
}

#[test]
fn an_aborted_pipeline_answers_nobody_else() {
    let world = world();
    for round in 0..20 {
        let mut leaving = world.proxy.client();
        let echo = encode(&["ECHO", "not yours"]);
        leaving.send_bytes(&echo.repeat(200 + round));
        leaving.send_bytes(&echo[..echo.len() / 2]);
        drop(leaving);
        let mut client = world.proxy.client();
        for value in ["a", "b"] {
            assert_eq!(client.call(&["ECHO", value]), bulk(value), "round {round}");
        }
    }
}

#[test]
fn a_pipeline_runs_in_its_order() {
    let world = world();
    let mut client = world.proxy.holder(1);
    let mut bytes = vec![];
    for round in 0..500 {
        let score = round.to_string();
        bytes.extend(encode(&["ZADD", "job:1:z", &score, &score]));
        bytes.extend(encode(&["ZREMRANGEBYSCORE", "job:1:z", &score, &score]));
    }
    client.send_bytes(&bytes);
    for round in 0..1000 {
        assert_eq!(client.read(), Value::Int(1), "reply {round}");
    }
    assert_eq!(client.call(&["ZCARD", "job:1:z"]), Value::Int(0));
}

#[test]
fn commands_without_their_arguments_are_answered() {
    let world = world();
    let mut client = world.proxy.holder(1);
    for command in [
        &["MGET"][..],
        &["MSET"],
        &["MSET", "job:1:a"],
        &["MSET", "job:1:a", "x", "job:1:b"],
        &["GET"],
        &["EVAL", "return 1"],
        &["XREAD", "STREAMS"],
        &["SUBSCRIBE"],
        &["CLIENT"],
    ] {
        let answered = code(&client.call(command));
        assert!(
            ["ERR", "FENCEUNCLASS"].contains(&&*answered),
            "{command:?}: {answered}"
        );
        assert_eq!(client.call(&["ECHO", "x"]), bulk("x"), "{command:?}");
    }
}

#[test]
fn every_kind_of_command_is_answered() {
    let world = world();
    let (mut client, mut direct) = (world.proxy.client(), world.redis.client());
    for command in [
        &["INFO"][..],
        &["INFO", "everything"],
        &["COMMAND", "COUNT"],
        &["COMMAND"],
        &["CONFIG", "GET", "*"],
        &["CLIENT", "LIST"],
        &["DBSIZE"],
        &["LASTSAVE"],
        &["LATENCY", "LATEST"],
        &["MEMORY", "STATS"],
        &["OBJECT", "HELP"],
        &["PUBSUB", "CHANNELS"],
        &["ROLE"],
        &["SCAN", "0"],
        &["SCRIPT", "EXISTS", "x"],
        &["SLOWLOG", "GET"],
        &["TIME"],
        &["WAIT", "0", "0"],
        &["BRPOP", "u", "0.01"],
        &["EVAL_RO", "return {1, {2, 'x'}}", "0"],
    ] {
        let kinds = [&mut client, &mut direct].map(|it| std::mem::discriminant(&it.call(command)));
        assert_eq!(kinds[0], kinds[1], "{command:?}");
    }
    assert_eq!(client.call(&["ECHO", "x"]), bulk("x"));
}

#[test]
fn replies_that_are_read_late_are_all_there() {
    const VALUE_BYTES: usize = 20_000;
    const COUNT: usize = 2_000;
    let world = world();
    let value = "x".repeat(VALUE_BYTES);
    assert_eq!(world.redis.client().call(&["SET", "u", &value]), ok());
    let mut reading = TcpStream::connect(world.proxy.address).unwrap();
    reading.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut writing = reading.try_clone().unwrap();
    let before = resident_kb(world.proxy.process.pid());
    let asked = Arc::new(AtomicUsize::new(0));
    let asking = Arc::clone(&asked);
    let writer = std::thread::spawn(move || {
        let get = encode(&["GET", "u"]);
        for _ in 0..COUNT {
            writing.write_all(&get).unwrap();
            asking.fetch_add(1, Ordering::Relaxed);
        }
    });
    // What is not read waits in the buffers on the way, until these are full.
    eventually("a writer that is done, or cannot go on", || {
        let before = asked.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(100));
        before > 0 && asked.load(Ordering::Relaxed) == before
    });
    let held = resident_kb(world.proxy.process.pid());
    assert!(held < before + (8 << 10), "{before} kB, then {held} kB");
    let reply = format!("${VALUE_BYTES}\r\n{value}\r\n").into_bytes();
    let mut got = vec![0; reply.len()];
    for nth in 0..COUNT {
        reading.read_exact(&mut got).unwrap();
        assert!(got == reply, "reply {nth}");
    }
    writer.join().unwrap();
}

#[test]
fn an_empty_key_is_a_key() {
    let world = world();
    let mut client = world.proxy.holder(1);
    assert_eq!(client.call(&["SET", "", "x"]), ok());
    assert_eq!(client.call(&["MGET", "", "job:1:a"]), {
        Value::Array(vec![bulk("x"), Value::Nil])
    });
    // A lock that a part of the key would name, which is empty.
    assert_eq!(code(&client.call(&["SET", "job::a", "x"])), "FENCEUNCLASS");
    assert_eq!(world.redis.client().call(&["DBSIZE"]), Value::Int(1));
}

/// Memory that a process has now, in kB (proc(5), VmRSS).
/// Without the pages of the program itself, which come in as it is used.
fn resident_kb(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix("RssAnon:"));
    let words = line.unwrap().split_whitespace().next().unwrap();
    words.parse().unwrap()
}

#[test]
fn memory_does_not_grow_with_requests() {
    let world = world();
    let mut client = world.proxy.holder(1);
    let mut mset = vec!["MSET".to_owned()];
    for key in 0..100 {
        mset.extend([format!("job:1:{key}"), "x".repeat(300)]);
    }
    let mset: Vec<&str> = mset.iter().map(String::as_str).collect();
    let batch = encode(&mset).repeat(20);
    let mut send = |times| {
        for _ in 0..times {
            client.send_bytes(&batch);
            (0..20).for_each(|_| assert_eq!(client.read(), ok()));
        }
    };
    send(10);
    let before = resident_kb(world.proxy.process.pid());
    send(150);
    let after = resident_kb(world.proxy.process.pid());
    assert!(after < before + (8 << 10), "{before} kB, then {after} kB");
}

#[test]
fn a_transaction_in_one_write_passes() {
    let world = world();
    let mut client = world.proxy.holder(1);
    for count in 1..20_i64 {
        let incr: &[&str] = &["INCR", "job:1:n"];
        let mut commands: Vec<&[&str]> = vec![&["MULTI"]];
        commands.resize(1 + count as usize, incr);
        commands.push(&["EXEC"]);
        client.send_bytes(&all(&commands));
        assert_eq!(client.read(), ok());
        (0..count).for_each(|_| assert_eq!(client.read(), simple("QUEUED")));
        let Value::Array(counts) = client.read() else {
            panic!("no array");
        };
        assert_eq!(counts.len(), count as usize);
    }
}

#[test]
fn redis_cli_pipes() {
    let world = world();
    let mut cli = Command::new("redis-cli")
        .args(["-p", &world.proxy.address.port().to_string(), "--pipe"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-cli runs");
    let mut bytes = all(&[&["SET", "u1", "hello"], &["SET", "u2", "x"]]);
    bytes.extend(b"SET u3 inline\r\n");
    cli.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = cli.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("errors: 0, replies: 3"), "{said}");
    assert_eq!(world.redis.client().call(&["GET", "u3"]), bulk("inline"));
}

#[test]
fn a_client_that_leaves_its_blocked_command_harms_nobody() {
    let world = world();
    let mut direct = world.redis.client();
    for _ in 0..5 {
        let mut leaving = world.proxy.holder(1);
        leaving.send(&["BLPOP", "job:1:a", "job:1:b", "0"]);
        leaving.send(&["MGET", "job:1:a", "job:1:b"]);
        wait_until_blocked(&mut direct, "1");
        drop(leaving);
        wait_until_blocked(&mut direct, "0");
        let mut client = world.proxy.holder(1);
        assert_eq!(client.call(&["RPUSH", "job:1:a", "x"]), Value::Int(1));
        assert_eq!(client.call(&["LPOP", "job:1:a"]), bulk("x"));
    }
}

#[test]
fn requests_may_be_cut_anywhere() {
    let world = world();
    let mut client = world.proxy.holder(1);
    let mut bytes = all(&[
        &["HSET", "job:1:h", "status", ""],
        &["HSET", "job:1:h", "status", "executed once"],
        &[
            "XADD", "job:1:s", "MAXLEN", "~", "1000", "1-*", "f", "$4\r\n",
        ],
        &["ECHO", ""],
    ]);
    bytes.extend(b"ECHO 'in line'\r\n\r\n");
    for cut in 1..bytes.len() {
        client.send_bytes(&bytes[..cut]);
        // The first part has been read when what is whole in it is answered; nothing else tells.
        client.send_bytes(&bytes[cut..]);
        assert!(matches!(client.read(), Value::Int(_)), "{cut}");
        assert_eq!(client.read(), Value::Int(0), "{cut}");
        assert!(matches!(client.read(), Value::BulkString(_)), "{cut}");
        assert_eq!(client.read(), bulk(""), "{cut}");
        assert_eq!(client.read(), bulk("in line"), "{cut}");
    }
}

#[test]
fn an_error_shifts_no_reply() {
    let world = world();
    let mut client = world.proxy.holder(1);
    client.send_bytes(&all(&[
        &["SET", "job:1:s", "x"],
        &["LPUSH", "job:1:s", "y"],
        &["GET", "job:1:s"],
        // Refused by the proxy, unknown to it, and without its arguments.
        &["SET", "job::a", "x"],
        &["NOSUCH", "job:1:s"],
        &["GET"],
        &["STRLEN", "job:1:s"],
    ]));
    assert_eq!(client.read(), ok());
    assert_eq!(code(&client.read()), "WRONGTYPE");
    assert_eq!(client.read(), bulk("x"));
    for expected in ["FENCEUNCLASS", "FENCEUNCLASS", "ERR"] {
        assert_eq!(code(&client.read()), expected);
    }
    assert_eq!(client.read(), Value::Int(1));
}

#[test]
fn within_a_transaction_the_proxy_answers_nothing_itself() {
    let world = world();
    let mut client = world.proxy.holder(1);
    assert_eq!(code(&client.call(&["EXEC"])), "ERR");
    let queued: &[&[&str]] = &[&["MULTI"], &["PING"], &["ECHO", "x"], &["EXEC"]];
    client.send_bytes(&all(queued));
    assert_eq!(client.read(), ok());
    (0..2).for_each(|_| assert_eq!(client.read(), simple("QUEUED")));
    assert_eq!(client.read(), Value::Array(vec![simple("PONG"), bulk("x")]));
    // What would be answered otherwise than by one reply is refused, and so is the whole.
    for command in [&["SUBSCRIBE", "a", "b", "c"][..], &["FENCE", "STATUS"]] {
        let refused: &[&[&str]] = &[&["MULTI"], command, &["SET", "job:1:a", "x"], &["EXEC"]];
        client.send_bytes(&all(refused));
        assert_eq!(client.read(), ok());
        assert!(!code(&client.read()).is_empty());
        assert_eq!(client.read(), simple("QUEUED"));
        assert_eq!(code(&client.read()), "EXECABORT");
        assert_eq!(client.call(&["EXISTS", "job:1:a"]), Value::Int(0));
    }
}

#[test]
fn every_pipelined_blocking_pop_is_answered() {
    let world = world();
    let mut worker = world.proxy.holder(1);
    let pop = encode(&["BRPOPLPUSH", "job:1:wait", "job:1:active", "30"]);
    worker.send_bytes(&pop.repeat(50));
    let mut producer = world.proxy.holder(1);
    for job in 0..50 {
        producer.call(&["LPUSH", "job:1:wait", &job.to_string()]);
        assert_eq!(worker.read(), bulk(&job.to_string()));
    }
    assert_eq!(producer.call(&["LLEN", "job:1:active"]), Value::Int(50));
}

#[test]
fn what_is_no_request_ends_the_connection() {
    let world = world();
    let mut client = world.proxy.client();
    let set = encode(&["SET", "u1", "val"]);
    let odd = b"*3\r\n$3\r\nSET\r\n$5\r\nkey1\r\n$3\r\nval\r\n";
    client.send_bytes(&[&set[..], &set, odd, &set].concat());
    (0..2).for_each(|_| assert_eq!(client.read(), ok()));
    let told = error(&client.read());
    assert!(told.starts_with("ERR Protocol error"), "{told}");
    assert!(client.try_read().is_none());
    assert_eq!(world.redis.client().call(&["DBSIZE"]), Value::Int(1));
}
