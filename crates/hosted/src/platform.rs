//! The machine as the library sees it.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use quire::addr::{Frame, FrameRange, PhysAddr, VirtRange};
use quire::arch::{Caches, CpuFeatures, PagingMode, ProcessorState, ReadyClear, ReadyCopy};
use quire::cpu::{CpuId, CpuSet};
use quire::platform::{Context, FlushExtent, FlushRequest, FramePlatform, Platform, TablePlatform};
use quire::rank::Rank;
use rustix::thread::{futex, sched_yield};

use crate::barriers;
use crate::files::SyntheticFiles;
use crate::flags::{restore_flags, save_flags};
use crate::machine::{Hosted, not_a_cpu};
use crate::task::{Task, called, stack_left};

/// Turns of a spin loop between two offers of the processor to other threads.
const TURNS_PER_YIELD: u32 = 16;

/// The host processor's features: reading them takes a process on a virtual machine some microseconds each
/// time.
static FEATURES: OnceLock<CpuFeatures> = OnceLock::new();
static CACHES: OnceLock<Caches> = OnceLock::new();

impl Hosted {
    fn count_extent(&self, request: &FlushRequest) {
        let counters = self.own_counters();
        match request.extent {
            FlushExtent::Range { range, stride } => {
                counters.flushes_range.add(1);
                counters.pages_flushed.add(range.len().div_ceil(stride));
            }
            FlushExtent::AddressSpace => counters.flushes_address_space.add(1),
        }
        counters.flushes_tables.add(u64::from(request.tables));
    }

    /// Checks that the caller holds only an address space's lock, as the library may when it calls a
    /// secondary MMU. The bare machine does not know locks.
    fn debug_assert_may_block(&self) {
        Task::with(|task| {
            task.ranks.at_most(Rank::AddressSpace);
            debug_assert_eq!(task.pins(), 0, "a pinned task cannot wait for a secondary MMU");
            debug_assert!(!task.interrupts_off(), "a secondary MMU was told with interrupts off");
        });
    }

    /// Turns interrupts off on the running CPU, and returns whether they were on. Calls nest in stack order.
    #[inline]
    pub fn disable_interrupts(&self) -> bool {
        Task::with(|task| {
            if self.config.interrupt_price {
                save_flags();
            }
            let off = task.interrupts_off();
            task.set_interrupts_off(true);
            !off
        })
    }

    /// Turns interrupts on again if the matching [`Self::disable_interrupts`] found them on. Those that waited
    /// arrive then.
    #[inline]
    pub fn restore_interrupts(&self, were_on: bool) {
        Task::with(|task| {
            task.set_interrupts_off(!were_on);
            if self.config.interrupt_price {
                restore_flags();
            }
            if were_on {
                called(task);
            }
        });
    }

    /// Checks for translations that still lead to freed frames. Out of line: it is on the path of every free.
    #[inline(never)]
    fn check_freed(&self, frames: FrameRange) {
        Task::with(called);
        self.own_counters().frames_freed.add(frames.count);
        self.all_violated(self.tlbs.reaching(frames));
        self.all_violated(self.nested.reaching(frames));
    }

    /// The pin of a thread that is no CPU of this machine, or whose calls are counted.
    #[cold]
    #[inline(never)]
    fn pin_disturbed(&self, task: &Task) {
        if task.machine() != self.identity() {
            not_a_cpu();
        }
        called(task);
    }

    /// Checks that the running thread is pinned; only debug builds know.
    fn debug_assert_pinned(&self) {
        debug_assert!(Task::with(Task::pins) > 0, "the caller must be pinned to its CPU");
    }
}

// SAFETY: `direct_map` gives arena memory, which is mapped for as long as the machine lives and which nothing else in
// the process knows (H1). A pinned task stays on its CPU because a thread is one CPU while it runs the machine's work
// and no second thread can be that CPU (H3).
unsafe impl FramePlatform for Hosted {
    #[inline]
    fn pin(&self) -> CpuId {
        Task::with(|task| {
            if !task.runs_undisturbed(self.identity()) {
                self.pin_disturbed(task);
            }
            if cfg!(debug_assertions) {
                task.pinned();
            }
            task.cpu()
        })
    }

    /// Costs nothing in release builds, so no interrupt at platform calls arrives here there.
    #[inline]
    fn unpin(&self) {
        if cfg!(debug_assertions) {
            Task::with(|task| {
                task.unpinned();
                called(task);
            });
        }
    }

    #[cfg(feature = "published")]
    #[inline]
    fn interrupts_off(&self) -> bool {
        self.disable_interrupts()
    }

    #[cfg(feature = "published")]
    #[inline]
    fn interrupts_restore(&self, were_on: bool) {
        self.restore_interrupts(were_on);
    }

    #[inline]
    fn context(&self) -> Context {
        Task::with(Task::context)
    }

    #[inline]
    fn cpu_count(&self) -> usize {
        self.config.cpus
    }

