//! The same with a proxy for each holder, which share nothing but the server:
//! `watermarks.store = "backend"`.

use std::sync::Arc;

use super::pair::{Fate, Pair};
use super::{every_step_of, quick, random_rounds, tries};
use crate::postgres::Postgres;
use crate::stack::{Proxy, Setup};
use crate::world::{WRITE, World};

pub const BACKEND: &str = "[watermarks]\nstore = \"backend\"\n";

struct Two {
    pair: Pair,
    server: Postgres,
    _dir: tempfile::TempDir,
}

fn two() -> Two {
    let dir = tempfile::tempdir().unwrap();
    let server = World::server();
    let mut admin = crate::client::Client::connect_with(server.address, &[("user", "postgres")]);
    admin
        .query("GRANT CREATE ON DATABASE postgres TO ringfence_control")
        .ok();
    let one = Setup {
        tables: BACKEND.to_owned(),
        ..quick(Setup::new(server.address))
    };
    let other = Setup {
        name: "edge-2",
        key: Arc::clone(&one.key),
        ..one.clone()
    };
    Proxy::install(dir.path(), &one);
    let pair = Pair::two(
        Proxy::start(dir.path(), &one),
        Proxy::start(dir.path(), &other),
    );
    Two {
        pair,
        server,
        _dir: dir,
    }
}

#[test]
fn every_step_with_the_other_proxy_alive() {
    let mut two = two();
    every_step_of(&mut two.pair, &two.server, Fate::Alive);
}

#[test]
fn every_step_with_the_other_proxy_killed() {
    let mut two = two();
    every_step_of(&mut two.pair, &two.server, Fate::Killed);
}

#[test]
fn every_step_with_the_other_proxy_stopped() {
    let mut two = two();
    every_step_of(&mut two.pair, &two.server, Fate::Stopped);
}

#[test]
fn random_steps_at_random_times_through_two_proxies() {
    let mut two = two();
    random_rounds(&mut two.pair, &two.server, tries(40));
}

#[test]
fn a_token_that_was_seen_at_one_proxy_makes_older_ones_stale_at_the_other() {
    let two = two();
    let (one, other) = (two.pair.older(), two.pair.newer());
    one.holder(5).query(WRITE).ok();
    let mut new = other.holder(6);
    assert_eq!(new.query("SELECT note FROM orders").value(), "written");
    one.holder(5).query(WRITE).refused("RF001");
    new.query(WRITE).ok();
    // Equal passes, at both.
    one.holder(6).query(WRITE).ok();
    other.holder(6).query(WRITE).ok();
}

#[test]
fn clients_neither_see_nor_change_what_the_proxies_keep_there() {
    let two = two();
    let proxy = two.pair.older();
    let mut client = proxy.holder(3);
    client.query(WRITE).ok();
    let parameters = [("database", "postgres")];
    let mut beside = crate::client::Client::connect_with(proxy.address(), &parameters);
    for client in [&mut client, &mut beside] {
        for sql in [
            "DROP SCHEMA ringfence CASCADE",
            "CREATE TABLE ringfence.x (a int)",
            "SELECT setval(c.oid, 1) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace \
             WHERE nspname = 'ringfence' AND relkind = 'S' UNION ALL SELECT 1/0",
        ] {
            let told = client.query(sql);
            assert_ne!(told.code(), "", "{sql}: {told:?}");
        }
    }
    proxy.holder(2).query(WRITE).refused("RF001");
}

#[test]
fn without_the_schema_nothing_is_admitted_or_started() {
    let dir = tempfile::tempdir().unwrap();
    let server = World::server();
    let setup = Setup {
        tables: BACKEND.to_owned(),
        ..quick(Setup::new(server.address))
    };
    let said = Proxy::refuses_to_start(dir.path(), &setup);
    assert!(said.contains("--install"), "{said}");
}
