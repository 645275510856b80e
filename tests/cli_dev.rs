//! `ringfence dev` and `ringfence demo`, and what they print.

mod cli_support;
#[path = "support/etcd.rs"]
mod etcd;

use std::process::{Command, Output};

use cli_support::{Running, ringfence, until};
use rustix::process::Signal;

/// `dev` on free ports.
fn dev(folder: &std::path::Path, more: &[&str]) -> Running {
    let mut command = ringfence();
    command.arg("dev").arg("--data").arg(folder);
    for port in [
        "--lockd-listen",
        "--admin-listen",
        "--s3-listen",
        "--http-listen",
        "--etcd-listen",
    ] {
        command.args([port, "127.0.0.1:0"]);
    }
    let mut dev = Running::start(command.args(more));
    dev.line_with("Ctrl-C ends it.");
    dev
}

/// Runs what `dev` printed to be pasted, in the shell that a user has, and returns its output.
fn paste(dev: &Running, lines: &[&str]) -> Output {
    let printed = dev.stdout();
    let find = |text: &&str| {
        let found = printed
            .lines()
            .map(str::trim)
            .find(|line| line.contains(text));
        found
            .unwrap_or_else(|| panic!("no line with {text:?} in {printed}"))
            .to_owned()
    };
    let mut script = "shopt -s expand_aliases\n".to_owned();
    for line in ["export RINGFENCE_LOCKD", "alias ringfence="]
        .iter()
        .chain(lines)
        .map(find)
    {
        script += &line.replace("curl -i", "curl -sSi");
        script.push('\n');
    }
    let ran = Command::new("bash")
        .arg("-ec")
        .arg(&script)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{script}\n{ran:?}");
    ran
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_dev_prints_works_with_curl() {
    let folder = tempfile::tempdir().unwrap();
    let mut dev = dev(folder.path(), &[]);
    let missing = text(&paste(&dev, &["-d hello http"]));
    assert!(missing.starts_with("HTTP/1.1 428"), "{missing}");
    let written = text(&paste(&dev, &["-d hello -H"]));
    assert!(written.contains("HTTP/1.1 200"), "{written}");
    let refused = text(&paste(&dev, &["OLD=", "-d newer", "-d stale"]));
    assert!(refused.contains("HTTP/1.1 200"), "the newer one: {refused}");
    assert!(
        refused.contains("HTTP/1.1 412") && refused.contains("stale"),
        "{refused}"
    );
    let object = folder.path().join("s3/demo/hello.txt");
    assert_eq!(std::fs::read_to_string(&object).unwrap(), "newer");
    until("the refusals are audited", || {
        let audit = text(&paste(&dev, &["ringfence audit tail"]));
        audit.contains("stale") && audit.contains("missing")
    });
    dev.signal(Signal::INT);
    assert_eq!(dev.code(), 0, "{}", dev.stderr());
}

#[test]
fn dev_fences_an_etcd_that_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let etcd = etcd::Etcd::start(etcd::Version::V3_4, 1);
    let mut dev = dev(folder.path(), &["--etcd", &etcd.endpoint(0)]);
    let line = dev.line_with("proxy, etcd");
    let address = line.split_whitespace().nth(2).unwrap().to_owned();
    let ctl = |args: &[&str]| {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &address]);
        command.args(args).output().expect("etcdctl runs")
    };
    let put = ctl(&["put", "k", "v"]);
    let said = String::from_utf8_lossy(&put.stderr);
    assert!(
        !put.status.success() && said.contains("lock `etcd`"),
        "{put:?}"
    );
    assert!(ctl(&["get", "k"]).status.success());
}

#[test]
fn dev_starts_again_on_what_it_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut tokens = vec![];
    for _ in 0..2 {
        let mut dev = dev(folder.path(), &[]);
        let line = dev.line_with("lock service");
        let lockd = line.split_whitespace().last().unwrap().to_owned();
        let mut lock = ringfence();
        lock.args(["lock", "demo", "--lockd", &lockd, "--", "sh", "-c"]);
        let ran = lock.arg("echo $FENCING_TOKEN_NUMBER").output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        tokens.push(text(&ran).trim().parse::<u64>().unwrap());
        dev.signal(Signal::TERM);
        assert_eq!(dev.code(), 0, "{}", dev.stderr());
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

#[test]
fn a_lock_is_sealed_at_the_proxy_and_can_be_sealed_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let dev = dev(folder.path(), &[]);
    let url = |what: &str| {
        let printed = dev.stdout();
        let line = printed
            .lines()
            .find(|line| line.starts_with(what))
            .unwrap()
            .to_owned();
        line.split_whitespace()
            .find(|word| word.starts_with("http://"))
            .unwrap()
            .to_owned()
    };
    let mut holder = ringfence();
    holder.args(["lock", "demo", "--lockd", &url("lock service")]);
    let mut holder = Running::start(&mut holder);
    let ticket = holder.first_line();
    let seal = |name: &str, ticket: &str| {
        let mut seal = ringfence();
        seal.args([
            "seal",
            name,
            "--proxy",
            &url("proxy, admin"),
            "--output",
            "json",
        ]);
        seal.env("FENCING_TOKEN", ticket).output().unwrap()
    };
    let sealed = seal("demo", &ticket);
    assert!(sealed.status.success(), "{sealed:?}");
    let sealed: serde_json::Value = serde_json::from_slice(&sealed.stdout).unwrap();
    assert_eq!(sealed["lock"], "demo");
    assert_eq!(
        seal("other", &ticket).status.code(),
        Some(64),
        "another lock's ticket"
    );
    assert_eq!(seal("demo", "7").status.code(), Some(1), "a bare integer");
}

#[test]
fn a_port_that_is_taken_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = ringfence();
    command
        .arg("dev")
        .arg("--data")
        .arg(folder.path())
        .args(["--lockd-listen", &address]);
    let ran = command.output().unwrap();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(
        String::from_utf8_lossy(&ran.stderr).contains(&address),
        "{ran:?}"
    );
}

#[test]
fn the_demo_shows_the_stale_write_refused() {
    let ran = ringfence().arg("demo").output().unwrap();
    let told = text(&ran);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert!(
        told.contains("A's write is answered: 200"),
        "without the proxy it wins: {told}"
    );
    assert!(told.contains("A's write is answered: 412"), "{told}");
    assert!(told.contains(r#""code":"stale""#), "{told}");
    assert_eq!(ran.stderr, b"", "{}", String::from_utf8_lossy(&ran.stderr));
}
