//! What surrounds Acquire: watches, listings, health, reflection, keys, the registry's floors, an
//! orderly end, a restart, and a second lockd that takes over.

mod lockd_support;

use std::sync::Arc;
use std::time::Duration;

use lockd_support::{
    Client, LONG, Service, eventually, open_store, reason, serve, serve_with_keys, soon, start,
};
use ringfence::lockd::{Settings, SigningKeys, keys};
use ringfence::proto::lock_service_client::LockServiceClient;
use ringfence::proto::{
    FloorRequest, KeepAliveRequest, KeysRequest, ListLocksRequest, ListProxiesRequest,
    RegisterRequest, UnregisterRequest, WatchLockRequest, WatchLockResponse,
    register_response::Known,
};
use ringfence::ticket::{KeyRing, VerifyingKey};
use tonic::transport::Endpoint;
use tonic::{Code, Streaming};

const TRY: Duration = Duration::ZERO;

async fn watch(client: &Client, lock: &str) -> Streaming<WatchLockResponse> {
    let request = WatchLockRequest {
        lock: lock.to_owned(),
    };
    client
        .locks
        .clone()
        .watch_lock(request)
        .await
        .unwrap()
        .into_inner()
}

/// The token of the next holder that the watch tells; 0 for nobody.
async fn next_holder(changes: &mut Streaming<WatchLockResponse>) -> u64 {
    let change = soon("a change of holder", changes.message())
        .await
        .unwrap()
        .unwrap();
    change.holder.map_or(0, |holder| holder.token)
}

#[tokio::test]
async fn a_watch_tells_the_holder_and_each_change_and_nobody() {
    let Service { client, .. } = start().await;
    let mut changes = watch(&client, "a").await;
    assert_eq!(next_holder(&mut changes).await, 0);
    let (a, b) = (client.open().await, client.open().await);
    let first = client.acquire(&a, "a", TRY, 1).await.unwrap().token;
    assert_eq!(next_holder(&mut changes).await, first);
    let waiting = tokio::spawn({
        let (client, b) = (client.clone(), b.clone());
        async move { client.acquire(&b, "a", LONG, 1).await.unwrap().token }
    });
    client.wait_for_waiters("a", 1).await;
    client.release(&a, "a", first).await;
    let second = waiting.await.unwrap();
    assert_eq!(next_holder(&mut changes).await, second);
    client.release(&b, "a", second).await;
    assert_eq!(next_holder(&mut changes).await, 0);
    // A later reader starts with the state.
    assert_eq!(next_holder(&mut watch(&client, "a").await).await, 0);
}

#[tokio::test]
async fn a_reader_that_does_not_read_gets_the_newest_state() {
    let Service { client, lockd } = start().await;
    // Room for a few changes only on the way to it.
    let endpoint = Endpoint::from_shared(format!("http://{}", lockd.address())).unwrap();
    let narrow = endpoint
        .initial_stream_window_size(1024)
        .connect()
        .await
        .unwrap();
    let request = WatchLockRequest {
        lock: "a".to_owned(),
    };
    let watching = LockServiceClient::new(narrow).watch_lock(request).await;
    let mut changes = watching.unwrap().into_inner();
    let session = client.open().await;
    let mut last = 0;
    for attempt in 1..=300 {
        last = client
            .acquire(&session, "a", TRY, attempt)
            .await
            .unwrap()
            .token;
        if attempt < 300 {
            client.release(&session, "a", last).await;
        }
    }
    let mut told = 0;
    while next_holder(&mut changes).await != last {
        told += 1;
    }
    assert!(told < 200, "{told} changes were kept for it");
}

