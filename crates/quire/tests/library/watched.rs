//! A machine that records what it is asked to clear and copy, where its reschedule points are, and when
//! vectors are used, and counts some calls. Its task can be made to die, and vectors be refused.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use hosted::Hosted;
use quire::addr::{Frame, FrameRange, PhysAddr};
use quire::arch::{Caches, ClearKernel, CopyKernel, CpuFeatures, ProcessorState, ReadyClear, ReadyCopy};
use quire::cpu::{CpuId, CpuSet};
use quire::page_alloc::NodePolicy;
use quire::platform::{Context, FlushRequest, FramePlatform, Platform, TablePlatform};
use quire::rank::Rank;

/// What the library did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Clear(FrameRange, ClearKernel),
    Copy(FrameRange, Frame, CopyKernel),
    /// A store fence of the library, after kernels that make none.
    Fence,
    Point,
    VectorsBegin,
    VectorsEnd,
    /// The lock of an address space was taken.
    Locked,
}

/// How often the library made each call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Calls {
    /// Asked for an address of the direct map.
    pub(crate) direct_maps: u64,
    /// Took the lock of a block.
    pub(crate) block_locks: u64,
    /// Took the lock of a region's free blocks.
    pub(crate) pool_locks: u64,
}

#[derive(Default)]
struct Counts {
    direct_maps: AtomicU64,
    block_locks: AtomicU64,
    pool_locks: AtomicU64,
}

pub(crate) struct Watched<'m> {
    machine: &'m Hosted,
    events: Mutex<Vec<Event>>,
    counts: Counts,
    /// How many more times the task is said to live.
    lives: AtomicU64,
    vectors: AtomicBool,
    asked: Mutex<Option<Asked<'m>>>,
    clears: Mutex<Option<Asked<'m>>>,
    told: Mutex<Option<Box<dyn FnMut() + Send + 'm>>>,
    /// The state that the processor is said to have, if not the machine's.
    state: Mutex<Option<ProcessorState>>,
    nodes: Mutex<NodePolicy>,
    /// The bytes of stack that are said to be left, if not the thread's.
    stack: Mutex<Option<usize>>,
}

/// Runs once: when a task is asked whether it dies, before the answer is yes, or before memory is cleared.
type Asked<'m> = Box<dyn FnOnce() + Send + 'm>;

impl<'m> Watched<'m> {
    pub(crate) fn new(machine: &'m Hosted) -> Self {
        Self {
            machine,
            events: Mutex::default(),
            counts: Counts::default(),
            lives: AtomicU64::new(u64::MAX),
            vectors: AtomicBool::new(true),
            asked: Mutex::default(),
            clears: Mutex::default(),
            told: Mutex::default(),
            state: Mutex::default(),
            nodes: Mutex::default(),
            stack: Mutex::default(),
        }
    }

