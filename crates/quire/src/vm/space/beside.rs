//! Faults beside the holder of an address space's lock: where they may go on while a verb works on a range.
//!
//! A verb that changes mappings needs the lock for itself for as long as it changes them. What follows, to empty
//! or change entries, to flush and to free, takes nearly all of the time, and concerns a range. Faults outside this
//! range go on meanwhile (`sync/rwlock.rs`, *Readers beside a writer*), as do calls that populate or drop pages
//! outside it. All others wait: what looks at the whole address space, and what changes mappings.
//!
//! The range covers every page table that the verb detaches, and everything that a fault or such a call inside it
//! may change. Tables above it are common to both sides; their entries change under their own locks, and none
//! above the range goes.
#![forbid(unsafe_code)]

use crate::addr::{Order, VirtAddr, VirtRange};
use crate::limits::BLOCK_SIZE;
use crate::platform::Platform;
use crate::vm::mapping::vma::VmaAttributes;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::guard::SpaceGuard;
use crate::vm::space::state::Space;

/// The range, extended to whole units of this many bytes.
fn in_units(range: VirtRange, bytes: u64) -> VirtRange {
    VirtRange {
        start: range.start.align_down(bytes),
        end: range.end.align_up(bytes).unwrap_or(VirtAddr(u64::MAX)),
    }
}

/// The range, extended to whole tables of 4 KiB leaves.
pub(in crate::vm) fn whole_tables(range: VirtRange) -> VirtRange {
    in_units(range, BLOCK_SIZE)
}

impl<P: Platform> AddressSpace<'_, P> {
    /// Where a fault in a mapping with these attributes may map something inside the range, which lies in it.
    pub(in crate::vm) fn reach_of_faults(&self, vma: &VmaAttributes, range: VirtRange) -> VirtRange {
        let largest = self.memory.policy().allowed(vma.advice, vma.folios).largest_up_to(Order::GIGANTIC);
        in_units(range, largest.unwrap_or(Order::BLOCK).max(Order::BLOCK).bytes())
    }

    /// Whether leaves may go or lose bits while faults run. No table of the address space is shared then, nor
    /// becomes so while the lock is held.
    pub(in crate::vm) fn allows_faults(&self, space: &Space) -> bool {
        !space.huge
            && !space.handled
            && !self.context.has_shared()
            && !self.context.has_secondary()
            && !self.memory.gigantic_clears().any()
    }

    /// Whether it is worth while to let faults go on: they may, and more than one CPU runs the address space.
    #[inline]
    pub(in crate::vm) fn has_faults_beside(&self, space: &Space) -> bool {
        self.context.runs_on_several(self.memory.platform()) && self.allows_faults(space)
    }

    /// Lets faults outside `kept` go on, if it is worth while.
    #[inline]
    pub(in crate::vm) fn admit_faults(&self, space: &mut SpaceGuard<'_, P>, kept: VirtRange) {
        if self.has_faults_beside(space) {
            space.admit(kept);
        }
    }
}