#[tokio::test]
async fn a_listing_comes_in_pages() {
    let Service { client, lockd, .. } = start().await;
    let session = client.open().await;
    for lock in ["a", "t/1", "t/2", "t/3", "u"] {
        client.acquire(&session, lock, TRY, 1).await.unwrap();
    }
    eventually("the watch has told of all", || async {
        lockd.counts().0 == 5
    })
    .await;
    let page = |after: &str, limit| {
        let request = ListLocksRequest {
            prefix: "t/".into(),
            limit,
            after: after.to_owned(),
        };
        let mut locks = client.locks.clone();
        async move { locks.list_locks(request).await.unwrap().into_inner() }
    };
    let first = page("", 2).await;
    let names: Vec<_> = first
        .locks
        .iter()
        .map(|grant| grant.lock.as_str())
        .collect();
    assert_eq!((names, first.next.as_str()), (vec!["t/1", "t/2"], "t/2"));
    let second = page(&first.next, 0).await;
    assert_eq!((second.locks.len(), second.next.as_str()), (1, ""));
    assert_eq!(second.locks[0].session, session);
}

#[tokio::test]
async fn health_and_reflection_answer() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let Service { client, lockd, .. } = start().await;
    lockd.synced().await;
    eventually("it says that it serves", || client.serves()).await;
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(client.channel.clone());
    let answer = reflection
        .server_reflection_info(tokio_stream::once(request))
        .await
        .unwrap();
    let answer = answer.into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(services)) = answer.message_response else {
        panic!("another answer: {answer:?}");
    };
    let names: Vec<_> = services
        .service
        .iter()
        .map(|service| service.name.as_str())
        .collect();
    for served in ["ringfence.v1.LockService", "grpc.health.v1.Health"] {
        assert!(names.contains(&served), "{names:?}");
    }
    // Where the proxy serves.
    assert!(!names.contains(&"ringfence.v1.FenceService"), "{names:?}");
}

#[tokio::test]
async fn one_stream_renews_many_sessions_in_order() {
    let Service { client, .. } = start().await;
    let mut sessions = Vec::new();
    for _ in 0..200 {
        sessions.push(client.open().await);
    }
    sessions[77] = "abc".to_owned();
    let requests: Vec<_> = sessions
        .iter()
        .map(|session| KeepAliveRequest {
            session: session.clone(),
        })
        .collect();
    let stream = tokio_stream::iter(requests);
    let mut answers = client
        .locks
        .clone()
        .keep_alive(stream)
        .await
        .unwrap()
        .into_inner();
    for (place, session) in sessions.iter().enumerate() {
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!(answer.session, *session);
        let gone = place == 77;
        assert_eq!(
            answer.ttl_ms,
            if gone { 0 } else { LONG.as_millis() as u64 }
        );
    }
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test]
async fn a_shutdown_tells_waiters_and_keeps_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_store(folder.path()).await;
    let lockd = serve(store.clone(), Settings::default()).await;
    let client = Client::connect(&lockd).await;
    let (a, b) = (client.open().await, client.open().await);
    let token = client.acquire(&a, "a", TRY, 1).await.unwrap().token;
    let waiting = tokio::spawn({
        let (client, b) = (client.clone(), b.clone());
        async move { client.acquire(&b, "a", LONG, 1).await }
    });
    client.wait_for_waiters("a", 1).await;
    let place = client.get("a").await.waiters[0].token;
    let mut changes = watch(&client, "a").await;
    assert_eq!(next_holder(&mut changes).await, token);
    soon("the shutdown", lockd.shutdown()).await.unwrap();
    let refused = waiting.await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(reason(&refused), "shutting-down");
    assert_eq!(
        changes.message().await.unwrap_err().code(),
        Code::Unavailable
    );

    // Another one over the same store: the session, the place and its token are there.
    let lockd = serve(store, Settings::default()).await;
    let client = Client::connect(&lockd).await;
    let again = tokio::spawn({
        let (client, b) = (client.clone(), b.clone());
        async move { client.acquire(&b, "a", LONG, 1).await.unwrap().token }
    });
    assert!(client.release(&a, "a", token).await);
    assert_eq!(soon("the kept place", again).await.unwrap(), place);
}

