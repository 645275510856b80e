//! Writes that were admitted and come too late: etcd itself refuses them, whatever became of the
//! proxies.

use std::time::Duration;

use tonic::Code;

use crate::support::{JOBS, Process, Version, Wire, World, get, put, refused, with};

#[tokio::test(flavor = "multi_thread")]
async fn a_write_behind_the_seal_is_refused_by_etcd() {
    for version in [Version::V3_4, Version::V3_5] {
        let world = World::new(version);
        let mut wire = Wire::new(world.etcd_address()).await;
        let a = world.proxy_over("a", &wire.address.to_string(), JOBS);
        let b = world.proxy("b", JOBS);
        let (one, two) = (world.ticket("orders", 1), world.ticket("orders", 2));
        let mut old = a.client().await;
        old.put(with(put("orders", "1"), &[&one])).await.unwrap();
        // Admitted by proxy a, and on its way.
        wire.hold();
        let late = tokio::spawn({
            let mut old = old.clone();
            let request = with(put("orders", "late"), &[&one]);
            async move { old.put(request).await }
        });
        wire.wait_until_held().await;
        let mut new = b.client().await;
        let read = new
            .range(with(get("orders"), &[&two]))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(read.kvs[0].value, "1");
        wire.let_go();
        let told = refused(late.await.unwrap(), Code::FailedPrecondition, "stale");
        assert_eq!(
            (told["token"].as_str(), told["watermark"].as_str()),
            ("1", "2")
        );
        assert_eq!(world.value("orders").await.as_deref(), Some("1"));
        new.put(with(put("orders", "2"), &[&two])).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_of_a_killed_proxy_is_refused_by_etcd() {
    let world = World::new(Version::V3_4);
    let mut wire = Wire::new(world.etcd_address()).await;
    let config = world.config("a", &wire.address.to_string(), JOBS);
    let mut a = Process::start(&world, "a", &config, true);
    let (one, two) = (world.ticket("orders", 1), world.ticket("orders", 2));
    let mut old = a.client().await;
    old.put(with(put("orders", "1"), &[&one])).await.unwrap();
    wire.hold();
    let late = tokio::spawn({
        let request = with(put("orders", "late"), &[&one]);
        async move { old.put(request).await }
    });
    wire.wait_until_held().await;
    a.kill();
    assert!(late.await.unwrap().is_err());
    // The next proxy has nothing of the first but etcd.
    let b = world.proxy("b", JOBS);
    let mut new = b.client().await;
    new.range(with(get("orders"), &[&two])).await.unwrap();
    let revision = |response: &tonic::Response<
        ringfence::etcd_proto::etcdserverpb::PutResponse,
    >| { response.get_ref().header.as_ref().unwrap().revision };
    let before = revision(&new.put(with(put("orders", "2"), &[&two])).await.unwrap());
    wire.let_go();
    // What the first had sent arrives now. A write after it shows that nothing was between.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let after = revision(&new.put(with(put("orders", "3"), &[&two])).await.unwrap());
    assert_eq!(after, before + 1, "the late write was applied");
    // And the first one starts again at once: nothing is in doubt.
    let a = Process::start(&world, "a", &config, false);
    let mut old = a.client().await;
    refused(
        old.put(with(put("orders", "x"), &[&one])).await,
        Code::FailedPrecondition,
        "stale",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_proxy_goes_on_too_late() {
    let world = World::new(Version::V3_4);
    let config = world.config("a", &world.etcd_address(), JOBS);
    let a = Process::start(&world, "a", &config, true);
    let b = world.proxy("b", JOBS);
    let (one, two) = (world.ticket("orders", 1), world.ticket("orders", 2));
    let mut old = a.client().await;
    old.put(with(put("orders", "1"), &[&one])).await.unwrap();
    a.signal("STOP");
    let late = tokio::spawn({
        let request = with(put("orders", "late"), &[&one]);
        async move { old.put(request).await }
    });
    let mut new = b.client().await;
    new.put(with(put("orders", "2"), &[&two])).await.unwrap();
    a.signal("CONT");
    refused(late.await.unwrap(), Code::FailedPrecondition, "stale");
    assert_eq!(world.value("orders").await.as_deref(), Some("2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_is_lost_is_unknown_and_holds_nobody_up() {
    let mut world = World::new(Version::V3_4);
    let proxy = world.proxy("a", JOBS);
    let mut client = proxy.client().await;
    let (one, two) = (world.ticket("orders", 1), world.ticket("orders", 2));
    client.put(with(put("orders", "1"), &[&one])).await.unwrap();
    world.etcd.pause(0);
    let lost = tokio::spawn({
        let mut client = client.clone();
        let request = with(put("orders", "lost"), &[&one]);
        async move { client.put(request).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    world.etcd.kill(0);
    let told = refused(lost.await.unwrap(), Code::Unknown, "unknown");
    assert_eq!(told["outcome"], "unknown");
    refused(
        client.put(with(put("orders", "x"), &[&one])).await,
        Code::Unavailable,
        "busy",
    );
    world.etcd.restart(0);
    client.put(with(put("orders", "2"), &[&two])).await.unwrap();
}
