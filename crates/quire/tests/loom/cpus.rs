//! Which CPUs run an address space: a CPU that joins while an entry changes either sees the change or is
//! flushed.

use loom::sync::Arc;
use loom::thread;

use crate::atomic::Orders::{NotTotal, Relaxed};
use crate::atomic::{AtomicU64, Ordering, fence};
use crate::cpu::{AtomicCpuSet, CpuId};
use crate::holds_but_not;

const OLD: u64 = 1;
const NEW: u64 = 2;

struct Space {
    cpus: AtomicCpuSet,
    entry: AtomicU64,
    /// By CPU: the cached value, or 0.
    cached: [AtomicU64; 2],
}

/// `MmContext::switch_in`, and a walk. Loading a root is a serialising instruction.
fn join(space: &Space, cpu: u32) {
    space.cpus.insert(CpuId(cpu));
    fence(Ordering::SeqCst);
    let seen = space.entry.load(Ordering::Relaxed);
    space.cached[cpu as usize].store(seen, Ordering::Relaxed);
}

#[test]
fn a_cpu_that_joins_sees_the_change_or_is_flushed() {
    holds_but_not(&[Relaxed, NotTotal], || {
        let space = Arc::new(Space {
            cpus: AtomicCpuSet::new(),
            entry: AtomicU64::new(OLD),
            cached: [const { AtomicU64::new(0) }; 2],
        });
        // Every atomic is known to the model before threads start.
        space.cpus.remove(CpuId(0));
        space.entry.store(OLD, Ordering::SeqCst);
        space.cached.iter().for_each(|cached| cached.store(0, Ordering::SeqCst));
        let joining: Vec<_> = (0..2)
            .map(|cpu| {
                let space = space.clone();
                thread::spawn(move || join(&space, cpu))
            })
            .collect();
        // A verb: change the entry, then flush the CPUs that run the address space.
        space.entry.store(NEW, Ordering::Release);
        let flushed = space.cpus.snapshot();
        joining.into_iter().for_each(|thread| thread.join().unwrap());
        for cpu in 0..2 {
            let cached = space.cached[cpu].load(Ordering::SeqCst);
            assert!(cached == NEW || flushed.contains(CpuId(cpu as u32)), "CPU {cpu} keeps the old entry");
        }
    });
}