#[test]
fn a_killed_lockd_is_replaced_by_another_over_the_same_store() {
    let main = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let doomed = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    main.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let store = open_store(folder.path()).await;
        let keys = Arc::new(SigningKeys::in_memory());
        let first = doomed
            .spawn(serve_with_keys(
                store.clone(),
                Settings::default(),
                keys.clone(),
            ))
            .await
            .unwrap();
        let second = serve_with_keys(store, Settings::default(), keys).await;
        let (via_first, via_second) = (
            Client::connect(&first).await,
            Client::connect(&second).await,
        );

        let (a, b) = (via_first.open().await, via_first.open().await);
        let held = via_first.acquire(&a, "a", TRY, 1).await.unwrap().token;
        let waiting = tokio::spawn({
            let (client, b) = (via_first.clone(), b.clone());
            async move { client.acquire(&b, "a", LONG, 1).await }
        });
        via_second.wait_for_waiters("a", 1).await;
        let place = via_second.get("a").await.waiters[0].token;
        // As a kill does: whatever runs there ends where it is.
        std::mem::forget(first);
        doomed.shutdown_background();
        soon("the lost call", waiting).await.unwrap().unwrap_err();

        assert_eq!(
            via_second.acquire(&a, "a", TRY, 1).await.unwrap().token,
            held
        );
        assert!(via_second.renew(&b).await > 0);
        // The same attempt takes up its place. (The dying lockd may have dropped the call, and
        // then it removes the entry as for any caller that goes away.)
        let again = tokio::spawn({
            let (client, b) = (via_second.clone(), b.clone());
            async move { client.acquire(&b, "a", LONG, 1).await.unwrap().token }
        });
        via_second.wait_for_waiters("a", 1).await;
        assert!(via_second.release(&a, "a", held).await);
        assert_eq!(soon("the kept place", again).await.unwrap(), place);
        soon("the shutdown", second.shutdown()).await.unwrap();
    });
}

#[tokio::test]
async fn a_release_through_one_lockd_wakes_a_waiter_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_store(folder.path()).await;
    let first = serve(store.clone(), Settings::default()).await;
    let second = serve(store, Settings::default()).await;
    let (one, two) = (
        Client::connect(&first).await,
        Client::connect(&second).await,
    );
    let (a, b) = (one.open().await, two.open().await);
    let mut holder = one.acquire(&a, "a", TRY, 1).await.unwrap().token;
    for attempt in 1..=20 {
        let waiting = tokio::spawn({
            let (two, b) = (two.clone(), b.clone());
            async move { two.acquire(&b, "a", LONG, attempt).await.unwrap().token }
        });
        one.wait_for_waiters("a", 1).await;
        assert!(one.release(&a, "a", holder).await);
        let token = soon("a grant across lockds", waiting).await.unwrap();
        assert!(token > holder);
        assert!(two.release(&b, "a", token).await);
        holder = one.acquire(&a, "a", TRY, attempt + 1).await.unwrap().token;
    }
}

#[tokio::test]
async fn after_a_restart_tokens_go_on_upward_and_sessions_live() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_store(folder.path()).await;
    let lockd = serve(store, Settings::default()).await;
    let client = Client::connect(&lockd).await;
    let (a, b) = (client.open().await, client.open().await);
    let held = client.acquire(&a, "a", TRY, 1).await.unwrap().token;
    let released = client.acquire(&b, "b", TRY, 1).await.unwrap().token;
    client.release(&b, "b", released).await;
    drop(client);
    soon("the shutdown", lockd.shutdown()).await.unwrap();

    // The folder can be opened again: nothing of the first one keeps it.
    let store = open_store(folder.path()).await;
    let lockd = serve(store, Settings::default()).await;
    let client = Client::connect(&lockd).await;
    assert_eq!(client.get("a").await.holder.unwrap().token, held);
    assert_eq!(client.acquire(&a, "a", TRY, 1).await.unwrap().token, held);
    assert_eq!(client.renew(&b).await, LONG.as_millis() as u64);
    assert!(client.acquire(&b, "b", TRY, 2).await.unwrap().token > released);
}

