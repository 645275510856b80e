//! etcdctl, through a proxy without rules and beside it: the same words.

use std::process::{Output, Stdio};
use std::time::Duration;

use crate::support::{JOBS, Version, World, ctl_command, etcdctl, etcdctl_with, soon};

/// One story, told to two servers: what differs is left out by `plain`.
const STORY: &[&[&str]] = &[
    &["put", "a/1", "one"],
    &["put", "a/2", "two"],
    &["put", "b", "three", "--prev-kv"],
    &["put", "b", "four", "--prev-kv"],
    &["put", "b", "five", "--ignore-value"],
    &["put", "", "x"],
    &["get", "a/", "--prefix"],
    &["get", "", "--prefix", "--keys-only"],
    &["get", "", "--from-key", "--limit", "2", "-w", "json"],
    &[
        "get",
        "",
        "--prefix",
        "--sort-by",
        "VERSION",
        "--order",
        "DESCEND",
    ],
    &[
        "get",
        "",
        "--prefix",
        "--sort-by",
        "MODIFY",
        "--order",
        "ASCEND",
        "--limit",
        "1",
    ],
    &["get", "", "--prefix", "--sort-by", "VALUE", "--keys-only"],
    &["get", "", "--prefix", "--count-only", "-w", "fields"],
    &["get", "a", "z", "--rev", "2"],
    &["get", "b", "--consistency", "s"],
    &["get", "b", "--rev", "999"],
    &["get", "nothing"],
    &["del", "a/1", "--prev-kv"],
    &["del", "nothing"],
    &["put", "c/1", "x"],
    &["put", "c/2", "x"],
    &["del", "c/", "--prefix", "-w", "json"],
    &["put", "d", "x", "--lease", "1234"],
    &["lease", "timetolive", "1234"],
    &["lease", "revoke", "1234"],
    &["lease", "list"],
    &["compaction", "3"],
    &["get", "b", "--rev", "2"],
    &["alarm", "list"],
    &["alarm", "disarm"],
    &["defrag"],
    &["member", "list", "-w", "fields"],
    &["role", "add", "reader"],
    &[
        "role",
        "grant-permission",
        "reader",
        "read",
        "a/",
        "--prefix=true",
    ],
    &["role", "get", "reader"],
    &["user", "list"],
    &["endpoint", "health"],
    &["del", "", "--from-key"],
    &["get", "", "--prefix"],
];

const TXNS: &[&str] = &[
    "value(\"b\") = \"four\"\n\nget b\nput t 1\n\nget nothing\n\n",
    "value(\"b\") = \"else\"\n\nput t 2\n\nget t\ndel t\n\n",
    "mod(\"x\") = \"0\"\n\nput x 1\ndel \"\" --prefix\n\n\n\n",
];

/// Without what two servers never have in common.
fn plain(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    // Its log has the time of day.
    let text: String = text
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("{\"level\""))
        .collect();
    let words = text.split_inclusive([' ', '\n', ',']).map(|word| {
        let own = [
            "cluster_id",
            "member_id",
            "ClusterID",
            "MemberID",
            "raft_term",
            "127.0.0.1",
        ];
        // The ids of clusters and members.
        let long = word.trim().len() > 12 && word.trim().bytes().all(|it| it.is_ascii_digit());
        match long || own.iter().any(|own| word.contains(own)) {
            true => "*",
            false => word,
        }
    });
    words.collect()
}

fn tell(address: &str) -> Vec<(String, String)> {
    let mut told = vec![];
    for (at, args) in STORY.iter().enumerate() {
        told.push((args.join(" "), plain(&etcdctl(address, args))));
        if at == 5 {
            for txn in TXNS {
                let output = etcdctl_with(address, &["txn", "--interactive=false"], txn);
                told.push(((*txn).to_owned(), plain(&output)));
            }
        }
    }
    told
}

fn same_story(version: Version) {
    let direct = World::new(version);
    let expected = tell(&direct.etcd_address());
    let world = World::new(version);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _guard = runtime.enter();
    let proxy = world.proxy("a", "");
    let told = tell(&proxy.address.to_string());
    for (expected, told) in expected.iter().zip(&told) {
        let health = expected.0 == "endpoint health" || expected.0 == "defrag";
        match health {
            // It tells the time that it took, and the address.
            true => assert_eq!(expected.1.contains("healthy"), told.1.contains("healthy")),
            false => assert_eq!(expected, told),
        }
    }
    assert!(told.iter().any(|(_, said)| said.contains("three")));
}

