//! `ringfence proxy`: checking a configuration, and starting.

mod cli_support;

use std::path::Path;

use cli_support::{Running, ringfence};
use rustix::process::Signal;

fn write_config(folder: &Path, tickets: &str) -> std::path::PathBuf {
    let file = folder.join("proxy.toml");
    let data = folder.join("data");
    let text = format!(
        "instance = \"edge-1\"\ndata_dir = {:?}\n[tickets]\n{tickets}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n\
         [[listener]]\nname = \"web\"\nprotocol = \"http\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = \"127.0.0.1:1\"\n[[listener.rule]]\nlock = \"a\"\npath = \"/**\"\n",
        data.to_str().unwrap()
    );
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn check_says_whether_a_file_is_valid_and_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = write_config(folder.path(), "lockd = \"http://127.0.0.1:7420\"");
    let check = || {
        ringfence()
            .args(["proxy", "--check", "--config"])
            .arg(&file)
            .output()
            .unwrap()
    };
    let valid = check();
    assert_eq!(valid.status.code(), Some(0), "{valid:?}");
    assert!(!folder.path().join("data").exists());

    write_config(folder.path(), "lockdd = \"http://127.0.0.1:7420\"");
    let wrong = check();
    assert_eq!(wrong.status.code(), Some(64), "{wrong:?}");
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert!(
        said.contains("lockdd") && said.contains("proxy.toml"),
        "{said}"
    );

    write_config(folder.path(), "lockd = \"http://127.0.0.1:7420\"");
    let text = format!(
        "{}[[listener]]\nname = \"kv\"\nprotocol = \"etcd\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = \"127.0.0.1:1\"\netcd_user = \"proxy\"\netcd_password_file = \"/not/there\"\n",
        std::fs::read_to_string(&file).unwrap()
    );
    std::fs::write(&file, text).unwrap();
    let missing = check();
    assert_eq!(missing.status.code(), Some(64), "{missing:?}");
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(said.contains("/not/there"), "{said}");

    std::fs::remove_file(&file).unwrap();
    let missing = check();
    assert_eq!(missing.status.code(), Some(64), "{missing:?}");
}

#[test]
fn a_proxy_that_stands_alone_needs_init_once() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    let made = ringfence()
        .args(["keys", "generate", "--dir"])
        .arg(&keys)
        .output()
        .unwrap();
    let public = folder.path().join("tickets.pub");
    std::fs::write(&public, made.stdout).unwrap();
    let file = write_config(
        folder.path(),
        &format!("keys = {:?}", public.to_str().unwrap()),
    );
    let command = |more: &[&str]| {
        let mut command = ringfence();
        command.args(["proxy", "--config"]).arg(&file).args(more);
        command
    };
    let refused = command(&[]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("--init"),
        "{refused:?}"
    );

    // Whatever is wrong with the file of keys, nothing is made that a later --init would find.
    let good = std::fs::read(&public).unwrap();
    let break_it: [&dyn Fn(); 3] = [
        &|| std::fs::write(&public, "").unwrap(),
        &|| std::fs::remove_file(&public).unwrap(),
        &|| std::fs::create_dir(&public).unwrap(),
    ];
    for break_it in break_it {
        break_it();
        for more in ["--check", "--init"] {
            let refused = command(&[more]).output().unwrap();
            assert_eq!(refused.status.code(), Some(64), "{refused:?}");
            let said = String::from_utf8_lossy(&refused.stderr);
            assert!(said.contains("tickets.pub"), "{said}");
        }
    }
    std::fs::remove_dir(&public).unwrap();
    std::fs::write(&public, good).unwrap();
    assert!(!folder.path().join("data/watermarks.redb").exists());

    for more in [&["--init"][..], &[]] {
        let mut proxy = Running::start(&mut command(more));
        assert!(proxy.line_with("listener web ").contains("127.0.0.1:"));
        proxy.signal(Signal::TERM);
        assert_eq!(proxy.code(), 0, "{}", proxy.stderr());
    }
}
