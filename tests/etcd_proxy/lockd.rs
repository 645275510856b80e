//! With a lock service that knows the floors: what etcd has lost comes back from there.

use tonic::Code;

use crate::registry::Registry;
use crate::support::{JOBS, Version, World, put, refused, soon, with};

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_floor_is_what_lockd_says_never_what_a_proxy_remembers() {
    let world = World::new(Version::V3_4);
    let registry = Registry::default();
    registry.add_key(&world.key);
    registry.state().floor = Some(1);
    let lockd = registry.serve().await;
    let config = world.config("a", &world.etcd_address(), JOBS);
    let keys = format!("keys = \"{}/keys\"", world.dir.path().display());
    let config = config.replace(&keys, &format!("lockd = \"http://{lockd}\""));
    let proxy = world.start("a", &config, false);
    soon("the keys", async {
        while proxy.proxy.health().check().is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    let mut client = proxy.client().await;
    let five = world.ticket("orders", 5);
    client
        .put(with(put("orders", "5"), &[&five]))
        .await
        .unwrap();
    assert_eq!(world.floor("orders").await, Some(5));
    // Another proxy has admitted 8 meanwhile; then etcd lost everything of the fence.
    world.etcd.ctl(&["del", "_ringfence/", "--prefix"]);
    registry.state().floor = None;
    let told = refused(
        client.put(with(put("orders", "5"), &[&five])).await,
        Code::Unavailable,
        "busy",
    );
    assert_eq!(told["lock"], "orders");
    assert_eq!(
        world.floor("orders").await,
        None,
        "closed until it is known"
    );
    registry.state().floor = Some(8);
    let stale = client.put(with(put("orders", "5"), &[&five])).await;
    let told = refused(stale, Code::FailedPrecondition, "stale");
    assert_eq!(told["watermark"], "8");
    assert_eq!(world.floor("orders").await, Some(8));
    let eight = world.ticket("orders", 8);
    client
        .put(with(put("orders", "8"), &[&eight]))
        .await
        .unwrap();
}
