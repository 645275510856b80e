//! Many clients of one holder, whose short writes share a backend connection: what a client finds
//! is as on its own connection, and nothing is applied after a seal.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use redis::Value;

use crate::client::{Client, bulk, code, error, ok};
use crate::revoked::EndOnPanic;
use crate::stack::{PATIENCE, Proxy, Redis, Setup, eventually, sign, tries};

/// So many that every core has enough of them for a lane.
const CLIENTS: usize = 24;

/// The connections that the server has: id, and what each ran last.
fn connections(redis: &mut Client) -> Vec<(String, String)> {
    let Value::BulkString(list) = redis.call(&["CLIENT", "LIST"]) else {
        panic!("CLIENT LIST tells no text");
    };
    let field = |line: &str, name: &str| {
        let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
        let found = fields.find(|(key, _)| *key == name);
        found.map(|(_, value)| value.to_owned()).unwrap_or_default()
    };
    let list = String::from_utf8(list).unwrap();
    let lines = list.lines();
    lines
        .map(|line| (field(line, "id"), field(line, "cmd")))
        .collect()
}

/// Clients that hold the same token, and write each in its thread: what each call is answered.
/// Ends when `each` says so.
pub fn write(clients: Vec<Client>, each: impl Fn(usize, &mut Client) -> bool + Sync) {
    std::thread::scope(|scope| {
        for (nth, mut client) in clients.into_iter().enumerate() {
            let each = &each;
            scope.spawn(move || while each(nth, &mut client) {});
        }
    });
}

pub fn holders(proxy: &Proxy, token: u64) -> Vec<Client> {
    (0..CLIENTS).map(|_| proxy.holder(token)).collect()
}

/// Increments by every client until a connection that is nobody's own is seen to carry them.
/// Returns the clients and how many increments were answered.
pub fn until_shared(redis: &Redis, clients: Vec<Client>) -> (Vec<Client>, i64) {
    let mut direct = redis.client();
    let own: BTreeSet<String> = connections(&mut direct)
        .into_iter()
        .map(|it| it.0)
        .collect();
    let (over, count) = (AtomicBool::new(false), AtomicI64::new(0));
    let kept = std::sync::Mutex::new(vec![]);
    std::thread::scope(|scope| {
        for mut client in clients {
            let (over, count, kept) = (&over, &count, &kept);
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    match client.call(&["INCR", "job:1:n"]) {
                        Value::Int(_) => count.fetch_add(1, Ordering::SeqCst),
                        other => panic!("no number: {other:?}"),
                    };
                }
                kept.lock().unwrap().push(client);
            });
        }
        let is_shared = |(id, cmd): &(String, String)| cmd == "incr" && !own.contains(id);
        let mut cores = 0;
        eventually("a shared connection", || {
            cores = connections(&mut direct)
                .iter()
                .filter(|it| is_shared(it))
                .count();
            cores > 0
        });
        over.store(true, Ordering::SeqCst);
    });
    (kept.into_inner().unwrap(), count.into_inner())
}

fn number(client: &mut Client, key: &str) -> i64 {
    match client.call(&["GET", key]) {
        Value::BulkString(text) => String::from_utf8(text).unwrap().parse().unwrap(),
        other => panic!("no number: {other:?}"),
    }
}

#[test]
fn each_client_gets_its_own_replies_in_its_own_order() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    let (clients, count) = until_shared(&redis, holders(&proxy, 1));
    assert_eq!(number(&mut redis.client(), "job:1:n"), count);
    let done: Vec<AtomicI64> = clients.iter().map(|_| AtomicI64::new(0)).collect();
    write(clients, |nth, client| {
        let (key, round) = (
            format!("job:1:{nth}"),
            done[nth].fetch_add(1, Ordering::SeqCst),
        );
        assert_eq!(client.call(&["INCR", &key]), Value::Int(round + 1));
        // A read goes over the client's own connection, and finds what was written before it.
        assert_eq!(client.call(&["GET", &key]), bulk(&(round + 1).to_string()));
        let list = format!("job:1:l{nth}");
        assert_eq!(client.call(&["RPUSH", &list, "x"]), Value::Int(round + 1));
        // An error is its own client's.
        assert!(error(&client.call(&["INCR", &list])).contains("WRONGTYPE"));
        round < 200
    });
}

