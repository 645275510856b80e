//! Drivers of other people, as they come.

use std::path::Path;
use std::process::Command;

use crate::support::{JOBS, Version, World};

#[tokio::test(flavor = "multi_thread")]
async fn a_python_driver_works_unchanged() {
    for version in [Version::V3_4, Version::V3_5] {
        let world = World::new(version);
        let proxy = world.proxy("a", JOBS);
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = std::env::var_os("RINGFENCE_TEST_PYTHON")
            .map_or_else(|| root.join(".venv/bin/python"), Into::into);
        let mut command = Command::new(python);
        command
            .arg(root.join("tests/etcd_proxy/driver.py"))
            .arg(proxy.address.port().to_string())
            .args([world.ticket("orders", 1), world.ticket("orders", 2)]);
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = output.await.unwrap().expect("python runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(world.value("orders").await.as_deref(), Some("new"));
    }
}
