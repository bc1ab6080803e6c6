//! Locks on a hosted machine, which refuses a wrong order; all interleavings are explored by `tests/loom`.

use hosted::HostedConfig;
use quire::cpu::CpuId;
use quire::rank::Rank;
use quire::sync::{RwLock, SpinLock};

const CPUS: usize = 3;

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
        for round in 0..20_000 {
            let mut pair = if round % 3 == 0 {
                let Some(pair) = spin.try_lock(&machine) else { continue };
                pair
            } else {
                spin.lock(&machine)
            };
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
        let pair = *spin.lock(&machine);
        assert_eq!(pair.0, pair.1, "two had the lock at once");
        assert_eq!(*shared.read(&machine), (7500, 7500));
    });
}
