//! The platform seam: all that the library knows of the machine it runs on.
//!
//! A kernel implements [`Platform`] on a zero-sized type, so that `&self` costs nothing; hosted and simulated
//! machines are ordinary values, many per process. Page-table entries are plain atomics in the direct map and no
//! platform calls, so that an MMU, real or modelled, is an independent reader of the same memory.
//!
//! "May block" in a contract means: may wait for something other than another CPU's short critical section.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::addr::{Frame, FrameRange, PhysAddr, VirtRange};
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

/// The state that [`Platform::interrupts_off`] found, to be given back to [`Platform::interrupts_restore`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterruptState(pub bool);

/// What of a translation cache must go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushExtent {
    /// Leaf translations of these addresses, one every `stride` bytes (4 KiB, 2 MiB or 1 GiB).
    Range {
        /// The addresses.
        range: VirtRange,
        /// The smallest leaf size among what was cleared, in bytes.
        stride: u64,
    },
    /// Every translation of the address space that is not global.
    AddressSpace,
}

/// A flush of one address space's translations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushRequest {
    /// The top-level page table that names the address space.
    pub root: Frame,
    /// What must go.
    pub extent: FlushExtent,
    /// Page-table pages were removed: entries of paging-structure caches for the extent must go as well.
    pub tables: bool,
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

/// A machine, as far as a memory manager must know it.
///
/// # Safety
///
/// The library's memory safety rests on an implementation that keeps every *must* below; in particular on
/// [`Platform::direct_map`] giving memory that nothing outside the library uses.
pub unsafe trait Platform: Sync {
    /// Where file pages come from. A machine without files uses [`NoFiles`].
    type Pager: Pager;

    /// The source of file pages.
    fn pager(&self) -> &Self::Pager;

    /// Keeps the running task on its CPU (preemption off) and says which CPU that is. Calls nest.
    ///
    /// Precondition: none. Postcondition: until the matching [`Self::unpin`] the task runs on this CPU and no other
    /// task does. Interrupts may still arrive. Does not block. Any context.
    fn pin(&self) -> CpuId;

    /// Undoes one [`Self::pin`].
    ///
    /// Precondition: the task is pinned. Does not block.
    fn unpin(&self);

    /// Turns interrupts off on this CPU and says whether they were on. Does not block. Any context.
    fn interrupts_off(&self) -> InterruptState;

    /// Puts back what [`Self::interrupts_off`] found; calls nest in stack order.
    fn interrupts_restore(&self, state: InterruptState);

    /// The context of the running code. Does not block.
    fn context(&self) -> Context;

    /// How many CPUs the machine can ever have; ids are below it. At most [`crate::limits::MAX_CPUS`], constant.
    fn cpu_count(&self) -> usize;

    /// The memory node nearest to a CPU. Constant.
    #[inline]
    fn node_of(&self, _cpu: CpuId) -> u8 {
        0
    }

    /// How far node `to` is from node `from`, in the units of ACPI's table of distances (SLIT; ACPI 6.5, section 5.2.17):
    /// 10 is the node itself, and every other node is farther. Constant.
    #[inline]
    fn node_distance(&self, from: u8, to: u8) -> u8 {
        if from == to { 10 } else { 20 }
    }

    /// The CPUs that run now. May change between calls.
    fn online_cpus(&self) -> CpuSet;

    /// Makes every CPU of `targets` execute a full memory barrier between the call and its return, whatever it is running:
    /// a kernel interrupts them and waits (Linux offers processes the same as `membarrier`, private expedited). A CPU
    /// that is offline needs none. What those CPUs stored before the barrier is then visible to the caller, and what the
    /// caller stored before the call is visible to them after it. `targets` may hold the calling CPU.
    ///
    /// Precondition: interrupts on. May wait for the targets to take an interrupt, and for nothing else.
    fn fence_cpus(&self, targets: &CpuSet);

    /// Called in every turn of a spin loop. A kernel executes `pause`; a hosted machine gives its thread's turn away.
    fn relax(&self);

