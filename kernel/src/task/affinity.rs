//! On which CPUs a task's program may run (`sched_setaffinity(2)`).

use core::sync::atomic::{AtomicU64, Ordering};

use quire::cpu::CpuId;

use crate::cpu::area;

/// A set of CPUs, one bit each. Those of CPUs that the machine does not have mean nothing.
pub struct AllowedCpus(AtomicU64);

impl Default for AllowedCpus {
    /// All of them.
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

/// The CPUs of the machine.
pub fn all() -> u64 {
    (1 << area::count()) - 1
}

impl AllowedCpus {
    /// The CPUs of the machine that are in it.
    pub fn mask(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & all()
    }

    /// Whether a CPU is in it.
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.0.load(Ordering::Relaxed) >> cpu.0 & 1 != 0
    }

    /// Replaces it. At least one CPU of the machine is in the new one.
    pub fn set(&self, mask: u64) {
        debug_assert!(mask & all() != 0);
        self.0.store(mask, Ordering::Relaxed);
    }

    /// A new task begins with its maker's.
    pub fn inherit(&self, maker: &Self) {
        self.0.store(maker.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