    /// The events since the last call.
    pub(crate) fn events(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().unwrap())
    }

    /// The calls of `work`, which are counted on all CPUs.
    pub(crate) fn calls_during<R>(&self, work: impl FnOnce() -> R) -> (Calls, R) {
        self.take_calls();
        let result = work();
        (self.take_calls(), result)
    }

    fn take_calls(&self) -> Calls {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        Calls {
            direct_maps: take(&self.counts.direct_maps),
            block_locks: take(&self.counts.block_locks),
            pool_locks: take(&self.counts.pool_locks),
        }
    }

    /// The task dies after it was said to live so often; `None`: never.
    pub(crate) fn dies_after(&self, lives: Option<u64>) {
        self.lives.store(lives.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The next task that is asked dies, after `asked` has run.
    pub(crate) fn dies_after_that(&self, asked: impl FnOnce() + Send + 'm) {
        *self.asked.lock().unwrap() = Some(Box::new(asked));
    }

    /// Runs `before` when memory is cleared next.
    pub(crate) fn before_clear(&self, before: impl FnOnce() + Send + 'm) {
        *self.clears.lock().unwrap() = Some(Box::new(before));
    }

    /// Runs `told` whenever a secondary MMU is told of larger leaves.
    pub(crate) fn when_told(&self, told: impl FnMut() + Send + 'm) {
        *self.told.lock().unwrap() = Some(Box::new(told));
    }

    /// Whether vectors are available from now on.
    pub(crate) fn give_vectors(&self, give: bool) {
        self.vectors.store(give, Ordering::Relaxed);
    }

    /// The processor has this state from now on.
    pub(crate) fn set_state(&self, state: ProcessorState) {
        *self.state.lock().unwrap() = Some(state);
    }

    /// The task's memory comes from these nodes from now on.
    pub(crate) fn set_task_nodes(&self, nodes: NodePolicy) {
        *self.nodes.lock().unwrap() = nodes;
    }

    /// So many bytes of stack are left from now on.
    pub(crate) fn set_stack(&self, bytes: usize) {
        *self.stack.lock().unwrap() = Some(bytes);
    }

    fn note(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

// SAFETY: H1 and H3: every method is the hosted machine's, which keeps the contracts.
unsafe impl FramePlatform for Watched<'_> {
    fn pin(&self) -> CpuId {
        self.machine.pin()
    }

    fn unpin(&self) {
        self.machine.unpin();
    }

    fn interrupts_off(&self) -> bool {
        self.machine.interrupts_off()
    }

    fn interrupts_restore(&self, were_on: bool) {
        self.machine.interrupts_restore(were_on);
    }

    fn context(&self) -> Context {
        self.machine.context()
    }

    fn interrupts_enabled(&self) -> Option<bool> {
        self.machine.interrupts_enabled()
    }

    fn stack_left(&self) -> Option<usize> {
        self.stack.lock().unwrap().or_else(|| self.machine.stack_left())
    }

    fn cpu_count(&self) -> usize {
        self.machine.cpu_count()
    }

    fn online_cpus(&self) -> CpuSet {
        self.machine.online_cpus()
    }

    fn fence_cpus(&self, targets: &CpuSet) {
        self.machine.fence_cpus(targets);
    }

    fn relax(&self) {
        self.machine.relax();
    }

    fn reschedule_point(&self) {
        self.machine.reschedule_point();
        self.note(Event::Point);
    }

    fn direct_map(&self, addr: PhysAddr) -> *mut u8 {
        self.counts.direct_maps.fetch_add(1, Ordering::Relaxed);
        self.machine.direct_map(addr)
    }

    fn features(&self) -> CpuFeatures {
        self.machine.features()
    }

    fn caches(&self) -> Caches {
        Caches { first: 32 << 10, second: 1 << 20, last: 32 << 20 }
    }

    fn vectors_begin(&self) -> bool {
        let given = self.vectors.load(Ordering::Relaxed);
        if given {
            self.note(Event::VectorsBegin);
        }
        given
    }

    fn vectors_end(&self) {
        self.note(Event::VectorsEnd);
    }

    fn lock_taken(&self, rank: Rank) {
        match rank {
            Rank::AddressSpace => self.note(Event::Locked),
            Rank::Block => _ = self.counts.block_locks.fetch_add(1, Ordering::Relaxed),
            Rank::Pool => _ = self.counts.pool_locks.fetch_add(1, Ordering::Relaxed),
            _ => {}
        }
    }

    fn is_dying(&self) -> bool {
        let asked = self.asked.lock().unwrap().take();
        if let Some(asked) = asked {
            asked();
            return true;
        }
        let lived = |lives: u64| lives.checked_sub(u64::from(lives != u64::MAX));
        self.lives.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lived).is_err()
    }

    unsafe fn clear(&self, frames: FrameRange, kernel: ReadyClear) {
        // Without the lock: other CPUs clear while it runs.
        let before = self.clears.lock().unwrap().take();
        if let Some(before) = before {
            before();
        }
        self.note(Event::Clear(frames, kernel.kernel()));
        // SAFETY: H1: the caller keeps this function's contract, which is the hosted machine's.
        unsafe { self.machine.clear(frames, kernel) };
    }

    fn store_fence(&self) {
        self.note(Event::Fence);
        quire::arch::store_fence();
    }

    unsafe fn copy(&self, from: FrameRange, to: Frame, kernel: ReadyCopy) {
        self.note(Event::Copy(from, to, kernel.kernel()));
        // SAFETY: H1: the caller keeps this function's contract, which is the hosted machine's.
        unsafe { self.machine.copy(from, to, kernel) };
    }

    fn now_ns(&self) -> u64 {
        self.machine.now_ns()
    }
}

// SAFETY: every method is the hosted machine's, whose flushes are complete (H5).
unsafe impl TablePlatform for Watched<'_> {
    fn processor_state(&self) -> ProcessorState {
        self.state.lock().unwrap().unwrap_or_else(|| self.machine.processor_state())
    }

    fn kernel_root(&self) -> Option<Frame> {
        self.machine.kernel_root()
    }

    fn load_root(&self, root: Option<Frame>) {
        self.machine.load_root(root);
    }

    fn flush_local(&self, request: &FlushRequest) {
        self.machine.flush_local(request);
    }

    fn flush_remote_start(&self, targets: &CpuSet, request: &FlushRequest) {
        self.machine.flush_remote_start(targets, request);
    }

    fn flush_remote_wait(&self, targets: &CpuSet, request: &FlushRequest) {
        self.machine.flush_remote_wait(targets, request);
    }

    fn flush_kernel(&self, range: quire::addr::VirtRange) {
        self.machine.flush_kernel(range);
    }

    fn secondary_invalidate_start(&self, root: Frame, range: quire::addr::VirtRange) {
        self.machine.secondary_invalidate_start(root, range);
    }

    fn secondary_invalidate_end(&self, root: Frame, range: quire::addr::VirtRange) {
        self.machine.secondary_invalidate_end(root, range);
    }

    fn secondary_collapse_possible(&self, root: Frame, range: quire::addr::VirtRange) {
        if let Some(told) = self.told.lock().unwrap().as_mut() {
            told();
        }
        self.machine.secondary_collapse_possible(root, range);
    }
}

// SAFETY: H3: every method is the hosted machine's.
unsafe impl Platform for Watched<'_> {
    type Pager = <Hosted as Platform>::Pager;

    fn pager(&self) -> &Self::Pager {
        self.machine.pager()
    }

    fn task_nodes(&self) -> NodePolicy {
        *self.nodes.lock().unwrap()
    }

    fn wait(&self, word: &AtomicU32, seen: u32) {
        self.machine.wait(word, seen);
    }

    fn wake(&self, word: &AtomicU32) {
        self.machine.wake(word);
    }
}

// SAFETY: H1: its memory is the hosted machine's.
unsafe impl hosted::raw::IsolatedMemory for Watched<'_> {
    fn holds(&self, frames: FrameRange) -> bool {
        self.machine.holds(frames)
    }
}
