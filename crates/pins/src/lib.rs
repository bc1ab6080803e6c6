//! A machine that forwards each call to the hosted machine and counts it; or that does as little as a kernel
//! in each call of the common case, so that the cost of the library is measured.

use std::sync::atomic::{AtomicU64, Ordering};

use hosted::Hosted;
use quire::addr::{Frame, FrameRange, PhysAddr};
use quire::arch::{Caches, CpuFeatures, ProcessorState, ReadyClear, ReadyCopy};
use quire::cpu::{CpuId, CpuSet};
use quire::platform::{Context, FlushRequest, FramePlatform, Platform, TablePlatform};
use quire::rank::Rank;

macro_rules! calls {
    ($($name:ident),* $(,)?) => {
        /// How often the library made each call.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[allow(missing_docs)]
        pub struct Calls { $(pub $name: u64,)* }

        #[derive(Default)]
        struct Counts { $($name: AtomicU64,)* }

        impl Counts {
            fn take(&self) -> Calls {
                Calls { $($name: self.$name.swap(0, Ordering::Relaxed),)* }
            }
        }
    };
}

calls! {
    pins, unpins, interrupt_switches, contexts, nodes, online, fences, spins, direct_maps, flushes, clears, copies, times,
    freed, fail_asked, block_locks, shard_locks, pool_locks, parked_locks, other_locks, unlocks,
}

/// Locks, by rank.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Locks {
    pub block: u64,
    pub shard: u64,
    pub pool: u64,
    pub parked: u64,
    pub other: u64,
}

impl Calls {
    /// Those that are locks.
    pub fn locks(&self) -> Locks {
        Locks {
            block: self.block_locks,
            shard: self.shard_locks,
            pool: self.pool_locks,
            parked: self.parked_locks,
            other: self.other_locks,
        }
    }
}

/// The machine. One that does not watch has one CPU, and counts nothing.
pub struct Machine<'m, const WATCHES: bool> {
    machine: &'m Hosted,
    counts: Counts,
}

/// The machine that counts.
pub type Counting<'m> = Machine<'m, true>;

impl<'m, const WATCHES: bool> Machine<'m, WATCHES> {
    /// A machine in front of this one, which has one CPU if calls are not counted.
    pub fn new(machine: &'m Hosted) -> Self {
        assert!(WATCHES || machine.cpu_count() == 1);
        Self { machine, counts: Counts::default() }
    }
}

impl Counting<'_> {
    /// The calls of `work`.
    pub fn during<R>(&self, work: impl FnOnce() -> R) -> (Calls, R) {
        self.counts.take();
        let result = work();
        (self.counts.take(), result)
    }
}

