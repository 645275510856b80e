//! The gate: the hot path (equal and settled: permit and finish), alone and on two threads at
//! once, and a raise.

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use criterion::{Criterion, criterion_group, criterion_main};
use ringfence::gate::{Entrance, Gate, Presented, Recovered};
use ringfence::lock_name::LockName;
use ringfence::token::Token;

fn settle(gate: &Arc<Gate>, token: Token) {
    let mut presentation = pin!(gate.present(token));
    let mut cx = Context::from_waker(Waker::noop());
    let mut polled = presentation.as_mut().poll(&mut cx);
    while let Some(record) = gate.take_persist() {
        gate.persisted(record, true);
        polled = presentation.as_mut().poll(&mut cx);
    }
    assert_eq!(polled, Poll::Ready(Presented::Settled));
}

fn write(entrance: &mut Entrance, token: Token) {
    let permit = entrance
        .permit(black_box(token))
        .expect("equal and settled");
    permit.finish();
}

fn gate(c: &mut Criterion) {
    let gate = Gate::new(LockName::new("bench").unwrap(), &Recovered::default());
    let token = Token::new(7).unwrap();
    settle(&gate, token);

    let mut entrance = gate.entrance();
    c.bench_function("permit and finish", |b| {
        b.iter(|| write(&mut entrance, token))
    });
    c.bench_function("permit and finish, gate looked up", |b| {
        b.iter(|| {
            gate.permit(black_box(token))
                .expect("equal and settled")
                .finish()
        });
    });
    c.bench_function("permit, forward, release, finish", |b| {
        b.iter(|| {
            let mut permit = entrance
                .permit(black_box(token))
                .expect("equal and settled");
            permit.forward().unwrap();
            permit.release().unwrap();
            permit.finish();
        });
    });

    let stop = Arc::new(AtomicBool::new(false));
    let other = {
        let (gate, stop) = (Arc::clone(&gate), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut entrance = gate.entrance();
            while !stop.load(Ordering::Relaxed) {
                write(&mut entrance, token);
            }
        })
    };
    c.bench_function("permit and finish, another thread on the same gate", |b| {
        b.iter(|| write(&mut entrance, token));
    });
    stop.store(true, Ordering::Relaxed);
    other.join().unwrap();

    let mut next = 8;
    c.bench_function("raise and settle, disk left out", |b| {
        b.iter(|| {
            settle(&gate, Token::new(next).unwrap());
            next += 1;
        });
    });
}

criterion_group!(benches, gate);
criterion_main!(benches);
