//! Clients as they come: redis-py, ioredis, the redis crate, redis-cli and redis-benchmark.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use redis::{Commands as _, RedisError};

use crate::stack::{Proxy, Redis, Setup};

struct World {
    proxy: Proxy,
    _redis: Redis,
    _dir: tempfile::TempDir,
}

fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    World {
        proxy,
        _redis: redis,
        _dir: dir,
    }
}

/// What `make test-needs` has installed, under the name of a variable of its own.
fn installed(variable: &str, place: &str) -> OsString {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join(place).into();
    std::env::var_os(variable).unwrap_or_else(default)
}

fn run(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .output()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let (out, err) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    assert!(status.success(), "{command:?}: {status}\n{out}\n{err}");
    out.into_owned()
}

fn port(address: SocketAddr) -> String {
    address.port().to_string()
}

const PYTHON: &str = r#"
import sys, redis
port, old, new = int(sys.argv[1]), sys.argv[2], sys.argv[3]
plain = redis.Redis(port=port)
assert plain.set("plain", "x") and plain.get("plain") == b"x"

def holder(ticket):
    def fence(connection):
        connection.on_connect()
        connection.send_command("FENCE", "SET", ticket)
        assert connection.read_response() == b"OK"
    return redis.Redis(port=port, redis_connect_func=fence)

first = holder(old)
assert first.set("job:1:a", "first")
with first.pipeline() as pipe:
    pipe.incr("job:1:n").incr("job:1:n").get("job:1:a")
    assert pipe.execute() == [1, 2, b"first"]
stream = first.xadd("job:1:s", {"f": "v"})
assert first.xrange("job:1:s")[0][0] == stream
second = holder(new)
assert second.get("job:1:a") == b"first"
try:
    first.set("job:1:a", "late")
except redis.ResponseError as error:
    assert str(error).startswith("FENCED "), error
else:
    raise SystemExit("a stale write passed")
assert second.execute_command("FENCE", "WITH", new, "SET", "job:1:a", "second")
assert second.eval("return redis.call('GET', KEYS[1])", 1, "job:1:a") == b"second"
pubsub = plain.pubsub()
pubsub.subscribe("news")
assert pubsub.get_message(timeout=5)["type"] == "subscribe"
assert second.publish("news", "hello") == 1
assert pubsub.get_message(timeout=5)["data"] == b"hello"
print("done")
"#;

#[test]
fn redis_py_works() {
    let World { proxy, .. } = &world();
    let python = installed("RINGFENCE_TEST_PYTHON", ".venv/bin/python");
    let mut command = Command::new(python);
    command.args(["-c", PYTHON, &port(proxy.address)]);
    command.args([proxy.ticket(1), proxy.ticket(2)]);
    assert_eq!(run(&mut command).trim(), "done");
}

/// ioredis sends again, on a new connection, what a killed one left unanswered.
const NODE: &str = r#"
const Redis = require('ioredis');
const [port, old, fresh] = process.argv.slice(1);
(async () => {
  const plain = new Redis(port);
  const first = new Redis(port);
  await first.call('FENCE', 'SET', old);
  await first.set('job:1:a', 'first');
  const results = await first.pipeline().incr('job:1:n').get('job:1:a').exec();
  if (JSON.stringify(results) !== '[[null,1],[null,"first"]]') throw new Error(results);
  const popping = first.blpop('job:1:q', 0).then(
    (value) => { throw new Error('popped ' + value); },
    (error) => error.message.split(' ')[0]);
  const blocked = async () => /blocked_clients:1/.test(await plain.info('clients'));
  while (!await blocked()) await new Promise((done) => setTimeout(done, 5));
  const second = new Redis(port);
  await second.call('FENCE', 'SET', fresh);
  await second.rpush('job:1:q', 'x');
  const word = await popping;
  if (!['FENCEDOUBT', 'NOFENCE'].includes(word)) throw new Error(word);
  if (await second.llen('job:1:q') !== 1) throw new Error('it was popped');
  console.log('done');
  process.exit(0);
})().catch((error) => { console.error(error); process.exit(1); });
"#;

#[test]
fn ioredis_works_and_what_it_sends_again_does_not_pop() {
    let World { proxy, .. } = &world();
    let modules = installed("RINGFENCE_TEST_NODE_MODULES", ".node/node_modules");
    let mut command = Command::new("node");
    command.env("NODE_PATH", modules);
    command.args(["-e", NODE, &port(proxy.address)]);
    command.args([proxy.ticket(1), proxy.ticket(2)]);
    assert_eq!(run(&mut command).trim(), "done");
}

#[test]
fn the_redis_crate_works() {
    let World { proxy, .. } = &world();
    let client = redis::Client::open(format!("redis://{}", proxy.address)).unwrap();
    let mut connection = client.get_connection().unwrap();
    let refused: Result<(), RedisError> = connection.set("job:1:a", "x");
    assert_eq!(refused.unwrap_err().code(), Some("NOFENCE"));
    let mut set = redis::cmd("FENCE");
    set.arg("SET").arg(proxy.ticket(1));
    set.exec(&mut connection).unwrap();
    let () = connection.set("job:1:a", "x").unwrap();
    let (n, a): (i64, String) = redis::pipe()
        .atomic()
        .incr("job:1:n", 1)
        .get("job:1:a")
        .query(&mut connection)
        .unwrap();
    assert_eq!((n, a.as_str()), (1, "x"));
}

#[test]
fn redis_cli_works_also_with_pipe() {
    let World { proxy, .. } = &world();
    let cli = || {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &port(proxy.address)]);
        command
    };
    assert_eq!(run(cli().args(["SET", "plain", "x"])).trim(), "OK");
    let refused = run(cli().args(["SET", "job:1:a", "x"]));
    assert!(refused.starts_with("NOFENCE "), "{refused}");
    let ticket = proxy.ticket(1);
    let with = run(cli().args(["FENCE", "WITH", &ticket, "SET", "job:1:a", "x"]));
    assert_eq!(with.trim(), "OK");
    let script = format!("printf 'FENCE SET {ticket}\\r\\nSET job:1:a y\\r\\nSET plain y\\r\\n'");
    let piped = format!("{script} | redis-cli -p {} --pipe", proxy.address.port());
    let told = run(Command::new("sh").args(["-c", &piped]));
    assert!(told.contains("errors: 0, replies: 3"), "{told}");
    assert_eq!(run(cli().args(["GET", "job:1:a"])).trim(), "y");
}

#[test]
fn redis_benchmark_works() {
    let World { proxy, .. } = &world();
    for pipeline in ["1", "16"] {
        let mut command = Command::new("redis-benchmark");
        command.args([
            "-p",
            &port(proxy.address),
            "-n",
            "20000",
            "-c",
            "50",
            "-P",
            pipeline,
        ]);
        command.args(["-t", "set,get,incr,lpush,lpop,mset", "-q"]);
        let told = run(&mut command);
        assert!(told.contains("requests per second"), "{told}");
        assert!(!told.contains("Error"), "{told}");
    }
}
