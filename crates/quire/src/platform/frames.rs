//! What the allocation of frames asks of the machine.

use super::Event;
use crate::addr::{Frame, FrameRange, PhysAddr};
use crate::arch::{Caches, CpuFeatures, ReadyClear, ReadyCopy};
use crate::cpu::{CpuId, CpuSet};
use crate::limits::FRAME_SIZE;
use crate::rank::Rank;

/// Where the running code was entered from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Context {
    /// A task: may be preempted and may wait.
    Task,
    /// A soft interrupt (or any context that runs on top of a task but below hard interrupts).
    SoftInterrupt,
    /// A hard interrupt or anything that can interrupt one.
    HardInterrupt,
}

/// The state that [`FramePlatform::interrupts_off`] found, for [`FramePlatform::interrupts_restore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterruptState(pub bool);

/// What keeps an interrupt out of the per-CPU lists while a task is using them. The library's own way is
/// [`Self::Reentry`]; the others are published ways to measure it against.
#[cfg(feature = "published")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum ListGuard {
    /// A plain re-entry flag. An interrupt that finds it set uses lists of its own. Nothing is switched off.
    #[default]
    Reentry,
    /// Interrupts are off around every use, as in Linux before 4.11 and after its revert.
    IrqOff,
    /// Only tasks use the lists; interrupts go to the store, whose locks are taken with interrupts off
    /// (Gorman: "mm, page_alloc: only use per-cpu allocator for irq-safe requests", January 2017).
    TaskOnly,
}

/// What the caller knows of when memory is used that it clears or copies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum TouchHint {
    /// The caller will use the memory at once: leave it in the cache.
    Soon,
    /// The caller will not use it soon.
    Later,
    /// Nothing is known.
    #[default]
    Unknown,
}

impl TouchHint {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Soon, Self::Later, Self::Unknown];

    /// Its name in tables and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Soon => "soon",
            Self::Later => "later",
            Self::Unknown => "unknown",
        }
    }
}

/// A machine, as far as the page allocator must know it.
///
/// Six methods have no default: [`pin`](Self::pin), [`unpin`](Self::unpin), [`context`](Self::context),
/// [`cpu_count`](Self::cpu_count), [`fence_cpus`](Self::fence_cpus) and [`direct_map`](Self::direct_map).
/// `examples/frames_only.rs` implements them for the smallest machine.
///
/// # Safety
///
/// The library's memory safety rests on an implementation that keeps every *must* below, and on
/// [`Self::direct_map`] giving memory that nothing outside the library uses.
pub unsafe trait FramePlatform: Sync {
    /// What guards the per-CPU lists, as a constant: the way is inlined into callers, as the library's own
    /// is. With the default, [`AllocatorConfig::lists`](crate::page_alloc::AllocatorConfig) chooses at
    /// start-up, and the published ways are reached by the slow path.
    #[cfg(feature = "published")]
    const LIST_GUARD: ListGuard = ListGuard::Reentry;

    /// Keeps the running task on its CPU (preemption off) and says which CPU that is. Calls nest.
    ///
    /// Precondition: none. Postcondition: until the matching [`Self::unpin`] the task runs on this CPU and no
    /// other task does. Interrupts may still arrive. Does not block. Any context.
    fn pin(&self) -> CpuId;

    /// Undoes one [`Self::pin`].
    ///
    /// Precondition: the task is pinned. Does not block.
    fn unpin(&self);

    /// The context of the running code. Does not block.
    fn context(&self) -> Context;

    /// How many CPUs the machine can ever have; ids are below it. At most [`crate::limits::MAX_CPUS`],
    /// constant.
    fn cpu_count(&self) -> usize;

    /// Makes every CPU of `targets` execute a full memory barrier between the call and its return, whatever
    /// that CPU is running. A kernel interrupts them and waits; Linux offers processes the same as
    /// `membarrier`, private expedited. A CPU that is offline needs none. What those CPUs stored before the
    /// barrier is then visible to the caller, and what the caller stored before the call is visible to them
    /// after it. `targets` may hold the calling CPU. A machine of one CPU executes a fence.
    ///
    /// Precondition: interrupts on. May wait for the targets to take an interrupt, and for nothing else.
    fn fence_cpus(&self, targets: &CpuSet);

    /// The direct map: where the byte at `addr` can be read and written.
    ///
    /// Precondition: `addr` lies in a range that the manager was given. Postcondition: the pointer is valid
    /// for reads and writes to the end of that range, for as long as the platform lives; equal addresses give
    /// equal pointers, a range is contiguous in the direct map, and an address that is a multiple of 4096
    /// gives a pointer that is. Does not block. Any context.
    fn direct_map(&self, addr: PhysAddr) -> *mut u8;