#[test]
fn without_rules_etcdctl_says_the_same_on_3_4() {
    same_story(Version::V3_4);
}

#[test]
fn without_rules_etcdctl_says_the_same_on_3_5() {
    same_story(Version::V3_5);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_pass_watch_lock_elect_snapshot() {
    let world = World::new(Version::V3_4);
    let proxy = world.proxy("a", &format!("snapshots = \"pass\"\n{JOBS}"));
    let address = proxy.address.to_string();
    let run = |args: &'static [&'static str]| {
        let address = address.clone();
        tokio::task::spawn_blocking(move || etcdctl(&address, args))
    };
    // etcdctl's own lock and election are transactions with leases, on keys that no rule covers.
    let locked = run(&["lock", "mine", "echo", "held"]).await.unwrap();
    assert!(
        String::from_utf8_lossy(&locked.stdout).contains("held"),
        "{locked:?}"
    );
    let file = world.dir.path().join("snapshot");
    let path = file.to_str().unwrap().to_owned();
    let saved = tokio::task::spawn_blocking({
        let address = address.clone();
        move || etcdctl(&address, &["snapshot", "save", &path])
    });
    assert!(saved.await.unwrap().status.success());
    assert!(file.metadata().unwrap().len() > 1000);

    let mut watching =
        tokio::process::Command::from(ctl_command(&address, &["watch", "w/", "--prefix"]))
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
    let mut electing =
        tokio::process::Command::from(ctl_command(&address, &["elect", "chair", "me"]))
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
    let mut lines = lines_of(&mut electing);
    assert!(next(&mut lines).await.starts_with("chair/"));
    assert_eq!(next(&mut lines).await, "me");
    let mut lines = lines_of(&mut watching);
    // The watch may begin a moment later: a key until it is seen.
    let first = loop {
        run(&["put", "w/1", "seen"]).await.unwrap();
        match tokio::time::timeout(Duration::from_millis(200), lines.next_line()).await {
            Ok(line) => break line.unwrap().unwrap(),
            Err(_) => continue,
        }
    };
    assert_eq!(first, "PUT");
    assert_eq!(next(&mut lines).await, "w/1");
    assert_eq!(next(&mut lines).await, "seen");
}

type Lines = tokio::io::Lines<tokio::io::BufReader<tokio::process::ChildStdout>>;

fn lines_of(child: &mut tokio::process::Child) -> Lines {
    use tokio::io::AsyncBufReadExt as _;
    tokio::io::BufReader::new(child.stdout.take().unwrap()).lines()
}

async fn next(lines: &mut Lines) -> String {
    soon("a line of etcdctl", lines.next_line())
        .await
        .unwrap()
        .expect("a line")
}

#[tokio::test(flavor = "multi_thread")]
async fn beside_rules_keyless_writes_are_refused_or_passed_as_configured() {
    let world = World::new(Version::V3_5);
    let strict = world.proxy("a", JOBS);
    let lax = world.proxy("b", &format!("keyless_writes = \"pass\"\n{JOBS}"));
    let refused: &[&[&str]] = &[
        &["compact", "1"],
        &["defrag"],
        &["user", "add", "u:p"],
        &["member", "add", "m", "--peer-urls=http://127.0.0.1:1"],
        &["move-leader", "1"],
    ];
    let passed: &[&[&str]] = &[
        &["alarm", "list"],
        &["member", "list"],
        &["user", "list"],
        &["endpoint", "status"],
        &["endpoint", "hashkv"],
        &["lease", "grant", "60"],
        &["get", "", "--prefix"],
    ];
    for args in refused {
        let output = etcdctl(&strict.address.to_string(), args);
        assert!(!output.status.success(), "{args:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            args[0] == "move-leader" || said.contains("keyless_writes"),
            "{args:?}: {said}"
        );
    }
    for args in passed {
        let output = etcdctl(&strict.address.to_string(), args);
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    etcdctl(&lax.address.to_string(), &["put", "k", "v"]);
    for args in [
        &["compact", "1"][..],
        &["alarm", "disarm"],
        &["user", "add", "u:p"],
    ] {
        let output = etcdctl(&lax.address.to_string(), args);
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
}
