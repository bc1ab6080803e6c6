//! What the page allocator needs of the machine.

use super::Event;
use crate::addr::{Frame, FrameRange, PhysAddr};
use crate::arch::{Caches, CpuFeatures, ReadyClear, ReadyCopy};
use crate::cpu::{CpuId, CpuSet};
use crate::limits::FRAME_SIZE;
use crate::rank::Rank;

/// The kind of the running code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Context {
    /// A task, which may be preempted and may wait.
    Task,
    /// A soft interrupt (or any context that runs on top of a task but below hard interrupts).
    SoftInterrupt,
    /// A hard interrupt or anything that can interrupt one.
    HardInterrupt,
}

/// How the per-CPU lists are protected from an interrupt while a task uses them. The library's own way is
/// [`Self::Reentry`]; the others are published ways to compare with.
#[cfg(feature = "published")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum ListGuard {
    /// A plain re-entry flag. An interrupt that finds it set uses lists of its own. Nothing is switched off.
    #[default]
    Reentry,
    /// Interrupts are off around every use, as in Linux before 4.11 and after its revert.
    IrqOff,
    /// Only tasks use the lists. Interrupts use the store, whose locks are taken with interrupts off (Gorman:
    /// "mm, page_alloc: only use per-cpu allocator for irq-safe requests", January 2017).
    TaskOnly,
}

/// When the memory that the caller clears or copies will be used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum TouchHint {
    /// At once: leave it in the cache.
    Soon,
    /// Not soon.
    Later,
    /// The caller does not know.
    #[default]
    Unknown,
}

impl TouchHint {
    /// All hints.
    pub const ALL: [Self; 3] = [Self::Soon, Self::Later, Self::Unknown];

    /// The hint's name in tables and options.
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
/// The library's memory safety requires that an implementation keeps every *must* below, and that nothing
/// outside the library uses the memory of [`Self::direct_map`].
pub unsafe trait FramePlatform: Sync {
    /// The guard of the per-CPU lists, as a constant, so that it is inlined into callers as the library's own
    /// is. With the default, [`AllocatorConfig::lists`](crate::page_alloc::AllocatorConfig) chooses a guard
    /// at start-up, and the published ones take the slow path.
    #[cfg(feature = "published")]
    const LIST_GUARD: ListGuard = ListGuard::Reentry;

    /// Keeps the running task on its CPU (preemption off) and returns that CPU. Calls nest.
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

    /// The most CPUs that the machine can have; ids are below it. Constant, up to
    /// [`crate::limits::MAX_CPUS`].
    fn cpu_count(&self) -> usize;

    /// Makes every CPU of `targets` execute a full memory barrier between the call and its return, whatever
    /// it is running. A kernel interrupts the CPUs and waits; Linux offers this to processes as `membarrier`,
    /// private expedited. An offline CPU needs no barrier. Afterwards the caller sees what those CPUs stored
    /// before the barrier, and they see what the caller stored before the call. `targets` may hold the
    /// calling CPU. A machine of one CPU executes a fence.
    ///
    /// Precondition: interrupts on. May wait for the targets to take an interrupt, and for nothing else.
    fn fence_cpus(&self, targets: &CpuSet);

    /// The direct map: the pointer to the byte at `addr`.
    ///
    /// Precondition: `addr` lies in a range that the manager was given, or in the table of
    /// [`kernel_root`](super::TablePlatform::kernel_root). Postcondition: the pointer is valid
    /// for reads and writes to the end of that range, for as long as the platform lives. Equal addresses give
    /// equal pointers. A range is contiguous in the direct map, and so are ranges within the same 2 MiB. An
    /// address that is a multiple of 4096 gives a pointer that is one. Does not block. Any context.
    fn direct_map(&self, addr: PhysAddr) -> *mut u8;

    /// The CPUs that run now. May change between calls.
    ///
    /// Default: all of them. The library would then send barriers to offline CPUs, which cannot execute them,
    /// so a machine whose CPUs go offline must override this.
    fn online_cpus(&self) -> CpuSet {
        CpuSet::first(self.cpu_count())
    }

    /// The memory node nearest to a CPU. Constant.
    ///
    /// Default: node 0. On a machine with several nodes every CPU then allocates from the first node.
    #[inline]
    fn node_of(&self, _cpu: CpuId) -> u8 {
        0
    }

    /// The distance from node `from` to node `to`, in the units of ACPI's SLIT (ACPI 6.5, section 5.2.17): 10
    /// for the node itself, more for every other one. Constant.
    ///
    /// Default: 20 for every other node. Allocation then falls back to other nodes by number.
    #[inline]
    fn node_distance(&self, from: u8, to: u8) -> u8 {
        if from == to { 10 } else { 20 }
    }

    /// Called in every turn of a spin loop. A hosted machine lets other threads run here.
    ///
    /// Default: the processor's hint for spin loops, which suits a kernel. A guest whose virtual CPUs are
    /// preempted while they hold a lock may yield to the hypervisor instead.
    #[inline]
    fn relax(&self) {
        core::hint::spin_loop();
    }

