//! Accesses in kernel mode, through the kernel's page table and each CPU's cached translations of it.

use std::sync::atomic::Ordering;
use std::time::Instant;

use quire::addr::{Frame, PhysAddr, VirtAddr, VirtRange};
use quire::rank::Rank;

use super::Access;
use super::fault::PageFault;
use crate::barriers;
use crate::machine::Hosted;
use crate::task::Task;

impl Hosted {
    /// Makes `root`, a table of the machine's highest level, the kernel's page table on all CPUs, or leaves
    /// the kernel without one. Cached translations of the former one are dropped; freed frames are checked
    /// against cached ones of this one. Address spaces that are created from now on have its upper half.
    pub fn set_kernel_root(&self, root: Option<Frame>) {
        self.tlbs.load_kernel(root);
    }

    /// Flushes the kernel's translations of `range` on all CPUs, offline ones too.
    pub fn flush_kernel_range(&self, range: VirtRange) {
        debug_assert!(!Task::with(Task::interrupts_off), "a kernel flush was sent with interrupts off");
        Task::with(|task| {
            debug_assert_eq!(task.pins(), 0, "a pinned task cannot wait for all CPUs");
            task.ranks.at_most(Rank::AddressSpace);
        });
        let begun = (!self.config.kernel_flush.is_zero()).then(Instant::now);
        let counters = self.own_counters();
        let others = self.online.snapshot().len() - 1;
        counters.flushes_kernel.add(1);
        counters.cpus_targeted.add(others as u64);
        if self.config.real_ipis && others > 0 {
            counters.ipis.add(1);
            barriers::interrupt_processors();
        }
        if !self.tlbs.losses.fail() {
            self.tlbs.flush_kernel(range);
        }
        while begun.is_some_and(|begun| begun.elapsed() < self.config.kernel_flush) {
            std::hint::spin_loop();
        }
    }

    /// Reads the aligned word at `addr` in kernel mode, as the running CPU.
    ///
    /// # Errors
    /// The page fault, if it cannot be read.
    pub fn kernel_load(&self, addr: VirtAddr) -> Result<u64, PageFault> {
        self.kernel_access(addr, Access::KernelRead, |machine, phys| {
            machine.arena.word(phys).load(Ordering::Acquire)
        })
    }

    /// Replaces `old` by `new` at `addr` in one atomic step in kernel mode, as the running CPU. It needs the
    /// right to store even if it does not store, as on hardware. If another word is there, returns that.
    ///
    /// # Errors
    /// The page fault, if it cannot be written.
    pub fn kernel_exchange(&self, addr: VirtAddr, old: u64, new: u64) -> Result<Result<u64, u64>, PageFault> {
        self.kernel_access(addr, Access::KernelWrite, |machine, phys| {
            machine.arena.word(phys).compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
        })
    }

    fn kernel_access<R>(
        &self,
        addr: VirtAddr,
        access: Access,
        act: impl FnOnce(&Self, PhysAddr) -> R,
    ) -> Result<R, PageFault> {
        assert!(addr.is_aligned(8), "{addr:?} is no multiple of 8");
        self.access_through(self.tlbs.kernel(self.this_cpu()), addr.0, access, act)
    }
}
