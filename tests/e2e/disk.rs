//! A full disk: writes are refused as busy, nothing is forwarded, and service comes back with
//! space.

use std::path::PathBuf;
use std::process::Command;

use crate::backend::Origin;
use crate::clients::{Holder, put};
use crate::stack::{Lockd, Proxy, ProxySetup, eventually};

const RULE: &str = "[[listener.rule]]\nlock = \"orders/{id}\"\npath = \"/orders/{id}\"\n";

/// A small file system of its own. Needs root, as the rest of the test machine does.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> SmallDisk {
        std::fs::create_dir_all(&at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
            .arg(&at)
            .status()
            .unwrap();
        assert!(
            mounted.success(),
            "cannot mount a tmpfs at {}",
            at.display()
        );
        SmallDisk(at)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn fill(disk: &SmallDisk) -> PathBuf {
    let path = disk.0.join("filler");
    let mut file = std::fs::File::create(&path).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        while std::io::Write::write_all(&mut file, &vec![0; size]).is_ok() {}
    }
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_as_busy_forwards_nothing_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(dir.path().join("small"));
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
        data: Some(disk.0.join("data")),
    };
    let proxy = Proxy::start(dir.path(), &setup);
    let mut holder = Holder::open(&lockd, 120_000).await;

    let first = holder.acquire("orders/1", 0).await.unwrap();
    assert_eq!(
        put(&proxy.url("/orders/1"), "before", Some(&first.ticket)).status,
        200
    );

    let filler = fill(&disk);
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
