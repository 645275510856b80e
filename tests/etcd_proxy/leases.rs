//! Leases that are revoked while guarded keys are attached to them, through any proxy.

use ringfence::etcd_proto::etcdserverpb::lease_client::LeaseClient;
use ringfence::etcd_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest,
};
use tonic::{Code, Request};

use crate::support::{
    JOBS, Process, Running, Version, Wire, World, channel, put, refused, soon, with,
};

const LEASE: i64 = 77;

fn leased(key: &str) -> PutRequest {
    PutRequest {
        lease: LEASE,
        ..put(key, "leased")
    }
}

fn revoke() -> LeaseRevokeRequest {
    LeaseRevokeRequest { id: LEASE }
}

async fn grant(proxy: &Running) {
    let grant = LeaseGrantRequest {
        ttl: 600,
        id: LEASE,
    };
    let mut leases = LeaseClient::new(proxy.channel().await);
    leases.lease_grant(grant).await.unwrap();
}

/// How many revocations of it have begun and not ended, as etcd has it.
async fn marks(world: &World) -> i64 {
    let range = RangeRequest {
        key: "_ringfence/lease/".into(),
        range_end: "_ringfence/lease0".into(),
        count_only: true,
        ..Default::default()
    };
    let found = world.direct().await.range(range).await.unwrap();
    found.into_inner().count
}

async fn without_marks(world: &World) {
    marks_become(world, 0).await;
}

async fn marks_become(world: &World, count: i64) {
    soon("the end of a mark", async {
        while marks(world).await != count {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
}

fn passing() -> String {
    format!("leased_writes = \"pass\"\n{JOBS}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_being_revoked_takes_no_guarded_key() {
    for version in [Version::V3_4, Version::V3_5] {
        let world = World::new(version);
        let mut wire = Wire::new(world.etcd_address()).await;
        // Whatever it lets its own clients do, others attach guarded keys.
        let slow = world.proxy_over("a", &wire.address.to_string(), JOBS);
        let other = world.proxy("b", &passing());
        grant(&other).await;
        // The lease's keys, the mark, the keys again: the fourth call is the revocation.
        wire.hold_before_call(4);
        let mut leases = LeaseClient::new(slow.channel().await);
        let revoking = tokio::spawn(async move { leases.lease_revoke(revoke()).await });
        wire.wait_until_held().await;
        assert_eq!(marks(&world).await, 1);
        let newer = world.ticket("orders", 2);
        let mut client = other.client().await;
        let attached = client.put(with(leased("orders"), &[&newer])).await;
        refused(attached, Code::Unavailable, "busy");
        // Without the lease, and what no rule covers, as ever.
        client
            .put(with(put("orders", "2"), &[&newer]))
            .await
            .unwrap();
        client.put(leased("free")).await.unwrap();
        wire.let_go();
        revoking.await.unwrap().unwrap();
        assert_eq!(world.value("orders").await.as_deref(), Some("2"));
        assert_eq!(world.value("free").await, None);
        // The number is given again.
        without_marks(&world).await;
        grant(&other).await;
        client.put(with(leased("orders"), &[&newer])).await.unwrap();
        assert_eq!(world.value("orders").await.as_deref(), Some("leased"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_revocation_leaves_the_lease_open() {
    let world = World::new(Version::V3_5);
    let mut wire = Wire::new(world.etcd_address()).await;
    let proxy = world.proxy_over("a", &wire.address.to_string(), &passing());
    grant(&proxy).await;
    let mut leases = LeaseClient::new(proxy.channel().await);
    let mut again = LeaseClient::new(proxy.channel().await);
    // It is attached after the first look, and before the mark.
    wire.hold_before_call(2);
    let revoking = tokio::spawn(async move { leases.lease_revoke(revoke()).await });
    wire.wait_until_held().await;
    world.direct().await.put(leased("orders")).await.unwrap();
    wire.let_go();
    let told = refused(revoking.await.unwrap(), Code::FailedPrecondition, "missing");
    assert_eq!(told["lock"], "orders");
    without_marks(&world).await;
    let ticket = world.ticket("orders", 1);
    let mut client = proxy.client().await;
    client
        .put(with(leased("orders"), &[&ticket]))
        .await
        .unwrap();
    again
        .lease_revoke(with(revoke(), &[&ticket]))
        .await
        .unwrap();
    assert_eq!(world.value("orders").await, None);
    let gone = again.lease_revoke(Request::new(revoke())).await;
    assert_eq!(gone.unwrap_err().code(), Code::NotFound);
    without_marks(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_of_which_nobody_knows_keeps_the_lease_closed() {
    let world = World::new(Version::V3_5);
    let mut wire = Wire::new(world.etcd_address()).await;
    let config = world.config("a", &wire.address.to_string(), JOBS);
    let mut dying = Process::start(&world, "a", &config, true);
    let other = world.proxy("b", &passing());
    grant(&other).await;
    wire.hold_before_call(4);
    let mut leases = LeaseClient::new(channel(&dying.address.to_string()).await);
    let revoking = tokio::spawn(async move { leases.lease_revoke(revoke()).await });
    wire.wait_until_held().await;
    dying.kill();
    revoking.await.unwrap().unwrap_err();
    let ticket = world.ticket("orders", 1);
    let mut client = other.client().await;
    let attached = client.put(with(leased("orders"), &[&ticket])).await;
    let told = refused(attached, Code::Unavailable, "busy");
    assert_eq!(told["lock"], "orders");
    // Clients do not see why.
    let all = RangeRequest {
        key: "_ringfence/".into(),
        range_end: "_ringfence0".into(),
        ..Default::default()
    };
    assert_eq!(client.range(all).await.unwrap().into_inner().count, 0);
    let mut leases = LeaseClient::new(other.channel().await);
    leases.lease_revoke(revoke()).await.unwrap();
    // Only who made a mark takes it away.
    marks_become(&world, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_leaves_no_mark() {
    let world = World::new(Version::V3_5);
    let mut wire = Wire::new(world.etcd_address()).await;
    let proxy = world.proxy_over("a", &wire.address.to_string(), &passing());
    grant(&proxy).await;
    wire.hold_before_call(4);
    let mut leases = LeaseClient::new(proxy.channel().await);
    let revoking = tokio::spawn(async move { leases.lease_revoke(revoke()).await });
    wire.wait_until_held().await;
    // Its call is cancelled, and its connection ends.
    revoking.abort();
    assert!(revoking.await.unwrap_err().is_cancelled());
    wire.let_go();
    without_marks(&world).await;
}