#[tokio::test]
async fn a_rotated_key_signs_and_the_one_before_is_still_served() {
    let folder = tempfile::tempdir().unwrap();
    let keys_folder = folder.path().join("keys");
    let store = open_store(folder.path()).await;
    let signing = Arc::new(SigningKeys::load_or_create(&keys_folder).unwrap());
    let lockd = serve_with_keys(store, Settings::default(), signing).await;
    let client = Client::connect(&lockd).await;
    let session = client.open().await;
    let old = client.acquire(&session, "a", TRY, 1).await.unwrap().ticket;
    let rotated = keys::rotate(&keys_folder).unwrap();
    let served = || async {
        client
            .registry
            .clone()
            .keys(KeysRequest {})
            .await
            .unwrap()
            .into_inner()
            .keys
    };
    eventually("the new key is taken over", || async {
        served().await[0].id == rotated.signing.verifying().id()
    })
    .await;
    let ring: Vec<_> = served()
        .await
        .iter()
        .map(|key| VerifyingKey::parse(&key.key).unwrap())
        .collect();
    assert_eq!(ring.len(), 2);
    let ring = KeyRing::new(ring);
    let new = client.acquire(&session, "a", TRY, 1).await.unwrap().ticket;
    assert!(ring.verify_ticket(&old).is_ok());
    assert!(ring.verify_ticket(&new).is_ok());
    let only_new = KeyRing::new([rotated.signing.verifying().clone()]);
    assert!(only_new.verify_ticket(&old).is_err());
    assert!(only_new.verify_ticket(&new).is_ok());
}

#[tokio::test]
async fn a_proxy_is_new_then_the_same_then_without_its_store() {
    let Service { client, .. } = start().await;
    let request = RegisterRequest {
        instance: "edge-1".to_owned(),
        store_id: "one".to_owned(),
        admin: "http://127.0.0.1:7431".to_owned(),
        patterns: vec!["tenant/*".to_owned()],
        ..RegisterRequest::default()
    };
    let register = |request: RegisterRequest| {
        let mut registry = client.registry.clone();
        async move { registry.register(request).await.unwrap().into_inner() }
    };
    let answer = register(request.clone()).await;
    assert_eq!((answer.known(), answer.keys.len()), (Known::New, 1));
    assert_eq!(register(request.clone()).await.known(), Known::Same);
    let lost = RegisterRequest {
        store_id: "two".to_owned(),
        ..request.clone()
    };
    assert_eq!(register(lost.clone()).await.known(), Known::StoreLost);
    // The answer may have been lost: it is told again.
    assert_eq!(register(lost.clone()).await.known(), Known::StoreLost);
    let mut registry = client.registry.clone();
    let listed = registry
        .list_proxies(ListProxiesRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(listed.proxies, [lost]);

    let unregister = |sessions_proven_dead, reason: &str| {
        let (instance, reason) = ("edge-1".to_owned(), reason.to_owned());
        let request = UnregisterRequest {
            instance,
            reason,
            sessions_proven_dead,
        };
        let mut registry = client.registry.clone();
        async move {
            registry
                .unregister(request)
                .await
                .map_err(|status| status.code())
        }
    };
    assert_eq!(
        unregister(false, "gone").await.unwrap_err(),
        Code::FailedPrecondition
    );
    assert_eq!(
        unregister(true, " ").await.unwrap_err(),
        Code::InvalidArgument
    );
    unregister(true, "its machine is scrapped").await.unwrap();
    assert_eq!(unregister(true, "again").await.unwrap_err(), Code::NotFound);
}

#[tokio::test]
async fn a_floor_is_the_living_grant_or_above_all_grants_before() {
    let Service { client, .. } = start().await;
    let floor = || async {
        let request = FloorRequest {
            lock: "a".to_owned(),
        };
        client
            .registry
            .clone()
            .floor(request)
            .await
            .unwrap()
            .into_inner()
            .floor
    };
    let (a, b) = (client.open().await, client.open().await);
    let held = client.acquire(&a, "a", TRY, 1).await.unwrap().token;
    assert_eq!(floor().await, held);
    assert_eq!(client.get("a").await.floor, held);
    client.release(&a, "a", held).await;
    // Nobody holds it: what was released, or broken, must not come back.
    assert!(floor().await > held);
    assert!(client.get("a").await.floor > held);
    let later = client.acquire(&b, "a", TRY, 1).await.unwrap().token;
    assert_eq!(floor().await, later);
}