    /// A point at which a long call lets other tasks run: a kernel without preemption calls its scheduler if
    /// the task's time slice is used up. A verb that walks a range calls it once per page table, and while
    /// populating at least every [`crate::limits::POPULATE_FAULTS`] pages. The gather calls it at least every
    /// [`crate::limits::DRAIN_RUNS`] runs and [`crate::limits::DRAIN_FRAMES`] frames that it counts down.
    ///
    /// Precondition: a task, not pinned by the library, that holds no lock but that of an address space,
    /// perhaps for writing, and perhaps a claim on memory that it clears. So where a kernel schedules here,
    /// [`Self::relax`] must let the holder of a lock or a claim run too. No task waits for a busy entry of
    /// this task. May block; the task may continue on another CPU.
    ///
    /// Default: nothing. Long calls then keep the CPU until they end, unless the kernel preempts them.
    #[inline]
    fn reschedule_point(&self) {}

    /// Whether the running task is about to be killed, so that the result of its call is useless. Long calls
    /// ask where they call [`Self::reschedule_point`], and stop. Does not block.
    ///
    /// Default: no. A killed task then finishes its long call first.
    #[inline]
    fn is_dying(&self) -> bool {
        false
    }

    /// The number of the running task. A handler of faults reads it with the task's faults. Does not block.
    ///
    /// Default: 0. Such a handler then cannot tell threads apart.
    #[inline]
    fn thread_number(&self) -> u64 {
        0
    }

    /// Turns interrupts off on this CPU and returns whether they were on. Does not block. Any context. Only
    /// the published guards of per-CPU lists call it.
    ///
    /// Default: panics.
    #[cfg(feature = "published")]
    fn interrupts_off(&self) -> bool {
        panic!("a list guard that turns interrupts off needs a platform that can")
    }

    /// Turns interrupts on again if the matching [`Self::interrupts_off`] found them on; calls nest in stack
    /// order.
    ///
    /// Default: panics, like [`Self::interrupts_off`].
    #[cfg(feature = "published")]
    fn interrupts_restore(&self, _were_on: bool) {
        panic!("a list guard that turns interrupts off needs a platform that can")
    }

    /// The processor's features for clearing and copying that the library may use. Constant; all CPUs have
    /// them.
    ///
    /// Default: the features of this processor without vector registers. A kernel that saves vector registers
    /// returns `CpuFeatures::detect()` and implements [`Self::vectors_begin`]. Without vectors, clearing
    /// extents beyond the caches may be several times slower (`docs/measured.md` has the figures).
    fn features(&self) -> CpuFeatures {
        CpuFeatures::detect().without_vectors()
    }

    /// The sizes of the caches. Constant.
    ///
    /// Default: asks the processor, at start-up, which may cost microseconds in a virtual machine.
    fn caches(&self) -> Caches {
        Caches::detect()
    }

    /// Requests the vector registers of this CPU. From this call to [`Self::vectors_end`] they hold only
    /// values of the code in between, because the kernel has saved the task's. Returns `false` if they are
    /// not available, now (in an interrupt, say) or ever. The library then does without, and does not call
    /// `vectors_end`.
    ///
    /// At most one [stretch](crate::clear::Stretch) of the clear policy is cleared or copied between the
    /// calls, and a kernel may pin the task meanwhile. Calls do not nest. Does not block. Any context.
    ///
    /// Default: `false`, with the cost that [`Self::features`] describes.
    #[inline]
    fn vectors_begin(&self) -> bool {
        false
    }

    /// Returns the registers that [`Self::vectors_begin`] granted.
    ///
    /// Default: nothing, at no cost, which fits the default of [`Self::vectors_begin`]: it grants none.
    #[inline]
    fn vectors_end(&self) {}

    /// Fills frames with zeroes by the kernel that the library chose. Every CPU that sees a later store must
    /// see the zeroes; with an [unfenced](ReadyClear::unfenced) kernel, a store after the caller's store
    /// fence. Does not block; the caller bounds the extent.
    ///
    /// Default: the kernel, through the direct map. A platform that counts or models clears overrides it.
    ///
    /// # Safety
    /// The frames belong to the caller (invariant 1) and lie in one range. Where the kernel uses vectors, the
    /// call is between [`Self::vectors_begin`] and [`Self::vectors_end`].
    #[inline]
    unsafe fn clear(&self, frames: FrameRange, kernel: ReadyClear) {
        let start = self.direct_map(frames.start.addr());
        // SAFETY: invariant 1: by the precondition the frames are the caller's and lie in one range, to whose
        // end the direct map reaches; the registers are the caller's too.
        unsafe { kernel.zero(start, (frames.count * FRAME_SIZE) as usize) };
    }

