//! psql, pg_dump and pgbench, and the ways to tell a password.

use std::net::SocketAddr;
use std::process::Command;

use super::{outcome, run};
use crate::postgres::cluster::client_program;
use crate::postgres::{APP, CLEARTEXT, MD5, SCRAM};
use crate::world::World;

/// A program of Postgres's for this address.
pub fn program(name: &str, address: SocketAddr) -> Command {
    let mut command = Command::new(client_program(name));
    command
        .env("PGHOST", "127.0.0.1")
        .env("PGPORT", address.port().to_string())
        .env("PGUSER", APP)
        .env("PGDATABASE", APP)
        .env("PGCONNECT_TIMEOUT", "20");
    command
}

fn psql(address: SocketAddr, commands: &[&str]) -> Command {
    let mut command = program("psql", address);
    command.args(["-X", "-a", "-e"]);
    for text in commands {
        command.args(["-c", text]);
    }
    command
}

#[test]
fn psql_shows_what_it_shows_directly() {
    let world = World::new();
    let ticket = world.proxy.ticket(1);
    let script = [
        "SELECT 1/0",
        "SELEC 1",
        "SELECT * FROM orders",
        "DO $$BEGIN RAISE NOTICE 'noticed'; RAISE WARNING 'warned' USING HINT = 'so'; END$$",
        "DROP TABLE IF EXISTS missing",
        "\\d orders",
        "\\dt",
        "\\conninfo",
        "\\c app app",
        "SELECT 'after'",
        "\\copy orders TO STDOUT",
        "\\errverbose",
        "INSERT INTO orders VALUES (1, 'twice')",
        "SELECT 1 \\gdesc",
        "BEGIN",
        "SAVEPOINT a",
        "ROLLBACK TO a",
        "COMMIT",
        // Ends a psql that nobody types into.
        "\\c nowhere",
    ];
    let shown = |address: SocketAddr, options: &str| {
        let (_, out, complaint) = outcome(psql(address, &script).env("PGOPTIONS", options));
        let port = address.port().to_string();
        (out.replace(&port, "PORT"), complaint.replace(&port, "PORT"))
    };
    let direct = shown(world.server.address, "");
    assert!(
        direct.0.contains("PORT") && direct.1.contains("noticed"),
        "{direct:?}"
    );
    let options = format!("-c ringfence.token={ticket}");
    assert_eq!(direct, shown(world.proxy.address(), &options));
    // Without a ticket the refusal is shown, with its DETAIL.
    let write = "UPDATE orders SET note = 'x'";
    let (_, _, complaint) = outcome(&mut psql(world.proxy.address(), &[write]));
    assert!(complaint.starts_with("ERROR:"), "{complaint}");
    assert!(
        complaint.contains("DETAIL:") && complaint.contains("\"missing\""),
        "{complaint}"
    );
}

#[test]
fn each_way_to_tell_a_password_works_and_a_wrong_one_is_refused_as_directly() {
    let world = World::new();
    for (user, secret) in [SCRAM, MD5, CLEARTEXT] {
        let ask = |address, secret: &str| {
            let mut command = psql(address, &["SELECT current_user"]);
            command.env("PGUSER", user).env("PGPASSWORD", secret);
            command.args(["-t", "-A"]);
            let (success, out, complaint) = outcome(&mut command);
            let port: SocketAddr = address;
            (
                success,
                out,
                complaint.replace(&port.port().to_string(), "PORT"),
            )
        };
        let direct = ask(world.server.address, secret);
        assert!(direct.0 && direct.1.contains(user), "{direct:?}");
        assert_eq!(direct, ask(world.proxy.address(), secret), "{user}");
        let direct = ask(world.server.address, "wrong");
        assert!(!direct.0, "{direct:?}");
        assert_eq!(direct, ask(world.proxy.address(), "wrong"), "{user}");
    }
}

#[test]
fn pg_dump_and_pg_restore_work() {
    let world = World::new();
    // Volatile, as functions are that are not declared otherwise.
    for sql in [
        "CREATE FUNCTION is_email(text) RETURNS boolean LANGUAGE plpgsql AS \
         $$ BEGIN RETURN $1 LIKE '%@%'; END $$",
        "CREATE DOMAIN email AS text CHECK (is_email(VALUE))",
        "CREATE TABLE people (id int, address email)",
    ] {
        world.direct().query(sql).ok();
    }
    let ticket = format!("-c ringfence.token={}", world.proxy.ticket(1));
    let dump = |address: SocketAddr| {
        let text = run(program("pg_dump", address).env("PGOPTIONS", &ticket));
        // Newer minor versions write a random word.
        let random = |line: &&str| !line.contains("restrict");
        text.lines().filter(random).collect::<Vec<_>>().join("\n")
    };
    let direct = dump(world.server.address);
    assert!(direct.contains("set_config('search_path'"), "{direct}");
    assert_eq!(direct, dump(world.proxy.address()));
    // In parallel: the snapshot of one session is imported by others.
    let folder = world.path().join("dump");
    let mut parallel = program("pg_dump", world.proxy.address());
    parallel.args(["--format=directory", "--jobs=2", "--file"]);
    run(parallel.arg(&folder).env("PGOPTIONS", &ticket));
    assert!(folder.join("toc.dat").exists());
    let file = world.path().join("dump.sql");
    let dropping = run(program("pg_dump", world.proxy.address()).args(["--clean"]));
    std::fs::write(&file, dropping).unwrap();
    let mut restore = program("psql", world.proxy.address());
    restore
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f"])
        .arg(&file);
    assert!(!outcome(&mut restore).0, "restored without a ticket");
    run(restore.env("PGOPTIONS", &ticket));
    assert_eq!(world.order(), "first");
}

#[test]
fn pgbench_works_by_every_protocol() {
    let world = World::new();
    let ticket = format!("-c ringfence.token={}", world.proxy.ticket(1));
    let bench = |arguments: &[&str]| {
        let mut command = program("pgbench", world.proxy.address());
        run(command.args(arguments).env("PGOPTIONS", &ticket))
    };
    bench(&["-i", "-s", "1", "-q"]);
    let pipeline = world.path().join("pipeline.sql");
    let text = "\\startpipeline\nSELECT 1;\nUPDATE pgbench_branches SET bbalance = 1;\n\
         SELECT abalance FROM pgbench_accounts WHERE aid = 1;\n\\endpipeline\n";
    std::fs::write(&pipeline, text).unwrap();
    let pipeline = pipeline.to_str().unwrap();
    for protocol in ["simple", "extended", "prepared"] {
        for script in [&["-S"][..], &["-b", "tpcb-like"], &["-f", pipeline]] {
            // A pipeline is not possible in simple protocol.
            if protocol == "simple" && script[0] == "-f" {
                continue;
            }
            let told = bench(&[script, &["-n", "-c4", "-t50", "-M", protocol]].concat());
            assert!(
                told.contains("processed: 200/200"),
                "{protocol} {script:?}: {told}"
            );
        }
    }
}
