//! Locks on a hosted machine, which refuses a wrong order; all interleavings are explored by `tests/loom`.

use hosted::HostedConfig;
use quire::cpu::CpuId;
use quire::rank::Rank;
use quire::sync::{RwLock, SpinLock};

const CPUS: usize = 3;
const ROUNDS: u64 = if cfg!(miri) { 160 } else { 20_000 };

#[test]
fn a_lock_that_was_not_had_is_not_given_back() {
    let machine = HostedConfig::new(1 << 20).build().unwrap();
    machine.run_on(CpuId(0), || {
        let lock = SpinLock::new(Rank::Pool, 7);
        let held = lock.lock(&machine);
        for _ in 0..3 {
            assert!(lock.try_lock(&machine).is_none(), "the holder has it still");
        }
        drop(held);
        assert_eq!(lock.try_lock(&machine).as_deref(), Some(&7));
    });
}

#[test]
fn threads_exclude_each_other() {
    let machine = HostedConfig::new(1 << 20).with_cpus(CPUS).build().unwrap();
    let spin = SpinLock::new(Rank::Block, (0u64, 0u64));
    let shared = RwLock::new(Rank::AddressSpace, (0u64, 0u64));
    machine.spawn_cpus(CPUS, |_| {
        for round in 0..ROUNDS {
            let tried = if round % 3 == 0 { spin.try_lock(&machine) } else { None };
            let mut pair = tried.unwrap_or_else(|| spin.lock(&machine));
            pair.0 += 1;
            pair.1 += 1;
            drop(pair);
            if round % 8 == 0 {
                let mut pair = shared.write(&machine);
                pair.0 += 1;
                pair.1 += 1;
            } else {
                let pair = shared.read(&machine);
                assert_eq!(pair.0, pair.1, "a reader met a writer");
            }
        }
    });
    machine.run_on(CpuId(0), || {
        let each = CPUS as u64 * ROUNDS;
        assert_eq!(*spin.lock(&machine), (each, each), "two had the lock at once");
        assert_eq!(*shared.read(&machine), (each / 8, each / 8));
    });
}

/// What an admitted reader saw may have changed by the next hold.
#[test]
fn a_change_after_an_admission_is_counted() {
    let machine = HostedConfig::new(1 << 20).with_cpus(2).build().unwrap();
    let lock = RwLock::new(Rank::AddressSpace, 0_u64);
    machine.run_on(CpuId(0), || {
        let mut writer = lock.write(&machine);
        writer.admit(&(0..1));
        let seen = machine.run_on(CpuId(1), || {
            let reader = lock.read_beside(&machine, || 1..2);
            (reader.writes(), *reader)
        });
        *writer += 1;
        drop(writer);
        let reader = lock.read(&machine);
        assert_ne!(*reader, seen.1);
        assert_ne!(reader.writes(), seen.0);
    });
}

/// Readers may be where the second range would be.
#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "another range")]
fn readers_are_not_admitted_for_a_second_range() {
    let machine = HostedConfig::new(1 << 20).build().unwrap();
    machine.run_on(CpuId(0), || {
        let lock = RwLock::new(Rank::AddressSpace, 0_u64);
        let mut writer = lock.write(&machine);
        writer.admit(&(0..1));
        writer.admit(&(0..1));
        writer.admit(&(1..2));
    });
}