    /// The CPUs that run now. May change between calls.
    ///
    /// Default: all of them. A CPU that is offline is then sent barriers that it cannot take, so a machine
    /// whose CPUs go offline overrides this.
    fn online_cpus(&self) -> CpuSet {
        CpuSet::first(self.cpu_count())
    }

    /// The memory node nearest to a CPU. Constant.
    ///
    /// Default: node 0. On a machine with several nodes every CPU then allocates from the first one.
    #[inline]
    fn node_of(&self, _cpu: CpuId) -> u8 {
        0
    }

    /// How far node `to` is from node `from`, in the units of ACPI's table of distances (SLIT; ACPI 6.5,
    /// section 5.2.17): 10 is the node itself, and every other node is farther. Constant.
    ///
    /// Default: every other node is at 20. Allocation then falls back to other nodes in the order of their
    /// numbers.
    #[inline]
    fn node_distance(&self, from: u8, to: u8) -> u8 {
        if from == to { 10 } else { 20 }
    }

    /// Called in every turn of a spin loop. A hosted machine lets other threads run here.
    ///
    /// Default: the processor's hint for spin loops, which is what a kernel wants. A guest whose virtual CPUs
    /// are preempted while they hold a lock may override this to yield to the hypervisor.
    #[inline]
    fn relax(&self) {
        core::hint::spin_loop();
    }

    /// A place at which a long call lets others run: a kernel that does not preempt its tasks calls its
    /// scheduler if the time slice of this task is used up. Verbs that walk a range call it once per page
    /// table, populating at least every [`crate::limits::POPULATE_FAULTS`] pages, and the gather at least
    /// every [`crate::limits::DRAIN_RUNS`] runs and [`crate::limits::DRAIN_FRAMES`] frames that it counts
    /// down.
    ///
    /// Precondition: a task, not pinned by the library, which holds no lock but that of an address space,
    /// perhaps for writing, and perhaps a claim on memory that it clears: where a kernel schedules here,
    /// [`Self::relax`] must let the holder of a lock or a claim go on as well. No task waits for a busy entry
    /// of this task. May block; the task may go on on another CPU.
    ///
    /// Default: nothing. Long calls then keep the CPU until they end, unless the kernel preempts them.
    #[inline]
    fn reschedule_point(&self) {}

    /// Whether the running task is about to be killed, so that the result it waits for is of no use any more.
    /// Long calls ask where they call [`Self::reschedule_point`], and stop. Does not block.
    ///
    /// Default: no. A task that is killed then finishes its long call first.
    #[inline]
    fn is_dying(&self) -> bool {
        false
    }

    /// Turns interrupts off on this CPU and says whether they were on. Does not block. Any context.
    ///
    /// Only the published ways of guarding per-CPU lists call it, with the feature `published`; the library's
    /// own never does.
    ///
    /// Default: panics.
    fn interrupts_off(&self) -> InterruptState {
        panic!("a list guard that turns interrupts off needs a platform that can")
    }

    /// Restores what [`Self::interrupts_off`] found; calls nest in stack order.
    ///
    /// Default: panics, since no [`Self::interrupts_off`] can have come before it.
    fn interrupts_restore(&self, _state: InterruptState) {
        panic!("a list guard that turns interrupts off needs a platform that can")
    }

    /// What the processor has for clearing and copying, as far as the library may use it. Constant. All CPUs
    /// of a machine must have these features.
    ///
    /// Default: what this processor has, but for vector registers. A kernel that saves vector registers
    /// returns `CpuFeatures::detect()` and implements [`Self::vectors_begin`]; without them, clearing extents
    /// beyond the caches may run at a fraction of the memory's speed (`docs/measured.md` has the figures).
    fn features(&self) -> CpuFeatures {
        CpuFeatures::detect().without_vectors()
    }

    /// How large the caches are. Constant.
    ///
    /// Default: asks the processor, which may cost microseconds in a virtual machine; the library asks at
    /// start-up.
    fn caches(&self) -> Caches {
        Caches::detect()
    }

