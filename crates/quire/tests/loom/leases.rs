//! A CPU's lease on data that it alone touches: its owner and the CPUs that revoke it never touch the data at
//! once, and each sees the stores of the others.

use loom::sync::Arc;
use loom::thread;

use crate::atomic::Orders::{self, Kept, NotTotal, Relaxed, Unfenced};
use crate::atomic::{AtomicU32, Ordering};
use crate::machine::Cpu;
use crate::sync::{Lease, Rank, SpinLock};
use crate::watched::Watched;
use crate::{fails, holds_but_not};
use quire::cpu::CpuSet;
use quire::platform::FramePlatform;

struct Leased {
    lease: Lease,
    /// The data's own flag, as lists have one.
    open: AtomicU32,
    data: Watched,
    /// The right to revoke.
    revoking: SpinLock<()>,
}

impl Leased {
    fn new() -> Arc<Self> {
        let leased = Self {
            lease: Lease::new(false),
            open: AtomicU32::new(1),
            data: Watched::new(),
            revoking: SpinLock::new(Rank::ListDrain, ()),
        };
        // Every atomic is known to the model before threads start.
        assert!(leased.lease.enter());
        leased.data.increment();
        leased.open.store(1, Ordering::SeqCst);
        leased.lease.release();
        drop(leased.revoking.lock(&Cpu(2)));
        Arc::new(leased)
    }

    /// As `PageAllocator::drain_cpu`, in its order.
    fn revoke(&self, cpu: &Cpu) {
        let _revoking = self.revoking.lock(cpu);
        self.lease.revoke();
        self.open.store(0, Ordering::SeqCst);
        cpu.fence_cpus(&CpuSet::first(1));
        self.lease.wait_left(cpu);
        self.data.increment();
        self.open.store(1, Ordering::SeqCst);
        self.lease.give_back();
    }

    /// Uses the data if the lease allows it. Returns how often.
    fn enter(&self) -> u64 {
        let entered = self.lease.enter();
        if entered {
            self.data.increment();
            self.lease.release();
        }
        entered.into()
    }

    /// As [`Self::enter`], by the data's own flag.
    fn enter_open(&self) -> u64 {
        if !self.lease.enter_open() {
            return 0;
        }
        let open = self.open.load(Ordering::Acquire) == 1;
        if open {
            self.data.increment();
        }
        self.lease.release();
        open.into()
    }

    /// Wrong: looks at the data before the flag.
    fn look_first(&self) -> u64 {
        let entered = self.lease.enter_open();
        self.data.get();
        if entered {
            self.lease.release();
        }
        0
    }

    /// Wrong: reads the flag before it enters.
    fn read_flag_first(&self) -> u64 {
        let open = self.open.load(Ordering::Acquire) == 1;
        if !self.lease.enter_open() {
            return 0;
        }
        if open {
            self.data.increment();
        }
        self.lease.release();
        open.into()
    }
}

/// The owner twice against one revoking CPU, or once against two.
fn model(revokers: u32, own: fn(&Leased) -> u64) {
    let leased = Leased::new();
    let owner = {
        let leased = leased.clone();
        thread::spawn(move || (revokers..3).map(|_| own(&leased)).sum::<u64>())
    };
    let other = (revokers > 1).then(|| {
        let leased = leased.clone();
        thread::spawn(move || leased.revoke(&Cpu(1)))
    });
    leased.revoke(&Cpu(2));
    let entered = owner.join().unwrap();
    other.into_iter().for_each(|other| other.join().unwrap());
    assert_eq!(leased.data.get(), 1 + entered + u64::from(revokers), "a change was lost");
    assert!(leased.lease.enter(), "the owner may enter again");
}

const WEAK: [Orders; 3] = [Unfenced, NotTotal, Relaxed];

#[test]
fn owner_and_revoker_exclude_each_other() {
    holds_but_not(&WEAK, || model(1, Leased::enter));
}

#[test]
fn owner_and_revoker_exclude_each_other_by_the_flag_of_the_data() {
    holds_but_not(&WEAK, || model(1, Leased::enter_open));
}

#[test]
fn two_revokers_take_turns() {
    holds_but_not(&WEAK, || model(2, Leased::enter));
    holds_but_not(&WEAK, || model(2, Leased::enter_open));
}

#[test]
fn an_owner_that_looks_too_early_is_found() {
    fails(Kept, || model(1, Leased::look_first));
}

#[test]
fn an_owner_that_reads_the_flag_too_early_is_found() {
    fails(Kept, || model(1, Leased::read_flag_first));
}

/// Wrong: the revoking CPU does not wait until the owner has left.
#[test]
fn a_revoker_that_does_not_wait_is_found() {
    fails(Kept, || {
        let leased = Leased::new();
        let owner = {
            let leased = leased.clone();
            thread::spawn(move || leased.enter())
        };
        leased.lease.revoke();
        Cpu(2).fence_cpus(&CpuSet::first(1));
        leased.data.increment();
        owner.join().unwrap();
    });
}

/// Wrong: two CPUs revoke at once.
#[test]
fn revokers_that_nothing_serialises_are_found() {
    fails(Kept, || {
        let leased = Leased::new();
        let other = {
            let leased = leased.clone();
            thread::spawn(move || {
                leased.lease.revoke();
                leased.lease.wait_left(&Cpu(1));
                leased.data.increment();
                leased.lease.give_back();
            })
        };
        leased.revoke(&Cpu(2));
        other.join().unwrap();
    });
}
