//! What a kernel does with a whole address space: running it on CPUs, its limits, its number, its page table.
#![forbid(unsafe_code)]

use core::ops::Range;

use crate::addr::{Frame, VirtAddr};
use crate::hugetlb::HugeGroup;
use crate::platform::Platform;
use crate::vm::mm::facade::Mm;
use crate::vm::space::limits::MappedLimits;
use crate::vm::tree::layout::Layout;

impl<P: Platform> Mm<'_, P> {
    /// The calling CPU starts to run the address space. It runs no other.
    pub fn switch_in(&self) {
        self.space.context().switch_in(self.space.memory.platform());
    }

    /// The calling CPU stops running the address space.
    pub fn switch_out(&self) {
        self.space.context().switch_out(self.space.memory.platform());
    }

    /// The calling CPU, which runs this address space, switches to another one of the same machine: as
    /// [`Self::switch_out`] here and [`Self::switch_in`] there, but with one load of the root instead of two.
    /// Does nothing when both are the same.
    pub fn switch_to(&self, next: &Mm<'_, P>) {
        self.space.context().switch_to(next.space.context(), self.space.memory.platform());
    }

    /// Its number: no other address space of the machine has it, or had it before.
    pub fn number(&self) -> u64 {
        self.space.number()
    }

    /// The top-level page table, for the machine's root register.
    pub fn root(&self) -> Frame {
        self.space.context().root()
    }

    /// Sets how many bytes a mapping that grows down may reach (`RLIMIT_STACK`). No limit at first.
    pub fn set_stack_limit(&self, bytes: u64) {
        self.sleepable().lock().stack_limit = bytes;
    }

    /// Sets how many bytes it may map. No limit at first; `fork` copies the limits. What is mapped already stays, and
    /// stacks grow beyond them.
    pub fn set_mapped_limits(&self, limits: MappedLimits) {
        self.sleepable().lock().limits = limits;
    }

    /// Sets how many mappings it may have (`vm.max_map_count`): [`MAX_MAPPINGS`](crate::limits::MAX_MAPPINGS)
    /// at first; `fork` copies the limit. As in Linux up to 6.18, a new mapping may exceed it by one; a verb
    /// that cuts mappings may not.
    pub fn set_mapping_limit(&self, count: usize) {
        self.sleepable().lock().mapping_limit = count;
    }

    /// Sets the group that is charged for huge pages from now on; `fork` copies it.
    pub fn set_huge_group(&self, group: HugeGroup) {
        self.space.set_group(group)
    }

    /// Whether new mappings are locked (`mlockall` with `MCL_FUTURE`).
    pub fn locks_future(&self) -> bool {
        self.sleepable().locks_future()
    }

    /// The heap, from its first byte to the byte at which it ends (`start_brk` and `brk`).
    pub fn heap(&self) -> Range<VirtAddr> {
        self.sleepable().heap()
    }

    /// Where mappings are placed.
    pub fn layout(&self) -> Layout {
        self.sleepable().layout()
    }
}