    /// Asks for the vector registers of this CPU. Between this call and [`Self::vectors_end`] they hold
    /// values of the code between the two calls alone, because the kernel has saved what the task had there.
    /// `false` where they cannot be had, now (in an interrupt, say) or ever; the library then uses a kernel
    /// without vectors, and does not call `vectors_end`.
    ///
    /// At most one [stretch](crate::clear::Stretch) of the clear policy stands between the calls, and a
    /// kernel may keep the task on its CPU meanwhile. Calls do not nest. Does not block. Any context.
    ///
    /// Default: never, with the cost that [`Self::features`] names.
    #[inline]
    fn vectors_begin(&self) -> bool {
        false
    }

    /// Returns the registers that [`Self::vectors_begin`] granted. Default: nothing.
    #[inline]
    fn vectors_end(&self) {}

    /// Fills frames with zeroes by the kernel that the library chose. The zeroes must be visible to every CPU
    /// that sees a store made after the call, and after a store fence of the caller's where the kernel is
    /// [unfenced](ReadyClear::unfenced).
    ///
    /// Does not block; the caller bounds the extent.
    ///
    /// Default: the kernel, through the direct map. Only a platform that counts or models clearing overrides
    /// it.
    ///
    /// # Safety
    /// The frames belong to the caller (invariant 1) and lie in one range; where the kernel uses vectors, the
    /// call stands between [`Self::vectors_begin`] and [`Self::vectors_end`].
    #[inline]
    unsafe fn clear(&self, frames: FrameRange, kernel: ReadyClear) {
        let start = self.direct_map(frames.start.addr());
        // SAFETY: invariant 1: by the precondition the frames are the caller's and lie in one range, to whose
        // end the direct map reaches; the registers are the caller's too.
        unsafe { kernel.zero(start, (frames.count * FRAME_SIZE) as usize) };
    }

    /// Copies frames onto as many others from `to` on, visible as for [`Self::clear`]. They do not overlap. A
    /// store to `from` during the call may be copied or not, or in part: the caller excludes such stores, or
    /// discards the copy.
    ///
    /// Default: the kernel, through the direct map. Only a platform that counts or models copying overrides
    /// it.
    ///
    /// # Safety
    /// As for [`Self::clear`], save that `from` need not be the caller's alone.
    #[inline]
    unsafe fn copy(&self, from: FrameRange, to: Frame, kernel: ReadyCopy) {
        let (source, target) = (self.direct_map(from.start.addr()), self.direct_map(to.addr()));
        // SAFETY: invariant 1: both runs lie in one range each, and `to` is the caller's by the precondition.
        // Stores to the source during the call race with no load that the compiler sees: the kernel's loads
        // are instructions.
        unsafe { kernel.copy(source, target, (from.count * FRAME_SIZE) as usize) };
    }

    /// Monotonic time in nanoseconds. Only [`measure_clear`](crate::clear::measure_clear) and `measure_copy`
    /// ask.
    ///
    /// Default: a clock that stands still. Measuring the clear kernels then finds all of them equally fast;
    /// without measuring, the table is derived from the processor's features and cache sizes, which needs no
    /// clock.
    fn now_ns(&self) -> u64 {
        0
    }

    /// Called when something rare happens that an operator may want to read of: memory was short, or went
    /// bad. The crate `quire-interop` has a function that makes log records of events.
    ///
    /// Precondition: none. Any context, perhaps pinned, and the caller may hold locks of the library's. Does
    /// not block, and calls nothing of the library: a logger that allocates from it must put the event off.
    ///
    /// Default: nothing.
    #[inline]
    fn event(&self, _event: Event) {}

    /// Whether [`Self::frames_freed`] examines what it is told.
    ///
    /// Default: no, so that hundreds of frames that are freed at once are not reported one by one.
    #[inline]
    fn watches_frees(&self) -> bool {
        false
    }

    /// Called when frames return to the allocator, at least where [`Self::watches_frees`]. A machine that
    /// checks looks here for translations that still reach them (invariant 2).
    ///
    /// Default: nothing.
    #[inline]
    fn frames_freed(&self, _frames: FrameRange) {}

    /// Called before the library waits for a lock, and after it takes one without waiting. A machine that
    /// checks keeps the ranks that each task holds and refuses a wrong order (see [`crate::sync`]).
    ///
    /// Default: nothing.
    #[inline]
    fn lock_taken(&self, _rank: Rank) {}

    /// Called after a lock was released. Default: nothing.
    #[inline]
    fn lock_dropped(&self, _rank: Rank) {}

    /// Asked before every allocation of frames; `true` makes it fail as if memory were out. Only machines
    /// that test failures override it.
    ///
    /// Default: no.
    #[inline]
    fn fail_allocation(&self) -> bool {
        false
    }
}
