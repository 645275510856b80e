//! The gate under thousands of thread schedules: holders of an old token write on the hot path
//! while a newer one is presented. The backend is a list under a mutex.

#![expect(
    dead_code,
    reason = "the gate's whole source is compiled, not all of it is used here"
)]

pub use ringfence::{lock_name, token};

mod gate;

use std::sync::Arc;

use gate::{Entrance, Gate, Presented, Recovered};
use lock_name::LockName;
use shuttle::sync::Mutex;
use shuttle::{check_random, future, thread};
use token::Token;

const SCHEDULES: usize = 4_000;

type Backend = Arc<Mutex<Vec<u64>>>;

fn token(value: u64) -> Token {
    Token::new(value).unwrap()
}

/// Settles the token as a shell does, with a disk that always works.
fn settle(gate: &Arc<Gate>, value: u64) -> Presented {
    let mut presentation = Box::pin(gate.present(token(value)));
    let gate = Arc::clone(gate);
    future::block_on(std::future::poll_fn(move |cx| {
        let outcome = presentation.as_mut().poll(cx);
        while let Some(record) = gate.take_persist() {
            gate.persisted(record, true);
        }
        outcome
    }))
}

/// Writes once if it may. What `send` leaves out of the gate's sight is what promise 1 is about.
fn write(entrance: &mut Entrance, backend: &Backend, value: u64) {
    let Ok(mut permit) = entrance.permit(token(value)) else {
        return;
    };
    if permit.forward().is_err() {
        return;
    }
    match permit.release() {
        Ok(()) => {
            thread::yield_now();
            backend.lock().unwrap().push(value);
            permit.finish();
        }
        Err(_) => permit.finish(),
    }
}

fn is_monotone(backend: &Backend) {
    let applied = backend.lock().unwrap();
    assert!(applied.is_sorted(), "applied in the order {applied:?}");
}

#[test]
fn a_raise_never_lets_an_older_write_land_behind_a_newer_one() {
    check_random(
        || {
            let gate = Gate::new(LockName::new("a").unwrap(), &Recovered::default());
            let backend = Backend::default();
            assert_eq!(settle(&gate, 1), Presented::Settled);
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    let (gate, backend) = (Arc::clone(&gate), Arc::clone(&backend));
                    thread::spawn(move || {
                        let mut entrance = gate.entrance();
                        (0..2).for_each(|_| write(&mut entrance, &backend, 1));
                    })
                })
                .collect();
            assert_eq!(settle(&gate, 2), Presented::Settled);
            backend.lock().unwrap().push(2);
            writers
                .into_iter()
                .for_each(|writer| writer.join().unwrap());
            is_monotone(&backend);
        },
        SCHEDULES,
    );
}

#[test]
fn two_raises_at_once_settle_in_order_and_the_lower_one_ends() {
    check_random(
        || {
            let gate = Gate::new(LockName::new("a").unwrap(), &Recovered::default());
            let backend = Backend::default();
            let raisers: Vec<_> = [2, 3]
                .map(|value| {
                    let (gate, backend) = (Arc::clone(&gate), Arc::clone(&backend));
                    thread::spawn(move || {
                        let outcome = settle(&gate, value);
                        write(&mut gate.entrance(), &backend, value);
                        outcome
                    })
                })
                .into();
            let outcomes: Vec<_> = raisers.into_iter().map(|it| it.join().unwrap()).collect();
            assert_eq!(
                outcomes[1],
                Presented::Settled,
                "the higher token was not settled"
            );
            is_monotone(&backend);
        },
        SCHEDULES,
    );
}

#[test]
fn a_revoked_session_is_always_woken_and_a_lost_permit_blocks_until_resolved() {
    check_random(
        || {
            let gate = Gate::new(LockName::new("a").unwrap(), &Recovered::default());
            assert_eq!(settle(&gate, 1), Presented::Settled);
            let mut permit = gate.permit(token(1)).unwrap();
            permit.forward().unwrap();
            let session = {
                let gate = Arc::clone(&gate);
                thread::spawn(move || {
                    future::block_on(std::future::poll_fn(|cx| permit.poll_revoked(cx)));
                    drop(permit);
                    thread::yield_now();
                    gate.resolve_doubt(1);
                })
            };
            // Hangs, which shuttle reports as a deadlock, if a wake-up is lost.
            assert_eq!(settle(&gate, 2), Presented::Settled);
            session.join().unwrap();
        },
        SCHEDULES,
    );
}

#[test]
fn a_retired_gate_admits_nobody_and_an_admitted_permit_prevents_retiring() {
    check_random(
        || {
            let gate = Gate::new(LockName::new("a").unwrap(), &Recovered::default());
            assert_eq!(settle(&gate, 1), Presented::Settled);
            let retiring = {
                let gate = Arc::clone(&gate);
                thread::spawn(move || gate.try_retire())
            };
            let permit = gate.permit(token(1));
            let retired = retiring.join().unwrap();
            assert!(
                !(retired && permit.is_ok()),
                "retired under an admitted permit"
            );
            if retired {
                assert_eq!(settle(&gate, 1), Presented::Retired);
            }
        },
        SCHEDULES,
    );
}
