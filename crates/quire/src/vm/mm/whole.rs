//! What a kernel does with an address space as a whole: it runs on CPUs, and has limits, a number and a page
//! table.
#![forbid(unsafe_code)]

use crate::addr::Frame;
use crate::hugetlb::HugeGroup;
use crate::platform::Platform;
use crate::vm::mm::facade::Mm;
use crate::vm::tree::layout::Layout;

impl<P: Platform> Mm<'_, P> {
    /// The running CPU starts to run the address space. It runs no other.
    pub fn switch_in(&self) {
        self.space.switch_in()
    }

    /// The running CPU stops running the address space.
    pub fn switch_out(&self) {
        self.space.switch_out()
    }

    /// Its number: no other address space of the machine has it, or had it before.
    pub fn number(&self) -> u64 {
        self.space.number()
    }

    /// The top-level page table, for the machine's root register.
    pub fn root(&self) -> Frame {
        self.space.root()
    }

    /// Says how many bytes a mapping that grows down may reach (`RLIMIT_STACK`). No limit at first.
    pub fn set_stack_limit(&self, bytes: u64) {
        self.space.set_stack_limit(bytes)
    }

    /// Says how many mappings it may have (`vm.max_map_count`); [`MAX_MAPPINGS`](crate::limits::MAX_MAPPINGS)
    /// at first, and in a child of `fork` what the parent has. As in Linux up to 6.18 a new mapping may be
    /// one more, and what cuts mappings may not.
    pub fn set_mapping_limit(&self, count: usize) {
        self.space.set_mapping_limit(count)
    }

    /// Says which group pays for huge pages from now on; a child of `fork` is in the same one.
    pub fn set_huge_group(&self, group: HugeGroup) {
        self.space.set_huge_group(group)
    }

    /// Where mappings are placed.
    pub fn layout(&self) -> Layout {
        self.space.layout()
    }
}