#[test]
fn what_depends_on_the_connection_is_as_on_ones_own() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let setup = Setup::new(redis.address);
    let mut direct = redis.client();
    for (user, key) in [("anna", "~job:1:a*"), ("otto", "~job:1:o*")] {
        let command = ["ACL", "SETUSER", user, "on", ">secret", key, "+@all"];
        assert_eq!(direct.call(&command), ok());
    }
    let proxy = Proxy::start(dir.path(), &setup);
    let ticket = proxy.ticket(1);
    let mut clients = vec![];
    for nth in 0..2 * CLIENTS {
        let mut client = proxy.client();
        let user = if nth % 2 == 0 { "anna" } else { "otto" };
        // Half of them in RESP3, and half of each log in before they bind the ticket.
        match nth % 8 {
            0..4 => {
                let user = format!("{user};fence={ticket}");
                assert_eq!(client.call(&["AUTH", &user, "secret"]), ok());
            }
            _ => {
                assert!(matches!(
                    client.call(&["HELLO", "3", "AUTH", user, "secret"]),
                    Value::Map(_)
                ));
                assert_eq!(client.call(&["FENCE", "SET", &ticket]), ok());
            }
        }
        clients.push(client);
    }
    let rounds: Vec<AtomicI64> = clients.iter().map(|_| AtomicI64::new(0)).collect();
    write(clients, |nth, client| {
        let round = rounds[nth].fetch_add(1, Ordering::SeqCst);
        let (own, others) = match nth % 2 {
            0 => (format!("job:1:a{nth}"), format!("job:1:o{nth}")),
            _ => (format!("job:1:o{nth}"), format!("job:1:a{nth}")),
        };
        assert_eq!(client.call(&["INCR", &own]), Value::Int(round + 1));
        assert_eq!(code(&client.call(&["INCR", &others])), "NOPERM");
        // RESP3 tells a score as a double.
        let score = client.call(&["ZINCRBY", &format!("{own}:z"), "1", "m"]);
        match nth % 8 {
            0..4 => assert_eq!(score, bulk(&(round + 1).to_string())),
            _ => assert_eq!(score, Value::Double((round + 1) as f64)),
        }
        round < 300
    });
}

/// The increments of many clients race with a seal.
fn race(old: Vec<Client>, seal: impl FnOnce() -> Client, direct: &mut Client) {
    let before = number(direct, "job:1:n");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            write(old, |_, client| {
                !ended.load(Ordering::SeqCst)
                    && client.try_send_bytes(&crate::client::encode(&["INCR", "job:1:n"]))
                    && matches!(client.try_read(), Some(Value::Int(_)))
            });
        });
        let _end = EndOnPanic(&ended);
        eventually("increments", || number(direct, "job:1:n") > before + 100);
        let mut new = seal();
        let sealed = number(&mut new, "job:1:n");
        eventually("the older clients' end", || writing.is_finished());
        assert_eq!(
            number(direct, "job:1:n"),
            sealed,
            "an increment ran after the seal"
        );
    });
}

#[test]
fn nothing_is_applied_after_a_seal() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    for round in 0..tries(20) as u64 {
        let (old, _) = until_shared(&redis, holders(&proxy, 2 * round + 1));
        race(old, || proxy.holder(2 * round + 2), &mut redis.client());
    }
}

#[test]
fn nor_when_the_proxy_is_killed_in_between() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let mut proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    for round in 0..tries(5) as u64 {
        let (old, _) = until_shared(&redis, holders(&proxy, 2 * round + 1));
        let seal = || {
            proxy.crash();
            proxy.start_again();
            proxy.holder(2 * round + 2)
        };
        race(old, seal, &mut redis.client());
    }
}

#[test]
fn nor_when_another_proxy_seals() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let one = Setup {
        tables: "[watermarks]\nstore = \"backend\"\n".to_owned(),
        ..Setup::new(redis.address)
    };
    let two = Setup {
        name: "edge-2",
        key: Arc::clone(&one.key),
        ..one.clone()
    };
    let one = Proxy::start(dir.path(), &one);
    drop(one.holder(1));
    let two = Proxy::start(dir.path(), &two);
    for round in 1..=tries(10) as u64 {
        let (old, _) = until_shared(&redis, holders(&one, 2 * round));
        race(old, || two.holder(2 * round + 1), &mut redis.client());
    }
}

