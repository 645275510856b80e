use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::{Closing, Gate, NotNow, Permit, Presentation, Presented, Record, Recovered, Revoked};
use crate::lock_name::LockName;
use crate::token::Token;

fn gate(recovered: Recovered) -> Arc<Gate> {
    Gate::new(LockName::new("orders").unwrap(), &recovered)
}

fn token(value: u64) -> Token {
    Token::new(value).unwrap()
}

fn poll<F: Future<Output = Presented> + Unpin>(future: &mut F) -> Poll<Presented> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn persist(gate: &Gate, durable: bool) -> Option<Record> {
    let record = gate.take_persist()?;
    gate.persisted(record, durable);
    Some(record)
}

fn presented(gate: &Arc<Gate>, value: u64) -> Presentation {
    let mut presentation = gate.present(token(value));
    assert!(
        poll(&mut presentation).is_pending(),
        "{value} passed before it was durable"
    );
    presentation
}

fn settle(gate: &Arc<Gate>, value: u64) {
    let mut presentation = presented(gate, value);
    while persist(gate, true).is_some() {}
    assert_eq!(poll(&mut presentation), Poll::Ready(Presented::Settled));
}

fn settled(value: u64) -> Arc<Gate> {
    let gate = gate(Recovered::default());
    settle(&gate, value);
    gate
}

fn stale(watermark: u64, floor: u64) -> Poll<Presented> {
    Poll::Ready(Presented::Stale { watermark, floor })
}

fn permit(gate: &Gate, value: u64) -> Permit {
    gate.permit(token(value)).unwrap()
}

#[test]
fn equal_passes_often_and_lower_fails() {
    let gate = settled(7);
    for _ in 0..3 {
        permit(&gate, 7).finish();
    }
    assert!(matches!(gate.permit(token(6)), Err(NotNow)));
    assert_eq!(poll(&mut gate.present(token(6))), stale(7, 7));
    assert_eq!(
        poll(&mut gate.present(token(7))),
        Poll::Ready(Presented::Settled)
    );
}

#[test]
fn a_higher_token_makes_the_older_stale_before_it_is_settled() {
    let gate = settled(7);
    let mut newer = presented(&gate, 8);
    assert!(matches!(gate.permit(token(7)), Err(NotNow)));
    assert!(
        matches!(gate.permit(token(8)), Err(NotNow)),
        "admitted before it was durable"
    );
    assert_eq!(poll(&mut gate.present(token(7))), stale(8, 8));
    assert_eq!(
        persist(&gate, true),
        Some(Record {
            floor: 8,
            watermark: 8,
            drained: true
        })
    );
    assert_eq!(poll(&mut newer), Poll::Ready(Presented::Settled));
}

#[test]
fn a_failed_persist_refuses_stays_raised_and_is_tried_again_by_the_next() {
    let gate = settled(7);
    let mut newer = presented(&gate, 8);
    persist(&gate, false);
    assert_eq!(poll(&mut newer), Poll::Ready(Presented::NotDurable));
    assert_eq!(
        gate.take_persist(),
        None,
        "tried again without a presentation"
    );
    assert_eq!(poll(&mut gate.present(token(7))), stale(8, 8));
    settle(&gate, 8);
}

#[test]
fn a_seal_waits_for_permits_in_flight_and_revokes_those_not_released() {
    let gate = settled(7);
    let mut released = permit(&gate, 7);
    released.release().unwrap();
    let mut forwarded = permit(&gate, 7);
    forwarded.forward().unwrap();
    let mut admitted = permit(&gate, 7);
    let mut newer = presented(&gate, 8);
    let record = persist(&gate, true).unwrap();
    assert!(!record.drained);

    assert_eq!(admitted.forward(), Err(Revoked));
    assert_eq!(forwarded.release(), Err(Revoked));
    assert!(released.is_revoked());
    drop(admitted);
    forwarded.finish();
    assert!(
        poll(&mut newer).is_pending(),
        "sealed over a released write"
    );
    released.finish();
    assert_eq!(poll(&mut newer), Poll::Ready(Presented::Settled));
    assert!(
        persist(&gate, true).unwrap().drained,
        "the drained record follows lazily"
    );
}

