//! Clients as they come: psql and the other programs of Postgres, psycopg, asyncpg, node-postgres.

pub mod psql;

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};

use crate::world::World;

/// What `make test-needs` has installed, under the name of a variable of its own.
fn installed(variable: &str, place: &str) -> OsString {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join(place).into();
    std::env::var_os(variable).unwrap_or_else(default)
}

/// Runs it: whether it succeeds, what it prints, what it complains.
pub fn outcome(command: &mut Command) -> (bool, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .output()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.success(), text(&stdout), text(&stderr))
}

/// What it prints, when it succeeds.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let (success, out, complaint) = outcome(command);
    assert!(success, "{command:?}\n{out}\n{complaint}");
    out
}

fn driver(program: &OsString, script: &str, world: &World) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(program);
    command
        .arg(root.join("tests/postgres/drivers").join(script))
        .arg(world.proxy.address().port().to_string())
        .args([world.proxy.ticket(1), world.proxy.ticket(2)]);
    command
}

#[test]
fn psycopg_works() {
    let world = World::new();
    let python = installed("RINGFENCE_TEST_PYTHON", ".venv/bin/python");
    assert_eq!(
        run(&mut driver(&python, "with_psycopg.py", &world)).trim(),
        "done"
    );
    assert_eq!(world.order(), "second");
}

#[test]
fn asyncpg_works() {
    let world = World::new();
    let python = installed("RINGFENCE_TEST_PYTHON", ".venv/bin/python");
    assert_eq!(
        run(&mut driver(&python, "with_asyncpg.py", &world)).trim(),
        "done"
    );
    assert_eq!(world.order(), "second");
}

#[test]
fn node_postgres_works() {
    let world = World::new();
    let modules = installed("RINGFENCE_TEST_NODE_MODULES", ".node/node_modules");
    let mut command = driver(&"node".into(), "with_node.js", &world);
    assert_eq!(run(command.env("NODE_PATH", modules)).trim(), "done");
    assert_eq!(world.order(), "second");
}
