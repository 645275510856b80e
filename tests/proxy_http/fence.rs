//! The fence service: seals, closes and looks from outside.

use ringfence::lock_name::LockName;
use ringfence::proto::fence_service_server::FenceService;
use ringfence::proto::{CloseRequest, ListWatermarksRequest, SealRequest, WatermarkRequest};
use ringfence::ticket::{Action, Order};
use ringfence::token::Token;
use tonic::{Code, Request};

use crate::support::{OK, Setup, World, get, put};

fn order(world: &World, action: Action, token: u64) -> String {
    world.key.sign_order(&Order {
        action,
        lock: LockName::new("accounts/7").unwrap(),
        token: Token::new(token).unwrap(),
        grant: String::new(),
    })
}

fn seal(authority: &str) -> Request<SealRequest> {
    Request::new(SealRequest {
        authority: authority.to_owned(),
        wait_ms: 300,
    })
}

fn close(authority: &str) -> Request<CloseRequest> {
    Request::new(CloseRequest {
        authority: authority.to_owned(),
        wait_ms: 300,
    })
}

fn look() -> Request<WatermarkRequest> {
    Request::new(WatermarkRequest {
        lock: "accounts/7".to_owned(),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seal_waits_for_what_is_in_flight_and_makes_older_tokens_stale() {
    let world = World::new(&Setup::default()).await;
    let fence = world.proxy().fence();
    assert_eq!(
        fence.watermark(look()).await.unwrap_err().code(),
        Code::NotFound
    );
    let mut writer = world.client().await;
    writer
        .send(put("/accounts/7/x", &world.ticket("accounts/7", 1), "v").as_bytes())
        .await;
    let mut backend = world.backend.accept().await;
    backend.request().await;
    let sealing = order(&world, Action::Seal, 2);
    let busy = fence.seal(seal(&sealing)).await.unwrap_err();
    assert_eq!(busy.code(), Code::Unavailable);
    let seen = fence.watermark(look()).await.unwrap().into_inner();
    assert_eq!(
        (seen.watermark, seen.floor, seen.settled, seen.in_flight),
        (2, 2, false, 1)
    );
    backend.send(OK).await;
    assert_eq!(writer.reply().await.status, 200);
    let sealed = fence.seal(seal(&sealing)).await.unwrap().into_inner();
    assert_eq!((sealed.instance.as_str(), sealed.token), ("edge-1", 2));
    let stale = fence
        .seal(seal(&order(&world, Action::Seal, 1)))
        .await
        .unwrap_err();
    assert_eq!(stale.code(), Code::FailedPrecondition);
    world
        .ask(&get("/accounts/7/x", &world.ticket("accounts/7", 1)))
        .await
        .refused(412, "stale");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_refuses_its_own_token_too() {
    let mut world = World::new(&Setup::default()).await;
    let ticket = world.ticket("accounts/7", 5);
    assert_eq!(
        world
            .pass(&put("/accounts/7/x", &ticket, "v"))
            .await
            .1
            .status,
        200
    );
    let fence = world.proxy().fence();
    let closed = fence
        .close(close(&order(&world, Action::Close, 5)))
        .await
        .unwrap();
    assert_eq!(closed.into_inner().floor, 6);
    world
        .ask(&put("/accounts/7/x", &ticket, "v"))
        .await
        .refused(412, "stale");
    // Again, and with the holder's own ticket: the same answer.
    assert_eq!(
        fence
            .close(close(&ticket))
            .await
            .unwrap()
            .into_inner()
            .floor,
        6
    );
    let next = world.ticket("accounts/7", 6);
    assert_eq!(
        world.pass(&put("/accounts/7/x", &next, "v")).await.1.status,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn authority_is_a_ticket_or_the_right_order() {
    let world = World::new(&Setup::default()).await;
    let fence = world.proxy().fence();
    let strange = World::stopped().await;
    let closing = order(&world, Action::Close, 5);
    for bad in [&closing, &order(&strange, Action::Seal, 5), "5", ""] {
        assert_eq!(
            fence.seal(seal(bad)).await.unwrap_err().code(),
            Code::InvalidArgument,
            "{bad}"
        );
    }
    assert!(
        fence.watermark(look()).await.is_err(),
        "something was raised"
    );
    assert!(
        fence
            .seal(seal(&world.ticket("accounts/7", 5)))
            .await
            .is_ok()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn watermarks_are_listed_in_pages() {
    let world = World::new(&Setup::default()).await;
    let fence = world.proxy().fence();
    for lock in ["a/1", "a/2", "a/3", "b"] {
        fence.seal(seal(&world.ticket(lock, 3))).await.unwrap();
    }
    let list = |after: &str| {
        let (prefix, after) = ("a/".to_owned(), after.to_owned());
        fence.list_watermarks(Request::new(ListWatermarksRequest {
            prefix,
            limit: 2,
            after,
        }))
    };
    let names = |page: &ringfence::proto::ListWatermarksResponse| {
        page.watermarks
            .iter()
            .map(|it| it.lock.clone())
            .collect::<Vec<_>>()
    };
    let first = list("").await.unwrap().into_inner();
    assert_eq!(
        (names(&first), first.next.as_str()),
        (vec!["a/1".into(), "a/2".into()], "a/2")
    );
    let second = list(&first.next).await.unwrap().into_inner();
    assert_eq!(
        (names(&second), second.next.as_str()),
        (vec!["a/3".into()], "")
    );
    assert_eq!(second.watermarks[0].watermark, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observed_lock_cannot_be_sealed() {
    let world = World::new(&Setup::listener("mode = \"observe\"")).await;
    let refused = world
        .proxy()
        .fence()
        .seal(seal(&world.ticket("accounts/7", 1)))
        .await;
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
}