#[test]
fn a_lost_permit_is_in_doubt_and_blocks_only_newer_tokens() {
    let gate = settled(7);
    let mut lost = permit(&gate, 7);
    lost.forward().unwrap();
    drop(lost);
    assert_eq!(gate.status().in_doubt, 1);
    permit(&gate, 7).finish();
    let mut newer = presented(&gate, 8);
    persist(&gate, true);
    assert!(
        poll(&mut newer).is_pending(),
        "sealed over a write in doubt"
    );
    gate.resolve_doubt(7);
    assert_eq!(poll(&mut newer), Poll::Ready(Presented::Settled));
}

#[test]
fn an_even_higher_token_supersedes_the_one_that_waits() {
    let gate = settled(7);
    let mut lower = presented(&gate, 8);
    let first = gate.take_persist().unwrap();
    let mut higher = presented(&gate, 9);
    assert_eq!(poll(&mut lower), stale(9, 9));
    gate.persisted(first, true);
    assert!(
        poll(&mut higher).is_pending(),
        "the record on disk is of the lower token"
    );
    persist(&gate, true);
    assert_eq!(poll(&mut higher), Poll::Ready(Presented::Settled));
}

#[test]
fn a_close_ends_the_holder_and_admits_only_newer_ones() {
    let gate = settled(7);
    let mut writing = permit(&gate, 7);
    writing.release().unwrap();
    let mut closing: Closing = gate.close(token(7));
    assert!(poll(&mut closing).is_pending());
    assert_eq!(poll(&mut gate.present(token(7))), stale(7, 8));
    assert_eq!(persist(&gate, true).unwrap().floor, 8);
    assert!(
        poll(&mut closing).is_pending(),
        "closed over a write in flight"
    );
    writing.finish();
    assert_eq!(poll(&mut closing), Poll::Ready(Presented::Settled));
    while persist(&gate, true).is_some() {}
    assert_eq!(
        poll(&mut gate.close(token(6))),
        Poll::Ready(Presented::Settled)
    );
    settle(&gate, 8);
}

#[test]
fn after_a_crash_the_watermarks_holder_goes_on_and_newer_ones_wait() {
    let gate = gate(Recovered {
        floor: 7,
        watermark: 7,
        in_doubt: vec![7],
    });
    assert_eq!(poll(&mut gate.present(token(6))), stale(7, 7));
    settle(&gate, 7);
    let mut newer = presented(&gate, 8);
    persist(&gate, true);
    assert!(poll(&mut newer).is_pending());
    gate.resolve_doubt(7);
    assert_eq!(poll(&mut newer), Poll::Ready(Presented::Settled));
}

#[test]
fn after_a_crash_in_a_raise_even_the_watermarks_holder_waits() {
    let gate = gate(Recovered {
        floor: 8,
        watermark: 8,
        in_doubt: vec![7],
    });
    let mut holder = presented(&gate, 8);
    assert!(!persist(&gate, true).unwrap().drained);
    assert!(poll(&mut holder).is_pending());
    gate.resolve_doubt(7);
    assert_eq!(poll(&mut holder), Poll::Ready(Presented::Settled));
}

#[test]
fn only_an_idle_settled_gate_retires() {
    let gate = settled(7);
    let writing = permit(&gate, 7);
    assert!(!gate.try_retire(), "retired with a permit in flight");
    writing.finish();
    assert!(gate.try_retire());
    assert!(matches!(gate.permit(token(7)), Err(NotNow)));
    assert_eq!(
        poll(&mut gate.present(token(8))),
        Poll::Ready(Presented::Retired)
    );
}

#[test]
fn an_entrance_follows_the_gate_from_epoch_to_epoch() {
    let gate = settled(7);
    let mut entrance = gate.entrance();
    entrance.permit(token(7)).unwrap().finish();
    settle(&gate, 8);
    assert!(matches!(entrance.permit(token(7)), Err(NotNow)));
    entrance.permit(token(8)).unwrap().finish();
}

#[test]
fn giving_up_one_of_two_waits_of_a_task_keeps_the_other() {
    let gate = settled(7);
    let _first = presented(&gate, 8);
    let second = presented(&gate, 8);
    assert_eq!(gate.status().waiting, 2);
    drop(second);
    assert_eq!(gate.status().waiting, 1);
}