    /// A place at which a long call lets others run: a kernel that does not preempt its tasks calls its scheduler if this
    /// task has had its turn. Verbs that walk a range pass one with each page table, populating at least every
    /// [`crate::limits::POPULATE_FAULTS`] pages, and the gather one at least every
    /// [`crate::limits::DRAIN_RUNS`] runs and [`crate::limits::DRAIN_FRAMES`] frames that it counts down.
    ///
    /// Precondition: a task, not pinned by the library, which holds no lock but that of an address space, perhaps for
    /// writing, and perhaps a claim on memory that it clears: where a kernel schedules here, [`Self::relax`] must let the holder
    /// of a lock or a claim go on as well. Nobody waits for a busy entry of this task. May block; the task may go on on another CPU.
    #[inline]
    fn reschedule_point(&self) {}

    /// Waits until `word` is no longer `seen`, or somebody calls [`Self::wake`] on it; may return at any time besides, so that the
    /// caller looks again. A kernel puts the task to sleep in a queue found by the word's address, as Linux's `futex` does, and
    /// lets it go when the task is to be killed ([`Self::is_dying`]).
    ///
    /// Precondition: a task, interrupts on, not pinned by the library, which holds no lock. Postcondition: none but that a store
    /// to the word which came before a `wake`, or before the call, does not leave the caller asleep. Blocks. The default
    /// takes one turn of a spin loop.
    fn wait(&self, word: &AtomicU32, seen: u32) {
        if word.load(Ordering::Acquire) == seen {
            self.relax();
        }
    }

    /// Lets everybody go on who waits for `word`, which the caller has changed before. The memory that held the word may be
    /// anything by now; who waits for nothing of the kind is disturbed at worst. Does not block. The caller holds no lock.
    #[inline]
    fn wake(&self, _word: &AtomicU32) {}

    /// The direct map: where the byte at `addr` can be read and written.
    ///
    /// Precondition: `addr` lies in a range that the manager was given. Postcondition: the pointer is valid for reads
    /// and writes to the end of that range, for as long as the platform lives; equal addresses give equal pointers,
    /// a range is contiguous in the direct map, and an address that is a multiple of 4096 gives a pointer that is. Does not block. Any context.
    fn direct_map(&self, addr: PhysAddr) -> *mut u8;

    /// Makes `root` the page table of this CPU, or leaves the user half empty for `None`. Translations of other
    /// address spaces may stay cached; those of `root` must be as fresh as if it had never left.
    ///
    /// Precondition: pinned. Does not block.
    fn load_root(&self, root: Option<Frame>);

    /// Flushes this CPU's translations. Precondition: pinned. Postcondition: this CPU uses no translation of the
    /// extent that was cached before the call. Does not block.
    fn flush_local(&self, request: &FlushRequest);

    /// Starts the same flush on `targets`, without waiting. `targets` never holds the calling CPU.
    ///
    /// Precondition: pinned; interrupts on. May wait for room in a queue, not for completion.
    fn flush_remote_start(&self, targets: &CpuSet, request: &FlushRequest);

    /// Waits for the flush that this CPU started last. Postcondition: no CPU of its targets uses a translation of
    /// the extent that was cached before the start. Precondition: pinned.
    fn flush_remote_wait(&self, targets: &CpuSet, request: &FlushRequest);

    /// Flushes the kernel's translations of `range` on all CPUs, the calling one among them, and waits: leaves of every size,
    /// global ones too, and entries of paging-structure caches. Only the window of page descriptors ([`crate::vmemmap`]) asks
    /// for it, so a machine whose descriptor policy has none is never asked. A CPU that is offline, or sleeps so deeply that it
    /// takes no interrupt, may be passed over if it flushes all of this before it looks at the window again.
    ///
    /// Precondition: a task, interrupts on, not pinned by the library; no lock is held but that of an address space.
    /// Postcondition: no CPU uses a translation of `range` that was cached before the call. May wait for other CPUs to take an
    /// interrupt, and for nothing else.
    fn flush_kernel(&self, range: VirtRange);

    /// What the processor has for clearing and copying, as far as the library may use it. Constant. A kernel that never
    /// gives its vector registers away leaves the default; one that does says `CpuFeatures::detect()`, and has
    /// [`Self::vectors_begin`]. All CPUs of a machine must have them.
    fn features(&self) -> CpuFeatures {
        CpuFeatures::detect().without_vectors()
    }

