//! With a lock service: keys, floors, coverage of seals, lost stores.

use ringfence::proto::WatermarkRequest;
use ringfence::proto::fence_service_server::FenceService as _;
use ringfence::ticket::{SealScope, SigningKey};
use tonic::Request;

use crate::registry::Registry;
use crate::support::{Setup, World, delete_folder, get, put, until};

async fn world_with_lockd() -> (World, Registry, Setup) {
    let registry = Registry::default();
    let mut world = World::stopped().await;
    registry.add_key(&world.key);
    let tickets = format!("lockd = \"http://{}\"", registry.serve().await);
    let setup = Setup {
        tickets,
        ..Setup::default()
    };
    // Nobody asks for --init: lockd knows the floors.
    world.start(&setup, false).unwrap();
    are_keys_known(&world).await;
    (world, registry, setup)
}

async fn are_keys_known(world: &World) {
    let health = world.proxy().health();
    until("the keys of the lock service", || async {
        health.check().is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_not_known_starts_at_its_floor() {
    let (mut world, registry, _) = world_with_lockd().await;
    registry.set_floor("accounts/7", 5);
    let (old, new) = (world.ticket("accounts/7", 4), world.ticket("accounts/7", 5));
    world
        .ask(&put("/accounts/7/x", &old, "v"))
        .await
        .refused(412, "stale");
    assert_eq!(
        world.pass(&put("/accounts/7/x", &new, "v")).await.1.status,
        200
    );
    // No floor, no admission.
    let unknown = world.ticket("accounts/8", 100);
    world
        .ask(&put("/accounts/8/x", &unknown, "v"))
        .await
        .refused(503, "busy");
    let registered = registry.state().registered[0].clone();
    assert_eq!(registered.instance, "edge-1");
    assert_eq!(registered.patterns, ["accounts/*"]);
    assert_eq!(registered.admin, "http://127.0.0.1:7431");
}

#[tokio::test(flavor = "multi_thread")]
async fn until_lockd_has_answered_everything_is_busy() {
    let mut world = World::stopped().await;
    let setup = Setup {
        tickets: "lockd = \"http://127.0.0.1:1\"".to_owned(),
        ..Setup::default()
    };
    world.start(&setup, false).unwrap();
    let ticket = world.ticket("accounts/7", 1);
    world
        .ask(&put("/accounts/7/x", &ticket, "v"))
        .await
        .refused(503, "busy");
    assert!(world.proxy().health().check().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_seal_must_have_covered_this_proxy() {
    let (mut world, registry, _) = world_with_lockd().await;
    registry.set_floor("accounts/7", 1);
    let elsewhere = SealScope::Required(vec!["edge-2".to_owned()]);
    let here = SealScope::Required(vec!["edge-2".to_owned(), "edge-1".to_owned()]);
    let ticket = world.sealed_ticket("accounts/7", 1, elsewhere);
    let problem = world
        .ask(&put("/accounts/7/x", &ticket, "v"))
        .await
        .refused(400, "invalid");
    assert!(
        problem["detail"]
            .to_string()
            .contains("acquire the lock again"),
        "{problem}"
    );
    let ticket = world.sealed_ticket("accounts/7", 1, here);
    assert_eq!(
        world
            .pass(&put("/accounts/7/x", &ticket, "v"))
            .await
            .1
            .status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_is_fetched_when_its_first_ticket_comes() {
    let (mut world, registry, _) = world_with_lockd().await;
    registry.set_floor("accounts/7", 1);
    world.key = SigningKey::generate();
    let ticket = world.ticket("accounts/7", 1);
    world
        .ask(&put("/accounts/7/x", &ticket, "v"))
        .await
        .refused(400, "invalid");
    registry.add_key(&world.key);
    until("the new key", || async {
        let read = get("/accounts/7/x", &ticket);
        let mut client = world.client().await;
        client.send(read.as_bytes()).await;
        tokio::select! {
            // Asking for keys may use up the time that admission has.
            reply = client.reply() => { assert!(matches!(reply.status, 400 | 503)); false }
            _ = world.backend.accept() => true,
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_store_starts_at_the_floors_and_in_doubt() {
    let (mut world, registry, setup) = world_with_lockd().await;
    registry.set_floor("accounts/7", 1);
    let old = world.ticket("accounts/7", 1);
    assert_eq!(
        world.pass(&put("/accounts/7/x", &old, "v")).await.1.status,
        200
    );
    world.crash();
    delete_folder(&world.data_dir());
    registry.set_floor("accounts/7", 2);
    world.start(&setup, false).unwrap();
    are_keys_known(&world).await;
    world
        .ask(&put("/accounts/7/x", &old, "v"))
        .await
        .refused(412, "stale");
    let new = world.ticket("accounts/7", 2);
    let problem = world
        .ask(&put("/accounts/7/x", &new, "v"))
        .await
        .refused(503, "busy");
    assert!(
        problem["detail"].to_string().contains("not known"),
        "{problem}"
    );
    until("the end of the hold", || async {
        let mut client = world.client().await;
        client.send(get("/accounts/7/x", &new).as_bytes()).await;
        tokio::select! {
            reply = client.reply() => { reply.refused(503, "busy"); false }
            _ = world.backend.accept() => true,
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_end_out_of_order_a_store_asks_for_every_floor() {
    let (mut world, registry, setup) = world_with_lockd().await;
    registry.set_floor("accounts/7", 1);
    registry.set_floor("accounts/8", 1);
    let (old, new) = (world.ticket("accounts/7", 1), world.ticket("accounts/7", 2));
    let same = world.ticket("accounts/8", 1);
    world.pass(&put("/accounts/7/x", &old, "v")).await;
    world.pass(&put("/accounts/8/x", &same, "v")).await;
    world.pass(&put("/accounts/8/x", &same, "v")).await;
    world.crash();
    // The file may be a copy that was made before the grant of 2 was sealed here.
    registry.set_floor("accounts/7", 2);
    world.start(&setup, false).unwrap();
    are_keys_known(&world).await;
    let stale = world.ask(&put("/accounts/7/x", &old, "v")).await;
    stale.refused(412, "stale");
    // What was admitted under it may be at the backend.
    let busy = world.ask(&put("/accounts/7/x", &new, "v")).await;
    busy.refused(503, "busy");
    // A holder that is the last one goes on.
    world.pass(&put("/accounts/8/x", &same, "v")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_orderly_end_a_store_knows_its_floors() {
    let (mut world, registry, setup) = world_with_lockd().await;
    registry.set_floor("accounts/7", 1);
    let old = world.ticket("accounts/7", 1);
    world.pass(&put("/accounts/7/x", &old, "v")).await;
    world.shutdown().await;
    registry.state().floors.clear();
    world.start(&setup, false).unwrap();
    are_keys_known(&world).await;
    world.pass(&put("/accounts/7/x", &old, "v")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_taken_out_never_admits_again() {
    let (mut world, registry, _) = world_with_lockd().await;
    registry.set_floor("accounts/7", 1);
    let ticket = world.ticket("accounts/7", 1);
    world.pass(&put("/accounts/7/x", &ticket, "v")).await;
    until("it is registered", || async {
        let registered = &registry.state().registered;
        registered.iter().any(|request| request.registered)
    })
    .await;
    // An upload whose end is still to come.
    let mut upload = world.client().await;
    let head = put("/accounts/7/x", &ticket, "value");
    upload.send(&head.as_bytes()[..head.len() - 2]).await;
    let fence = world.proxy().fence();
    until("the upload is in flight", || async {
        let request = WatermarkRequest {
            lock: "accounts/7".to_owned(),
        };
        let answer = fence.watermark(Request::new(request)).await.unwrap();
        answer.into_inner().in_flight == 1
    })
    .await;
    registry.state().refuses = true;
    let unknown = SigningKey::generate();
    let other = std::mem::replace(&mut world.key, unknown);
    let asks_for_keys = world.ticket("accounts/7", 1);
    world.key = other;
    let health = world.proxy().health();
    until("the refusal", || async {
        world.ask(&put("/accounts/7/x", &asks_for_keys, "v")).await;
        health.check().is_err()
    })
    .await;
    upload.send(&head.as_bytes()[head.len() - 2..]).await;
    assert_ne!(upload.reply().await.status, 200);
    world.backend.is_untouched().await;
    // The lock service was restored, and has forgotten that.
    registry.state().refuses = false;
    for _ in 0..10 {
        let refused = world.ask(&put("/accounts/7/x", &ticket, "late")).await;
        refused.refused(503, "busy");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    assert!(health.check().is_err());
}