    /// Orders all stores of this CPU before it, those past the caches too, before all stores after it: ends a
    /// run of [unfenced](ReadyClear::unfenced) kernels.
    ///
    /// Default: the instruction. A platform that counts fences overrides it, and calls
    /// [`store_fence`](crate::arch::store_fence).
    #[inline]
    fn store_fence(&self) {
        crate::arch::store_fence();
    }

    /// Copies frames to the same number of frames from `to` on, visible as for [`Self::clear`]. They are the
    /// same, or do not overlap. The copy may contain a concurrent store to `from` in full, in part or not at
    /// all: the caller excludes such stores, or discards the copy.
    ///
    /// Default: the kernel, through the direct map. A platform that counts or models copies overrides it.
    ///
    /// # Safety
    /// As for [`Self::clear`], except that `from` need not be the caller's alone.
    #[inline]
    unsafe fn copy(&self, from: FrameRange, to: Frame, kernel: ReadyCopy) {
        let (source, target) = (self.direct_map(from.start.addr()), self.direct_map(to.addr()));
        // SAFETY: invariant 1: both runs lie in one range each, and `to` is the caller's by the precondition.
        // A store to the source meanwhile races with no compiled load: the kernel is assembly.
        unsafe { kernel.copy(source, target, (from.count * FRAME_SIZE) as usize) };
    }

    /// Monotonic time in nanoseconds. For [`measure_clear`](crate::clear::measure_clear) and `measure_copy`.
    ///
    /// Default: a clock that stands still. A measurement then finds all kernels equally fast. Without a
    /// measurement the table is derived from the processor's features and cache sizes, which needs no clock.
    fn now_ns(&self) -> u64 {
        0
    }

    /// Reports a rare event that an operator may want to know: memory was short, or went bad. The crate
    /// `quire-interop` has a function that makes log records of events.
    ///
    /// Precondition: none. Any context, perhaps pinned; the caller may hold locks of the library. Does not
    /// block, and does not call the library: a logger that allocates from it must defer the event.
    ///
    /// Default: nothing. The machine then learns of such events from the counters alone.
    #[inline]
    fn event(&self, _event: Event) {}

    /// Whether [`Self::frames_freed`] examines the frames.
    ///
    /// Default: no, so that a bulk free does not report its frames one by one.
    #[inline]
    fn watches_frees(&self) -> bool {
        false
    }

    /// Called when frames return to the allocator, at least if [`Self::watches_frees`]. A machine that checks
    /// looks for translations that still reach them (invariant 2).
    ///
    /// Default: nothing.
    #[inline]
    fn frames_freed(&self, _frames: FrameRange) {}

    /// Called before the library waits for a lock, and after it takes one without waiting. A machine that
    /// checks records the ranks that each task holds and refuses a wrong order (see [`crate::sync`]).
    ///
    /// Default: nothing, at no cost, as for [`Self::lock_dropped`].
    #[inline]
    fn lock_taken(&self, _rank: Rank) {}

    /// Called after a spin lock was released, and just before the lock of an address space is.
    ///
    /// Default: nothing, at no cost. Locks are then taken in an order that is not checked.
    #[inline]
    fn lock_dropped(&self, _rank: Rank) {}

    /// Called first in every call that may sleep, wait for other CPUs or take the lock of an address space
    /// ([`Mm`](crate::vm::Mm) says which), in debug builds of the library only. Panics unless the caller is a
    /// task with interrupts on that is not pinned and holds no lock of the library. As Linux's `might_sleep`.
    ///
    /// Default: refuses interrupts, by [`Self::context`], and tasks that have interrupts off, by
    /// [`Self::interrupts_enabled`]. A kernel that knows how often a task is pinned, or holds a lock, refuses
    /// that too.
    #[inline]
    fn might_sleep(&self) {
        let context = self.context();
        assert!(
            context == Context::Task,
            "a call that may sleep or flush other CPUs was made in a {context:?}: only a task may make it"
        );
        assert!(
            self.interrupts_enabled() != Some(false),
            "a call that may sleep or flush other CPUs was made with interrupts off"
        );
    }

    /// Whether this CPU takes interrupts now. Only [`Self::might_sleep`] asks. Does not block. Any context.
    ///
    /// Default: unknown. Debug builds then do not notice a task that waits for other CPUs with interrupts off,
    /// while one of them waits for this one.
    #[inline]
    fn interrupts_enabled(&self) -> Option<bool> {
        None
    }

    /// How many bytes of the running stack are left below the caller. Start-up asks once, and refuses less than
    /// [`START_STACK_BYTES`](crate::limits::START_STACK_BYTES). Does not block.
    ///
    /// Default: unknown. A stack that is too small then overflows during start-up.
    #[inline]
    fn stack_left(&self) -> Option<usize> {
        None
    }

    /// Called before every allocation of frames; `true` makes it fail as if memory were out. Only machines
    /// that test failures override it.
    ///
    /// Default: no.
    #[inline]
    fn fail_allocation(&self) -> bool {
        false
    }
}