    /// How large the caches are. Constant.
    fn caches(&self) -> Caches {
        Caches::detect()
    }

    /// Asks for the vector registers of this CPU: until [`Self::vectors_end`] nobody's values stand in them but those of the
    /// code between the two calls, because a kernel has saved what the task had there. `false` where they cannot be had,
    /// now (in an interrupt, say) or ever; the library then uses a kernel without vectors, and does not call `vectors_end`.
    ///
    /// What stands between is one [stretch](crate::clear::Stretch) of the clear policy, or less, and a kernel may keep the task
    /// on its CPU meanwhile. Calls do not nest. Does not block. Any context.
    #[inline]
    fn vectors_begin(&self) -> bool {
        false
    }

    /// Gives back what [`Self::vectors_begin`] gave.
    #[inline]
    fn vectors_end(&self) {}

    /// Whether the running task is about to be killed, so that what it waits for is of no use any more. Asked where
    /// [`Self::reschedule_point`] is called in the middle of a long clear. Does not block.
    #[inline]
    fn is_dying(&self) -> bool {
        false
    }

    /// Fills frames with zeroes by the kernel that the library chose; they must be visible as such to every CPU that sees a
    /// store made after the call, and after a store fence of the caller's where the kernel is [unfenced](ReadyClear::unfenced). A platform that wants to count, or not to clear at all, does so in its own; all others leave
    /// the default.
    ///
    /// Precondition: the frames belong to the caller and lie in one range; where the kernel uses vectors, the call stands
    /// between [`Self::vectors_begin`] and [`Self::vectors_end`]. Does not block; the caller bounds the extent.
    #[inline]
    fn clear(&self, frames: FrameRange, kernel: ReadyClear) {
        let start = self.direct_map(frames.start.addr());
        // SAFETY: the direct map reaches to the end of the range that the frames lie in, and they are the caller's; so are the
        // registers, by the precondition.
        unsafe { kernel.zero(start, (frames.count * FRAME_SIZE) as usize) };
    }

    /// Copies frames onto as many others from `to` on, visible as for [`Self::clear`] and with its preconditions, save that
    /// `from` need not be the caller's alone. They do not overlap. What is stored to `from` meanwhile may be copied or not, in
    /// part too: the caller sees to it that nobody stores, or throws the copy away.
    #[inline]
    fn copy(&self, from: FrameRange, to: Frame, kernel: ReadyCopy) {
        let (source, target) = (self.direct_map(from.start.addr()), self.direct_map(to.addr()));
        // SAFETY: as for `clear`; both runs lie in a range each. Stores to the source meanwhile are no concern of the compiler,
        // which does not see these loads.
        unsafe { kernel.copy(source, target, (from.count * FRAME_SIZE) as usize) };
    }

    /// Monotonic time in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Tells a secondary MMU (a hypervisor's second-stage tables, a device) that translations of `range` in the address space
    /// of `root` have changed in the page table, and that frames which they named, or rights which they gave, will soon be
    /// relied upon not to be used through them. Opens a bracket, which [`Self::secondary_invalidate_end`] closes for the same
    /// root and range in the same task; several may be open at once, of several tasks, and they may overlap.
    ///
    /// Called only for address spaces that have a secondary MMU ([`Mm::register_secondary`](crate::vm::Mm::register_secondary)), before
    /// the CPUs are flushed, whether or not any CPU runs the address space.
    ///
    /// Precondition: a task, not pinned by the library; no lock is held but that of the address space. Postcondition: no access
    /// through a copy of a translation of `range` that was taken before the call is under way, or will be; and until the end of
    /// the bracket nobody makes copies in `range`. Whoever walked the page table before the call and has not made its copy yet
    /// drops what it found and walks again ([`Mm::translate`](crate::vm::Mm::translate)). May block, but not on a page fault of this address
    /// space: its lock is held.
    #[inline]
    fn secondary_invalidate_start(&self, _root: Frame, _range: VirtRange) {}

    /// Closes the bracket that [`Self::secondary_invalidate_start`] opened: the CPUs are flushed, and a copy of what the page
    /// table holds now is as good as any CPU's. Preconditions as there. May block likewise.
    #[inline]
    fn secondary_invalidate_end(&self, _root: Frame, _range: VirtRange) {}

