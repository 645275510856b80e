//! A full disk: writes are refused as busy, nothing is forwarded, and service comes back with
//! space.

use std::path::PathBuf;
use std::process::Command;

use crate::backend::Origin;
use crate::clients::{Holder, put};
use crate::stack::{Lockd, Proxy, ProxySetup, eventually};

const RULE: &str = "[[listener.rule]]\nlock = \"orders/{id}\"\npath = \"/orders/{id}\"\n";

/// A small file system of the proxy's own, in a mount namespace, which goes with it. Root may mount
/// there, and so may whoever is root in a user namespace (user_namespaces(7)): no privilege is
/// needed.
struct SmallDisk {
    /// Where the proxy sees it.
    at: PathBuf,
    /// The program that mounts it and becomes the proxy.
    by: Vec<String>,
}

impl SmallDisk {
    fn new(at: PathBuf) -> SmallDisk {
        std::fs::create_dir_all(&at).unwrap();
        let mount = "mount -t tmpfs -o size=8m tmpfs \"$0\" && exec \"$@\"";
        let mut told = vec![];
        for namespaces in [&["--mount"][..], &["--mount", "--user", "--map-root-user"]] {
            let words = [&["unshare"], namespaces, &["sh", "-c", mount]].concat();
            let mut by: Vec<String> = words.into_iter().map(str::to_owned).collect();
            by.push(at.to_str().unwrap().to_owned());
            let mut trial = Command::new(&by[0]);
            let tried = trial.args(&by[1..]).arg("true").output();
            let tried = tried.expect("unshare, of util-linux, is installed");
            if tried.status.success() {
                return SmallDisk { at, by };
            }
            told.push(String::from_utf8_lossy(&tried.stderr).into_owned());
        }
        panic!("a small disk needs root, or that others may have user namespaces: {told:?}");
    }

    /// A file of it, as others reach it. proc(5): what a process sees, mounts of its own namespace
    /// included.
    fn file(&self, proxy: &Proxy, name: &str) -> PathBuf {
        let root = format!("/proc/{}/root", proxy.process.pid());
        format!("{root}{}", self.at.join(name).display()).into()
    }

    /// Takes all of its space; the file that does.
    fn fill(&self, proxy: &Proxy) -> PathBuf {
        let path = self.file(proxy, "filler");
        let mut file = std::fs::File::create(&path).unwrap();
        for size in [1 << 16, 1 << 12, 1] {
            while std::io::Write::write_all(&mut file, &vec![0; size]).is_ok() {}
        }
        path
    }
}

/// Until the disk is asked for more than it has.
async fn write_until_refused(holder: &mut Holder, proxy: &Proxy) {
    for lock in 2..400 {
        let grant = holder.acquire(&format!("orders/{lock}"), 0).await.unwrap();
        let url = proxy.url(&format!("/orders/{lock}"));
        if put(&url, "full", Some(&grant.ticket)).status == 503 {
            return;
        }
    }
    panic!("the disk never was full");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_of_the_present_run_is_not_gone_on_with_after_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::new(dir.path().join("small"));
    let lockd = Lockd::start(
        dir.path(),
        "[[seal]]\npattern = \"**\"\nmode = \"best-effort\"\n",
    );
    let origin = Origin::start();
    let setup = ProxySetup {
        name: "edge-1",
        protocol: "http",
        upstream: origin.address,
        lockd: &lockd,
        listener: "",
        rules: RULE,
        data: Some(disk.at.join("data")),
    };
    let proxy = Proxy::start_by(dir.path(), &setup, &disk.by);
    let (url, lock) = (proxy.url("/orders/1"), "orders/1");
    let mut first = Holder::open(&lockd, 120_000).await;
    let old = first.acquire(lock, 0).await.unwrap().ticket;
    assert_eq!(put(&url, "first", Some(&old)).status, 200);
    let store = disk.file(&proxy, "data/watermarks.redb");
    let copy = dir.path().join("copy.redb");
    std::fs::copy(&store, &copy).unwrap();
    first.close().await;
    let mut second = Holder::open(&lockd, 120_000).await;
    let new = second.acquire(lock, 20_000).await.unwrap().ticket;
    assert_eq!(put(&url, "second", Some(&new)).status, 200);

    let filler = disk.fill(&proxy);
    write_until_refused(&mut second, &proxy).await;
    std::fs::remove_file(&store).unwrap();
    std::fs::remove_file(filler).unwrap();
    std::fs::copy(&copy, &store).unwrap();
    eventually("it says so", || {
        proxy
            .process
            .log()
            .contains("the watermark store was replaced")
    });
    assert!(!proxy.is_ready());
    let before = origin.applied().len();
    for ticket in [&old, &new] {
        let told = put(&url, "late", Some(ticket));
        assert_ne!(told.status, 200, "{told:?}");
    }
    assert_eq!(origin.applied().len(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_as_busy_forwards_nothing_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::new(dir.path().join("small"));
    let lockd = Lockd::start(
        dir.path(),
        "[[seal]]\npattern = \"**\"\nmode = \"best-effort\"\n",
    );
    let origin = Origin::start();
    let setup = ProxySetup {
        name: "edge-1",
        protocol: "http",
        upstream: origin.address,
        lockd: &lockd,
        listener: "",
        rules: RULE,
        data: Some(disk.at.join("data")),
    };
    let proxy = Proxy::start_by(dir.path(), &setup, &disk.by);
    let mut holder = Holder::open(&lockd, 120_000).await;

    let first = holder.acquire("orders/1", 0).await.unwrap();
    assert_eq!(
        put(&proxy.url("/orders/1"), "before", Some(&first.ticket)).status,
        200
    );

    let filler = disk.fill(&proxy);
    let mut refused = 0;
    let mut tickets = Vec::new();
    // Pages that are free inside the file take a few raises before the disk is really asked.
    for lock in 2..400 {
        let grant = holder.acquire(&format!("orders/{lock}"), 0).await.unwrap();
        let before = origin.applied().len();
        let reply = put(
            &proxy.url(&format!("/orders/{lock}")),
            "full",
            Some(&grant.ticket),
        );
        if reply.status == 200 {
            continue;
        }
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (503, "busy"),
            "{reply:?}"
        );
        assert_eq!(
            origin.applied().len(),
            before,
            "a write was forwarded without a watermark"
        );
        tickets.push((lock, grant.ticket));
        refused += 1;
        if refused == 3 {
            break;
        }
    }
    assert_eq!(refused, 3, "the disk never was full");

    std::fs::remove_file(filler).unwrap();
    for (lock, ticket) in tickets {
        eventually("service with space again", || {
            put(
                &proxy.url(&format!("/orders/{lock}")),
                "after",
                Some(&ticket),
            )
            .status
                == 200
        });
    }
}