    #[inline]
    fn node_of(&self, cpu: CpuId) -> u8 {
        self.config.nodes.get(cpu.index()).copied().unwrap_or(0)
    }

    fn node_distance(&self, from: u8, to: u8) -> u8 {
        let said = self.config.distances.get(usize::from(from)).and_then(|row| row.get(usize::from(to)));
        said.copied().unwrap_or(if from == to { 10 } else { 20 })
    }

    fn online_cpus(&self) -> CpuSet {
        Task::with(called);
        self.online.snapshot()
    }

    /// A barrier on every processor that runs a thread of this process. One that runs none has nothing in flight.
    fn fence_cpus(&self, targets: &CpuSet) {
        Task::with(called);
        if targets.is_empty() {
            return;
        }
        self.own_counters().fences.add(1);
        if !cfg!(miri) {
            barriers::interrupt_processors();
        }
    }

    fn relax(&self) {
        std::hint::spin_loop();
        self.spins.fetch_add(1, Ordering::Relaxed);
        Task::with(|task| {
            called(task);
            if task.next_turn().is_multiple_of(TURNS_PER_YIELD) {
                if cfg!(miri) { std::thread::yield_now() } else { sched_yield() }
            }
        });
    }

    #[inline]
    fn direct_map(&self, addr: PhysAddr) -> *mut u8 {
        self.arena.direct_map(addr)
    }

    /// The host's features without those that the machine lacks: a process's registers are its own.
    fn features(&self) -> CpuFeatures {
        let found = *FEATURES.get_or_init(CpuFeatures::detect);
        self.config.lacks.iter().fold(found, |found, &feature| found.without(feature))
    }

    fn caches(&self) -> Caches {
        *CACHES.get_or_init(Caches::detect)
    }

    #[inline]
    fn vectors_begin(&self) -> bool {
        true
    }

    unsafe fn clear(&self, frames: FrameRange, kernel: ReadyClear) {
        let bytes = self.count_clear(frames);
        if !self.config.clearing || bytes == 0 {
            return;
        }
        let start = frames.start.addr();
        debug_assert!(self.arena.contains(PhysAddr(start.0 + bytes - 1)));
        for (offset, bytes) in self.arena.parts(start, bytes) {
            let at = PhysAddr(start.0 + offset);
            if self.arena.is_populated(at, bytes) {
                // SAFETY: H1: the frames lie in one range, which is mapped to its end; the caller owns them and gives no
                // other code access meanwhile. A process's vector registers hold the compiler's values alone.
                unsafe { kernel.zero(self.direct_map(at), bytes as usize) };
            }
        }
    }

    unsafe fn copy(&self, from: FrameRange, to: Frame, kernel: ReadyCopy) {
        let bytes = self.count_copy(FrameRange::new(to, from.count));
        if !self.config.clearing || bytes == 0 {
            return;
        }
        for (offset, bytes) in self.arena.parts(to.addr(), bytes) {
            let [from, to] = [from.start, to].map(|frame| PhysAddr(frame.addr().0 + offset));
            if !self.arena.is_populated(to, bytes) && !self.arena.is_populated(from, bytes) {
                continue;
            }
            // SAFETY: H1: each run lies in a range; the runs do not overlap, and the caller owns `to`. What others store to
            // `from` meanwhile the compiler does not see read: these are the processor's loads. A process's vector
            // registers hold the compiler's values alone.
            unsafe { kernel.copy(self.direct_map(from), self.direct_map(to), bytes as usize) };
        }
    }

    fn now_ns(&self) -> u64 {
        self.born.elapsed().as_nanos() as u64
    }

    #[inline]
    fn watches_frees(&self) -> bool {
        self.config.tlb_model
    }

    #[inline(always)]
    fn frames_freed(&self, frames: FrameRange) {
        if self.config.tlb_model {
            self.check_freed(frames);
        }
    }

    /// Counts, and checks that the library may be preempted here.
    fn reschedule_point(&self) {
        Task::with(|task| {
            task.ranks.at_most(Rank::AddressSpace);
            debug_assert_eq!(task.pins(), 0, "a pinned task cannot be put off");
        });
        self.own_counters().reschedule_points.add(1);
    }

    fn might_sleep(&self) {
        Task::with(Task::check_may_sleep);
    }

    fn interrupts_enabled(&self) -> Option<bool> {
        Some(!Task::with(Task::interrupts_off))
    }

    fn stack_left(&self) -> Option<usize> {
        stack_left()
    }

    #[inline]
    fn lock_taken(&self, rank: Rank) {
        if self.config.check_ranks {
            Task::with(|task| {
                task.ranks.take(rank);
                task.check_lock(rank);
                called(task);
            });
        }
    }

    #[inline]
    fn lock_dropped(&self, rank: Rank) {
        if self.config.check_ranks {
            Task::with(|task| {
                task.ranks.give_back(rank);
                task.check_unlock(rank);
                called(task);
            });
        }
    }

    #[inline]
    fn fail_allocation(&self) -> bool {
        self.failures.fail()
    }
}