    /// Tells a secondary MMU that all of `range`, the extent of one leaf, is mapped by that leaf now, where smaller ones were: onto
    /// the same frames, with the same rights, and dirty if one of them was. Copies of the smaller ones stay good; they may be replaced
    /// by larger ones, which needs no bracket and stops nobody. A hint, given outside every bracket of the calling task, to
    /// address spaces that have a secondary MMU.
    ///
    /// Precondition: a task that holds the address space's lock, so that what is said stays so until the call returns, and
    /// no other. May block likewise.
    #[inline]
    fn secondary_collapse_possible(&self, _root: Frame, _range: VirtRange) {}

    /// Whether [`Self::frames_freed`] looks at what it is told. Where it does not, frames that go back in their hundreds are
    /// not looked at one by one for its sake.
    #[inline]
    fn watches_frees(&self) -> bool {
        false
    }

    /// Called whenever frames go back to the allocator, where [`Self::watches_frees`] at least. A checking machine looks here for translations that still
    /// reach them (invariant 2); all others leave the empty default.
    #[inline]
    fn frames_freed(&self, _frames: FrameRange) {}

    /// Called before a lock is waited for and after one is taken without waiting. A checking machine keeps the ranks
    /// that each task holds and refuses a wrong order (see [`crate::sync`]); all others leave the empty default.
    #[inline]
    fn lock_taken(&self, _rank: Rank) {}

    /// Called after a lock was given back.
    #[inline]
    fn lock_dropped(&self, _rank: Rank) {}

    /// Asked before every allocation of frames; `true` makes it fail as if memory were out. Only machines that test
    /// failures override the default.
    #[inline]
    fn fail_allocation(&self) -> bool {
        false
    }
}

/// Names a file to its [`Pager`]: an inode number, a handle, an index; the library only compares it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FileId(pub u64);

/// Why file pages could not be brought in or written out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PagerError {
    /// The device or the network failed; the access becomes a bus error.
    Io,
    /// The page lies wholly behind the end of the file.
    BeyondEnd,
}

/// Where the contents of file pages come from and go to.
///
/// Calls may block. They are made without any lock of the library held except the address space's own lock, for
/// reading, and the busy mark of the pages concerned.
pub trait Pager: Sync {
    /// The file's size in bytes now.
    fn size(&self, file: FileId) -> u64;

    /// Fills `bytes` (one frame) with the file's contents from `page * 4096`; what lies behind the end is zeroed.
    ///
    /// # Errors
    /// [`PagerError::BeyondEnd`] when the page holds no byte of the file, [`PagerError::Io`] otherwise.
    fn read(&self, file: FileId, page: u64, bytes: &mut [u8; FRAME_SIZE as usize]) -> Result<(), PagerError>;

    /// Writes a dirty page back.
    ///
    /// # Errors
    /// [`PagerError::Io`]; the page then stays dirty.
    fn write(&self, file: FileId, page: u64, bytes: &[u8; FRAME_SIZE as usize]) -> Result<(), PagerError>;

    /// Gives the file another size in bytes. What lay behind a new end that is nearer is gone: should the file grow again, it
    /// reads as zeroes there. Called without any lock held. A page may be written or read at the same time; behind the
    /// end both fail.
    ///
    /// # Errors
    /// [`PagerError::Io`]; the file is as before then.
    fn resize(&self, file: FileId, bytes: u64) -> Result<(), PagerError>;
}

/// The pager of a machine without files: every file is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl Pager for NoFiles {
    fn size(&self, _file: FileId) -> u64 {
        0
    }

    fn read(
        &self,
        _file: FileId,
        _page: u64,
        _bytes: &mut [u8; FRAME_SIZE as usize],
    ) -> Result<(), PagerError> {
        Err(PagerError::BeyondEnd)
    }

    fn write(&self, _file: FileId, _page: u64, _bytes: &[u8; FRAME_SIZE as usize]) -> Result<(), PagerError> {
        Err(PagerError::Io)
    }

    fn resize(&self, _file: FileId, _bytes: u64) -> Result<(), PagerError> {
        Err(PagerError::Io)
    }
}