fn one(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: H1 and H3: every method is the hosted machine's, which keeps the contracts; or it has one CPU, on which all that runs is
// pinned.
unsafe impl<const WATCHES: bool> FramePlatform for Machine<'_, WATCHES> {
    #[inline(always)]
    fn pin(&self) -> CpuId {
        if !WATCHES {
            return CpuId(0);
        }
        one(&self.counts.pins);
        self.machine.pin()
    }

    #[inline(always)]
    fn unpin(&self) {
        if !WATCHES {
            return;
        }
        one(&self.counts.unpins);
        self.machine.unpin();
    }

    fn interrupts_off(&self) -> bool {
        one(&self.counts.interrupt_switches);
        self.machine.interrupts_off()
    }

    fn interrupts_restore(&self, were_on: bool) {
        one(&self.counts.interrupt_switches);
        self.machine.interrupts_restore(were_on);
    }

    fn context(&self) -> Context {
        one(&self.counts.contexts);
        self.machine.context()
    }

    fn might_sleep(&self) {
        self.machine.might_sleep();
    }

    fn cpu_count(&self) -> usize {
        self.machine.cpu_count()
    }

    fn node_of(&self, cpu: CpuId) -> u8 {
        one(&self.counts.nodes);
        self.machine.node_of(cpu)
    }

    fn online_cpus(&self) -> CpuSet {
        one(&self.counts.online);
        self.machine.online_cpus()
    }

    fn fence_cpus(&self, targets: &CpuSet) {
        one(&self.counts.fences);
        self.machine.fence_cpus(targets);
    }

    fn relax(&self) {
        one(&self.counts.spins);
        self.machine.relax();
    }

    fn reschedule_point(&self) {
        self.machine.reschedule_point();
    }

    fn direct_map(&self, addr: PhysAddr) -> *mut u8 {
        one(&self.counts.direct_maps);
        self.machine.direct_map(addr)
    }

    fn features(&self) -> CpuFeatures {
        self.machine.features()
    }

    fn caches(&self) -> Caches {
        self.machine.caches()
    }

    fn vectors_begin(&self) -> bool {
        true
    }

    unsafe fn clear(&self, frames: FrameRange, kernel: ReadyClear) {
        one(&self.counts.clears);
        // SAFETY: H1: the caller keeps this function's contract, which is the hosted machine's.
        unsafe { self.machine.clear(frames, kernel) };
    }

    unsafe fn copy(&self, from: FrameRange, to: Frame, kernel: ReadyCopy) {
        one(&self.counts.copies);
        // SAFETY: H1: the caller keeps this function's contract, which is the hosted machine's.
        unsafe { self.machine.copy(from, to, kernel) };
    }

    fn now_ns(&self) -> u64 {
        one(&self.counts.times);
        self.machine.now_ns()
    }

    fn watches_frees(&self) -> bool {
        WATCHES
    }

    #[inline(always)]
    fn frames_freed(&self, frames: FrameRange) {
        if !WATCHES {
            return;
        }
        one(&self.counts.freed);
        self.machine.frames_freed(frames);
    }

    #[inline(always)]
    fn lock_taken(&self, rank: Rank) {
        if !WATCHES {
            return;
        }
        one(match rank {
            Rank::Block => &self.counts.block_locks,
            Rank::Shard => &self.counts.shard_locks,
            Rank::Pool => &self.counts.pool_locks,
            Rank::Parked => &self.counts.parked_locks,
            _ => &self.counts.other_locks,
        });
        self.machine.lock_taken(rank);
    }

    #[inline(always)]
    fn lock_dropped(&self, rank: Rank) {
        if !WATCHES {
            return;
        }
        one(&self.counts.unlocks);
        self.machine.lock_dropped(rank);
    }

    #[inline(always)]
    fn fail_allocation(&self) -> bool {
        if !WATCHES {
            return false;
        }
        one(&self.counts.fail_asked);
        self.machine.fail_allocation()
    }
}

// SAFETY: every method is the hosted machine's, whose flushes are complete (H5).
unsafe impl<const WATCHES: bool> TablePlatform for Machine<'_, WATCHES> {
    fn processor_state(&self) -> ProcessorState {
        self.machine.processor_state()
    }

    fn kernel_root(&self) -> Option<Frame> {
        self.machine.kernel_root()
    }

    fn load_root(&self, root: Option<Frame>) {
        self.machine.load_root(root);
    }

    fn flush_local(&self, request: &FlushRequest) {
        one(&self.counts.flushes);
        self.machine.flush_local(request);
    }

    fn flush_remote_start(&self, targets: &CpuSet, request: &FlushRequest) {
        one(&self.counts.flushes);
        self.machine.flush_remote_start(targets, request);
    }

    fn flush_remote_wait(&self, targets: &CpuSet, request: &FlushRequest) {
        self.machine.flush_remote_wait(targets, request);
    }

    fn flush_kernel(&self, range: quire::addr::VirtRange) {
        one(&self.counts.flushes);
        self.machine.flush_kernel(range);
    }
}

// SAFETY: H3: every method is the hosted machine's.
unsafe impl<const WATCHES: bool> Platform for Machine<'_, WATCHES> {
    type Pager = <Hosted as Platform>::Pager;

    fn pager(&self) -> &Self::Pager {
        self.machine.pager()
    }
}

// SAFETY: H1: its memory is the hosted machine's.
unsafe impl<const WATCHES: bool> hosted::raw::IsolatedMemory for Machine<'_, WATCHES> {
    fn holds(&self, frames: FrameRange) -> bool {
        self.machine.holds(frames)
    }
}
