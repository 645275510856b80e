//! What survives: crashes, clean ends, full disks, lost and damaged stores.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ringfence::proxy::StartError;
use ringfence::proxy::watermarks::{FILE_NAME, OpenError, Opening, Watermarks};

use crate::support::{OK, Setup, World, get, put, until};

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_the_first_request_below_the_watermark_is_refused() {
    let mut world = World::new(&Setup::default()).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    assert_eq!(
        world.pass(&put("/accounts/7/x", &new, "v")).await.1.status,
        200
    );
    world.crash();
    world.start(&Setup::default(), false).unwrap();
    world
        .ask(&put("/accounts/7/x", &old, "v"))
        .await
        .refused(412, "stale");
    world
        .ask(&get("/accounts/7/x", &old))
        .await
        .refused(412, "stale");
    world.backend.is_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_newer_tokens_wait_for_the_hold_and_its_holder_goes_on() {
    let mut world = World::new(&Setup::default()).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    assert_eq!(
        world.pass(&put("/accounts/7/x", &old, "v")).await.1.status,
        200
    );
    // The lazy record that nothing older was in flight must be on disk, or the holder waits too.
    assert_eq!(
        world.pass(&put("/accounts/7/x", &old, "v")).await.1.status,
        200
    );
    world.crash();
    let started = Instant::now();
    world.start(&Setup::default(), false).unwrap();
    assert_eq!(
        world.pass(&put("/accounts/7/x", &old, "v")).await.1.status,
        200
    );
    world
        .ask(&get("/accounts/7/x", &new))
        .await
        .refused(503, "busy");
    until("the end of the hold", || async {
        let mut client = world.client().await;
        client.send(get("/accounts/7/x", &new).as_bytes()).await;
        tokio::select! {
            reply = client.reply() => { reply.refused(503, "busy"); false }
            mut backend = world.backend.accept() => {
                backend.request().await;
                backend.send(OK).await;
                client.reply().await.status == 200
            }
        }
    })
    .await;
    assert!(
        started.elapsed() >= Duration::from_secs(1),
        "the hold was cut short"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_clean_end_nothing_waits() {
    let long = Setup::listener("in_doubt_hold = \"1h\"\nadmit_deadline = \"300ms\"");
    let mut world = World::new(&long).await;
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    assert_eq!(
        world.pass(&put("/accounts/7/x", &old, "v")).await.1.status,
        200
    );
    world.shutdown().await;
    // Other rules on top: after a clean end they need no hold either.
    let other = Setup {
        rules: MORE_RULES,
        ..long
    };
    world.start(&other, false).unwrap();
    assert_eq!(
        world.pass(&put("/accounts/7/x", &new, "v")).await.1.status,
        200
    );
    world
        .ask(&put("/accounts/7/x", &old, "v"))
        .await
        .refused(412, "stale");
}

const MORE_RULES: &str = r#"
    [[listener.rule]]
    lock = "accounts/{id}"
    path = "/accounts/{id}/**"
    [[listener.rule]]
    lock = "everything"
    path = "/all"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_under_other_rules_every_lock_starts_in_doubt() {
    let mut world = World::new(&Setup::default()).await;
    world.crash();
    world
        .start(
            &Setup {
                rules: MORE_RULES,
                ..Setup::default()
            },
            false,
        )
        .unwrap();
    let ticket = world.ticket("everything", 1);
    world
        .ask(&put("/all", &ticket, "v"))
        .await
        .refused(503, "busy");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_data_folder_is_refused_without_init_and_an_old_one_with_it() {
    let mut world = World::stopped().await;
    let refused = world.start(&Setup::default(), false).unwrap_err();
    assert!(matches!(
        refused,
        StartError::Watermarks(OpenError::NotInitialised { .. })
    ));
    assert!(refused.to_string().contains("--init"), "{refused}");
    assert!(!world.data_dir().join(FILE_NAME).exists());
    world.start(&Setup::default(), true).unwrap();
    world.shutdown().await;
    let refused = world.start(&Setup::default(), true).unwrap_err();
    assert!(matches!(
        refused,
        StartError::Watermarks(OpenError::AlreadyInitialised { .. })
    ));
    world.start(&Setup::default(), false).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_store_is_refused_and_not_replaced() {
    let mut world = World::new(&Setup::default()).await;
    world.shutdown().await;
    let file = world.data_dir().join(FILE_NAME);
    let whole = std::fs::read(&file).unwrap();
    let mut torn = whole.clone();
    torn[..512].fill(0);
    for bad in [
        &b""[..],
        b"not a database",
        &torn,
        &whole[..whole.len() / 2],
    ] {
        std::fs::write(&file, bad).unwrap();
        let refused = world.start(&Setup::default(), false).unwrap_err();
        assert!(
            matches!(refused, StartError::Watermarks(OpenError::Unusable { .. })),
            "{refused}"
        );
        assert!(refused.to_string().contains(FILE_NAME), "{refused}");
    }
    std::fs::write(&file, &whole).unwrap();
    world.start(&Setup::default(), false).unwrap();
}

#[test]
fn a_store_with_a_changed_byte_is_refused_in_words_or_of_use() {
    let dir = tempfile::tempdir().unwrap();
    let opening = |init| Opening {
        init,
        alone: true,
        registered: false,
        fingerprint: 1,
        patterns: vec!["accounts/*".to_owned()],
    };
    let (watermarks, thread, _) = Watermarks::open(dir.path(), opening(true)).unwrap();
    drop(watermarks);
    thread.close(true);
    let file = dir.path().join(FILE_NAME);
    let whole = std::fs::read(&file).unwrap();
    let used = whole.iter().enumerate().filter(|(_, byte)| **byte != 0);
    let used: Vec<usize> = used.map(|(at, _)| at).collect();
    let mut refused = 0;
    for at in used.iter().step_by(used.len().div_ceil(200)) {
        let mut changed = whole.clone();
        changed[*at] ^= 0x24;
        std::fs::write(&file, &changed).unwrap();
        match Watermarks::open(dir.path(), opening(false)) {
            Ok((watermarks, thread, _)) => {
                let _ = (watermarks.sessions(), watermarks.prepared());
                thread.close(true);
            }
            Err(OpenError::Unusable { .. }) => refused += 1,
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    assert!(refused > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_proxies_never_share_a_store() {
    let world = World::new(&Setup::default()).await;
    let mut second = World::stopped().await;
    let setup = Setup {
        data_dir: Some(world.data_dir()),
        ..Setup::default()
    };
    let refused = second.start(&setup, false).unwrap_err();
    assert!(
        matches!(refused, StartError::Watermarks(OpenError::Unusable { .. })),
        "{refused}"
    );
}

/// A small file system of its own, unmounted at the end.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> SmallDisk {
        let dir = tempfile::tempdir().unwrap();
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
            .arg(dir.path()));
        SmallDisk(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run(Command::new("umount").arg("--lazy").arg(self.0.path()));
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_writes_as_busy_until_there_is_room() {
    let disk = SmallDisk::mount();
    let setup = Setup {
        data_dir: Some(disk.path().join("data")),
        ..Setup::default()
    };
    let mut world = World::new(&setup).await;
    let first = world.ticket("accounts/0", 1);
    assert_eq!(
        world
            .pass(&put("/accounts/0/x", &first, "v"))
            .await
            .1
            .status,
        200
    );
    let filler = disk.path().join("filler");
    fill(&filler);
    let lock = refused_for_want_of_room(&mut world).await;
    let write = put(&format!("/{lock}/x"), &world.ticket(&lock, 1), "v");
    world.ask(&write).await.refused(503, "busy");
    world.backend.is_untouched().await;
    // Its file is closed, and still its own.
    let mut second = World::stopped().await;
    let taken = second.start(&setup, false).unwrap_err().to_string();
    assert!(taken.contains("another process uses it"), "{taken}");
    // What is settled needs no disk.
    assert_eq!(
        world
            .pass(&put("/accounts/0/x", &first, "v"))
            .await
            .1
            .status,
        200
    );
    std::fs::remove_file(filler).unwrap();
    until("service after there is room", || async {
        let mut client = world.client().await;
        client.send(write.as_bytes()).await;
        tokio::select! {
            reply = client.reply() => { reply.refused(503, "busy"); false }
            mut backend = world.backend.accept() => {
                backend.request().await;
                backend.send(OK).await;
                client.reply().await.status == 200
            }
        }
    })
    .await;
    // Nothing was forgotten on the way.
    world.crash();
    world.start(&setup, false).unwrap();
    let lowest = world.ticket("accounts/0", 1);
    let raised = world.ticket("accounts/0", 2);
    assert_eq!(
        world
            .pass(&put("/accounts/0/x", &lowest, "v"))
            .await
            .1
            .status,
        200
    );
    world
        .ask(&get("/accounts/0/x", &raised))
        .await
        .refused(503, "busy");
    world.crash();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_whose_store_is_another_one_when_it_opens_again_admits_nothing() {
    let disk = SmallDisk::mount();
    let setup = Setup {
        data_dir: Some(disk.path().join("data")),
        ..Setup::default()
    };
    let mut world = World::new(&setup).await;
    let settled = put("/accounts/0/x", &world.ticket("accounts/0", 1), "v");
    assert_eq!(world.pass(&settled).await.1.status, 200);
    let mut other = World::new(&Setup::default()).await;
    let other_file = other.data_dir().join(FILE_NAME);
    other.shutdown().await;
    let filler = disk.path().join("filler");
    fill(&filler);
    let lock = refused_for_want_of_room(&mut world).await;
    std::fs::remove_file(filler).unwrap();
    std::fs::copy(other_file, disk.path().join("data").join(FILE_NAME)).unwrap();
    let write = put(&format!("/{lock}/x"), &world.ticket(&lock, 1), "v");
    world.ask(&write).await.refused(503, "busy");
    until("nothing is admitted", || async {
        let mut client = world.client().await;
        client.send(settled.as_bytes()).await;
        tokio::select! {
            reply = client.reply() => { reply.refused(503, "busy"); true }
            mut backend = world.backend.accept() => {
                backend.request().await;
                backend.send(OK).await;
                client.reply().await.status != 200
            }
        }
    })
    .await;
    world.crash();
}

/// Raises need pages: sooner or later the file would have to grow. The lock that was refused.
async fn refused_for_want_of_room(world: &mut World) -> String {
    for lock in 1..20_000 {
        let name = format!("accounts/{lock}");
        let request = get("/accounts/1/x", &world.ticket(&name, 1));
        let mut client = world.client().await;
        client.send(request.as_bytes()).await;
        tokio::select! {
            reply = client.reply() => { reply.refused(503, "busy"); return name }
            mut backend = world.backend.accept() => {
                backend.request().await;
                backend.send(OK).await;
                assert_eq!(client.reply().await.status, 200);
            }
        }
    }
    panic!("the disk never filled");
}

/// Takes all the room that there is.
fn fill(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).unwrap();
    let mut chunk = 64 << 10;
    while chunk > 0 {
        if file.write_all(&vec![0; chunk]).is_err() {
            chunk /= 2;
        }
    }
}
