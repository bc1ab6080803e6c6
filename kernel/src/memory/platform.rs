//! The machine as Quire sees it: its CPUs and nodes, a direct map, and the two ways in which x86-64 forgets translations.

use core::sync::atomic::AtomicU32;

use quire::addr::{Frame, PhysAddr};
use quire::arch::{CpuFeatures, ProcessorState};
use quire::cpu::{CpuId, CpuSet};
use quire::page_alloc::NodePolicy;
use quire::platform::{Context, Event, FlushRequest, FramePlatform, Platform, TablePlatform};
use quire::rank::Rank;
use quire_interop::shootdown::LocalTlb;
use x86_64::instructions::interrupts;

use super::{failures, kernel_half, layout, stacks};
use crate::cpu::{area, fpu, ipi, topology};
use crate::device::serial::log;
use crate::files::Storage;
use crate::task::{self, Task, sched};
use crate::time;
use crate::userfault;

/// The machine. It has no size, so that a call of the library compiles to the instructions below.
pub struct Machine;

/// The one that runs.
pub static MACHINE: Machine = Machine;

// SAFETY: tasks switch only where they ask to, and Quire asks nowhere where it has pinned one. The direct map
// has one offset for all memory, and only Quire uses what it was given (invariant 1).
unsafe impl FramePlatform for Machine {
    #[inline]
    fn pin(&self) -> CpuId {
        area::cpu_id()
    }

    #[inline]
    fn unpin(&self) {}

    #[inline]
    fn context(&self) -> Context {
        if area::in_interrupt() { Context::HardInterrupt } else { Context::Task }
    }

    fn now_ns(&self) -> u64 {
        time::now_ns()
    }

    fn reschedule_point(&self) {
        let area = area::this();
        if area.need_resched() && !area.is_idle() && sched::is_started() {
            debug_assert!(area.may_switch());
            sched::schedule();
        }
    }

    fn thread_number(&self) -> u64 {
        u64::from(sched::current_ref().id())
    }

    /// Work for a CPU that clears memory ahead ends that.
    fn is_dying(&self) -> bool {
        let area = area::this();
        let is_wanted = area.is_idle() && area.need_resched();
        is_wanted || sched::running().is_some_and(Task::is_dying)
    }

    /// The holder of a lock may wait for this CPU to flush, while interrupts are off here. The holder of an address
    /// space's lock, for which tasks spin before they sleep, may wait for a CPU, since it may have been switched
    /// away from in [`Self::reschedule_point`].
    #[inline]
    fn relax(&self) {
        ipi::serve_flushes();
        sched::let_others_run();
        core::hint::spin_loop();
    }

    #[inline]
    fn lock_taken(&self, rank: Rank) {
        if rank != Rank::AddressSpace {
            area::add_spin_lock();
        }
    }

    #[inline]
    fn lock_dropped(&self, rank: Rank) {
        if rank != Rank::AddressSpace {
            area::remove_spin_lock();
        }
    }

    fn features(&self) -> CpuFeatures {
        CpuFeatures::detect()
    }

    fn vectors_begin(&self) -> bool {
        fpu::borrow_registers()
    }

    fn vectors_end(&self) {
        fpu::give_back_registers();
    }

    #[inline]
    fn cpu_count(&self) -> usize {
        area::count()
    }

    fn online_cpus(&self) -> CpuSet {
        ipi::online()
    }

    #[inline]
    fn node_of(&self, cpu: CpuId) -> u8 {
        topology::get().node_of(cpu)
    }

    fn node_distance(&self, from: u8, to: u8) -> u8 {
        topology::get().distance(from, to)
    }

    fn fence_cpus(&self, targets: &CpuSet) {
        ipi::fence(targets);
    }

    #[inline]
    fn direct_map(&self, addr: PhysAddr) -> *mut u8 {
        layout::direct_map(addr)
    }

    fn event(&self, event: Event) {
        log!("{event}");
    }

    fn might_sleep(&self) {
        let is_sound = area::this().may_switch() && self.interrupts_enabled() == Some(true);
        assert!(is_sound, "a call that may sleep was made under a spin lock, or with interrupts off");
    }

    fn interrupts_enabled(&self) -> Option<bool> {
        Some(interrupts::are_enabled())
    }

    fn stack_left(&self) -> Option<usize> {
        stacks::bytes_left()
    }

    #[inline]
    fn fail_allocation(&self) -> bool {
        failures::fails()
    }
}

// SAFETY: each flush removes what it must before it returns (invariant 2).
unsafe impl TablePlatform for Machine {
    fn processor_state(&self) -> ProcessorState {
        // SAFETY: X7: the kernel runs at privilege level 0.
        unsafe { ProcessorState::read() }
    }

    fn kernel_root(&self) -> Option<Frame> {
        Some(kernel_half::root())
    }

    /// Without process-context identifiers a load removes all translations but global ones, so those of `root` are
    /// fresh.
    fn load_root(&self, root: Option<Frame>) {
        kernel_half::load(root.unwrap_or_else(kernel_half::root));
    }

    #[inline(always)]
    fn flush_local(&self, request: &FlushRequest) {
        kernel_half::CPU.flush(request);
    }

    fn flush_remote_start(&self, targets: &CpuSet, request: &FlushRequest) {
        ipi::start_flush(targets, request);
    }

    fn flush_remote_wait(&self, _targets: &CpuSet, _request: &FlushRequest) {
        ipi::wait_for_flush();
    }
}

// SAFETY: invariant 2: each flush of `TablePlatform` is done when it returns. Calls of this trait touch no
// memory of Quire's.
unsafe impl Platform for Machine {
    type Pager = Storage;

    #[inline]
    fn task_nodes(&self) -> NodePolicy {
        sched::running().and_then(|task| task.nodes.get()).unwrap_or(NodePolicy::Local)
    }

    fn wait(&self, word: &AtomicU32, seen: u32) {
        task::word::wait(word, seen);
    }

    fn wake(&self, word: &AtomicU32) {
        task::word::wake(word);
        userfault::notify(word);
    }

    fn pager(&self) -> &Storage {
        &Storage
    }
}