#[test]
fn a_shared_connection_that_is_lost_leaves_each_client_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    let clients = holders(&proxy, 1);
    let mut direct = redis.client();
    let own: BTreeSet<String> = connections(&mut direct)
        .into_iter()
        .map(|it| it.0)
        .collect();
    let (clients, before) = until_shared(&redis, clients);
    let (answered, doubtful) = (AtomicI64::new(before), AtomicI64::new(0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            write(clients, |_, client| {
                match client.call(&["INCR", "job:1:n"]) {
                    Value::Int(_) => answered.fetch_add(1, Ordering::SeqCst),
                    other => match &*code(&other) {
                        "FENCEDOUBT" => doubtful.fetch_add(1, Ordering::SeqCst),
                        // It had not left yet.
                        "FENCEBUSY" => 0,
                        word => panic!("{word}"),
                    },
                };
                !over.load(Ordering::SeqCst)
            });
        });
        let until = std::time::Instant::now() + PATIENCE;
        let mut killed = 0;
        while killed < 3 && std::time::Instant::now() < until {
            for (id, cmd) in connections(&mut direct) {
                if cmd == "incr" && !own.contains(&id) {
                    direct.call(&["CLIENT", "KILL", "ID", &id]);
                    killed += 1;
                }
            }
        }
        over.store(true, Ordering::SeqCst);
        assert!(killed >= 3, "only {killed} shared connections were seen");
    });
    let (answered, doubtful) = (answered.into_inner(), doubtful.into_inner());
    let counted = number(&mut direct, "job:1:n");
    assert!(
        (answered..=answered + doubtful).contains(&counted),
        "{counted} increments, {answered} answered, {doubtful} in doubt"
    );
}

#[test]
fn wait_is_about_the_writes_that_were_shared() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let port = redis.address.port();
    let replica = Redis::start_with(
        dir.path(),
        "replica",
        &format!("replicaof 127.0.0.1 {port}\nrepl-diskless-sync-delay 0"),
    );
    let mut direct = redis.client();
    eventually("a replica", || {
        direct.call(&["SET", "seen", "1"]);
        direct.call(&["WAIT", "1", "100"]) == Value::Int(1)
    });
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    let (mut clients, _) = until_shared(&redis, holders(&proxy, 1));
    eventually("all of it at the replica", || {
        direct.call(&["SET", "seen", "2"]);
        direct.call(&["WAIT", "1", "100"]) == Value::Int(1)
    });
    replica.process.signal("STOP");
    for client in &mut clients {
        for _ in 0..3 {
            assert!(matches!(client.call(&["INCR", "job:1:n"]), Value::Int(_)));
        }
        // The replica has not seen the last of them.
        assert_eq!(client.call(&["WAIT", "1", "20"]), Value::Int(0));
        assert!(matches!(client.call(&["INCR", "job:1:n"]), Value::Int(_)));
    }
    replica.process.signal("CONT");
    for client in &mut clients {
        assert!(matches!(client.call(&["INCR", "job:1:n"]), Value::Int(_)));
        assert_eq!(client.call(&["WAIT", "1", "20000"]), Value::Int(1));
    }
}

#[test]
fn a_listener_can_keep_connections_apart() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let setup = Setup::new(redis.address).with("backend_connections = \"own\"");
    let proxy = Proxy::start(dir.path(), &setup);
    let clients = holders(&proxy, 1);
    let mut direct = redis.client();
    let before: BTreeSet<String> = connections(&mut direct)
        .into_iter()
        .map(|it| it.0)
        .collect();
    let rounds: Vec<AtomicI64> = clients.iter().map(|_| AtomicI64::new(0)).collect();
    write(clients, |nth, client| {
        assert!(matches!(client.call(&["INCR", "job:1:n"]), Value::Int(_)));
        if rounds[nth].fetch_add(1, Ordering::SeqCst) == 100 {
            let mut direct = redis.client();
            let mut others = connections(&mut direct).into_iter();
            let shared = others.find(|(id, cmd)| cmd == "incr" && !before.contains(id));
            assert_eq!(shared, None);
        }
        rounds[nth].load(Ordering::SeqCst) < 200
    });
}

