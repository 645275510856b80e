//! Seeded simulation of one gate with everything around it: several writers, a backend that
//! applies in its own order, a store that loses power, deadlines, lost permits, crashes, reloads.
//!
//! The simulated shell is the smallest one that keeps the contract. The checker knows nothing of
//! the gate: it looks at what the backend applied and at what clients were told. A run is named by
//! its seed; a failure prints seed and step. `RINGFENCE_SIM_SEED=n` runs one seed alone.

#[path = "gate_sim/checker.rs"]
mod checker;
#[path = "gate_sim/world.rs"]
mod world;

use world::{Fault, World};

const SEEDS: u64 = 4_000;
const STEPS: u32 = 160;

fn run(seed: u64, fault: Option<Fault>) -> Result<(), String> {
    let mut world = World::new(seed, fault);
    for step in 0..STEPS {
        world
            .step()
            .map_err(|broken| format!("seed {seed}, step {step}: {broken}"))?;
    }
    world
        .heal()
        .map_err(|broken| format!("seed {seed}, healing: {broken}"))
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("RINGFENCE_SIM_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("RINGFENCE_SIM_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..SEEDS,
    }
}

#[test]
fn promises_hold_on_every_schedule() {
    for seed in seeds() {
        if let Err(broken) = run(seed, None) {
            panic!("{broken}");
        }
    }
}

/// A checker that finds nothing proves nothing: each known way to break the protocol is put in, and
/// must be found within the same number of schedules.
fn is_caught(fault: Fault) {
    let found =
        (0..SEEDS).find_map(|seed| run(seed, Some(fault)).err().map(|broken| (seed, broken)));
    let (seed, broken) = found.unwrap_or_else(|| panic!("{fault:?} was not caught"));
    println!("{fault:?} caught after {} schedules: {broken}", seed + 1);
}

#[test]
fn forwarding_a_revoked_permit_is_caught() {
    is_caught(Fault::IgnoreRevocation);
}

#[test]
fn finishing_lost_writes_is_caught() {
    is_caught(Fault::FinishLost);
}

#[test]
fn telling_the_gate_of_records_that_are_not_on_disk_is_caught() {
    is_caught(Fault::LieAboutDisk);
}

#[test]
fn forgetting_what_a_crash_left_is_caught() {
    is_caught(Fault::ForgetOrphans);
}

#[test]
fn taking_an_undrained_record_for_a_drained_one_is_caught() {
    is_caught(Fault::TakeUndrainedForDrained);
}

#[test]
fn marking_a_busy_lock_clean_is_caught() {
    is_caught(Fault::MarkCleanEarly);
}