// SAFETY: a flush takes the locks of the modelled TLBs that it empties, so no access through an older translation is in
// flight when it returns (H5).
unsafe impl TablePlatform for Hosted {
    /// Complete: the software MMU enforces all that the bits stand for.
    fn processor_state(&self) -> ProcessorState {
        let mode = if self.config.five_level { PagingMode::FiveLevel } else { PagingMode::FourLevel };
        ProcessorState::modelled(mode)
    }

    /// The table of [`Hosted::set_kernel_root`].
    fn kernel_root(&self) -> Option<Frame> {
        self.tlbs.kernel_root()
    }

    fn load_root(&self, root: Option<Frame>) {
        self.debug_assert_pinned();
        self.own_counters().roots_loaded.add(1);
        self.all_violated(self.tlbs.load_root(self.this_cpu(), root));
    }

    #[inline]
    fn keeps_translations(&self) -> bool {
        self.config.keeps_translations
    }

    fn load_kept_root(&self, root: Frame, is_good: impl FnOnce() -> bool) {
        self.debug_assert_pinned();
        let counters = self.own_counters();
        let count = |kept: bool| if kept { counters.roots_kept.add(1) } else { counters.roots_loaded.add(1) };
        self.all_violated(self.tlbs.load_kept_root(self.this_cpu(), root, is_good, count));
    }

    fn flush_local(&self, request: &FlushRequest) {
        self.debug_assert_pinned();
        self.own_counters().flushes_local.add(1);
        self.count_extent(request);
        if !self.tlbs.losses.fail() {
            self.tlbs.flush(self.this_cpu(), request);
        }
    }

    fn flush_remote_start(&self, targets: &CpuSet, request: &FlushRequest) {
        self.debug_assert_pinned();
        debug_assert!(
            !targets.contains(self.this_cpu()),
            "a remote flush was sent to the calling CPU itself"
        );
        debug_assert!(!Task::with(Task::interrupts_off), "a remote flush was sent with interrupts off");
        let counters = self.own_counters();
        counters.flushes_remote.add(1);
        counters.cpus_targeted.add(targets.len() as u64);
        self.count_extent(request);
        if self.config.real_ipis && !targets.is_empty() {
            counters.ipis.add(1);
            barriers::interrupt_processors();
        }
        let lost = self.tlbs.losses.fail();
        Task::with(|task| task.replace_flush_lost(lost));
    }

    /// The modelled TLBs change only here, as late as the contract allows, so that a caller that takes the
    /// start for the end is noticed.
    fn flush_remote_wait(&self, targets: &CpuSet, request: &FlushRequest) {
        self.debug_assert_pinned();
        if !Task::with(|task| task.replace_flush_lost(false)) {
            targets.iter().for_each(|cpu| self.tlbs.flush(cpu, request));
        }
    }

    #[cfg(feature = "published")]
    fn flush_kernel(&self, range: VirtRange) {
        self.flush_kernel_range(range);
    }

    fn secondary_invalidate_start(&self, root: Frame, range: VirtRange) {
        self.debug_assert_may_block();
        self.own_counters().brackets.add(1);
        self.start_bracket(root, range);
    }

    fn secondary_invalidate_end(&self, root: Frame, range: VirtRange) {
        self.debug_assert_may_block();
        self.own_counters().bracket_ends.add(1);
        self.end_bracket(root, range);
    }

    fn secondary_collapse_possible(&self, root: Frame, range: VirtRange) {
        self.debug_assert_may_block();
        self.own_counters().collapses_told.add(1);
        self.collapse_copies(root, range);
    }
}

// SAFETY: invariant 2: this trait adds no flush to those of `TablePlatform`, and its calls sleep, wake and name files.
unsafe impl Platform for Hosted {
    type Pager = SyntheticFiles;

    /// The files; also checks that the caller holds nothing but an address space's lock.
    #[inline]
    fn pager(&self) -> &SyntheticFiles {
        Task::with(|task| task.ranks.at_most(Rank::AddressSpace));
        &self.files
    }

    /// The host's own `futex`: words of different machines in one process have different addresses.
    fn wait(&self, word: &AtomicU32, seen: u32) {
        Task::with(|task| {
            assert!(task.ranks.is_none(), "a task that holds a lock went to sleep");
            debug_assert_eq!(task.pins(), 0, "a pinned task went to sleep");
        });
        self.own_counters().waits.add(1);
        if cfg!(miri) {
            return self.relax();
        }
        if self.config.halt_poll != Duration::ZERO {
            let start = Instant::now();
            while start.elapsed() < self.config.halt_poll {
                if word.load(Ordering::Acquire) != seen {
                    return;
                }
                std::hint::spin_loop();
            }
        }
        // The caller checks the word again in any case.
        let _woken = futex::wait(word, futex::Flags::PRIVATE, seen, None);
    }

    fn wake(&self, word: &AtomicU32) {
        Task::with(|task| task.ranks.at_most(Rank::AddressSpace));
        self.own_counters().wakes.add(1);
        if !cfg!(miri) {
            let _woken = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }
}