#[test]
fn holders_of_different_locks_do_not_share() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    let mut clients = vec![];
    for nth in 0..2 * CLIENTS {
        let mut client = proxy.client();
        let lock = format!("job/{}", nth % 2);
        let ticket = sign(&proxy.key, &lock, 1);
        assert_eq!(client.call(&["FENCE", "SET", &ticket]), ok());
        clients.push(client);
    }
    let rounds: Vec<AtomicI64> = clients.iter().map(|_| AtomicI64::new(0)).collect();
    write(clients, |nth, client| {
        let round = rounds[nth].fetch_add(1, Ordering::SeqCst);
        let own = format!("job:{}:{nth}", nth % 2);
        assert_eq!(client.call(&["INCR", &own]), Value::Int(round + 1));
        let others = format!("job:{}:{nth}", (nth + 1) % 2);
        assert_eq!(code(&client.call(&["INCR", &others])), "NOFENCE");
        round < 300
    });
}

/// How often a login has failed at the server.
fn failed_logins(redis: &mut Client) -> i64 {
    let Value::BulkString(text) = redis.call(&["INFO", "errorstats"]) else {
        panic!("INFO tells no text");
    };
    let text = String::from_utf8(text).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("errorstat_WRONGPASS:count="));
    line.map_or(0, |count| count.trim().parse().unwrap())
}

#[test]
fn a_changed_password_leaves_each_client_its_own_connection() {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(dir.path());
    let mut direct = redis.client();
    let change = |direct: &mut Client, password: &str| {
        let command = [
            "ACL",
            "SETUSER",
            "anna",
            "on",
            "resetpass",
            password,
            "~*",
            "&*",
            "+@all",
        ];
        assert_eq!(direct.call(&command), ok());
    };
    change(&mut direct, ">secret");
    let proxy = Proxy::start(dir.path(), &Setup::new(redis.address));
    let user = format!("anna;fence={}", proxy.ticket(1));
    let clients = (0..CLIENTS).map(|_| {
        let mut client = proxy.client();
        assert_eq!(client.call(&["AUTH", &user, "secret"]), ok());
        client
    });
    let clients: Vec<Client> = clients.collect();
    let own: BTreeSet<String> = connections(&mut direct)
        .into_iter()
        .map(|it| it.0)
        .collect();
    let (clients, mut counted) = until_shared(&redis, clients);
    // Those who are logged in stay so (Redis, "ACL SETUSER"); nobody logs in with the old one.
    change(&mut direct, ">other");
    let end_shared = |direct: &mut Client| {
        let mut shared = connections(direct);
        shared.retain(|(id, cmd)| cmd == "incr" && !own.contains(id));
        for (id, _) in &shared {
            direct.call(&["CLIENT", "KILL", "ID", id]);
        }
        shared.is_empty()
    };
    end_shared(&mut direct);
    let (answered, doubtful) = (AtomicI64::new(0), AtomicI64::new(0));
    let over = AtomicBool::new(false);
    let kept = std::sync::Mutex::new(vec![]);
    std::thread::scope(|scope| {
        for mut client in clients {
            let (answered, doubtful, over, kept) = (&answered, &doubtful, &over, &kept);
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    match client.call(&["INCR", "job:1:n"]) {
                        Value::Int(_) => answered.fetch_add(1, Ordering::SeqCst),
                        // It was handed over before the end of the shared one was seen.
                        other => match &*code(&other) {
                            "FENCEDOUBT" => doubtful.fetch_add(1, Ordering::SeqCst),
                            "FENCEBUSY" => 0,
                            word => panic!("{word}"),
                        },
                    };
                }
                kept.lock().unwrap().push(client);
            });
        }
        let _end = EndOnPanic(&over);
        // It is tried, and tried again. One of the other core may have been opened just before.
        eventually("failed logins, and nothing shared", || {
            end_shared(&mut direct) && failed_logins(&mut direct) >= 3
        });
        over.store(true, Ordering::SeqCst);
    });
    counted += answered.into_inner();
    let all = number(&mut direct, "job:1:n");
    assert!((counted..=counted + doubtful.into_inner()).contains(&all));
    // Once it is theirs again they share again.
    change(&mut direct, ">secret");
    let (_, more) = until_shared(&redis, kept.into_inner().unwrap());
    assert_eq!(number(&mut direct, "job:1:n"), all + more);
}
